"""What the proxy does with a plain socket of either side: watch it, look into it, let its peer finish.

Knows sockets and the gevent loop. Must not know HTTP, or whose socket it is.
"""

import socket
from collections.abc import Callable

import gevent
from gevent import get_hub

# A client that is still sending a body we refused gets this long to notice the answer before its connection closes;
# closing at once would reset it, and the answer could be lost (RFC 9112 section 9.6).
LINGER = 5.0


class Watch:
    """Calls `readable` once from the event loop, with what `peek` finds, when a plain socket has something to read.

    `stop` ends the watch and may be called more than once.
    """

    def __init__(self, sock: socket.socket, readable: Callable[[bytes], None]) -> None:
        self._socket = sock
        self._readable = readable
        self._watcher = get_hub().loop.io(sock.fileno(), 1)
        self._watcher.start(self._wake)

    def _wake(self) -> None:
        data = peek(self._socket)
        if data is not None:
            self.stop()
            self._readable(data)

    def stop(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.stop()
            watcher.close()


def linger(sock: socket.socket) -> None:
    """Half-close, then drop what still arrives, until the peer closes as well or LINGER has passed."""
    try:
        with gevent.Timeout(LINGER, False):
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65536):
                pass
    except OSError:
        pass


def peek(sock: socket.socket) -> bytes | None:
    """The next byte that waits in a plain socket, None if there is none yet, empty if the peer ended it."""
    timeout = sock.gettimeout()
    sock.settimeout(0)
    try:
        return sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return None
    except OSError:
        return b""
    finally:
        sock.settimeout(timeout)
