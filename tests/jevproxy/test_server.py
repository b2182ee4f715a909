"""What the server refuses before there is a request, and that nothing behind it is taken for another one."""

from __future__ import annotations

import pytest

from tests.jevproxy.conftest import Pair
from tests.messages import Reply, get

CHUNKS = b"5\r\nhello\r\n0\r\n\r\n"


def framed(field: bytes, body: bytes) -> bytes:
    return b"POST /v1/systemone HTTP/1.1\r\nHost: h\r\n" + field + b"\r\n\r\n" + body


TE = b"Transfer-Encoding: chunked"
ATTACKS = {
    "te-xchunked": framed(b"Transfer-Encoding: xchunked", CHUNKS),
    "te-space-before-colon": framed(b"Transfer-Encoding : chunked", CHUNKS),
    "te-vertical-tab": framed(b"Transfer-Encoding: \x0bchunked", CHUNKS),
    "te-form-feed": framed(b"Transfer-Encoding: chunked\x0c", CHUNKS),
    "te-nul": framed(b"Transfer-Encoding: chunked\0", CHUNKS),
    "te-no-break-space": framed(b"Transfer-Encoding: \xa0chunked", CHUNKS),
    "te-next-line": framed(b"Transfer-Encoding: chunked\x85", CHUNKS),
    "te-quoted": framed(b'Transfer-Encoding: "chunked"', CHUNKS),
    "te-parameter": framed(b"Transfer-Encoding: chunked;q=1", CHUNKS),
    "te-empty-member": framed(b"Transfer-Encoding: ,chunked", CHUNKS),
    "te-folded": framed(b"Transfer-Encoding:\r\n chunked", CHUNKS),
    "te-twice": framed(TE + b"\r\n" + TE, CHUNKS),
    "te-then-identity": framed(b"Transfer-Encoding: chunked, identity", CHUNKS),
    "te-identity": framed(b"Transfer-Encoding: identity\r\nContent-Length: 5", b"hello"),
    "te-and-length": framed(TE + b"\r\nContent-Length: 5", CHUNKS),
    "length-and-te": framed(b"Content-Length: 15\r\n" + TE, CHUNKS),
    "te-in-1.0": b"POST /v1/systemone HTTP/1.0\r\n" + TE + b"\r\n\r\n" + CHUNKS,
    "lengths-differ": framed(b"Content-Length: 5\r\nContent-Length: 6", b"hello"),
    "lengths-list": framed(b"Content-Length: 5, 5", b"hello"),
    "length-plus": framed(b"Content-Length: +5", b"hello"),
    "length-minus": framed(b"Content-Length: -5", b"hello"),
    "length-hex": framed(b"Content-Length: 0x5", b"hello"),
    "length-empty": framed(b"Content-Length: ", b"hello"),
    "length-superscript": framed(b"Content-Length: \xb2", b"hello"),
    "length-underscore": framed(b"Content-Length: 1_0", b"hello"),
    "length-two-words": framed(b"Content-Length: 5 0", b"hello"),
    "length-space-before-colon": framed(b"Content-Length : 5", b"hello"),
    "length-huge": framed(b"Content-Length: 99999999999999999999999", b"hello"),
    "chunk-plus": framed(TE, b"+5\r\nhello\r\n0\r\n\r\n"),
    "chunk-0x": framed(TE, b"0x5\r\nhello\r\n0\r\n\r\n"),
    "chunk-underscore": framed(TE, b"0_5\r\nhello\r\n0\r\n\r\n"),
    "chunk-minus": framed(TE, b"-5\r\nhello\r\n0\r\n\r\n"),
    "chunk-line-feeds": framed(TE, b"5\nhello\n0\n\n"),
    "chunk-end": framed(TE, b"5\r\nhelloXX0\r\n\r\n"),
    "chunk-extension-cr": framed(TE, b"5;a\rb\r\nhello\r\n0\r\n\r\n"),
    "bare-line-feeds": b"GET /v1/models HTTP/1.1\nHost: h\n\n",
    "folded-field": b"GET /v1/models HTTP/1.1\r\nHost: h\r\nX-A: 1\r\n 2\r\n\r\n",
    "no-colon": b"GET /v1/models HTTP/1.1\r\nHost: h\r\nbad\r\n\r\n",
    "bare-cr-in-field": b"GET /v1/models HTTP/1.1\r\nHost: h\r\nX-A: a\rX-B: 1\r\n\r\n",
    "lower-case-method": b"get /v1/models HTTP/1.1\r\nHost: h\r\n\r\n",
    "http2-preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "tls-hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 50 + b"\r\n",
    "fragment": b"GET /v1/models#x/../y HTTP/1.1\r\nHost: h\r\n\r\n",
}


@pytest.mark.parametrize("name", ATTACKS)
def test_ambiguous_framing_is_400_and_close_and_the_backend_sees_no_second_request(
    pair: Pair, name: str
) -> None:
    before = len(pair.backend.seen)
    with pair.caller() as caller:
        caller.send(ATTACKS[name] + get("ok", "/v1/models", f"x-marker: smuggled.{name}."))
        reply = caller.reply()
        assert (reply.status, reply.error_type, reply.value("connection")) == (
            400,
            "invalid_request",
            "close",
        )
        assert reply.value("x-request-id") == reply.json()["detail"]["request_id"]  # type: ignore[index]
        assert caller.at_end()
    pair.becomes_idle()
    seen = [one for one in pair.backend.seen[before:] if b"/metrics" not in one.head]
    assert all(not one.whole for one in seen) and len(seen) <= 1
    assert pair.backend.of(f"x-marker: smuggled.{name}.") == []


def test_a_refused_request_keeps_its_id_where_that_is_legible(pair: Pair) -> None:
    with pair.caller() as caller:
        reply = caller.ask(b"GET /v1/models HTTP/1.1\r\nX-Request-ID: mine-7\r\nbad\r\n\r\n", "GET")
    assert (reply.status, reply.value("x-request-id")) == (400, "mine-7")
    assert pair.logged("mine-7")["status"] == 400
    for unfit in (
        b"X-Request-Id: one\r\nX-Request-Id: two",
        b"X-Request-Id: two words",
        b"X-Request-Id : mine",
    ):
        with pair.caller() as caller:
            reply = caller.ask(b"GET /v1/models HTTP/1.1\r\n" + unfit + b"\r\nbad\r\n\r\n", "GET")
        assert reply.status == 400 and len(reply.value("x-request-id") or "") == 32


@pytest.mark.parametrize("coding", [b"gzip, chunked", b"identity, chunked"])
def test_a_transfer_coding_beside_chunked_is_501_and_close(pair: Pair, coding: bytes) -> None:
    with pair.caller() as caller:
        caller.send(framed(b"Transfer-Encoding: " + coding, CHUNKS))
        assert caller.reply().status == 501
        assert caller.at_end()


@pytest.mark.parametrize("field", [b"Transfer_Encoding: chunked", b"Content_Length: 500"])
def test_fields_that_a_backend_could_misread_as_framing_do_not_cross(pair: Pair, field: bytes) -> None:
    marker = b"x-marker: misspelled." + field
    reply = pair.ask(framed(b"X-Script: echo\r\nContent-Length: 5\r\n" + field + b"\r\n" + marker, b"hello"))
    assert reply.body == b"hello"
    (seen,) = pair.backend.of(marker.decode())
    assert seen.values(field.decode().partition(":")[0]) == []


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /v1/models?" + b"a" * 9000 + b" HTTP/1.1\r\nHost: h\r\n\r\n", 414),
        (b"GET /v1/models HTTP/1.1\r\nHost: h\r\nX-A: " + b"a" * 9000 + b"\r\n\r\n", 431),
        (b"GET /v1/models HTTP/1.1\r\nHost: h\r\n" + b"X: 1\r\n" * 200 + b"\r\n", 431),
        (b"GET /v1/models HTTP/1.1\r\nHost: h\r\nExpect: banana\r\n\r\n", 417),
    ],
    ids=["long-line", "long-field", "many-fields", "unknown-expectation"],
)
def test_what_is_too_much_has_its_own_status(pair: Pair, data: bytes, status: int) -> None:
    with pair.caller() as caller:
        reply: Reply = caller.ask(data)
        assert (reply.status, reply.error_type, reply.value("content-type")) == (
            status, "invalid_request", "application/json",
        )  # fmt: skip
        assert caller.at_end()


@pytest.mark.parametrize("option", ["close", "TE, close", "Close", "x-a,close"])
def test_a_client_that_wants_the_connection_closed_is_told_so(pair: Pair, option: str) -> None:
    with pair.caller() as caller:
        assert caller.ask(get("ok", "/v1/models", f"Connection: {option}")).value("connection") == "close"
        assert caller.at_end()


def test_a_1_0_client_may_keep_its_connection(pair: Pair) -> None:
    request = b"GET /v1/models HTTP/1.0\r\nConnection: keep-alive\r\nX-Script: json_chunks\r\n\r\n"
    with pair.caller() as caller:
        reply = caller.ask(request)  # of no known length: the end of the connection is the body's
        assert (reply.body, reply.values("transfer-encoding")) == (b'{"a":1}', [])
    with pair.caller() as caller:
        for _ in range(3):
            assert caller.ask(request.replace(b"json_chunks", b"ok")).body == b"{}"
