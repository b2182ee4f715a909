"""A checkpoint, loaded: the model that its folder describes, with its weights on a device.

It knows parameters, devices and precisions. It must not know requests or passes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch.overrides import TorchFunctionMode
from transformers import CONFIG_MAPPING, AutoConfig, AutoModel

from worker.encoder_config import in_both_spellings, layer_types, rope_thetas
from worker.encoders import BertEncoder, Encoder, ModernBertEncoder, WholeEncoder
from worker.errors import CheckpointRefused, SettingRefused
from worker.folder import ENCODER, WEIGHTS, Config, digest, read_config, read_json, read_tokenizer
from worker.model import LayaModel, ModelSteps
from worker.rows import Tokenizer
from worker.sources import resolve

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded checkpoint. `name` and `revision` say which; no other checkpoint has the same `key`."""

    folder: Path
    name: str
    revision: str
    config: Config
    tokenizer: Tokenizer
    model: LayaModel
    steps: ModelSteps
    device: torch.device
    dtype: str

    @property
    def key(self) -> tuple[str, str]:
        return self.name, self.revision


class _MetaParameters(TorchFunctionMode):
    """Parameters get a shape but no memory, on the meta device: their values come from the checkpoint.

    Modules allocate parameters with torch.empty. They make the buffers that no checkpoint holds (rotary frequencies,
    position ids) in other ways, so those stay real.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.empty:
            kwargs = {**(kwargs or {}), "device": "meta"}
        return func(*args, **(kwargs or {}))


def load(source: str, device: str, dtype: str) -> Checkpoint:
    """The checkpoint of a directory, or of a hub id with optional `@revision` and `#subfolder`.

    `device`: "auto", "cpu", "cuda" or "cuda:N". `dtype`: "fp32", or "bf16" for the linear layers. Raises
    CheckpointRefused with the file and the key that is wrong, SettingRefused for a device or dtype that is not there.
    """
    target = find_device(device)
    if dtype != "fp32" and target.type == "cpu":
        raise SettingRefused(
            "LAYA_DTYPE", f"{dtype} is served on CUDA only, and LAYA_DEVICE={device} is the CPU here"
        )
    folder, name, revision = resolve(source)
    config = read_config(folder)
    encoder_config = read_json(folder, ENCODER)
    tokenizer, vocabulary = read_tokenizer(folder, config)
    _check_sizes(folder, config, encoder_config, vocabulary)
    model = build_model(folder, config, encoder_config)
    load_weights(model, folder / WEIGHTS, target)
    encoder = _encoder(model.encoder, encoder_config, config.max_len)
    if dtype != "fp32":
        if isinstance(encoder, WholeEncoder):
            raise CheckpointRefused(str(folder / ENCODER), "model_type", f"{dtype} needs modernbert or bert")
        cast_linears(model, DTYPES[dtype])
    model.eval().requires_grad_(False)
    steps = ModelSteps(model, encoder)
    revision = revision or digest(folder)
    return Checkpoint(folder, name, revision, config, tokenizer, model, steps, target, dtype)


def find_device(name: str) -> torch.device:
    """The device that LAYA_DEVICE means; SettingRefused for one that is not there."""
    cuda_devices = torch.cuda.device_count()
    if name == "auto":
        return torch.device("cuda:0" if cuda_devices else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= cuda_devices:
        raise SettingRefused(
            "LAYA_DEVICE", f"{name} is not there; this machine shows {cuda_devices} CUDA devices"
        )
    return device


def _check_sizes(folder: Path, config: Config, encoder_config: Mapping[str, Any], vocabulary: int) -> None:
    path = str(folder / ENCODER)
    for key, least in (("vocab_size", vocabulary), ("max_position_embeddings", config.max_len)):
        size = encoder_config.get(key)
        if isinstance(size, int) and size < least:
            raise CheckpointRefused(path, key, f"{size} is too small: tokenizer and max_len need {least}")


def build_model(folder: Path, config: Config, encoder_config: Mapping[str, Any]) -> LayaModel:
    """The model, its parameters still without values."""
    path = str(folder / ENCODER)
    family = encoder_config.get("model_type")
    if family not in CONFIG_MAPPING:
        raise CheckpointRefused(path, "model_type", f"the installed transformers knows no {family!r}")
    try:
        with _MetaParameters():
            encoder = AutoModel.from_config(AutoConfig.for_model(**in_both_spellings(encoder_config)))
            return LayaModel(encoder, config.head_layers, len(config.act_costs) + 1)
    except ValueError as error:
        key, reason = error.args if len(error.args) == 2 else ("", str(error).strip().splitlines()[0])
        raise CheckpointRefused(path, key, reason) from error
    except Exception as error:  # transformers raises many kinds for configs of the wrong shape
        raise CheckpointRefused(
            path, "", f"no encoder can be built: {type(error).__name__}: {error}"
        ) from error


def load_weights(model: LayaModel, path: Path, device: torch.device) -> None:
    """Reads every parameter and buffer from `path`, as fp32 on `device`: none missing, none left over."""
    if not path.is_file():
        raise CheckpointRefused(str(path), "", "missing")
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict(keep_vars=True).items()}
    try:
        with safe_open(str(path), framework="pt") as file:
            stored = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointRefused(str(path), "", f"not a safetensors file: {error}") from error
    for name in sorted(expected.keys() | stored.keys()):
        if name not in stored:
            raise CheckpointRefused(str(path), name, "missing parameter")
        if name not in expected:
            raise CheckpointRefused(str(path), name, "surplus parameter: the model has none of that name")
        if stored[name] != expected[name]:
            raise CheckpointRefused(str(path), name, f"has shape {stored[name]}, not {expected[name]}")

    for name in expected:
        # Opened again for each tensor: an open file keeps every page that was read, beside the copy.
        with safe_open(str(path), framework="pt") as file:
            tensor = file.get_tensor(name).to(device, torch.float32, copy=True)
        low, high = tensor.aminmax()
        if not bool(low.isfinite() & high.isfinite()):
            raise CheckpointRefused(str(path), name, "holds a value that is not finite")
        owner, _, leaf = name.rpartition(".")
        module = model.get_submodule(owner)
        is_parameter = leaf in module._parameters
        setattr(module, leaf, torch.nn.Parameter(tensor, requires_grad=False) if is_parameter else tensor)
    for name, buffer in model.named_buffers():
        if buffer.is_meta:
            raise CheckpointRefused(str(path), name, "this encoder needs a buffer that no checkpoint holds")
    model.to(device)


def cast_linears(model: LayaModel, dtype: torch.dtype) -> None:
    """Casts the linear layers of encoder and decision head to `dtype`; embeddings and norms stay in fp32."""
    for part in (model.encoder, model.head):
        for module in part.modules() if part is not None else ():
            if isinstance(module, torch.nn.Linear | torch.nn.MultiheadAttention):
                module.to(dtype)


def _encoder(module: Any, encoder_config: Mapping[str, Any], max_len: int) -> Encoder:
    family = encoder_config["model_type"]
    if family == "modernbert":
        types = layer_types(encoder_config, len(module.layers))
        return ModernBertEncoder(module, types, rope_thetas(encoder_config), max_len)
    # BertEncoder has absolute positions only.
    if family == "bert" and encoder_config.get("position_embedding_type", "absolute") == "absolute":
        return BertEncoder(module)
    return WholeEncoder(module)
