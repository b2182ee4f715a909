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
    """One question's part: its rows' tokens, its options' fate, and the state tokens that its rows held.

    `heads`: those of the rows that read its options. `parts`: how many rows these are, 1 for one pass.
    """

    question: Question
    tokens: int
    state_tokens_used: int
    heads: tuple[Head, ...]
    parts: int

    @property
    def alike(self) -> list[list[str]]:
        """Names of options that the model could not tell apart, in groups."""
        if self.parts > 1:
            return []
        return [[self.question.names[i] for i in same] for same in self.heads[0].alike]


def lost(cost: Cost, state_tokens: int) -> str | None:
    """The first thing of a question that the model would not see, in words; None if it sees everything."""
    head = cost.heads[0]
    if any(head.instructions_dropped for head in cost.heads):
        return f"instructions: {head.instructions_dropped} tokens over the model's budget"
    if any(head.options_cut for head in cost.heads):
        return "criteria: descriptions over the model's budget"
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
    shortened = {cost.question.id: n for cost in costs if (n := cost.heads[0].instructions_dropped)}
    cut = {
        cost.question.id: [cost.question.names[i] for i in cost.heads[0].options_cut]
        for cost in costs
        if cost.parts == 1 and cost.heads[0].options_cut
    }
    parted = {cost.question.id: cost.parts for cost in costs if cost.parts > 1}
    alike = {cost.question.id: cost.alike for cost in costs if cost.alike}
    for name, found in (
        ("x_instruction_tokens_dropped", shortened),
        ("x_shortened_options", cut),
        ("x_indistinguishable_options", alike),
        ("x_option_parts", parted),
    ):
        if found:
            usage[name] = found
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
