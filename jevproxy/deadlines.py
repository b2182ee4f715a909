"""How long an exchange may take: a deadline for all of it, and a bound on a stream's silence.

Knows gevent's timers. Must not know what is waited for. Both raise DeadlineExceeded in the greenlet that made them.
"""

import time
from typing import Any

from gevent import get_hub, getcurrent

from .errors import DeadlineExceeded


class Deadline:
    """Passes so many seconds after the last `within`; never before the first.

    A timer that looks again costs less than one for each `within`.
    """

    def __init__(self) -> None:
        self._greenlet: Any = getcurrent()
        self._timer: Any = None
        self._looks_at = self._due = 0.0

    def within(self, seconds: float) -> None:
        """The deadline is in so many seconds from now."""
        now = time.perf_counter()
        self._due = now + max(seconds, 0.001)
        if self._timer is None or self._due < self._looks_at:
            self._start(now)

    def _start(self, now: float) -> None:
        self.close()
        self._looks_at = self._due
        self._timer = get_hub().loop.timer(self._due - now)
        self._timer.start(self._look)

    def _look(self) -> None:
        now = time.perf_counter()
        if now < self._due:
            self._start(now)
        else:
            self.close()
            self._greenlet.throw(DeadlineExceeded())

    def close(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.stop()
            timer.close()


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
