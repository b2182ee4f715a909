"""Connections that hold nothing: silent ones, half-sent heads, and clients that do not close."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.callers import Caller
from tests.client import Client
from tests.servers import (
    BIN,
    START_SECONDS,
    Program,
    clean_environment,
    free_port,
    serving,
    start_worker,
    status_of,
    wait_until,
)

# More than the worker has threads: LAYA_MAX_CONCURRENT and 16.
MORE = 60
HALF = b"GET /health HTTP/1.1\r\nHost: x\r\nX-Slow: "


@pytest.fixture(scope="module")
def small() -> Iterator[Program]:
    """A worker of 17 threads."""
    with start_worker(LAYA_MAX_CONCURRENT="1") as program:
        yield program


@contextmanager
def many(program: Program, sent: bytes, count: int = MORE) -> Iterator[list[Caller]]:
    with ExitStack() as held:
        callers = [held.enter_context(Caller(program.url)) for _ in range(count)]
        for caller in callers:
            caller.send(sent)
        yield callers


def unanswered(callers: list[Caller]) -> list[Caller]:
    """Those that have received nothing yet."""
    return [caller for caller in callers if not select.select([caller.socket], [], [], 0)[0]]


@pytest.mark.parametrize("kept", [b"", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_health_does_not_wait_behind_half_heads(small: Program, kept: bytes) -> None:
    """More half-sent heads than threads, on new and on kept connections: health is answered before any of them ends."""
    with many(small, b"") as slow:
        for caller in slow:
            if kept:
                assert caller.ask(kept).status == 200
            caller.send(HALF)
        assert status_of(small.url) == 200
        assert unanswered(slow) == slow


@pytest.mark.parametrize("line", [b"POST /v1/systemone", b"GET /health"])
def test_health_does_not_wait_for_a_thread(small: Program, line: bytes) -> None:
    """Bodies that do not come hold every thread, one after the other; some still wait when health is answered."""
    stalled = line + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"
    with many(small, stalled, 300) as slow:
        assert status_of(small.url) == 200
        assert unanswered(slow)


def test_a_head_has_ten_seconds(small: Program) -> None:
    """Half-sent ones get 408 and nothing else, also one that goes on byte by byte, and one on a kept connection.

    Connections without a byte are closed without a word.
    """
    kept = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    with many(small, HALF) as slow, many(small, kept + HALF, 2) as again, many(small, b"", 5) as silent:
        while not select.select([slow[0].socket], [], [], 0.2)[0]:
            try:
                slow[0].send(b"x")
            except OSError:
                break
        for caller in slow:
            reply = caller.reply()
            assert (reply.status, reply.value("connection")) == (408, "close")
            assert reply.error_type == "request_timeout" and caller.at_end()
        for caller in again:
            assert [caller.reply().status, caller.reply().status] == [200, 408]
            assert caller.at_end()
        assert all(caller.at_end() for caller in silent)
    assert "Traceback" not in small.output()


def test_clients_that_do_not_close_hold_up_nobody(small: Program) -> None:
    """Two seconds of waiting for each of them would be over a minute in one loop."""
    with many(small, b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") as lingering:
        for caller in lingering:
            assert caller.reply().status == 200 and caller.at_end()
        assert status_of(small.url) == 200
        began = time.monotonic()
        assert status_of(small.url) == 200
        assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("--workers 2", "--workers"),
        ("-k gevent", "--workers"),
        ("--worker-class gthread", "--workers"),
        ("--reuse-port", "LAYA_LISTEN"),
        ("-b 127.0.0.1:0 -b 127.0.0.1:0", "LAYA_LISTEN"),
        ("--proxy-protocol v2", "PROXY v2"),
        ("--certfile x.pem", "TLS"),
    ],
)
def test_gunicorn_options_that_it_cannot_work_with_stop_the_start(arguments: str, named: str) -> None:
    settings = {
        "LAYA_PORT": str(free_port()),
        "LAYA_DEVICE": "cpu",
        "LAYA_LISTEN": "warm",
        "GUNICORN_CMD_ARGS": arguments,
    }
    ended = subprocess.run(
        [BIN / "jevworker"],
        env={**clean_environment({}), **settings},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 78
    (line,) = [line for line in ended.stderr.splitlines() if "INFO" not in line]
    assert line.startswith("jevworker: ") and named in line


def before_health(url: str) -> set[int | None]:
    """What GET /health gave until it was 200; None where nobody answered."""
    found = set()

    def healthy() -> bool:
        found.add(status_of(url))
        return 200 in found

    wait_until(healthy, START_SECONDS, "health")
    return found - {200}


def test_a_port_that_opens_when_it_is_warm_refuses_until_then() -> None:
    """At the start, and again after its process was killed: a balancer goes elsewhere meanwhile."""
    url = f"http://127.0.0.1:{free_port()}"
    settings = {"LAYA_PORT": url.rpartition(":")[2], "LAYA_DEVICE": "cpu", "LAYA_LISTEN": "warm"}
    with Program([BIN / "jevworker"], settings, url=url, ready=lambda: True) as program:
        assert before_health(url) == {None}
        os.kill(serving(program.pid), signal.SIGKILL)
        assert before_health(url) == {None}
        client = Client(url)
        assert client.get("/health")[1]["status"] == "ok"
        client.close()
        os.kill(serving(program.pid), signal.SIGSEGV)
        assert before_health(url) == {None}
        told = re.findall(r"the serving process (.*?):.*another one starts in (\d+) s", program.output())
        assert told == [("was killed by SIGKILL", "0"), ("was killed by SIGSEGV", "1")]
        assert program.stop() == 0


def test_a_port_that_somebody_took_meanwhile_ends_the_start() -> None:
    """Not a worker that is warm and that nobody can reach."""
    url = f"http://127.0.0.1:{free_port()}"
    settings = {"LAYA_PORT": url.rpartition(":")[2], "LAYA_DEVICE": "cpu", "LAYA_LISTEN": "warm"}
    with Program([BIN / "jevworker"], settings, url=url, ready=lambda: True) as program:
        wait_until(lambda: "Booting worker" in program.output(), what="the fork")
        taken = socket.create_server(("127.0.0.1", program.port))
        assert program.wait(120) == 3
        taken.close()
        assert "cannot listen" in program.output()
