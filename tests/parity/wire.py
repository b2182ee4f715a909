"""Bytes over a socket: a request put together, one sent as it is, one answer taken apart."""

from __future__ import annotations

import json
import socket
import ssl
from dataclasses import dataclass
from typing import Any

# Written anew on each hop, or the server's own. What Content-Length said is compared as the body's length.
PER_HOP = {
    "connection",
    "date",
    "server",
    "keep-alive",
    "transfer-encoding",
    "content-length",
    "x-request-id",
}
SECONDS = 30.0


@dataclass(frozen=True)
class Answer:
    """A final response: its status line after the version, the fields that matter by name, the decoded body.

    `cut` is true where the framing promised more than came.
    """

    status: str
    fields: tuple[tuple[str, str], ...]
    body: bytes
    cut: bool = False

    @property
    def code(self) -> int:
        return int(self.status[:3] or 0)

    def json(self) -> Any:
        return json.loads(self.body)


def request(
    line: str | bytes = "POST /v1/systemone",
    body: bytes = b"",
    *fields: bytes,
    type_: bytes | None = b"application/json",
    length: bool = True,
    version: bytes = b"HTTP/1.1",
) -> bytes:
    """A request that asks for the connection's end; Host, Content-Type and Content-Length unless told otherwise."""
    line = line if isinstance(line, bytes) else line.encode()
    head = [line + b" " + version, b"Host: frontend.test", b"Connection: close"]
    head += [b"Content-Type: " + type_] if type_ else []
    head += [b"Content-Length: %d" % len(body)] if length else []
    return b"\r\n".join([*head, *fields, b"", body])


def chunked(*pieces: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + end


def multipart(name: bytes, file: bytes, boundary: bytes = b"----b") -> bytes:
    return (
        b"--%b\r\nContent-Disposition: form-data; name=\"prompt\"\r\n\r\na hat\r\n"
        b"--%b\r\nContent-Disposition: form-data; name=\"image\"; filename=\"%b\"\r\n"
        b"Content-Type: image/png\r\n\r\n%b\r\n--%b--\r\n" % (boundary, boundary, name, file, boundary)
    )  # fmt: skip


def exchange(port: int, raw: bytes, tls: ssl.SSLContext | None = None) -> bytes:
    """All that comes back for `raw` until the server closes, or resets."""
    plain = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
    with tls.wrap_socket(plain, server_hostname="localhost") if tls else plain as connection:
        data = b""
        try:
            connection.sendall(raw)
        except OSError:
            pass  # refused early: the answer says so
        try:
            while piece := connection.recv(65536):
                data += piece
        except ConnectionResetError:
            pass
        return data


def ask(port: int, raw: bytes, tls: ssl.SSLContext | None = None) -> Answer:
    return parse(exchange(port, raw, tls))


def parse(data: bytes) -> Answer:
    while data.startswith(b"HTTP/1.1 100"):
        data = data.partition(b"\r\n\r\n")[2]
    head, _, body = data.partition(b"\r\n\r\n")
    status, *lines = head.split(b"\r\n")
    pairs = (line.partition(b":") for line in lines)
    fields = [(name.decode("latin-1").lower(), value.strip().decode("latin-1")) for name, _, value in pairs]
    named = dict(fields)
    cut = False
    if named.get("transfer-encoding") == "chunked":
        body, cut = dechunk(body)
    elif "content-length" in named and body:
        cut = len(body) < int(named["content-length"])
    # The order of fields counts among those of one name alone (RFC 9110 section 5.3).
    kept = tuple(sorted((pair for pair in fields if pair[0] not in PER_HOP), key=lambda pair: pair[0]))
    return Answer(status.partition(b" ")[2].decode("latin-1"), kept, body, cut)


def dechunk(data: bytes) -> tuple[bytes, bool]:
    """The body, and whether it lacks its end."""
    body = b""
    while True:
        line, _, data = data.partition(b"\r\n")
        try:
            size = int(line.partition(b";")[0], 16)
        except ValueError:
            return body, True
        if size == 0:
            return body, False
        body += data[:size]
        data = data[size + 2 :]
