"""The serving process: gunicorn's threaded worker, where it falls short of what this worker promises.

It knows that class: its connections, main loop and threads. It must not know routes, Flask or models. With `parent`,
which has the other process, it owns all use of gunicorn's insides. `ASSUMED` lists what it leans on, and
tests/worker/test_gunicorn_contract.py checks each line, by its name, against the installed gunicorn.

What gunicorn does otherwise, and why that is not enough here:
- It reads a head on a blocking socket without a deadline, so that a few clients that send half a head would take
  every thread. Here the main loop reads heads, and a thread gets a request whose head is whole.
- It waits in its main loop for a client to close after the last answer. Here that costs neither loop nor thread.
- Its parent listens before a process can serve. Here a process can open the port itself, once it is ready.
"""

import mmap
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from gunicorn.http.errors import ParseException
from gunicorn.workers.gthread import ThreadWorker

from worker import notify
from worker.connections import Arrivals, Departures, all_sent
from worker.errors import BodyIncomplete, InternalError, StartFailed, Typed
from worker.heads import announces_body, glance
from worker.incoming import Incoming
from worker.observe import Finished, Metrics, finished, log, request_id
from worker.refusals import refusal, response

ASSUMED = {
    "new connections": "ThreadWorker.accept counts a connection in nr_conns and hands it to self.enqueue_req",
    "kept connections": "ThreadWorker.finish_request keeps a connection whose future is true, and hands it to "
    "self.enqueue_req when its socket is readable, or at once when its unreader holds bytes",
    "buffered bytes": "TConn.init makes a parser, whose unreader gives bytes back by take_buffered and takes them by "
    "unread; a parser needs no more of a head that heads.Head calls decidable",
    "one request": "ThreadWorker.handle serves one request of an initialized connection and returns whether to keep it",
    "main loop": "ThreadWorker.run calls murder_pending once a second or more often, also while it drains, and ends "
    "when nr_conns is 0",
    "opening": "ThreadWorker.run calls set_accept_enabled once a second or more often until it is enabled",
    "poller": "ThreadWorker.poller is a selector, and the main loop calls key.data(socket) for a readable one",
    "refused heads": "ThreadWorker.handle calls self.handle_error(request, socket, address, error) for a head that "
    "its parser refuses; the errors have the names of refusals.TABLE",
    "environ": "wsgi.create gives the socket as gunicorn.socket and the body as wsgi.input, which raises "
    "ParseException for malformed chunks and OSError for cut ones",
    "cut streams": "a ConnectionResetError from the response's iterator ends the connection without a last chunk",
}  # fmt: skip


class Flag:
    """Set in one process, seen in the parent that forked it."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, 1)

    def set(self) -> None:
        self._shared[0] = 1

    def is_set(self) -> bool:
        return self._shared[0] == 1


def incoming(environ: Mapping[str, Any]) -> Incoming:
    """The request of a WSGI environ, under gunicorn or another server."""
    stream = environ["wsgi.input"]

    def read(size: int) -> bytes:
        try:
            return bytes(stream.read(size))
        except ParseException:
            raise BodyIncomplete from None

    declared = environ.get("CONTENT_LENGTH") or ""
    return Incoming(
        read,
        int(declared) if declared.isdigit() else None,
        "chunked" in environ.get("HTTP_TRANSFER_ENCODING", "").lower(),
        environ.get("HTTP_CONTENT_ENCODING", ""),
        environ.get("gunicorn.socket"),
    )


class Worker(ThreadWorker):
    """The serving process: one main loop, many threads, and one more thread for `reserved` requests.

    The main loop has a connection while its head arrives and after its last answer, gunicorn while it is idle
    between requests, and a thread otherwise.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.warm = Flag()
        self._address: Any = None

    def listen_at(self, address: Any) -> None:
        """Before the process is forked: it opens the port at `address` itself, once it is ready."""
        self._address = address
        self.sockets: list[Any] = []

    def attach(self, metrics: Metrics, ready: Callable[[], bool], reserved: bytes) -> None:
        """Before the process serves: where refusals are counted, when to open its own port, and how a head begins
        whose request gets a thread at once, however many others wait for one."""
        self._metrics, self._ready, self._reserved = metrics, ready, reserved

    def init_process(self) -> None:
        self._spare = ThreadPoolExecutor(1, "reserved")
        # By socket: what was read of a request that a thread has.
        self._taken: dict[socket.socket, bytes] = {}
        super().init_process()

    def run(self) -> None:
        self._arrivals = Arrivals[Any](self.poller, self._begin, self._turn_away, self._drop)
        self._departures = Departures[Any](self.poller, self._drop)
        super().run()

    def set_accept_enabled(self, enabled: bool) -> None:
        """Main loop."""
        if enabled and not self.sockets:
            if not self._ready():
                return
            self.sockets.append(self._listening())
        super().set_accept_enabled(enabled)
        if not self.alive or self.ppid != os.getppid():
            notify.status("draining: finishing the requests that were accepted")
            self._leave()

    def _listening(self) -> socket.socket:
        try:
            own = bound(self._address)
            own.listen(self.cfg.backlog)
        except OSError as error:
            notify.failed(StartFailed(f"cannot listen at {self._address}: {error.strerror}"))
            # The parent then ends too, and whoever supervises it starts it again.
            sys.exit(StartFailed.exit_status)
        log.info("the port is open")
        return own

    def _leave(self) -> None:
        """Whoever connected in time is served; whoever comes later is refused at once, and can go elsewhere."""
        for listener in self.sockets:
            before = -1
            while self.nr_conns != before:
                before = self.nr_conns
                self.accept(listener)
            listener.close()
        self.sockets = []

    def enqueue_req(self, conn: Any) -> None:
        """Main loop: a request may begin on `conn`."""
        self._arrivals.add(conn, conn.sock, conn.parser.unreader.take_buffered() if conn.initialized else b"")

    def _begin(self, conn: Any, data: bytes) -> None:
        """To a thread, where gunicorn's parser finds what was read as if it came from the socket."""
        conn.init()
        conn.parser.unreader.unread(data)
        self._taken[conn.sock] = data
        # Only what cannot hold it up: no body to wait for, and room for the answer.
        quick = data.startswith(self._reserved) and not announces_body(data) and all_sent(conn.sock)
        pool = self._spare if quick else self.tpool
        served = pool.submit(self.handle, conn)
        served.add_done_callback(partial(self.method_queue.defer, self.finish_request, conn))

    def finish_request(self, conn: Any, served: Future[Any]) -> None:
        """Main loop: a thread is done with `conn`."""
        del self._taken[conn.sock]
        if served.exception() is None and served.result():
            super().finish_request(conn, served)
        else:
            self._departures.add(conn, conn.sock)

    def murder_pending(self) -> None:
        """Main loop, at least once a second."""
        self._arrivals.expire()
        self._departures.expire()

    def handle_error(self, req: Any, client: socket.socket, addr: Any, exc: BaseException) -> None:
        """A thread: what gunicorn's parser refused, or what failed outside the application."""
        refused = refusal(exc)
        if isinstance(refused, InternalError):
            log.error("a request failed outside the application", exc_info=exc)
        self._answer(client, self._taken.get(client, b""), refused)

    def _turn_away(self, conn: Any, data: bytes, refused: Typed) -> None:
        self._answer(conn.sock, data, refused)
        self._departures.add(conn, conn.sock)

    def _answer(self, client: socket.socket, data: bytes, refused: Typed) -> None:
        began = time.perf_counter()
        asked = glance(data)
        id = request_id(asked.request_id)
        head, body = response(refused, id)
        try:
            client.sendall(head + body)
        except OSError:
            pass  # gone meanwhile, or it reads nothing
        line = Finished(id, asked.method, "other", asked.path, refused.status, len(body), began)
        finished(self._metrics, line)

    def _drop(self, conn: Any) -> None:
        self.nr_conns -= 1
        conn.close()


def bound(address: Any) -> socket.socket:
    """A socket with the address, as gunicorn makes them, that does not listen yet."""
    sock = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.bind(address)
    return sock
