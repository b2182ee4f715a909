"""gunicorn's threaded worker, where it falls short of what this worker promises: no connection holds a thread long.

It knows gunicorn's gthread worker: its connections, its main loop and its threads. It must not know routes, Flask or
models.

gunicorn reads a request's head on a blocking socket without a deadline, so that a few clients that send half a head
would take every thread. Here a connection without a byte waits in the poller, where it costs no thread, and a head
has a time, after which the reading side is shut and 408 answered. And gunicorn waits for a client to close after
the last answer in its main loop, which serves everybody; here the thread that answered waits. And gunicorn's parent
listens before a worker can serve; here a worker can be told to listen itself, when it is warm.
"""

import os
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from selectors import EVENT_READ
from typing import Any

from gunicorn.arbiter import Arbiter
from gunicorn.util import close_graceful
from gunicorn.workers.gthread import ThreadWorker

from worker.refusals import refuse

# Seconds for a head to arrive, from the connection's first byte or silence. jevproxy and nginx send one at once.
HEAD_S = 10.0
# What a head that waited that long for a thread still gets: whoever sent it whole is served.
LEAST_S = 1.0


def bound(address: Any) -> socket.socket:
    """A socket with the address, as gunicorn makes them, that does not listen yet."""
    found = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    found.bind(address)
    return found


def closed(listener: Any) -> Any:
    """In gunicorn's parent: it listens no more, for a worker to do so. The address, which stays taken."""
    address = listener.getsockname()
    listener.sock.close()
    listener.sock = bound(address)
    listener.sock.set_inheritable(True)
    return address


class Worker(ThreadWorker):
    """One process of threads. `_since`: connections that wait for a thread; `_due`: those whose head is being read."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._address: Any = None
        self._warm: Callable[[], bool] = lambda: True
        self._since: dict[Any, float] = {}
        self._due: dict[Any, float] = {}
        self._late: set[Any] = set()

    def open_when(self, warm: Callable[[], bool], address: Any) -> None:
        """Before the process starts: it listens at `address` itself, when `warm` says so and not before."""
        self._warm, self._address = warm, address
        self.sockets: list[Any] = []

    def set_accept_enabled(self, enabled: bool) -> None:
        """Main loop, at least once a second until it is enabled."""
        if enabled and not self.sockets:
            if not self._warm():
                return
            self.sockets.append(self._listening())
        super().set_accept_enabled(enabled)
        if not self.alive or self.ppid != os.getppid():
            self._leave()

    def _listening(self) -> socket.socket:
        try:
            own = bound(self._address)
            own.listen(self.cfg.backlog)
        except OSError as error:
            self.log.error("cannot listen at %s: %s", self._address, error.strerror)
            # gunicorn's parent then ends too, and whoever supervises it starts it again.
            sys.exit(Arbiter.WORKER_BOOT_ERROR)
        self.log.info("the port is open")
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
        """Main loop: a new connection goes to the poller until its first byte, any other to a thread."""
        now = time.monotonic()
        if not conn.initialized and not conn.data_ready:
            conn.timeout = now + HEAD_S
            self.pending_conns.append(conn)
            self.poller.register(conn.sock, EVENT_READ, partial(self.on_pending_socket_readable, conn))
        else:
            self._since[conn] = now
            super().enqueue_req(conn)

    def murder_pending(self) -> None:
        """Main loop, at least once a second: ends the reads of heads whose time is over."""
        super().murder_pending()
        now = time.monotonic()
        for conn, due in list(self._due.items()):
            if now > due and self._due.pop(conn, 0.0):
                self._late.add(conn)
                _shut(conn.sock)

    def handle(self, conn: Any) -> Any:
        """A thread: one request. False when the connection is to be closed."""
        self._due[conn] = max(self._since.pop(conn) + HEAD_S, time.monotonic() + LEAST_S)
        kept = super().handle(conn)
        self._due.pop(conn, None)
        if conn in self._late:
            self._late.discard(conn)
            kept = False
            conn.sock.settimeout(LEAST_S)
            refuse(None, conn.sock, conn.client, TimeoutError())
        if not kept:
            try:
                close_graceful(conn.sock.dup())
            except OSError:
                pass  # closed already
            # The main loop does the same again, and finds nothing to wait for.
            _shut(conn.sock)
        return kept

    def handle_request(self, req: Any, conn: Any) -> Any:
        """A thread: the head is there."""
        if self._due.pop(conn, None) is None:
            raise StopIteration  # struck at the last moment
        return super().handle_request(req, conn)

    def handle_error(self, req: Any, client: socket.socket, addr: Any, exc: BaseException) -> None:
        refuse(req, client, addr, exc)


def _shut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RD)
    except OSError:
        pass  # closed already
