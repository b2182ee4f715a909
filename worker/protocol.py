"""The System One request: from bytes to validated questions.

It knows which documents are requests, and says of every other which question and which field is wrong. It
must not know a model, its budgets, or HTTP beyond the statuses of its own refusals.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from worker.errors import FieldError, FieldsRefused, LimitRefused, UsageRefused, words

# A text-only worker's limits; the first three are the hosted service's.
MAX_CHOICES = 255
MAX_LEVELS = 10
# laya-serve takes more levels than the hosted service; its wire keeps that.
MAX_LEVELS_LAYA = 32
MAX_QUESTIONS = 256
# Deeper than any real state; Python's own parser gives up at about 1,000 on some versions and 100,000 on others.
MAX_DEPTH = 64
TYPES = ("choice", "score", "noul")


@dataclass(frozen=True, slots=True)
class Question:
    """A valid question. `criteria`: choice, name to description; score, levels; noul, {"true", "false"} parts.

    `labels`: how a noul's (false, true) read to the model.
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


def decode(body: bytes) -> Any:
    """The JSON document in `body`; FieldsRefused if it is not one that every JSON reader would read alike."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _not_json(f"not UTF-8 at byte {error.start}") from None
    if text.startswith("\ufeff"):
        raise _not_json("a byte order mark before the document")
    try:
        document = json.loads(text, object_pairs_hook=_object, parse_constant=_constant, parse_int=_int)
    except json.JSONDecodeError as error:
        raise _not_json(f"{error.msg} at character {error.pos}") from None
    except RecursionError:
        raise _not_json(f"nested deeper than {MAX_DEPTH}") from None
    _check_depth_and_text(document)
    return document


def parse(document: Any, wire: str = "jev") -> Request:
    """The request in a decoded JSON document.

    `wire` laya also takes laya-serve's forms: a choice as a list of names, numbers as descriptions, more levels.
    Raises FieldsRefused (missing or mistyped fields, all of them at once) or LimitRefused (counts).
    """
    document, wrong = _head(document)
    _present(document, "state", wrong)
    if "state" in document and not isinstance(document["state"], (str, dict, list)):
        wrong.append(FieldError(("body", "state"), "Input should be a string, an object or an array", "state_type"))
    if wrong:
        raise FieldsRefused(wrong)
    return Request(document.get("model"), document["state"], questions(document["questions"], wire))


def questions(given: dict[str, Any], wire: str) -> tuple[Question, ...]:
    """The questions of a request in the order sent; raises as `parse` does."""
    if len(given) > MAX_QUESTIONS:
        raise LimitRefused(f"Too many questions. {len(given)} were sent, at most {MAX_QUESTIONS} are taken.")
    wrong: list[FieldError] = []
    found = [question for id, fields in given.items() if (question := _question(id, fields, wire, wrong))]
    if wrong:
        raise FieldsRefused(wrong)
    for question in found:
        _check_counts(question, MAX_LEVELS_LAYA if wire == "laya" else MAX_LEVELS)
    return tuple(found)


def _head(document: Any) -> tuple[dict[str, Any], list[FieldError]]:
    """What single and batch requests share: an object, a model's name, a map of questions, no media."""
    if not isinstance(document, dict):
        raise FieldsRefused([FieldError(("body",), "Input should be a JSON object", "model_attributes_type")])
    if document.get("assets"):
        raise UsageRefused("assets: this worker reads text only; images and other media are not supported.")
    wrong: list[FieldError] = []
    if not isinstance(document.get("model"), (str, type(None))):
        wrong.append(FieldError(("body", "model"), "Input should be a string", "string_type"))
    if _present(document, "questions", wrong):
        if not isinstance(document["questions"], dict):
            wrong.append(FieldError(("body", "questions"), "Input should be an object", "dict_type"))
        elif not document["questions"]:
            wrong.append(FieldError(("body", "questions"), "At least one question is needed", "too_short"))
    return document, wrong


def _present(fields: dict[str, Any], name: str, wrong: list[FieldError], at: tuple[str, ...] = ("body",)) -> bool:
    if name not in fields:
        wrong.append(FieldError((*at, name), "Field required", "missing"))
    return name in fields


def _question(id: str, fields: Any, wire: str, wrong: list[FieldError]) -> Question | None:
    at = ("body", "questions", id)
    before = len(wrong)

    def refuse(name: str, message: str, kind: str) -> None:
        wrong.append(FieldError((*at, name), f"Question '{words(id, 100)}', {name}: {message}", kind))

    if not id.strip():
        wrong.append(FieldError(at, "A question's id should not be empty", "string_too_short"))
    if not isinstance(fields, dict):
        wrong.append(FieldError(at, "A question should be an object", "dict_type"))
        return None
    kind = fields.get("type")
    if not _present(fields, "type", wrong, at):
        return None
    if kind == "box":
        refuse("type", "box questions need an image; this worker reads text only", "literal_error")
    elif kind not in TYPES:
        refuse("type", "expected choice, score or noul", "literal_error")
    scalars = (bool, int, float) if wire == "laya" else ()
    instructions = fields.get("instructions")
    if instructions is not None and not isinstance(instructions, (str, dict, list, *scalars)):
        refuse("instructions", "expected a string, an object or an array", "string_type")
    if len(wrong) > before:
        return None
    criteria = fields.get("criteria")
    if kind == "choice" and wire == "laya" and isinstance(criteria, list):
        criteria = _names_from_list(criteria, refuse)
    else:
        _check_criteria(kind, criteria, (str, dict, list, *scalars), refuse)
    labels = _labels(fields["labels"], refuse) if kind == "noul" and "labels" in fields else ("false", "true")
    if len(wrong) > before:
        return None
    return Question(id, kind, "" if instructions is None else instructions, criteria, labels)


Refuse = Callable[[str, str, str], None]


def _check_criteria(kind: str, criteria: Any, described: tuple[type, ...], refuse: Refuse) -> None:
    if kind == "score":
        if not isinstance(criteria, list):
            refuse("criteria", "expected an array of levels, lowest first", "list_type")
        elif not all(isinstance(level, described) for level in criteria):
            refuse("criteria", "every level needs a string, an object or an array", "string_type")
    elif kind == "choice" and not isinstance(criteria, dict):
        refuse("criteria", "expected an object that maps each choice's name to its description", "dict_type")
    elif criteria is not None and not isinstance(criteria, dict):
        refuse("criteria", 'expected an object with "true" or "false" or both', "dict_type")
    elif criteria is not None:
        if kind == "noul" and not set(criteria) <= {"true", "false"}:
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
        pair = tuple(text.strip() if isinstance(text, str) else "" for text in (labels["false"], labels["true"]))
        if all(pair) and pair[0] != pair[1]:
            return pair[0], pair[1]
    refuse("labels", 'expected distinct non-empty strings under "false" and "true"', "string_type")
    return "false", "true"


def _check_counts(question: Question, max_levels: int) -> None:
    """The limits that the contract answers with 400 and plain words."""
    name, criteria = f"Question '{words(question.id, 100)}', criteria", question.criteria
    if question.type == "choice" and not criteria:
        raise LimitRefused(f"Too few choices. {name}: at least 1 is needed.")
    if question.type == "choice" and len(criteria) > MAX_CHOICES:
        raise LimitRefused(f"Too many choices. {name}: {len(criteria)} were sent, at most {MAX_CHOICES} are taken.")
    if question.type == "score" and not criteria:
        raise LimitRefused(f"Too few levels. {name}: at least 1 is needed.")
    if question.type == "score" and len(criteria) > max_levels:
        raise LimitRefused(f"Too many levels. {name}: {len(criteria)} were sent, at most {max_levels} are taken.")
    if question.type == "noul" and not question.instructions and not any(
        value not in (None, "") for value in (criteria or {}).values()
    ):
        raise LimitRefused(f"Nothing to decide. {name}: a noul needs instructions or a described criterion.")


def _not_json(reason: str) -> FieldsRefused:
    return FieldsRefused([FieldError(("body",), f"Invalid JSON: {reason}", "json_invalid")])


def _constant(name: str) -> None:
    # RFC 8259 section 6: Infinity and NaN are not permitted.
    raise _not_json(f"{name} is not a JSON number")


def _int(digits: str) -> int | float:
    # Python refuses to read a whole number past 4,300 digits, and writing it back costs time by its square.
    # RFC 8259 section 6: beyond double precision readers disagree; 400 digits do not fit a double at all.
    if len(digits) > 300:
        raise _not_json(f"a number of {len(digits)} digits")
    return int(digits)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # RFC 8259 section 4: with duplicate names readers disagree on what the document says.
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        name = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise _not_json(f"the name '{words(name, 100)}' appears twice in one object")
    return found


def _check_depth_and_text(document: Any) -> None:
    """Refuse what parses but cannot be written back as UTF-8 JSON: deep nests, lone surrogates, infinities."""
    level, depth = [document], 0
    while level:
        if depth > MAX_DEPTH:
            raise _not_json(f"nested deeper than {MAX_DEPTH}")
        below: list[Any] = []
        for value in level:
            if isinstance(value, str):
                _check_text(value)
            elif isinstance(value, dict):
                for name in value:
                    _check_text(name)
                below.extend(value.values())
            elif isinstance(value, list):
                below.extend(value)
            elif isinstance(value, float) and value in (float("inf"), float("-inf")):
                raise _not_json("a number too large for a double")
        level, depth = below, depth + 1


def _check_text(text: str) -> None:
    # An escape such as \ud800 without its pair parses, and has no UTF-8 form.
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise _not_json("an unpaired surrogate") from None
