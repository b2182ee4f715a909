"""The JSON client: one kept connection, over TLS to the tests' own certificates as well.

Knows nothing of what the tests check. `callers` has the one for raw bytes.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from http.client import HTTPMessage
from typing import Any

from tests.callers import unverified

DECISIONS = "/v1/systemone"


class Client:
    """A connection to `http://HOST:PORT` or `https://...`; made anew when the server has closed it."""

    def __init__(self, url: str, timeout: float = 120.0) -> None:
        scheme, _, address = url.partition("://")
        self.connection = (
            http.client.HTTPSConnection(address, timeout=timeout, context=unverified())
            if scheme == "https"
            else http.client.HTTPConnection(address, timeout=timeout)
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.connection.close()

    def send(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, HTTPMessage, bytes]:
        """Status, header fields and body of one exchange."""
        self.connection.request(method, path, body, dict(headers or {}))
        return self.answer()

    def answer(self) -> tuple[int, HTTPMessage, bytes]:
        """The same, of a request that was sent with `connection`."""
        response = self.connection.getresponse()
        return response.status, response.headers, response.read()

    def post(self, document: Any, path: str = DECISIONS, **headers: str) -> tuple[int, Any]:
        """Status and JSON answer of a document, or of a body's bytes; `headers` with _ for -."""
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        status, fields, answer = self.send(
            "POST", path, body, {"Content-Type": "application/json"} | dashed(headers)
        )
        assert fields["content-type"] == "application/json"
        return status, json.loads(answer)

    def get(self, path: str, **headers: str) -> tuple[int, Any]:
        status, _, answer = self.send("GET", path, None, dashed(headers))
        return status, json.loads(answer)


def dashed(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


def ask(
    url: str, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, HTTPMessage, bytes]:
    """One exchange on a connection of its own; `headers` with _ for -."""
    with Client(url) as client:
        return client.send(method, path, body, dashed(headers))
