"""One request's whole life: slot, deadline, client watch, backend, and the delivery of the answer.

Knows the order of those and that each ends exactly once. Must not know Flask.
"""

import time
from collections.abc import Iterator
from typing import Any

import gevent
from gevent import get_hub, getcurrent

from .body import RequestBody
from .client import Client
from .errors import BadRequest, ClientGone, DeadlineExceeded, NoSlot, UnknownCoding
from .headers import (
    Fields,
    content_length,
    is_chunked,
    is_coded,
    is_stream,
    media_type,
    to_backend,
    to_client,
)
from .observe import Observer, Record
from .settings import Route, Settings
from .upstream import Backend, BackendResponse

# Up to this much is read whole before anything of it leaves, so that a cut or late answer can still become a 502 or
# 504: every decision is far smaller, and 256 of these are 256 MiB.
READ_WHOLE = 1024 * 1024


class Slots:
    """Admission: at most `limit` exchanges at once in this process."""

    def __init__(self, limit: int, observer: Observer) -> None:
        self._free = limit
        self._observer = observer

    def look(self) -> None:
        """Raises NoSlot if there is none free."""
        if self._free <= 0:
            raise NoSlot()

    def take(self) -> None:
        self.look()
        self._free -= 1
        self._observer.admitted()

    def give_back(self) -> None:
        self._free += 1
        self._observer.released()


class Standstill:
    """Raises DeadlineExceeded in the current greenlet once `moved` has not been called for `seconds`.

    A timer that looks back costs a stream's pieces nothing; a gevent.Timeout for each would.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._greenlet: Any = getcurrent()
        self._timer = get_hub().loop.timer(seconds)
        self.moved()
        self._timer.start(self._look)

    def moved(self) -> None:
        self._moved_at = time.perf_counter()

    def _look(self) -> None:
        left = self._moved_at + self._seconds - time.perf_counter()
        self.close()
        if left <= 0:
            self._greenlet.throw(DeadlineExceeded())
        else:
            self._timer = get_hub().loop.timer(left)
            self._timer.start(self._look)

    def close(self) -> None:
        self._timer.stop()
        self._timer.close()


class Exchange:
    """Forwards one request. `begin`, then iterate the answer's body, then `close`, which may come at any time."""

    def __init__(
        self, backend: Backend, slots: Slots, settings: Settings, client: Client, record: Record
    ) -> None:
        self._backend = backend
        self._slots = slots
        self._settings = settings
        self._client = client
        self._record = record
        self._greenlet: Any = getcurrent()
        self._slot = False
        self._deadline: gevent.Timeout | None = None
        self._watch: Any = None
        self._response: BackendResponse | None = None
        self._first: list[bytes] = []
        self._standstill: Standstill | None = None
        self._ended_at = 0.0
        self._began = 0.0

    def begin(self, route: Route, target: str, timeout: float) -> tuple[int, str, Fields]:
        """Send the request and read the answer's head, and a short body whole: status, reason, header fields.

        Raises a ProxyError for which the client must be told; `close` has been called then.
        """
        fields = self._client.fields
        body = None
        try:
            if route.admitted:
                self._slots.look()
            body = self._body(fields)
            if body is None:
                self._watch_client()
            else:
                self._limit(timeout)
                body.wait()
            if route.admitted:  # not before: a client that sends nothing holds neither slot nor connection
                self._slots.take()
                self._slot = True
            self._limit(timeout)
            self._began = time.perf_counter()
            self._record.reached_backend = True
            response = self._backend.exchange(
                self._record.method, target, to_backend(fields, self._record.request_id), body
            )
            self._response = response
            return self._head(response)
        except BaseException:
            self.close()
            raise
        finally:
            self._client.body_taken = body is not None and body.complete

    def _body(self, fields: Fields) -> RequestBody | None:
        try:
            length = content_length(fields)
        except ValueError:
            raise BadRequest("Content-Length is not one number.") from None
        chunked = is_chunked(fields)
        if chunked and is_coded(fields):
            raise UnknownCoding()
        if not chunked and length is None:
            return None
        read_some = self._client.incoming.read_some
        return RequestBody(
            read_some, None if chunked else length, self._settings.max_body, self._watch_client
        )

    def _watch_client(self) -> None:
        self._watch = self._client.on_leaving(lambda: self._greenlet.throw(ClientGone()))

    def _head(self, response: BackendResponse) -> tuple[int, str, Fields]:
        fields = to_client(response.fields, self._record.request_id)
        media = media_type(next((value for name, value in fields if name.lower() == "content-type"), None))
        short = response.length is not None and response.length <= READ_WHOLE
        if short or (media == "application/json" and response.length is None):
            self._read_whole(response)
        elif is_stream(media):
            self._as_stream()
            self._first = [b""]  # so that the head leaves before the first event comes
        else:
            self._first = [response.read_some()]
        return response.status_code, response.reason, fields

    def _read_whole(self, response: BackendResponse) -> None:
        size = 0
        while size <= READ_WHOLE and (piece := response.read_some()):
            self._first.append(piece)
            size += len(piece)
        if size <= READ_WHOLE:
            self._backend_done()
            if size:
                self._first = [b"".join(self._first)]

    def _as_stream(self) -> None:
        """A stream may take longer in all, but not stand still for long, on either side."""
        self._limit(self._settings.stream_timeout - (time.perf_counter() - self._began))
        self._standstill = Standstill(self._settings.stream_idle)

    def _limit(self, seconds: float) -> None:
        """From now on the deadline is in so many seconds."""
        if self._deadline:
            self._deadline.close()
        self._deadline = gevent.Timeout.start_new(max(seconds, 0.001), DeadlineExceeded())

    def __iter__(self) -> Iterator[bytes]:
        yield from self._first
        response = self._response
        if response is None or self._ended_at:
            return
        moved = self._standstill.moved if self._standstill else None
        while piece := response.read_some():
            if moved:
                moved()
            yield piece
            if moved:
                moved()
        self._backend_done()

    def _backend_done(self) -> None:
        self._ended_at = time.perf_counter()

    def close(self) -> None:
        """Free the slot, the timers and the backend's connection."""
        for timer in (self._deadline, self._standstill):
            if timer:
                timer.close()
        if self._watch:
            self._watch.stop()
        if self._began:
            self._record.backend_seconds = (self._ended_at or time.perf_counter()) - self._began
        try:
            if self._response is not None:  # its truth is its status
                self._response.close()
        finally:
            if self._slot:
                self._slot = False
                self._slots.give_back()
