"""One decision as a function of values: a loaded model, states and questions in; answers and usage out.

It knows the order of the work: rows, lane, answers. It must not know JSON bytes, HTTP or settings; whatever
decides (the HTTP server, a batch command) calls this.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
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
    """How a question is read, whatever the state: one head, or a head for each part of its options."""

    question: Question
    texts: tuple[str, ...]
    heads: tuple[Head, ...]
    places: tuple[range, ...]


@dataclass(slots=True)
class Reading:
    """One state on its way: its ids, and by question the rows that were run and their logits."""

    state: State
    rows: list[list[Row]]
    logits: list[list[Logits]]
    costs: list[usage.Cost]


def plan(reader: Reader, question: Question, manner: Manner) -> Plan:
    """The heads of a question. A choice whose options one row cannot hold distinctly is read in parts.

    So is one that would be cut where cuts are refused. Laya's own server reads every choice in one row; its wire
    keeps that.
    """

    def lacks(part: Head) -> bool:
        cut = bool(part.options_cut or part.instructions_dropped)
        return not fits(reader, part) or bool(part.alike) or (manner.refuse and cut)

    texts = tuple(option_texts(question))
    whole = head(reader, question, texts)
    if manner.wire == "laya" or question.type != "choice":
        return Plan(question, texts, (whole,), (range(len(texts)),))
    count = 1
    heads: tuple[Head, ...] = (whole,)
    places: tuple[range, ...] = (range(len(texts)),)
    while count * 4 <= len(texts) and any(map(lacks, heads)):
        count *= 2
        places = tuple(groups.parts(len(texts), count))
        heads = tuple(head(reader, question, [texts[i] for i in place]) for place in places)
    return Plan(question, texts, heads, places)


def decide_each(
    model: Model,
    lane: Lane,
    states: Sequence[Any],
    questions: Sequence[Question],
    manner: Manner,
    alive: Callable[[], bool],
) -> list[Decision | Refused]:
    """The same questions about each state, in order; a state that cannot be decided has its Refused.

    All states' rows go to the lane together, so that they may share passes. Raises what the lane raises, and
    Refused where no state could be decided (a question that does not fit the model).
    """
    began = time.perf_counter()
    plans = [plan(model.reader, question, manner) for question in questions]
    outcomes: list[Reading | Refused] = []
    for state in states:
        try:
            outcomes.append(_read(model.reader, plans, read_state(model.reader, state), manner))
        except Refused as refused:
            outcomes.append(refused)
    readings = [outcome for outcome in outcomes if isinstance(outcome, Reading)]
    tokenize_s = time.perf_counter() - began

    ran = lane.run(model.engine, [r for reading in readings for rows in reading.rows for r in rows], alive)
    queue_s, forward_s = ran.queue_s, ran.forward_s
    found = iter(ran.logits)
    for reading in readings:
        reading.logits = [[next(found) for _ in rows] for rows in reading.rows]
    finals = [(reading, i) for reading in readings for i, p in enumerate(plans) if len(p.heads) > 1]
    if finals:
        rows = [_final(model.reader, plans[i], reading, i) for reading, i in finals]
        ran = lane.run(model.engine, rows, alive)
        queue_s, forward_s = queue_s + ran.queue_s, forward_s + ran.forward_s
        for (reading, i), last in zip(finals, ran.logits, strict=True):
            options = groups.merged([logits.options for logits in reading.logits[i]], last.options)
            reading.logits[i] = [Logits(options, last.actions)]

    def finished(reading: Reading) -> Decision | Refused:
        try:
            given = _answers(model, plans, reading, manner)
        except Refused as refused:
            return refused
        count = usage.laya if manner.wire == "laya" else usage.jev
        return Decision(
            given, count(len(reading.state.token_ids), reading.costs), tokenize_s, queue_s, forward_s
        )

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
    (outcome,) = decide_each(model, lane, [state], questions, manner, alive)
    if isinstance(outcome, Refused):
        raise outcome
    return outcome


def _read(reader: Reader, plans: Iterable[Plan], state: State, manner: Manner) -> Reading:
    reading = Reading(state, [], [], [])
    for p in plans:
        built = [row(reader, part, state, p.question.id) for part in p.heads]
        rows = [made for made, _ in built]
        used = min(kept for _, kept in built)
        cost = usage.Cost(p.question, sum(len(r.token_ids) for r in rows), used, p.heads, len(p.heads))
        if manner.refuse and (words_ := usage.lost(cost, len(state.token_ids))):
            raise TooManyTokens(f"Question '{words(p.question.id, 100)}', {words_}.")
        reading.rows.append(rows)
        reading.costs.append(cost)
    return reading


def _final(reader: Reader, p: Plan, reading: Reading, i: int) -> Row:
    """The row of a parted question's winners; its tokens are counted."""
    best = groups.winners(p.places, [logits.options for logits in reading.logits[i]])
    made, _ = row(reader, head(reader, p.question, [p.texts[j] for j in best]), reading.state, p.question.id)
    cost = reading.costs[i]
    reading.costs[i] = usage.Cost(
        cost.question, cost.tokens + len(made.token_ids), cost.state_tokens_used, cost.heads, cost.parts
    )
    return made


def _answers(
    model: Model, plans: Sequence[Plan], reading: Reading, manner: Manner
) -> dict[str, dict[str, Any]]:
    given = {
        p.question.id: answers.answer(p.question, logits[0], model.temperatures, manner.wire)
        for p, logits in zip(plans, reading.logits, strict=True)
    }
    answers.check([p.question for p in plans], given)
    return given
