"""What a running job shows: a bar on a terminal, else a log line a minute; and the summary at its end.

It knows counts and clocks. It must not know files or models.
"""

import logging
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from worker.files.answered import ERROR, Result
from worker.protocol import Question

log = logging.getLogger("worker")

LOG_S = 60.0
# A noul's probabilities are shown in fifths.
FIFTHS = ("0.0-0.2", "0.2-0.4", "0.4-0.6", "0.6-0.8", "0.8-1.0")


class Tally:
    """What became of the records of this start: how many, how fast, and which answers they got."""

    def __init__(self, questions: Sequence[Question]) -> None:
        self.decided = self.failed = self.cut = 0
        self._began = time.monotonic()
        self._questions = questions
        self._answers: dict[str, Counter[str]] = {question.id: Counter() for question in questions}

    def add(self, result: Result) -> None:
        if ERROR in result:
            self.failed += 1
            return
        self.decided += 1
        self.cut += _was_cut(result.get("usage", {}))
        for question in self._questions:
            self._answers[question.id][_shown(question, result["answers"][question.id])] += 1

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    @property
    def rate(self) -> float:
        """Records a second."""
        return (self.decided + self.failed) / max(1e-9, self.seconds)

    def lines(self) -> list[str]:
        """The summary, for people."""
        lines = [
            f"decided {self.decided}, failed {self.failed}, cut {self.cut}, "
            f"{self.seconds:.1f} s, {self.rate:.1f} records a second"
        ]
        for question in self._questions:
            counts = self._answers[question.id]
            order = FIFTHS if question.type == "noul" else question.names
            shares = [
                f"{name} {counts[name]} ({counts[name] / self.decided:.0%})" for name in order if counts[name]
            ]
            if shares:
                lines.append(f"{question.id}: {', '.join(shares)}")
        return lines


class Progress:
    """Shows a job's way. `total`: how many records there are, None if nobody knows; `done`: those of earlier starts."""

    def __init__(self, total: int | None, done: int, tally: Tally) -> None:
        self._total = total
        self._done = done
        self._tally = tally
        self._logged = time.monotonic()
        self._bar = _bar(total, done) if sys.stderr.isatty() else None

    def step(self) -> None:
        """One record more."""
        self._done += 1
        if self._bar is not None:
            self._bar.update()
        elif time.monotonic() - self._logged >= LOG_S:
            self._logged = time.monotonic()
            log.info("%s", self._line())

    def _line(self) -> str:
        rate = self._tally.rate
        if self._total is None:
            return f"{self._done} records, {rate:.1f} a second"
        left = max(0, self._total - self._done) / max(1e-9, rate)
        return f"{self._done} of {self._total} records, {rate:.1f} a second, {left / 60:.0f} minutes left"

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _bar(total: int | None, done: int) -> Any:
    # Imported here: a job whose output nobody watches does without.
    from tqdm import tqdm

    return tqdm(total=total, initial=done, unit=" records", smoothing=0.1, dynamic_ncols=True)


def _was_cut(usage: Mapping[str, Any]) -> bool:
    return bool(
        usage.get("x_state_tokens_dropped")
        or usage.get("x_instruction_tokens_dropped")
        or usage.get("x_shortened_options")
    )


def _shown(question: Question, answer: Mapping[str, Any]) -> str:
    """An answer as the summary counts it: the choice, the likeliest level, the fifth of a probability."""
    if question.type == "choice":
        return str(answer["choice"])
    if question.type == "noul":
        return FIFTHS[min(4, int(answer["noul"] * 5))]
    spread = answer["probabilities"]
    return str(max(spread, key=spread.get))
