"""The examples of docs/protocol.md are what the worker says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.client import Client
from tests.servers import Program

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "protocol.md").read_text()
EXAMPLES = re.findall(r"```request\n(.*?)```\n\n```response\n(.*?)```", TEXT, re.DOTALL)


def near(told: Any, said: Any) -> None:
    """The same document, numbers to five decimals: another processor may round the last ones apart."""
    if isinstance(told, dict):
        assert list(told) == list(said)
        for key in told:
            near(told[key], said[key])
    elif isinstance(told, list):
        assert len(told) == len(said)
        for one, other in zip(told, said, strict=True):
            near(one, other)
    elif isinstance(told, float):
        assert said == pytest.approx(told, abs=1e-5)
    else:
        assert told == said


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == TEXT.count("```request") == TEXT.count("```response") > 10


@pytest.mark.parametrize(("request_", "response"), EXAMPLES, ids=lambda text: text.splitlines()[0])
def test_an_example(embedded_worker: Program, request_: str, response: str) -> None:
    head, _, body = request_.partition("\n\n")
    first, *fields = head.splitlines()
    method, path = first.split()
    client = Client(embedded_worker.url)
    try:
        sent = dict(field.split(": ", 1) for field in fields)
        status, headers, said = client.send(method, path, body.encode() or None, sent)
    finally:
        client.close()
    shown, _, told = response.partition("\n\n")
    number, *named = shown.splitlines()
    assert status == int(number)
    for field in named:
        name, value = field.split(": ", 1)
        assert headers[name.lower()] == value
    if headers["content-type"].startswith("application/x-ndjson"):
        near(
            [json.loads(line) for line in told.splitlines()], [json.loads(line) for line in said.splitlines()]
        )
    else:
        near(json.loads(told), json.loads(said))
