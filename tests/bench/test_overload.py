"""The worker past its capacity: does it shed early, keep its goodput, and answer /health meanwhile?

Measures the capacity with a closed loop, then offers 0.9, 1.1 and 1.5 times as much in an open one (Poisson arrivals,
every text new, row cache off), with GET /health beside it. One table.
Run by `tox -e bench -- tests/bench/test_overload.py`; JEVPROXY_BENCH_SECONDS (60) is the length of each load.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from tests.bench.worker_load import Server, arrivals, quantile
from tests.servers import ROOT, start_worker

SECONDS = float(os.environ.get("JEVPROXY_BENCH_SECONDS", "60"))
LOADS = (0.9, 1.1, 1.5)
CALLERS = 16
SENDERS = 200  # more than the worker admits: what waits for a sender would not be an open loop


def capacity(server: Server, seconds: float) -> float:
    """Decisions a second with so many callers that ask again at once."""
    counts = [0] * CALLERS
    ended = time.monotonic() + seconds

    def caller(number: int) -> None:
        local, chance = threading.local(), random.Random(number)
        while time.monotonic() < ended:
            counts[number] += server.ask(local, "short", chance)

    threads = [threading.Thread(target=caller, args=(n,)) for n in range(CALLERS)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.monotonic() - began)


def offer(server: Server, rate: float, seconds: float) -> tuple[list[float], list[float], list[float]]:
    """An open loop: seconds from due time to answer of the answered and of the refused, and those of GET /health."""
    answered: list[float] = []
    refused: list[float] = []
    local = threading.local()
    start = time.monotonic()

    def request(due: float, number: int) -> None:
        good = server.ask(local, "short", random.Random(f"{rate} {number}"))
        (answered if good else refused).append(time.monotonic() - start - due)

    # A process of its own: the senders' threads would hold up one of theirs.
    watcher = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.health", server.program.url],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with ThreadPoolExecutor(SENDERS) as pool:
        for number, (due, _) in enumerate(arrivals({"short": rate}, seconds, seed=1)):
            time.sleep(max(0.0, start + due - time.monotonic()))
            pool.submit(request, due, number)
    health, _ = watcher.communicate()
    assert watcher.returncode == 0
    return answered, refused, [float(line) for line in health.split()]


def test_overload_table() -> None:
    with (
        start_worker(LAYA_ROW_CACHE="0") as program,
        closing(Server("worker", program, "jev-latest")) as server,
    ):
        capacity(server, 5)  # warm
        most = capacity(server, min(SECONDS, 20))
        print(f"\ncapacity: {most:.1f} decisions a second with {CALLERS} callers")
        print(
            "| offered | a second | answered | of capacity | 503 | p50 s | p99 s | 503 p99 s | slowest /health, ms |"
        )
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        for load in LOADS:
            answered, refused, health = offer(server, load * most, SECONDS)
            late = f"{quantile(refused, 0.99):.2f}" if refused else ""
            print(
                f"| {load} times | {load * most:.0f} | {len(answered) / SECONDS:.1f} | "
                f"{len(answered) / SECONDS / most:.2f} | {len(refused)} | {quantile(answered, 0.5):.2f} | "
                f"{quantile(answered, 0.99):.2f} | {late} | {max(health) * 1000:.0f} |"
            )
