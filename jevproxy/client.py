"""The client's side of one exchange: what it sent, whether it is still there, how its connection ends.

Knows gunicorn's request and response objects and the gevent loop. Must not know Flask or the backend.
"""

import socket
import struct
from collections.abc import Callable
from typing import Any

import gevent
from gevent import get_hub

from .headers import Fields, content_length, is_chunked

# A client that is still sending a body we refused gets this long to notice the answer before its connection closes;
# closing at once would reset it, and the answer could be lost (RFC 9112 section 9.6).
LINGER = 5.0
# An unread body up to this size costs less to read than a new connection does.
DROPPED = 64 * 1024


class Client:
    """One request's client. `fields` are its header fields in order, repeated ones included."""

    def __init__(self, environ: dict[str, Any], start_response: Any) -> None:
        self.socket: socket.socket | None = environ.get("gunicorn.socket")
        self._response = getattr(start_response, "__self__", None)
        request = getattr(self._response, "req", None)
        if request is not None:
            self.fields: Fields = getattr(request, "jevproxy_fields", None) or request.headers
        else:
            self.fields = _fields_of(environ)
        self.http_1_0 = environ.get("SERVER_PROTOCOL") == "HTTP/1.0"
        self.body_taken = False
        self.last = False

    def on_leaving(self, leave: Callable[[], None]) -> "Watch | None":
        """Call `leave` from the event loop when the client's connection ends, until the watch is stopped.

        Half-closed counts as ended: it cannot be told from a closed one. A client that already sends its next
        request is not watched further. Behind TLS of gunicorn's own nothing is watched.
        """
        if self.socket is None or hasattr(self.socket, "context"):
            return None
        return Watch(self.socket, lambda found: None if found else leave())

    def sends_more(self) -> bool:
        """Whether so much of the request's body is still to come that its connection had better end.

        What is small, the server reads and drops before the next request.
        """
        if self.body_taken or self.last:
            return self.last
        try:
            return is_chunked(self.fields) or (content_length(self.fields) or 0) > DROPPED
        except ValueError:
            return True

    def close_after_response(self) -> None:
        """Make this response the connection's last."""
        if self._response is not None:
            self._response.force_close()

    def linger(self) -> None:
        """Let the client, which is still sending, read the response before its connection ends."""
        if self.socket is not None:
            linger(self.socket)

    def cut(self) -> None:
        """Make the end of the connection visible as a failure, whatever the framing.

        A missing last chunk or missing bytes show by themselves. A body that only the connection's end delimits
        (HTTP/1.0) would look whole: there the connection is reset.
        """
        if self.socket is not None and self.http_1_0:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


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
        found = peek(self._socket)
        if found is not None:
            self.stop()
            self._readable(found)

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


def _fields_of(environ: dict[str, Any]) -> Fields:
    """The header fields that a WSGI environ can tell: joined where they were repeated."""
    fields = [(key[5:].replace("_", "-"), value) for key, value in environ.items() if key.startswith("HTTP_")]
    for key in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        if environ.get(key):
            fields.append((key.replace("_", "-"), environ[key]))
    return fields
