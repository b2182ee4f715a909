"""A request body as a JSON document that every JSON reader reads the same way, or a refusal.

It knows where RFC 8259 leaves readers free to differ. It must not know what a document is for.
"""

import json
from typing import Any

from worker.errors import FieldError, FieldsRefused, words

# Deeper than any real state. Python's own parser gives up somewhere between 1,000 and 100,000, by version.
MAX_DEPTH = 200
# More digits than any double has. Python takes quadratic time to read and write whole numbers, however long.
MAX_DIGITS = 300


def decode(body: bytes) -> Any:
    """The JSON document in `body`; FieldsRefused if readers may differ on it."""
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


def _not_json(reason: str) -> FieldsRefused:
    return FieldsRefused([FieldError(("body",), f"Invalid JSON: {reason}", "json_invalid")])


def _constant(name: str) -> None:
    # RFC 8259 section 6: Infinity and NaN are not permitted.
    raise _not_json(f"{name} is not a JSON number")


def _int(digits: str) -> int | float:
    # RFC 8259 section 6: beyond a double's range and precision readers disagree.
    if len(digits) > MAX_DIGITS:
        raise _not_json(f"a number of {len(digits)} digits")
    return int(digits)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # RFC 8259 section 4: with duplicate names readers disagree on what the document says.
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        name = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise _not_json(f"the name '{words(name, 100)}' appears twice in one object")
    return members


def _check_depth_and_text(document: Any) -> None:
    """Refuses what parses but has no UTF-8 JSON form (lone surrogates, infinities), and deep nesting."""
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
