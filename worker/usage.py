"""What a request cost, and what of it the model could not see, in both wires' forms.

It knows token counts and the names of what was cut. It must not know probabilities or HTTP.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from worker.protocol import Question
from worker.rows import Head


@dataclass(frozen=True, slots=True)
class Cost:
    """One question's part: its rows' tokens, and what they held of its text and of the state.

    `heads`: those of its rows. `places`: for each of them, which of the question's options it reads. `parts`:
    how many rows share the options out, 1 for one pass.
    """

    question: Question
    tokens: int
    state_tokens_used: int
    heads: tuple[Head, ...]
    places: tuple[Sequence[int], ...]
    parts: int

    @property
    def instructions_dropped(self) -> int:
        """The tokens of the instructions that one row or another lacks."""
        return max(head.instructions_dropped for head in self.heads)

    @property
    def options_cut(self) -> list[str]:
        """Names of the options that lost tokens in one row or another."""
        return self._names(
            {place[i] for head, place in zip(self.heads, self.places, strict=True) for i in head.options_cut}
        )

    @property
    def alike(self) -> list[list[str]]:
        """Names of options that the model could not tell apart, in groups."""
        found: list[set[int]] = []
        for head, place in zip(self.heads, self.places, strict=True):
            for same in head.alike:
                # An option that two rows read may join groups of both.
                group = {place[i] for i in same}
                joined = [other for other in found if other & group]
                found = [other for other in found if not other & group] + [group.union(*joined)]
        return [self._names(group) for group in sorted(found, key=min)]

    def _names(self, options: set[int]) -> list[str]:
        return [self.question.names[i] for i in sorted(options)]


def summed(costs: Sequence[Cost]) -> Cost:
    """The cost of a question whose rows ran in several rounds, the first of which read every option."""
    return Cost(
        costs[0].question,
        sum(cost.tokens for cost in costs),
        min(cost.state_tokens_used for cost in costs),
        tuple(head for cost in costs for head in cost.heads),
        tuple(place for cost in costs for place in cost.places),
        costs[0].parts,
    )


def lost(cost: Cost, state_tokens: int) -> str | None:
    """The first thing of a question that the model would not see, in words; None if it sees everything."""
    if cost.instructions_dropped:
        return f"instructions: {cost.instructions_dropped} tokens over the model's budget"
    if cost.options_cut:
        return "criteria: descriptions over the model's budget"
    if cost.alike:
        return "criteria: options that are the same to the model"
    if cost.state_tokens_used < state_tokens:
        return (
            f"state: {state_tokens - cost.state_tokens_used} of {state_tokens} tokens over the model's budget"
        )
    return None


def jev(state_tokens: int, costs: Sequence[Cost]) -> dict[str, Any]:
    """The contract's usage. Additions have names in x_: the worst over the questions, and which they are."""
    used = min(cost.state_tokens_used for cost in costs)
    usage: dict[str, Any] = {
        "input_tokens": sum(cost.tokens for cost in costs),
        "output_tokens": 0,
        "x_state_tokens_used": used,
        "x_state_tokens_dropped": state_tokens - used,
        "x_truncated_questions": _truncated(state_tokens, costs),
    }
    for name, found in (
        ("x_instruction_tokens_dropped", {cost.question.id: cost.instructions_dropped for cost in costs}),
        ("x_shortened_options", {cost.question.id: cost.options_cut for cost in costs}),
        ("x_indistinguishable_options", {cost.question.id: cost.alike for cost in costs}),
        ("x_option_parts", {cost.question.id: cost.parts for cost in costs if cost.parts > 1}),
    ):
        if told := {id: value for id, value in found.items() if value}:
            usage[name] = told
    return usage


def laya(state_tokens: int, costs: Sequence[Cost]) -> dict[str, Any]:
    """The usage that laya-serve reports."""
    dropped = state_tokens - min(cost.state_tokens_used for cost in costs)
    usage: dict[str, Any] = {
        "input_tokens": sum(cost.tokens for cost in costs),
        "output_tokens": 0,
        "state_tokens": state_tokens,
        "state_tokens_dropped": dropped,
        "truncated": dropped > 0,
        "truncated_questions": _truncated(state_tokens, costs),
    }
    heads = {cost.question.id: cost.heads[0] for cost in costs}
    collapsed = {
        id: {"total": len(head.markers), "distinct": head.distinct, "tokens_per_option": head.per_option}
        for id, head in heads.items()
        if head.distinct < len(head.markers)
    }
    return usage | ({"options": collapsed} if collapsed else {})


def _truncated(state_tokens: int, costs: Sequence[Cost]) -> list[str]:
    return [cost.question.id for cost in costs if cost.state_tokens_used < state_tokens]
