"""The device script: correctness of every bucket, latency, throughput and what the graphs cost, as one table.

    python -m tests.gpu.device [--size large|base|tiny] [--dtype fp32 bf16] [--seconds 10]

Needs one NVIDIA GPU and under 8 minutes. Makes a random checkpoint of the published English model's size, or takes
one with --checkpoint. Exits 1 when a bucket is wrong. Without a GPU it says so and exits 2.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from tests.checkpoints import write
from tests.client import ask
from tests.servers import start_jevproxy, start_worker
from tests.worker.models import difference, random_row, shares
from worker import checkpoint
from worker.engine import Engine
from worker.lane import Lane
from worker.rows import Row

# Largest change of a probability: by padding and company in fp32, and by bf16 layers against fp32.
BOUNDS = {"fp32": 1e-4, "bf16": 0.05}
TOKENS = 48
CALLERS = (1, 8, 32, 64)


def verify(engine: Engine, twin: Engine, bound: float) -> Iterator[str]:
    """Every bucket at its full length, one token less, and just past the one before it, against the eager twin."""
    assert engine.graphs is not None
    chance, wrong, worst, tried = random.Random(0), 0, 0.0, 0
    before = 2
    for length in engine.buckets.lengths:
        for tokens in sorted({length, max(2, length - 1), before + 1, (before + length) // 2}):
            rows = [random_row(chance, tokens, min(3, tokens)) for _ in range(engine.buckets.counts[-1])]
            alone = [twin.run([row])[0] for row in rows]
            for count in engine.buckets.counts:
                tried += 1
                for one, other in zip(engine.run(rows[:count]), alone, strict=False):
                    gap = max(abs(a - b) for a, b in zip(shares(one), shares(other), strict=True))
                    finite = difference([one], [one]) == 0.0
                    worst, wrong = max(worst, gap), wrong + (gap > bound or not finite)
        before = length
    yield f"| buckets x lengths tried, wrong, largest change of a probability | {tried}, {wrong}, {worst:.1e} |"
    if wrong:
        raise SystemExit(f"{wrong} rows differ from the eager twin by more than {bound}")


def milliseconds(work: Callable[[], object], times: int) -> tuple[float, float]:
    """p50 and p99 of a call."""
    for _ in range(10):
        work()
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        taken.append((time.perf_counter() - began) * 1e3)
    return statistics.median(taken), sorted(taken)[int(times * 0.99)]


def in_process(engine: Engine, label: str) -> Iterator[str]:
    chance, lane = random.Random(1), Lane(cache_rows=0)
    p50, p99 = milliseconds(lambda: lane.run(engine, [random_row(chance, TOKENS)]), 300)
    yield f"| {label}: {TOKENS} tokens, engine alone, p50 / p99 ms | {p50:.2f} / {p99:.2f} |"


def request(chance: random.Random) -> bytes:
    """About 48 tokens with a random checkpoint's tokenizer; never the same text twice."""
    state = " ".join(chance.choice(("return", "import", "class", "self", "value", "name")) for _ in range(18))
    question = {"type": "choice", "instructions": "which is it", "criteria": {"a": "", "b": "", "c": ""}}
    return json.dumps({"state": state + str(chance.random()), "questions": {"q": question}}).encode()


# A caller process: Python's own cost a request must not become the measurement, so callers share no interpreter.
CALLER = """
import random, sys, threading, time
from tests.client import DECISIONS, Client
from tests.gpu.device import request
port, seconds, threads, seed = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
waits = []
def call(number):
    chance, client = random.Random(seed * 1000 + number), Client(f"http://127.0.0.1:{port}", timeout=60)
    ended = time.monotonic() + seconds
    while (began := time.monotonic()) < ended:
        status, _, _ = client.send("POST", DECISIONS, request(chance), {"Content-Type": "application/json"})
        if status == 200: waits.append(time.monotonic() - began)
team = [threading.Thread(target=call, args=(number,)) for number in range(threads)]
[one.start() for one in team]; [one.join() for one in team]
print(" ".join(f"{wait:.6f}" for wait in waits))
"""


def by_http(port: int, label: str, seconds: float) -> Iterator[str]:
    for callers in CALLERS:
        processes = min(8, callers)
        team = [
            subprocess.Popen(
                [sys.executable, "-c", CALLER, str(port), str(seconds), str(callers // processes), str(seed)],
                stdout=subprocess.PIPE,
                text=True,
            )
            for seed in range(processes)
        ]
        waits = sorted(float(wait) * 1e3 for one in team for wait in one.communicate()[0].split())
        if not waits:
            yield f"| {label}: {callers} callers | no answer |"
            continue
        p99 = waits[int(len(waits) * 0.99)]
        yield (
            f"| {label}: {callers} callers, decisions a second, p50 / p99 ms | {len(waits) / seconds:.0f}, "
            f"{statistics.median(waits):.2f} / {p99:.2f} |"
        )


def health_beside(port: int, seconds: float) -> Iterator[str]:
    """The slowest GET /health while 32 callers keep the device busy."""
    slowest, ended = 0.0, threading.Event()

    def watch() -> None:
        nonlocal slowest
        while not ended.wait(0.02):
            began = time.monotonic()
            ask(f"http://127.0.0.1:{port}", "GET", "/health")
            slowest = max(slowest, time.monotonic() - began)

    watcher = threading.Thread(target=watch)
    watcher.start()
    callers = subprocess.run(
        [sys.executable, "-c", CALLER, str(port), str(seconds), "32", "9"], stdout=subprocess.PIPE, check=True
    )
    ended.set()
    watcher.join()
    yield f"| slowest health answer under load, ms ({len(callers.stdout.split())} decisions) | {slowest * 1e3:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=("tiny", "base", "large"), default="large")
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--dtype", nargs="+", choices=("fp32", "bf16"), default=["fp32", "bf16"])
    parser.add_argument("--seconds", type=float, default=6.0)
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device here: nothing was measured", file=sys.stderr)
        raise SystemExit(2)

    def row(text: str) -> None:
        print(text, flush=True)

    row(f"| {torch.cuda.get_device_name(0)}, torch {torch.__version__} | |\n| --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        source = asked.checkpoint or write(Path(folder) / "model", asked.size)
        twin = Engine(checkpoint.load(str(source), "cuda", "fp32"), graphs=False)
        for line in in_process(twin, "fp32 eager"):
            row(line)
        for dtype in asked.dtype:
            engine = Engine(checkpoint.load(str(source), "cuda", dtype))
            facts = engine.describe()
            row(
                f"| {dtype}: graphs, seconds, MiB | {facts['graphs']}, {facts['graph_seconds']}, {facts['graph_mib']} |"
            )
            for part in (verify(engine, twin, BOUNDS[dtype]), in_process(engine, f"{dtype} graphs")):
                for line in part:
                    row(line)
            shortest = Row(tuple(range(5, 5 + TOKENS)), (1, 4), 0)
            assert engine.run([shortest]) == engine.run([shortest]), "the same row twice gave other bits"
            del engine
            torch.cuda.empty_cache()
            settings = {"LAYA_DEVICE": "cuda", "LAYA_DTYPE": dtype, "LAYA_MODELS": f"bench={source}"}
            with start_worker(LAYA_ROW_CACHE="0", LAYA_MAX_CONCURRENT="128", **settings) as worker:
                for line in by_http(worker.port, f"{dtype} worker", asked.seconds):
                    row(line)
                for line in health_beside(worker.port, asked.seconds):
                    row(line)
                with start_jevproxy(worker.url) as proxy:
                    for line in by_http(proxy.port, f"{dtype} jevproxy", asked.seconds):
                        row(line)


if __name__ == "__main__":
    main()
