"""The client's side of one exchange: what it sent, whether it is still there, how its connection ends.

Knows the client's connection. Must not know Flask or the backend.
"""

import socket
import struct
from collections.abc import Callable

from .gunicorn_seam import Incoming
from .headers import content_length, is_chunked
from .sockets import Watch, linger

# An unread body up to this size costs less to read than a new connection does.
DROPPED = 64 * 1024


class Client:
    """One request's client."""

    def __init__(self, incoming: Incoming) -> None:
        self.incoming = incoming
        self.fields = incoming.fields
        self.body_taken = False
        self.last = False

    def on_leaving(self, leave: Callable[[], None]) -> "Watch | None":
        """Call `leave` from the event loop when the client's connection ends, until the watch is stopped.

        Half-closed counts as ended: it cannot be told from a closed one. A client that already sends its next
        request is not watched further. Behind TLS of gunicorn's own nothing is watched.
        """
        if hasattr(self.incoming.socket, "context"):
            return None
        return Watch(self.incoming.socket, lambda found: None if found else leave())

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
        self.incoming.force_close()

    def linger(self) -> None:
        """Let the client, which is still sending, read the response before its connection ends."""
        linger(self.incoming.socket)

    def cut(self) -> None:
        """Make the end of the connection visible as a failure, whatever the framing.

        A missing last chunk or missing bytes show by themselves. A body that only the connection's end delimits
        (HTTP/1.0) would look whole: there the connection is reset.
        """
        if self.incoming.http_1_0:
            self.incoming.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
