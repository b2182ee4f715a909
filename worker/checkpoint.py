"""A checkpoint, loaded: the model that its folder describes, with its weights on a device.

It knows parameters, and how configs of different ages spell a thing. It must not know requests or passes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch.overrides import TorchFunctionMode
from transformers import CONFIG_MAPPING, AutoConfig, AutoModel

from worker.encoders import Bert, Encoder, ModernBert, Whole
from worker.errors import CheckpointRefused, SettingRefused
from worker.folder import (
    ENCODER,
    WEIGHTS,
    Config,
    Special,
    digest,
    read_config,
    read_json,
    read_tokenizer,
    resolve,
)
from worker.model import Decision, Steps

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# ModernBERT's own rotary bases, for configs that leave them out.
GLOBAL_THETA, LOCAL_THETA = 160_000.0, 10_000.0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that is loaded. `name` and `revision` say what it is; `key` tells it from any other.

    `encode` turns text into token ids, adds and cuts nothing, and may be called by many threads at once.
    """

    folder: Path
    name: str
    revision: str
    config: Config
    special: Special
    encode: Callable[[str], list[int]]
    model: Decision
    steps: Steps
    device: torch.device
    dtype: str

    @property
    def key(self) -> tuple[str, str]:
        return self.name, self.revision


class _Shapes(TorchFunctionMode):
    """Parameters become shapes without memory, on the meta device: their values come from the checkpoint.

    Modules allocate parameters with torch.empty, and make the buffers that no checkpoint holds (rotary
    frequencies, position ids) in other ways, so those stay real.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.empty:
            kwargs = {**(kwargs or {}), "device": "meta"}
        return func(*args, **(kwargs or {}))


def load(source: str, device: str, dtype: str) -> Checkpoint:
    """The checkpoint of a directory, or of a hub id with optional `@revision` and `#subfolder`.

    `device`: "auto", "cpu", "cuda" or "cuda:N". `dtype`: "fp32", or "bf16" for the linear layers. Raises
    CheckpointRefused with the file and the key that is wrong.
    """
    place = place_of(device)
    if dtype != "fp32" and place.type == "cpu":
        raise SettingRefused(
            "LAYA_DTYPE", f"{dtype} is served on CUDA only, and LAYA_DEVICE={device} is the CPU here"
        )
    folder, name, revision = resolve(source)
    config = read_config(folder)
    shape = read_json(folder, ENCODER)
    encode, special, vocabulary = read_tokenizer(folder)
    _check_sizes(folder, config, shape, vocabulary)
    model = build(folder, config, shape)
    fill(model, folder / WEIGHTS, place)
    encoder = _encoder(folder, model.encoder, shape, config.max_len)
    if dtype != "fp32":
        if isinstance(encoder, Whole):
            raise CheckpointRefused(str(folder / ENCODER), "model_type", f"{dtype} needs modernbert or bert")
        lower(model, DTYPES[dtype])
    model.eval().requires_grad_(False)
    return Checkpoint(
        folder,
        name,
        revision or digest(folder),
        config,
        special,
        encode,
        model,
        Steps(model, encoder),
        place,
        dtype,
    )


def _check_sizes(folder: Path, config: Config, shape: Mapping[str, Any], vocabulary: int) -> None:
    path = str(folder / ENCODER)
    for key, least in (("vocab_size", vocabulary), ("max_position_embeddings", config.max_len)):
        size = shape.get(key)
        if isinstance(size, int) and size < least:
            raise CheckpointRefused(path, key, f"{size} is too small: tokenizer and max_len need {least}")


def rotations(shape: Mapping[str, Any]) -> dict[str, float]:
    """ModernBERT's rotary base for each kind of layer, from a config of transformers 4 or 5.

    4 has `global_rope_theta` and `local_rope_theta` (None: the global one), 5 has `rope_parameters` for
    each kind of layer, and each ignores the other's spelling in silence. Raises ValueError with the key.
    """
    whole = shape.get("global_rope_theta", GLOBAL_THETA)
    local = shape.get("local_rope_theta", LOCAL_THETA)
    thetas = {"full_attention": whole, "sliding_attention": whole if local is None else local}
    given = shape.get("rope_parameters") or {}
    for kind, theta in thetas.items():
        own = given.get(kind) if kind in given else given if "rope_theta" in given else {}
        own = own or {}
        if own.get("rope_type", "default") != "default":
            raise ValueError(
                "rope_parameters", f"rope_type {own['rope_type']!r} is not supported, only 'default'"
            )
        thetas[kind] = own.get("rope_theta", theta)
        if isinstance(thetas[kind], bool) or not isinstance(thetas[kind], int | float) or thetas[kind] <= 0:
            raise ValueError("rope_parameters", f"{kind}: rope_theta must be a positive number")
    return {kind: float(theta) for kind, theta in thetas.items()}


def layer_kinds(shape: Mapping[str, Any], depth: int) -> list[str]:
    """The kind of each ModernBERT layer. Raises ValueError with the key."""
    every = shape.get("global_attn_every_n_layers") or 3
    kinds = shape.get("layer_types") or [
        "sliding_attention" if index % every else "full_attention" for index in range(depth)
    ]
    if len(kinds) != depth or not set(kinds) <= {"full_attention", "sliding_attention"}:
        raise ValueError(
            "layer_types", f"must name full_attention or sliding_attention for each of {depth} layers"
        )
    return list(kinds)


def build(folder: Path, config: Config, shape: Mapping[str, Any]) -> Decision:
    """The model with parameters that hold nothing yet."""
    path = str(folder / ENCODER)
    settings = dict(shape)
    family = settings.get("model_type")
    if family not in CONFIG_MAPPING:
        raise CheckpointRefused(path, "model_type", f"the installed transformers knows no {family!r}")
    try:
        if family == "modernbert":
            layer_kinds(settings, settings.get("num_hidden_layers", 22))
            thetas = rotations(settings)
            # In both spellings, so that the installed transformers finds its own.
            settings |= {
                "global_rope_theta": thetas["full_attention"],
                "local_rope_theta": thetas["sliding_attention"],
            }
            settings["rope_parameters"] = {
                kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in thetas.items()
            }
            settings["reference_compile"] = False
        # Floats are fp32 until told otherwise, whatever precision the encoder was once saved in.
        settings.pop("dtype", None)
        settings.pop("torch_dtype", None)
        with _Shapes():
            encoder = AutoModel.from_config(AutoConfig.for_model(**settings))
            return Decision(encoder, config.head_layers, len(config.act_costs) + 1)
    except ValueError as error:
        key, reason = error.args if len(error.args) == 2 else ("", str(error).strip().splitlines()[0])
        raise CheckpointRefused(path, key, reason) from error
    except Exception as error:  # transformers raises many kinds for configs of the wrong shape
        raise CheckpointRefused(
            path, "", f"no encoder can be built: {type(error).__name__}: {error}"
        ) from error


def place_of(device: str) -> torch.device:
    """The device that LAYA_DEVICE means; SettingRefused for one that is not there."""
    cuda = torch.cuda.device_count()
    if device == "auto":
        return torch.device("cuda:0" if cuda else "cpu")
    place = torch.device(device)
    if place.type == "cuda" and (place.index or 0) >= cuda:
        raise SettingRefused("LAYA_DEVICE", f"{device} is not there; this machine shows {cuda} CUDA devices")
    return place


def fill(model: Decision, path: Path, device: torch.device) -> None:
    """Reads every parameter and buffer into place, as fp32 on `device`: none missing, none left over."""
    if not path.is_file():
        raise CheckpointRefused(str(path), "", "missing")
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict(keep_vars=True).items()}
    try:
        with safe_open(str(path), framework="pt") as file:
            found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointRefused(str(path), "", f"not a safetensors file: {error}") from error
    for name in sorted(wanted.keys() | found.keys()):
        if name not in found:
            raise CheckpointRefused(str(path), name, "missing parameter")
        if name not in wanted:
            raise CheckpointRefused(str(path), name, "surplus parameter: the model has none of that name")
        if found[name] != wanted[name]:
            raise CheckpointRefused(str(path), name, f"has shape {found[name]}, not {wanted[name]}")

    for name in wanted:
        # Opened again for each: an open file keeps every page that was read, beside the copy.
        with safe_open(str(path), framework="pt") as file:
            tensor = file.get_tensor(name).to(device, torch.float32, copy=True)
        low, high = tensor.aminmax()
        if not bool(low.isfinite() & high.isfinite()):
            raise CheckpointRefused(str(path), name, "holds a value that is not finite")
        owner, _, leaf = name.rpartition(".")
        module = model.get_submodule(owner)
        parameter = leaf in module._parameters
        setattr(module, leaf, torch.nn.Parameter(tensor, requires_grad=False) if parameter else tensor)
    for name, buffer in model.named_buffers():
        if buffer.is_meta:
            raise CheckpointRefused(str(path), name, "this encoder needs a buffer that no checkpoint holds")
    model.to(device)


def lower(model: Decision, dtype: torch.dtype) -> None:
    """Puts the linear layers of encoder and head into `dtype`; embeddings and norms stay as they are."""
    for part in (model.encoder, model.head):
        for module in part.modules() if part is not None else ():
            if isinstance(module, torch.nn.Linear | torch.nn.MultiheadAttention):
                module.to(dtype)


def _encoder(folder: Path, module: Any, shape: Mapping[str, Any], max_len: int) -> Encoder:
    family = shape["model_type"]
    if family == "modernbert":
        return ModernBert(module, layer_kinds(shape, len(module.layers)), rotations(shape), max_len)
    # The arithmetic here is that of the plain encoder with absolute positions.
    if family == "bert" and shape.get("position_embedding_type", "absolute") == "absolute":
        return Bert(module)
    return Whole(module)
