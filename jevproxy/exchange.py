"""One request forwarded: admitted, sent, answered. Each phase takes what the one before gave.

Knows the order of the phases, and that all they hold is given back once. Must not know Flask.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from typing import Any

from gevent import getcurrent

from .body import RequestBody
from .client import Client
from .deadlines import Deadline, Standstill
from .errors import ClientGone
from .headers import Fields, is_stream, media_type, to_backend, to_client
from .observe import Record
from .settings import Route, Settings
from .slots import Slots
from .transport import Received
from .upstream import Backend

# Up to this much is read whole before anything of it leaves, so that a cut or late answer can still become a 502 or
# 504: every decision is far smaller, and 256 of these are 256 MiB.
READ_WHOLE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Reply:
    """What the backend said: status, reason, header fields for the client, and the body's pieces as they come."""

    status: int
    reason: str
    fields: Fields
    pieces: Iterable[bytes]


class Exchange:
    """Forwards one request. `close` it when the reply's pieces are through, or at any time before."""

    __slots__ = ("_backend", "_client", "_deadline", "_held", "_record", "_settings", "_slots", "_timeout")

    def __init__(
        self,
        backend: Backend,
        slots: Slots,
        settings: Settings,
        client: Client,
        record: Record,
        timeout: float,
    ) -> None:
        """`timeout`: seconds for the whole of it, unless the answer is a stream."""
        self._backend = backend
        self._slots = slots
        self._settings = settings
        self._client = client
        self._record = record
        self._timeout = timeout
        self._held = ExitStack()
        self._deadline = Deadline()
        self._held.callback(self._deadline.close)

    def admit(self, route: Route, body: RequestBody | None) -> None:
        """Wait for the first piece of the body, then take a slot. Raises NoSlot, and what the body raises."""
        if body is None:
            self._watch_client()
        else:
            body.on_complete = self._watch_client
            self._deadline.within(self._timeout)
            body.wait()
        if route.admitted:  # not before: a client that sends nothing holds neither slot nor connection
            self._slots.take()
            self._held.callback(self._slots.give_back)

    def send(self, target: str, body: RequestBody | None) -> Received:
        """Send the request, and read the response's head. Raises what `Backend.exchange` raises, DeadlineExceeded."""
        self._deadline.within(self._timeout)
        self._record.asked = time.perf_counter()
        fields = to_backend(self._client.fields, self._record.request_id)
        received = self._backend.exchange(self._record.method, target, fields, body)
        self._held.callback(received.close)
        return received

    def answer(self, received: Received) -> Reply:
        """The reply. A short body is read whole first: raises BackendBroken and DeadlineExceeded."""
        fields = to_client(received.fields, self._record.request_id)
        media = media_type(next((value for name, value in fields if name.lower() == "content-type"), None))
        short = received.length is not None and received.length <= READ_WHOLE
        pieces: Iterable[bytes]
        if short or (media == "application/json" and received.length is None):
            pieces = self._whole(received)
        elif is_stream(media):
            pieces = self._stream(received)
        else:
            pieces = chain((received.read_some(),), self._rest(received))
        return Reply(received.status, received.reason, fields, pieces)

    def close(self) -> None:
        """Give the slot, the timers, the watch and the backend's connection back. May be called more than once."""
        self._held.close()

    def _whole(self, received: Received) -> Iterable[bytes]:
        """The body in one piece, unless it turns out to be long."""
        parts, size = [], 0
        while piece := received.read_some():
            parts.append(piece)
            size += len(piece)
            if size > READ_WHOLE:
                return chain(parts, self._rest(received))
        self._record.answered = time.perf_counter()
        return (b"".join(parts),) if parts else ()

    def _stream(self, received: Received) -> Iterator[bytes]:
        """A stream may take longer in all, but not stand still for long, on either side."""
        taken = time.perf_counter() - (self._record.asked or 0.0)
        self._deadline.within(self._settings.stream_timeout - taken)
        standstill = Standstill(self._settings.stream_idle)
        self._held.callback(standstill.close)
        return self._moving(received, standstill)

    def _moving(self, received: Received, standstill: Standstill) -> Iterator[bytes]:
        yield b""  # the head leaves before the first event comes
        for piece in self._rest(received):
            standstill.moved()
            yield piece
            standstill.moved()

    def _rest(self, received: Received) -> Iterator[bytes]:
        while piece := received.read_some():
            yield piece
        self._record.answered = time.perf_counter()

    def _watch_client(self) -> None:
        greenlet: Any = getcurrent()
        watch = self._client.on_leaving(lambda: greenlet.throw(ClientGone()))
        if watch is not None:
            self._held.callback(watch.stop)
