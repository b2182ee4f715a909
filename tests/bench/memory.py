"""A worker's memory over ten thousand random requests, a line for each thousand.

    python -m tests.bench.memory [--requests 10000]

The embedded model; texts of 1 to 60 words, 1 to 4 questions of 1 to 12 options or levels, four callers.
"""

from __future__ import annotations

import argparse
import json
import random
from concurrent.futures import ThreadPoolExecutor

from tests.bench.worker_load import WORDS
from tests.client import Client
from tests.servers import memory, serving, start_worker

CALLERS = 4


def document(chance: random.Random) -> bytes:
    """A request of a shape that few others have."""

    def text(most: int) -> str:
        return " ".join(chance.choice(WORDS) for _ in range(chance.randint(1, most)))

    def question() -> dict[str, object]:
        count = chance.randint(1, 12)
        if chance.random() < 0.5:
            return {
                "type": "choice",
                "instructions": text(20),
                "criteria": {f"{text(2)} {n}": None for n in range(count)},
            }
        return {
            "type": "score",
            "instructions": text(20),
            "criteria": [text(6) for _ in range(min(count, 10))],
        }

    questions = {f"q{n}": question() for n in range(chance.randint(1, 4))}
    return json.dumps({"state": text(60), "questions": questions}).encode()


def ask(url: str, seed: str, times: int) -> None:
    chance = random.Random(seed)
    with Client(url, timeout=300) as client:
        for _ in range(times):
            status, answer = client.post(document(chance))
            assert status == 200, answer


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=10_000)
    asked = parser.parse_args()
    print("| requests | resident MiB |\n| --- | --- |")
    with start_worker() as worker, ThreadPoolExecutor(CALLERS) as pool:
        print(f"| 0 | {memory(serving(worker.pid), 'VmRSS') >> 20} |", flush=True)
        for thousand in range(1, asked.requests // 1000 + 1):
            list(pool.map(lambda n, t=thousand: ask(worker.url, f"{t} {n}", 1000 // CALLERS), range(CALLERS)))
            print(f"| {thousand * 1000} | {memory(serving(worker.pid), 'VmRSS') >> 20} |", flush=True)


if __name__ == "__main__":
    main()
