"""nginx -> jevproxy (two processes) -> worker, from the shipped files: what a deployment is."""

from __future__ import annotations

import json
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.backends import Exchange, scripted
from tests.callers import together
from tests.client import Client
from tests.clients.test_clients import HERE as CLIENTS
from tests.clients.test_clients import node_folder as node_folder
from tests.clients.test_clients import report_of
from tests.deploy import sites
from tests.load import decide, load
from tests.servers import (
    BIN,
    Program,
    free_port,
    listens,
    start_jevproxy,
    start_nginx,
    wait_until,
)


def front(folder: Path, proxies: list[int], **more: str) -> Program:
    port = free_port()
    text = sites.configuration(folder, sites.public_site(folder, port, proxies, **more))
    return start_nginx(folder, text, f"https://127.0.0.1:{port}")


UNLIMITED = {"    limit_req zone=jev_address burst=200 nodelay;\n": ""}


@pytest.fixture(scope="module")
def proxy(embedded_worker: Program) -> Iterator[Program]:
    with start_jevproxy(embedded_worker.url, "--workers=2") as program:
        yield program


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("front")


@pytest.fixture(scope="module")
def site(folder: Path, proxy: Program) -> Iterator[Program]:
    with front(folder, [proxy.port]) as program:
        yield program


@pytest.mark.parametrize(
    "client", ["typesafe_py.py", "jev_lite_client.py", "langchain_client.py", "typesafe_js.mjs"]
)
def test_clients(client: str, site: Program, folder: Path, node_folder: Path) -> None:
    trust = {"SSL_CERT_FILE": str(folder / "cert.pem"), "NODE_EXTRA_CA_CERTS": str(folder / "cert.pem")}
    settings = {"BASE_URL": site.url.replace("127.0.0.1", "localhost"), "NODE_DIR": str(node_folder), **trust}
    report_of(["node" if client.endswith("mjs") else sys.executable, str(CLIENTS / client)], settings)


def test_one_id_is_in_every_log(
    site: Program, proxy: Program, embedded_worker: Program, folder: Path
) -> None:
    status, fields, _ = decide(site.url, X_Request_ID="followed-1")
    assert status == 200 and fields["X-Request-ID"] == "followed-1"

    def of_nginx() -> list[str]:
        return (folder / "access.log").read_text().split("\n")[:-1]

    def found(log: Callable[[], list[str]]) -> list[dict[str, object]]:
        return [json.loads(line[line.index("{") :]) for line in log() if "followed-1" in line]

    for log in (of_nginx, proxy.lines, embedded_worker.lines):
        wait_until(lambda log=log: bool(found(log)), what="the line with the id")
        (line,) = found(log)
        assert line["id"] == "followed-1" and line["status"] == 200 and line["path"] == "/v1/systemone"


go_on = threading.Event()


def events(exchange: Exchange) -> None:
    """An event, then a second one when the client has had the first."""
    exchange.start()
    exchange.chunk(b"data: 1\n\n")
    assert go_on.wait(60)
    exchange.chunk(b"data: 2\n\n")
    exchange.end()


def length(exchange: Exchange) -> None:
    exchange.answer(b"%d" % len(exchange.body))


@pytest.fixture(scope="module")
def streaming(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    folder = tmp_path_factory.mktemp("streaming")
    routes = {"OMNI_JEV_ROUTES": "decisions, POST /upload, GET /events"}
    with (
        scripted({"ok": length, "events": events}) as backend,
        start_jevproxy(backend.url, "--workers=2", **routes) as proxy,
        front(folder, [proxy.port], **UNLIMITED) as program,
    ):
        yield program


def test_events_arrive_one_by_one(streaming: Program) -> None:
    go_on.clear()
    with Client(streaming.url) as client:
        client.connection.request("GET", "/events", headers={"X-Script": "events"})
        answer = client.connection.getresponse()
        assert answer.read1() == b"data: 1\n\n"
        go_on.set()
        assert answer.read() == b"data: 2\n\n"


def test_a_hundred_megabytes_go_up(streaming: Program) -> None:
    megabytes = 100
    with Client(streaming.url) as client:
        client.connection.putrequest("POST", "/upload")
        client.connection.putheader("Content-Length", str(megabytes << 20))
        client.connection.endheaders()
        for _ in range(megabytes):
            client.connection.send(bytes(1 << 20))
        status, _, body = client.answer()
        assert (status, body) == (200, b"%d" % (megabytes << 20))


def test_a_thousand_requests_around_the_idle_limit(streaming: Program) -> None:
    """Fifty clients pause for as long as nginx keeps a connection to jevproxy: one in use is never being closed."""
    pause, statuses = threading.Event(), []

    def work(_: int) -> None:
        with Client(streaming.url) as client:
            for turn in range(20):
                pause.wait(0.45 + turn * 0.005)
                status, _, body = client.send("POST", "/upload", b"x")
                statuses.append((status, body))

    together(50, work)
    assert statuses == [(200, b"1")] * 1000


def activated(listener: socket.socket, backend: str) -> Program:
    """jevproxy as systemd starts it: with the socket that the unit's socket holds."""
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    into = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.environ |= {'LISTEN_PID': str(os.getpid())}"
    argv = [sys.executable, "-c", f"{into}; os.execv(sys.argv[2], sys.argv[2:])", str(listener.fileno())]
    argv += [str(BIN / "jevproxy"), "--workers=2"]
    settings = {"OMNI_JEV_BACKEND_URL": backend, "LISTEN_FDS": "1"}
    return Program(argv, settings, url=url, ready=lambda: listens(url), pass_fds=(listener.fileno(),))


def test_restarts_under_load_lose_nothing(embedded_worker: Program, tmp_path: Path) -> None:
    """jevproxy reloads, nginx reloads, jevproxy is stopped and started. Nobody is refused, nothing is cut."""
    with (
        socket.create_server(("127.0.0.1", 0), backlog=512) as listener,
        ExitStack() as running,
    ):
        before = running.enter_context(activated(listener, embedded_worker.url))
        site = running.enter_context(front(tmp_path, [before.port], **UNLIMITED))
        with load(site.url, 8) as tally:
            tally.wait_for_more(20)
            before.signal(signal.SIGHUP)
            tally.wait_for_more(80)
            site.signal(signal.SIGHUP)
            tally.wait_for_more(80)
            assert before.stop() == 0
            running.enter_context(activated(listener, embedded_worker.url))
            tally.wait_for_more(80)
        assert not tally.failures, tally.failures
