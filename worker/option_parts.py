"""Choices with more options than one row can tell apart: a row for each part of the options, and one of the winners.

It knows how options are split into parts, and how the parts' logits become one scale. It must not know questions'
texts, tokens or devices.
"""

from collections.abc import Sequence
from itertools import pairwise


def split(options: int, count: int) -> list[range]:
    """`options` indices in `count` runs whose lengths differ by at most one."""
    edges = [options * i // count for i in range(count + 1)]
    return [range(low, high) for low, high in pairwise(edges)]


def winners(parts: Sequence[Sequence[int]], logits: Sequence[Sequence[float]]) -> list[int]:
    """The index of each part's top option."""
    return [part[list(values).index(max(values))] for part, values in zip(parts, logits, strict=True)]


def merge(logits: Sequence[Sequence[float]], final: Sequence[float]) -> tuple[float, ...]:
    """One logit for every option, from those of the parts and of the row of winners.

    The model was trained on differences within a row, so each row's logits have an offset of their own. The winners'
    row sets the parts' offsets: an option stays as far below its part's winner as its own row says. So
    the answer is that of the winners' row, and every option keeps a probability.
    """
    return tuple(
        anchor - (max(values) - value)
        for values, anchor in zip(logits, final, strict=True)
        for value in values
    )
