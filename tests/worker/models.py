"""Random rows, and laya's own forward pass over them, for the tests of the tensor side."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from laya.common import collate_items

from worker.rows import Logits, Row


def random_row(chance: random.Random, tokens: int, options: int = 3, vocabulary: int = 1000) -> Row:
    """A row of so many tokens, its markers anywhere: the model does not mind where they lie."""
    return Row(
        tuple(chance.randrange(5, vocabulary) for _ in range(tokens)),
        tuple(sorted(chance.sample(range(tokens), min(options, tokens)))),
        chance.randrange(3),
    )


def by_laya(agent: Any, rows: Sequence[Row]) -> list[Logits]:
    """What laya's own code says of `rows`, padded together as it does for the questions of one request."""
    items = [
        {"ids": list(row.token_ids), "markers": list(row.markers), "qtype": row.question_type} for row in rows
    ]
    batch = collate_items([items], agent.tok.pad_token_id)
    with torch.no_grad():
        options, actions = agent._infer({key: batch[key] for key in batch if key not in ("label", "meta")})
    return [
        Logits(tuple(line[: len(row.markers)]), tuple(act))
        for row, line, act in zip(rows, options.tolist(), actions.tolist(), strict=True)
    ]


def difference(left: Sequence[Logits], right: Sequence[Logits]) -> float:
    """The largest difference of any two logits; infinite where the shapes differ or one is not a number."""
    worst = 0.0
    for one, other in zip(left, right, strict=True):
        if len(one.options) != len(other.options) or len(one.actions) != len(other.actions):
            return float("inf")
        for a, b in zip(one.options + one.actions, other.options + other.actions, strict=True):
            worst = max(worst, abs(a - b) if abs(a - b) >= 0 else float("inf"))
    return worst


def shares(logits: Logits) -> list[float]:
    """The probabilities of the options, untempered."""
    return torch.tensor(logits.options, dtype=torch.float64).softmax(-1).tolist()
