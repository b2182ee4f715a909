"""Whose turn it is on the device: the order of passes, as a value that takes the time as an argument.

It knows rows that wait, passes that have begun, their sizes and the seconds they took. It must not know threads,
clocks, tensors or requests.

The shortest rows go first, and a pass of long rows that has begun stops between two steps for shorter ones. Two
bounds keep long rows moving: shorter rows may take only a share of the device from a pass that has begun, and a
row that has waited for `patience` seconds starts before all others.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from worker.buckets import Buckets
from worker.rows import Logits, Row


class Pass(Protocol):
    """Rows on the device, a step at a time until none is left."""

    @property
    def left(self) -> int: ...

    def step(self) -> None: ...

    def logits(self) -> list[Logits]: ...


class Runs(Protocol):
    """What the lane asks of an engine. Rows of engines with one key have the same logits."""

    @property
    def key(self) -> tuple[str, ...]: ...

    @property
    def buckets(self) -> Buckets: ...

    def start(self, rows: Sequence[Row]) -> Pass: ...


@dataclass(slots=True, eq=False)
class Job:
    """One distinct row in flight, and whoever waits for it."""

    key: Any
    engine: Runs
    row: Row
    since: float
    owners: list[Any] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return len(self.row.token_ids)


@dataclass(slots=True, eq=False)
class Turn:
    """Rows that run together. `share`: the part of its steps that is left. Seconds it ran, and lost to others."""

    engine: Runs
    jobs: list[Job]
    work: Pass | None = None
    share: float = 1.0
    ran: float = 0.0
    lost: float = 0.0

    @property
    def longest(self) -> int:
        return max(job.tokens for job in self.jobs)

    @property
    def ahead(self) -> float:
        """The tokens that still have to go through the whole model."""
        return self.share * sum(job.tokens for job in self.jobs)


class Turns:
    """The rows that wait and the passes that have begun, innermost last."""

    def __init__(self, overtaking: float = 0.7, patience: float = 1.0) -> None:
        """`overtaking`: the share of the device, below 1, that shorter rows may take from a pass that has begun.

        0.7 is the least that holds short rows' p99 under four times their time alone, with Poisson arrivals at
        0.5 of the capacity, and it leaves long rows a third of the device when callers of both kinds never stop.
        """
        self.overtaking = overtaking
        self.patience = patience
        self.begun: list[Turn] = []
        self._waiting: dict[tuple[Any, int], list[Job]] = {}

    def __len__(self) -> int:
        """How many rows wait."""
        return sum(len(jobs) for jobs in self._waiting.values())

    def _place(self, job: Job) -> tuple[Any, int]:
        bucket = job.engine.buckets.of(job.tokens, len(job.row.markers))
        return job.engine, job.tokens if bucket is None else bucket

    def add(self, job: Job) -> None:
        self._waiting.setdefault(self._place(job), []).append(job)

    def drop(self, job: Job) -> None:
        """Takes a job that nobody waits for any more out of the queue, or out of reach of a pass."""
        place = self._place(job)
        jobs = self._waiting.get(place, [])
        if job in jobs:
            jobs.remove(job)
            if not jobs:
                del self._waiting[place]

    def next(self, now: float) -> Turn | None:
        """The turn to take a step of now: the one that had the last step, a new one, or None if all is done."""
        top = self.begun[-1] if self.begun else None
        place = self._first(now) if top is None else self._shorter(top)
        if place is None:
            return top
        jobs = self._waiting[place]
        taken, rest = self._split(jobs, place)
        if rest:
            self._waiting[place] = rest
        else:
            del self._waiting[place]
        turn = Turn(place[0], taken)
        self.begun.append(turn)
        return turn

    @staticmethod
    def _split(jobs: list[Job], place: tuple[Any, int]) -> tuple[list[Job], list[Job]]:
        most = place[0].buckets.most(place[1])
        return jobs[:most], jobs[most:]

    def _first(self, now: float) -> tuple[Any, int] | None:
        if not self._waiting:
            return None
        oldest = min(self._waiting, key=lambda place: self._waiting[place][0].since)
        if now - self._waiting[oldest][0].since >= self.patience:
            return oldest
        return min(self._waiting, key=lambda place: (place[1], self._waiting[place][0].since))

    def _shorter(self, top: Turn) -> tuple[Any, int] | None:
        """The shortest rows that may overtake `top`: less work than it still has, and within its bound."""
        if not self._waiting or not self.overtaking or top.lost > self.overtaking * (top.lost + top.ran):
            return None
        place = min(self._waiting, key=lambda place: (place[1], self._waiting[place][0].since))
        jobs, _ = self._split(self._waiting[place], place)
        short = place[1] < top.longest and sum(job.tokens for job in jobs) < top.ahead
        return place if short else None

    def spent(self, turn: Turn, seconds: float) -> None:
        """Books the seconds of a step: run by `turn`, lost to every pass under it."""
        turn.ran += seconds
        for below in self.begun[: self.begun.index(turn)]:
            below.lost += seconds

    def end(self, turn: Turn) -> None:
        """`turn` is done, or given up."""
        self.begun.remove(turn)

    def jobs(self) -> Iterator[Job]:
        """Every job, waiting or begun."""
        for jobs in self._waiting.values():
            yield from jobs
        for turn in self.begun:
            yield from turn.jobs
