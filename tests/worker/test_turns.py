"""The order of passes, in simulated time: who waits how long, and that nobody starves."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from worker.buckets import Buckets
from worker.rows import Logits, Row
from worker.turns import Job, Turn, Turns

pytestmark = pytest.mark.once

STEPS = 24
# Seconds of one pass on two cores for a short and a long row of the base-size model, as laya-serve has them.
SHORT, LONG = 48, 400
SECONDS = {SHORT: 0.184, LONG: 1.084}


class Device:
    """An engine whose passes take time and compute nothing."""

    key = ("device",)
    buckets = Buckets(max_tokens=256)

    def start(self, rows: Sequence[Row]) -> Work:
        return Work(rows)


@dataclass
class Work:
    rows: Sequence[Row]
    steps_left: int = STEPS

    @property
    def step_s(self) -> float:
        return sum(SECONDS[len(row.token_ids)] for row in self.rows) / STEPS

    def step(self) -> None:
        self.steps_left -= 1

    def logits(self) -> list[Logits]:
        return [Logits((0.0,), (0.0,)) for _ in self.rows]


DEVICE = Device()


def job(tokens: int, since: float = 0.0) -> Job:
    return Job(object(), DEVICE, Row((1,) * tokens, (1,), 0), since)


@dataclass
class Simulation:
    """Requests of one row each: `arrivals` (second, tokens); `again` says when its caller comes back."""

    turns: Turns
    arrivals: list[tuple[float, int]]
    again: Callable[[float, int], float | None] = lambda now, tokens: None
    waits: dict[int, list[float]] = field(default_factory=lambda: {SHORT: [], LONG: []})

    def run(self, until: float) -> Simulation:
        now, arrivals = 0.0, sorted(self.arrivals)
        while now < until:
            while arrivals and arrivals[0][0] <= now:
                since, tokens = arrivals.pop(0)
                self.turns.add(job(tokens, since))
            turn = self.turns.next(now)
            if turn is None:
                if not arrivals:
                    break
                now = arrivals[0][0]
                continue
            work = turn.device_pass = turn.device_pass or DEVICE.start([one.row for one in turn.jobs])
            work.step()
            now += work.step_s
            turn.fraction_left = work.steps_left / STEPS
            if not work.steps_left:
                self.turns.end(turn)
                for one in turn.jobs:
                    self.waits[one.tokens].append(now - one.queued_at)
                    back = self.again(now, one.tokens)
                    if back is not None:
                        arrivals.append((back, one.tokens))
                        arrivals.sort()
        return self


def p99(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


def poisson(rate: float, until: float, tokens: int, chance: random.Random) -> list[tuple[float, int]]:
    now, arrivals = 0.0, []
    while (now := now + chance.expovariate(rate)) < until:
        arrivals.append((now, tokens))
    return arrivals


def test_shortest_first_and_equal_lengths_share_a_pass() -> None:
    turns = Turns()
    for tokens in (LONG, SHORT, SHORT):
        turns.add(job(tokens))
    turn = turns.next(0.0)
    assert turn is not None
    assert [one.tokens for one in turn.jobs] == [SHORT, SHORT]
    turns.end(turn)
    last = turns.next(0.0)
    assert last is not None
    assert last.longest == LONG
    turns.end(last)
    assert turns.next(0.0) is None


def test_a_pass_has_no_more_tokens_than_pay() -> None:
    turns = Turns()
    for _ in range(9):
        turns.add(job(SHORT))
    turn = turns.next(0.0)
    assert turn is not None
    assert len(turn.jobs) == 256 // SHORT
    assert len(turns) == 9 - len(turn.jobs)


def test_a_row_that_waited_too_long_starts_first() -> None:
    turns = Turns(patience=1.0)
    turns.add(job(LONG, since=0.0))
    turns.add(job(SHORT, since=0.9))
    turn = turns.next(1.0)
    assert turn is not None
    assert turn.longest == LONG


def begun_long(turns: Turns) -> Turn:
    turns.add(job(LONG))
    turn = turns.next(0.0)
    assert turn is not None
    return turn


def test_shorter_rows_overtake_within_their_share() -> None:
    turns = Turns(overtaking=0.5)
    long = begun_long(turns)
    for _ in range(9):
        turns.add(job(SHORT))
    first = turns.next(0.1)
    assert first is not None
    assert first.tokens == 5 * SHORT, "a whole batch, though only a quarter of 400 may go by at once"
    turns.end(first)
    assert turns.next(0.3) is long
    long.fraction_left = 0.6
    assert turns.next(0.4) is long, "240 went by, and its steps have brought no more than 220"
    long.fraction_left = 0.5
    last = turns.next(0.6)
    assert last is not None
    assert last.tokens == 4 * SHORT


def test_what_overtakes_twice_counts_for_both_that_it_overtook() -> None:
    turns = Turns(overtaking=0.5)
    long = begun_long(turns)
    turns.add(job(200))
    middle = turns.next(0.0)
    assert middle is not None and middle.longest == 200
    turns.add(job(SHORT))
    assert turns.next(0.0) is middle, "the long row lets nothing more by yet"
    long.fraction_left = 0.5
    short = turns.next(0.0)
    assert short is not None and short.longest == SHORT
    assert (long.overtaken_tokens, middle.overtaken_tokens) == (200 + SHORT, SHORT)


def test_a_row_that_waited_too_long_overtakes_before_shorter_ones_if_it_may() -> None:
    turns = Turns(overtaking=0.5, patience=1.0)
    begun_long(turns)
    for tokens, since in ((150, 0.0), (SHORT, 0.9)):
        turns.add(job(tokens, since))
    turn = turns.next(1.0)
    assert turn is not None
    assert turn.longest == 150


def test_a_row_that_waited_too_long_and_may_not_overtake_holds_up_no_shorter_one() -> None:
    turns = Turns(overtaking=0.5, patience=1.0)
    begun_long(turns).fraction_left = 0.5
    for tokens, since in ((300, 0.0), (SHORT, 0.9)):
        turns.add(job(tokens, since))
    turn = turns.next(1.0)
    assert turn is not None
    assert turn.longest == SHORT


def test_nothing_overtakes_when_the_share_is_none() -> None:
    turns = Turns(overtaking=0.0)
    long = begun_long(turns)
    turns.add(job(SHORT))
    assert turns.next(0.0) is long


def test_nothing_overtakes_a_pass_that_is_almost_done() -> None:
    turns = Turns()
    long = begun_long(turns)
    long.fraction_left = 0.1
    turns.add(job(SHORT))
    assert turns.next(0.0) is long


def test_no_more_overtake_than_is_left_of_the_pass() -> None:
    """However many wait: those that are less work than what is left go by, and the others wait for it."""
    turns = Turns()
    begun_long(turns).fraction_left = 0.3
    for _ in range(5):
        turns.add(job(SHORT))
    turn = turns.next(0.0)
    assert turn is not None
    assert turn.tokens == 2 * SHORT


def test_equal_lengths_do_not_overtake() -> None:
    turns = Turns()
    long = begun_long(turns)
    turns.add(job(LONG))
    assert turns.next(0.0) is long


def test_a_job_that_nobody_wants_leaves_the_queue() -> None:
    turns = Turns()
    unwanted = job(SHORT)
    turns.add(unwanted)
    turns.drop(unwanted)
    turns.drop(unwanted)
    assert turns.next(0.0) is None
    assert not list(turns.jobs())


@pytest.mark.parametrize("seed", range(3))
def test_poisson_arrivals_hold_short_rows_up_little(seed: int) -> None:
    """0.5 of the device asked for: the rates at which laya-serve holds short rows up 14 times their time alone."""
    chance = random.Random(seed)
    arrivals = poisson(1.4, 3000, SHORT, chance) + poisson(0.22, 3000, LONG, chance)
    fifo = Simulation(Turns(overtaking=0.0, patience=0.0), arrivals).run(1e9)
    ours = Simulation(Turns(), arrivals).run(1e9)
    assert len(ours.waits[SHORT]) == len(fifo.waits[SHORT])
    assert len(ours.waits[LONG]) == len(fifo.waits[LONG])
    assert p99(ours.waits[SHORT]) < 4 * SECONDS[SHORT]
    assert p99(ours.waits[LONG]) < 1.5 * p99(fifo.waits[LONG])
    assert p99(fifo.waits[SHORT]) > 10 * SECONDS[SHORT], "what first come first served does"


def test_callers_that_never_stop_starve_nobody() -> None:
    """Four short and four long callers that ask again at once; laya-serve: both p99 6.16 s."""
    again = Simulation(Turns(), [(0.0, SHORT), (0.0, LONG)] * 4, again=lambda now, tokens: now).run(600)
    assert p99(again.waits[SHORT]) < 0.35 * 6.16
    assert p99(again.waits[LONG]) < 1.8 * 6.16
    assert len(again.waits[SHORT]) + len(again.waits[LONG]) > 600 * 8 / 5.072
