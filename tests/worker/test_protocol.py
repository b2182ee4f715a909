"""Documents that are requests, and what is said of those that are not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker import document, protocol
from worker.errors import FieldsRefused, Refused, UsageRefused

pytestmark = pytest.mark.once

NOUL = {"type": "noul", "instructions": "Refund?"}


def ask(question: Any, **more: Any) -> dict[str, Any]:
    return {"state": "x", "questions": {"q": question}, **more}


@pytest.mark.parametrize(
    "criteria",
    [None, {}, {"true": "a"}, {"false": {"b": 1}}, {"true": ["a"], "false": None}],
)
def test_noul_forms(criteria: Any) -> None:
    (question,) = protocol.parse(ask({**NOUL, "criteria": criteria})).questions
    assert question.names == ("false", "true")


def test_order_ids_and_unknown_fields() -> None:
    ids = ["z", "with space", "q.2", "質問", "🎯", " ", "\n"]
    request = protocol.parse({"state": [], "questions": dict.fromkeys(ids, NOUL), "seed": 7, "assets": []})
    assert [question.id for question in request.questions] == ids


def test_a_noul_without_instructions_needs_a_described_criterion() -> None:
    protocol.parse(ask({"type": "noul", "criteria": {"true": "it is late"}}))
    for criteria in (None, {}, {"true": ""}, {"true": None, "false": None}):
        with pytest.raises(Refused) as refused:
            protocol.parse(ask({"type": "noul", "criteria": criteria}))
        assert refused.value.status == 400 and "'q'" in refused.value.detail


@pytest.mark.parametrize(
    ("question", "status", "field"),
    [
        ({"type": "choice"}, 422, "criteria"),
        ({"type": "choice", "criteria": None}, 422, "criteria"),
        ({"type": "choice", "criteria": ["a", "b"]}, 422, "criteria"),
        ({"type": "choice", "criteria": {"a": 1}}, 422, "criteria"),
        ({"type": "choice", "criteria": {}}, 400, "criteria"),
        ({"type": "choice", "criteria": {str(i): None for i in range(256)}}, 400, "criteria"),
        ({"type": "score"}, 422, "criteria"),
        ({"type": "score", "criteria": {"0": "a"}}, 422, "criteria"),
        ({"type": "score", "criteria": ["a", None]}, 422, "criteria"),
        ({"type": "score", "criteria": []}, 400, "criteria"),
        ({"type": "score", "criteria": ["a"] * 11}, 400, "criteria"),
        ({"type": "noul", "instructions": "?", "criteria": ["a"]}, 422, "criteria"),
        ({"type": "noul", "instructions": "?", "criteria": "a"}, 422, "criteria"),
        ({"type": "noul", "instructions": "?", "criteria": {"yes": "a"}}, 422, "criteria"),
        ({"type": "noul", "instructions": 3}, 422, "instructions"),
        ({"type": "noul", "instructions": "?", "labels": {"true": "a", "false": "a"}}, 422, "labels"),
        ({"type": "boolean"}, 422, "type"),
        ({"type": ["noul"]}, 422, "type"),
        ({"instructions": "?"}, 422, "type"),
        ({"type": "box"}, 422, "type"),
        ("noul", 422, "q"),
        (None, 422, "q"),
    ],
)
def test_wrong_questions_are_named(question: Any, status: int, field: str) -> None:
    document_ = ask(NOUL)
    document_["questions"] = {"good": NOUL, "q": question}
    with pytest.raises(Refused) as refused:
        protocol.parse(document_)
    assert refused.value.status == status
    if status == 422:
        (error,) = refused.value.detail
        assert error["loc"][:3] == ["body", "questions", "q"] and error["loc"][-1] == field
    else:
        assert "'q'" in refused.value.detail and field in refused.value.detail


def test_all_wrong_questions_are_told_at_once() -> None:
    with pytest.raises(FieldsRefused) as refused:
        protocol.parse({"state": "x", "questions": {"a": {"type": "choice"}, "b": 3, "c": NOUL}})
    assert [error["loc"][2] for error in refused.value.detail] == ["a", "b"]


@pytest.mark.parametrize(
    "change",
    [
        {"state": None},
        {"state": 3},
        {"questions": {}},
        {"questions": []},
        {"model": 3},
        {"questions": {"": NOUL}},
    ],
)
def test_wrong_heads(change: dict[str, Any]) -> None:
    with pytest.raises(FieldsRefused):
        protocol.parse(ask(NOUL) | change)


@pytest.mark.parametrize("missing", ["state", "questions"])
def test_missing_fields(missing: str) -> None:
    whole = ask(NOUL)
    del whole[missing]
    with pytest.raises(FieldsRefused) as refused:
        protocol.parse(whole)
    assert refused.value.detail == [{"loc": ["body", missing], "msg": "Field required", "type": "missing"}]


def test_assets_are_refused_with_words() -> None:
    with pytest.raises(UsageRefused, match="text only"):
        protocol.parse(ask(NOUL, assets={"a": "x"}))


def test_the_laya_wire_takes_its_forms() -> None:
    whole = {"a": {"type": "choice", "criteria": ["x", "y"]}, "b": {"type": "score", "criteria": [1] * 32}}
    first, second = protocol.questions(whole, "laya")
    assert first.names == ("x", "y") and len(second.names) == 32


@pytest.mark.parametrize(
    ("value", "means"),
    [(True, True), ("true", True), (1, True), (1.0, True), ("FALSE", False), (0, False), (None, False)],
)
def test_switches_as_forms_send_them(value: Any, means: bool) -> None:
    whole = {"states": ["a"], "questions": {"q": NOUL}, "stream": value}
    assert protocol.parse_batch(whole).stream is means


@pytest.mark.parametrize("value", ["perhaps", 2, [], {"true": 1}])
def test_a_switch_that_means_nothing_is_refused_by_name(value: Any) -> None:
    with pytest.raises(FieldsRefused) as refused:
        protocol.parse_batch({"states": ["a"], "questions": {"q": NOUL}, "stream": value})
    assert refused.value.detail[0]["loc"] == ["body", "stream"]


def test_batch_bounds() -> None:
    for states in ([], None, "abc", {}):
        with pytest.raises(FieldsRefused):
            protocol.parse_batch({"states": states, "questions": {"q": NOUL}})
    with pytest.raises(Refused, match="Too many decisions"):
        protocol.parse_batch({"states": ["x"] * 4097, "questions": {"q": NOUL}})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nul",
        b"\xef\xbb\xbf{}",
        '{"state": "退款"}'.encode("gbk"),
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": 1e999}',
        b'{"a": ' + b"9" * 400 + b"}",
        b'{"a": 1, "a": 2}',
        b'{"state": "\\ud800"}',
        b'{"\\udfff": 1}',
        b"[" * 10_000 + b"]" * 10_000,
        b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
        b"[" * 300 + b"]" * 300,
    ],
)
def test_what_is_no_json_for_every_reader(body: bytes) -> None:
    with pytest.raises(FieldsRefused) as refused:
        document.decode(body)
    (error,) = refused.value.detail
    assert error["loc"] == ["body"] and error["type"] == "json_invalid" and len(error["msg"]) < 300


def test_what_is_json() -> None:
    text = '{"a": "\\ud83d\\ude42", "b": [1e3, -0.5, true, null], "c": {"a": 12345678901234567890}}'
    assert document.decode(text.encode()) == json.loads(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)
FIELD = st.sampled_from(["type", "criteria", "instructions", "labels"])
QUESTION = st.dictionaries(FIELD, JSON | st.sampled_from(["choice", "score", "noul", "box"]), max_size=4)
DOCUMENT = JSON | st.fixed_dictionaries(
    {},
    optional={
        "state": JSON,
        "questions": JSON | st.dictionaries(st.text(max_size=5), QUESTION | JSON),
        "model": JSON,
    },
)


@given(DOCUMENT, st.sampled_from(["jev", "laya"]))
def test_any_document_is_a_request_or_refused_in_shape(found: Any, wire: str) -> None:
    try:
        body = json.dumps(found).encode()
        request = protocol.parse(document.decode(body), wire)
    except Refused as refused:
        assert refused.status in (400, 422)
        json.dumps(refused.body())
        if refused.status == 422:
            assert all(
                error["loc"][0] == "body" and error["msg"] and error["type"] for error in refused.detail
            )
    else:
        assert request.questions
