"""From logits to answers: temperatures, probabilities, confidences, and the two wires' forms.

It knows the figures of the System One contract and those of Laya, and checks every answer before it leaves. It must
not know where logits come from, or HTTP.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from worker.errors import AnswerWrong
from worker.protocol import QUESTION_TYPES, Question
from worker.rows import Logits, text_of

# A temperature outside these bounds says more about how it was fitted than about the model: the published checkpoints
# have one of 0.1, which would turn a probability of 0.24 into 0.99.
TEMPERATURE_RANGE = (0.5, 5.0)


@dataclass(frozen=True, slots=True)
class Temperatures:
    """A checkpoint's usable temperatures. `by_type`: choice, score, noul. `by_options`: as "choice:3-5"."""

    by_type: tuple[float, float, float]
    by_options: Mapping[str, float]

    def of(self, question_type: str, options: int) -> float:
        """The temperature of a question with so many options."""
        size = "2" if options <= 2 else "3-5" if options <= 5 else "6-10" if options <= 10 else "11+"
        return self.by_options.get(
            f"{question_type}:{size}", self.by_type[QUESTION_TYPES.index(question_type)]
        )


def read_temperatures(
    by_type: Sequence[Any], by_options: Mapping[str, Any]
) -> tuple[Temperatures, list[str]]:
    """Usable temperatures from a checkpoint's config, and a line for each that had to be replaced."""
    given = {f"temperature[{QUESTION_TYPES[i]}]": value for i, value in enumerate(by_type)} | dict(by_options)
    used = {name: _usable(value) for name, value in given.items()}
    replaced = [
        f"{name} is {given[name]!r}; {used[name]:g} is used, and confidences may be off"
        for name in given
        if isinstance(given[name], bool) or given[name] != used[name]
    ]
    first, second, third = (used[f"temperature[{name}]"] for name in QUESTION_TYPES)
    return Temperatures((first, second, third), {name: used[name] for name in by_options}), replaced


def _usable(value: Any) -> float:
    try:
        number = 1.0 if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return 1.0
    low, high = TEMPERATURE_RANGE
    return min(high, max(low, number)) if math.isfinite(number) else 1.0


def softmax(logits: Sequence[float], temperature: float = 1.0) -> list[float]:
    """Probabilities that sum to 1 within float rounding; AnswerWrong if a logit is not a finite number."""
    if not logits or not all(map(math.isfinite, logits)):
        raise AnswerWrong
    top = max(logits)
    powers = [math.exp((logit - top) / temperature) for logit in logits]
    total = sum(powers)
    return [power / total for power in powers]


def choice_confidence(p: Sequence[float]) -> float:
    """The contract's confidence of a choice: how far its probability lies above an even spread, in [0, 1]."""
    even = 1 / len(p)
    return 1.0 if len(p) == 1 else min(1.0, max(0.0, (max(p) - even) / (1 - even)))


def score_confidence(p: Sequence[float]) -> float:
    """The contract's confidence of a score, in [0, 1]: 1 minus the mean distance from the most probable level, relative
    to that of an even spread."""
    n = len(p)
    if n == 1:
        return 1.0
    mode = p.index(max(p))
    distance = sum(q * abs(i - mode) for i, q in enumerate(p))
    even = sum(abs(i - (n - 1) / 2) for i in range(n)) / n
    return min(1.0, max(0.0, 1 - distance / even))


def entropy_confidence(p: Sequence[float]) -> float:
    """Laya's confidence of a choice or score: 1 - H(p) / log k, 1 when k is 1."""
    if len(p) < 2:
        return 1.0
    entropy = -sum(q * math.log(min(1.0, max(1e-12, q))) for q in p)
    return min(1.0, max(0.0, 1 - entropy / math.log(len(p))))


def answer(question: Question, logits: Logits, temperatures: Temperatures, wire: str) -> dict[str, Any]:
    """The answer to a question in the form of `wire` (jev or laya)."""
    p = softmax(logits.options, temperatures.of(question.type, len(logits.options)))
    act = softmax(logits.actions)[0]
    build = _laya_answer if wire == "laya" else _jev_answer
    return build(question, p, act)


def _jev_answer(question: Question, p: list[float], act: float) -> dict[str, Any]:
    fields: dict[str, Any] = {"type": question.type}
    names = question.names
    if question.type == "noul":
        fields |= {"noul": p[1], "x_laya_confidence": max(p[1], 1 - p[1])}
    elif question.type == "choice":
        fields |= {
            "choice": names[p.index(max(p))],
            "probabilities": dict(zip(names, p, strict=True)),
            "confidence": choice_confidence(p),
            "x_laya_confidence": entropy_confidence(p),
        }
    else:
        fields |= {
            "score": sum(i * q for i, q in enumerate(p)),
            "legend": dict(zip(names, question.criteria, strict=True)),
            "probabilities": dict(zip(names, p, strict=True)),
            "confidence": score_confidence(p),
            "x_laya_confidence": entropy_confidence(p),
        }
    return fields | {"x_answer_confidence": max(p), "x_act_probability": act}


def _laya_answer(question: Question, p: list[float], act: float) -> dict[str, Any]:
    # laya-serve rounds to 4 decimals, and takes the contract's confidence from the rounded probabilities.
    names, rounded = question.names, [round(q, 4) for q in p]
    total = sum(rounded) or 1.0
    normalized = [q / total for q in rounded]
    last = {"answer_confidence": round(max(p), 4), "action": {"act_probability": round(act, 4)}}
    if question.type == "noul":
        return {
            "type": "noul",
            "noul": rounded[1],
            "confidence": round(max(p[1], 1 - p[1]), 4),
            **last,
        }
    common = {
        "probabilities": dict(zip(names, rounded, strict=True)),
        "confidence": round(entropy_confidence(p), 4),
        **last,
    }
    if question.type == "choice":
        choice = {"type": "choice", "choice": names[p.index(max(p))], **common}
        return choice | {"x_jev_confidence": round(choice_confidence(normalized), 4)}
    score = {
        "type": "score",
        "score": round(sum(i * q for i, q in enumerate(p)), 4),
        "legend": {name: text_of(level) for name, level in zip(names, question.criteria, strict=True)},
        **common,
    }
    return score | {"x_jev_confidence": round(score_confidence(normalized), 4)}


def check(questions: Sequence[Question], answers: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises AnswerWrong unless every question has its answer, in order, complete and with finite numbers."""
    if [question.id for question in questions] != list(answers):
        raise AnswerWrong
    for question in questions:
        answer = answers[question.id]
        numbers = [value for value in answer.values() if isinstance(value, float)]
        probabilities = answer.get("probabilities")
        if question.type != "noul":
            if probabilities is None or tuple(probabilities) != question.names:
                raise AnswerWrong
            numbers += probabilities.values()
        if answer["type"] != question.type or not all(map(math.isfinite, numbers)):
            raise AnswerWrong
