"""Streams leave as they arrive, in any number, and never look finished when they failed."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tests.backends import Exchange, Scripted
from tests.callers import PATIENCE, Caller, together
from tests.generation.conftest import CHAT, chat, event
from tests.messages import request
from tests.servers import Program

MEDIA = [
    "text/event-stream",
    "text/event-stream; charset=utf-8",
    "application/x-ndjson",
    "audio/wav",
    "text/plain",
]


@pytest.mark.parametrize("media", MEDIA)
def test_a_chunk_leaves_before_the_next_one_comes(backend: Scripted, front: Program, media: str) -> None:
    go = [threading.Event() for _ in range(3)]

    def play(exchange: Exchange) -> None:
        exchange.start(media)
        for number, gate in enumerate(go):
            exchange.chunk(event(number))
            assert gate.wait(PATIENCE)
        exchange.end()

    with chat(front, backend.plays(play), "Connection: close") as client:
        assert client.head().status == 200
        for number, gate in enumerate(go):
            client.until(event(number))
            gate.set()
        assert client.rest().endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("media", MEDIA[:4])
def test_the_head_leaves_before_the_first_event(backend: Scripted, front: Program, media: str) -> None:
    go = threading.Event()

    def play(exchange: Exchange) -> None:
        exchange.start(media)
        assert go.wait(PATIENCE)
        exchange.chunk(event(1))
        exchange.end()

    with chat(front, backend.plays(play)) as client:
        client.head()
        go.set()
        client.until(event(1))
        client.until(b"0\r\n\r\n")


def test_64_streams_progress_together(backend: Scripted, front: Program) -> None:
    """The next event of any stream is sent when all 64 clients have read the one before."""
    read = [threading.Barrier(64) for _ in range(5)]
    sent = [threading.Event() for _ in range(5)]

    def play(exchange: Exchange) -> None:
        exchange.start()
        for number in range(5):
            exchange.chunk(event(number))
            assert sent[number].wait(PATIENCE)
        exchange.end()

    script = backend.plays(play)

    def consume(_: int) -> None:
        with chat(front, script) as client:
            client.head()
            for number in range(5):
                client.until(event(number))
                read[number].wait(PATIENCE)
                sent[number].set()
            client.until(b"0\r\n\r\n")

    together(64, consume)


FAILURES: dict[str, Callable[[Exchange], None]] = {
    "closed": Exchange.close,
    "reset": Exchange.reset,
    "closed within a chunk": lambda exchange: exchange.send(b"ff\r\nhalf"),
    "a chunk without a size": lambda exchange: exchange.send(b"what\r\n"),
}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("media", ["text/event-stream", "audio/wav", "text/plain"])
def test_a_failed_stream_never_looks_finished(
    backend: Scripted, front: Program, failure: str, media: str
) -> None:
    read = threading.Event()

    def play(exchange: Exchange) -> None:
        exchange.start(media)
        exchange.chunk(event(1))
        assert read.wait(PATIENCE)
        FAILURES[failure](exchange)
        exchange.close()

    with chat(front, backend.plays(play)) as client:
        client.head()
        client.until(event(1) + b"\r\n")
        read.set()
        rest = client.rest()
        assert b"0\r\n\r\n" not in rest and b"[DONE]" not in rest and b"error" not in rest


def test_a_failed_stream_is_reset_for_a_client_that_counts_on_the_end(
    backend: Scripted, proxy: Program
) -> None:
    """HTTP/1.0 has no chunks: the connection's end alone would look like the stream's."""
    read = threading.Event()

    def play(exchange: Exchange) -> None:
        exchange.start()
        exchange.chunk(event(1))
        assert read.wait(PATIENCE)
        exchange.close()

    named = f"X-Script: {backend.plays(play)}".encode()
    with Caller(proxy.url) as client:
        client.send(request(f"POST {CHAT}", b"{}", named, version=b"HTTP/1.0", close=False))
        assert client.head().values("transfer-encoding") == []
        client.until(event(1))
        read.set()
        client.rest()
        assert client.was_reset


def test_a_stream_of_known_length_that_is_cut_is_cut(backend: Scripted, front: Program) -> None:
    def play(exchange: Exchange) -> None:
        exchange.send(b"HTTP/1.1 200 OK\r\nContent-Type: video/mp4\r\nContent-Length: 3000000\r\n\r\n")
        exchange.send(bytes(2_000_000))
        exchange.close()

    with chat(front, backend.plays(play)) as client:
        assert client.head().value("content-length") == "3000000"
        assert len(client.rest()) < 3_000_000


def test_a_client_that_leaves_ends_the_backends_work(backend: Scripted, front: Program) -> None:
    left = threading.Event()

    def play(exchange: Exchange) -> None:
        exchange.start()
        exchange.chunk(event(1))
        if exchange.left():
            left.set()

    with chat(front, backend.plays(play)) as client:
        client.head()
        client.until(event(1))
    assert left.wait(PATIENCE)


def test_a_client_that_leaves_before_the_head_ends_the_backends_work(
    backend: Scripted, front: Program
) -> None:
    asked, left = threading.Event(), threading.Event()

    def play(exchange: Exchange) -> None:
        asked.set()
        if exchange.left():
            left.set()

    with chat(front, backend.plays(play)):
        assert asked.wait(PATIENCE)
    assert left.wait(PATIENCE)


def test_in_band_errors_are_relayed_as_they_are(backend: Scripted, front: Program) -> None:
    """A backend's error within a stream is its client's to read: no status is made of it, nothing is added."""
    failed = b'data: {"error":{"message":"out of memory","code":500}}\n\n'

    def play(exchange: Exchange) -> None:
        exchange.start()
        exchange.chunk(failed)
        exchange.end()

    with chat(front, backend.plays(play)) as client:
        assert client.head().status == 200
        assert client.until(b"0\r\n\r\n") == b"%x\r\n%b\r\n0\r\n\r\n" % (len(failed), failed)
