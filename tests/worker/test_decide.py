"""Choices that one row cannot hold: read in parts, their winners in parts again, until a row tells them apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from tests.worker.conftest import EMBEDDED
from worker import answers, batch, checkpoint, decide, protocol
from worker.buckets import Buckets
from worker.errors import TooManyTokens
from worker.lane import Lane
from worker.protocol import Question
from worker.rows import Logits, Reader, Row

SHARED = "the quick brown fox jumps over the lazy dog while it rains all day and much more"
HEAT, _ = answers.temperatures([1.0, 1.0, 1.0], {})


@dataclass(eq=False)
class Largest:
    """An engine that prefers the option whose ids have the largest sum, and keeps the rows that it ran."""

    rows: list[Row] = field(default_factory=list)
    key: tuple[str, ...] = ("largest",)
    buckets: Buckets = field(default_factory=Buckets)

    def start(self, rows: Sequence[Row]) -> LargestPass:
        self.rows.extend(rows)
        return LargestPass(rows)


@dataclass
class LargestPass:
    rows: Sequence[Row]
    left: int = 1

    def step(self) -> None:
        self.left = 0

    def logits(self) -> list[Logits]:
        return [
            Logits(tuple(sum(option) / 1000 for option in options_of(row)), (1.0, 0.0)) for row in self.rows
        ]


def options_of(row: Row) -> list[tuple[int, ...]]:
    """The ids of each option of a row, without its marker."""
    sep = row.token_ids.index(row.token_ids[-1], row.markers[-1])
    edges = [*row.markers, sep]
    return [row.token_ids[low + 1 : high] for low, high in pairwise(edges)]


@pytest.fixture(scope="module")
def reader() -> Reader:
    loaded = checkpoint.load(str(EMBEDDED), "cpu", "fp32")
    config, special = loaded.config, loaded.special
    return Reader(
        loaded.encode,
        special.cls,
        special.sep,
        special.mask,
        special.mask_token,
        config.max_len,
        config.head_max_len,
    )


@pytest.fixture
def engine() -> Largest:
    return Largest()


@pytest.fixture
def model(reader: Reader, engine: Largest) -> decide.Model:
    return decide.Model("demo", "demo@x", reader, HEAT, engine)


def choice(count: int, shared: str = SHARED) -> Question:
    return Question("q", "choice", "Which?", {f"{shared} {i}": None for i in range(count)})


def ask(model: decide.Model, question: Question, *, refuse: bool) -> decide.Decision:
    manner = decide.Manner(refuse=refuse)
    return decide.decide(model, Lane(), "a state", [question], manner, lambda: True)


@pytest.mark.parametrize("refuse", [False, True])
@pytest.mark.parametrize(
    ("count", "shared"), [(4, SHARED), (77, SHARED), (77, f"{SHARED} {SHARED}"), (255, SHARED)]
)
def test_winners_that_share_a_long_prefix_are_told_apart(
    model: decide.Model, engine: Largest, count: int, shared: str, refuse: bool
) -> None:
    question = choice(count, shared)
    assert len(model.reader.ids(" " + SHARED)) >= 17
    found = ask(model, question, refuse=refuse)
    for row in engine.rows:
        options = options_of(row)
        assert len(set(options)) == len(options)
    assert "x_indistinguishable_options" not in found.usage
    sums = {name: sum(model.reader.ids(" " + name)) for name in question.names}
    spread = found.answers["q"]["probabilities"]
    assert sums[found.answers["q"]["choice"]] == max(sums.values())
    assert tuple(spread) == question.names and sum(spread.values()) == pytest.approx(1)
    assert found.usage["input_tokens"] == sum(len(row.token_ids) for row in engine.rows)


@pytest.mark.parametrize("count", [2, 8, 77])
def test_options_that_no_row_tells_apart_are_told_or_refused(model: decide.Model, count: int) -> None:
    question = choice(count, SHARED * 4)
    found = ask(model, question, refuse=False)
    assert found.usage["x_indistinguishable_options"] == {"q": [list(question.names)]}
    assert found.usage["x_shortened_options"] == {"q": list(question.names)}
    with pytest.raises(TooManyTokens, match="'q', criteria"):
        ask(model, question, refuse=True)


def test_options_that_the_tokenizer_makes_the_same_are_told_or_refused(model: decide.Model) -> None:
    mask = model.reader.mask_text
    question = Question("q", "choice", "Which?", {f"a{mask}b": None, "a b": None, "c": None})
    found = ask(model, question, refuse=False)
    assert found.usage["x_indistinguishable_options"] == {"q": [[f"a{mask}b", "a b"]]}
    with pytest.raises(TooManyTokens, match="the same to the model"):
        ask(model, question, refuse=True)


def test_what_parts_lose_is_told_and_counted(model: decide.Model) -> None:
    names = {f"{SHARED} {i}": "word " * 60 for i in range(40)}
    question = Question("q", "choice", "Is it so? " * 200, names)
    usage = ask(model, question, refuse=False).usage
    assert usage["x_option_parts"]["q"] > 1 and usage["x_shortened_options"] == {"q": list(names)}
    assert usage["x_instruction_tokens_dropped"]["q"] > 0
    with pytest.raises(TooManyTokens, match=r"instructions: [1-9]\d* tokens over"):
        ask(model, question, refuse=True)


def test_a_batch_reads_its_questions_once(model: decide.Model) -> None:
    read: list[str] = []

    def encode(text: str) -> list[int]:
        read.append(text)
        return model.reader.encode(text)

    counting = replace(model, reader=replace(model.reader, encode=encode))
    asked = protocol.Batch(None, tuple(f"state {i}" for i in range(50)), (choice(2),), False)
    found = list(batch.outcomes(counting, Lane(), asked, decide.Manner(), lambda: True))
    assert len(found) == 50 and all(isinstance(outcome, decide.Decision) for outcome in found)
    assert read.count("choice question: Which?") == 1
