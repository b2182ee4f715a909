"""The queue in front of the device, and the one lock around it.

It knows rows, their owners and their order. It must not know tensors, questions or HTTP.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from worker.errors import ClientGone, DeviceFailed
from worker.rows import Logits, Row


class Runs(Protocol):
    """What the lane asks of an engine."""

    def run(self, rows: Sequence[Row]) -> list[Logits]: ...


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of a request's rows: their logits in order, and the seconds spent waiting and computing."""

    logits: list[Logits]
    queue_s: float
    forward_s: float


class Lane:
    """One device's work, one pass at a time."""

    def __init__(self, on_failure: Callable[[str], None] = lambda reason: None) -> None:
        """`on_failure` is called once, with the reason, when the device is lost."""
        self.failed: str | None = None
        self._on_failure = on_failure
        self._lock = threading.Lock()

    def run(self, engine: Runs, rows: Sequence[Row], alive: Callable[[], bool] = lambda: True) -> Ran:
        """The logits of `rows`. Raises ClientGone when `alive` says no, DeviceFailed on a lost device."""
        asked = time.monotonic()
        with self._lock:
            began = time.monotonic()
            if self.failed is not None:
                raise DeviceFailed
            if not alive():
                raise ClientGone
            logits = [engine.run([row])[0] for row in rows]
        return Ran(logits, began - asked, time.monotonic() - began)
