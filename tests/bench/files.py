"""`jevworker batch` beside laya-serve's batch endpoint and beside callers of our own server, on the same records.

    python -m tests.bench.files CHECKPOINT_DIRECTORY [--records 256] [--rounds 3] [--env NAME=VALUE ...]

Each round decides new records in three ways, one after the other: `jevworker batch` with the engine in its process,
laya-serve's POST /v1/systemone/batch with its 64 states a request, and `jevworker batch --url` with 16 callers of our
server. Records a second, without the start of a process or the loading of a model; the row cache is off. Texts have 5
to 200 words, as many short as long.

    python -m tests.bench.files CHECKPOINT_DIRECTORY --memory 1000000

One job over so many records, and what the process holds in memory as it goes.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench.worker_load import QUESTION, WORDS, quantile, start_reference
from tests.servers import BIN, Program, clean_environment, memory, start_worker

# laya-serve takes no more states in one request.
STATES = 64
CALLERS = "16"
JOB = (BIN / "jevworker", "batch", "questions.json", "--input", "in.jsonl", "--output", "out.jsonl")
# Between two looks at a job's memory.
LOOK_S = 10.0


def text(chance: random.Random) -> str:
    return " ".join(chance.choice(WORDS) for _ in range(int(5 * 40 ** chance.random())))


def write_job(folder: Path, records: int, seed: int) -> None:
    chance = random.Random(seed)
    (folder / "questions.json").write_text(json.dumps({"q": QUESTION}))
    with (folder / "in.jsonl").open("w") as file:
        for _ in range(records):
            file.write(json.dumps({"state": text(chance)}) + "\n")


def batch(folder: Path, settings: dict[str, str], *arguments: str) -> float:
    """Records a second of one `jevworker batch`, as its summary says."""
    done = subprocess.run(
        [*JOB, "--restart", *arguments],
        cwd=folder,
        env=clean_environment(settings),
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"([0-9.]+) records a second", done.stderr)
    assert found, done.stderr
    return float(found[1])


def by_reference(server: Program, folder: Path) -> float:
    """Records a second of laya-serve's batch endpoint, one request after the other."""
    states = [json.loads(line)["state"] for line in (folder / "in.jsonl").open()]
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
    began = time.monotonic()
    for low in range(0, len(states), STATES):
        body = json.dumps(
            {"model": "bench", "states": states[low : low + STATES], "questions": {"q": QUESTION}}
        )
        connection.request("POST", "/v1/systemone/batch", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        assert answer.status == 200, content
    seconds = time.monotonic() - began
    connection.close()
    return len(states) / seconds


def compare(checkpoint: Path, records: int, rounds: int, settings: dict[str, str]) -> Iterator[str]:
    ours = {"LAYA_MODELS": f"bench={checkpoint}", "LAYA_ROW_CACHE": "0", "LAYA_DEVICE": "cpu", **settings}
    ratios: dict[str, list[float]] = {"laya-serve": [], "callers": []}
    with (
        tempfile.TemporaryDirectory() as name,
        start_worker(**ours) as server,
        start_reference(checkpoint, **settings) as reference,
    ):
        folder = Path(name)
        yield "| round | jevworker batch | laya-serve | ratio | 16 callers | ratio |"
        yield "| --- | --- | --- | --- | --- | --- |"
        for number in range(rounds):
            write_job(folder, records, number)
            mine = batch(folder, ours)
            its = by_reference(reference, folder)
            called = batch(folder, ours, "--url", server.url, "--callers", CALLERS)
            ratios["laya-serve"].append(mine / its)
            ratios["callers"].append(mine / called)
            yield f"| {number} | {mine:.1f} | {its:.1f} | {mine / its:.2f} | {called:.1f} | {mine / called:.2f} |"
        yield f"| median | | | {quantile(ratios['laya-serve'], 0.5):.2f} | | {quantile(ratios['callers'], 0.5):.2f} |"


def watch(checkpoint: Path, records: int, settings: dict[str, str]) -> Iterator[str]:
    ours = {"LAYA_MODELS": f"bench={checkpoint}", "LAYA_ROW_CACHE": "0", "LAYA_DEVICE": "cpu", **settings}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_job(folder, records, 0)
        process = subprocess.Popen(JOB, cwd=folder, env=clean_environment(ours))
        yield "| seconds | MB written | MiB in memory |"
        yield "| --- | --- | --- |"
        began = time.monotonic()
        while process.poll() is None:
            time.sleep(LOOK_S)
            out = folder / "out.jsonl"
            if process.poll() is None and out.exists():
                held = memory(process.pid, "VmRSS") / (1 << 20)
                yield f"| {time.monotonic() - began:.0f} | {out.stat().st_size / 1e6:.1f} | {held:.0f} |"
        assert process.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--records", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", type=int, metavar="RECORDS")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    asked = parser.parse_args()
    settings = dict(one.split("=", 1) for one in asked.env)
    checkpoint = asked.checkpoint.resolve()
    for line in (
        watch(checkpoint, asked.memory, settings)
        if asked.memory
        else compare(checkpoint, asked.records, asked.rounds, settings)
    ):
        print(line)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
