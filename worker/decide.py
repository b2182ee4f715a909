"""One decision as a function of values: a loaded model, states and questions in; answers and usage out.

It knows the order of the work: rows, lane, answers. It must not know JSON bytes, HTTP or settings; whatever
decides (the HTTP server, a batch command) calls this.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from worker import answers, option_parts, usage
from worker.errors import Refused, TooManyTokens, words
from worker.lane import Lane
from worker.protocol import Question
from worker.rows import (
    Logits,
    Prompt,
    Row,
    TokenizedState,
    Tokenizer,
    build_row,
    fits,
    option_texts,
    tokenize_question,
    tokenize_state,
)
from worker.turns import RowEngine


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that is ready to decide. `identity` says what runs: name and revision."""

    name: str
    identity: str
    tokenizer: Tokenizer
    temperatures: answers.Temperatures
    engine: RowEngine


@dataclass(frozen=True, slots=True)
class Policy:
    """How to decide. `wire`: jev or laya. `refuse`: text that the model cannot see is refused, not cut."""

    wire: str = "jev"
    refuse: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """Answers by question id, usage, the rows that it took, and its seconds: tokenizing, waiting, on the device.

    A question is one row, or several where a choice is read in parts.
    """

    answers: dict[str, dict[str, Any]]
    usage: dict[str, Any]
    rows: int
    tokenize_s: float
    queue_s: float
    forward_s: float


# What became of one state.
Outcome = Decision | Refused


@dataclass(frozen=True, slots=True)
class Plan:
    """How a question is read, whatever the state: one prompt, or a prompt for each part of its options.

    `parts`: for each prompt, the indices of the question's options that it has.
    """

    question: Question
    prompts: tuple[Prompt, ...]
    parts: tuple[Sequence[int], ...]


@dataclass(slots=True)
class Round:
    """The rows of a plan about one state, their cost, and their logits once they have run."""

    plan: Plan
    rows: list[Row]
    cost: usage.Cost
    logits: list[Logits] = field(default_factory=list)

    def winners(self) -> list[int]:
        """The index of each row's top option."""
        return option_parts.winners(self.plan.parts, [logits.options for logits in self.logits])


@dataclass(slots=True)
class OpenState:
    """A state that is being decided, with each question's rounds: all options, then the winners of the round before."""

    state: TokenizedState
    rounds: list[list[Round]]


def plan_question(
    tokenizer: Tokenizer, question: Question, policy: Policy, among: Sequence[int] | None = None
) -> Plan:
    """The prompts of a question, or of those of its options that are in `among`.

    A choice whose options one row cannot tell apart is read in parts. So is one that would be cut where
    cuts are refused. laya-serve reads every choice in one row, and so does its wire here.
    """

    def lacks(prompt: Prompt) -> bool:
        cut = bool(prompt.options_cut or prompt.instruction_tokens_dropped)
        # Options that are the same at full length are the same in a row of fewer, too.
        collapsed = bool(prompt.indistinguishable) and prompt.tokens_per_option is not None
        return not fits(tokenizer, prompt) or collapsed or (policy.refuse and cut)

    texts = option_texts(question)
    options: Sequence[int] = range(len(texts)) if among is None else among
    count = 1
    parts: tuple[Sequence[int], ...] = (options,)
    prompts: tuple[Prompt, ...] = (tokenize_question(tokenizer, question, [texts[i] for i in options]),)
    if policy.wire == "laya" or question.type != "choice":
        return Plan(question, prompts, parts)
    while count * 4 <= len(options) and any(map(lacks, prompts)):
        count *= 2
        parts = tuple([options[i] for i in part] for part in option_parts.split(len(options), count))
        prompts = tuple(tokenize_question(tokenizer, question, [texts[i] for i in part]) for part in parts)
    return Plan(question, prompts, parts)


def decide_states(
    model: ServedModel,
    lane: Lane,
    states: Sequence[Any],
    plans: Sequence[Plan],
    policy: Policy,
    alive: Callable[[], bool],
) -> list[Outcome]:
    """The questions of `plans` about each state, in order; a state that cannot be decided has its Refused.

    All states' rows go to the lane together, so that they may share passes. Raises what the lane raises.
    """
    began = time.perf_counter()
    queue_s = forward_s = lane_s = 0.0
    opened = [_open(model.tokenizer, state, plans, policy) for state in states]
    while rounds := [r for each in opened if isinstance(each, OpenState) for r in _rounds_to_run(each)]:
        sent = time.perf_counter()
        result = lane.run(model.engine, [row for r in rounds for row in r.rows], alive)
        lane_s += time.perf_counter() - sent
        queue_s, forward_s = queue_s + result.queue_s, forward_s + result.forward_s
        logits = iter(result.logits)
        for r in rounds:
            r.logits = [next(logits) for _ in r.rows]
        opened = [
            _add_rounds(model.tokenizer, each, policy) if isinstance(each, OpenState) else each
            for each in opened
        ]
    tokenize_s = time.perf_counter() - began - lane_s

    def close(each: OpenState) -> Outcome:
        try:
            answered = _answers(model, each, policy)
        except Refused as refused:
            return refused
        costs = [usage.sum_costs([r.cost for r in rounds]) for rounds in each.rounds]
        count = usage.laya if policy.wire == "laya" else usage.jev
        used = count(len(each.state.token_ids), costs)
        rows = sum(len(r.rows) for rounds in each.rounds for r in rounds)
        return Decision(answered, used, rows, tokenize_s, queue_s, forward_s)

    return [close(each) if isinstance(each, OpenState) else each for each in opened]


def decide(
    model: ServedModel,
    lane: Lane,
    state: Any,
    questions: Sequence[Question],
    policy: Policy,
    alive: Callable[[], bool],
) -> Decision:
    """The questions about one state. Raises Refused (TooManyTokens, AnswerWrong) and what the lane raises."""
    began = time.perf_counter()
    plans = [plan_question(model.tokenizer, question, policy) for question in questions]
    planned_s = time.perf_counter() - began
    (outcome,) = decide_states(model, lane, [state], plans, policy, alive)
    if isinstance(outcome, Refused):
        raise outcome
    return replace(outcome, tokenize_s=planned_s + outcome.tokenize_s)


def _open(tokenizer: Tokenizer, state: Any, plans: Sequence[Plan], policy: Policy) -> OpenState | Refused:
    try:
        tokenized = tokenize_state(tokenizer, state)
        return OpenState(tokenized, [[_round(tokenizer, plan, tokenized, policy)] for plan in plans])
    except Refused as refused:
        return refused


def _rounds_to_run(opened: OpenState) -> list[Round]:
    return [rounds[-1] for rounds in opened.rounds if not rounds[-1].logits]


def _add_rounds(tokenizer: Tokenizer, opened: OpenState, policy: Policy) -> OpenState | Refused:
    """The state with a round of winners for each question whose last round had several rows.

    A plan has at most a quarter as many prompts as options, so the rounds come to an end.
    """
    try:
        for rounds in opened.rounds:
            last = rounds[-1]
            if len(last.rows) > 1:
                plan = plan_question(tokenizer, last.plan.question, policy, last.winners())
                rounds.append(_round(tokenizer, plan, opened.state, policy))
    except Refused as refused:
        return refused
    return opened


def _round(tokenizer: Tokenizer, plan: Plan, state: TokenizedState, policy: Policy) -> Round:
    """The rows of a plan; raises TooManyTokens."""
    question = plan.question
    built = [build_row(tokenizer, prompt, state, question.id) for prompt in plan.prompts]
    rows = [row for row, _ in built]
    cost = usage.Cost(
        question=question,
        tokens=sum(len(row.token_ids) for row in rows),
        state_tokens_used=min(used for _, used in built),
        prompts=plan.prompts,
        parts=plan.parts,
        part_count=len(rows),
    )
    if policy.refuse and (cut := usage.first_cut(cost, len(state.token_ids))):
        raise TooManyTokens(f"Question '{words(question.id, 100)}', {cut}.")
    return Round(plan, rows, cost)


def _merged_logits(rounds: Sequence[Round]) -> Logits:
    """One logit for every option of a question, from all of its rounds."""
    (last,) = rounds[-1].logits
    options = last.options
    for in_parts in reversed(rounds[:-1]):
        options = option_parts.merge([logits.options for logits in in_parts.logits], options)
    return Logits(options, last.actions)


def _answers(model: ServedModel, opened: OpenState, policy: Policy) -> dict[str, dict[str, Any]]:
    questions = [rounds[0].plan.question for rounds in opened.rounds]
    answered = {
        question.id: answers.answer(question, _merged_logits(rounds), model.temperatures, policy.wire)
        for question, rounds in zip(questions, opened.rounds, strict=True)
    }
    answers.check(questions, answered)
    return answered
