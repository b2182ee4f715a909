"""One request sent to the backend and its response read, over a connection from the pool; one attempt.

Knows sockets and RFC 9112's request side. Must not know requests, Flask or the client.
"""

import socket
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gevent
from gevent import getcurrent

from .body import RequestBody
from .connections import connect, make_pool
from .errors import BackendBroken, BadRequest, ProxyError
from .headers import Fields
from .idle import IdleLimit
from .response import ResponseReader
from .sockets import Watch

# Seconds between two looks at the idle connections.
SWEEP = 0.5


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request for the backend: its target (path and query) and header fields go on the wire exactly as they are.

    `body` None: the request has none. Without a length in `body`, chunks frame it.
    """

    method: str
    target: str
    fields: Fields
    body: RequestBody | None

    @property
    def chunked(self) -> bool:
        return self.body is not None and self.body.length is None

    def head(self) -> bytes:
        """The head as it goes on the wire. Raises BadRequest rather than let a line end into it."""
        lines = [
            f"{self.method} {self.target} HTTP/1.1",
            *[f"{name}: {value}" for name, value in self.fields],
        ]
        if self.chunked:
            lines.append("Transfer-Encoding: chunked")
        head = "\r\n".join(lines)
        if head.count("\r") != len(lines) - 1 or head.count("\n") != len(lines) - 1:
            raise BadRequest()
        if "#" in self.target or not self.target.isascii():  # RFC 9112 section 3.2: no target has a fragment
            raise BadRequest()
        return (head + "\r\n\r\n").encode("latin-1")


class Received:
    """A response whose body is still to be read. It owns its connection until `close`.

    `fields` are the header fields in order. `length` is the body's bytes, None where chunks or the connection's
    end delimit it.
    """

    __slots__ = ("_give_back", "_reader", "fields", "length", "reason", "status")

    def __init__(self, reader: ResponseReader, give_back: Callable[[bool], None]) -> None:
        self._reader = reader
        self.status = reader.status
        self.reason = reader.reason
        self.fields = reader.fields
        self.length = reader.length
        self._give_back: Callable[[bool], None] | None = give_back
        if reader.finished:
            self.close()

    def read_some(self) -> bytes:
        """The next bytes as they arrive, empty at the end. Raises BackendBroken if the body was cut short."""
        piece = self._reader.read_some()
        if self._reader.finished:
            self.close()
        return piece

    def close(self) -> None:
        """Give the connection back if the body was read whole, else end it. May be called more than once."""
        give_back, self._give_back = self._give_back, None
        if give_back:
            give_back(self._reader.reusable)


class _EarlyAnswer(Exception):
    """The backend answers, or closes, while the request body is still being sent."""


class Transport:
    """The pool of one backend. `exchange` is safe to call from any number of greenlets."""

    def __init__(self, root: str, pool_idle: float, connections: int) -> None:
        """`root`: scheme, host, port. `pool_idle`: seconds that a connection may rest. `connections`: the most kept."""
        self._pool = make_pool(root, connections)
        self._idle_limit = IdleLimit(pool_idle)
        self._sweeper: Any = None

    def exchange(self, outgoing: Outgoing) -> Received:
        """Send a request, and read the response's head.

        Raises BackendUnreachable, BackendBroken, BadRequest, and whatever the body raises while it arrives.
        """
        pieces = iter(outgoing.body) if outgoing.body is not None else iter(())
        first = next(pieces, b"")
        head = outgoing.head()
        if self._sweeper is None:  # not earlier: with --preload this object is made in gunicorn's master
            self._sweeper = gevent.spawn(self._sweep)
        connection: Any = self._pool._get_conn()
        connection.idle_limit = self._idle_limit
        reused = connection.sock is not None
        try:
            if reused and (rest := connection.settles()):
                gevent.sleep(rest)
                if not connection.is_connected:
                    connection.close()
                    reused = False
            if not reused:
                connect(connection)
            whole = _send(connection.sock, outgoing, head, first, pieces)
            reader = ResponseReader(connection.sock, outgoing.method)
        except BaseException as error:
            if reused and isinstance(error, BackendBroken) and error.kind == "closed":
                self._idle_limit.closed_after(connection.rested)
            self._give_back(connection, False)
            raise
        return Received(reader, lambda intact: self._give_back(connection, intact and whole))

    def close(self) -> None:
        """End the idle connections."""
        if self._sweeper is not None:
            self._sweeper.kill()
        self._pool.close()

    def _sweep(self) -> None:
        """End the idle connections that will not be used again: those on top of the pool keep the others from it."""
        while True:
            gevent.sleep(SWEEP)
            for connection in list(self._pool.pool.queue):
                if connection is not None and connection.sock is not None and connection.outlived():
                    connection.close()

    def _give_back(self, connection: Any, reusable: bool) -> None:
        if reusable:
            connection.idle_since = time.monotonic()
        else:
            connection.close()
        if self._pool.pool.full():  # more exchanges outside admission than there is room for
            connection.close()
        else:
            self._pool._put_conn(connection)


def _send(sock: Any, outgoing: Outgoing, head: bytes, first: bytes, pieces: Iterator[bytes]) -> bool:
    """Send head and body; False if the backend answered, or gave up, before it had the whole body."""
    body, chunked = outgoing.body, outgoing.chunked
    watch = None
    try:
        sock.sendall(head + _framed(first, chunked))
        if body is None or (body.complete and not chunked):
            return True
        if not isinstance(sock, ssl.SSLSocket):  # a TLS record need not mean an answer
            sender: Any = getcurrent()
            watch = Watch(sock, lambda _: None if _is_interim(sock) else sender.throw(_EarlyAnswer()))
        for piece in pieces:
            sock.sendall(_framed(piece, chunked))
        if chunked:
            sock.sendall(b"0\r\n\r\n")
        return True
    except ProxyError:
        raise
    except (_EarlyAnswer, OSError):
        return False  # what the backend has to say about it comes next
    finally:
        if watch:
            watch.stop()


def _is_interim(sock: Any) -> bool:
    """Whether what waits in a socket begins a 1xx response: it answers nothing, and the body is still wanted."""
    try:
        return bool(sock.recv(10, socket.MSG_PEEK | socket.MSG_DONTWAIT)[:10] == b"HTTP/1.1 1")
    except OSError:
        return False


def _framed(piece: bytes, chunked: bool) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece) if chunked and piece else piece
