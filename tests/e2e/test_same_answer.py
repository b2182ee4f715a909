"""What a client gets through jevproxy is what the worker said: status, content type and body bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.client import ask
from tests.servers import Program

STATE = "Parcel 7731 arrived crushed, the buyer wants money back."
NOUL = {"type": "noul", "instructions": "Does the buyer ask for a refund?"}
CHOICE = {
    "type": "choice",
    "instructions": "Which team?",
    "criteria": {"billing": "Payments", "technical": None, "sales, 日本": {"x": 1}},
}
SCORE = {"type": "score", "instructions": "How upset?", "criteria": ["Calm", "Annoyed", "Furious"]}


def body(**questions: Any) -> bytes:
    return json.dumps({"model": "jev-latest", "state": STATE, "questions": questions}).encode()


POSTS = {
    "noul": body(q=NOUL),
    "choice": body(q=CHOICE),
    "score": body(q=SCORE),
    "combined": body(**{"a b": CHOICE, "ü.1": SCORE, "🙂": NOUL}),
    "unknown model": body(q=NOUL).replace(b"jev-latest", b"no-such-model"),
    "no questions": body(),
    "unknown type": body(q={"type": "box", "instructions": "Where?"}),
    "too many levels": body(q=SCORE | {"criteria": [str(i) for i in range(11)]}),
    "one bad beside one good": body(good=NOUL, bad={"type": "choice", "instructions": "Which?"}),
    "not JSON": b'{"model": ',
    "not UTF-8": b'{"state": "\xb5\xc4"}',
    "empty": b"",
}
GETS = ["/health", "/v1/models"]


def exchange(url: str, method: str, path: str, sent: bytes | None) -> tuple[int, str | None, bytes]:
    fields = {} if sent is None else {"Content-Type": "application/json"}
    status, answered, body = ask(url, method, path, sent, **fields)
    return status, answered["Content-Type"], body


@pytest.mark.parametrize("name", POSTS)
def test_post(name: str, embedded_worker: Program, deployed: Program) -> None:
    direct = exchange(embedded_worker.url, "POST", "/v1/systemone", POSTS[name])
    proxied = exchange(deployed.url, "POST", "/v1/systemone", POSTS[name])
    assert proxied == direct
    assert direct[0] == 200 if name in ("noul", "choice", "score", "combined") else 400 <= direct[0] < 500
    assert isinstance(json.loads(direct[2]), dict)


@pytest.mark.parametrize("path", GETS)
def test_get(path: str, embedded_worker: Program, deployed: Program) -> None:
    direct = exchange(embedded_worker.url, "GET", path, None)
    assert exchange(deployed.url, "GET", path, None) == direct
    assert direct[0] == 200
