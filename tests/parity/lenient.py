"""A lenient backend: takes nearly any bytes for a request, and answers with what it made of them.

Under /answer/NAME it answers with one of the canned responses instead. One request a connection.
"""

from __future__ import annotations

import json
import re
import socket
import zlib

from tests.parity.strict import PER_HOP, shown

_GZIPPED = zlib.compress(b'{"answers":{}}', wbits=31)


def _answer(status: bytes, *fields: bytes, body: bytes = b"", length: bool = True) -> bytes:
    framed = (b"Content-Length: %d" % len(body),) if length else ()
    return b"\r\n".join((b"HTTP/1.1 " + status, *fields, *framed, b"", body))


ANSWERS = {
    "openai-error": _answer(
        b"429 Too Many Requests", b"Content-Type: application/json", b"Retry-After: 3",
        body=b'{"error": {"message": "slow down", "type": "rate_limit", "param": null, "code": null}}',
    ),
    "fastapi-422": _answer(
        b"422 Unprocessable Entity", b"Content-Type: application/json",
        body=b'{"detail":[{"loc":["body","prompt"],"msg":"Field required","type":"missing"}]}',
    ),
    "plain-500": _answer(b"500 Internal Server Error", b"Content-Type: text/plain", body=b"boom\n"),
    "html-502": _answer(b"502 Bad Gateway", b"Content-Type: text/html", body=b"<h1>upstream</h1>"),
    "html-404": _answer(b"404 Not Found", b"Content-Type: text/html", body=b"<h1>nothing</h1>"),
    "plain-413": _answer(b"413 Payload Too Large", b"Content-Type: text/plain", body=b"too much"),
    "no-type-418": _answer(b"418 I'm a teapot", body=b"short and stout"),
    "odd-status-299": _answer(b"299 Whatever It Is", b"Content-Type: text/plain", body=b"fine"),
    "status-529": _answer(b"529 Overloaded", b"Content-Type: application/json", body=b"{}"),
    "no-content-204": _answer(b"204 No Content", b"X-Kept: yes", length=False),
    "not-modified-304": _answer(b"304 Not Modified", b'ETag: "a"', length=False),
    "created-201": _answer(b"201 Created", b"Location: /v1/videos/7", b"Content-Type: application/json", body=b"{}"),
    "redirect-307": _answer(b"307 Temporary Redirect", b"Location: http://elsewhere.test/x?y=1", body=b""),
    "redirect-evil": _answer(b"302 Found", b"Location: //evil.test/", b"Content-Type: text/plain", body=b"go"),
    "cookies-twice": _answer(
        b"200 OK", b"Set-Cookie: a=1; Path=/", b"Set-Cookie: b=2", b"Content-Type: text/plain", body=b"ok"
    ),
    "gzip": _answer(b"200 OK", b"Content-Encoding: gzip", b"Content-Type: application/json", body=_GZIPPED),
    "gzip-on-500": _answer(
        b"500 Internal Server Error", b"Content-Encoding: gzip", b"Content-Type: application/json", body=_GZIPPED
    ),
    "labelled-gzip-but-plain": _answer(
        b"200 OK", b"Content-Encoding: gzip", b"Content-Type: text/plain", body=b"not compressed"
    ),
    "latin-1-in-a-field": _answer(b"200 OK", b"X-Name: caf\xe9", b"Content-Type: text/plain", body=b"ok"),
    "utf-8-file-name": _answer(
        b"200 OK", b"Content-Disposition: attachment; filename*=UTF-8''%E7%94%BB.png",
        b"Content-Type: image/png", body=b"\x89PNG\r\n\x1a\n\0",
    ),
    "json-with-nan": _answer(b"200 OK", b"Content-Type: application/json", body=b'{"a": NaN}'),
    "bytes-labelled-json": _answer(b"200 OK", b"Content-Type: application/json", body=bytes(range(256))),
    "odd-type": _answer(b"200 OK", b"Content-Type: ;;;", body=b"?"),
    "close-delimited": _answer(b"200 OK", b"Content-Type: text/plain", body=b"until the end", length=False),
    "chunked": _answer(
        b"200 OK", b"Content-Type: text/plain", b"Transfer-Encoding: chunked",
        body=b"3;ext=1\r\nabc\r\n4\r\ndefg\r\n0\r\nX-Trailer: 1\r\n\r\n", length=False,
    ),
    "chunked-json": _answer(
        b"200 OK", b"Content-Type: application/json", b"Transfer-Encoding: chunked",
        body=b"1\r\n{\r\n1\r\n}\r\n0\r\n\r\n", length=False,
    ),
    "event-stream": _answer(
        b"200 OK", b"Content-Type: text/event-stream", b"Cache-Control: no-cache", b"Transfer-Encoding: chunked",
        body=b'e\r\ndata: {"n":1}\n\r\n2\r\n\n\n\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n', length=False,
    ),
}  # fmt: skip


def serve(connection: socket.socket) -> None:
    data = b""
    while not (blank := re.search(rb"\r?\n\r?\n", data)):
        if not (more := connection.recv(65536)):
            return
        data += more
    head, rest = data[: blank.start()], data[blank.end() :]
    request_line, *lines = re.split(rb"\r?\n", head)
    method, _, target = request_line.partition(b" ")
    target = target.rpartition(b" ")[0] or target
    fields = [
        (name.strip().lower().decode("latin-1"), value.strip().decode("latin-1"))
        for name, _, value in (line.partition(b":") for line in lines)
    ]
    named = dict(fields)
    if "chunked" in named.get("transfer-encoding", "").lower():
        body = _chunks(connection, rest)
    else:
        length = re.fullmatch(r"\+?(\d+)", named.get("content-length", ""))
        body = _exactly(connection, rest, int(length[1]) if length else 0)
    if method == b"HEAD":
        body = b""
    canned = re.fullmatch(rb"/answer/([\w-]+)", target)
    if canned and canned[1].decode() in ANSWERS:
        connection.sendall(ANSWERS[canned[1].decode()])
        return
    seen = {
        "method": method.decode("latin-1"),
        "target": target.decode("latin-1"),
        "fields": sorted(shown(name, value) for name, value in fields if name not in PER_HOP),
        "body": body.decode("latin-1"),
    }
    answer = json.dumps(seen).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % len(answer)
    connection.sendall(head + b"Connection: close\r\n\r\n" + (b"" if method == b"HEAD" else answer))


def _exactly(connection: socket.socket, data: bytes, length: int) -> bytes:
    while len(data) < length and (more := connection.recv(65536)):
        data += more
    return data[:length]


def _chunks(connection: socket.socket, data: bytes) -> bytes:
    """The decoded body; a malformed size ends it."""
    body = b""
    while True:
        while b"\n" not in data:
            if not (more := connection.recv(65536)):
                return body
            data += more
        line, _, data = data.partition(b"\n")
        size = re.match(rb"\s*(?:0x)?([0-9A-Fa-f]+)", line)
        if not size or int(size[1], 16) == 0:
            return body
        length = int(size[1], 16)
        while len(data) < length + 1 and (more := connection.recv(65536)):
            data += more
        body += data[:length]
        data = data[length:].removeprefix(b"\r").removeprefix(b"\n")
