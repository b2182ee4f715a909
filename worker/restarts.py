"""When a serving process has ended: whether another one starts, after which pause, and what the operator reads.

It knows exit statuses and signals as values. It must not know gunicorn, processes or models.
"""

import signal
from collections.abc import Sequence
from dataclasses import dataclass

# Ends count against each other for so long. After the first one in it another process starts at once, since a crash
# is rare and an outage costs; each further one waits twice as long, since a worker that ends again and again only
# burns the machine it loads on.
MEMORY_S = 300.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0

# How a process ends that was asked to.
ASKED = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
OUT_OF_MEMORY = (
    "most likely memory ran out: look at `dmesg`, at the container's or unit's memory limit, "
    "and choose a smaller model or LAYA_DTYPE"
)
NATIVE_CRASH = "a native library crashed: look at the lines above, and at whether torch fits this machine"
LOOK_ABOVE = "look at the lines above"
SIGNS: dict[int, str] = {
    signal.SIGKILL: OUT_OF_MEMORY,
    signal.SIGSEGV: NATIVE_CRASH,
    signal.SIGBUS: NATIVE_CRASH,
    signal.SIGILL: NATIVE_CRASH,
    signal.SIGFPE: NATIVE_CRASH,
    signal.SIGABRT: NATIVE_CRASH,
}


@dataclass(frozen=True, slots=True)
class End:
    """How a process ended: by a signal, or with a status."""

    status: int = 0
    signal: int = 0

    @property
    def asked(self) -> bool:
        """Somebody told it to end."""
        return self.signal in ASKED or not (self.signal or self.status)

    @property
    def exit_status(self) -> int:
        """What the parent ends with in its turn; a signal as shells and containers tell it."""
        return self.status or 128 + self.signal

    def words(self) -> str:
        """How it ended, and what to look at."""
        if self.asked:
            return (
                f"was told to end by {signal.Signals(self.signal).name}" if self.signal else "was told to end"
            )
        if not self.signal:
            return f"ended with status {self.status}: {LOOK_ABOVE}"
        try:
            name = signal.Signals(self.signal).name
        except ValueError:  # a real-time signal
            name = f"signal {self.signal}"
        return f"was killed by {name}: {SIGNS.get(self.signal, LOOK_ABOVE)}"


def pause(ends: Sequence[float], now: float) -> float:
    """Seconds before another process may start; `ends` are the times of all so far, the last one included."""
    recent = sum(now - end < MEMORY_S for end in ends)
    return 0.0 if recent < 2 else min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (recent - 2))
