"""The lane with threads: who shares a pass, what is computed once, and what happens when things fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from worker.buckets import Buckets
from worker.errors import ClientGone, DeviceFailed
from worker.lane import Lane, LaneResult, Snapshot
from worker.rows import Logits, Row

pytestmark = pytest.mark.once

BOUND_S = 30
STEPS = 4


def row(tokens: int, seed: int = 0) -> Row:
    return Row((seed, *range(1, tokens)), (1,), 0)


class Gated:
    """A small engine whose steps a test lets through one by one, or all at once."""

    def __init__(self, open_at_start: bool = False) -> None:
        self.key: tuple[str, ...] = ("gated",)
        self.buckets = Buckets(lengths=(8, 64), max_tokens=64)
        self.passes: list[list[Row]] = []
        self.finished: list[int] = []
        self.stepping = threading.Semaphore(0)
        self._permits = threading.Semaphore(0)
        self._open = open_at_start
        self.broken: BaseException | None = None

    def start(self, rows: Sequence[Row]) -> GatedPass:
        self.passes.append(list(rows))
        return GatedPass(self, rows)

    def wait_for_step(self) -> None:
        """Until some thread is inside a step."""
        assert self.stepping.acquire(timeout=BOUND_S)

    def allow(self, steps: int = 1) -> None:
        for _ in range(steps):
            self._permits.release()

    def open(self) -> None:
        self._open = True
        self.allow(STEPS * 50)

    def pause(self) -> None:
        self.stepping.release()
        if not self._open:
            assert self._permits.acquire(timeout=BOUND_S)
        if self.broken is not None:
            raise self.broken


class GatedPass:
    def __init__(self, engine: Gated, rows: Sequence[Row]) -> None:
        self.engine, self.rows, self.steps_left = engine, rows, STEPS

    def step(self) -> None:
        self.engine.pause()
        self.steps_left -= 1
        if not self.steps_left:
            self.engine.finished.append(len(self.rows[0].token_ids))

    def logits(self) -> list[Logits]:
        return [Logits((float(row.token_ids[0]),), (float(len(row.token_ids)),)) for row in self.rows]


class Call(threading.Thread):
    """A request in a thread of its own; `get` gives what it returned or raises what it raised."""

    def __init__(self, lane: Lane, engine: Any, *rows: Row, alive: Callable[[], bool] = lambda: True) -> None:
        super().__init__()
        self._work = lambda: lane.run(engine, rows, alive)
        self._ran: LaneResult | None = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._ran = self._work()
        except BaseException as error:
            self._error = error

    def get(self) -> LaneResult:
        self.join(BOUND_S)
        assert not self.is_alive(), "the request never came back"
        if self._error is not None:
            raise self._error
        assert self._ran is not None
        return self._ran


def until(condition: Callable[[], bool]) -> None:
    ended = threading.Event()
    for _ in range(BOUND_S * 200):
        if condition():
            return
        ended.wait(0.005)
    raise AssertionError("it never happened")


def test_logits_come_back_in_the_order_of_the_rows() -> None:
    rows = [row(9, 5), row(3, 6), row(9, 7), row(3, 6)]
    ran = Lane().run(Gated(open_at_start=True), rows)
    assert [logits.options[0] for logits in ran.logits] == [5, 6, 7, 6]


def test_the_seconds_of_a_request_are_those_that_it_waited_and_those_that_it_ran() -> None:
    lane, engine, began = Lane(), Gated(), time.monotonic()
    running = Call(lane, engine, row(60, 1))
    engine.wait_for_step()
    waiting = Call(lane, engine, row(60, 2))
    until(lambda: lane.snapshot().waiting_rows == 1)
    held = time.monotonic()
    threading.Event().wait(0.05)
    held = time.monotonic() - held
    engine.open()
    first, second = running.get(), waiting.get()
    elapsed = time.monotonic() - began
    assert first.forward_s >= held
    assert second.queue_s >= held
    for result in (first, second):
        assert 0 <= result.queue_s <= elapsed - result.forward_s
        assert result.forward_s > 0


def test_no_rows_need_no_device() -> None:
    assert Lane().run(Gated(), []).logits == []


def test_rows_that_wait_together_share_a_pass() -> None:
    lane, engine = Lane(), Gated()
    first = Call(lane, engine, row(8, 1))
    engine.wait_for_step()
    others = [Call(lane, engine, row(8, seed)) for seed in range(2, 6)]
    until(lambda: lane.snapshot().waiting_rows == 4)
    engine.open()
    assert first.get().logits[0].options == (1.0,)
    assert [call.get().logits[0].options[0] for call in others] == [2, 3, 4, 5]
    assert [len(rows) for rows in engine.passes] == [1, 4]


def test_a_short_row_overtakes_between_two_steps_and_its_caller_need_not_wait() -> None:
    lane, engine = Lane(), Gated()
    long = Call(lane, engine, row(60))
    engine.wait_for_step()
    short = Call(lane, engine, row(4))
    until(lambda: lane.snapshot().waiting_rows == 1)
    engine.allow(1 + STEPS)
    short.get()
    assert engine.finished == [4]
    engine.open()
    long.get()
    assert engine.finished == [4, 60]


@pytest.mark.parametrize(("patience", "second"), [(0.0, 40), (3600.0, 5)])
def test_a_row_that_waited_for_its_patience_starts_before_shorter_ones(patience: float, second: int) -> None:
    lane, engine = Lane(patience=patience), Gated()
    first = Call(lane, engine, row(4))
    engine.wait_for_step()
    calls = []
    for waiting, tokens in enumerate((40, 5), start=1):
        calls.append(Call(lane, engine, row(tokens, seed=7)))
        until(lambda waiting=waiting: lane.snapshot().waiting_rows == waiting)  # type: ignore[misc]
    engine.open()
    for call in (first, *calls):
        call.get()
    assert len(engine.passes[1][0].token_ids) == second


def test_a_short_caller_that_leads_hands_a_long_pass_on() -> None:
    """The thread of a short request may carry a long pass; it leaves it to the long request when it is done."""
    lane, engine = Lane(), Gated()
    short = Call(lane, engine, row(4))
    engine.wait_for_step()
    long = Call(lane, engine, row(60))
    until(lambda: lane.snapshot().waiting_rows == 1)
    engine.allow(STEPS)
    short.get()
    engine.open()
    long.get()
    assert engine.finished == [4, 60]


def test_equal_rows_in_flight_are_computed_once() -> None:
    lane, engine = Lane(cache_rows=0), Gated()
    first = Call(lane, engine, row(8, 1))
    engine.wait_for_step()
    again = [Call(lane, engine, row(8, 1)) for _ in range(3)]
    until(lambda: lane.snapshot().requests == 4)
    engine.open()
    assert {call.get().logits[0] for call in (first, *again)} == {Logits((1.0,), (8.0,))}
    assert len(engine.passes) == 1


def test_the_cache_serves_repeats_and_stays_bounded() -> None:
    lane, engine = Lane(cache_rows=2), Gated(open_at_start=True)
    for seed in (1, 2, 1, 3, 1, 2):
        assert lane.run(engine, [row(8, seed)]).logits[0].options == (float(seed),)
    assert [rows[0].token_ids[0] for rows in engine.passes] == [1, 2, 3, 2]


def test_the_cache_tells_rows_apart_by_all_that_they_are() -> None:
    lane, engine = Lane(), Gated(open_at_start=True)
    base = Row((1, 2, 3, 4), (1, 2), 0)
    others = [Row((1, 2, 3, 4), (1, 3), 0), Row((1, 2, 3, 4), (1, 2), 1), Row((2, 3, 4), (1, 2), 0)]
    other_model = Gated(open_at_start=True)
    other_model.key = ("another",)
    for one in (base, *others):
        lane.run(engine, [one])
    lane.run(other_model, [base])
    assert len(engine.passes) == 4
    assert len(other_model.passes) == 1


def test_without_a_cache_everything_is_computed() -> None:
    lane, engine = Lane(cache_rows=0), Gated(open_at_start=True)
    for _ in range(2):
        lane.run(engine, [row(8)])
    assert len(engine.passes) == 2
    assert lane.snapshot().rows_in_flight == 0


def test_a_client_that_left_frees_its_thread_and_its_rows_never_run() -> None:
    lane, engine, gone = Lane(), Gated(), threading.Event()
    first = Call(lane, engine, row(60, 1))
    engine.wait_for_step()
    leaver = Call(lane, engine, row(60, 2), alive=lambda: not gone.is_set())
    until(lambda: lane.snapshot().waiting_rows == 1)
    gone.set()
    threading.Event().wait(0.15)  # longer than the lane's own interval between two looks
    engine.allow(1)
    with pytest.raises(ClientGone):
        leaver.get()
    engine.open()
    first.get()
    assert [rows[0].token_ids[0] for rows in engine.passes] == [1]


def test_a_pass_that_nobody_waits_for_any_more_is_given_up() -> None:
    lane, engine, gone = Lane(), Gated(), threading.Event()
    leaver = Call(lane, engine, row(60, 1), alive=lambda: not gone.is_set())
    engine.wait_for_step()
    gone.set()
    threading.Event().wait(0.15)
    engine.allow(1)
    with pytest.raises(ClientGone):
        leaver.get()
    assert engine.finished == []
    engine.open()
    assert lane.run(engine, [row(60, 1)]).logits[0].options == (1.0,)


def test_a_row_that_two_wait_for_survives_the_one_that_leaves() -> None:
    lane, engine, gone = Lane(), Gated(), threading.Event()
    leaver = Call(lane, engine, row(60, 1), alive=lambda: not gone.is_set())
    engine.wait_for_step()
    stayer = Call(lane, engine, row(60, 1))
    until(lambda: lane.snapshot().requests == 2)
    gone.set()
    threading.Event().wait(0.15)
    engine.open()
    with pytest.raises(ClientGone):
        leaver.get()
    assert stayer.get().logits[0].options == (1.0,)
    assert len(engine.passes) == 1


def test_a_pass_that_raises_fails_its_own_requests_and_no_others() -> None:
    lane, engine = Lane(), Gated()
    first = Call(lane, engine, row(8, 1))
    engine.wait_for_step()
    other = Call(lane, engine, row(60, 2))
    until(lambda: lane.snapshot().waiting_rows == 1)
    engine.broken = ValueError("a row that cannot be computed")
    engine.allow(1)
    with pytest.raises(RuntimeError, match="the pass failed") as caught:
        first.get()
    assert caught.value.__cause__ is engine.broken
    with pytest.raises(RuntimeError):
        engine.allow(1)
        other.get()
    engine.broken = None
    engine.open()
    assert lane.run(engine, [row(8, 1)]).logits[0].options == (1.0,)
    assert lane.failure is None


def test_a_lost_device_fails_everybody_once_and_for_good() -> None:
    reasons: list[str] = []
    lane, engine = Lane(on_failure=reasons.append), Gated()
    calls = [Call(lane, engine, row(8, 1))]
    engine.wait_for_step()
    calls += [Call(lane, engine, row(60, seed)) for seed in (2, 3)]
    until(lambda: lane.snapshot().waiting_rows == 2)
    engine.broken = DeviceFailed("an illegal address")
    engine.allow(1)
    for call in calls:
        with pytest.raises(DeviceFailed):
            call.get()
    assert len(reasons) == 1
    assert lane.failure is not None
    with pytest.raises(DeviceFailed):
        lane.run(engine, [row(8, 9)])
    assert len(engine.passes) == 1


def test_many_threads_many_rows_every_answer_is_its_own() -> None:
    lane, engine = Lane(cache_rows=10), Gated(open_at_start=True)
    wrong: list[Any] = []

    def ask(start: int) -> None:
        for seed in range(start, start + 60):
            rows = [row(3 + seed % 50, seed), row(3, seed % 7)]
            ran = lane.run(engine, rows)
            if [(logits.options[0], logits.actions[0]) for logits in ran.logits] != [
                (one.token_ids[0], len(one.token_ids)) for one in rows
            ]:
                wrong.append(rows)

    threads = [threading.Thread(target=ask, args=(start * 20,)) for start in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND_S)
        assert not thread.is_alive()
    assert not wrong
    assert lane.snapshot() == Snapshot(0, 0, 0, led=False, cached_rows=10)
