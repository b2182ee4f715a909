"""Our worker beside laya-serve, on the same checkpoint, in one run: one table, with ratios.

    python -m tests.bench.worker_load CHECKPOINT_DIRECTORY [--seconds 30] [--rounds 4] [--env NAME=VALUE ...]

Every round asks both in turn, alone by the request and otherwise phase by phase, so that what else the machine
does falls on both. Its arrivals, and the waits counted in times alone, go by what it found alone itself, as the
machine's speed changes between rounds. Every text is new, and our row cache is off. Short: 8 words; long: 300 words;
one choice among three each. Alone: one caller. Closed: four short and four long callers that ask again at once, for
`--seconds`. Open, twice as long: Poisson arrivals, short and long asking for 0.35 of the reference's time alone each,
the same arrivals for both. `--env` goes to both servers. One round is 4 minutes with the base-size checkpoint on two
cores.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.client import DECISIONS, Client
from tests.servers import BIN, Program, free_port, start_worker, status_of

WORDS = (  # noqa: SIM905
    "parcel arrived crushed buyer wants money back order late driver left box rain label torn street number "
    "wrong refund asked twice agent promised call nobody rang invoice shows double charge card bank says pending "
    "please send new one soon thanks"
).split()
SIZES = {"short": 8, "long": 300}
FOUR_AND_FOUR = {"short": 4, "long": 4}
QUESTION = {
    "type": "choice",
    "instructions": "What is it?",
    "criteria": {"refund": "", "delivery": "", "other": ""},
}
OURS, REFERENCE = "worker", "laya-serve"


def document(words: int, chance: random.Random, model: str) -> bytes:
    state = " ".join(chance.choice(WORDS) for _ in range(words))
    return json.dumps({"model": model, "state": state, "questions": {"q": QUESTION}}).encode()


@dataclass
class Server:
    """A server under test, and its name for the model."""

    name: str
    program: Program
    model: str
    waits: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    refused: int = 0
    # Waits of the open phase in this round's time alone.
    spread: dict[str, list[float]] = field(default_factory=dict)
    spans: dict[str, float] = field(default_factory=dict)
    opened: list[Client] = field(default_factory=list)

    def ask(self, local: threading.local, kind: str, chance: random.Random) -> bool:
        """One request over this thread's connection; whether it was answered."""
        if not hasattr(local, "client"):
            local.client = Client(self.program.url, timeout=300)
            self.opened.append(local.client)
        body = document(SIZES[kind], chance, self.model)
        status, _, _ = local.client.send("POST", DECISIONS, body, {"Content-Type": "application/json"})
        return bool(status == 200)

    def close(self) -> None:
        for client in self.opened:
            client.close()

    def note(self, phase: str, kind: str, seconds: float, answered: bool) -> None:
        if answered:
            self.waits.setdefault((phase, kind), []).append(seconds)
        else:
            self.refused += 1


def alone(servers: Sequence[Server], seed: int) -> list[dict[str, float]]:
    """Of each server the median of each kind, in seconds. They are asked by turns, one request at a time."""
    locals_, found = [threading.local() for _ in servers], [dict[str, float]() for _ in servers]
    for kind, times in (("short", 15), ("long", 5)):
        waits: list[list[float]] = [[] for _ in servers]
        for number in range(times):
            for server, local, waited in zip(servers, locals_, waits, strict=True):
                began = time.monotonic()
                answered = server.ask(local, kind, random.Random(f"{seed} {number}"))
                waited.append(time.monotonic() - began)
                server.note("alone", kind, waited[-1], answered)
        for medians, waited in zip(found, waits, strict=True):
            medians[kind] = quantile(waited, 0.5)
    return found


def closed(server: Server, seconds: float, seed: int, callers: Mapping[str, int] = FOUR_AND_FOUR) -> None:
    """So many callers of each kind, who ask again at once."""
    ended = time.monotonic() + seconds

    def caller(kind: str, number: int) -> None:
        local, chance = threading.local(), random.Random(f"{seed} {kind} {number}")
        while (began := time.monotonic()) < ended:
            answered = server.ask(local, kind, chance)
            server.note("closed", kind, time.monotonic() - began, answered)

    threads = [
        threading.Thread(target=caller, args=(kind, n))
        for kind, count in callers.items()
        for n in range(count)
    ]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    server.spans["closed"] = server.spans.get("closed", 0.0) + time.monotonic() - began


def arrivals(rates: dict[str, float], seconds: float, seed: int) -> list[tuple[float, str]]:
    chance, found = random.Random(seed), []
    for kind, rate in rates.items():
        now = chance.expovariate(rate)
        while now < seconds:
            found.append((now, kind))
            now += chance.expovariate(rate)
    return sorted(found)


def open_loop(
    server: Server, plan: Sequence[tuple[float, str]], seed: int, once: Mapping[str, float]
) -> None:
    """`once`: the seconds of each kind alone."""
    local, start = threading.local(), time.monotonic()

    def request(due: float, kind: str, number: int) -> None:
        answered = server.ask(local, kind, random.Random(f"{seed} {number}"))
        waited = time.monotonic() - start - due
        server.note("open", kind, waited, answered)
        server.spread.setdefault(kind, []).append(waited / once[kind])

    with ThreadPoolExecutor(64) as pool:
        for number, (due, kind) in enumerate(plan):
            time.sleep(max(0.0, start + due - time.monotonic()))
            pool.submit(request, due, kind, number)


def quantile(values: Sequence[float], share: float) -> float:
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * share))] if ranked else float("nan")


def table(ours: Server, reference: Server) -> Iterator[str]:
    yield f"| measure | {OURS} | {REFERENCE} | ratio |"
    yield "| --- | --- | --- | --- |"
    for phase in ("alone", "closed", "open"):
        for kind in SIZES:
            for label, share in (("p50", 0.5), ("p99", 0.99)):
                left, right = (quantile(one.waits.get((phase, kind), []), share) for one in (ours, reference))
                yield f"| {phase}, {kind}, {label}, ms | {left * 1e3:.0f} | {right * 1e3:.0f} | {left / right:.2f} |"
    rates = [
        sum(len(one.waits.get(("closed", kind), [])) for kind in SIZES) / one.spans["closed"]
        for one in (ours, reference)
    ]
    yield f"| closed, decisions a second | {rates[0]:.2f} | {rates[1]:.2f} | {rates[0] / rates[1]:.2f} |"
    # Work done, not answers given: a long decision is worth as many short ones as it costs the reference.
    worth = {
        "short": 1.0,
        "long": quantile(reference.waits["alone", "long"], 0.5)
        / quantile(reference.waits["alone", "short"], 0.5),
    }
    work = [
        sum(worth[kind] * len(one.waits.get(("closed", kind), [])) for kind in SIZES) / one.spans["closed"]
        for one in (ours, reference)
    ]
    yield f"| closed, work a second, in short decisions | {work[0]:.2f} | {work[1]:.2f} | {work[0] / work[1]:.2f} |"
    for kind in SIZES:
        left, right = (quantile(one.spread[kind], 0.99) for one in (ours, reference))
        yield f"| open, {kind} p99, in its round's p50 alone | {left:.1f} | {right:.1f} | {left / right:.2f} |"
    yield f"| open, decisions | {len(ours.spread['short'])} and {len(ours.spread['long'])} | the same | |"
    yield f"| not answered with 200 | {ours.refused} | {reference.refused} | |"


def start_reference(checkpoint: Path, **settings: str) -> Program:
    url = f"http://127.0.0.1:{free_port()}"
    named = {
        "LAYA_HOST": "127.0.0.1",
        "LAYA_PORT": url.rpartition(":")[2],
        "LAYA_DEVICE": "cpu",
        "LAYA_EXTRA_MODELS": json.dumps({"bench": str(checkpoint)}),
        "LAYA_DEFAULT_MODEL": "bench",
        "LAYA_MODELS": "bench",
    }
    return Program([BIN / "laya-serve"], named | settings, url=url, ready=lambda: status_of(url) == 200)


def measure(checkpoint: Path, seconds: float, rounds: int, settings: dict[str, str]) -> Iterator[str]:
    ours = {"LAYA_MODELS": f"bench={checkpoint}", "LAYA_ROW_CACHE": "0", **settings}
    with start_worker(**ours) as mine, start_reference(checkpoint, **settings) as its:
        servers = [Server(OURS, mine, "bench"), Server(REFERENCE, its, "bench")]
        for number in range(rounds):
            once = alone(servers, number)
            yield f"round {number}, alone, ms: " + ", ".join(
                f"{server.name} {found['short'] * 1e3:.0f} and {found['long'] * 1e3:.0f}"
                for server, found in zip(servers, once, strict=True)
            )
            plan = arrivals({kind: 0.35 / once[1][kind] for kind in SIZES}, 2 * seconds, number)
            for server, found in zip(servers, once, strict=True):
                open_loop(server, plan, number, found)
            for server in servers:
                closed(server, seconds, number)
        yield from table(*servers)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    asked = parser.parse_args()
    settings = dict(one.split("=", 1) for one in asked.env)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that both servers are stopped
    for line in measure(asked.checkpoint.resolve(), asked.seconds, asked.rounds, settings):
        print(line)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
