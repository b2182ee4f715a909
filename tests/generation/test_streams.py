"""Streams leave as they arrive, in any number, and never look finished when they failed."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tests.generation.conftest import Front
from tests.generation.stage import SECONDS, Client, Scene, Stage, event, together
from tests.servers import Program

MEDIA = [
    "text/event-stream",
    "text/event-stream; charset=utf-8",
    "application/x-ndjson",
    "audio/wav",
    "text/plain",
]


@pytest.mark.parametrize("media", MEDIA)
def test_a_chunk_leaves_before_the_next_one_comes(backend: Stage, front: Front, media: str) -> None:
    go = [threading.Event() for _ in range(3)]

    def play(scene: Scene) -> None:
        scene.start(media)
        for number, gate in enumerate(go):
            scene.chunk(event(number))
            assert gate.wait(SECONDS)
        scene.end()

    with front.ask(backend.plays(play), fields="Connection: close\r\n") as client:
        assert client.status() == 200
        for number, gate in enumerate(go):
            client.until(event(number))
            gate.set()
        assert client.rest().endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("media", MEDIA[:4])
def test_the_head_leaves_before_the_first_event(backend: Stage, front: Front, media: str) -> None:
    go = threading.Event()

    def play(scene: Scene) -> None:
        scene.start(media)
        assert go.wait(SECONDS)
        scene.chunk(event(1))
        scene.end()

    with front.ask(backend.plays(play)) as client:
        client.head()
        go.set()
        client.until(event(1))
        client.until(b"0\r\n\r\n")


def test_64_streams_progress_together(backend: Stage, front: Front) -> None:
    """The next event of any stream is sent when all 64 clients have read the one before."""
    read = [threading.Barrier(64) for _ in range(5)]
    sent = [threading.Event() for _ in range(5)]

    def play(scene: Scene) -> None:
        scene.start()
        for number in range(5):
            scene.chunk(event(number))
            assert sent[number].wait(SECONDS)
        scene.end()

    script = backend.plays(play)

    def consume(_: int) -> None:
        with front.ask(script) as client:
            client.head()
            for number in range(5):
                client.until(event(number))
                read[number].wait(SECONDS)
                sent[number].set()
            client.until(b"0\r\n\r\n")

    together(64, consume)


FAILURES: dict[str, Callable[[Scene], None]] = {
    "closed": Scene.close,
    "reset": Scene.reset,
    "closed within a chunk": lambda scene: scene.send(b"ff\r\nhalf"),
    "a chunk without a size": lambda scene: scene.send(b"what\r\n"),
}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("media", ["text/event-stream", "audio/wav", "text/plain"])
def test_a_failed_stream_never_looks_finished(backend: Stage, front: Front, failure: str, media: str) -> None:
    read = threading.Event()

    def play(scene: Scene) -> None:
        scene.start(media)
        scene.chunk(event(1))
        assert read.wait(SECONDS)
        FAILURES[failure](scene)
        raise ConnectionError

    with front.ask(backend.plays(play)) as client:
        client.head()
        client.until(event(1) + b"\r\n")
        read.set()
        rest = client.rest()
        assert b"0\r\n\r\n" not in rest and b"[DONE]" not in rest and b"error" not in rest


def test_a_failed_stream_is_reset_for_a_client_that_counts_on_the_end(backend: Stage, proxy: Program) -> None:
    """HTTP/1.0 has no chunks: the connection's end alone would look like the stream's."""
    read = threading.Event()

    def play(scene: Scene) -> None:
        scene.start()
        scene.chunk(event(1))
        assert read.wait(SECONDS)
        raise ConnectionError

    with Client(proxy.port, backend.plays(play), version="HTTP/1.0") as client:
        assert b"chunked" not in client.head()
        client.until(event(1))
        read.set()
        client.rest()
        assert client.reset


def test_a_stream_of_known_length_that_is_cut_is_cut(backend: Stage, front: Front) -> None:
    def play(scene: Scene) -> None:
        scene.send(b"HTTP/1.1 200 OK\r\nContent-Type: video/mp4\r\nContent-Length: 3000000\r\n\r\n")
        scene.send(bytes(2_000_000))
        raise ConnectionError

    with front.ask(backend.plays(play)) as client:
        assert b"3000000" in client.head()
        assert len(client.rest()) < 3_000_000


def test_a_client_that_leaves_ends_the_backends_work(backend: Stage, front: Front) -> None:
    left = threading.Event()

    def play(scene: Scene) -> None:
        scene.start()
        scene.chunk(event(1))
        if scene.left():
            left.set()

    with front.ask(backend.plays(play)) as client:
        client.head()
        client.until(event(1))
    assert left.wait(SECONDS)


def test_a_client_that_leaves_before_the_head_ends_the_backends_work(backend: Stage, front: Front) -> None:
    asked, left = threading.Event(), threading.Event()

    def play(scene: Scene) -> None:
        asked.set()
        if scene.left():
            left.set()

    with front.ask(backend.plays(play)):
        assert asked.wait(SECONDS)
    assert left.wait(SECONDS)


def test_in_band_errors_are_relayed_as_they_are(backend: Stage, front: Front) -> None:
    """A backend's error within a stream is its client's to read: no status is made of it, nothing is added."""
    failed = b'data: {"error":{"message":"out of memory","code":500}}\n\n'

    def play(scene: Scene) -> None:
        scene.start()
        scene.chunk(failed)
        scene.end()

    with front.ask(backend.plays(play)) as client:
        assert client.status() == 200
        assert client.until(b"0\r\n\r\n") == b"%x\r\n%b\r\n0\r\n\r\n" % (len(failed), failed)
