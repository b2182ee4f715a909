"""A checkpoint's folder: its configs and tokenizer, read strictly.

It knows files, keys and names. It must not know tensors, requests or the device. Nothing is ever written into
a checkpoint's folder: it may be a read-only cache that others share.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

import tokenizers

from worker.errors import CheckpointRefused
from worker.rows import Tokenizer

CONFIG, WEIGHTS = "rl_agent_config.json", "model.safetensors"
ENCODER, TOKENIZER = "encoder/config.json", "tokenizer/tokenizer.json"
TOKENIZER_CONFIG, SPECIAL_TOKENS = "tokenizer/tokenizer_config.json", "tokenizer/special_tokens_map.json"
FILES = (CONFIG, WEIGHTS, "encoder/*", "tokenizer/*")
SPECIAL = ("cls_token", "sep_token", "mask_token")


@dataclass(frozen=True, slots=True)
class Config:
    """`rl_agent_config.json`, under the file's own keys. Temperatures are as the file has them, not clamped."""

    head_layers: int
    act_costs: Mapping[str, float]
    max_len: int
    head_max_len: int
    temperature: tuple[Any, Any, Any]
    temperature_by_options: Mapping[str, Any]


def complete(folder: Path) -> bool:
    """Whether every file is there that loading needs. `special_tokens_map.json` is needed only where the tokenizer's
    config does not name the special tokens itself."""
    needed = [CONFIG, WEIGHTS, ENCODER, TOKENIZER, TOKENIZER_CONFIG]
    if (folder / TOKENIZER_CONFIG).is_file() and not all(
        map(read_json(folder, TOKENIZER_CONFIG).get, SPECIAL)
    ):
        needed.append(SPECIAL_TOKENS)
    return all((folder / name).is_file() for name in needed)


def digest(folder: Path) -> str:
    """Twelve hex digits over the content of every file that decides the answers."""
    total = sha256()
    for name in (CONFIG, ENCODER, TOKENIZER, TOKENIZER_CONFIG, SPECIAL_TOKENS, WEIGHTS):
        if (folder / name).is_file():
            with (folder / name).open("rb") as file:
                total.update(f"{name} {file_digest(file, 'sha256').hexdigest()}\n".encode())
    return total.hexdigest()[:12]


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """The object in a JSON file; CheckpointRefused if there is none."""
    path = folder / name
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointRefused(str(path), "", "missing") from None
    except (OSError, ValueError) as error:
        raise CheckpointRefused(str(path), "", f"not readable as JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointRefused(str(path), "", "not a JSON object")
    return value


def read_config(folder: Path) -> Config:
    """`rl_agent_config.json`, every key checked."""
    path, raw = str(folder / CONFIG), read_json(folder, CONFIG)

    def number(key: str, default: int | None, least: int) -> int:
        value = raw.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise CheckpointRefused(path, key, f"must be an integer of at least {least}, not {value!r}")
        return value

    def mapping(key: str) -> dict[str, Any]:
        value = raw.get(key)
        if value is not None and not isinstance(value, dict):
            raise CheckpointRefused(path, key, f"must be an object, not {value!r}")
        return value or {}

    layout = raw.get("option_layout", "sequential")
    if layout != "sequential":
        raise CheckpointRefused(path, "option_layout", f"{layout!r} is not supported, only 'sequential'")
    temperature = raw.get("temperature", [1.0, 1.0, 1.0])
    if not isinstance(temperature, list) or len(temperature) != 3:
        raise CheckpointRefused(path, "temperature", "must be three numbers: choice, score, noul")
    return Config(
        head_layers=number("head_layers", None, 0),
        act_costs=mapping("act_costs"),
        max_len=number("max_len", 512, 16),
        head_max_len=number("head_max_len", 192, 16),
        temperature=(temperature[0], temperature[1], temperature[2]),
        temperature_by_options=mapping("temperature_by_options"),
    )


def read_tokenizer(folder: Path, config: Config) -> tuple[Tokenizer, int]:
    """The tokenizer, and one more than the largest id it gives.

    `tokenizer.json` alone makes the ids; the config beside it only says which tokens are special. So neither the
    class that the config names nor how it spells extra tokens matters.
    """
    path = folder / TOKENIZER
    if not path.is_file():
        raise CheckpointRefused(str(path), "", "missing")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise CheckpointRefused(str(path), "", f"not a tokenizer: {error}") from error
    # Set here once and never again: the library fails if either is set while another thread encodes.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    special_tokens = read_json(folder, SPECIAL_TOKENS) if (folder / SPECIAL_TOKENS).is_file() else {}
    own = read_json(folder, TOKENIZER_CONFIG)
    special_tokens |= {key: value for key, value in own.items() if value is not None}

    def text_of(key: str) -> str:
        value = special_tokens.get(key)
        return value.get("content", "") if isinstance(value, dict) else value or ""

    def id_of(key: str) -> int:
        index = tokenizer.token_to_id(text_of(key))
        if index is None:
            raise CheckpointRefused(str(folder / TOKENIZER_CONFIG), key, "names no token of the vocabulary")
        return index

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False).ids

    def decode(ids: Sequence[int]) -> str:
        return tokenizer.decode(list(ids), skip_special_tokens=False)

    made = Tokenizer(
        encode=encode,
        decode=decode,
        cls=id_of("cls_token"),
        sep=id_of("sep_token"),
        mask=id_of("mask_token"),
        mask_text=text_of("mask_token"),
        max_len=config.max_len,
        prompt_max_len=config.head_max_len,
    )
    return made, max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
