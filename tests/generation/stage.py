"""A backend whose every move a test decides, and a client that reads an answer as it comes.

The request's X-Script field names the script that plays it; scripts run in threads of the test's own process, so that
both ends of the proxy can wait for each other.
"""

from __future__ import annotations

import re
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.servers import RawBackend, raw_backend, read_request

SECONDS = 30.0
CHAT = "/v1/chat/completions"


class Scene:
    """One request at the backend: its head and body, and the connection to answer on."""

    def __init__(self, connection: socket.socket, head: bytes, body: bytes) -> None:
        self.connection = connection
        self.head = head
        self.body = body

    def start(self, media: str = "text/event-stream", status: str = "200 OK") -> None:
        self.send(
            f"HTTP/1.1 {status}\r\nContent-Type: {media}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        )

    def send(self, data: bytes) -> None:
        self.connection.sendall(data)

    def chunk(self, data: bytes) -> None:
        self.send(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        self.send(b"0\r\n\r\n")

    def whole(self, body: bytes, media: str = "application/json", status: str = "200 OK") -> None:
        self.send(
            f"HTTP/1.1 {status}\r\nContent-Type: {media}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )

    def close(self) -> None:
        """Ends the connection now, whatever other threads still do with it."""
        try:
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def left(self) -> bool:
        """Waits for the proxy's end of the connection to close; False if it stays."""
        self.connection.settimeout(SECONDS)
        try:
            return self.connection.recv(1) == b""
        except TimeoutError:
            return False
        except OSError:
            return True


Script = Callable[[Scene], None]


class Stage:
    """The scripts, and the answers to whoever names none: health, while `healthy`."""

    backend: RawBackend

    def __init__(self) -> None:
        self._scripts: dict[str, Script] = {}
        self.healthy = True

    def serve(self, connection: socket.socket) -> None:
        rest = b""
        while True:
            head, body, rest = read_request(connection, rest)
            scene = Scene(connection, head, body)
            named = re.search(rb"(?mi)^x-script: (\S+)", head)
            if named:
                self._scripts[named[1].decode()](scene)
            elif self.healthy:
                scene.whole(b'{"status":"ok"}')
            elif scene.left():
                return

    def plays(self, script: Script) -> str:
        """The name of a script from now on."""
        name = f"s{len(self._scripts)}"
        self._scripts[name] = script
        return name


@contextmanager
def stage() -> Iterator[Stage]:
    it = Stage()
    with raw_backend(it.serve) as it.backend:
        yield it


class Client:
    """One request on a connection of its own, and its answer as it comes: head first, then the body's pieces."""

    def __init__(
        self,
        port: int,
        script: str,
        *,
        path: str = CHAT,
        body: bytes = b"{}",
        version: str = "HTTP/1.1",
        fields: str = "",
        tls: ssl.SSLContext | None = None,
        small: bool = False,
    ) -> None:
        plain = socket.socket()
        if small:  # before it connects, so that the window is small from the start
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plain.settimeout(SECONDS)
        plain.connect(("127.0.0.1", port))
        self._socket = tls.wrap_socket(plain, server_hostname="localhost") if tls else plain
        request = f"POST {path} {version}\r\nHost: frontend.test\r\nX-Script: {script}\r\n{fields}"
        self._socket.sendall(f"{request}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        self._data = bytearray()
        self.reset = False

    def _more(self) -> bool:
        try:
            piece = self._socket.recv(65536)
        except (ConnectionResetError, ssl.SSLEOFError):
            self.reset, piece = True, b""
        self._data += piece
        return bool(piece)

    def until(self, end: bytes) -> bytes:
        """What has come up to and with `end`; fails if the connection ends first."""
        while end not in self._data:
            assert self._more(), bytes(self._data)
        length = self._data.index(end) + len(end)
        found = bytes(self._data[:length])
        del self._data[:length]
        return found

    def head(self) -> bytes:
        return self.until(b"\r\n\r\n")

    def status(self) -> int:
        return int(self.head().split()[1])

    def rest(self) -> bytes:
        """Everything until the connection ends."""
        while self._more():
            pass
        return bytes(self._data)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def event(number: int) -> bytes:
    return b'data: {"n": %d}\n\n' % number


def together(count: int, act: Callable[[int], None]) -> None:
    """Runs `act` for each number at once, and raises the first failure."""
    failures: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            act(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS * 2)
    if failures:
        raise failures[0]
