"""Backends of raw sockets for jevproxy's tests, and the raw client's side: scripted bytes in, exact bytes out.

A request names its script in `X-Script`; `SCRIPTS` says what the backend then does with its connection. Knows
nothing of what the tests check.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.servers import RawBackend, read_request, wait_until

PATIENCE = 60.0  # how long a test waits for what should come at once: the machine may be busy
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


@dataclass
class Seen:
    """One request as the backend saw it: `head` and `body` as raw bytes, `whole` if all of it came."""

    connection: int
    head: bytes
    body: bytes = b""
    whole: bool = True
    ended: threading.Event = field(default_factory=threading.Event)

    def values(self, name: str) -> list[str]:
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        pairs = (line.partition(":") for line in lines if line)
        return [value.strip() for key, _, value in pairs if key.lower() == name.lower()]


Script = Callable[["Scripted", socket.socket, Seen], bool]


class Scripted(RawBackend):
    """Answers each request by its script, 200 `{}` without one. `seen` are the requests in order of arrival."""

    def __init__(self, scripts: dict[str, Script]) -> None:
        self.scripts = scripts
        self.seen: list[Seen] = []
        self.released = threading.Event()  # scripts that wait, wait for this
        self.gates: dict[str, threading.Event] = {}  # or for one of these, by the name that a request gives
        self._count = 0
        super().__init__(self._converse)

    def _converse(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._count += 1
        number, surplus = self._count, b""
        while True:
            head = surplus
            try:
                while b"\r\n\r\n" not in head:
                    head += _some(connection)
            except OSError:
                if head:
                    self.seen.append(Seen(number, head, whole=False))
                return
            head, _, surplus = head.partition(b"\r\n\r\n")
            seen = Seen(number, head + b"\r\n\r\n")
            name = (seen.values("x-script") or ["ok"])[0]
            try:
                if not name.startswith("early"):
                    try:
                        _, seen.body, surplus = read_request(connection, seen.head + surplus)
                    except OSError:
                        seen.whole = False
                        self.seen.append(seen)
                        return
                else:
                    seen.whole, seen.body, surplus = False, surplus, b""
                self.seen.append(seen)
                if not self.scripts[name](self, connection, seen):
                    return
            finally:
                seen.ended.set()

    def of(self, marker: str) -> list[Seen]:
        """The requests whose target or header fields contain `marker`, in any case."""
        return [seen for seen in list(self.seen) if marker.lower().encode() in seen.head.lower()]

    def await_request(self, marker: str) -> Seen:
        wait_until(lambda: bool(self.of(marker)), PATIENCE, f"a request with {marker}")
        return self.of(marker)[0]


def _some(connection: socket.socket) -> bytes:
    data = connection.recv(1 << 16)
    if not data:
        raise ConnectionError("the peer ended")
    return data


def says(answer: bytes, keep: bool = True) -> Script:
    """Sends `answer` in one piece."""

    def script(backend: Scripted, connection: socket.socket, seen: Seen) -> bool:
        connection.sendall(answer)
        return keep

    return script


def cuts(answer: bytes) -> Script:
    """Sends `answer`, then ends the connection."""
    return says(answer, keep=False)


def resets(answer: bytes) -> Script:
    """Sends `answer`, then resets the connection once the peer can have read it."""

    def script(backend: Scripted, connection: socket.socket, seen: Seen) -> bool:
        connection.sendall(answer)
        time.sleep(0.1)  # a reset overtakes bytes that the peer's kernel has not handed over
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return False

    return script


def drips(answer: bytes, pause: float) -> Script:
    """Sends `answer` one byte at a time."""

    def script(backend: Scripted, connection: socket.socket, seen: Seen) -> bool:
        for at in range(len(answer)):
            connection.sendall(answer[at : at + 1])
            if backend.released.wait(pause):
                break
        return True

    return script


def holds(backend: Scripted, connection: socket.socket, seen: Seen) -> bool:
    """Says nothing until released or until the peer goes; then answers 200."""
    if not gone_or(backend.released, connection):
        connection.sendall(OK)
        return True
    return False


def gone_or(event: threading.Event, connection: socket.socket) -> bool:
    """Waits until the peer has ended the connection (true) or the event is set (false)."""
    connection.settimeout(0.02)
    try:
        while not event.is_set():
            try:
                if not connection.recv(1 << 16):
                    return True
            except TimeoutError:
                continue
            except OSError:
                return True
        return False
    finally:
        connection.settimeout(None)


def chunked(*pieces: bytes, last: bool = True) -> bytes:
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return body + (b"0\r\n\r\n" if last else b"")


@contextmanager
def scripted(scripts: dict[str, Script]) -> Iterator[Scripted]:
    backend = Scripted({"ok": says(OK), **scripts})
    try:
        yield backend
    finally:
        backend.released.set()
        backend.close()


@dataclass
class Reply:
    """One response as a raw client read it. `body` is unchunked; `whole` says that its framing ended properly."""

    status: int
    reason: str
    fields: list[tuple[str, str]]
    body: bytes
    whole: bool

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.fields if key.lower() == name.lower()]

    def value(self, name: str) -> str | None:
        return (self.values(name) or [None])[0]

    def json(self) -> dict[str, object]:
        return json.loads(self.body)

    @property
    def error_type(self) -> str:
        return self.json()["detail"]["error_type"]  # type: ignore[index]


class Caller:
    """A raw client's connection. Reads responses one by one; strict about their framing."""

    def __init__(self, url: str, timeout: float = PATIENCE) -> None:
        host, _, port = url.removeprefix("http://").rpartition(":")
        if url.startswith("unix:"):
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(timeout)
            self.socket.connect(url.removeprefix("unix:"))
        else:
            self.socket = socket.create_connection((host.strip("[]"), int(port)), timeout=timeout)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._left = b""

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def send(self, data: bytes) -> Caller:
        self.socket.sendall(data)
        return self

    def ask(self, data: bytes, method: str = "") -> Reply:
        self.send(data)
        return self.reply(method or data.lstrip().split(b" ", 1)[0].decode("latin-1"))

    def _more(self) -> bool:
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionResetError:
            return False
        self._left += data
        return bool(data)

    def at_end(self) -> bool:
        """Whether nothing but the connection's end follows. Waits for it."""
        return not self._left and not self._more()

    def until(self, marker: bytes) -> bytes:
        """What has come once it contains `marker`. Raises ConnectionError at the connection's end."""
        while marker not in self._left:
            if not self._more():
                raise ConnectionError(f"{marker!r} did not come, only {self._left[-200:]!r}")
        return self._left

    def rest(self) -> bytes:
        """All that comes until the connection's end."""
        while self._more():
            pass
        return self._left

    def head(self) -> tuple[int, str, list[tuple[str, str]]]:
        while b"\r\n\r\n" not in self._left:
            if not self._more():
                raise ConnectionError(f"no response, only {self._left[:200]!r}")
        head, _, self._left = self._left.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        version, status, reason = first.split(" ", 2)
        assert version in ("HTTP/1.1", "HTTP/1.0"), first
        return int(status), reason, [(k, v.strip()) for k, _, v in (line.partition(":") for line in lines)]

    def reply(self, method: str = "GET") -> Reply:
        """The next final response. Raises ConnectionError if there is none."""
        status, reason, fields = self.head()
        while status == 100:
            status, reason, fields = self.head()
        reply = Reply(status, reason, fields, b"", True)
        lengths, codings = reply.values("content-length"), reply.values("transfer-encoding")
        assert len(lengths) + len(codings) <= 1, fields
        if method == "HEAD" or status in (204, 304):
            return reply
        if codings:
            reply.whole = self._chunks(reply)
        elif lengths:
            while len(self._left) < int(lengths[0]) and self._more():
                pass
            reply.body, self._left = self._left[: int(lengths[0])], self._left[int(lengths[0]) :]
            reply.whole = len(reply.body) == int(lengths[0])
        else:
            reply.whole = self._to_the_end()
            reply.body, self._left = self._left, b""
        return reply

    def _to_the_end(self) -> bool:
        while True:
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionResetError:
                return False
            if not data:
                return True
            self._left += data

    def _chunks(self, reply: Reply) -> bool:
        while True:
            size = self._line()
            if size is None:
                return False
            length = int(size, 16)
            while len(self._left) < length + 2:
                if not self._more():
                    reply.body += self._left[:length]
                    return False
            piece, end, self._left = (
                self._left[:length],
                self._left[length : length + 2],
                self._left[length + 2 :],
            )
            assert end == b"\r\n"
            reply.body += piece
            if not length:
                return True

    def _line(self) -> bytes | None:
        while b"\r\n" not in self._left:
            if not self._more():
                return None
        line, _, self._left = self._left.partition(b"\r\n")
        return line


def post(script: str = "ok", body: bytes = b"{}", path: str = "/v1/systemone", *fields: str) -> bytes:
    """A POST with Content-Length that asks the backend for a script."""
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: h",
        f"X-Script: {script}",
        f"Content-Length: {len(body)}",
        *fields,
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body


def get(script: str = "ok", path: str = "/v1/models", *fields: str) -> bytes:
    lines = [f"GET {path} HTTP/1.1", "Host: h", f"X-Script: {script}", *fields]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
