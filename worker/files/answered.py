"""A record with its answers beside it: one JSON object, or the flat columns of a table.

It knows the names that answers get. It must not know files or models.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from worker.files.records import Record
from worker.protocol import Question

# What a decided or failed record gains in JSON Lines.
ADDED = ("model", "answers", "usage", "error")
ERROR = "error"

# As `worker.batch.result` builds it and POST /v1/systemone/batch sends it: model, answers and usage, or an error.
Result = dict[str, Any]


def failure(detail: Any, status: int | None = None) -> Result:
    """The result of a record that has no answers."""
    return {"error": {"detail": detail} if status is None else {"status": status, "detail": detail}}


def whole(record: Record, result: Result) -> dict[str, Any]:
    """The record as one JSON object: an object's own fields first; any other value as `record`."""
    if ERROR in result:
        result = {ERROR: {"file": record.file, "line": record.line, **result[ERROR]}}
    if isinstance(record.value, dict):
        return record.value | result
    return ({"record": record.value} if record.problem is None else {}) | result


def clash(value: Any) -> str | None:
    """Why a JSON Lines record cannot take its answers: it has a field of their names."""
    taken = [name for name in ADDED if isinstance(value, dict) and name in value]
    return f"the record already has a field named '{taken[0]}'" if taken else None


def columns(questions: Sequence[Question], probabilities: bool) -> tuple[str, ...]:
    """The columns that a table gains, the error's last."""
    names = [name for question in questions for name in _question_columns(question, probabilities)]
    return (*names, ERROR)


def flat(
    questions: Sequence[Question], probabilities: bool, record: Record, result: Result
) -> dict[str, Any]:
    """The values of `columns`: None where there is nothing to say."""
    if ERROR in result:
        error = result[ERROR]
        return {ERROR: f"{record.file}:{record.line}: {message(error['detail'])}"}
    values: dict[str, Any] = {}
    for question in questions:
        answer = result["answers"][question.id]
        values |= zip(
            _question_columns(question, probabilities),
            _question_values(question, answer, probabilities),
            strict=True,
        )
    return values


def message(detail: Any) -> str:
    """An error's detail in words, whichever of the contract's forms it has."""
    if isinstance(detail, Mapping):
        return str(detail.get("message", detail))
    if isinstance(detail, list) and detail and isinstance(detail[0], Mapping):
        return "; ".join(
            f"{'.'.join(str(part) for part in item.get('loc', ())[1:])}: {item.get('msg')}" for item in detail
        )
    return detail if isinstance(detail, str) else json.dumps(detail, ensure_ascii=False)


def _question_columns(question: Question, probabilities: bool) -> list[str]:
    id = question.id
    if question.type == "noul":
        return [id]  # its probability says all
    spread = [f"{id}_p_{name}" for name in question.names] if probabilities else []
    return [id, f"{id}_confidence", *spread]


def _question_values(question: Question, answer: Mapping[str, Any], probabilities: bool) -> list[Any]:
    value = answer[question.type]
    if question.type == "noul":
        return [value]
    spread = [answer["probabilities"][name] for name in question.names] if probabilities else []
    return [value, answer["confidence"], *spread]
