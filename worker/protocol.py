"""The System One request: from a JSON document to validated questions.

It knows which documents are valid requests, and says of any other which question and field is wrong. It must
not know a model, its budgets, or HTTP beyond the statuses of its own refusals.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from worker.errors import FieldError, FieldsRefused, LimitRefused, UsageRefused, words

# The hosted service's limits.
MAX_CHOICES = 255
MAX_LEVELS = 10
# laya-serve takes more levels, and so does its wire here.
MAX_LEVELS_LAYA = 32
# This worker's own limits: the hosted service names none.
MAX_QUESTIONS = 256
MAX_BATCH_ROWS = 4096
# In the order of a checkpoint's type embedding and temperatures.
QUESTION_TYPES = ("choice", "score", "noul")


@dataclass(frozen=True, slots=True)
class Question:
    """A valid question.

    `criteria`: a choice's names and descriptions, a score's levels, what a noul's "true" and "false" mean.
    `labels`: what the model reads for a noul's (false, true).
    """

    id: str
    type: str
    instructions: Any
    criteria: Any
    labels: tuple[str, str] = ("false", "true")

    @property
    def names(self) -> tuple[str, ...]:
        """The options' names in the order in which the model reads them."""
        if self.type == "choice":
            return tuple(self.criteria)
        return tuple(str(i) for i in range(len(self.criteria))) if self.type == "score" else ("false", "true")


@dataclass(frozen=True, slots=True)
class Request:
    """A valid request; `model` is the name asked for, None for the default."""

    model: str | None
    state: Any
    questions: tuple[Question, ...]


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A valid batch: one set of questions about many states, each of which is checked on its own.

    `stream`: whether each state's result leaves as soon as it is there.
    """

    model: str | None
    states: tuple[Any, ...]
    questions: tuple[Question, ...]
    stream: bool


def parse(document: Any, wire: str = "jev") -> Request:
    """The request in a decoded JSON document.

    `wire` laya also takes laya-serve's forms: a choice as a list of names, numbers as texts, more levels.
    Raises FieldsRefused (missing or mistyped fields, all of them at once) or LimitRefused (counts).
    """
    document, errors = _common_fields(document)
    _require(document, "state", errors)
    if errors:
        raise FieldsRefused(errors)
    check_state(document["state"], "state")
    return Request(document.get("model"), document["state"], questions(document["questions"], wire))


def parse_batch(document: Any, wire: str = "jev") -> BatchRequest:
    """The batch in a decoded JSON document; raises as `parse` does."""
    document, errors = _common_fields(document)
    states = document.get("states")
    if _require(document, "states", errors) and (not isinstance(states, list) or not states):
        errors.append(
            FieldError(("body", "states"), "Input should be an array of one or more states", "list_type")
        )
    stream = _switch(document.get("stream"), "stream", errors)
    if errors:
        raise FieldsRefused(errors)
    parsed = questions(document["questions"], wire)
    if len(states) * len(parsed) > MAX_BATCH_ROWS:
        raise LimitRefused(
            f"Too many decisions. {len(states)} states of {len(parsed)} questions were sent, "
            f"at most {MAX_BATCH_ROWS} decisions are taken in a batch.",
            "states",
        )
    return BatchRequest(document.get("model"), tuple(states), parsed, stream)


def check_state(state: Any, *at: str | int) -> None:
    """Raises FieldsRefused unless `state`, which lies under `at` in the body, can be read."""
    if not isinstance(state, (str, dict, list)):
        message = "Input should be a string, an object or an array"
        raise FieldsRefused([FieldError(("body", *at), message, "state_type")])


def questions(given: dict[str, Any], wire: str) -> tuple[Question, ...]:
    """The questions of a request in the order sent; raises as `parse` does."""
    if len(given) > MAX_QUESTIONS:
        message = f"Too many questions. {len(given)} were sent, at most {MAX_QUESTIONS} are taken."
        raise LimitRefused(message, "questions")
    errors: list[FieldError] = []
    parsed = [question for id, fields in given.items() if (question := _question(id, fields, wire, errors))]
    if errors:
        raise FieldsRefused(errors)
    for question in parsed:
        _check_counts(question, MAX_LEVELS_LAYA if wire == "laya" else MAX_LEVELS)
    return tuple(parsed)


def _common_fields(document: Any) -> tuple[dict[str, Any], list[FieldError]]:
    """The document and its errors so far, after the checks that single and batch requests share: an object, a model's
    name, a map of questions, no media."""
    if not isinstance(document, dict):
        raise FieldsRefused([FieldError(("body",), "Input should be a JSON object", "model_attributes_type")])
    if document.get("assets"):
        raise UsageRefused("assets: this worker reads text only; images and other media are not supported.")
    errors: list[FieldError] = []
    if not isinstance(document.get("model"), (str, type(None))):
        errors.append(FieldError(("body", "model"), "Input should be a string", "string_type"))
    if _require(document, "questions", errors):
        if not isinstance(document["questions"], dict):
            errors.append(FieldError(("body", "questions"), "Input should be an object", "dict_type"))
        elif not document["questions"]:
            errors.append(FieldError(("body", "questions"), "At least one question is needed", "too_short"))
    return document, errors


def _switch(value: Any, name: str, errors: list[FieldError]) -> bool:
    """An optional true or false, also spelled as forms and environment files spell it."""
    known = {
        "true": True,
        "1": True,
        "1.0": True,
        "false": False,
        "0": False,
        "0.0": False,
        "": False,
        "none": False,
    }
    text = str(value).strip().lower()
    if text not in known or isinstance(value, (dict, list)):
        errors.append(FieldError(("body", name), f"{name}: expected true or false", "bool_parsing"))
    return known.get(text, False)


def _require(
    fields: dict[str, Any], name: str, errors: list[FieldError], at: tuple[str, ...] = ("body",)
) -> bool:
    """Whether the field is there; adds an error if it is not."""
    if name not in fields:
        errors.append(FieldError((*at, name), "Field required", "missing"))
    return name in fields


def _question(id: str, fields: Any, wire: str, errors: list[FieldError]) -> Question | None:
    at = ("body", "questions", id)
    before = len(errors)

    def refuse(name: str, message: str, error_type: str) -> None:
        errors.append(FieldError((*at, name), f"Question '{words(id, 100)}', {name}: {message}", error_type))

    if not id:
        errors.append(FieldError(at, "A question's id should not be empty", "string_too_short"))
    if not isinstance(fields, dict):
        errors.append(FieldError(at, "A question should be an object", "dict_type"))
        return None
    question_type: Any = fields.get("type")
    if not _require(fields, "type", errors, at):
        return None
    if question_type == "box":
        refuse("type", "box questions need an image; this worker reads text only", "literal_error")
    elif question_type not in QUESTION_TYPES:
        refuse("type", "expected choice, score or noul", "literal_error")
    scalars = (bool, int, float) if wire == "laya" else ()
    instructions = fields.get("instructions")
    if instructions is not None and not isinstance(instructions, (str, dict, list, *scalars)):
        refuse("instructions", "expected a string, an object or an array", "string_type")
    if len(errors) > before:
        return None
    criteria = fields.get("criteria")
    if question_type == "choice" and wire == "laya" and isinstance(criteria, list):
        criteria = _names_from_list(criteria, refuse)
    else:
        _check_criteria(question_type, criteria, (str, dict, list, *scalars), refuse)
    labels = (
        _labels(fields["labels"], refuse)
        if question_type == "noul" and "labels" in fields
        else ("false", "true")
    )
    if len(errors) > before:
        return None
    return Question(id, question_type, "" if instructions is None else instructions, criteria, labels)


Refuse = Callable[[str, str, str], None]


def _check_criteria(question_type: str, criteria: Any, described: tuple[type, ...], refuse: Refuse) -> None:
    if question_type == "score":
        if not isinstance(criteria, list):
            refuse("criteria", "expected an array of levels, lowest first", "list_type")
        elif not all(isinstance(level, described) for level in criteria):
            refuse("criteria", "every level needs a string, an object or an array", "string_type")
    elif question_type == "choice" and not isinstance(criteria, dict):
        refuse("criteria", "expected an object that maps each choice's name to its description", "dict_type")
    elif criteria is not None and not isinstance(criteria, dict):
        refuse("criteria", 'expected an object with "true" or "false" or both', "dict_type")
    elif criteria is not None:
        if question_type == "noul" and not set(criteria) <= {"true", "false"}:
            refuse("criteria", 'a noul has no keys but "true" and "false"', "extra_forbidden")
        if not all(value is None or isinstance(value, described) for value in criteria.values()):
            refuse("criteria", "a description should be a string, an object, an array or null", "string_type")


def _names_from_list(names: list[Any], refuse: Refuse) -> dict[str, None]:
    if not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
        refuse("criteria", "a list of choices should have distinct strings", "string_type")
        return {}
    return dict.fromkeys(names)


def _labels(labels: Any, refuse: Refuse) -> tuple[str, str]:
    if isinstance(labels, dict) and set(labels) == {"true", "false"}:
        false, true = (
            text.strip() if isinstance(text, str) else "" for text in (labels["false"], labels["true"])
        )
        if false and true and false != true:
            return false, true
    refuse("labels", 'expected distinct non-empty strings under "false" and "true"', "string_type")
    return "false", "true"


def _check_counts(question: Question, max_levels: int) -> None:
    """Raises LimitRefused for counts out of range."""
    limits = {"choice": ("choices", MAX_CHOICES), "score": ("levels", max_levels)}
    name = f"Question '{words(question.id, 100)}', criteria"
    at = ("questions", question.id, "criteria")
    if question.type == "noul":
        described = any(value not in (None, "") for value in (question.criteria or {}).values())
        if not described and question.instructions in ("", {}, []):
            raise LimitRefused(
                f"Nothing to decide. {name}: a noul needs instructions or a described criterion.", *at
            )
        return
    what, most = limits[question.type]
    sent = len(question.criteria)
    if not sent:
        raise LimitRefused(f"Too few {what}. {name}: at least 1 is needed.", *at)
    if sent > most:
        raise LimitRefused(f"Too many {what}. {name}: {sent} were sent, at most {most} are taken.", *at)
