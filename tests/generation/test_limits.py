"""Slots, deadlines and health of a generation server's front: what is held, for how long, and who is told."""

from __future__ import annotations

import threading
import time

import pytest

from tests.generation.conftest import ROUTES, STREAM_IDLE
from tests.generation.stage import CHAT, SECONDS, Client, Scene, Stage, event
from tests.parity.wire import Answer, ask, request
from tests.servers import Program, free_port, start_jevproxy, wait_until


def get(port: int, path: str) -> Answer:
    return ask(port, request(f"GET {path}", type_=None, length=False))


def words_of(answer: Answer) -> str:
    """The message of an error of our own, which both families of clients find."""
    document = answer.json()
    assert document["error"]["message"] == document["detail"]["message"]
    assert document["error"]["type"] == document["detail"]["error_type"]
    assert document["error"]["code"] == str(answer.code)
    return str(document["detail"]["message"])


def free(proxy: Program) -> bool:
    return b"\njevproxy_in_flight 0.0\n" in get(proxy.port, "/metrics").body


@pytest.fixture
def idle(hurried: Program) -> Program:
    """The hurried proxy with both of its slots free, before the test and after it."""
    wait_until(lambda: free(hurried), what="both slots free")
    return hurried


@pytest.mark.parametrize("media", ["text/event-stream", "application/json", "image/png"])
def test_a_slot_is_held_until_the_bodys_end(backend: Stage, idle: Program, ok: str, media: str) -> None:
    go = [threading.Event(), threading.Event()]
    gates = iter(go)

    def play(scene: Scene) -> None:
        gate = next(gates)
        scene.start(media)
        scene.chunk(bytes(2_000_000))
        gate.wait(SECONDS)
        scene.end()

    script = backend.plays(play)
    with Client(idle.port, script) as one, Client(idle.port, script) as two:
        one.head(), two.head()
        full = ask(idle.port, request(f"POST {CHAT}", b"{}", f"X-Script: {ok}".encode()))
        assert full.code == 503 and words_of(full) and ("retry-after", "1") in full.fields
        assert get(idle.port, "/health").code == 200, "health is outside admission"
        assert get(idle.port, "/v1/models").code == 200, "so are the models"
        for gate in go:
            gate.set()
        one.until(b"0\r\n\r\n"), two.until(b"0\r\n\r\n")
    wait_until(lambda: free(idle), what="both slots free")
    with Client(idle.port, ok) as after:
        assert after.status() == 200


@pytest.mark.parametrize("media", ["text/event-stream", "application/x-ndjson", "video/mp4"])
def test_a_client_that_stops_reading_ends_the_backends_work(
    backend: Stage, idle: Program, media: str
) -> None:
    stopped = threading.Event()

    def play(scene: Scene) -> None:
        scene.start(media)
        try:
            while True:
                scene.chunk(bytes(100_000))
        except OSError:
            stopped.set()
            raise

    with Client(idle.port, backend.plays(play), small=True) as client:
        client.head()
        assert stopped.wait(SECONDS)
        wait_until(lambda: free(idle), what="the slot free")


def test_a_client_that_stops_reading_a_long_answer_ends_it_as_well(backend: Stage, idle: Program) -> None:
    stopped = threading.Event()

    def play(scene: Scene) -> None:
        try:
            scene.whole(bytes(60_000_000), media="image/png")
        except OSError:
            stopped.set()
            raise

    with Client(idle.port, backend.plays(play), small=True) as client:
        client.head()
        assert stopped.wait(SECONDS)


def test_a_silent_stream_is_cut(backend: Stage, idle: Program) -> None:
    left = threading.Event()

    def play(scene: Scene) -> None:
        scene.start()
        scene.chunk(event(1))
        if scene.left():
            left.set()

    began = time.monotonic()
    with Client(idle.port, backend.plays(play)) as client:
        client.head()
        client.until(event(1))
        assert b"0\r\n\r\n" not in client.rest()
        assert time.monotonic() - began > STREAM_IDLE / 2
    assert left.wait(SECONDS)
    wait_until(lambda: '"failure":"timeout"' in (idle.lines() or [""])[-1], what="the log's line")


def test_a_stream_that_never_ends_is_cut(backend: Stage, idle: Program) -> None:
    stopped = threading.Event()

    def play(scene: Scene) -> None:
        scene.start()
        try:
            for number in range(1_000_000):
                scene.chunk(event(number))
                time.sleep(0.05)  # what a slow model does; nothing waits for it
        except OSError:
            stopped.set()
            raise

    with Client(idle.port, backend.plays(play)) as client:
        client.head()
        assert b"\r\n0\r\n\r\n" not in client.rest()
    assert stopped.wait(SECONDS)


def test_a_stream_may_outlast_the_exchanges_deadline(backend: Stage) -> None:
    """The deadline is short here, and a stream's own limits are the defaults."""

    def play(scene: Scene) -> None:
        scene.start()
        end = time.monotonic() + 3.0
        while time.monotonic() < end:
            scene.chunk(event(1))
            time.sleep(0.1)  # what a slow model does; nothing waits for it
        scene.end()

    with (
        start_jevproxy(backend.backend.url, OMNI_JEV_ROUTES=ROUTES, OMNI_JEV_TIMEOUT="2") as proxy,
        Client(proxy.port, backend.plays(play)) as client,
    ):
        client.head()
        assert client.until(b"\r\n0\r\n\r\n").count(event(1)) > 3


def test_a_late_head_is_504(backend: Stage, idle: Program) -> None:
    left = threading.Event()

    def play(scene: Scene) -> None:
        if scene.left():
            left.set()

    late = ask(idle.port, request(f"POST {CHAT}", b"{}", f"X-Script: {backend.plays(play)}".encode()))
    assert late.code == 504 and words_of(late)
    assert left.wait(SECONDS)


def test_a_long_answer_that_is_no_stream_is_cut_at_the_exchanges_deadline(
    backend: Stage, idle: Program
) -> None:
    def play(scene: Scene) -> None:
        scene.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 3000000\r\n\r\n")
        scene.send(b" " * 2_000_000)
        scene.left()

    with Client(idle.port, backend.plays(play)) as client:
        client.head()
        assert len(client.rest()) < 3_000_000


def test_health_is_the_backends(backend: Stage, hurried: Program) -> None:
    assert get(hurried.port, "/health").json() == {"status": "ok"}
    backend.healthy = False
    try:
        assert get(hurried.port, "/health").code == 504
    finally:
        backend.healthy = True


def test_health_of_a_backend_that_is_not_there_is_502() -> None:
    with start_jevproxy(f"http://127.0.0.1:{free_port()}", OMNI_JEV_ROUTES="generation") as proxy:
        assert get(proxy.port, "/health").code == 502
        gone = ask(proxy.port, request(f"POST {CHAT}", b"{}"))
        assert gone.code == 502 and words_of(gone)
        models = get(proxy.port, "/v1/models")
        assert models.code == 502 and words_of(models)


def test_errors_of_our_own_speak_to_both_families(idle: Program) -> None:
    big = ask(idle.port, request("POST /v1/images/edits", bytes(1_100_000), type_=b"multipart/form-data"))
    assert big.code == 413 and words_of(big)
    unknown, wrong = get(idle.port, "/v1/embeddings"), get(idle.port, CHAT)
    assert unknown.code == 404 and words_of(unknown)
    assert wrong.code == 405 and words_of(wrong)
    decision = ask(idle.port, request("POST /v1/systemone", bytes(1_100_000)))
    assert decision.code == 413 and set(decision.json()) == {"detail"}
