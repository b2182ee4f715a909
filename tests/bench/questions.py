"""What a request of many questions costs, by their number and the text's length.

    python -m tests.bench.questions [NAME=CHECKPOINT_DIRECTORY ...] [--questions 1 8 80] [--threads 1] [--rounds 5]

Yes/no questions, all different, about one text; the row cache off, one request at a time. Every round asks each
combination once, and the table has the least of the rounds, as other programs only add to it. CPU time is that of the
worker's process, so it holds on a busy machine too.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import re
import time
from pathlib import Path
from typing import NamedTuple

from tests.bench.worker_load import WORDS
from tests.servers import Program, serving, start_worker

TEXTS = {"short": 8, "medium": 100, "long": 300}


class Cost(NamedTuple):
    """What one request took: seconds in all, on the device, and of CPU time."""

    seconds: float
    forward: float
    cpu: float
    rows: int
    tokens: int


def document(words: int, number: int, chance: random.Random) -> bytes:
    def text(count: int) -> str:
        return " ".join(chance.choice(WORDS) for _ in range(count))

    questions = {f"q{n}": {"type": "noul", "instructions": f"Is it about {text(4)}?"} for n in range(number)}
    return json.dumps({"state": text(words), "questions": questions}).encode()


def cpu_seconds(pid: int) -> float:
    """The CPU time of a process, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ask(worker: Program, words: int, number: int, chance: random.Random) -> Cost:
    pid, body = serving(worker.pid), document(words, number, chance)
    link = http.client.HTTPConnection("127.0.0.1", worker.port, timeout=600)
    spent, began = cpu_seconds(pid), time.monotonic()
    link.request("POST", "/v1/systemone", body, {"Content-Type": "application/json"})
    response = link.getresponse()
    answer = json.loads(response.read())
    seconds, spent = time.monotonic() - began, cpu_seconds(pid) - spent
    link.close()
    assert response.status == 200, answer
    timing = response.headers["Server-Timing"]
    forward, rows = re.search(r"forward;dur=([\d.]+)", timing), re.search(r'rows;desc="(\d+)"', timing)
    assert forward and rows
    tokens = answer["usage"]["input_tokens"]
    return Cost(seconds, float(forward[1]) / 1e3, spent, int(rows[1]), tokens)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoints", nargs="*", metavar="NAME=CHECKPOINT_DIRECTORY")
    parser.add_argument("--questions", type=int, nargs="+", default=[1, 8, 80])
    parser.add_argument("--threads", default="1")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    print(
        "| checkpoint | text | questions | rows | tokens a row | seconds | forward | CPU ms a question "
        "| CPU ms a token |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for entry in asked.checkpoints or ["demo"]:
        chance, settings = random.Random(0), {"LAYA_MODELS": entry, "LAYA_THREADS": asked.threads}
        with start_worker(LAYA_ROW_CACHE="0", **settings) as worker:
            combinations = [(kind, number) for kind in TEXTS for number in asked.questions]
            runs_of: dict[tuple[str, int], list[Cost]] = {combination: [] for combination in combinations}
            for _ in range(asked.rounds):
                for kind, number in combinations:
                    runs_of[kind, number].append(ask(worker, TEXTS[kind], number, chance))
        for (kind, number), runs in runs_of.items():
            seconds, forward, cpu = (
                min(getattr(run, name) for run in runs) for name in ("seconds", "forward", "cpu")
            )
            rows, tokens = runs[0].rows, runs[0].tokens
            print(
                f"| {entry.partition('=')[0]} | {kind}, {TEXTS[kind]} words | {number} | {rows} | {tokens / rows:.0f} "
                f"| {seconds:.2f} | {forward:.2f} | {cpu / number * 1e3:.0f} | {cpu / tokens * 1e3:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
