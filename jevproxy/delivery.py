"""An answer on its way to the client: its pieces, and its end, which comes once, however it comes.

Knows what a WSGI server does with an answer, and how an end is told apart from a failure. Must not know Flask.
"""

from collections.abc import Callable, Iterable

from .client import Client
from .errors import ClientGone, ProxyError
from .gunicorn_seam import Cut, stopped_by
from .observe import Record


class Delivery:
    """The one owner of an answer. gunicorn iterates it and then calls `close`, once or more."""

    def __init__(
        self, pieces: Iterable[bytes], client: Client, record: Record, end: Callable[[], None], lingers: bool
    ) -> None:
        """`end` is called once, when the answer is through or has failed.

        `lingers`: the client is still sending, so this answer is its connection's last.
        """
        self._pieces = iter(pieces if record.method != "HEAD" else ())
        self._client = client
        self._record = record
        self._end = end
        self._lingers = lingers
        self._exhausted = False
        self._closed = False
        if lingers:
            client.close_after_response()

    def __iter__(self) -> "Delivery":
        return self

    def __next__(self) -> bytes:
        try:
            piece = next(self._pieces)
        except StopIteration:
            self._exhausted = True
            raise
        except ProxyError as error:
            self._record.kind = error.kind
            raise Cut() from error  # mid-body there is no status left to give
        self._record.sent += len(piece)
        return piece

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            if not self._exhausted:
                # The server was stopped in the middle of a write: by a deadline of ours, or by the client's end.
                error = stopped_by()
                kind = error.kind if isinstance(error, ProxyError) else ClientGone.kind
                self._record.kind = self._record.kind or kind
                self._client.cut()
        finally:
            self._end()
        if self._lingers:
            self._client.linger()
