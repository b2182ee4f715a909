"""What the worker tells its operator: request ids, one log line a request, metrics.

It knows names and numbers of finished requests. It must not know their bodies, keys or answers.
"""

import json
import logging
import re
import sys
import time
import uuid
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

log = logging.getLogger("worker")
access = logging.getLogger("worker.access")

# An id is repeated in headers and logs, so it must be able to break neither.
SANE_ID = re.compile(r"[A-Za-z0-9._:+/=@-]{1,128}")
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


def start_log(level: str) -> None:
    """Send this package's log to stderr: plain lines for people, JSON lines for requests."""
    plain, lines = logging.StreamHandler(sys.stderr), logging.StreamHandler(sys.stderr)
    plain.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S%z"))
    lines.setFormatter(logging.Formatter("%(message)s"))
    log.handlers, access.handlers = [plain], [lines]
    log.setLevel(level.upper())
    log.propagate = access.propagate = False


def request_id(given: str) -> str:
    """The client's own id if it is sane, else a new one."""
    return given if SANE_ID.fullmatch(given) else uuid.uuid4().hex


@dataclass(frozen=True, slots=True)
class Timing:
    """Where a decision's seconds went, and how many rows it took."""

    queue: float
    tokenize: float
    forward: float
    rows: int

    def stages(self) -> dict[str, float]:
        """The seconds by stage."""
        return {"queue": self.queue, "tokenize": self.tokenize, "forward": self.forward}

    def header(self) -> str:
        """The Server-Timing header: milliseconds, and the rows as a description."""
        stages = [f"{name};dur={seconds * 1000:.3f}" for name, seconds in self.stages().items()]
        return ", ".join([*stages, f'rows;desc="{self.rows}"'])


class Metrics:
    """The worker's Prometheus metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "laya_requests", "Requests answered", ["route", "status"], registry=self.registry
        )
        self.duration = Histogram(
            "laya_request_seconds",
            "From head read to answer made, or to the end of a stream",
            ["route"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.stages = Histogram(
            "laya_stage_seconds",
            "Where decisions' time went",
            ["stage"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.rows = Histogram(
            "laya_decision_rows",
            "Rows that decisions took: one a question, several for a choice that is read in parts",
            buckets=ROWS,
            registry=self.registry,
        )
        self.waiting_rows = Gauge(
            "laya_waiting_rows", "Rows that wait for the device", registry=self.registry
        )
        self.in_flight = Gauge("laya_in_flight", "Requests past authentication", registry=self.registry)
        self.shed = Counter("laya_shed", "Requests refused for want of room", registry=self.registry)
        self.gone = Counter(
            "laya_clients_gone", "Clients that left before their answer", registry=self.registry
        )
        self.tokens = Counter(
            "laya_input_tokens", "Tokens of the rows that were decided", registry=self.registry
        )
        self.ready = Gauge("laya_ready", "1 while decisions can be made", registry=self.registry)

    def decided(self, timing: Timing, tokens: int) -> None:
        """Count a decision's stages, rows and tokens."""
        for stage, seconds in timing.stages().items():
            self.stages.labels(stage).observe(seconds)
        self.rows.observe(timing.rows)
        self.tokens.inc(tokens)

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)


@dataclass(frozen=True, slots=True)
class Finished:
    """A request that was answered: `route` is one of ours or "other"; `began` a monotonic time."""

    id: str
    method: str
    route: str
    path: str
    status: int
    size: int | None
    began: float


def finished(metrics: Metrics, request: Finished) -> None:
    """Count a request and write its line."""
    seconds = time.perf_counter() - request.began
    metrics.requests.labels(request.route, str(request.status)).inc()
    metrics.duration.labels(request.route).observe(seconds)
    # Probes and scrapes come by the second.
    level = logging.DEBUG if request.route in ("/health", "/metrics") else logging.INFO
    if access.isEnabledFor(level):
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "id": request.id,
            "method": request.method,
            "path": request.path[:200],
            "status": request.status,
            "bytes": request.size,
            "ms": round(seconds * 1000, 3),
        }
        access.log(level, json.dumps(line))
