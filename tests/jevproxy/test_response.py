"""What a backend's bytes become at the client: relayed if well-formed, 502 or a visible cut if not."""

from __future__ import annotations

import gzip
import socket
import threading

import pytest

from jevproxy.errors import BackendBroken
from jevproxy.response import HEAD_LIMIT, ResponseReader
from tests.callers import Caller
from tests.jevproxy.conftest import Pair
from tests.jevproxy.scripts import BIG, GZIPPED, OVER_A_MIB
from tests.messages import Reply, get

# Nothing of these reaches a client as a success: not even a byte has left when they fail.
BAD_GATEWAY = [
    "cut_length", "cut_length_reset", "cut_chunks", "cut_in_chunk", "cut_in_trailers", "cut_head", "close", "reset",
    "chunk_end", "chunk_plus", "chunk_0x", "chunk_negative", "chunk_no_size", "chunk_bare_cr", "te_gzip", "te_twice",
    "te_unknown", "length_twice", "length_list", "length_plus", "length_negative", "bare_cr_in_field",
    "bare_cr_in_reason", "nul_in_reason", "control_in_field", "space_before_colon", "no_colon", "folded_first",
    "switching", "status_1000", "http2", "http09", "garbage", "endless_head",
]  # fmt: skip


@pytest.mark.parametrize("script", BAD_GATEWAY)
def test_a_cut_or_malformed_answer_is_502_and_the_client_may_go_on(pair: Pair, script: str) -> None:
    with pair.caller() as caller:
        for _ in range(2):
            reply = caller.ask(get(script))
            assert (reply.status, reply.whole, reply.error_type) == (502, True, "bad_gateway")
        assert caller.ask(get()).body == b"{}"


@pytest.mark.parametrize(
    "script", ["cut_stream", "cut_big", "cut_big_reset", "json_over_a_mib_cut", "reset_until_close"]
)
@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_a_body_cut_after_its_first_bytes_left_never_looks_whole(
    pair: Pair, script: str, version: str
) -> None:
    with pair.caller() as caller:
        reply = caller.ask(get(script).replace(b"HTTP/1.1", f"HTTP/{version}".encode()))
        assert reply.status == 502 if reply.whole else reply.status == 200
        assert reply.whole is (reply.status == 502)
        if not reply.whole:
            assert caller.at_end()
    pair.becomes_idle()


@pytest.mark.parametrize(
    ("script", "body"),
    [
        ("two_mb", BIG),
        ("until_close", b"y" * 5000),
        ("http10", b"{}"),
        ("json_chunks", b'{"a":1}'),
        ("json_over_a_mib", b"".join(OVER_A_MIB)),
        ("length_and_chunks", b"hello"),
        ("trailers", b"hello"),
        ("interim", b"{}"),
        ("no_reason", b"ok"),
        ("folded", b"ok"),
        ("line_feeds", b"ok"),
        ("latin", b"ok"),
        ("unannounced_close", b"{}"),
    ],
)
@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_a_well_formed_answer_arrives_whole(pair: Pair, script: str, body: bytes, version: str) -> None:
    reply = pair.ask(get(script).replace(b"HTTP/1.1", f"HTTP/{version}".encode()))
    assert (reply.status, reply.body, reply.whole, reply.trailers) == (200, body, True, [])


def test_end_to_end_fields_cross_and_hop_by_hop_ones_do_not(pair: Pair) -> None:
    fields = [
        field for field in pair.ask(get("fields")).fields if field[0] not in ("Connection", "X-Request-Id")
    ]
    assert fields == [
        ("Date", "Mon, 30 Nov 2026 00:00:00 GMT"), ("Server", "theirs"), ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2"),
        ("Vary", "a"), ("vary", "b"), ("Content-Length", "2"),
    ]  # fmt: skip


def test_a_folded_field_becomes_one_line_and_other_bytes_stay(pair: Pair) -> None:
    assert pair.ask(get("folded")).value("x-a") == "a b"
    assert pair.ask(get("latin")).value("x-a") == "caf\xe9"


@pytest.mark.parametrize("accepted", ["gzip", "br", "zstd", "identity", None])
@pytest.mark.parametrize(
    ("script", "status", "body", "coding"),
    [
        ("gzip", 200, GZIPPED, "gzip"),
        ("gzip_500", 500, GZIPPED, "gzip"),
        ("gzip_chunks", 200, GZIPPED, "gzip"),
        ("gzip_untrue", 200, b'{"plain":1}', "gzip"),
        ("gzip_204", 204, b"", "gzip"),
        ("json_chunks", 200, b'{"a":1}', None),
    ],
)
def test_codings_are_the_backends_business(
    pair: Pair, script: str, status: int, body: bytes, coding: str | None, accepted: str | None
) -> None:
    fields = [f"Accept-Encoding: {accepted}"] if accepted else []
    marker = f"X-Marker: {script}.{accepted}"
    reply = pair.ask(get(script, "/v1/models", *fields, marker))
    assert (reply.status, reply.body, reply.value("content-encoding")) == (status, body, coding)
    if length := reply.value("content-length"):
        assert int(length) == len(body)
    assert pair.backend.of(marker)[0].values("accept-encoding") == ([accepted] if accepted else [])
    assert gzip.decompress(GZIPPED)


@pytest.mark.parametrize(
    "script", ["s204_body", "s204_length_0", "gzip_204", "s304", "s304_body", "two_mb", "gzip"]
)
@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
def test_a_bodiless_answer_leaves_the_connection_in_step(pair: Pair, script: str, method: bytes) -> None:
    with pair.caller() as caller:
        for _ in range(3):
            first = caller.ask(get(script).replace(b"GET", method))
            assert first.status in (200, 204, 304)
            if first.status == 304 or (method == b"HEAD" and first.status == 200):
                assert first.value("content-length")
            assert caller.ask(get("echo")).body == b""
            assert caller.ask(get()).body == b"{}"


@pytest.mark.parametrize("script", ["surplus", "surplus_long", "surplus_chunks"])
def test_bytes_behind_an_answer_are_nobodys_answer(pair: Pair, script: str) -> None:
    with pair.caller() as caller:
        for _ in range(5):
            assert caller.ask(get(script)).body == b"ok"
            reply = caller.ask(get())
            assert (reply.body, reply.values("x-poison")) == (b"{}", [])


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("where", ["/v1/models", "http://elsewhere.test/x", "//evil.test/"])
def test_redirects_are_relayed(pair: Pair, code: int, where: str) -> None:
    marker = f"X-Marker: {code}{where}"
    reply = pair.ask(get(f"redirect {code} {where}", "/v1/models", marker))
    assert (reply.status, reply.value("location"), reply.body) == (code, where, b"move")
    assert len(pair.backend.of(marker)) == 1


@pytest.mark.parametrize(
    ("script", "status", "reason", "body"),
    [
        ("teapot", 418, "I'm a teapot", b"short and stout"),
        ("theirs_500", 500, "Internal Server Error", b'{"detail":"theirs"}'),
        ("theirs_503", 503, "Service Unavailable", b"busy"),
    ],
)
def test_errors_are_relayed_as_they_are(
    pair: Pair, script: str, status: int, reason: str, body: bytes
) -> None:
    reply = pair.ask(get(script))
    assert (reply.status, reply.reason, reply.body) == (status, reason, body)


def test_a_cookie_for_one_client_is_not_sent_for_another(pair: Pair) -> None:
    assert pair.ask(get("cookie")).value("set-cookie") == "session=one; Path=/"
    pair.ask(get("ok", "/v1/models", "X-Marker: after-cookie"))
    assert pair.backend.of("after-cookie")[0].values("cookie") == []


def test_a_stream_leaves_as_it_comes_and_its_failure_is_a_cut(pair: Pair) -> None:
    with pair.caller() as caller:
        caller.send(get("breaks_off", "/v1/models", "X-Gate: stream", "X-Request-Id: breaks-off"))
        assert caller.head().status == 200
        caller.until(b"data: 1\n\n\r\n")
        pair.backend.gates.setdefault("stream", threading.Event()).set()
        assert caller.rest() == b""
    line = pair.logged("breaks-off")
    assert (line["status"], line["failure"], line["bytes"]) == (200, "cut", 18)


def read_slowly(data: bytes, method: str = "GET") -> tuple[ResponseReader, bytes]:
    """A response that comes byte by byte, read to its end."""
    ours, theirs = socket.socketpair()
    with ours, theirs:

        def feed() -> None:
            for at in range(len(data)):
                theirs.sendall(data[at : at + 1])
            theirs.shutdown(socket.SHUT_WR)

        feeder = threading.Thread(target=feed)
        feeder.start()
        try:
            reader = ResponseReader(ours, method)
            body = b""
            while piece := reader.read_some():
                body += piece
        finally:
            feeder.join()
        return reader, body


def test_where_the_pieces_break_makes_no_difference() -> None:
    data = (
        b"HTTP/1.1 103 E\r\nA: b\r\n\r\nHTTP/1.1 200 Fine\r\nTransfer-Encoding: chunked\r\nX: 1\r\n y\r\n\r\n"
    )
    data += b"4;e=1\r\nabcd\r\nA\r\n0123456789\r\n0\r\nT: 1\r\n\r\n"
    reader, body = read_slowly(data)
    assert (reader.status, reader.reason, body) == (200, "Fine", b"abcd0123456789")
    assert reader.fields == [("Transfer-Encoding", "chunked"), ("X", "1 y")]
    assert reader.finished and reader.reusable


@pytest.mark.parametrize(
    ("head", "reusable"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: x, Close\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: Keep-Alive\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\n\r\n", False),
        (b"HTTP/1.1 204 OK\r\n\r\n", True),
        (b"HTTP/1.1 204 OK\r\nContent-Length: 3\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n0\r\n\r\n", False),
    ],
)
def test_a_connection_is_kept_only_where_its_state_is_sure(head: bytes, reusable: bool) -> None:
    assert read_slowly(head)[0].reusable is reusable


@pytest.mark.parametrize(
    ("data", "kind"), [(b"", "closed"), (b"HTTP/1.1 2", "cut"), (b"nonsense\r\n\r\n", "protocol")]
)
def test_failures_have_their_kind(data: bytes, kind: str) -> None:
    with pytest.raises(BackendBroken) as caught:
        read_slowly(data)
    assert caught.value.kind == kind


def test_a_callers_connection_reads_as_strictly(pair: Pair) -> None:
    """The tests' own client: what it calls whole, is."""
    with Caller(pair.proxy.url) as caller:
        reply: Reply = caller.ask(get("json_chunks"))
        assert reply.value("transfer-encoding") == "chunked" and reply.whole


@pytest.mark.parametrize(("over", "taken"), [(0, True), (1, False)])
def test_a_head_over_the_limit_is_refused_however_it_is_cut_into_pieces(over: int, taken: bool) -> None:
    start, end = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-A: ", b"\r\n\r\n"
    head = start + b"a" * (HEAD_LIMIT + over - len(start) - len(end)) + end

    class Pieces:
        """A socket that gives its bytes in large pieces, so that the last one holds both the limit and the end."""

        given = 0

        def recv(self, most: int) -> bytes:
            size = min(most, 60_000)
            piece = head[self.given : self.given + size]
            self.given += len(piece)
            return piece

    if taken:
        assert ResponseReader(Pieces(), "GET").finished
    else:
        with pytest.raises(BackendBroken):
            ResponseReader(Pieces(), "GET")
