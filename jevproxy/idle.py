"""How long a connection to the backend may rest and still be used: a value that takes times and learns from closes.

Knows seconds. Must not know sockets, or what is sent.
"""

import time
from collections.abc import Callable

# How long a backend's observed idle limit is believed.
RELEARN = 60.0
# A backend that closes after each answer does so within this time: the first connection that is about to be used again
# is given so much rest to show it. Long for a loopback, short for a caller, and waited for once.
SETTLE = 0.05


class IdleLimit:
    """How long an idle connection may rest and still be used, in seconds.

    A request that meets a connection in the moment its backend closes it cannot be saved: it may have been read,
    and must not be sent twice. So the limit stays below the backend's own, which is learned where it shows: after
    a close seen at some idle time, only half of that is believed, for RELEARN seconds, and after one seen at once
    nothing is. Until a connection was seen to outlive SETTLE, one that is to be used again first `settles`.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._configured = self._current = seconds
        self._clock = clock
        self._learned_at = 0.0
        self._lives = False

    def allows(self, idle: float) -> bool:
        if self._current < self._configured and self._clock() - self._learned_at > RELEARN:
            self._current = self._configured
        return idle < self._current

    def closed_after(self, idle: float) -> None:
        """The backend closed a connection that had been idle for so long, or less."""
        self._current = min(self._current, idle / 2 if idle > SETTLE else 0.0)
        self._learned_at = self._clock()
        self._lives = False

    def lives_after(self, idle: float) -> None:
        """A connection was found open after so long."""
        self._lives = self._lives or idle >= SETTLE

    def settles(self, idle: float) -> float:
        """Seconds that a connection should still rest before it is used again."""
        return 0.0 if self._lives else max(0.0, SETTLE - idle)
