"""Figures by hand, and what the reference says of the same logits."""

from __future__ import annotations

import math

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from laya.common import clamp_temperature, confidence_from_probs, temp_bucket
from laya.confidence import jev_confidence

from worker import answers, option_parts
from worker.errors import AnswerWrong
from worker.protocol import QUESTION_TYPES, Question
from worker.rows import Logits

CHOICE = Question("c", "choice", "?", {"a": None, "b": "x", "ü 🙂": None})
SCORE = Question("s", "score", "?", ["low", {"label": "mid"}, "high"])
NOUL = Question("n", "noul", "?", None)
PLAIN, _ = answers.read_temperatures([1.0, 1.0, 1.0], {})
LOGITS = Logits((0.0, 1.0, 3.0), (2.0, 0.0))


def test_jev_choice() -> None:
    answered = answers.answer(CHOICE, LOGITS, PLAIN, "jev")
    p = [math.exp(v) / (1 + math.e + math.e**3) for v in LOGITS.options]
    assert answered["choice"] == "ü 🙂" and list(answered["probabilities"]) == ["a", "b", "ü 🙂"]
    assert list(answered["probabilities"].values()) == pytest.approx(p)
    assert answered["confidence"] == pytest.approx((p[2] - 1 / 3) / (2 / 3))
    assert answered["x_answer_confidence"] == max(answered["probabilities"].values())
    assert answered["x_act_probability"] == pytest.approx(1 / (1 + math.exp(-2)))
    assert set(answered) - {"type", "choice", "probabilities", "confidence"} == {
        "x_laya_confidence",
        "x_answer_confidence",
        "x_act_probability",
    }


def test_jev_score() -> None:
    answered = answers.answer(SCORE, LOGITS, PLAIN, "jev")
    p = list(answered["probabilities"].values())
    assert answered["legend"] == {"0": "low", "1": {"label": "mid"}, "2": "high"}
    assert answered["score"] == pytest.approx(p[1] + 2 * p[2])
    assert answered["confidence"] == pytest.approx(max(0, 1 - (2 * p[0] + p[1]) / (2 / 3)))


def test_jev_noul_has_no_confidence() -> None:
    answered = answers.answer(NOUL, Logits((0.0, 1.0), (1.0, 2.0)), PLAIN, "jev")
    assert answered["noul"] == pytest.approx(1 / (1 + math.exp(-1))) and "confidence" not in answered


def test_one_option_is_certain() -> None:
    for wire in ("jev", "laya"):
        for kind, criteria in (("choice", {"only": None}), ("score", ["only"])):
            answered = answers.answer(Question("q", kind, "", criteria), Logits((7.5,), (0.0,)), PLAIN, wire)
            assert set(answered["probabilities"].values()) == {1.0} and answered["confidence"] == 1.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_logit_that_is_no_number_is_never_an_answer(bad: float) -> None:
    for logits in (Logits((0.0, bad, 1.0), (0.0, 0.0)), Logits((0.0, 1.0, 2.0), (bad, 0.0))):
        with pytest.raises(AnswerWrong):
            answers.answer(CHOICE, logits, PLAIN, "jev")


PROBABILITIES = st.lists(st.floats(-20, 20), min_size=1, max_size=40).map(answers.softmax)


@given(PROBABILITIES)
def test_confidences_are_the_reference_s(p: list[float]) -> None:
    as_choice = {"type": "choice", "probabilities": {str(i): q for i, q in enumerate(p)}}
    assert sum(p) == pytest.approx(1, abs=1e-9)
    assert answers.choice_confidence(p) == pytest.approx(jev_confidence(as_choice), abs=1e-9)
    assert answers.score_confidence(p) == pytest.approx(
        jev_confidence(as_choice | {"type": "score"}), abs=1e-9
    )
    assert answers.entropy_confidence(p) == pytest.approx(
        confidence_from_probs(numpy.array(p), len(p)), abs=1e-9
    )


@pytest.mark.parametrize(
    "given_", [0.1, 0.5, 1, 1.7, 5, 9, True, None, "1.5", "x", math.nan, math.inf, -1, [1]]
)
def test_temperatures_are_the_reference_s(given_: object) -> None:
    temperatures, replaced = answers.read_temperatures([given_, 1.0, 2.0], {"noul:2": given_})
    assert temperatures.by_type == (clamp_temperature(given_), 1.0, 2.0)
    assert temperatures.by_options == {"noul:2": clamp_temperature(given_)}
    assert bool(replaced) == (given_ not in (0.5, 1, 1.7, 5) or given_ is True)


@pytest.mark.parametrize("k", [1, 2, 3, 5, 6, 10, 11, 255])
def test_buckets_of_options(k: int) -> None:
    by_options = {f"{kind}:{size}": 1.0 for kind in QUESTION_TYPES for size in ("2", "3-5", "6-10", "11+")}
    for i, kind in enumerate(QUESTION_TYPES):
        temperatures, _ = answers.read_temperatures([1, 1, 1], by_options | {temp_bucket(i, k): 3.0})
        assert temperatures.of(kind, k) == 3.0


def test_the_check_finds_what_does_not_fit() -> None:
    good = {
        "c": answers.answer(CHOICE, LOGITS, PLAIN, "jev"),
        "s": answers.answer(SCORE, LOGITS, PLAIN, "jev"),
    }
    answers.check([CHOICE, SCORE], good)
    wrong = [
        {"c": good["c"]},
        {"s": good["s"], "c": good["c"]},
        {"c": good["c"], "s": good["c"]},
        good | {"c": good["c"] | {"probabilities": {"a": 1.0}}},
        good | {"s": good["s"] | {"score": math.nan}},
    ]
    for given_ in wrong:
        with pytest.raises(AnswerWrong):
            answers.check([CHOICE, SCORE], given_)


def test_parts_cover_every_option_once() -> None:
    for options in (1, 2, 7, 255):
        for count in (1, 2, 4, 16):
            if count <= options:
                parts = option_parts.split(options, count)
                assert [i for part in parts for i in part] == list(range(options))
                assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_merged_parts_keep_order_within_and_the_winners_order_between() -> None:
    logits, final = [(1.0, 5.0), (100.0, 90.0)], (2.0, 1.5)
    assert option_parts.winners(option_parts.split(4, 2), logits) == [1, 2]
    assert option_parts.merge(logits, final) == (-2.0, 2.0, 1.5, -8.5)
