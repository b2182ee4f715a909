"""Heads as they arrive, and connections that hold no thread, without a server."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker import connections
from worker.connections import Arrivals, Departures, all_sent
from worker.errors import FieldsTooLarge, HeadLate, LineTooLong, Typed
from worker.heads import HEAD, LINE, Glance, Head, announces_body, glance

HEADS = [
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /" + b"a" * 8000 + b" HTTP/1.1\r\nHost: " + b"x" * 30_000 + b"\r\n\r\n",
]


@given(st.sampled_from(HEADS), st.lists(st.integers(1, 9000), max_size=20))
def test_a_head_is_whole_at_its_last_byte_however_it_is_cut(data: bytes, steps: list[int]) -> None:
    head, low = Head(), 0
    for step in [*steps, len(data)]:
        piece = data[low : low + step]
        low += len(piece)
        assert head.add(piece) is (low == len(data))
        if low == len(data):
            return


def test_a_line_that_ends_in_a_bare_newline_is_decidable_at_once() -> None:
    head = Head()
    assert not head.add(b"GET / HTTP/1.1\r\nHost: x\r") and not head.add(b"\nA: b")
    assert head.add(b"\n")


def test_what_is_too_large_is_refused_before_it_ends() -> None:
    with pytest.raises(LineTooLong):
        Head().add(b"G" * (LINE + 5))
    assert not Head().add(b"\r\n" + b"G" * LINE + b"\r\n")
    head = Head()
    assert not head.add(b"GET / HTTP/1.1\r\n")
    with pytest.raises(FieldsTooLarge):
        head.add(b"x" * HEAD)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (
            b"GET /a/b?secret=1 HTTP/1.1\r\nX-REQUEST-ID:  abc-1 \r\nbad\r\n\r\n",
            Glance("GET", "/a/b", "abc-1"),
        ),
        (b"\r\nPUT /a HTTP/9\r\n\r\nx-request-id: of-the-body\r\n", Glance("PUT", "/a", "")),
        (b"GET /\x1b[2J HTTP/1.1\r\nx-request-id: a\x00b\r\n\r\n", Glance("-", "-", "")),
        (b"GET / HTTP/1.1\r\nx-request-id: a\r\nx-request-id: b\r\n\r\n", Glance("GET", "/", "")),
        (b"GET /a HTTP/1.1\r\nx-request-id: cut", Glance("GET", "/a", "")),
        (b"GET /a HTTP/1.1\r\n" + b"x: y\r\n" * 100_000 + b"x-request-id: late\r\n", Glance("GET", "/a", "")),
        (b"GET / HT", Glance()),
        (b"", Glance()),
    ],
)
def test_what_a_malformed_head_still_tells(data: bytes, told: Glance) -> None:
    assert glance(data) == told


@pytest.mark.parametrize(
    ("fields", "announced"),
    [(b"Content-Length: 1", True), (b"transfer-encoding:chunked", True), (b"X-Content-Length: 1", False)],
)
def test_a_body_is_announced_by_its_fields(fields: bytes, announced: bool) -> None:
    assert announces_body(b"GET / HTTP/1.1\r\n" + fields + b"\r\n\r\n") is announced


@given(st.binary(max_size=200))
def test_any_bytes_can_be_glanced_at(data: bytes) -> None:
    told = glance(data)
    assert (told.method + told.path + told.request_id).isprintable()


@dataclass
class Loop:
    """A loop with both kinds of connections, each named by a word, and what became of them."""

    clock: float = 0.0
    ends: list[tuple[Any, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.arrivals = Arrivals[str](
            self.selector, self._note("whole"), self._note("refused"), self._note("gone")
        )
        self.departures = Departures[str](self.selector, self._note("closed"))

    def _note(self, what: str) -> Callable[..., None]:
        return lambda *found: self.ends.append((what, *found))

    def turn(self) -> None:
        """Let every callback run that is due now."""
        while events := self.selector.select(0):
            for key, _ in events:
                key.data(key.fileobj)

    def later(self, seconds: float) -> None:
        self.clock += seconds
        self.arrivals.expire()
        self.departures.expire()

    def idle(self) -> bool:
        """Nothing is watched any more."""
        return not self.selector.get_map()


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    found = Loop()
    monkeypatch.setattr(connections.time, "monotonic", lambda: found.clock)
    yield found
    found.selector.close()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The server's end of a connection, and the client's."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(30)
    with ours, theirs:
        yield ours, theirs


Pair = tuple[socket.socket, socket.socket]


def test_a_head_that_came_with_its_connection_is_not_watched(loop: Loop, pair: Pair) -> None:
    pair[1].sendall(HEADS[0] + b"body")
    loop.arrivals.add("a", pair[0])
    assert loop.ends == [("whole", "a", HEADS[0] + b"body")] and loop.idle()


def test_a_head_that_was_begun_elsewhere_goes_on(loop: Loop, pair: Pair) -> None:
    loop.arrivals.add("a", pair[0], HEADS[0][:7])
    pair[1].sendall(HEADS[0][7:])
    loop.turn()
    assert loop.ends == [("whole", "a", HEADS[0])] and loop.idle()


def test_the_time_counts_from_the_first_byte(loop: Loop, pair: Pair) -> None:
    loop.arrivals.add("a", pair[0])
    loop.later(9)
    pair[1].sendall(b"GET")
    loop.turn()
    loop.later(9)
    assert loop.ends == []
    pair[1].sendall(b" /")
    loop.turn()
    loop.later(1)
    ((what, name, data, why),) = loop.ends
    assert (what, name, data) == ("refused", "a", b"GET /") and isinstance(why, HeadLate) and loop.idle()


def test_a_late_speaker_does_not_lengthen_the_wait_for_those_before_it(loop: Loop, pair: Pair) -> None:
    other = socket.socketpair()
    with other[0], other[1]:
        loop.arrivals.add("silent", pair[0])
        loop.clock = 1
        loop.arrivals.add("second", other[0])
        pair[1].sendall(b"G")
        loop.turn()  # the first to come is now the last due
        loop.later(10)
        assert [end[:2] for end in loop.ends] == [("gone", "second"), ("refused", "silent")]


@pytest.mark.parametrize("begun", [b"", b"GET"])
def test_a_client_that_leaves_is_dropped(loop: Loop, pair: Pair, begun: bytes) -> None:
    loop.arrivals.add("a", pair[0], begun)
    pair[1].close()
    loop.turn()
    assert loop.ends == [("gone", "a")] and loop.idle()


def test_many_large_heads_get_less_room_each(loop: Loop, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADS", 100_000)
    begun = b"GET / HTTP/1.1\r\nx: "
    others = [socket.socketpair() for _ in range(3)]
    try:
        for index, (ours, _) in enumerate(others):
            loop.arrivals.add(str(index), ours, begun + b"x" * 30_000)
        assert loop.ends == []
        loop.arrivals.add("one too many", pair[0], begun + b"x" * 40_000)
        (refused,) = loop.ends
        assert refused[:2] == ("refused", "one too many") and isinstance(refused[3], Typed)
        assert refused[3].status == 431
    finally:
        for ends in others:
            for sock in ends:
                sock.close()


def test_what_the_client_has_not_taken_counts_as_unsent(pair: Pair) -> None:
    assert all_sent(pair[0])
    pair[0].sendall(b"x")
    assert not all_sent(pair[0])
    assert pair[1].recv(1) == b"x" and all_sent(pair[0])


def test_a_client_that_closes_is_let_go_at_once(loop: Loop, pair: Pair) -> None:
    loop.departures.add("a", pair[0])
    assert pair[1].recv(1) == b"" and loop.ends == []
    pair[1].sendall(b"late words")
    pair[1].close()
    loop.turn()
    assert loop.ends == [("closed", "a")] and loop.idle()


def test_one_that_does_not_close_has_two_seconds(loop: Loop, pair: Pair) -> None:
    loop.departures.add("a", pair[0])
    loop.later(1.9)
    assert loop.ends == []
    loop.later(0.1)
    assert loop.ends == [("closed", "a")] and loop.idle()


def test_one_that_goes_on_sending_is_not_read_for_ever(loop: Loop, pair: Pair) -> None:
    loop.departures.add("a", pair[0])
    pair[1].setblocking(False)
    for _ in range(100):
        try:
            pair[1].send(b"x" * 4096)
        except (BlockingIOError, BrokenPipeError):
            pass
        loop.turn()
    assert loop.ends == [("closed", "a")] and loop.idle()
