"""Which header fields cross, in both directions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jevproxy.headers import (
    HOP_BY_HOP,
    content_length,
    is_chunked,
    is_coded,
    media_type,
    request_id,
    to_backend,
    to_client,
)

pytestmark = pytest.mark.once

NAMES = st.text("abcXYZ-", min_size=1, max_size=8).map(lambda name: "x-own-" + name)
FIELDS = st.lists(st.tuples(NAMES, st.text("ab ,;=", max_size=8)), max_size=8)


@given(FIELDS)
def test_end_to_end_fields_cross_in_order_and_as_often_as_they_came(fields: list[tuple[str, str]]) -> None:
    assert to_client(fields, "id") == [*fields, ("X-Request-Id", "id")]
    assert to_backend(fields, "id") == [*fields, ("X-Request-Id", "id")]


@given(FIELDS, st.sampled_from(sorted(HOP_BY_HOP)))
def test_hop_by_hop_fields_never_cross(fields: list[tuple[str, str]], name: str) -> None:
    for spelled in (name, name.title(), name.upper()):
        for cross in (to_client, to_backend):
            assert all(kept.lower() != name for kept, _ in cross([*fields, (spelled, "x")], "id"))


@pytest.mark.parametrize("connection", ["x-hop", "keep-alive, X-Hop", " , x-hop ,", "close,x-HOP"])
def test_what_connection_names_does_not_cross_but_the_length_does(connection: str) -> None:
    fields = [
        ("Connection", connection + ", content-length"),
        ("X-Hop", "1"),
        ("X-Own", "2"),
        ("Content-Length", "3"),
    ]
    for cross in (to_client, to_backend):
        assert [name for name, _ in cross(fields, "id")] == ["X-Own", "Content-Length", "X-Request-Id"]


def test_the_id_is_sent_once_and_the_backends_own_comes_back() -> None:
    assert to_backend([("X-REQUEST-ID", "theirs")], "ours") == [("X-Request-Id", "ours")]
    assert to_client([("x-request-id", "backend")], "ours") == [("x-request-id", "backend")]


def test_a_length_beside_chunks_does_not_reach_the_client() -> None:
    fields = [("Transfer-Encoding", "chunked"), ("Content-Length", "3"), ("X-Own", "1")]
    assert to_client(fields, "id") == [("X-Own", "1"), ("X-Request-Id", "id")]


@pytest.mark.parametrize(("value", "length"), [("0", 0), ("17", 17), ("017", 17)])
def test_a_length_is_digits(value: str, length: int) -> None:
    assert content_length([("CONTENT-LENGTH", value)]) == length


@pytest.mark.parametrize("value", ["+5", "-5", "0x5", "5, 5", "", "5 5", "\xb2", "1_0", "9" * 19])
def test_anything_else_is_no_length(value: str) -> None:
    with pytest.raises(ValueError):
        content_length([("Content-Length", value)])


def test_two_lengths_that_differ_are_none() -> None:
    with pytest.raises(ValueError):
        content_length([("Content-Length", "5"), ("content-length", "6")])


def test_codings_beside_chunked_are_told() -> None:
    assert is_chunked([("Transfer-Encoding", "chunked")]) and not is_coded(
        [("Transfer-Encoding", " Chunked ")]
    )
    assert is_coded([("Transfer-Encoding", "gzip, chunked")])


def test_a_media_type_has_no_parameters() -> None:
    assert media_type("Application/JSON ; charset=utf-8") == "application/json" and media_type(None) == ""


@given(st.text(max_size=140))
def test_a_request_id_is_always_safe_to_log(given_id: str) -> None:
    assert request_id([("X-Request-Id", given_id)]).isascii()
    assert not set(request_id([("X-Request-Id", given_id)])) & set('"\\ \n\r{}')
