"""The one way to the device: requests bring rows, and whoever holds the lane runs everybody's.

It knows rows, their owners, threads and the clock. It must not know tensors, questions or HTTP.

A request that finds the lane free takes it and runs turns until its own rows are done, for all who wait; then it
hands the lane to one of them. So there is no batching window and no thread besides the requests' own: rows that
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
from worker.turns import OVERTAKING, PATIENCE, Job, Runs, Turn, Turns

# How often, at most, the lane asks whether the clients that wait are still there.
SWEEP_S = 0.1

Key = tuple[tuple[str, ...], bytes]


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of a request's rows: their logits in order, and the seconds spent waiting and computing."""

    logits: list[Logits]
    queue_s: float
    forward_s: float


@dataclass(slots=True, eq=False)
class Ticket:
    """A request in the lane. `missing`: how many of its rows have no logits yet."""

    alive: Callable[[], bool]
    logits: list[Logits | None]
    missing: int = 0
    began: float | None = None
    error: BaseException | None = None
    leads: bool = False
    called: threading.Event = field(default_factory=threading.Event)

    @property
    def done(self) -> bool:
        return not self.missing or self.error is not None


def key_of(engine: Runs, row: Row) -> Key:
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
        """`cache_rows`: how many rows' logits are kept. `overtaking`, `patience`: what `Turns` says of them.

        `on_failure` is called once, with the reason, when the device is lost; the lane takes nothing after that.
        """
        self.failed: str | None = None
        self._on_failure = on_failure
        self._turns = Turns(overtaking, patience)
        self._cache_rows = cache_rows
        self._cache: OrderedDict[Key, Logits] = OrderedDict()
        self._flying: dict[Key, Job] = {}
        # Guards all that is above and below; never held during a step.
        self._lock = threading.Lock()
        self._held = False
        self._parked: dict[Ticket, None] = {}
        self._swept = 0.0

    @property
    def waiting(self) -> int:
        """How many rows wait for the device."""
        with self._lock:
            return len(self._turns)

    def run(self, engine: Runs, rows: Sequence[Row], alive: Callable[[], bool] = lambda: True) -> Ran:
        """The logits of `rows`.

        Raises ClientGone when `alive` says no before they are all there, DeviceFailed when the device is lost.
        """
        asked = time.monotonic()
        ticket = Ticket(alive, [None] * len(rows))
        keys = [key_of(engine, row) for row in rows]
        with self._lock:
            if self.failed is not None:
                raise DeviceFailed
            for index, (key, row) in enumerate(zip(keys, rows, strict=True)):
                self._ask(key, engine, row, ticket, index, asked)
            if not ticket.done:
                ticket.leads, self._held = not self._held, True
                if not ticket.leads:
                    self._parked[ticket] = None
        if not ticket.done:
            if not ticket.leads:
                ticket.called.wait()
            if ticket.leads:
                self._lead(ticket)
        if ticket.error is not None:
            raise ticket.error
        ended = time.monotonic()
        began = asked if ticket.began is None else max(asked, ticket.began)
        return Ran([logits for logits in ticket.logits if logits is not None], began - asked, ended - began)

    def _ask(self, key: Key, engine: Runs, row: Row, ticket: Ticket, index: int, now: float) -> None:
        if key in self._cache:
            self._cache.move_to_end(key)
            ticket.logits[index] = self._cache[key]
            return
        job = self._flying.get(key)
        if job is None:
            job = self._flying[key] = Job(key, engine, row, now)
            self._turns.add(job)
        job.owners.append((ticket, index))
        ticket.missing += 1

    def _lead(self, ticket: Ticket) -> None:
        """Runs turns until `ticket` is done, then hands the lane on."""
        try:
            while not ticket.done:
                self._take_turn()
        finally:
            with self._lock:
                heir = next((parked for parked in self._parked if not parked.done), None)
                self._held = heir is not None
                if heir is not None:
                    self._call(heir, leads=True)

    def _call(self, ticket: Ticket, *, leads: bool = False) -> None:
        self._parked.pop(ticket, None)
        ticket.leads = leads
        ticket.called.set()

    def _take_turn(self) -> None:
        now = time.monotonic()
        with self._lock:
            if now - self._swept >= SWEEP_S:
                self._sweep()
                self._swept = now
            turn = self._turns.next(now)
            if turn is None:
                return
            if turn.work is None:
                self._begin(turn, now)
        try:
            if turn.work is None:
                turn.work = turn.engine.start([job.row for job in turn.jobs])
            whole = turn.work.left
            turn.work.step()
        except BaseException as error:
            self._fail(turn, error)
            if not isinstance(error, Exception):
                raise
            return
        with self._lock:
            turn.share *= turn.work.left / max(1, whole)
            if not turn.work.left:
                self._turns.end(turn)
                for job, logits in zip(turn.jobs, turn.work.logits(), strict=True):
                    self._keep(job, logits)

    def _begin(self, turn: Turn, now: float) -> None:
        for job in turn.jobs:
            for ticket, _ in job.owners:
                ticket.began = now if ticket.began is None else ticket.began

    def _keep(self, job: Job, logits: Logits) -> None:
        del self._flying[job.key]
        if self._cache_rows:
            self._cache[job.key] = logits
            while len(self._cache) > self._cache_rows:
                self._cache.popitem(last=False)
        for ticket, index in job.owners:
            ticket.logits[index] = logits
            ticket.missing -= 1
            if ticket.done:
                self._call(ticket)

    def _sweep(self) -> None:
        """Lets those go whose client has gone, and their rows unless others wait for them too."""
        tickets = {ticket for job in self._turns.jobs() for ticket, _ in job.owners}
        gone = {ticket for ticket in tickets if not ticket.done and not ticket.alive()}
        for ticket in gone:
            self._refuse(ticket, ClientGone())

    def _refuse(self, ticket: Ticket, error: BaseException) -> None:
        """Ends a ticket with an error; jobs that nobody else owns leave the lane."""
        ticket.error = error
        for job in list(self._turns.jobs()):
            job.owners = [(owner, index) for owner, index in job.owners if owner is not ticket]
            if not job.owners:
                self._turns.drop(job)
        for turn in list(self._turns.begun):
            if not any(job.owners for job in turn.jobs):
                self._turns.end(turn)
        standing = set(self._turns.jobs())
        self._flying = {key: job for key, job in self._flying.items() if job in standing}
        if not ticket.leads:
            self._call(ticket)

    def _fail(self, turn: Turn, error: BaseException) -> None:
        """A step raised: everybody fails when the device is lost, else those whose rows ran."""
        lost = isinstance(error, DeviceFailed)
        with self._lock:
            jobs = list(self._turns.jobs()) if lost else turn.jobs
            for ticket in {ticket for job in jobs for ticket, _ in job.owners}:
                failure = DeviceFailed() if lost else RuntimeError("the pass failed")
                failure.__cause__ = error
                self._refuse(ticket, failure)
            if turn in self._turns.begun:
                self._turns.end(turn)
            if lost:
                self.failed = str(error.__cause__ or error)
        if lost:
            self._on_failure(self.failed or "")
