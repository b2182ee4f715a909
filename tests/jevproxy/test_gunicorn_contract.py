"""What jevproxy assumes about the inside of gunicorn, one check for each line of `gunicorn_seam.LEANS_ON`.

gunicorn's own objects on real sockets, and one real gunicorn, without jevproxy's behaviour on them. A check that
fails names what a new gunicorn does otherwise.
"""

from __future__ import annotations

import configparser
import importlib
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gevent
import pytest
from gunicorn.config import Config
from gunicorn.glogging import Logger
from gunicorn.http import wsgi
from gunicorn.http.body import ChunkedReader, LengthReader
from gunicorn.http.errors import NoMoreData, ParseException
from gunicorn.http.parser import RequestParser
from gunicorn.http.unreader import SocketUnreader
from gunicorn.systemd import sd_notify
from gunicorn.workers.ggevent import GeventWorker

from jevproxy import gunicorn_seam
from jevproxy.errors import ClientGone, DeadlineExceeded
from jevproxy.gunicorn_seam import LEANS_ON, VERSIONS, Cut
from tests.callers import Caller
from tests.messages import get
from tests.servers import ROOT, Program, free_port, status_of, wait_until

ADDRESS = ("127.0.0.1", 1)
PLAIN = b"GET /x HTTP/1.1\r\nHost: h\r\nX-A: 1\r\nX-A: 2\r\n\r\n"
CHECKS: dict[str, Callable[..., None]] = {}


def check(name: str) -> Callable[[Callable[..., None]], None]:
    """The check of one assumption. Its parameters are the fixtures' names below."""

    def register(function: Callable[..., None]) -> None:
        CHECKS[name] = function

    return register


class Served:
    """gunicorn's gevent worker as it is, given one connection at a time."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "error.log"
        self.cfg = Config()
        self.cfg.set("errorlog", str(self.log))
        self.worker: Any = GeventWorker(1, os.getpid(), [], None, 30, self.cfg, Logger(self.cfg))

    def ask(self, request: bytes, application: Callable[..., Iterable[bytes]]) -> bytes:
        """All that the worker writes to a client that sends `request` and nothing more."""
        self.worker.wsgi = application
        ours, theirs = socket.socketpair()
        with ours, theirs, socket.create_server(("127.0.0.1", 0)) as listener:
            theirs.sendall(request)
            theirs.shutdown(socket.SHUT_WR)
            self.worker.handle(listener, ours, ADDRESS)
            assert ours.fileno() == -1, "the connection is closed"
            answer = b""
            while more := theirs.recv(1 << 16):
                answer += more
        return answer


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(SocketUnreader, "chunk", SocketUnreader.chunk)
    monkeypatch.setattr(wsgi, "Response", wsgi.Response)  # what a check puts there goes with it
    one = Served(tmp_path)
    yield one
    one.worker.tmp.close()
    for handler in one.worker.log.error_log.handlers:
        handler.close()


@contextmanager
def parsing(data: bytes, more_to_come: bool = False) -> Iterator[Any]:
    """gunicorn's parser of a connection on which `data` has arrived."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data)
        if not more_to_come:
            theirs.shutdown(socket.SHUT_WR)
        ours.settimeout(10)
        yield RequestParser(Config(), ours, ADDRESS)


def hello(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    start_response("200 OK", [("Content-Length", "5")])
    return [b"hello"]


@check("response class")
def _(served: Served) -> None:
    made = []

    def make(request: Any, sock: socket.socket, cfg: Any) -> Any:
        made.append((request.method, type(sock), cfg))
        return original(request, sock, cfg)

    original: Any = wsgi.Response
    wsgi.Response = make
    served.ask(PLAIN, hello)
    assert made == [("GET", socket.socket, served.cfg)]


@check("response first")
def _(served: Served) -> None:
    class Renaming(wsgi.Response):
        def __init__(self, request: Any, *rest: Any) -> None:
            super().__init__(request, *rest)
            request.headers = [("X-B", "3")]

    seen: list[dict[str, Any]] = []
    wsgi.Response = Renaming
    served.ask(PLAIN, lambda environ, start: (seen.append(environ), hello(environ, start))[1])
    assert {key: seen[0][key] for key in seen[0] if key.startswith("HTTP_")} == {"HTTP_X_B": "3"}


@check("field names")
def _() -> None:
    with parsing(PLAIN) as parser:
        assert next(parser).headers == [("HOST", "h"), ("X-A", "1"), ("X-A", "2")]


@check("bound start")
def _(served: Served) -> None:
    bound = []
    served.ask(PLAIN, lambda environ, start: (bound.append(start.__self__), hello(environ, start))[1])
    (response,) = bound
    assert isinstance(response, wsgi.Response)
    assert response.req.version == (1, 1) and isinstance(response.sock, socket.socket)


@check("response fields")
def _(served: Served) -> None:
    class Plain(wsgi.Response):
        def process_headers(self, headers: list[tuple[str, str]]) -> None:
            self.headers = [("X-Mine", "1")]
            self.response_length = 5

    wsgi.Response = Plain
    head, _, body = served.ask(PLAIN, hello).partition(b"\r\n\r\n")
    assert b"\r\nX-Mine: 1" in head and b"Content-Length" not in head and b"chunked" not in head
    assert body == b"hello"


@check("response head")
def _(served: Served) -> None:
    class Short(wsgi.Response):
        def default_headers(self) -> list[str]:
            return [f"HTTP/1.1 {self.status}\r\n"]

    wsgi.Response = Short
    assert served.ask(PLAIN, hello) == b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


@check("first piece")
def _() -> None:
    gathered = gunicorn_seam._Gathered()
    with parsing(PLAIN) as parser:
        response = wsgi.Response(next(parser), gathered, Config())
        response.start_response("200 OK", [("Content-Length", "10")])
        assert not response.headers_sent
        response.write(b"hello")
        assert response.headers_sent
        head, *rest = gathered.parts
        assert head.endswith(b"\r\n\r\n") and rest == [b"hello"]
        response.write(b"again")
        assert gathered.parts[2:] == [b"again"]


@check("force close")
def _(served: Served) -> None:
    def last(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response.__self__.force_close()
        return hello(environ, start_response)

    class Last(wsgi.Response):
        def __init__(self, request: Any, *rest: Any) -> None:
            super().__init__(request, *rest)
            request.force_close()

    assert served.ask(PLAIN * 2, hello).count(b"HTTP/1.1 200") == 2
    answer = served.ask(PLAIN * 2, last)
    wsgi.Response = Last
    for one in (answer, served.ask(PLAIN * 2, hello)):
        assert one.count(b"HTTP/1.1 200") == 1 and b"Connection: close" in one


@check("known length")
def _() -> None:
    post = b"POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\n"
    with parsing(post + b"hell", more_to_come=True) as parser:
        reader = next(parser).body.reader
        assert isinstance(reader, LengthReader) and reader.length == 10
        assert reader.unreader.read(None, read_ahead=10) == b"hell", "without waiting for the rest"
    with parsing(post + b"hello worl" + PLAIN) as parser:
        reader = next(parser).body.reader
        assert reader.unreader.read(None, read_ahead=10) == b"hello worl" + PLAIN
        reader.unreader.unread(PLAIN)
        reader.length = 0
        assert next(parser).uri == "/x"


@check("no body")
def _() -> None:
    with parsing(PLAIN) as parser:
        reader = next(parser).body.reader
        assert isinstance(reader, LengthReader) and reader.length == 0


@check("chunks")
def _() -> None:
    def chunked(body: bytes) -> Any:
        return parsing(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + body)

    with chunked(b"5\r\nhello\r\n1\r\n!\r\n0\r\n\r\n" + PLAIN) as parser:
        reader = next(parser).body.reader
        assert isinstance(reader, ChunkedReader)
        assert b"".join(reader.parser) == b"hello!"
        reader.parser = None
        assert next(parser).uri == "/x"
    for body, error in ((b"x\r\n", ParseException), (b"5\r\nhe", NoMoreData)):
        with chunked(body) as parser, pytest.raises(error):
            list(next(parser).body.reader.parser)
    assert issubclass(NoMoreData, OSError)


@check("reset")
def _(served: Served) -> None:
    def cut() -> Iterator[bytes]:
        yield b"he"
        raise Cut()

    def application(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Length", "5")])
        return cut()

    assert served.ask(PLAIN * 2, application).endswith(b"\r\n\r\nhe")
    assert served.log.read_text() == ""


@check("closes last")
def _(served: Served) -> None:
    stopped: list[BaseException | None] = []

    class Answer:
        def __iter__(self) -> Iterator[bytes]:
            yield b"he"
            raise Cut() from DeadlineExceeded()

        def close(self) -> None:
            stopped.extend((sys.exception(), gunicorn_seam.stopped_by()))

    def application(environ: dict[str, Any], start_response: Any) -> Answer:
        start_response("200 OK", [("Content-Length", "5")])
        return Answer()

    served.ask(PLAIN, application)
    assert [type(error) for error in stopped] == [Cut, DeadlineExceeded]


@check("refusals")
def _(served: Served) -> None:
    def broken(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        raise LookupError

    refused: list[tuple[Any, ...]] = []
    served.worker.handle_error = lambda request, client, address, error: refused.append(
        (request and request.path, type(client), address, type(error))
    )
    assert served.ask(b"GET /x HTTP/1.1\r\nbad\r\n\r\n", hello) == b""
    assert served.ask(PLAIN, broken) == b""
    (early, late) = refused
    assert early[:3] == (None, socket.socket, ADDRESS) and issubclass(early[3], ParseException)
    assert late == ("/x", socket.socket, ADDRESS, LookupError)


@check("reads")
def _() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"GET")
        assert SocketUnreader(ours).chunk() == b"GET"


@check("keep-alive")
def _(served: Served) -> None:
    events = []

    @contextmanager
    def waiting() -> Iterator[None]:
        events.append("waits")
        yield
        events.append("has one")

    served.worker.timeout_ctx = waiting
    served.ask(PLAIN * 2, lambda environ, start: (events.append("serves"), hello(environ, start))[1])
    assert events == ["waits", "has one", "serves"] * 2 + ["waits"]


CONFIGURATION = """
import json, os, signal, time
import gevent

begun = os.getpid()
def say(event, **facts):
    os.write(1, (json.dumps({"event": event, "parent": os.getpid() == begun, **facts}) + "\\n").encode())

worker_class = "gevent"
graceful_timeout = 3600
control_socket_disable = True
def when_ready(server):
    say("when_ready", queued=hasattr(server, "SIG_QUEUE"))
    server.terminated = []
    def terminate(number, frame):
        server.signal(signal.SIGQUIT if server.terminated else number, frame)
        server.terminated.append(number)
    signal.signal(signal.SIGTERM, terminate)
def pre_fork(server, worker):
    say("pre_fork")
def post_fork(server, worker):
    say("post_fork", inherited=signal.getsignal(signal.SIGQUIT) == server.signal)
def post_worker_init(worker):
    say("post_worker_init", loaded=worker.wsgi.__name__, alive=worker.alive)
    handle = worker.handle
    def handle_told(listener, client, address):
        say("handle")
        handle(listener, client, address)
    worker.handle = handle_told
    def watch():
        while worker.alive:
            gevent.sleep(0.05)
        say("stopping")
    gevent.spawn(watch)
"""
APPLICATION = """
import gevent
def application(environ, start_response):
    if environ["PATH_INFO"] == "/hold":
        gevent.sleep(3600)
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]
"""


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What a gunicorn said of itself from its start to its end by two SIGTERMs, with a request in flight."""
    folder = tmp_path_factory.mktemp("gunicorn")
    (folder / "conf.py").write_text(CONFIGURATION)
    (folder / "held.py").write_text(APPLICATION)
    url = f"http://127.0.0.1:{free_port()}"
    argv = [sys.executable, "-m", "gunicorn", "-c", "conf.py", "-b", url.removeprefix("http://"), "held"]
    with Program(argv, {}, url=url, ready=lambda: status_of(url) == 200, cwd=folder) as program:
        # Counted before the connection is made: gunicorn handles it as soon as it accepts it.
        before = program.output().count('"handle"')
        with Caller(url) as caller:
            caller.send(get(path="/hold"))
            wait_until(lambda: program.output().count('"handle"') > before, what="the request in flight")
            program.signal(signal.SIGTERM)
            wait_until(lambda: '"stopping"' in program.output(), what="the first SIGTERM reaching the worker")
            program.signal(signal.SIGTERM)
            began = time.monotonic()
            assert program.wait(60) == 0
            ended = {"event": "ended", "seconds": time.monotonic() - began}
        return [*(json.loads(line) for line in program.lines() if line.startswith("{")), ended]


def said(life: list[dict[str, Any]], event: str) -> dict[str, Any]:
    return next(fact for fact in life if fact["event"] == event)


@check("order")
def _(life: list[dict[str, Any]]) -> None:
    told = [(fact["event"], fact["parent"]) for fact in life[:4]]
    assert told == [
        ("when_ready", True),
        ("pre_fork", True),
        ("post_fork", False),
        ("post_worker_init", False),
    ]


@check("inherited")
def _(life: list[dict[str, Any]]) -> None:
    assert said(life, "post_fork")["inherited"]


@check("loaded")
def _(life: list[dict[str, Any]]) -> None:
    assert said(life, "post_worker_init")["loaded"] == "application"


@check("connections")
def _(life: list[dict[str, Any]]) -> None:
    assert sum(fact["event"] == "handle" for fact in life) >= 2


@check("stopping")
def _(life: list[dict[str, Any]]) -> None:
    assert said(life, "post_worker_init")["alive"] and said(life, "stopping")


@check("second signal")
def _(life: list[dict[str, Any]]) -> None:
    assert said(life, "ended")["seconds"] < 60, "the graceful timeout is an hour"


@check("notification")
def _(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        sd_notify("STATUS=nobody", logging.getLogger())
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        sd_notify("STATUS=ready", logging.getLogger())
        assert manager.recv(100) == b"STATUS=ready"


@pytest.mark.parametrize("name", LEANS_ON)
def test_gunicorn_does_what_jevproxy_assumes(name: str, request: pytest.FixtureRequest) -> None:
    function = CHECKS[name]
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    function(*(request.getfixturevalue(fixture) for fixture in names))


@pytest.mark.parametrize("name", LEANS_ON)
def test_the_code_that_is_named_is_there(name: str) -> None:
    module, _, attributes = LEANS_ON[name][0].partition(":")
    found: Any = importlib.import_module(f"gunicorn.{module}")
    for attribute in attributes.split("."):
        found = getattr(found, attribute)


def test_the_versions_are_those_that_setup_cfg_allows() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert f"gunicorn[gevent]{VERSIONS}" in setup["options"]["install_requires"].split()
    assert set(CHECKS) == set(LEANS_ON)


@pytest.mark.parametrize("kind", [DeadlineExceeded, ClientGone])
@pytest.mark.parametrize("waits", ["first piece", "piece", "last chunk"])
def test_what_is_raised_into_a_write_to_the_client_becomes_a_cut(
    kind: type[DeadlineExceeded | ClientGone], waits: str
) -> None:
    """gunicorn then closes the connection without a word."""
    ours, theirs = gevent.socket.socketpair()

    def write() -> Any:
        try:
            response.close() if waits == "last chunk" else response.write(b"b")
        except Cut as cut:
            return cut

    with ours, theirs, parsing(PLAIN) as parser:
        response = gunicorn_seam.Response(type("Worker", (), {"alive": True}), next(parser), ours, Config())
        response.start_response("200 OK", [])
        if waits != "first piece":
            response.write(b"a")
        fill(ours)
        writing = gevent.spawn(write)
        gevent.idle()
        writing.kill(kind(), block=False)
        assert type(writing.get().__cause__) is kind


def fill(sock: Any) -> None:
    """Write until the peer, which does not read, has no room for another byte."""
    sock.settimeout(0)
    for size in (65536, 1):
        try:
            while True:
                sock.send(b"x" * size)
        except BlockingIOError:
            pass
    sock.settimeout(None)
