"""What a stream costs on its way: 100 events, read directly, through jevproxy, and through nginx with the shipped site.

One run, the three ways in turn in every round, so that a busy machine is busy for all. An event carries the
nanosecond at which the backend sent it, the clock being one for all processes; the delay is what the client's reads
it less. Two figures, with 1 and with 64 streams at once: the median delay that a way adds to the direct one, and the
gaps between two events. A stall is a gap of 40 ms above the pause: Nagle's algorithm would wait that long for a delayed
acknowledgement.
Run by `tox -e bench -- tests/bench/test_streaming.py`; JEVPROXY_BENCH_ROUNDS (5) sets how often.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from tests.callers import Caller, together
from tests.deploy import sites
from tests.messages import post
from tests.servers import ROOT, Program, free_port, listens, start_jevproxy, start_nginx

ROUNDS = int(os.environ.get("JEVPROXY_BENCH_ROUNDS", "5"))
EVENTS = 100
CHAT = "/v1/chat/completions"
# Streams at once, and the milliseconds between two events of each: 64 as fast as a model talks.
PAUSES = {1: 10, 64: 50}
BOUND_MS = 2.0
STALL_MS = 40.0

# The backend as a process of its own, so that its clock readings do not wait for the readers' interpreter.
BACKEND = f"""
import socket, sys, threading, time
def serve(c):
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    data = b""
    while True:
        while not data.endswith(b"{{}}"):
            more = c.recv(65536)
            if not more:
                return c.close()
            data += more
        pause = int(data.partition(b"X-Script: ")[2].partition(b"\\r")[0]) / 1000
        data = b""
        c.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Type: text/event-stream\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n")
        for _ in range({EVENTS}):
            time.sleep(pause)
            event = b"data: %d\\n\\n" % time.monotonic_ns()
            c.sendall(b"%x\\r\\n%b\\r\\n" % (len(event), event))
        c.sendall(b"0\\r\\n\\r\\n")
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=256)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


@dataclass
class Way:
    """One way to the backend, and its measured milliseconds: delays of events, and gaps between reads of two."""

    name: str
    url: str
    delays: dict[int, list[float]] = field(default_factory=lambda: {streams: [] for streams in PAUSES})
    gaps: dict[int, list[float]] = field(default_factory=lambda: {streams: [] for streams in PAUSES})

    def read(self, streams: int) -> None:
        def one(_: int) -> None:
            delays, read_at = [], []
            with Caller(self.url).send(post(str(PAUSES[streams]), path=CHAT)) as client:
                client.head()
                for _ in range(EVENTS):
                    client.until(b"data: ")
                    sent = int(client.until(b"\n\n"))
                    read_at.append(time.monotonic_ns())
                    delays.append((read_at[-1] - sent) / 1e6)
                client.until(b"0\r\n\r\n")
            self.delays[streams] += delays
            self.gaps[streams] += [(b - a) / 1e6 for a, b in pairwise(read_at)]

        together(streams, one)


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def table(ways: list[Way], streams: int) -> str:
    direct = statistics.median(ways[0].delays[streams])
    lines = [
        f"{streams} stream(s) of {EVENTS} events every {PAUSES[streams]} ms, {ROUNDS} rounds",
        "| way | median delay ms | added ms | ratio | p99 delay ms | p99 gap ms | longest gap ms | stalls |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for way in ways:
        delays, gaps = way.delays[streams], way.gaps[streams]
        median = statistics.median(delays)
        stalls = sum(gap > PAUSES[streams] + STALL_MS for gap in gaps)
        lines.append(
            f"| {way.name} | {median:.3f} | {median - direct:.3f} | {median / direct:.2f} | "
            f"{percentile(delays, 0.99):.2f} | {percentile(gaps, 0.99):.2f} | {max(gaps):.1f} | {stalls} |"
        )
    return "\n".join(lines)


def test_streaming(tmp_path: Path) -> None:
    with ExitStack() as stack:
        url = f"http://127.0.0.1:{free_port()}"
        argv = [sys.executable, "-c", BACKEND, url.rpartition(":")[2]]
        backend = stack.enter_context(Backend(argv, url))
        proxy = stack.enter_context(start_jevproxy(url, OMNI_JEV_ROUTES="generation"))
        port = free_port()
        site = sites.configuration(tmp_path, sites.public_site(tmp_path, port, [proxy.port]))
        nginx = stack.enter_context(start_nginx(tmp_path, site, f"https://127.0.0.1:{port}"))
        ways = [
            Way("direct", backend.url),
            Way("jevproxy", proxy.url),
            Way("nginx and jevproxy", nginx.url),
        ]
        for way in ways:
            way.read(1)  # connections, code paths
            way.delays[1].clear(), way.gaps[1].clear()
        for _ in range(ROUNDS):
            for streams in PAUSES:
                for way in ways:
                    way.read(streams)
    print("", table(ways, 1), table(ways, 64), sep="\n\n")
    direct, proxied = ways[0], ways[1]
    added = statistics.median(proxied.delays[1]) - statistics.median(direct.delays[1])
    assert added < BOUND_MS
    # A stall of Nagle's would be in every stream; one of the machine's own shows in the direct way too.
    assert percentile(proxied.gaps[1], 0.99) < max(STALL_MS, percentile(direct.gaps[1], 0.99) * 2)


class Backend(Program):
    def __init__(self, argv: list[str], url: str) -> None:
        super().__init__(argv, {}, url=url, ready=lambda: listens(url), cwd=ROOT)

    def stop(self) -> int:
        self.kill()  # it has nothing to finish
        return 0
