"""The scripted backend: real sockets, and one table that says what is done with each request.

A request names its script in `X-Script`; without one it gets the script `ok`. Scripts run in threads of the test's
own process, so that both ends of a proxy can wait for each other. Knows nothing of what the tests check.
"""

from __future__ import annotations

import itertools
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.callers import PATIENCE
from tests.messages import response
from tests.servers import wait_until

OK = response(b"{}", b"Content-Type: application/json\r\n")


@dataclass(eq=False)
class Exchange:
    """One request as the backend saw it, and the connection to answer on.

    `head` and `body` are raw bytes, the body in the framing it came with; `whole` is false where the peer ended first
    or the script began before the body. `number` counts the backend's connections.
    """

    backend: Scripted
    socket: socket.socket
    number: int
    head: bytes
    body: bytes = b""
    whole: bool = True
    closed: bool = False
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def target(self) -> str:
        return self.head.split(b" ")[1].decode("latin-1")

    def values(self, name: str) -> list[str]:
        """The values of every field of this name."""
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        pairs = (line.partition(":") for line in lines if line)
        return [value.strip() for key, _, value in pairs if key.lower() == name.lower()]

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self, body: bytes = b"{}", media: str = "application/json", status: str = "200 OK") -> None:
        """A whole answer of known length."""
        self.send(response(body, f"Content-Type: {media}\r\n".encode(), status.encode()))

    def start(self, media: str = "text/event-stream", status: str = "200 OK") -> None:
        """The head of an answer in chunks."""
        fields = f"Content-Type: {media}\r\nTransfer-Encoding: chunked\r\n\r\n"
        self.send(f"HTTP/1.1 {status}\r\n{fields}".encode())

    def chunk(self, data: bytes) -> None:
        self.send(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        """The last chunk."""
        self.send(b"0\r\n\r\n")

    def close(self) -> None:
        """The connection ends as the script returns."""
        self.closed = True

    def reset(self) -> None:
        """The connection ends as a crash ends it, once the peer can have read what was sent."""
        self.closed = True
        time.sleep(0.1)  # a reset overtakes bytes that the peer's kernel has not handed over
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def left(self, unless: threading.Event | None = None) -> bool:
        """Waits until the peer has ended the connection: true; false once `unless` is set, or if the peer stays.

        Drops what the peer sends meanwhile.
        """
        deadline, before = time.monotonic() + PATIENCE, self.socket.gettimeout()
        self.socket.settimeout(0.02 if unless else PATIENCE)
        try:
            while not (unless and unless.is_set()) and time.monotonic() < deadline:
                try:
                    if not self.socket.recv(1 << 16):
                        return True
                except TimeoutError:
                    continue
                except OSError:
                    return True
            return False
        finally:
            self.socket.settimeout(before)


# An OSError in a script counts as the peer's going. The connection stays unless the script says `close` or `reset`.
Script = Callable[[Exchange], object]


def says(answer: bytes) -> Script:
    """Sends `answer` in one piece."""
    return lambda exchange: exchange.send(answer)


def cuts(answer: bytes) -> Script:
    """Sends `answer`, then ends the connection."""

    def script(exchange: Exchange) -> None:
        exchange.send(answer)
        exchange.close()

    return script


def resets(answer: bytes) -> Script:
    """Sends `answer`, then resets the connection."""

    def script(exchange: Exchange) -> None:
        exchange.send(answer)
        exchange.reset()

    return script


def drips(answer: bytes, pause: float) -> Script:
    """Sends `answer` one byte at a time."""

    def script(exchange: Exchange) -> None:
        for at in range(len(answer)):
            exchange.send(answer[at : at + 1])
            if exchange.backend.released.wait(pause):
                break

    return script


def holds(exchange: Exchange) -> None:
    """Says nothing until released or until the peer goes; then answers 200."""
    if exchange.left(unless=exchange.backend.released):
        exchange.close()
    else:
        exchange.send(OK)


class Backend:
    """Listens, and gives each accepted connection to `converse` in a thread of its own.

    The connection is closed when `converse` returns; an OSError in it counts as the peer's going. `prepare` makes of
    an accepted connection the one to converse on: TLS, a time limit.
    """

    def __init__(
        self,
        converse: Callable[[socket.socket], None],
        prepare: Callable[[socket.socket], socket.socket] = lambda connection: connection,
    ) -> None:
        self._converse = converse
        self._prepare = prepare
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0  # that were ever accepted
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def open(self) -> int:
        """How many connections are open now."""
        with self._lock:
            return len(self._open)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            with self._lock:
                self.connections += 1
                self._open.add(connection)
                self._threads.append(thread)
            thread.start()

    def _serve(self, accepted: socket.socket) -> None:
        connection = accepted
        try:
            connection = self._prepare(accepted)
            with self._lock:
                self._open.discard(accepted)
                self._open.add(connection)
            self._converse(connection)
        except OSError:
            pass
        finally:
            connection.close()
            accepted.close()
            with self._lock:
                self._open -= {accepted, connection}

    def close(self) -> None:
        """Stops listening, ends every connection, and waits for the threads. May be called more than once."""
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._listener.close()
        self._accepting.join(10)
        with self._lock:
            left, threads = list(self._open), list(self._threads)
        for connection in left:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for thread in threads:
            thread.join(10)


class Scripted(Backend):
    """Plays each request's script. `seen` are the requests in order of arrival.

    A script whose name begins with `early` is played as soon as the head is there, and reads the body itself.
    """

    def __init__(
        self,
        scripts: Mapping[str, Script],
        prepare: Callable[[socket.socket], socket.socket] = lambda connection: connection,
    ) -> None:
        self.scripts: dict[str, Script] = {"ok": says(OK), **scripts}
        self.seen: list[Exchange] = []
        self.released = threading.Event()  # scripts that wait, wait for this
        self.gates: dict[str, threading.Event] = {}  # or for one of these, by the name that a request gives
        self._numbers = itertools.count(1)
        super().__init__(self._play, prepare)

    def plays(self, script: Script) -> str:
        """The name of a script from now on."""
        name = f"played-{len(self.scripts)}"
        self.scripts[name] = script
        return name

    def _play(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        number = next(self._numbers)
        surplus: bytes | None = b""
        while surplus is not None:
            surplus = self._exchange(connection, number, surplus)

    def _exchange(self, connection: socket.socket, number: int, surplus: bytes) -> bytes | None:
        """One request and its script; what came behind the request, or None where the connection has ended."""
        head = surplus
        try:
            while b"\r\n\r\n" not in head:
                head += _more(connection)
        except OSError:
            if head:
                self.seen.append(Exchange(self, connection, number, head, whole=False))
            return None
        head, _, surplus = head.partition(b"\r\n\r\n")
        exchange = Exchange(self, connection, number, head + b"\r\n\r\n")
        name = (exchange.values("x-script") or ["ok"])[0]
        try:
            if name.startswith("early"):
                exchange.whole, exchange.body, surplus = False, surplus, b""
            else:
                try:
                    exchange.body, surplus = read_body(connection, exchange, surplus)
                except OSError:
                    exchange.whole = False
            self.seen.append(exchange)
            if not exchange.whole and not name.startswith("early"):
                return None
            self.scripts[name](exchange)
            return None if exchange.closed else surplus
        finally:
            exchange.ended.set()

    def of(self, marker: str) -> list[Exchange]:
        """The requests whose target or header fields contain `marker`, in any case."""
        return [seen for seen in list(self.seen) if marker.lower().encode() in seen.head.lower()]

    def await_request(self, marker: str) -> Exchange:
        wait_until(lambda: bool(self.of(marker)), PATIENCE, f"a request with {marker}")
        return self.of(marker)[0]


def read_body(connection: socket.socket, exchange: Exchange, buffered: bytes) -> tuple[bytes, bytes]:
    """The body as it came (framing kept) and the surplus. Raises ConnectionError when the peer ends first."""
    data = bytearray(buffered)
    if "chunked" in "".join(exchange.values("transfer-encoding")).lower():
        # With the head's last line end, so that an empty body's last chunk is found as well.
        data[:0] = b"\r\n"
        while (found := data.find(b"\r\n0\r\n\r\n")) < 0:
            data += _more(connection)
        del data[:2]
        length = found + 5
    else:
        length = int((exchange.values("content-length") or ["0"])[-1])
        while len(data) < length:
            data += _more(connection)
    return bytes(data[:length]), bytes(data[length:])


def _more(connection: socket.socket) -> bytes:
    data = connection.recv(1 << 18)
    if not data:
        raise ConnectionError("the peer ended")
    return data


@contextmanager
def scripted(
    scripts: Mapping[str, Script] | Script,
    prepare: Callable[[socket.socket], socket.socket] = lambda connection: connection,
) -> Iterator[Scripted]:
    """A running backend. One script alone is for every request that names no other."""
    backend = Scripted(scripts if isinstance(scripts, Mapping) else {"ok": scripts}, prepare)
    try:
        yield backend
    finally:
        backend.released.set()
        backend.close()
