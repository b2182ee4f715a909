"""What reading a response costs: our own `response.ResponseReader` beside h11, on the same bytes.

    python -m tests.bench.response_parser [--rounds 200]

CPU of a whole response (head, framing, body) from a socket that has it, in interleaved bursts: the ratio of one run
means something, single times little. Beside it, the CPU of a whole request through jevproxy, measured between the
bursts: the bound is a tenth of that. Then what h11 takes and we refuse, or the other way round. h11 comes with the
test extra: an SDK's HTTP client needs it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import h11

from jevproxy.errors import BackendBroken
from jevproxy.response import ResponseReader
from tests.backends import says, scripted
from tests.callers import Caller
from tests.messages import post
from tests.servers import serving, start_jevproxy

BURST = 200
BODY = (
    b'{"model":"m","answers":{"q":{"type":"noul","noul":0.9}},"usage":{"input_tokens":10,"output_tokens":0}}'
)
HEAD = (
    b"HTTP/1.1 200 OK\r\nServer: worker\r\nDate: Mon, 30 Nov 2026 00:00:00 GMT\r\nConnection: keep-alive\r\n"
    b"Content-Type: application/json\r\nX-Request-Id: 0123456789abcdef0123456789abcdef\r\n"
)
RESPONSES = {
    "length": HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY,
    "chunks": HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY),
}
OK = b"HTTP/1.1 200 OK\r\n"
# What tests/jevproxy/test_response.py has refused, by the promise that it stands for.
REFUSED = {
    "a control character in a field": OK + b"X-A: a\x01b\r\nContent-Length: 2\r\n\r\nok",
    "a control character in the reason": b"HTTP/1.1 200 O\x01K\r\nContent-Length: 2\r\n\r\nok",
    "NUL in the reason": b"HTTP/1.1 200 O\0K\r\nContent-Length: 2\r\n\r\nok",
    "a bare CR in a field": OK + b"X-A: a\rX-B: 1\r\nContent-Length: 2\r\n\r\nok",
    "a bare CR in the reason": b"HTTP/1.1 200 O\rK\r\nContent-Length: 2\r\n\r\nok",
    "a space before the colon": OK + b"Content-Length : 2\r\n\r\nok",
    "a first line that is folded": OK + b" X-A: 1\r\nContent-Length: 2\r\n\r\nok",
    "two equal lengths": OK + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nok",
    "a list of equal lengths": OK + b"Content-Length: 2, 2\r\n\r\nok",
    "a length with a sign": OK + b"Content-Length: +2\r\n\r\nok",
    "chunked named twice": OK + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "another coding": OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "HTTP/2.0": b"HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
    "a status below 100": b"HTTP/1.1 099 OK\r\nContent-Length: 2\r\n\r\nok",
    "101, which nobody asked for": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
    "a bare CR in a chunk's extension": OK + b"Transfer-Encoding: chunked\r\n\r\n2;a\rb\r\nok\r\n0\r\n\r\n",
    "a chunk's size with a sign": OK + b"Transfer-Encoding: chunked\r\n\r\n+2\r\nok\r\n0\r\n\r\n",
    "a chunk that does not end": OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nokXX0\r\n\r\n",
}
# What is taken, and must be.
TAKEN = {
    "a line feed alone ends a line": b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
    "a line feed alone ends a chunk's line": OK + b"Transfer-Encoding: chunked\r\n\r\n2\nok\n0\n\n",
    "a folded field becomes one line": OK + b"X-A: a\r\n b\r\nContent-Length: 2\r\n\r\nok",
    "chunks beside a length": OK
    + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    "no reason": b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok",
    "HTTP/1.0": b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
}


class Given:
    """A socket on which these bytes have arrived, and then the end."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def recv(self, most: int) -> bytes:
        piece, self._data = self._data[:most], self._data[most:]
        return piece


def ours(data: bytes) -> bytes:
    reader, body = ResponseReader(Given(data), "POST"), b""
    while piece := reader.read_some():
        body += piece
    return body


def theirs(data: bytes) -> bytes:
    """h11 as a reader of responses: the request it must have seen, then events until the end."""
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=256 * 1024)
    connection.send(h11.Request(method="POST", target="/", headers=[("Host", "h"), ("Content-Length", "0")]))
    connection.send(h11.EndOfMessage())
    sock, body = Given(data), b""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(sock.recv(65536))
        elif isinstance(event, h11.Response):
            # Ours gives fields as text, so that is part of the cost.
            _ = [(n.decode("latin-1"), v.decode("latin-1")) for n, v in event.headers.raw_items()]
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            return body
        elif event is h11.PAUSED:
            raise h11.RemoteProtocolError("another protocol")


def microseconds(read: Callable[[bytes], bytes], data: bytes) -> float:
    began = time.process_time_ns()
    for _ in range(BURST):
        read(data)
    return (time.process_time_ns() - began) / BURST / 1000


def takes(read: Callable[[bytes], bytes], data: bytes) -> bool:
    try:
        read(data)
    except (BackendBroken, h11.RemoteProtocolError):
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.response_parser")
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    costs: dict[str, list[float]] = {}
    answer = says(RESPONSES["length"])
    with scripted(answer) as backend, start_jevproxy(backend.url) as proxy, Caller(proxy.url) as caller:
        pid = serving(proxy.pid)

        def on_cpu() -> int:
            return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])

        for turn in range(rounds):
            for name, data in RESPONSES.items():
                pair = (ours, theirs) if turn % 2 else (theirs, ours)
                for read in pair:
                    costs.setdefault(f"{name} {read.__name__}", []).append(microseconds(read, data))
            before = on_cpu()
            for _ in range(20):
                assert caller.ask(post()).status == 200
            costs.setdefault("request", []).append((on_cpu() - before) / 20 / 1000)
    whole = statistics.median(costs["request"])
    print(f"{rounds} rounds; a whole request through jevproxy: {whole:.0f} us of CPU, median")
    for name in RESPONSES:
        own, other = costs[f"{name} ours"], costs[f"{name} theirs"]
        ratio = statistics.median(b / a for a, b in zip(own, other, strict=True))
        more = statistics.median(
            (b - a) / one for a, b, one in zip(own, other, costs["request"], strict=True)
        )
        print(
            f"{name}: ours {statistics.median(own):.1f} us, h11 {statistics.median(other):.1f} us, "
            f"ratio {ratio:.1f}, {more:.1%} of a request more"
        )
    for name, data in REFUSED.items():
        assert not takes(ours, data), name
        if takes(theirs, data):
            print(f"h11 takes: {name}")
    for name, data in TAKEN.items():
        assert takes(ours, data), name
        if not takes(theirs, data):
            print(f"h11 refuses: {name}")


if __name__ == "__main__":
    main()
