"""What operators see: Prometheus metrics and the access log, one JSON line a request.

Knows the record of a finished request. Must not know how a request is handled, nor any body or credential.
"""

import json
import os
import sys
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import TextIO

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from .ended import locked

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# From a cached decision (under 1 ms) to a stream's whole length (600 s).
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 600)
# A path longer than this is logged by its beginning.
PATH_LOGGED = 256


@dataclass(slots=True)
class Record:
    """One request as it is counted and logged. Times are seconds of `time.perf_counter`.

    `route` is the matched route (`POST /v1/systemone`), or `other`. `kind` names the failure, empty if there was none.
    `asked` and `answered`: when the backend was sent the first byte, and when it had sent the last one.
    """

    method: str
    path: str
    request_id: str
    started: float
    route: str = "other"
    status: int = 0
    sent: int = 0
    asked: float | None = None
    answered: float | None = None
    kind: str = ""

    def backend_seconds(self, now: float) -> float:
        """Seconds with the backend, until `now` if it has not ended; 0 if it was not asked."""
        return 0.0 if self.asked is None else (self.answered or now) - self.asked


class Observer:
    """Counts and logs finished requests, for all processes of one gunicorn together.

    With `shared` (a directory that all of them have in PROMETHEUS_MULTIPROC_DIR; it is made), `metrics` sums over them.
    """

    def __init__(self, log: TextIO | None = None, shared: str | None = None) -> None:
        self._log = log or sys.stdout
        self._shared = shared
        if shared:
            os.makedirs(shared, mode=0o700, exist_ok=True)
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "jevproxy_requests", "Requests answered.", ("route", "status"), registry=self.registry
        )
        self._exchange = Histogram(
            "jevproxy_exchange_seconds", "From a request's head to its answer's last byte.",
            ("route",), buckets=BUCKETS, registry=self.registry,
        )  # fmt: skip
        self._backend = Histogram(
            "jevproxy_backend_seconds", "From the first byte sent to the backend to the last one read.",
            ("route",), buckets=BUCKETS, registry=self.registry,
        )  # fmt: skip
        self._failures = Counter(
            "jevproxy_failures", "Requests that failed here, by kind.", ("kind",), registry=self.registry
        )
        in_flight = Gauge(
            "jevproxy_in_flight", "Exchanges that hold a slot now.",
            registry=self.registry, multiprocess_mode="livesum",
        )  # fmt: skip
        self.admitted = in_flight.inc
        self.released = in_flight.dec
        self._children: dict[tuple[str, int], tuple[Counter, Histogram, Histogram]] = {}

    def finish(self, record: Record) -> None:
        """Count and log one request whose answer has left, or has failed."""
        now = time.perf_counter()
        total, with_backend = now - record.started, record.backend_seconds(now)
        key = (record.route, record.status)
        if key not in self._children:
            self._children[key] = (
                self._requests.labels(record.route, record.status),
                self._exchange.labels(record.route),
                self._backend.labels(record.route),
            )
        requests, exchange, backend = self._children[key]
        requests.inc()
        exchange.observe(total)
        if record.asked is not None:
            backend.observe(with_backend)
        if record.kind:
            self._failures.labels(record.kind).inc()
        self._write(record, total, with_backend)

    def _write(self, record: Record, total: float, with_backend: float) -> None:
        now = time.time()
        path = record.path
        if (
            len(path) > PATH_LOGGED
            or not path.isascii()
            or '"' in path
            or "\\" in path
            or not path.isprintable()
        ):
            path = json.dumps(path[:PATH_LOGGED])[1:-1]
        line = (
            f'{{"time":"{_second(int(now))}.{int(now % 1 * 1000):03d}Z","id":"{record.request_id}",'
            f'"method":"{record.method}","path":"{path}","status":{record.status},"bytes":{record.sent},'
            f'"backend_ms":{with_backend * 1000:.3f},"ms":{total * 1000:.3f}'
        )
        self._log.write(f'{line},"failure":"{record.kind}"}}\n' if record.kind else line + "}\n")
        self._log.flush()

    def metrics(self) -> bytes:
        """All metrics in Prometheus' text format."""
        if self._shared and os.path.isdir(self._shared):
            registry = CollectorRegistry()
            MultiProcessCollector(registry, path=self._shared)  # type: ignore[no-untyped-call]
            with locked(self._shared, shared=True):
                return generate_latest(registry)
        return generate_latest(self.registry)


@lru_cache(maxsize=1)
def _second(now: int) -> str:
    """`2026-11-30T12:00:00` for a Unix time, remembered for the second it holds."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
