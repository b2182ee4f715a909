"""An answer on its way to the client: its pieces, and its end, which comes once, however it comes.

Knows what a WSGI server does with an answer, and how an end is told apart from a failure. Must not know Flask.
"""

from collections.abc import Iterable

from .client import Client
from .errors import ClientGone, ProxyError
from .exchange import Exchange
from .gunicorn_seam import Cut, stopped_by
from .observe import Observer, Record


class Delivery:
    """The one owner of an answer: ends exchange, log line and connection once."""

    def __init__(
        self,
        body: Iterable[bytes],
        exchange: Exchange | None,
        client: Client,
        record: Record,
        observer: Observer,
    ) -> None:
        self._pieces = iter(body if record.method != "HEAD" else ())
        self._exchange = exchange
        self._client = client
        self._record = record
        self._observer = observer
        self._lingers = client.sends_more()
        self._exhausted = False
        self._closed = False
        if self._lingers:
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
            if self._exchange:
                self._exchange.close()
            self._observer.finish(self._record)
        if self._lingers:
            self._client.linger()
