"""One decision as a function of values: a loaded model, states and questions in; answers and usage out.

It knows the order of the work: rows, lane, answers. It must not know JSON bytes, HTTP or settings; whatever
decides (the HTTP server, a batch command) calls this.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from worker import answers, groups, usage
from worker.errors import Refused, TooManyTokens, words
from worker.lane import Lane
from worker.protocol import Question
from worker.rows import Head, Logits, Reader, Row, State, fits, head, option_texts, read_state, row
from worker.turns import Runs


@dataclass(frozen=True, slots=True)
class Model:
    """A model that is ready to decide. `identity` names what runs: checkpoint and revision."""

    name: str
    identity: str
    reader: Reader
    temperatures: answers.Temperatures
    engine: Runs


@dataclass(frozen=True, slots=True)
class Manner:
    """How to decide. `wire`: jev or laya. `refuse`: text that the model cannot see is refused, not cut."""

    wire: str = "jev"
    refuse: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """The answers by question id, the usage, and the seconds spent: tokenizing, waiting, on the device."""

    answers: dict[str, dict[str, Any]]
    usage: dict[str, Any]
    tokenize_s: float
    queue_s: float
    forward_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    """How a question is read, whatever the state: one head, or a head for each part of its options.

    `places`: for each head, which of the question's options it reads.
    """

    question: Question
    heads: tuple[Head, ...]
    places: tuple[Sequence[int], ...]


@dataclass(slots=True)
class Round:
    """The rows of a plan about one state, their cost, and their logits once they have run."""

    plan: Plan
    rows: list[Row]
    cost: usage.Cost
    logits: list[Logits] = field(default_factory=list)

    def winners(self) -> list[int]:
        """The question's option that each of the rows prefers."""
        return groups.winners(self.plan.places, [logits.options for logits in self.logits])


@dataclass(slots=True)
class Reading:
    """One state on its way, with each question's rounds: its options, then the winners of the round before."""

    state: State
    rounds: list[list[Round]]


def plan(reader: Reader, question: Question, manner: Manner, among: Sequence[int] | None = None) -> Plan:
    """The heads of a question, or of the options `among` its own.

    A choice whose options one row cannot hold distinctly is read in parts. So is one that would be cut where
    cuts are refused. Laya's own server reads every choice in one row; its wire keeps that.
    """

    def lacks(part: Head) -> bool:
        cut = bool(part.options_cut or part.instructions_dropped)
        # Options that are alike although they share no budget stay alike in a row of fewer.
        collapsed = bool(part.alike) and part.per_option is not None
        return not fits(reader, part) or collapsed or (manner.refuse and cut)

    texts = option_texts(question)
    options: Sequence[int] = range(len(texts)) if among is None else among
    count = 1
    places: tuple[Sequence[int], ...] = (options,)
    heads: tuple[Head, ...] = (head(reader, question, [texts[i] for i in options]),)
    if manner.wire == "laya" or question.type != "choice":
        return Plan(question, heads, places)
    while count * 4 <= len(options) and any(map(lacks, heads)):
        count *= 2
        places = tuple([options[i] for i in part] for part in groups.parts(len(options), count))
        heads = tuple(head(reader, question, [texts[i] for i in place]) for place in places)
    return Plan(question, heads, places)


def decide_each(
    model: Model,
    lane: Lane,
    states: Sequence[Any],
    plans: Sequence[Plan],
    manner: Manner,
    alive: Callable[[], bool],
) -> list[Decision | Refused]:
    """The questions of `plans` about each state, in order; a state that cannot be decided has its Refused.

    All states' rows go to the lane together, so that they may share passes. Raises what the lane raises.
    """
    began = time.perf_counter()
    queue_s = forward_s = lane_s = 0.0
    outcomes = [_first(model.reader, state, plans, manner) for state in states]
    while rounds := [r for reading in outcomes if isinstance(reading, Reading) for r in _open(reading)]:
        sent = time.perf_counter()
        ran = lane.run(model.engine, [row for r in rounds for row in r.rows], alive)
        lane_s += time.perf_counter() - sent
        queue_s, forward_s = queue_s + ran.queue_s, forward_s + ran.forward_s
        found = iter(ran.logits)
        for r in rounds:
            r.logits = [next(found) for _ in r.rows]
        outcomes = [
            _next(model.reader, reading, manner) if isinstance(reading, Reading) else reading
            for reading in outcomes
        ]
    tokenize_s = time.perf_counter() - began - lane_s

    def finished(reading: Reading) -> Decision | Refused:
        try:
            given = _answers(model, reading, manner)
        except Refused as refused:
            return refused
        costs = [usage.summed([r.cost for r in rounds]) for rounds in reading.rounds]
        count = usage.laya if manner.wire == "laya" else usage.jev
        return Decision(given, count(len(reading.state.token_ids), costs), tokenize_s, queue_s, forward_s)

    return [finished(outcome) if isinstance(outcome, Reading) else outcome for outcome in outcomes]


def decide(
    model: Model,
    lane: Lane,
    state: Any,
    questions: Sequence[Question],
    manner: Manner,
    alive: Callable[[], bool],
) -> Decision:
    """The questions about one state. Raises Refused (TooManyTokens, AnswerWrong) and what the lane raises."""
    began = time.perf_counter()
    plans = [plan(model.reader, question, manner) for question in questions]
    planned_s = time.perf_counter() - began
    (outcome,) = decide_each(model, lane, [state], plans, manner, alive)
    if isinstance(outcome, Refused):
        raise outcome
    return replace(outcome, tokenize_s=planned_s + outcome.tokenize_s)


def _first(reader: Reader, state: Any, plans: Sequence[Plan], manner: Manner) -> Reading | Refused:
    try:
        read = read_state(reader, state)
        return Reading(read, [[_round(reader, each, read, manner)] for each in plans])
    except Refused as refused:
        return refused


def _open(reading: Reading) -> list[Round]:
    return [rounds[-1] for rounds in reading.rounds if not rounds[-1].logits]


def _next(reader: Reader, reading: Reading, manner: Manner) -> Reading | Refused:
    """The reading with a round of winners for each question whose last one had several rows.

    A plan has at most a quarter as many heads as options, so the rounds come to an end.
    """
    try:
        for rounds in reading.rounds:
            last = rounds[-1]
            if len(last.rows) > 1:
                among = plan(reader, last.plan.question, manner, last.winners())
                rounds.append(_round(reader, among, reading.state, manner))
    except Refused as refused:
        return refused
    return reading


def _round(reader: Reader, each: Plan, state: State, manner: Manner) -> Round:
    """The rows of a plan; raises TooManyTokens."""
    question = each.question
    built = [row(reader, part, state, question.id) for part in each.heads]
    rows = [made for made, _ in built]
    cost = usage.Cost(
        question=question,
        tokens=sum(len(made.token_ids) for made in rows),
        state_tokens_used=min(kept for _, kept in built),
        heads=each.heads,
        places=each.places,
        parts=len(rows),
    )
    if manner.refuse and (lost := usage.lost(cost, len(state.token_ids))):
        raise TooManyTokens(f"Question '{words(question.id, 100)}', {lost}.")
    return Round(each, rows, cost)


def _logits(rounds: Sequence[Round]) -> Logits:
    """One logit for every option of a question, from all of its rounds."""
    (last,) = rounds[-1].logits
    options = last.options
    for parted in reversed(rounds[:-1]):
        options = groups.merged([logits.options for logits in parted.logits], options)
    return Logits(options, last.actions)


def _answers(model: Model, reading: Reading, manner: Manner) -> dict[str, dict[str, Any]]:
    questions = [rounds[0].plan.question for rounds in reading.rounds]
    given = {
        question.id: answers.answer(question, _logits(rounds), model.temperatures, manner.wire)
        for question, rounds in zip(questions, reading.rounds, strict=True)
    }
    answers.check(questions, given)
    return given
