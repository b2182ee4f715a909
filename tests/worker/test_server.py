"""Connections that hold nothing: silent ones, half-sent heads, and clients that do not close."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

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
from tests.worker.conftest import Client

# More than the worker has threads: LAYA_MAX_CONCURRENT and 16.
MORE = 40
HALF = b"GET /health HTTP/1.1\r\nHost: x\r\nX-Slow: "


@pytest.fixture(scope="module")
def small() -> Iterator[Program]:
    """A worker of 17 threads."""
    with start_worker(LAYA_MAX_CONCURRENT="1") as program:
        yield program


@contextmanager
def many(program: Program, sent: bytes) -> Iterator[list[socket.socket]]:
    with ExitStack() as held:
        found = [
            held.enter_context(socket.create_connection(("127.0.0.1", program.port), timeout=60))
            for _ in range(MORE)
        ]
        for sock in found:
            sock.sendall(sent)
        yield found


def everything(sock: socket.socket) -> bytes:
    with sock.makefile("rb") as stream:
        return stream.read()


def test_half_heads_hold_no_thread_for_long(small: Program) -> None:
    """Each gets 408 and nothing else, also one that goes on byte by byte, and the worker answers again."""
    with many(small, HALF) as slow:
        began = time.monotonic()
        while True:
            try:
                slow[0].sendall(b"x")
            except OSError:
                break
            slow[0].settimeout(0.5)
            try:
                if slow[0].recv(1, socket.MSG_PEEK):
                    break
            except TimeoutError:
                pass
            assert time.monotonic() - began < 60
        client = Client(small.url)
        assert client.get("/health")[0] == 200
        client.close()
        for sock in slow[1:]:
            head, _, body = everything(sock).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 408 ") and b"Connection: close" in head
            assert json.loads(body)["detail"]["error_type"] == "request_timeout"
    assert "Traceback" not in small.output()


def test_a_half_head_on_a_kept_connection_is_refused_too(small: Program) -> None:
    with socket.create_connection(("127.0.0.1", small.port), timeout=60) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" + HALF)
        assert everything(sock).count(b"HTTP/1.1 ") == 2


def test_silent_connections_hold_no_thread(small: Program) -> None:
    with many(small, b"") as silent:
        assert status_of(small.url) == 200
        assert everything(silent[0]) == b""


def test_clients_that_do_not_close_hold_up_nobody(small: Program) -> None:
    """Two seconds of waiting for each of them would be over a minute in one loop."""
    with many(small, b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") as lingering:
        for sock in lingering:
            assert everything(sock).startswith(b"HTTP/1.1 200 ")
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
    assert ended.returncode == 1
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
