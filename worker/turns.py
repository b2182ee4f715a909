"""Whose turn it is on the device: the order of passes, as a value that takes the time as an argument.

It knows the rows that wait, the passes that have begun, and their sizes. It must not know threads,
clocks, tensors or requests.

The shortest rows go first, and a pass of long rows that has begun stops between two steps for shorter ones. Two
bounds keep long rows moving: shorter rows may take only a share of the device from a pass that has begun, and a
row that has waited for `patience` seconds starts before all shorter ones.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Protocol

from worker.buckets import Buckets
from worker.rows import Logits, Row

# At 0.5 a long pass takes at most about twice its own time, and one batch more. In the simulated loads of
# test_turns.py a smaller share makes short rows wait, and a larger one makes long callers wait without end when short
# ones never stop.
OVERTAKING = 0.5
# The part of its credit that a pass has from the start; the rest grows with its steps. With all of it at the start,
# callers that never stop use it up in the first steps and then wait for a whole pass; with none, the first to come
# waits.
CREDIT_AT_START = 0.25
# Seconds, well below the 10 after which SDKs give up.
PATIENCE = 1.0


class Pass(Protocol):
    """Rows on the device, a step at a time until none is left."""

    @property
    def steps_left(self) -> int: ...

    def step(self) -> None: ...

    def logits(self) -> list[Logits]: ...


class RowEngine(Protocol):
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
    engine: RowEngine
    row: Row
    queued_at: float
    owners: list[Any] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return len(self.row.token_ids)


@dataclass(slots=True, eq=False)
class Turn:
    """Rows that run together, in one pass.

    `fraction_left`: the part of the pass's steps that is left. `overtaken_tokens`: the tokens of the rows that
    overtook it.
    """

    engine: RowEngine
    jobs: list[Job]
    device_pass: Pass | None = None
    fraction_left: float = 1.0
    overtaken_tokens: int = 0

    @property
    def longest(self) -> int:
        return max(job.tokens for job in self.jobs)

    @property
    def tokens(self) -> int:
        return sum(job.tokens for job in self.jobs)


# Rows of one queue may share a pass: an engine, and the bucket length of its rows.
QueueKey = tuple[RowEngine, int]


class Turns:
    """The queues of rows that wait, and the turns that have begun. The last of these runs; it overtook the others."""

    def __init__(self, overtaking: float = OVERTAKING, patience: float = PATIENCE) -> None:
        """`overtaking`: the share of the device, below 1, that shorter rows may take while a long pass is under way.

        It is counted in tokens, because seconds are not known beforehand: at 0.5 a pass of 400 tokens has a credit of
        400, the tokens that it lets overtake; the batch that uses the credit up may exceed it.
        `patience`: the seconds after which a waiting row starts before all others.
        """
        self.credit_per_token = overtaking / (1.0 - overtaking)
        self.patience = patience
        self.begun: list[Turn] = []
        self._queues: dict[QueueKey, list[Job]] = {}

    def __len__(self) -> int:
        """How many rows wait."""
        return sum(len(jobs) for jobs in self._queues.values())

    def _queue_key(self, job: Job) -> QueueKey:
        length = job.engine.buckets.length_for(job.tokens, len(job.row.markers))
        return job.engine, job.tokens if length is None else length

    def add(self, job: Job) -> None:
        self._queues.setdefault(self._queue_key(job), []).append(job)

    def drop(self, job: Job) -> None:
        """Removes a job that nobody waits for any more; one whose pass has begun stays in its turn."""
        key = self._queue_key(job)
        jobs = self._queues.get(key, [])
        if job in jobs:
            jobs.remove(job)
            if not jobs:
                del self._queues[key]

    def next(self, now: float) -> Turn | None:
        """The turn whose step is due: the one that had the last step, a new one, or None if nothing is left to do."""
        running = self.begun[-1] if self.begun else None
        for key in self._order(now, None if running is None else running.longest):
            jobs = self._queues[key]
            count = key[0].buckets.rows_that_fit(job.tokens for job in jobs)
            if running is not None:
                count = self._may_overtake(running, jobs[:count])
            if count:
                return self._begin(key, count)
        return running

    def _begin(self, key: QueueKey, count: int) -> Turn:
        jobs = self._queues.pop(key)
        if jobs[count:]:
            self._queues[key] = jobs[count:]
        turn = Turn(key[0], jobs[:count])
        for overtaken in self.begun:
            overtaken.overtaken_tokens += turn.tokens
        self.begun.append(turn)
        return turn

    def _order(self, now: float, below: int | None) -> Iterator[QueueKey]:
        """The queues to try, of those with rows shorter than `below`: the one whose first row has waited too long, then
        the shortest."""
        keys = [key for key in self._queues if below is None or key[1] < below]
        if keys:
            oldest = min(keys, key=lambda key: self._queues[key][0].queued_at)
            if now - self._queues[oldest][0].queued_at >= self.patience:
                yield oldest
            yield min(keys, key=lambda key: (key[1], self._queues[key][0].queued_at))

    def _may_overtake(self, running: Turn, jobs: Sequence[Job]) -> int:
        """How many of `jobs` may overtake: none if a begun turn has used up its credit, else those that are together
        less work than is left.

        The batch that uses up the credit goes whole: its second half alone would cost more.
        """
        for turn in self.begun:
            credit = self.credit_per_token * turn.tokens * (1 - (1 - CREDIT_AT_START) * turn.fraction_left)
            if turn.overtaken_tokens >= credit:
                return 0
        sums = accumulate(job.tokens for job in jobs)
        return sum(total <= running.fraction_left * running.tokens for total in sums)

    def end(self, turn: Turn) -> None:
        """`turn` is done, or given up."""
        self.begun.remove(turn)

    def jobs(self) -> Iterator[Job]:
        """Every job, waiting or begun."""
        for jobs in self._queues.values():
            yield from jobs
        for turn in self.begun:
            yield from turn.jobs
