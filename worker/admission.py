"""Who is let in: the bearer key, then a slot.

It knows one key and one count. It must not know Flask, routes or what a request asks.
"""

import hmac
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from worker.errors import KeyMissing, KeyWrong, Overloaded
from worker.observe import Metrics


class Key:
    """The bearer key that requests must carry, or none."""

    def __init__(self, key: str | None) -> None:
        self._key = key.encode("utf-8", "surrogateescape") if key else None

    def check(self, authorization: str) -> None:
        """Raises KeyMissing where an Authorization field (as WSGI gives it: latin-1) has no usable key, KeyWrong."""
        if self._key is None:
            return
        scheme, _, given = authorization.encode("latin-1", "replace").partition(b" ")
        if scheme.lower() != b"bearer" or not given.strip():
            raise KeyMissing("No API key was sent. Send it as: Authorization: Bearer KEY")
        if not hmac.compare_digest(given.strip(), self._key):
            raise KeyWrong("The API key is not valid.")

    def fits(self, authorization: str) -> bool:
        """Whether `check` lets it pass."""
        try:
            self.check(authorization)
        except (KeyMissing, KeyWrong):
            return False
        return True


class Admission:
    """Slots for requests past authentication. One that finds none is refused at once, never queued."""

    def __init__(self, slots: int, metrics: Metrics) -> None:
        self._slots = threading.Semaphore(slots)
        self._metrics = metrics

    @contextmanager
    def slot(self) -> Iterator[None]:
        """A slot for a block; raises Overloaded."""
        if not self._slots.acquire(blocking=False):
            self._metrics.shed.inc()
            raise Overloaded("The worker is at its limit of concurrent requests.")
        self._metrics.in_flight.inc()
        try:
            yield
        finally:
            self._metrics.in_flight.dec()
            self._slots.release()
