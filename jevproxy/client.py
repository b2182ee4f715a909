"""The client's side of one exchange: what it sent, whether it is still there, how its connection ends.

Knows the client's connection. Must not know Flask or the backend.
"""

import socket
import struct
from collections.abc import Callable

from .body import RequestBody
from .errors import BadRequest, UnknownCoding
from .gunicorn_seam import Incoming
from .headers import content_length, is_chunked, is_coded
from .sockets import Watch, linger

# An unread body up to this size costs less to read than a new connection does.
DROPPED = 64 * 1024


class Client:
    """One request's client. `fields` are its header fields in order, repeated ones included."""

    def __init__(self, incoming: Incoming) -> None:
        self._incoming = incoming
        self.fields = incoming.fields

    def body(self, limit: int) -> RequestBody | None:
        """The request's body of at most `limit` bytes, None if it has none.

        Raises BadRequest for a framing that cannot be read, UnknownCoding, BodyTooLarge.
        """
        try:
            length = content_length(self.fields)
        except ValueError:
            raise BadRequest("Content-Length is not one number.") from None
        chunked = is_chunked(self.fields)
        if chunked and is_coded(self.fields):
            raise UnknownCoding()
        if not chunked and length is None:
            return None
        return RequestBody(self._incoming.read_some, None if chunked else length, limit)

    def on_leaving(self, leave: Callable[[], None]) -> Watch | None:
        """Call `leave` from the event loop when the client's connection ends, until the watch is stopped.

        Half-closed counts as ended: it cannot be told from a closed one. A client that already sends its next
        request is not watched further. Behind TLS of gunicorn's own nothing is watched.
        """
        if hasattr(self._incoming.socket, "context"):
            return None
        return Watch(self._incoming.socket, lambda data: None if data else leave())

    def sends_much(self) -> bool:
        """Whether the request's body, if nobody reads it, is so long that its connection had better end.

        The server reads and discards small leftovers before the next request.
        """
        try:
            return is_chunked(self.fields) or (content_length(self.fields) or 0) > DROPPED
        except ValueError:
            return True

    def close_after_response(self) -> None:
        """Make this response the connection's last."""
        self._incoming.force_close()

    def linger(self) -> None:
        """Let the client, which is still sending, read the response before its connection ends."""
        linger(self._incoming.socket)

    def cut(self) -> None:
        """Make the end of the connection visible as a failure, whatever the framing.

        A missing last chunk or missing bytes show by themselves. A body that only the connection's end delimits
        (HTTP/1.0) would look whole: there the connection is reset.
        """
        if self._incoming.http_1_0:
            self._incoming.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
