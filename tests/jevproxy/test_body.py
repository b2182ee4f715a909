"""Request bodies: every byte, while it arrives, in the framing it came in; and never a part for the whole."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import pytest

from tests.backends import Exchange, scripted
from tests.callers import Caller
from tests.jevproxy.conftest import Pair, assert_quiet
from tests.messages import chunked, post, response
from tests.servers import memory, serving, start_jevproxy, wait_until

MIB = 1 << 20


def chunked_post(script: str, body: bytes, *fields: str) -> bytes:
    head = post(script, b"", "/v1/systemone", *fields).replace(
        b"Content-Length: 0", b"Transfer-Encoding: chunked"
    )
    return head + body


def test_a_body_of_known_length_stays_so(pair: Pair) -> None:
    body = random.Random(1).randbytes(300_000)
    reply = pair.ask(post("echo", body, "/v1/systemone", "x-marker: known"))
    assert reply.body == body
    (seen,) = pair.backend.of("x-marker: known")
    assert (seen.values("content-length"), seen.values("transfer-encoding")) == (["300000"], [])


@pytest.mark.parametrize(
    "body",
    [
        b"".join(b"1;n=%d\r\n%c\r\n" % (n, byte) for n, byte in enumerate(b'{"a":1}'))
        + b"0;x\r\nX-T: 1\r\n\r\n",
        b'7 ; a="b;c"\r\n{"a":1}\r\n0\r\n\r\n',
        chunked(b'{"a"', b":1}"),
    ],
    ids=["one-byte-chunks-extensions-trailers", "quoted-extension", "plain"],
)
def test_a_chunked_body_stays_chunked_and_keeps_its_bytes(pair: Pair, body: bytes) -> None:
    marker = f"x-marker: chunks.{len(body)}"
    with pair.caller() as caller:
        assert caller.ask(chunked_post("ok", body, marker)).status == 200
        assert caller.ask(post()).status == 200
    (seen,) = pair.backend.of(marker)
    assert (seen.values("content-length"), seen.values("transfer-encoding")) == ([], ["chunked"])
    pieces = seen.body.split(b"\r\n")[1::2]
    assert b"".join(pieces) == b'{"a":1}'


def test_a_post_without_a_body_has_none_at_the_backend(pair: Pair) -> None:
    head = b"POST /v1/systemone HTTP/1.1\r\nHost: h\r\nx-marker: none\r\n"
    assert pair.ask(head + b"\r\n").status == 200
    assert pair.ask(head + b"Content-Length: 0\r\n\r\n").status == 200
    assert pair.ask(chunked_post("ok", b"0\r\n\r\n", "x-marker: none")).status == 200
    bare, zero, chunks = pair.backend.of("x-marker: none")
    assert (bare.values("content-length"), bare.values("transfer-encoding")) == ([], [])
    assert (zero.values("content-length"), zero.values("transfer-encoding")) == (["0"], [])
    assert (chunks.values("transfer-encoding"), chunks.body) == (["chunked"], b"0\r\n\r\n")


def test_the_backend_has_the_first_bytes_while_the_rest_is_still_to_come(pair: Pair) -> None:
    with pair.caller() as caller:
        request = post("early_interim", b"a" * 1000, "/v1/systemone", "x-marker: while-arriving")
        caller.send(request[:-500])
        pair.backend.await_request("x-marker: while-arriving")
        assert caller.ask(request[-500:], "POST").body == b"all"


def test_an_interim_answer_does_not_end_the_upload(pair: Pair) -> None:
    assert pair.ask(post("early_interim", b"a" * 900_000)).body == b"all"


@pytest.mark.parametrize("framing", ["length", "chunks"])
def test_an_early_answer_is_relayed_while_the_client_still_sends(pair: Pair, framing: str) -> None:
    with pair.caller() as caller:
        if framing == "length":
            caller.send(post("early_413", b"a" * 900_000)[:-800_000])
        else:
            caller.send(chunked_post("early_413", chunked(b"a" * 100_000, last=False)))
        reply = caller.reply()
        assert (reply.status, reply.body, reply.value("connection")) == (413, b'{"no":1}', "close")
        caller.half_close()
        assert caller.at_end()
    pair.becomes_idle()


def test_a_backend_that_hangs_up_during_the_upload_is_502(pair: Pair) -> None:
    with pair.caller() as caller:
        assert caller.ask(post("early_close", b"a" * 900_000)).status == 502


@pytest.mark.parametrize("end", ["half-close", "close", "reset", "silence"])
@pytest.mark.parametrize("framing", ["length", "chunks", "between-chunks", "before-trailers"])
def test_a_body_that_its_client_cuts_short_is_never_forwarded_as_whole(
    pair: Pair, hasty: Pair, end: str, framing: str
) -> None:
    marker = f"x-marker: short.{end}.{framing}"
    pair = hasty if end == "silence" else pair
    with pair.caller() as caller:
        if framing == "length":
            caller.send(post("ok", b"a" * 10, "/v1/systemone", marker)[:-9])
        else:
            part = {
                "chunks": b"5\r\nhe",
                "between-chunks": b"5\r\nhello\r\n",
                "before-trailers": b"5\r\nhello\r\n0\r\n",
            }
            caller.send(chunked_post("ok", part[framing], marker))
        if end == "half-close":
            caller.half_close()
        elif end == "close":
            caller.close()
        elif end == "reset":
            caller.reset()
        else:
            assert caller.reply().status == 408
        if end in ("half-close", "silence"):
            caller.rest()
    pair.becomes_idle()
    assert all(not seen.whole for seen in pair.backend.of(marker))


@pytest.mark.parametrize("framing", ["length", "chunks"])
def test_a_client_that_ends_its_body_early_and_listens_is_told_so(pair: Pair, framing: str) -> None:
    id = f"x-request-id: half.{framing}"
    with pair.caller() as caller:
        if framing == "length":
            caller.send(post("ok", b"a" * 10, "/v1/systemone", id)[:-9])
        else:
            caller.send(chunked_post("ok", b"5\r\nhe", id))
        caller.half_close()
        reply = caller.reply()
        assert (reply.status, reply.error_type) == (400, "invalid_request")
        assert reply.json()["detail"]["message"] == "The request body was cut short."
        assert caller.at_end()
    assert pair.logged(f"half.{framing}")["status"] == 400


@pytest.mark.parametrize("framing", ["length", "chunks"])
def test_one_byte_over_the_limit_is_a_413_that_a_client_still_sending_can_read(
    pair: Pair, framing: str
) -> None:
    marker = f"x-marker: over.{framing}"
    body = b"a" * (MIB + 1)
    pieces = [body[at : at + 65536] for at in range(0, len(body), 65536)]
    request = post("ok", body, "/v1/systemone", marker)
    with pair.caller() as caller:
        caller.send(request if framing == "length" else chunked_post("ok", chunked(*pieces), marker))
        reply = caller.reply()
        assert (reply.status, reply.error_type, reply.value("connection")) == (
            413,
            "request_too_large",
            "close",
        )
        caller.half_close()
        assert caller.at_end()
    pair.becomes_idle()
    assert all(not seen.whole for seen in pair.backend.of(marker))
    exact = post("ok", body[:-1]) if framing == "length" else chunked_post("ok", chunked(*pieces[:-1]))
    assert pair.ask(exact).status == 200


def test_a_gigabyte_declared_is_refused_unread(pair: Pair) -> None:
    with pair.caller() as caller:
        caller.send(post("ok", b"").replace(b"Content-Length: 0", b"Content-Length: %d" % (1 << 30)))
        assert caller.reply().status == 413


def test_continue_is_said_here_and_not_asked_of_the_backend(pair: Pair) -> None:
    with pair.caller() as caller:
        caller.send(post("echo", b"hello", "/v1/systemone", "Expect: 100-continue", "x-marker: expects")[:-5])
        assert caller.head().status == 100
        assert caller.ask(b"hello", "POST").body == b"hello"
    assert pair.backend.of("x-marker: expects")[0].values("expect") == []


@pytest.mark.parametrize("size", [5, 60_000, 200_000])
@pytest.mark.parametrize("framing", ["length", "chunks"])
def test_a_refused_requests_body_is_never_taken_for_the_next_request(
    pair: Pair, size: int, framing: str
) -> None:
    smuggled = (post("ok", b"", "/v1/systemone", "x-marker: unread-body") * 3000)[:size]
    with pair.caller() as caller:
        request = post("ok", smuggled, "/nowhere")
        if framing == "chunks":
            request = chunked_post("ok", chunked(smuggled)).replace(b"/v1/systemone", b"/nowhere", 1)
        caller.send(request + post("ok", b"", "/v1/systemone", "x-marker: behind-it"))
        assert caller.reply().status == 404
        caller.half_close()
        caller.rest()
    pair.becomes_idle()
    assert pair.backend.of("x-marker: unread-body") == []


def counting(exchange: Exchange) -> None:
    """Reads a body that it does not keep."""
    exchange.close()
    left = int(exchange.values("x-size")[0]) - len(exchange.body)
    chunks = exchange.values("transfer-encoding") == ["chunked"]
    tail = b""
    while left > 0 or (chunks and not tail.endswith(b"\r\n0\r\n\r\n")):
        data = exchange.socket.recv(1 << 18)
        if not data:
            return
        tail = (tail + data)[-7:]
        left -= len(data)
    exchange.send(response(b"ok", b"Connection: close\r\n"))


@pytest.fixture(scope="module")
def roomy() -> Iterator[Pair]:
    """The default limits; one worker process, whose memory is measured."""

    def gives(exchange: Exchange) -> None:
        exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (100 * MIB))
        for _ in range(1600):
            exchange.send(b"g" * 65536)

    with scripted({"early_count": counting, "gives": gives}) as backend, start_jevproxy(backend.url) as proxy:
        yield Pair(proxy, backend)
        assert_quiet(proxy)


@pytest.mark.parametrize("framing", ["length", "chunks", "download"])
def test_a_hundred_megabytes_pass_with_flat_memory(roomy: Pair, framing: str) -> None:
    with roomy.caller() as caller:  # what a first request loads is not counted
        assert caller.ask(post()).status == 200
    worker = serving(roomy.proxy.pid)
    before = memory(worker, "VmHWM")
    piece = random.Random(2).randbytes(MIB)
    with roomy.caller() as caller:
        if framing == "download":
            caller.send(post("gives"))
            caller.head()
            got = 0
            while got < 100 * MIB:
                data = caller.some()
                assert data
                got += len(data)
        else:
            head = post("early_count", b"", "/v1/systemone", f"X-Size: {100 * MIB}")
            framed = (
                b"Content-Length: %d" % (100 * MIB) if framing == "length" else b"Transfer-Encoding: chunked"
            )
            caller.send(head.replace(b"Content-Length: 0", framed))
            for _ in range(100):
                caller.send(piece if framing == "length" else chunked(piece, last=False))
            if framing == "chunks":
                caller.send(b"0\r\n\r\n")
            assert caller.reply().status == 200
    # Measured 2026-11-30: 0.2 to 2.9 MB.
    assert memory(worker, "VmHWM") - before < 8e6


def test_slow_uploads_take_nothing_from_others(pair: Pair) -> None:
    stop = threading.Event()
    slow = [pair.caller() for _ in range(20)]

    def drip(caller: Caller) -> None:
        caller.send(post("ok", b"a" * 100, "/v1/systemone", "x-marker: slow")[:-100])
        while not stop.wait(0.1):
            try:
                caller.send(b"a")
            except OSError:
                return

    threads = [threading.Thread(target=drip, args=(caller,)) for caller in slow]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: pair.metric("jevproxy_in_flight") == 20, what="every slow upload being under way")
        assert [pair.ask(post()).status for _ in range(20)] == [200] * 20
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        for caller in slow:
            caller.close()
    pair.becomes_idle()
