"""A checkpoint's files: tokenizers of any age."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import edit
from worker import checkpoint


@pytest.mark.parametrize(
    "change",
    [
        {"tokenizer_class": "TokenizersBackend", "backend": "tokenizers"},
        {"tokenizer_class": None},
        {"tokenizer_class": "GemmaTokenizer", "extra_special_tokens": ["<a>", "<b>"]},
        {"mask_token": {"content": "[MASK]", "lstrip": True, "special": True}},
    ],
)
def test_a_tokenizer_config_of_any_age_loads_and_nothing_is_written(
    copy: Path, tiny: Path, change: dict[str, Any]
) -> None:
    edit(copy / "tokenizer/tokenizer_config.json", lambda config: config.update(change))
    files = sorted(path for path in copy.rglob("*"))
    before = {path: path.read_bytes() for path in files if path.is_file()}
    for path in (*files, copy):
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        loaded = checkpoint.load(str(copy), "cpu", "fp32")
    finally:
        for path in (copy, *files):
            path.chmod(0o755 if path.is_dir() else 0o644)
    assert sorted(copy.rglob("*")) == files
    assert {path: path.read_bytes() for path in before} == before
    usual = checkpoint.load(str(tiny), "cpu", "fp32")
    functions = {"encode": usual.tokenizer.encode, "decode": usual.tokenizer.decode}
    assert replace(loaded.tokenizer, **functions) == usual.tokenizer
    assert loaded.tokenizer.encode("def f(x): return x") == usual.tokenizer.encode("def f(x): return x")


def test_a_tokenizer_that_was_saved_with_truncation_and_padding_cuts_nothing(copy: Path, tiny: Path) -> None:
    edit(
        copy / "tokenizer/tokenizer.json",
        lambda config: config.update(
            truncation={"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
            padding={
                "strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 3,
                "pad_type_id": 0, "pad_token": "[PAD]",
            },
        ),
    )  # fmt: skip
    text = "import os, sys, threading, json"
    encode = checkpoint.load(str(copy), "cpu", "fp32").tokenizer.encode
    assert encode(text) == checkpoint.load(str(tiny), "cpu", "fp32").tokenizer.encode(text)


def test_many_threads_may_encode_at_once(tiny: Path) -> None:
    encode = checkpoint.load(str(tiny), "cpu", "fp32").tokenizer.encode
    texts = [f"def f{number}(x): return {number} * x" * (1 + number % 9) for number in range(40)]
    expected = [encode(text) for text in texts]
    wrong: list[str] = []

    def work() -> None:
        for _ in range(20):
            wrong.extend(text for text, ids in zip(texts, expected, strict=True) if encode(text) != ids)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
