"""Clients that keep asking while something happens: every answer is counted, every failure kept in words."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

BODY = json.dumps(
    {
        "state": "Parcel 7731 arrived crushed, the buyer wants money back.",
        "questions": {"q": {"type": "noul", "instructions": "Does the buyer ask for a refund?"}},
    }
).encode()


def unverified() -> ssl.SSLContext:
    """TLS to a certificate that the test made itself."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def connect(url: str, timeout: float = 90.0) -> http.client.HTTPConnection:
    scheme, _, address = url.partition("://")
    if scheme == "https":
        return http.client.HTTPSConnection(address, timeout=timeout, context=unverified())
    return http.client.HTTPConnection(address, timeout=timeout)


def ask(
    url: str, method: str = "POST", path: str = "/v1/systemone", body: bytes | None = BODY, **fields: str
) -> tuple[int, http.client.HTTPMessage, bytes]:
    """One request on a connection of its own."""
    connection = connect(url)
    try:
        connection.request(
            method, path, body, {name.replace("_", "-"): value for name, value in fields.items()}
        )
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


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
def load(url: str, clients: int) -> Iterator[Tally]:
    """Asks from `clients` threads, each request on a new connection, until the block ends."""
    tally, stop = Tally(), threading.Event()

    def client() -> None:
        while not stop.is_set():
            try:
                status, _, body = ask(url)
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
