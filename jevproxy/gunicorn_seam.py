"""The inside of gunicorn and of its gevent worker, as far as jevproxy uses it: here and in no other module.

Knows gunicorn's request, response, body readers, worker and arbiter. Must not know Flask, routes, metrics or the
backend. Other modules see an `Incoming` request, `Cut` and `stopped_by`. What is not in gunicorn's documentation is
named in `LEANS_ON`; tests/jevproxy/test_gunicorn_contract.py checks each line of it by its name.
"""

import errno
import os
import re
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import gevent
from gevent import getcurrent
from gunicorn.http import wsgi
from gunicorn.http.body import ChunkedReader
from gunicorn.http.errors import NoMoreData, ParseException
from gunicorn.http.unreader import SocketUnreader

from .errors import BadRequest, ClientGone, Interrupted
from .headers import Fields
from .sockets import linger, peek

VERSIONS = ">=27.0.0,<28"
# Name: the gunicorn code, and what it does.
LEANS_ON = {
    "response class": ("http.wsgi:create", "makes each response of `Response` as its module names it then"),
    "response first": ("http.wsgi:create", "reads the request's header fields after it made the response"),
    "field names": ("http.message:Request", "has `headers`, a list of names in capitals and values, in order"),
    "bound start": ("workers.base_async:AsyncWorker.handle_request", "gives start_response bound to the response"),
    "response fields": ("http.wsgi:Response.start_response", "leaves header fields to `process_headers`"),
    "response head": ("http.wsgi:Response.send_headers", "writes `default_headers`, then `headers`"),
    "first piece": ("http.wsgi:Response.write", "sends the head, then the piece, by `sock.sendall`"),
    "force close": ("http.wsgi:Response.force_close", "makes the response the connection's last; so on a request"),
    "known length": ("http.body:LengthReader", "counts what is left in `length`; `unreader` reads and takes back"),
    "no body": ("http.message:Request.set_body_reader", "gives a LengthReader of 0 without a framing field"),
    "chunks": ("http.body:ChunkedReader", "yields pieces from `parser`; raises ParseException, or an OSError"),
    "reset": ("workers.base_async:AsyncWorker.handle", "closes without a word on an OSError of ECONNRESET"),
    "closes last": ("workers.base_async:AsyncWorker.handle_request", "closes the answer while its exception is raised"),
    "refusals": ("workers.base_async:AsyncWorker.handle", "calls `handle_error` for all other exceptions, then closes"),
    "reads": ("http.unreader:SocketUnreader.chunk", "gives what one read of the socket brought"),
    "keep-alive": ("workers.base_async:AsyncWorker.handle", "holds `timeout_ctx()` just while it awaits a request"),
    "connections": ("workers.ggevent:GeventWorker.run", "calls the worker's own `handle` for each connection"),
    "stopping": ("workers.base:Worker.handle_exit", "makes `alive` false, on SIGTERM"),
    "loaded": ("workers.base:Worker.init_process", "calls post_worker_init with `wsgi` loaded, before `run`"),
    "order": ("arbiter:Arbiter", "calls when_ready, then for each process pre_fork and, in it, post_fork"),
    "inherited": ("arbiter:Arbiter.spawn_worker", "starts a process with the arbiter's signal handlers"),
    "notification": ("systemd:sd_notify", "sends a line to NOTIFY_SOCKET; without one, does nothing (`notify`)"),
    "second signal": ("arbiter:Arbiter.stop", "reads SIGQUIT off the queue that `Arbiter.signal` fills"),
}  # fmt: skip

# A read of this size keeps a process flat under a 100 MB upload, and costs about one system call per 64 KiB.
PIECE = 64 * 1024
_ID_LINE = re.compile(rb"^x-request-id:[ \t]*([!-~]+)[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)
CUT_SHORT = "The request body was cut short."
# Once stopping, an idle connection is given this long to send a request and be told to close; then it is closed.
IDLE_GRACE = 2.0
# What ends a process.
_ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)

# Called with method, path, header fields, the exception, and what sends bytes: answers what never became a request.
Refuse = Callable[[str, str, Fields, BaseException, Callable[[bytes], None]], None]


class Cut(ConnectionResetError):
    """Raised at gunicorn from an answer: the connection closes without another byte, and without a log line."""

    def __init__(self) -> None:
        super().__init__(errno.ECONNRESET, "cut")


def stopped_by() -> BaseException | None:
    """For an answer's `close`: the exception that stopped gunicorn in the middle of it."""
    error = sys.exception()
    return error.__cause__ if isinstance(error, Cut) else error


class Incoming:
    """One request as it comes in. `fields` are its header fields in order, repeated ones included."""

    __slots__ = ("_reader", "_response", "fields", "http_1_0", "socket")

    def __init__(self, start_response: Any) -> None:
        response: Response = start_response.__self__
        self._response = response
        self._reader = response.req.body.reader
        self.fields: Fields = response.fields
        self.socket: socket.socket = response.sock
        self.http_1_0: bool = response.req.version <= (1, 0)

    def force_close(self) -> None:
        """Make this request's response the connection's last."""
        self._response.force_close()

    def read_some(self) -> bytes:
        """The next bytes of the body as they arrive, empty at its end.

        gunicorn's own Body.read(n) waits for all n bytes, which would hold back a body that is still arriving.
        Raises BadRequest for malformed chunks, and for a body that its client ends early: a half-closed connection can
        still be answered. ClientGone if the connection is lost.
        """
        try:
            if isinstance(self._reader, ChunkedReader):
                return self._chunk()
            return self._part()
        except ParseException:
            raise BadRequest("The request body's chunks are not well-formed.") from None
        except NoMoreData:
            raise BadRequest(CUT_SHORT) from None
        except OSError:
            raise ClientGone() from None

    def _chunk(self) -> bytes:
        for piece in self._reader.parser or ():
            if piece:  # the parser may yield what came with a chunk's size: nothing
                return piece
        self._reader.parser = None
        return b""

    def _part(self) -> bytes:
        reader = self._reader
        if not reader.length:
            return b""
        piece: bytes = reader.unreader.read(None, read_ahead=min(reader.length, PIECE))
        if not piece:
            raise BadRequest(CUT_SHORT)
        if len(piece) > reader.length:  # what follows belongs to the next request
            reader.unreader.unread(piece[reader.length :])
            piece = piece[: reader.length]
        reader.length -= len(piece)
        return piece


class _Gathered:
    """Stands in for a socket while a response's first bytes are put together."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.sendall = self.parts.append


class Response(wsgi.Response):
    """gunicorn's response, with the application's header fields alone, and head and first piece in one packet."""

    def __init__(self, worker: Any, request: Any, sock: socket.socket, cfg: Any) -> None:
        super().__init__(request, sock, cfg)
        self._worker = worker
        self.fields: Fields = request.headers
        _simplify(request)

    def default_headers(self) -> list[str]:
        if not self._worker.alive:  # gunicorn looked when the request began
            self.force_close()
        lines = [
            f"HTTP/{self.req.version[0]}.{self.req.version[1]} {self.status}\r\n",
            "Connection: close\r\n" if self.should_close() else "Connection: keep-alive\r\n",
        ]
        if self.chunked:
            lines.append("Transfer-Encoding: chunked\r\n")
        return lines

    def process_headers(self, headers: list[tuple[str, str]]) -> None:
        # gunicorn's own drops Date and Server, which are the backend's here; the fields were checked as they came.
        self.headers = headers
        for name, value in headers:
            if name.lower() == "content-length":
                self.response_length = int(value)

    def write(self, arg: bytes) -> None:
        try:
            if self.headers_sent:
                super().write(arg)
            else:
                self._begin(arg)
        except Interrupted as error:
            raise Cut() from error

    def close(self) -> None:
        try:
            super().close()
        except Interrupted as error:
            raise Cut() from error

    def _begin(self, arg: bytes) -> None:
        sock, gathered = self.sock, _Gathered()
        self.sock: Any = gathered
        try:
            super().write(arg)
        finally:
            self.sock = sock
        sock.sendall(b"".join(gathered.parts))


def _simplify(request: Any) -> None:
    """Show WSGI only the header fields that it can name without confusion, and read all options of Connection.

    SCRIPT_NAME as a header field would otherwise change the path, and A_B could pass for A-B. gunicorn knows the
    option `close` alone, but not beside another one, such as in `TE, close`.
    """
    names = [name for name, _ in request.headers]
    if "CONNECTION" in names:
        options = ",".join(value for name, value in request.headers if name == "CONNECTION")
        if "close" in [option.strip() for option in options.lower().split(",")]:
            request.force_close()
    if any("_" in name for name in names):
        request.headers = [(name, value) for name, value in request.headers if "_" not in name]


class _Waiting(gevent.Timeout):
    """The wait for a connection's next request: gunicorn's keep-alive timeout, and known to be idle meanwhile."""

    def __init__(self, seconds: float, sock: socket.socket, idle: set[socket.socket]) -> None:
        super().__init__(seconds, False)
        self._socket = sock
        self._idle = idle

    def __enter__(self) -> Any:
        self._idle.add(self._socket)
        return super().__enter__()

    def __exit__(self, *exc_info: Any) -> Any:
        self._idle.discard(self._socket)
        return super().__exit__(*exc_info)


def install(worker: Any, refuse: Refuse) -> None:
    """Put the behaviour of this module on a gunicorn gevent worker; for gunicorn's post_worker_init."""
    wsgi.Response = partial(Response, worker)
    idle: set[socket.socket] = set()
    sockets: dict[Any, socket.socket] = {}
    received: dict[Any, bytes] = {}
    handle = worker.handle
    chunk = SocketUnreader.chunk

    def chunk_kept(unreader: Any, *size: Any) -> bytes:
        data = received[getcurrent()] = chunk(unreader, *size)
        return data

    def handle_tracked(listener: Any, client: socket.socket, address: Any) -> None:
        sockets[getcurrent()] = client
        try:
            handle(listener, client, address)
        finally:
            del sockets[getcurrent()]
            received.pop(getcurrent(), None)

    def handle_error(request: Any, client: socket.socket, address: Any, error: BaseException) -> None:
        if not isinstance(error, ParseException):
            worker.log.error("A request failed outside the application.", exc_info=error)
        if request is None:  # it could not be read: of its fields, only the id counts
            refuse("-", "-", id_in(received.get(getcurrent(), b"")), error, client.sendall)
        else:
            refuse(request.method, request.path, request.headers, error, client.sendall)
        linger(client)

    SocketUnreader.chunk = chunk_kept
    worker.handle = handle_tracked
    worker.handle_error = handle_error
    worker.timeout_ctx = lambda: _Waiting(worker.cfg.keepalive, sockets[getcurrent()], idle)
    gevent.spawn(_close_idle, worker, idle)


def id_in(data: bytes) -> Fields:
    """The x-request-id field of a head that may be malformed, if exactly one line of `data` is such a field."""
    values = [match[1].decode("latin-1") for match in _ID_LINE.finditer(data.partition(b"\r\n\r\n")[0])]
    return [("X-Request-Id", values[0])] if len(values) == 1 else []


def _close_idle(worker: Any, idle: set[socket.socket]) -> None:
    """Once the worker stops, end the connections that wait for a request nobody sends: they would hold up its end."""
    while worker.alive:
        gevent.sleep(0.1)
    gevent.sleep(IDLE_GRACE)
    while True:
        for sock in list(idle):
            if peek(sock) is None:  # else a request is arriving
                try:
                    with sock.dup() as same:  # gevent's own shutdown would fail the greenlet that waits
                        same.shutdown(socket.SHUT_RD)  # that greenlet reads the end, and closes
                except OSError:
                    pass
        gevent.sleep(0.1)


def end_at_second_signal(server: Any, draining: Callable[[], None]) -> None:
    """Make a second SIGTERM end at once what the first one is draining, as SIGQUIT does; for gunicorn's when_ready.

    `draining` is called at each SIGTERM.
    """
    os.register_at_fork(after_in_parent=_unblock)
    seen: list[int] = []

    def terminate(number: int, frame: Any) -> None:
        server.signal(signal.SIGQUIT if seen else number, frame)
        draining()
        seen.append(number)

    signal.signal(signal.SIGTERM, terminate)


def pre_fork(server: Any, worker: Any) -> None:
    """A signal waits until the new worker has shed the master's handlers: they note it in a queue nobody reads there.

    The master goes on at once (`end_at_second_signal`), also where the fork fails.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)


def post_fork(server: Any, worker: Any) -> None:
    """Until a worker has handlers of its own, a signal ends it."""
    for number in _ENDS:
        signal.signal(number, signal.SIG_DFL)
    _unblock()


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)
