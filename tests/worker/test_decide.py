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
from worker.rows import Logits, Row, Tokenizer

SHARED = "the quick brown fox jumps over the lazy dog while it rains all day and much more"
TEMPERATURES, _ = answers.read_temperatures([1.0, 1.0, 1.0], {})


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
    steps_left: int = 1

    def step(self) -> None:
        self.steps_left = 0

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
def tokenizer() -> Tokenizer:
    return checkpoint.load(str(EMBEDDED), "cpu", "fp32").tokenizer


@pytest.fixture
def engine() -> Largest:
    return Largest()


@pytest.fixture
def model(tokenizer: Tokenizer, engine: Largest) -> decide.ServedModel:
    return decide.ServedModel("demo", "demo@x", tokenizer, TEMPERATURES, engine)


def choice(count: int, shared: str = SHARED) -> Question:
    return Question("q", "choice", "Which?", {f"{shared} {i}": None for i in range(count)})


def ask(model: decide.ServedModel, question: Question, *, refuse: bool) -> decide.Decision:
    policy = decide.Policy(refuse=refuse)
    return decide.decide(model, Lane(), "a state", [question], policy, lambda: True)


@pytest.mark.parametrize("refuse", [False, True])
@pytest.mark.parametrize(
    ("count", "shared"), [(4, SHARED), (77, SHARED), (77, f"{SHARED} {SHARED}"), (255, SHARED)]
)
def test_winners_that_share_a_long_prefix_are_told_apart(
    model: decide.ServedModel, engine: Largest, count: int, shared: str, refuse: bool
) -> None:
    question = choice(count, shared)
    assert len(model.tokenizer.ids(" " + SHARED)) >= 17
    decision = ask(model, question, refuse=refuse)
    for row in engine.rows:
        options = options_of(row)
        assert len(set(options)) == len(options)
    assert "x_indistinguishable_options" not in decision.usage
    sums = {name: sum(model.tokenizer.ids(" " + name)) for name in question.names}
    spread = decision.answers["q"]["probabilities"]
    assert sums[decision.answers["q"]["choice"]] == max(sums.values())
    assert tuple(spread) == question.names and sum(spread.values()) == pytest.approx(1)
    assert decision.usage["input_tokens"] == sum(len(row.token_ids) for row in engine.rows)


@pytest.mark.parametrize("count", [2, 8, 77])
def test_options_that_no_row_tells_apart_are_told_or_refused(model: decide.ServedModel, count: int) -> None:
    question = choice(count, SHARED * 4)
    decision = ask(model, question, refuse=False)
    assert decision.usage["x_indistinguishable_options"] == {"q": [list(question.names)]}
    assert decision.usage["x_shortened_options"] == {"q": list(question.names)}
    with pytest.raises(TooManyTokens, match="'q', criteria"):
        ask(model, question, refuse=True)


def test_options_that_the_tokenizer_makes_the_same_are_told_or_refused(model: decide.ServedModel) -> None:
    mask = model.tokenizer.mask_text
    question = Question("q", "choice", "Which?", {f"a{mask}b": None, "a b": None, "c": None})
    decision = ask(model, question, refuse=False)
    assert decision.usage["x_indistinguishable_options"] == {"q": [[f"a{mask}b", "a b"]]}
    with pytest.raises(TooManyTokens, match="the same to the model"):
        ask(model, question, refuse=True)


def test_what_parts_lose_is_told_and_counted(model: decide.ServedModel) -> None:
    names = {f"{SHARED} {i}": "word " * 60 for i in range(40)}
    question = Question("q", "choice", "Is it so? " * 200, names)
    usage = ask(model, question, refuse=False).usage
    assert usage["x_option_parts"]["q"] > 1 and usage["x_shortened_options"] == {"q": list(names)}
    assert usage["x_instruction_tokens_dropped"]["q"] > 0
    with pytest.raises(TooManyTokens, match=r"instructions: [1-9]\d* tokens over"):
        ask(model, question, refuse=True)


def test_a_batch_reads_its_questions_once(model: decide.ServedModel) -> None:
    read: list[str] = []

    def encode(text: str) -> list[int]:
        read.append(text)
        return model.tokenizer.encode(text)

    counting = replace(model, tokenizer=replace(model.tokenizer, encode=encode))
    asked = protocol.BatchRequest(None, tuple(f"state {i}" for i in range(50)), (choice(2),), False)
    outcomes = list(batch.outcomes(counting, Lane(), asked, decide.Policy(), lambda: True))
    assert len(outcomes) == 50 and all(isinstance(outcome, decide.Decision) for outcome in outcomes)
    assert read.count("choice question: Which?") == 1
