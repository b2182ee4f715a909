"""What a request cost, and what of it the model could not see, in both wires' forms.

It knows token counts and the names of what was cut. It must not know probabilities or HTTP.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from worker.protocol import Question
from worker.rows import Prompt


@dataclass(frozen=True, slots=True)
class Cost:
    """One question's cost: its rows' tokens, and how many of the state's tokens the shortest of them held.

    `prompts`: those of its rows. `parts`: for each of them, the indices of the question's options that it has.
    `part_count`: into how many rows the options were split at first; 1 if one row had them all.
    """

    question: Question
    tokens: int
    state_tokens_used: int
    prompts: tuple[Prompt, ...]
    parts: tuple[Sequence[int], ...]
    part_count: int

    @property
    def instruction_tokens_dropped(self) -> int:
        """The most tokens of the instructions that any row lacks."""
        return max(prompt.instruction_tokens_dropped for prompt in self.prompts)

    @property
    def options_cut(self) -> list[str]:
        """Names of the options that lost tokens in any row."""
        return self._names(
            {
                part[i]
                for prompt, part in zip(self.prompts, self.parts, strict=True)
                for i in prompt.options_cut
            }
        )

    @property
    def indistinguishable(self) -> list[list[str]]:
        """Names of options that the model could not tell apart, in groups."""
        groups: list[set[int]] = []
        for prompt, part in zip(self.prompts, self.parts, strict=True):
            for same in prompt.indistinguishable:
                # An option that two rows have may join groups of both.
                group = {part[i] for i in same}
                joined = [other for other in groups if other & group]
                groups = [other for other in groups if not other & group] + [group.union(*joined)]
        return [self._names(group) for group in sorted(groups, key=min)]

    def _names(self, options: set[int]) -> list[str]:
        return [self.question.names[i] for i in sorted(options)]


def sum_costs(costs: Sequence[Cost]) -> Cost:
    """The cost of a question whose rows ran in several rounds, the first of which had every option."""
    return Cost(
        costs[0].question,
        sum(cost.tokens for cost in costs),
        min(cost.state_tokens_used for cost in costs),
        tuple(prompt for cost in costs for prompt in cost.prompts),
        tuple(part for cost in costs for part in cost.parts),
        costs[0].part_count,
    )


def first_cut(cost: Cost, state_tokens: int) -> str | None:
    """The first thing of a question that the model would not see, in words; None if it sees everything."""
    if cost.instruction_tokens_dropped:
        return f"instructions: {cost.instruction_tokens_dropped} tokens over the model's budget"
    if cost.options_cut:
        return "criteria: descriptions over the model's budget"
    if cost.indistinguishable:
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
    for name, by_question in (
        (
            "x_instruction_tokens_dropped",
            {cost.question.id: cost.instruction_tokens_dropped for cost in costs},
        ),
        ("x_shortened_options", {cost.question.id: cost.options_cut for cost in costs}),
        ("x_indistinguishable_options", {cost.question.id: cost.indistinguishable for cost in costs}),
        ("x_option_parts", {cost.question.id: cost.part_count for cost in costs if cost.part_count > 1}),
    ):
        if reported := {id: value for id, value in by_question.items() if value}:
            usage[name] = reported
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
    prompts = {cost.question.id: cost.prompts[0] for cost in costs}
    collapsed = {
        id: {
            "total": len(prompt.markers),
            "distinct": prompt.distinct_options,
            "tokens_per_option": prompt.tokens_per_option,
        }
        for id, prompt in prompts.items()
        if prompt.distinct_options < len(prompt.markers)
    }
    return usage | ({"options": collapsed} if collapsed else {})


def _truncated(state_tokens: int, costs: Sequence[Cost]) -> list[str]:
    return [cost.question.id for cost in costs if cost.state_tokens_used < state_tokens]
