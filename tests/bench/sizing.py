"""What a worker needs and gives, by checkpoint: memory, seconds to start, decisions a second.

    python -m tests.bench.sizing [--seconds 20] [NAME=CHECKPOINT_DIRECTORY ...]

Eight callers that ask again at once, with short texts (8 words) and with long ones (300), the row cache off, every
text new.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

from tests.bench.worker_load import SIZES, Server, closed, quantile
from tests.servers import memory, serving, start_worker

CALLERS = 8


def measure(name: str, source: str, seconds: float) -> Iterator[str]:
    """A table row for each length of text."""
    began = time.monotonic()
    with start_worker(LAYA_MODELS=f"{name}={source}" if source else name, LAYA_ROW_CACHE="0") as worker:
        started = time.monotonic() - began
        for kind in SIZES:
            server = Server(name, worker, name)
            closed(server, seconds, 0, {kind: CALLERS})
            waits = server.waits["closed", kind]
            rate = len(waits) / server.spans["closed"]
            yield (
                f"| {name} | {started:.0f} | {memory(serving(worker.pid), 'VmHWM') >> 20} | {kind} | {rate:.1f} "
                f"| {quantile(waits, 0.5) * 1e3:.0f} | {quantile(waits, 0.99) * 1e3:.0f} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoints", nargs="*", metavar="NAME=CHECKPOINT_DIRECTORY")
    parser.add_argument("--seconds", type=float, default=20.0)
    asked = parser.parse_args()
    print("| checkpoint | seconds to start | most MiB | text | decisions a second | p50 ms | p99 ms |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for entry in ("demo", *asked.checkpoints):
        name, _, source = entry.partition("=")
        for line in measure(name, source, asked.seconds):
            print(line, flush=True)


if __name__ == "__main__":
    main()
