"""Connections that hold no thread: those whose request is arriving, and those that are about to close.

It knows sockets, a selector and deadlines, for a single-threaded loop that calls `callback(socket)` for a readable
socket, and `expire` every second or so. It must not know the server whose connections they are, nor HTTP beyond the
end of a head.
"""

import fcntl
import selectors
import socket
import termios
import time
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from worker.errors import HeadLate, Typed
from worker.heads import HEAD, Head

# Seconds for a head to arrive, from its first byte, or from the connection if none comes. jevproxy and nginx send
# one at once.
HEAD_S = 10.0
# All heads that are not whole may hold so many bytes; over it each may hold 32 KiB, which is nginx's default.
HEADS, LESS_HEAD = 32 << 20, 32 << 10
# After the last answer: seconds for the client to close, and bytes of it that are thrown away meanwhile. Closing at
# once could destroy an answer that is still on its way (RFC 9112 section 9.6).
CLOSING_S, CLOSING_BYTES = 2.0, 1 << 16
# Bytes of one read: a head and a small body.
STEP = 8192

Connection = TypeVar("Connection")


def received(sock: socket.socket) -> bytes | None:
    """What has come: b"" for an end, of whatever kind, None for nothing yet."""
    try:
        return sock.recv(STEP)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def all_sent(sock: socket.socket) -> bool:
    """The client has everything that was written, so that a small answer more does not block."""
    try:
        return fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)) == bytes(4)
    except OSError:
        return False


class Arrivals(Generic[Connection]):
    """Connections on which a head is awaited, the first due first.

    Each leaves by one of three functions, which own it from then on: `whole(connection, bytes)`, when a parser can
    decide on the head; `refused(connection, bytes, why)`; `gone(connection)`, when the client closed or never spoke.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        whole: Callable[[Connection, bytes], None],
        refused: Callable[[Connection, bytes, Typed], None],
        gone: Callable[[Connection], None],
    ) -> None:
        self._selector = selector
        self._whole, self._refused, self._gone = whole, refused, gone
        self._waiting: dict[Connection, tuple[socket.socket, Head, float]] = {}
        self._held = 0

    def add(self, connection: Connection, sock: socket.socket, begun: bytes = b"") -> None:
        """Await a head on `sock`, of which `begun` was read already."""
        sock.setblocking(False)
        self._waiting[connection] = sock, Head(), time.monotonic() + HEAD_S
        data = begun or received(sock)
        if data is not None:
            self._take(connection, data)
        if connection in self._waiting:
            self._selector.register(sock, selectors.EVENT_READ, partial(self._on_readable, connection))

    def expire(self) -> None:
        """End the waits whose time is over."""
        now = time.monotonic()
        for connection, (sock, head, due) in list(self._waiting.items()):
            if now < due:
                break
            self._selector.unregister(sock)
            self._forget(connection)
            if head.data:
                self._refused(connection, bytes(head.data), HeadLate())
            else:
                self._gone(connection)

    def _on_readable(self, connection: Connection, sock: socket.socket) -> None:
        data = received(sock)
        if data is None:
            return
        self._selector.unregister(sock)
        self._take(connection, data)
        if connection in self._waiting:
            self._selector.register(sock, selectors.EVENT_READ, partial(self._on_readable, connection))

    def _take(self, connection: Connection, data: bytes) -> None:
        sock, head, _ = self._waiting[connection]
        if not data:
            self._forget(connection)
            self._gone(connection)
            return
        if not head.data:
            # The time counts from here; taken out and put in again, it stands behind those that are due before it.
            del self._waiting[connection]
            self._waiting[connection] = sock, head, time.monotonic() + HEAD_S
        self._held += len(data)
        try:
            decidable = head.add(data, HEAD if self._held < HEADS else LESS_HEAD)
        except Typed as why:
            self._forget(connection)
            self._refused(connection, bytes(head.data), why)
            return
        if decidable:
            self._forget(connection)
            self._whole(connection, bytes(head.data))

    def _forget(self, connection: Connection) -> None:
        _, head, _ = self._waiting.pop(connection)
        self._held -= len(head.data)


class Departures(Generic[Connection]):
    """Connections whose last answer is written. Each leaves by `gone(connection)`, for its socket to be closed."""

    def __init__(self, selector: selectors.BaseSelector, gone: Callable[[Connection], None]) -> None:
        self._selector = selector
        self._gone = gone
        self._waiting: dict[Connection, tuple[socket.socket, int, float]] = {}

    def add(self, connection: Connection, sock: socket.socket) -> None:
        """Tell the client that no more will come, and wait for its own end."""
        try:
            sock.setblocking(False)
            sock.shutdown(socket.SHUT_WR)
        except OSError:  # closed already
            self._gone(connection)
            return
        self._waiting[connection] = sock, CLOSING_BYTES, time.monotonic() + CLOSING_S
        self._selector.register(sock, selectors.EVENT_READ, partial(self._on_readable, connection))
        self._on_readable(connection, sock)

    def expire(self) -> None:
        """End the waits whose time is over."""
        now = time.monotonic()
        for connection, (sock, _, due) in list(self._waiting.items()):
            if now < due:
                break
            self._leave(connection, sock)

    def _on_readable(self, connection: Connection, sock: socket.socket) -> None:
        data = received(sock)
        if data is None:
            return
        _, left, due = self._waiting[connection]
        self._waiting[connection] = sock, left - len(data), due
        if not data or left <= len(data):
            self._leave(connection, sock)

    def _leave(self, connection: Connection, sock: socket.socket) -> None:
        del self._waiting[connection]
        self._selector.unregister(sock)
        self._gone(connection)
