"""The raw client: exact bytes out, and answers read as strictly as HTTP allows, whole or as they come.

Knows nothing of what the tests check. `client` is the one for JSON.
"""

from __future__ import annotations

import re
import socket
import ssl
import struct
import threading
from collections.abc import Callable

from tests.messages import Reply

PATIENCE = 60.0  # how long a test waits for what should come at once: the machine may be busy


def unverified() -> ssl.SSLContext:
    """TLS to a certificate that the test made itself."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class Caller:
    """One connection to `http://HOST:PORT`, `https://...` (no certificate is verified) or `unix:PATH`.

    What has come and was not asked for yet waits here. A context manager.
    """

    def __init__(self, url: str, *, timeout: float = PATIENCE, receives: int | None = None) -> None:
        """`receives`: the bytes of the receive buffer, for a client that stops reading early."""
        scheme, _, address = url.partition("://")
        host, _, port = address.rpartition(":")
        if url.startswith("unix:"):
            plain, target = socket.socket(socket.AF_UNIX), url.removeprefix("unix:")
        else:
            plain = socket.socket(socket.AF_INET6 if host.startswith("[") else socket.AF_INET)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            target = (host.strip("[]"), int(port))
        if receives is not None:  # before it connects, so that the window is small from the start
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives)
        plain.settimeout(timeout)
        try:
            plain.connect(target)
            tls = scheme == "https"
            self.socket = unverified().wrap_socket(plain, server_hostname="localhost") if tls else plain
        except BaseException:
            plain.close()
            raise
        self._left = bytearray()
        self.was_reset = (
            False  # whether the connection's end, once seen, was a reset or a TLS end unannounced
        )

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def half_close(self) -> None:
        """Says that nothing more will be sent."""
        self.socket.shutdown(socket.SHUT_WR)

    def send(self, data: bytes) -> Caller:
        self.socket.sendall(data)
        return self

    def ask(self, data: bytes, method: str = "") -> Reply:
        self.send(data)
        return self.reply(method or data.lstrip().split(b" ", 1)[0].decode("latin-1"))

    def _more(self) -> bool:
        try:
            data = self.socket.recv(1 << 18)
        except (ConnectionResetError, ssl.SSLEOFError):
            self.was_reset, data = True, b""
        self._left += data
        return bool(data)

    def _take(self, length: int) -> bytes:
        taken = bytes(self._left[:length])
        del self._left[:length]
        return taken

    def some(self) -> bytes:
        """What has come: a byte or more, b"" at the connection's end."""
        if not self._left:
            self._more()
        return self._take(len(self._left))

    def until(self, end: bytes) -> bytes:
        """What comes up to and with `end`. Raises ConnectionError where the connection ends first."""
        start = 0
        while (found := self._left.find(end, start)) < 0:
            start = max(0, len(self._left) - len(end))
            if not self._more():
                raise ConnectionError(f"{end!r} did not come, only {bytes(self._left[-200:])!r}")
        return self._take(found + len(end))

    def rest(self) -> bytes:
        """All that comes until the connection's end."""
        while self._more():
            pass
        return self._take(len(self._left))

    def at_end(self) -> bool:
        """Whether nothing but the connection's end follows. Waits for it."""
        return not self._left and not self._more()

    def head(self) -> Reply:
        """The next response without its body, interim ones too. Raises ConnectionError if there is none."""
        first, *lines = self.until(b"\r\n\r\n")[:-4].decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        status, _, reason = rest.partition(" ")
        assert re.fullmatch(r"HTTP/1\.\d", version), first
        fields = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        return Reply(int(status), reason, fields)

    def reply(self, method: str = "GET") -> Reply:
        """The next final response. Raises ConnectionError if there is none."""
        reply = self.head()
        while reply.status == 100:
            reply = self.head()
        lengths, codings = reply.values("content-length"), reply.values("transfer-encoding")
        assert len(lengths) + len(codings) <= 1, reply.fields
        if method == "HEAD" or reply.status in (204, 304):
            reply.whole = True
        elif codings:
            reply.whole = self._chunks(reply)
        elif lengths:
            while len(self._left) < int(lengths[0]) and self._more():
                pass
            reply.body = self._take(int(lengths[0]))
            reply.whole = len(reply.body) == int(lengths[0])
        else:
            reply.body = self.rest()
            reply.whole = not self.was_reset
        return reply

    def _chunks(self, reply: Reply) -> bool:
        """Reads chunks and trailers into `reply`; whether they ended as they must."""
        pieces = []
        try:
            while length := self._size():
                while len(self._left) < length + 2 and self._more():
                    pass
                pieces.append(self._take(length))
                if (end := self._take(2)) != b"\r\n":
                    assert b"\r\n".startswith(end), end
                    return False
            while (line := self.until(b"\r\n")) != b"\r\n":
                reply.trailers.append(line)
            return True
        except ConnectionError:
            return False
        finally:
            reply.body = b"".join(pieces)

    def _size(self) -> int:
        line = self.until(b"\r\n")
        size = re.fullmatch(rb"([0-9A-Fa-f]+)(;.*)?\r\n", line)
        assert size, line
        return int(size[1], 16)


def ask(url: str, data: bytes) -> Reply:
    """One request on a connection of its own."""
    with Caller(url) as caller:
        return caller.ask(data)


def together(count: int, act: Callable[[int], object]) -> None:
    """Runs `act` for each number at once, each in a thread, and raises the first failure."""
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
        thread.join(PATIENCE * 2)
    if failures:
        raise failures[0]
