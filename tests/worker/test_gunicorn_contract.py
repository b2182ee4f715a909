"""What the worker assumes of gunicorn, each assumption by its name against the installed one.

The checks use gunicorn's own classes without this package's: a failure means that gunicorn has changed, and names the
line of `server.ASSUMED` or `parent.ASSUMED` that no longer holds.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from gunicorn import systemd
from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from gunicorn.config import Config
from gunicorn.glogging import Logger
from gunicorn.http import errors as http_errors
from gunicorn.http import wsgi
from gunicorn.http.message import Request
from gunicorn.http.unreader import Unreader
from gunicorn.workers.gthread import TConn, ThreadWorker
from hypothesis import given
from hypothesis import strategies as st

from tests.servers import ROOT, clean_environment, free_port
from worker import parent, refusals, server
from worker.errors import FieldsTooLarge, LineTooLong, StartFailed
from worker.heads import Head

Check = Callable[[], None]
CHECKS: dict[str, Check] = {}
GET = b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n"


def assumption(name: str) -> Callable[[Check], Check]:
    """The check of one line of ASSUMED."""

    def add(check: Check) -> Check:
        CHECKS[name] = check
        return check

    return add


def config(**settings: Any) -> Config:
    made = Config()
    for name, value in settings.items():
        made.set(name, value)
    return made


class Recording(ThreadWorker):
    """gunicorn's worker, which writes down the calls that the real subclass takes over."""

    def __init__(self, application: Any = None, **settings: Any) -> None:
        made = config(threads=2, worker_connections=10, **settings)
        super().__init__(1, os.getppid(), [], None, 30, made, Logger(made))
        self.wsgi = application
        self.calls: list[tuple[Any, ...]] = []
        self.ticks = threading.Semaphore(0)
        self.tpool = self.get_thread_pool()
        self.poller = selectors.DefaultSelector()
        self.method_queue.init()

    def enqueue_req(self, conn: Any) -> None:
        self.calls.append(("enqueue_req", conn))

    def handle_error(self, req: Any, client: Any, addr: Any, exc: BaseException) -> None:
        self.calls.append(("handle_error", req, client, addr, exc))

    def set_accept_enabled(self, enabled: bool) -> None:
        self.calls.append(("set_accept_enabled", enabled))

    def murder_pending(self) -> None:
        self.calls.append(("murder_pending",))
        self.ticks.release()

    def close(self) -> None:
        self.tpool.shutdown()
        if self.poller.get_map() is not None:
            self.poller.close()
            self.method_queue.close()
        self.tmp.close()


@contextmanager
def serving(application: Any = None) -> Iterator[tuple[Recording, Any, socket.socket]]:
    """A worker, a connection of its kind, and the client at the other end."""
    worker = Recording(application)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname(), timeout=30)
        sock, address = listener.accept()
        conn = TConn(worker.cfg, sock, address, listener.getsockname())
    worker.nr_conns = 1
    try:
        yield worker, conn, client
    finally:
        client.close()
        conn.close()
        worker.close()


def done(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(result)
    return future


@assumption("new connections")
def new_connections() -> None:
    worker = Recording()
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname(), timeout=30),
    ):
        worker.accept(listener)
        ((called, conn),) = worker.calls
        assert called == "enqueue_req" and worker.nr_conns == 1
        assert isinstance(conn, TConn) and not conn.initialized
        conn.close()
    worker.close()


@assumption("kept connections")
def kept_connections() -> None:
    with serving() as (worker, conn, client):
        conn.init()
        worker.finish_request(conn, done(True))
        assert worker.calls == []
        client.sendall(b"G")
        worker.wait_for_and_dispatch_events(30)
        assert worker.calls == [("enqueue_req", conn)]
        worker.calls.clear()
        conn.parser.unreader.unread(b"more")
        worker.finish_request(conn, done(True))
        assert worker.calls == [("enqueue_req", conn)]
        assert worker.nr_conns == 1


class Bytes(Unreader):
    """A source that has these bytes and must not be asked for more."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.unread(data)

    def chunk(self, size_hint: int | None = None) -> bytes:
        raise AssertionError("gunicorn's parser asks for more of a head that is decidable")


LINES = st.sampled_from([
    b"GET / HTTP/1.1", b"POST /v1/systemone?a=b HTTP/1.0", b"Host: x", b"X-Request-Id: a", b"Content-Length: 4",
    b"Transfer-Encoding: chunked", b"bad field", b"", b" folded", b"\r", b"\n", b"\x00", b"x" * 9000,
])  # fmt: skip
ENDS = st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r", b""])


@given(st.lists(st.tuples(LINES, ENDS), max_size=8), st.booleans())
def parsers_need_no_more(lines: list[tuple[bytes, bytes]], whole: bool) -> None:
    data = b"".join(line + end for line, end in lines) + (GET[-4:] if whole else b"")
    head = Head()
    try:
        if not (data and head.add(data)):
            return
    except (LineTooLong, FieldsTooLarge):
        return
    try:
        Request(config(), Bytes(data), ("127.0.0.1", 1), 1)
    except http_errors.ParseException:
        pass


@assumption("buffered bytes")
def buffered_bytes() -> None:
    with serving() as (_, conn, client):
        client.shutdown(socket.SHUT_WR)
        conn.init()
        conn.parser.unreader.unread(GET + b"rest")
        request = next(conn.parser)
        assert (request.method, request.path) == ("GET", "/x")
        assert conn.parser.unreader.take_buffered() == b"rest"
        assert conn.parser.unreader.take_buffered() == b""
    parsers_need_no_more()


def hello(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    start_response("200 OK", [("Content-Length", "5")])
    return [b"hello"]


@assumption("one request")
def one_request() -> None:
    for head, kept in ((GET, True), (GET[:-2] + b"Connection: close\r\n\r\n", False)):
        with serving(hello) as (worker, conn, client):
            conn.init()
            conn.parser.unreader.unread(head)
            assert worker.handle(conn) is kept
            assert client.recv(4096).endswith(b"hello")


@contextmanager
def running(worker: Recording) -> Iterator[None]:
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield
    finally:
        worker.nr_conns = 0
        worker.handle_exit(signal.SIGTERM, None)
        thread.join(30)
        assert not thread.is_alive()
        worker.close()


@assumption("main loop")
def main_loop() -> None:
    worker = Recording()
    with running(worker):
        for _ in range(2):
            assert worker.ticks.acquire(timeout=30)
        worker.nr_conns = 1
        worker.handle_exit(signal.SIGTERM, None)
        while worker.ticks.acquire(blocking=False):
            pass
        for _ in range(2):
            assert worker.ticks.acquire(timeout=30), "no call while it drains"


@assumption("opening")
def opening() -> None:
    worker = Recording()
    with running(worker):
        for _ in range(3):
            assert worker.ticks.acquire(timeout=30)
        assert worker.calls.count(("set_accept_enabled", True)) >= 3


@assumption("poller")
def poller() -> None:
    with serving() as (worker, conn, client):
        readable: list[Any] = []
        assert isinstance(worker.poller, selectors.BaseSelector)
        worker.poller.register(conn.sock, selectors.EVENT_READ, readable.append)
        client.sendall(b"x")
        worker.wait_for_and_dispatch_events(30)
        assert readable == [conn.sock]


@assumption("refused heads")
def refused_heads() -> None:
    with serving() as (worker, conn, _):
        conn.init()
        conn.parser.unreader.unread(b"GET /x HTTP/1.1\r\nbad field\r\n\r\n")
        assert worker.handle(conn) is False
        ((called, request, sock, address, error),) = worker.calls
        assert (called, request, sock, address) == ("handle_error", None, conn.sock, conn.client)
        assert isinstance(error, http_errors.ParseException)
    named = set(refusals.TABLE) - {"BaseException"}
    assert all(issubclass(getattr(http_errors, name), http_errors.ParseException) for name in named)


@assumption("environ")
def environ_of_a_request() -> None:
    head = b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    for body, expected in ((b"zz\r\n", http_errors.ParseException), (b"5\r\nab", OSError)):
        with serving() as (_, conn, client):
            client.sendall(head + body)
            client.shutdown(socket.SHUT_WR)
            conn.init()
            request = next(conn.parser)
            _, environ = wsgi.create(request, conn.sock, conn.client, conn.server, config())
            assert environ["gunicorn.socket"] is conn.sock
            with pytest.raises(expected):
                environ["wsgi.input"].read(100)


def cut(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
    start_response("200 OK", [])
    yield b"part"
    raise ConnectionResetError(104, "the client left")


@assumption("cut streams")
def cut_streams() -> None:
    with serving(cut) as (worker, conn, client):
        conn.init()
        conn.parser.unreader.unread(GET)
        assert worker.handle(conn) is False
        conn.close()
        with client.makefile("rb") as stream:
            assert stream.read().endswith(b"\r\n\r\n4\r\npart\r\n")


class Application(BaseApplication):
    """As little of an application as an arbiter needs."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        super().__init__()

    def load_config(self) -> None:
        for name, value in ({"bind": "127.0.0.1:0"} | self.settings).items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        return hello


class Clean:
    """An arbiter in this process that forks nothing; its signal handlers and sockets go with the block."""

    def __init__(self, **settings: Any) -> None:
        self.arbiter = Arbiter(Application(**settings))

    def __enter__(self) -> Any:
        self._handlers = {number: signal.getsignal(number) for number in (*Arbiter.SIGNALS, signal.SIGCHLD)}
        return self.arbiter

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        for listener in self.arbiter.LISTENERS:
            listener.sock.close()


@assumption("listener")
def listener() -> None:
    with Clean() as arbiter:
        arbiter.start()
        (listener,) = arbiter.LISTENERS
        old, listener.sock = listener.sock, socket.socket()
        old.close()
        assert listener.fileno() == listener.sock.fileno()


@assumption("readiness")
def readiness() -> None:
    said: list[str] = []
    original = systemd.sd_notify
    systemd.sd_notify = lambda state, *_, **__: said.append(state)
    try:
        with Clean() as arbiter:
            arbiter.start()
    finally:
        systemd.sd_notify = original
    assert [line.split("\n")[0] for line in said] == ["READY=1"]


@assumption("starts")
def starts() -> None:
    with Clean(workers=1) as arbiter:
        asked = threading.Semaphore(0)
        arbiter.spawn_workers = asked.release
        arbiter.manage_workers()
        assert asked.acquire(blocking=False)
        # The loop's own turns: nothing but the clock moves it.
        turns: list[int] = []

        def turn() -> None:
            turns.append(1)
            if len(turns) == 3:
                raise SystemExit

        arbiter.spawn_workers = turn
        with pytest.raises(SystemExit):
            arbiter.run()


@assumption("stopping")
def stopping() -> None:
    for end in ("halt", "handle_quit", "handle_int"):
        with Clean() as arbiter:
            arbiter.start()
            calls: list[str] = []
            stop = arbiter.stop
            arbiter.stop = lambda *graceful, stop=stop, calls=calls: (calls.append("stop"), stop(*graceful))
            arbiter.kill_workers = lambda _, calls=calls: calls.append("kill")
            with pytest.raises((SystemExit, StopIteration)):
                getattr(arbiter, end)()
            assert calls[:2] == ["stop", "kill"]


# A gunicorn of its own for what needs forks: hooks that print, and an application that ends its process.
HOOKS = """
import os, signal, sys
from gunicorn.errors import HaltServer

bind, workers, worker_class = "127.0.0.1:%d", 1, "gthread"
reaped = []

def when_ready(server):
    reap = server.reap_workers
    server.reap_workers = lambda: (reaped.append(1), reap())

def pre_fork(server, worker):
    print("pre_fork", os.getpid() == server.pid, flush=True)

def post_fork(server, worker):
    inherited = signal.getsignal(signal.SIGTERM) == server.signal
    print("post_fork", os.getpid() != server.pid, inherited, flush=True)

def child_exit(server, worker):
    print("child_exit", worker.pid not in server.WORKERS, bool(reaped), flush=True)
    raise HaltServer("enough", 42)
"""


def forked(folder: Path, status: int) -> tuple[int, list[str]]:
    """The status and the output of a gunicorn whose process ends with `status` as it loads."""
    (folder / "hooks.py").write_text(HOOKS % free_port())
    (folder / "ends.py").write_text(f"import os\nos._exit({status})\n")
    ended = subprocess.run(
        [sys.executable, "-m", "gunicorn", "-c", folder / "hooks.py", "ends:application"],
        cwd=folder,
        env=clean_environment({"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return ended.returncode, ended.stdout.splitlines()


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One run for the assumptions that it shows."""
    status, lines = forked(tmp_path_factory.mktemp("gunicorn"), 7)
    boot_status, _ = forked(tmp_path_factory.mktemp("boot"), StartFailed.exit_status)

    @assumption("forks")
    def forks() -> None:
        assert lines[:2] == ["pre_fork True", "post_fork True True"]

    @assumption("ends")
    def ends() -> None:
        assert lines[2:] == ["child_exit True True"]

    @assumption("halting")
    def halting() -> None:
        assert status == 42

    @assumption("boot status")
    def boot() -> None:
        assert boot_status == StartFailed.exit_status

    yield


@pytest.mark.parametrize("name", [*server.ASSUMED, *parent.ASSUMED])
def test_gunicorn_is_as_the_worker_assumes(name: str, ended: None) -> None:
    CHECKS[name]()


def test_every_check_has_its_line(ended: None) -> None:
    assert set(CHECKS) == {*server.ASSUMED, *parent.ASSUMED}
