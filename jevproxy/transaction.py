"""One request and what belongs to it, from its head to the end of its answer.

Knows which parts there are, and in which order they end. Must not know Flask. It travels in the WSGI environ as `KEY`.
"""

import time
from collections.abc import Iterable
from typing import Any

from .body import RequestBody
from .client import Client
from .delivery import Delivery
from .exchange import Exchange, Reply
from .gunicorn_seam import Incoming
from .headers import request_id
from .observe import Observer, Record
from .settings import Route, Settings
from .slots import Slots
from .upstream import Backend

KEY = "jevproxy.transaction"


class Transaction:
    """`route` is None until one matched; `body` and `exchange` are None until the request is forwarded."""

    __slots__ = ("body", "client", "exchange", "observer", "record", "route")

    def __init__(self, environ: dict[str, Any], start_response: Any, observer: Observer) -> None:
        self.client = Client(Incoming(start_response))
        self.observer = observer
        self.record = Record(
            environ["REQUEST_METHOD"],
            environ["PATH_INFO"],
            request_id(self.client.fields),
            time.perf_counter(),
        )
        self.route: Route | None = None
        self.body: RequestBody | None = None
        self.exchange: Exchange | None = None

    def forward(
        self, route: Route, target: str, backend: Backend, slots: Slots, settings: Settings, timeout: float
    ) -> Reply:
        """The backend's reply to this request. Raises a ProxyError that the client must be told."""
        self.route = route
        self.record.route = f"{route.method} {route.path}"
        self.exchange = Exchange(backend, slots, settings, self.client, self.record, timeout)
        try:
            if route.admitted:
                slots.require_free()
            self.body = self.client.body(settings.max_body)
            self.exchange.admit(route, self.body)
            return self.exchange.answer(self.exchange.send(target, self.body))
        except BaseException:
            self.abandon()
            raise

    def deliver(self, status: int, pieces: Iterable[bytes], last: bool) -> Delivery:
        """The answer on its way. `last`: it is its connection's last, as the client may still be sending."""
        self.record.status = status
        taken = self.body is not None and self.body.complete
        return Delivery(
            pieces, self.client, self.record, self._end, last or (not taken and self.client.sends_much())
        )

    def abandon(self) -> None:
        """Give back what the exchange holds: there will be no answer of its own."""
        if self.exchange is not None:
            self.exchange.close()

    def _end(self) -> None:
        try:
            self.abandon()
        finally:
            self.observer.finish(self.record)
