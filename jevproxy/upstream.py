"""The backend: one pooled requests.Session, one attempt, and what can go wrong on its side.

Alone knows requests and urllib3, and turns their exceptions into ours. Must not know Flask, the routes or the client.
"""

import socket
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import gevent
import requests
import urllib3
from gevent import getcurrent
from requests.adapters import HTTPAdapter

from .body import RequestBody
from .errors import BackendBroken, BackendUnreachable, BadRequest, ProxyError
from .headers import Fields
from .idle import IdleLimit
from .response import ResponseReader
from .sockets import Watch, peek

# GET /health and GET /v1/models are outside admission: room for theirs beside the admitted exchanges' connections.
SPARE_CONNECTIONS = 64
# Seconds between two looks at the idle connections.
SWEEP = 0.5


class _EarlyAnswer(Exception):
    """The backend answers, or closes, while the request body is still being sent."""


class _Kept:
    """What both kinds of connection add to urllib3's: when it was last used, and whether it still can be."""

    idle_limit: IdleLimit
    idle_since = 0.0
    rested = 0.0
    sock: Any
    host: str
    port: int

    @property
    def is_connected(self) -> bool:
        if self.sock is None or self.outlived():
            return False
        return super().is_connected if isinstance(self.sock, ssl.SSLSocket) else True  # type: ignore[misc]

    def settles(self) -> float:
        """Seconds to rest before it is used again. TLS shows a close only as it is used, so waiting tells nothing."""
        return 0.0 if isinstance(self.sock, ssl.SSLSocket) else self.idle_limit.settles(self.rested)

    def outlived(self) -> bool:
        """Whether an idle connection rested too long, or a plain one was closed. Lets no other greenlet run."""
        self.rested = time.monotonic() - self.idle_since
        if not self.idle_limit.allows(self.rested):
            return True
        if isinstance(self.sock, ssl.SSLSocket):
            return False
        if peek(self.sock) is None:
            self.idle_limit.lives_after(self.rested)
            return False
        self.idle_limit.closed_after(self.rested)  # closed, or bytes that nobody asked for
        return True

    def _new_conn(self) -> socket.socket:
        """A connected socket. urllib3's own loop over addresses would take a deadline for one that does not answer."""
        refused: OSError = OSError("no address")
        for family, kind, protocol, _, address in socket.getaddrinfo(
            self.host.strip("[]"), self.port, type=socket.SOCK_STREAM
        ):
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.connect(address)
                return sock
            except BaseException as error:
                sock.close()
                if not isinstance(error, OSError):
                    raise
                refused = error
        raise refused


class PlainConnection(_Kept, urllib3.connection.HTTPConnection):
    """A connection to an http backend."""


class TLSConnection(_Kept, urllib3.connection.HTTPSConnection):
    """A connection to an https backend."""

    def connect(self) -> None:
        super().connect()
        # RFC 9112 section 9.8: a body that the connection's end delimits is whole only if TLS says that it ended.
        self.sock.suppress_ragged_eofs = False


class PlainPool(urllib3.HTTPConnectionPool):
    """Connections to an http backend."""

    ConnectionCls = PlainConnection


class TLSPool(urllib3.HTTPSConnectionPool):
    """Connections to an https backend."""

    ConnectionCls = TLSConnection


class BackendResponse(requests.Response):
    """A response whose body is still to be read. It owns its connection until `close`.

    `fields` are the header fields in order. `length` is the body's bytes, None where chunks or the connection's
    end delimit it.
    """

    def __init__(self, raw: ResponseReader, give_back: Callable[[bool], None]) -> None:
        # requests.Response.__init__ is left out: it builds a cookie jar and a header map for each response.
        self.raw = raw
        self.history: list[requests.Response] = []
        self.status_code = raw.status
        self.reason = raw.reason
        self.fields: Fields = raw.fields
        self.length: int | None = raw.length
        self._content = False
        self._content_consumed = False
        self._give_back: Callable[[bool], None] | None = give_back
        if raw.finished:
            self.close()

    def read_some(self) -> bytes:
        """The next bytes as they arrive, empty at the end. Raises BackendBroken if the body was cut short."""
        piece = self.raw.read_some()
        if self.raw.finished:
            self.close()
        return piece

    def close(self) -> None:
        """Give the connection back if the body was read whole, else end it. May be called more than once."""
        give_back, self._give_back = self._give_back, None
        if give_back:
            give_back(self.raw.reusable)


class BackendAdapter(HTTPAdapter):
    """requests' transport with one pool, headers sent exactly as given, and bodies streamed in both directions."""

    def __init__(self, root: str, pool_idle: float, connections: int) -> None:
        self._root = root
        super().__init__(pool_connections=1, pool_maxsize=connections, max_retries=0)
        self.pool = self.poolmanager.connection_from_url(root)
        self.idle_limit = IdleLimit(pool_idle)
        self._sweeper: Any = None

    def init_poolmanager(self, connections: int, maxsize: int, block: bool = False, **kwargs: Any) -> None:
        if self._root.startswith("https:"):
            # OpenSSL's own trust store, so that an operator's private authority counts; requests would bring its own.
            kwargs["ssl_context"] = ssl.create_default_context()
        super().init_poolmanager(connections, maxsize, block, **kwargs)
        self.poolmanager.pool_classes_by_scheme = {"http": PlainPool, "https": TLSPool}

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> BackendResponse:
        """Send `request`, whose `headers` are Fields and `body` a RequestBody or None; one attempt.

        Raises BackendUnreachable, BackendBroken, and whatever the body raises while it arrives.
        """
        body: RequestBody | None = request.body
        pieces = iter(body) if body is not None else iter(())
        first = next(pieces, b"")
        target = request.url[len(self._root) :]
        head = _head(request.method, target, request.headers, body is not None and body.length is None)
        if self._sweeper is None:  # not earlier: with --preload this object is made in gunicorn's master
            self._sweeper = gevent.spawn(self._sweep)
        connection: Any = self.pool._get_conn()
        connection.idle_limit = self.idle_limit
        reused = connection.sock is not None
        try:
            if reused and (rest := connection.settles()):
                gevent.sleep(rest)
                if not connection.is_connected:
                    connection.close()
                    reused = False
            if not reused:
                _connect(connection)
            whole = _send(connection.sock, head, first, pieces, body)
            raw = ResponseReader(connection.sock, request.method)
        except BaseException as error:
            if reused and isinstance(error, BackendBroken) and error.kind == "closed":
                self.idle_limit.closed_after(connection.rested)
            self._give_back(connection, False)
            raise
        return BackendResponse(raw, lambda intact: self._give_back(connection, intact and whole))

    def _sweep(self) -> None:
        """End the idle connections that will not be used again: those on top of the pool keep the others from it."""
        while True:
            gevent.sleep(SWEEP)
            for connection in list(self.pool.pool.queue):
                if connection is not None and connection.sock is not None and connection.outlived():
                    connection.close()

    def _give_back(self, connection: Any, reusable: bool) -> None:
        if reusable:
            connection.idle_since = time.monotonic()
        else:
            connection.close()
        if self.pool.pool.full():  # more exchanges outside admission than there is room for
            connection.close()
        else:
            self.pool._put_conn(connection)


def _connect(connection: Any) -> None:
    try:
        connection.connect()
    except ProxyError:
        raise
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        refused = BackendUnreachable()
        if isinstance(error, (ssl.SSLError, urllib3.exceptions.SSLError)):
            refused.kind = "tls"
        raise refused from error


def _send(sock: Any, head: bytes, first: bytes, pieces: Iterator[bytes], body: RequestBody | None) -> bool:
    """Send head and body; False if the backend answered, or gave up, before it had the whole body."""
    chunked = body is not None and body.length is None
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


def _head(method: str, target: str, fields: Fields, chunked: bool) -> bytes:
    """A request's head as it goes on the wire. Raises BadRequest rather than let a line end into it."""
    lines = [f"{method} {target} HTTP/1.1", *[f"{name}: {value}" for name, value in fields]]
    if chunked:
        lines.append("Transfer-Encoding: chunked")
    head = "\r\n".join(lines)
    if head.count("\r") != len(lines) - 1 or head.count("\n") != len(lines) - 1:
        raise BadRequest()
    if "#" in target or not target.isascii():  # RFC 9112 section 3.2: no target has a fragment
        raise BadRequest()
    return (head + "\r\n\r\n").encode("latin-1")


def _framed(piece: bytes, chunked: bool) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece) if chunked and piece else piece


class _StatelessSession(requests.Session):
    """A Session without a memory: nothing from the environment, no cookies kept, no redirect followed."""

    def __init__(self) -> None:
        super().__init__()
        self.trust_env = False
        self.headers.clear()

    def get_redirect_target(self, resp: requests.Response) -> None:
        """None, always: redirects are relayed to the client, which may follow them."""


class Backend:
    """The one backend. `exchange` is safe to call from any number of greenlets."""

    def __init__(self, url: str, pool_idle: float, max_concurrent: int) -> None:
        parts = urlsplit(url)
        self._prefix = parts.path
        self._root = f"{parts.scheme}://{parts.netloc}"
        self._host = parts.netloc
        self._session = _StatelessSession()
        self._session.adapters.clear()
        self._session.mount(
            self._root, BackendAdapter(self._root, pool_idle, max_concurrent + SPARE_CONNECTIONS)
        )

    def exchange(self, method: str, target: str, fields: Fields, body: RequestBody | None) -> BackendResponse:
        """Send one request to `target` (path and query, as the client wrote them), and read the response's head.

        `fields` as `headers.to_backend` gives them. Raises the errors of BackendAdapter.send.
        """
        request = requests.PreparedRequest()
        request.method = method
        request.url = self._root + self._prefix + target
        request.headers = [("Host", self._host), *fields]
        request.body = body
        request.hooks = {}
        return self._session.send(
            request, stream=True, allow_redirects=False, verify=True, cert=None, proxies={}
        )

    def close(self) -> None:
        self._session.close()
