"""The one way to the device: requests bring rows, and one of them at a time leads and runs everybody's.

It knows rows, their owners, threads and the clock. It must not know tensors, questions or HTTP.

A request that finds nobody leading leads: it runs turns for all who wait until its own rows are done, then hands the
lead to one of them. So there is no batching window and no thread besides the requests' own: rows that
arrive while a pass runs share the next one. Equal rows in flight are one job with several owners, and the logits
of rows that were computed lately are kept.
"""

import threading
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from worker.errors import ClientGone, DeviceFailed
from worker.rows import Logits, Row
from worker.turns import OVERTAKING, PATIENCE, Job, RowEngine, Turn, Turns

# Seconds, at least, between two looks whether the clients that wait are still there.
SWEEP_S = 0.1

RowKey = tuple[tuple[str, ...], bytes]


@dataclass(frozen=True, slots=True)
class LaneResult:
    """The logits of a request's rows, in order, and the seconds that it waited and computed."""

    logits: list[Logits]
    queue_s: float
    forward_s: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is in the lane at one moment.

    `waiting_rows`: rows whose pass has not begun. `rows_in_flight`: these and the rows of passes that have begun.
    `requests`: those that rows in flight belong to. `led`: whether a request leads. `cached_rows`: rows whose logits
    are kept.
    """

    waiting_rows: int
    rows_in_flight: int
    requests: int
    led: bool
    cached_rows: int


@dataclass(slots=True, eq=False)
class Ticket:
    """A request in the lane. `missing`: how many of its rows have no logits yet. `began`: when its first row began."""

    alive: Callable[[], bool]
    logits: list[Logits | None]
    missing: int = 0
    began: float | None = None
    error: BaseException | None = None
    leads: bool = False
    woken: threading.Event = field(default_factory=threading.Event)

    @property
    def done(self) -> bool:
        return not self.missing or self.error is not None


def row_key(engine: RowEngine, row: Row) -> RowKey:
    """Equal for equal rows of one checkpoint, and small enough to keep thousands."""
    numbers = (row.question_type, len(row.markers), *row.markers, *row.token_ids)
    return engine.key, array("q", numbers).tobytes()


class Lane:
    """One device's work, one step of one pass at a time."""

    def __init__(
        self,
        *,
        cache_rows: int = 4096,
        overtaking: float = OVERTAKING,
        patience: float = PATIENCE,
        on_failure: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`cache_rows`: how many rows' logits are kept. `overtaking`, `patience`: see `Turns`.

        `on_failure` is called once, with the reason, when the device is lost; the lane takes nothing after that.
        """
        self.failure: str | None = None
        self._on_failure = on_failure
        self._cache_rows = cache_rows
        # Guards everything below. Never held during a step.
        self._lock = threading.Lock()
        self._turns = Turns(overtaking, patience)
        self._cache: OrderedDict[RowKey, Logits] = OrderedDict()
        self._jobs: dict[RowKey, Job] = {}
        self._led = False
        # The tickets whose threads sleep, in the order in which they came.
        self._asleep: dict[Ticket, None] = {}
        self._swept_at = 0.0

    def snapshot(self) -> Snapshot:
        """What is in the lane now."""
        with self._lock:
            tickets = {ticket for job in self._jobs.values() for ticket, _ in job.owners}
            return Snapshot(
                waiting_rows=len(self._turns),
                rows_in_flight=len(self._jobs),
                requests=len(tickets),
                led=self._led,
                cached_rows=len(self._cache),
            )

    def run(
        self, engine: RowEngine, rows: Sequence[Row], alive: Callable[[], bool] = lambda: True
    ) -> LaneResult:
        """The logits of `rows`.

        Raises ClientGone when `alive` says no before they are all there, DeviceFailed when the device is lost.
        """
        arrived = time.monotonic()
        ticket = Ticket(alive, [None] * len(rows))
        keys = [row_key(engine, row) for row in rows]
        with self._lock:
            if self.failure is not None:
                raise DeviceFailed
            for index, (key, row) in enumerate(zip(keys, rows, strict=True)):
                self._enqueue(key, engine, row, ticket, index, arrived)
            if not ticket.done:
                ticket.leads, self._led = not self._led, True
                if not ticket.leads:
                    self._asleep[ticket] = None
        if not ticket.done:
            if not ticket.leads:
                ticket.woken.wait()
            if ticket.leads:
                self._lead(ticket)
        if ticket.error is not None:
            raise ticket.error
        ended = time.monotonic()
        began = arrived if ticket.began is None else max(arrived, ticket.began)
        logits = [logits for logits in ticket.logits if logits is not None]
        return LaneResult(logits, began - arrived, ended - began)

    def _enqueue(
        self, key: RowKey, engine: RowEngine, row: Row, ticket: Ticket, index: int, now: float
    ) -> None:
        if key in self._cache:
            self._cache.move_to_end(key)
            ticket.logits[index] = self._cache[key]
            return
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = Job(key, engine, row, now)
            self._turns.add(job)
        job.owners.append((ticket, index))
        ticket.missing += 1

    def _lead(self, ticket: Ticket) -> None:
        """Runs turns until `ticket` is done, then hands the lead on."""
        try:
            while not ticket.done:
                self._take_turn()
        finally:
            with self._lock:
                successor = next((other for other in self._asleep if not other.done), None)
                self._led = successor is not None
                if successor is not None:
                    self._wake(successor, leads=True)

    def _wake(self, ticket: Ticket, *, leads: bool = False) -> None:
        self._asleep.pop(ticket, None)
        ticket.leads = leads
        ticket.woken.set()

    def _take_turn(self) -> None:
        now = time.monotonic()
        with self._lock:
            if now - self._swept_at >= SWEEP_S:
                self._sweep()
                self._swept_at = now
            turn = self._turns.next(now)
            if turn is None:
                return
            if turn.device_pass is None:
                for ticket in {ticket for job in turn.jobs for ticket, _ in job.owners}:
                    ticket.began = now if ticket.began is None else ticket.began
        try:
            if turn.device_pass is None:
                turn.device_pass = turn.engine.start([job.row for job in turn.jobs])
            steps_before = turn.device_pass.steps_left
            turn.device_pass.step()
        except BaseException as error:
            self._fail(turn, error)
            if not isinstance(error, Exception):
                raise
            return
        with self._lock:
            turn.fraction_left *= turn.device_pass.steps_left / max(1, steps_before)
            if not turn.device_pass.steps_left:
                self._turns.end(turn)
                for job, logits in zip(turn.jobs, turn.device_pass.logits(), strict=True):
                    self._deliver(job, logits)

    def _deliver(self, job: Job, logits: Logits) -> None:
        del self._jobs[job.key]
        if self._cache_rows:
            self._cache[job.key] = logits
            while len(self._cache) > self._cache_rows:
                self._cache.popitem(last=False)
        for ticket, index in job.owners:
            ticket.logits[index] = logits
            ticket.missing -= 1
            if ticket.done:
                self._wake(ticket)

    def _sweep(self) -> None:
        """Ends the tickets whose client has gone."""
        tickets = {ticket for job in self._turns.jobs() for ticket, _ in job.owners}
        gone = {ticket for ticket in tickets if not ticket.done and not ticket.alive()}
        for ticket in gone:
            self._refuse(ticket, ClientGone())

    def _refuse(self, ticket: Ticket, error: BaseException) -> None:
        """Ends a ticket with an error. Jobs that nobody else owns leave the lane."""
        ticket.error = error
        for job in list(self._turns.jobs()):
            job.owners = [(owner, index) for owner, index in job.owners if owner is not ticket]
            if not job.owners:
                self._turns.drop(job)
        for turn in list(self._turns.begun):
            if not any(job.owners for job in turn.jobs):
                self._turns.end(turn)
        remaining = set(self._turns.jobs())
        self._jobs = {key: job for key, job in self._jobs.items() if job in remaining}
        if not ticket.leads:
            self._wake(ticket)

    def _fail(self, turn: Turn, error: BaseException) -> None:
        """A step raised: every request fails if the device is lost, else those whose rows ran."""
        device_lost = isinstance(error, DeviceFailed)
        with self._lock:
            jobs = list(self._turns.jobs()) if device_lost else turn.jobs
            for ticket in {ticket for job in jobs for ticket, _ in job.owners}:
                failure = DeviceFailed() if device_lost else RuntimeError("the pass failed")
                failure.__cause__ = error
                self._refuse(ticket, failure)
            if turn in self._turns.begun:
                self._turns.end(turn)
            if device_lost:
                self.failure = str(error.__cause__ or error)
        if device_lost:
            self._on_failure(self.failure or "")
