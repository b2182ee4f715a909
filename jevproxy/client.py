"""The client's side of one exchange: what it sent, whether it is still there, how its connection ends.

Knows gunicorn's request and response objects and the gevent loop. Must not know Flask or the backend.
"""

import socket
import struct
from collections.abc import Callable
from typing import Any

from .headers import Fields, content_length, is_chunked
from .sockets import Watch, linger

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


def _fields_of(environ: dict[str, Any]) -> Fields:
    """The header fields that a WSGI environ can tell: joined where they were repeated."""
    fields = [(key[5:].replace("_", "-"), value) for key, value in environ.items() if key.startswith("HTTP_")]
    for key in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        if environ.get(key):
            fields.append((key.replace("_", "-"), environ[key]))
    return fields
