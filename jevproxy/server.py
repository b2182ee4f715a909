"""gunicorn's gevent worker, where its own behaviour falls short of what jevproxy promises.

Knows gunicorn's worker, request and response objects, and what stopping means for connections. Must not know routes
or the backend. Everything is put on one worker by `install`, after it has loaded the application.
"""

import socket
import time
from functools import partial
from http import HTTPStatus
from typing import Any

import gevent
from gevent import getcurrent
from gunicorn.http import errors, wsgi

from .errors import BadRequest, ExpectationFailed, FieldsTooLarge, ProxyError, UriTooLong, error_body
from .headers import request_id
from .observe import Observer, Record
from .sockets import linger, peek

# Once stopping, an idle connection is given this long to send a request and be told to close; then it is closed.
IDLE_GRACE = 2.0

# What gunicorn raises before there is a request, or outside the application, and what the client is told.
REFUSALS: tuple[tuple[type[BaseException], type[ProxyError]], ...] = (
    (errors.LimitRequestLine, UriTooLong),
    (errors.LimitRequestHeaders, FieldsTooLarge),
    (errors.ExpectationFailed, ExpectationFailed),
    (errors.ParseException, BadRequest),
    (BaseException, ProxyError),
)


class _Gathered:
    """Stands in for a socket while a response's first bytes are put together."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.sendall = self.parts.append


class Response(wsgi.Response):
    """gunicorn's response, with the application's header fields alone, and head and first piece in one packet."""

    sock: Any

    def __init__(self, worker: Any, request: Any, sock: socket.socket, cfg: Any) -> None:
        super().__init__(request, sock, cfg)
        self._worker = worker

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
        if self.headers_sent:
            super().write(arg)
            return
        gathered = _Gathered()
        sock = self.sock
        self.sock = gathered
        try:
            super().write(arg)
        finally:
            self.sock = sock
        sock.sendall(b"".join(gathered.parts))


class Waiting(gevent.Timeout):
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


def install(worker: Any, observer: Observer) -> None:
    """Put the behaviour of this module on a gunicorn gevent worker."""
    wsgi.Response = partial(Response, worker)
    idle: set[socket.socket] = set()
    sockets: dict[Any, socket.socket] = {}
    handle = worker.handle

    def handle_tracked(listener: Any, client: socket.socket, address: Any) -> None:
        sockets[getcurrent()] = client
        try:
            handle(listener, client, address)
        finally:
            del sockets[getcurrent()]

    def handle_error(request: Any, client: socket.socket, address: Any, error: BaseException) -> None:
        refuse(client, request, error, observer, worker.log)

    worker.handle = handle_tracked
    worker.handle_error = handle_error
    worker.timeout_ctx = lambda: Waiting(worker.cfg.keepalive, sockets[getcurrent()], idle)
    gevent.spawn(_close_idle, worker, idle)


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


def refuse(client: Any, request: Any, error: BaseException, observer: Observer, log: Any) -> None:
    """Answer what cannot become a request, or failed outside the application, in the contract's JSON; then close."""
    refusal = next(ours for theirs, ours in REFUSALS if isinstance(error, theirs))()
    if refusal.status == 500:
        log.error("A request failed outside the application.", exc_info=error)
    record = Record(
        getattr(request, "method", None) or "-",
        getattr(request, "path", None) or "-",
        request_id(getattr(request, "headers", ())),
        time.perf_counter(),
        status=refusal.status,
        kind="refused" if refusal.status < 500 else refusal.kind,
    )
    body = error_body(refusal.status, refusal.error_type, refusal.message, record.request_id)
    reason = HTTPStatus(refusal.status).phrase
    head = (
        f"HTTP/1.1 {refusal.status} {reason}\r\nConnection: close\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nX-Request-Id: {record.request_id}\r\n\r\n"
    )
    try:
        client.sendall(head.encode("latin-1") + body)
        record.sent = len(body)
    except OSError:  # gone meanwhile; lingering ends at once then
        pass
    observer.finish(record)
    linger(client)
