"""How processes end, and what follows."""

from __future__ import annotations

import pytest

from worker.restarts import MEMORY_S, End, pause


@pytest.mark.parametrize(
    ("end", "asked", "exit_status", "words"),
    [
        (End(), True, 128, "was told to end"),
        (End(signal=15), True, 143, "was told to end by SIGTERM"),
        (End(signal=9), False, 137, "was killed by SIGKILL: most likely memory ran out"),
        (End(signal=4), False, 132, "was killed by SIGILL: a native library crashed"),
        (End(signal=40), False, 168, "was killed by signal 40: look at the lines above"),
        (End(status=1), False, 1, "ended with status 1: look at the lines above"),
    ],
)
def test_an_end_in_words(end: End, asked: bool, exit_status: int, words: str) -> None:
    assert end.asked is asked and end.exit_status == exit_status and end.words().startswith(words)


def test_pauses_grow_to_a_minute_and_are_forgotten_in_time() -> None:
    ends: list[float] = []
    waits = []
    for second in range(10):
        ends.append(float(second))
        waits.append(pause(ends, float(second)))
    assert waits == [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]
    ends.append(10 + MEMORY_S)
    assert pause(ends, 10 + MEMORY_S) == 0
