"""The load generator: clients that keep asking while something happens. Every answer is counted, every failure kept."""

from __future__ import annotations

import http.client
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.client import DECISIONS, ask

BODY = json.dumps(
    {
        "state": "Parcel 7731 arrived crushed, the buyer wants money back.",
        "questions": {"q": {"type": "noul", "instructions": "Does the buyer ask for a refund?"}},
    }
).encode()


def decide(url: str, **headers: str) -> tuple[int, http.client.HTTPMessage, bytes]:
    """One decision, on a connection of its own."""
    return ask(url, "POST", DECISIONS, BODY, **headers)


@dataclass
class Tally:
    """What came back: statuses, and the words of what did not."""

    statuses: Counter[int] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def add(self, status: int | None, words: str = "") -> None:
        with self._changed:
            if status is not None:
                self.statuses[status] += 1
            if status != 200:
                self.failures.append(f"{status} {words}")
            self._changed.notify_all()

    @property
    def total(self) -> int:
        return self.statuses.total() + sum(words.startswith("None") for words in self.failures)

    def wait_for_more(self, count: int, seconds: float = 120.0) -> None:
        """Until `count` more requests have come back."""
        with self._changed:
            wanted = self.total + count
            assert self._changed.wait_for(lambda: self.total >= wanted, seconds), "the load stands still"


@contextmanager
def load(url: str, clients: int, pause: float = 0.0) -> Iterator[Tally]:
    """Asks from `clients` threads, each request on a new connection, `pause` seconds apart, until the block ends."""
    tally, stop = Tally(), threading.Event()

    def client() -> None:
        while not stop.wait(pause):
            try:
                status, _, body = decide(url)
                tally.add(status, body[:200].decode(errors="replace"))
            except (OSError, http.client.HTTPException) as error:
                tally.add(None, repr(error))

    threads = [threading.Thread(target=client, daemon=True) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield tally
    finally:
        stop.set()
        for thread in threads:
            thread.join(120)
