"""Whose turn it is on the device: the order of passes, as a value that takes the time as an argument.

It knows rows that wait, passes that have begun, and their sizes. It must not know threads,
clocks, tensors or requests.

The shortest rows go first, and a pass of long rows that has begun stops between two steps for shorter ones. Two
bounds keep long rows moving: shorter rows may take only a share of the device from a pass that has begun, and a
row that has waited for `patience` seconds starts before the shorter ones.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Protocol

from worker.buckets import Buckets
from worker.rows import Logits, Row

# A long pass takes about twice its own time at most, and one batch over. In the simulated loads of test_turns.py less
# lets short rows wait, and more makes long callers wait without end when short ones never stop.
OVERTAKING = 0.5
# The part of that which a pass grants from its start; the rest comes with its steps. All at once lets callers that
# never stop spend it in the first steps and then wait for a whole pass; none makes the first to come wait.
AT_ONCE = 0.25
# Seconds, well below the 10 after which SDKs give up.
PATIENCE = 1.0


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
    """Rows that run together.

    `share`: the part of its steps that is left. `lost`: the tokens of the rows that overtook it.
    """

    engine: Runs
    jobs: list[Job]
    work: Pass | None = None
    share: float = 1.0
    lost: int = 0

    @property
    def longest(self) -> int:
        return max(job.tokens for job in self.jobs)

    @property
    def tokens(self) -> int:
        return sum(job.tokens for job in self.jobs)


class Turns:
    """The rows that wait and the passes that have begun, innermost last."""

    def __init__(self, overtaking: float = OVERTAKING, patience: float = PATIENCE) -> None:
        """`overtaking`: the share of the device, below 1, that shorter rows may take while a long pass is under way.

        Counted in tokens, as seconds are not known beforehand: at 0.5 a pass of 400 tokens lets 400 by, and the rest
        of the batch that it let begin.
        `patience`: the seconds after which a waiting row starts before all others.
        """
        self.credit = overtaking / (1.0 - overtaking)
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
        for place in self._order(now, None if top is None else top.longest):
            jobs = self._waiting[place]
            most = place[0].buckets.share(job.tokens for job in jobs)
            if top is not None:
                most = self._may_overtake(top, jobs[:most])
            if most:
                return self._begin(place, most)
        return top

    def _begin(self, place: tuple[Any, int], most: int) -> Turn:
        jobs = self._waiting.pop(place)
        if jobs[most:]:
            self._waiting[place] = jobs[most:]
        turn = Turn(place[0], jobs[:most])
        for below in self.begun:
            below.lost += turn.tokens
        self.begun.append(turn)
        return turn

    def _order(self, now: float, below: int | None) -> Iterator[tuple[Any, int]]:
        """Where the rows lie that go first, of those `below`: the oldest if it waited too long, then the shortest."""
        places = [place for place in self._waiting if below is None or place[1] < below]
        if places:
            oldest = min(places, key=lambda place: self._waiting[place][0].since)
            if now - self._waiting[oldest][0].since >= self.patience:
                yield oldest
            yield min(places, key=lambda place: (place[1], self._waiting[place][0].since))

    def _may_overtake(self, top: Turn, jobs: Sequence[Job]) -> int:
        """How many of `jobs` may overtake: as many as are less work than is left, if every pass lets some by.

        The batch that uses up what a pass lets by goes as a whole: its second half alone would cost more.
        """
        for turn in self.begun:
            if turn.lost >= self.credit * turn.tokens * (1 - (1 - AT_ONCE) * turn.share):
                return 0
        sums = accumulate(job.tokens for job in jobs)
        return sum(total <= top.share * top.tokens for total in sums)

    def end(self, turn: Turn) -> None:
        """`turn` is done, or given up."""
        self.begun.remove(turn)

    def jobs(self) -> Iterator[Job]:
        """Every job, waiting or begun."""
        for jobs in self._waiting.values():
            yield from jobs
        for turn in self.begun:
            yield from turn.jobs
