"""Errors know their status, and what a client may see of them."""

from __future__ import annotations

import json

import pytest

from jevproxy import errors


def kinds(base: type[errors.ProxyError]) -> list[type[errors.ProxyError]]:
    return [base, *(found for child in base.__subclasses__() for found in kinds(child))]


@pytest.mark.parametrize("kind", kinds(errors.ProxyError), ids=lambda kind: kind.__name__)
def test_every_error_has_a_status_a_type_words_and_a_kind(kind: type[errors.ProxyError]) -> None:
    arguments = {errors.MethodNotAllowed: [["GET"]], errors.BodyTooLarge: [5]}
    error = kind(*arguments.get(kind, []))  # type: ignore[arg-type]
    assert 400 <= error.status < 600
    assert error.error_type and error.message and error.kind
    assert str(error) == error.message


def test_the_body_is_the_wire_contracts_and_openais_where_asked() -> None:
    plain = json.loads(errors.error_body(503, "overloaded", "Busy.", "id"))
    assert plain == {"detail": {"error_type": "overloaded", "message": "Busy.", "request_id": "id"}}
    both = json.loads(errors.error_body(503, "overloaded", "Busy.", "id", openai=True))
    assert both["detail"] == plain["detail"] and both["error"]["message"] == "Busy."
