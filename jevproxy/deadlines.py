"""How long an exchange may take: a deadline for all of it, and a bound on a stream's silence.

Knows gevent's timers. Must not know what is waited for. Both raise DeadlineExceeded in the greenlet that made them.
"""

import time
from typing import Any

import gevent
from gevent import get_hub, getcurrent

from .errors import DeadlineExceeded


class Deadline:
    """Passes so many seconds after the last `within`; never before the first."""

    def __init__(self) -> None:
        self._timeout = gevent.Timeout(None, DeadlineExceeded())

    def within(self, seconds: float) -> None:
        """The deadline is in so many seconds from now."""
        self._timeout.close()
        self._timeout = gevent.Timeout.start_new(max(seconds, 0.001), DeadlineExceeded())

    def close(self) -> None:
        self._timeout.close()


class Standstill:
    """Passes once `moved` has not been called for `seconds`.

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
