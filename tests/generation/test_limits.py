"""Slots, deadlines and health of a generation server's front: what is held, for how long, and who is told."""

from __future__ import annotations

import threading
import time

import pytest

from tests.backends import Exchange, Scripted
from tests.callers import PATIENCE, Caller, ask
from tests.generation.conftest import CHAT, ROUTES, STREAM_IDLE, chat, event
from tests.messages import Reply, post, request
from tests.servers import Program, free_port, start_jevproxy, wait_until


def get(program: Program, path: str) -> Reply:
    return ask(program.url, request(f"GET {path}", type_=None, length=False))


def words_of(answer: Reply) -> str:
    """The message of an error of our own, which both families of clients find."""
    document = answer.json()
    assert document["error"]["message"] == document["detail"]["message"]
    assert document["error"]["type"] == document["detail"]["error_type"]
    assert document["error"]["code"] == str(answer.status)
    return str(document["detail"]["message"])


def free(proxy: Program) -> bool:
    return b"\njevproxy_in_flight 0.0\n" in get(proxy, "/metrics").body


@pytest.fixture
def idle(hurried: Program) -> Program:
    """The hurried proxy with both of its slots free, before the test and after it."""
    wait_until(lambda: free(hurried), what="both slots free")
    return hurried


@pytest.mark.parametrize("media", ["text/event-stream", "application/json", "image/png"])
def test_a_slot_is_held_until_the_bodys_end(backend: Scripted, idle: Program, ok: str, media: str) -> None:
    go = [threading.Event(), threading.Event()]
    gates = iter(go)

    def play(exchange: Exchange) -> None:
        gate = next(gates)
        exchange.start(media)
        exchange.chunk(bytes(2_000_000))
        gate.wait(PATIENCE)
        exchange.end()

    script = backend.plays(play)
    with chat(idle, script) as one, chat(idle, script) as two:
        one.head(), two.head()
        full = ask(idle.url, post(ok, b"{}", CHAT))
        assert full.status == 503 and words_of(full) and full.values("retry-after") == ["1"]
        assert get(idle, "/health").status == 200, "health is outside admission"
        assert get(idle, "/v1/models").status == 200, "so are the models"
        for gate in go:
            gate.set()
        one.until(b"0\r\n\r\n"), two.until(b"0\r\n\r\n")
    wait_until(lambda: free(idle), what="both slots free")
    with chat(idle, ok) as after:
        assert after.head().status == 200


@pytest.mark.parametrize("media", ["text/event-stream", "application/x-ndjson", "video/mp4"])
def test_a_client_that_stops_reading_ends_the_backends_work(
    backend: Scripted, idle: Program, media: str
) -> None:
    stopped = threading.Event()

    def play(exchange: Exchange) -> None:
        exchange.start(media)
        try:
            while True:
                exchange.chunk(bytes(100_000))
        except OSError:
            stopped.set()
            raise

    with Caller(idle.url, receives=4096) as client:
        client.send(post(backend.plays(play), b"{}", CHAT))
        client.head()
        assert stopped.wait(PATIENCE)
        wait_until(lambda: free(idle), what="the slot free")


def test_a_client_that_stops_reading_a_long_answer_ends_it_as_well(backend: Scripted, idle: Program) -> None:
    stopped = threading.Event()

    def play(exchange: Exchange) -> None:
        try:
            exchange.answer(bytes(60_000_000), "image/png")
        except OSError:
            stopped.set()
            raise

    with Caller(idle.url, receives=4096) as client:
        client.send(post(backend.plays(play), b"{}", CHAT))
        client.head()
        assert stopped.wait(PATIENCE)


def test_a_silent_stream_is_cut(backend: Scripted, idle: Program) -> None:
    left = threading.Event()

    def play(exchange: Exchange) -> None:
        exchange.start()
        exchange.chunk(event(1))
        if exchange.left():
            left.set()

    began = time.monotonic()
    with chat(idle, backend.plays(play)) as client:
        client.head()
        client.until(event(1))
        assert b"0\r\n\r\n" not in client.rest()
        assert time.monotonic() - began > STREAM_IDLE / 2
    assert left.wait(PATIENCE)
    wait_until(lambda: '"failure":"timeout"' in (idle.lines() or [""])[-1], what="the log's line")


def test_a_stream_that_never_ends_is_cut(backend: Scripted, idle: Program) -> None:
    stopped = threading.Event()

    def play(exchange: Exchange) -> None:
        exchange.start()
        try:
            for number in range(1_000_000):
                exchange.chunk(event(number))
                time.sleep(0.05)  # what a slow model does; nothing waits for it
        except OSError:
            stopped.set()
            raise

    with chat(idle, backend.plays(play)) as client:
        client.head()
        assert b"\r\n0\r\n\r\n" not in client.rest()
    assert stopped.wait(PATIENCE)


def test_a_stream_may_outlast_the_exchanges_deadline(backend: Scripted) -> None:
    """The deadline is short here, and a stream's own limits are the defaults."""

    def play(exchange: Exchange) -> None:
        exchange.start()
        end = time.monotonic() + 3.0
        while time.monotonic() < end:
            exchange.chunk(event(1))
            time.sleep(0.1)  # what a slow model does; nothing waits for it
        exchange.end()

    with (
        start_jevproxy(backend.url, OMNI_JEV_ROUTES=ROUTES, OMNI_JEV_TIMEOUT="2") as proxy,
        chat(proxy, backend.plays(play)) as client,
    ):
        client.head()
        assert client.until(b"\r\n0\r\n\r\n").count(event(1)) > 3


def test_a_late_head_is_504(backend: Scripted, idle: Program) -> None:
    left = threading.Event()

    def play(exchange: Exchange) -> None:
        if exchange.left():
            left.set()

    late = ask(idle.url, post(backend.plays(play), b"{}", CHAT))
    assert late.status == 504 and words_of(late)
    assert left.wait(PATIENCE)


def test_a_long_answer_that_is_no_stream_is_cut_at_the_exchanges_deadline(
    backend: Scripted, idle: Program
) -> None:
    def play(exchange: Exchange) -> None:
        exchange.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 3000000\r\n\r\n")
        exchange.send(b" " * 2_000_000)
        exchange.left()

    with chat(idle, backend.plays(play)) as client:
        client.head()
        assert len(client.rest()) < 3_000_000


def test_health_is_the_backends(backend: Scripted, hurried: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    assert get(hurried, "/health").json() == {"status": "ok"}
    monkeypatch.setitem(backend.scripts, "ok", Exchange.left)
    assert get(hurried, "/health").status == 504


def test_health_of_a_backend_that_is_not_there_is_502() -> None:
    with start_jevproxy(f"http://127.0.0.1:{free_port()}", OMNI_JEV_ROUTES="generation") as proxy:
        assert get(proxy, "/health").status == 502
        gone = ask(proxy.url, request(f"POST {CHAT}", b"{}"))
        assert gone.status == 502 and words_of(gone)
        models = get(proxy, "/v1/models")
        assert models.status == 502 and words_of(models)


def test_errors_of_our_own_speak_to_both_families(idle: Program) -> None:
    big = ask(idle.url, request("POST /v1/images/edits", bytes(1_100_000), type_=b"multipart/form-data"))
    assert big.status == 413 and words_of(big)
    unknown, wrong = get(idle, "/v1/embeddings"), get(idle, CHAT)
    assert unknown.status == 404 and words_of(unknown)
    assert wrong.status == 405 and words_of(wrong)
    decision = ask(idle.url, request("POST /v1/systemone", bytes(1_100_000)))
    assert decision.status == 413 and set(decision.json()) == {"detail"}
