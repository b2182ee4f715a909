"""Pooled connections to the backend: how one is made, and whether an idle one may still be used.

Alone knows urllib3. Must not know requests, or what is sent over a connection.
"""

import socket
import ssl
import time
from typing import Any

import urllib3

from .errors import BackendUnreachable, ProxyError
from .idle import IdleLimit
from .sockets import peek


class _Reusable:
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


class PlainConnection(_Reusable, urllib3.connection.HTTPConnection):
    """A connection to an http backend."""


class TLSConnection(_Reusable, urllib3.connection.HTTPSConnection):
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


def make_pool(root: str, connections: int) -> Any:
    """urllib3's pool of at most so many connections to `root`; no retries, no proxies."""
    tls = root.startswith("https:")
    # OpenSSL's own trust store, so that an operator's private authority counts.
    more: dict[str, Any] = {"ssl_context": ssl.create_default_context()} if tls else {}
    pools = urllib3.PoolManager(1, maxsize=connections, retries=False, **more)
    pools.pool_classes_by_scheme = {"http": PlainPool, "https": TLSPool}
    return pools.connection_from_url(root)


def connect(connection: Any) -> None:
    """Connect. Raises BackendUnreachable; a deadline's error passes."""
    try:
        connection.connect()
    except ProxyError:
        raise
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        refused = BackendUnreachable()
        if isinstance(error, (ssl.SSLError, urllib3.exceptions.SSLError)):
            refused.kind = "tls"
        raise refused from error
