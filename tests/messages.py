"""HTTP messages as bytes: requests put together, bodies in chunks and forms, and a response as it was read.

Knows no sockets.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


def request(
    line: str | bytes = "POST /v1/systemone",
    body: bytes = b"",
    *fields: bytes,
    type_: bytes | None = b"application/json",
    length: bool = True,
    version: bytes = b"HTTP/1.1",
    close: bool = True,
) -> bytes:
    """Host, Content-Type, Content-Length and `Connection: close`, unless told otherwise; then `fields` as they are."""
    line = line if isinstance(line, bytes) else line.encode("latin-1")
    head = [line + b" " + version, b"Host: frontend.test"]
    head += [b"Connection: close"] if close else []
    head += [b"Content-Type: " + type_] if type_ else []
    head += [b"Content-Length: %d" % len(body)] if length else []
    return b"\r\n".join([*head, *fields, b"", body])


def post(script: str = "ok", body: bytes = b"{}", path: str = "/v1/systemone", *fields: str) -> bytes:
    """A POST on a kept connection that asks the scripted backend for a script."""
    encoded = [field.encode("latin-1") for field in (f"X-Script: {script}", *fields)]
    return request(f"POST {path}", body, *encoded, type_=None, close=False)


def get(script: str = "ok", path: str = "/v1/models", *fields: str) -> bytes:
    """A GET on a kept connection that asks the scripted backend for a script."""
    encoded = [field.encode("latin-1") for field in (f"X-Script: {script}", *fields)]
    return request(f"GET {path}", b"", *encoded, type_=None, length=False, close=False)


def chunked(*pieces: bytes, last: bool = True) -> bytes:
    """A body in chunks; without its last chunk where `last` is false."""
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return body + (b"0\r\n\r\n" if last else b"")


def response(body: bytes, fields: bytes = b"", status: bytes = b"200 OK") -> bytes:
    """A response of known length; `fields` are whole lines."""
    return b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n%b" % (status, fields, len(body), body)


def multipart(name: bytes, file: bytes, boundary: bytes = b"----b") -> bytes:
    """A form with a prompt and an uploaded image of this file name."""
    return (
        b"--%b\r\nContent-Disposition: form-data; name=\"prompt\"\r\n\r\na hat\r\n"
        b"--%b\r\nContent-Disposition: form-data; name=\"image\"; filename=\"%b\"\r\n"
        b"Content-Type: image/png\r\n\r\n%b\r\n--%b--\r\n" % (boundary, boundary, name, file, boundary)
    )  # fmt: skip


@dataclass
class Reply:
    """One response. `body` is out of its chunks; `whole` says that its framing ended properly."""

    status: int
    reason: str
    fields: list[tuple[str, str]]
    body: bytes = b""
    whole: bool = False
    trailers: list[bytes] = field(default_factory=list)

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.fields if key.lower() == name.lower()]

    def value(self, name: str) -> str | None:
        return (self.values(name) or [None])[0]

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error_type(self) -> str:
        return str(self.json()["detail"]["error_type"])
