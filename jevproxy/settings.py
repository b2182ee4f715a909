"""Every knob of jevproxy: name, default, unit, reason. The one place that reads the environment.

Knows how a value is written and which values make sense. Must not know what is done with them.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

MIB = 1024 * 1024

NAMED_ROUTES = {
    "decisions": ("POST /v1/systemone", "GET /v1/models", "GET /playground", "GET /playground/*"),
    "generation": (
        "POST /generate",
        "POST /v1/chat/completions",
        "POST /v1/audio/speech",
        "POST /v1/images/generations",
        "POST /v1/images/edits",
        "POST /v1/videos/generations",
        "GET /v1/models",
    ),
}
# Answered from memory, so that no exchange of theirs has to wait for a slot.
UNADMITTED = ("GET /v1/models", "GET /playground", "GET /playground/*")
OWN_PATHS = ("/health", "/metrics")
# prometheus-client's own variable; it looks for it when it is imported.
METRICS_DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"


class SettingsError(ValueError):
    """A setting that cannot be used. The text is one line: the variable, what it takes, never its secret."""


@dataclass(frozen=True, slots=True)
class Route:
    """One forwarded path: `path` ends in `*` for a subtree; `openai` routes carry both families' error bodies."""

    method: str
    path: str
    openai: bool = False
    admitted: bool = True


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one process. Seconds, bytes and counts; see `KNOBS` for the variables."""

    bind: str
    backend_url: str
    timeout: float
    health_timeout: float
    stream_timeout: float
    stream_idle: float
    max_concurrent: int
    max_body: int
    routes: tuple[Route, ...]
    pool_idle: float
    drain: float
    cors_origins: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Knob:
    """One environment variable: the field it sets, its default as written, its reader and its meaning."""

    variable: str
    field: str
    default: str
    read: Callable[[str], Any]
    meaning: str


def _number(low: float, high: float, convert: Callable[[float], Any] = float) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not low <= value <= high:  # a NaN fails this as well
            raise SettingsError(f"takes a number from {low:g} to {high:g}")
        return convert(value)

    return read


def _count(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text) or not low <= int(text) <= high:
            raise SettingsError(f"takes a whole number from {low} to {high}")
        return int(text)

    return read


def _bind(text: str) -> str:
    if text.startswith("unix:") and len(text) > len("unix:"):
        return text
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.%\w]+\]|[^\[\]:/@\s]+):([0-9]{1,5})", text)
    if not match or int(match[2]) > 65535:
        raise SettingsError("takes host:port, [v6]:port or unix:PATH")
    return text


def _backend_url(text: str) -> str:
    accepted = "takes http://host[:port][/prefix] or https://..., without credentials, query or fragment"
    try:
        parts = urlsplit(text)
        port_fits = parts.port is None or parts.port > 0
    except ValueError:
        raise SettingsError(accepted) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_fits:
        raise SettingsError(accepted)
    if "@" in parts.netloc or "?" in text or "#" in text or not re.fullmatch(r"[\x21-\x7e]+", text):
        raise SettingsError(accepted)
    return text.rstrip("/")


def _routes(text: str) -> tuple[Route, ...]:
    routes: dict[tuple[str, str], Route] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        for line in NAMED_ROUTES.get(item, (item,)):
            method, _, path = line.partition(" ")
            path = path.strip()
            line = f"{method} {path}"
            if not re.fullmatch(r"[A-Z]{3,20}", method) or not re.fullmatch(r"/[\x21-\x7e]*", path):
                raise SettingsError(f"takes {', '.join(NAMED_ROUTES)} or `METHOD /path`, comma-separated")
            if path in OWN_PATHS or "*" in path[:-1] or "<" in path or "?" in path:
                raise SettingsError(
                    "takes no path of the proxy's own, no `?` or `<`, and `*` only as a path's end"
                )
            # GET /v1/models is in both sets: with `generation`, its clients read its errors as well.
            openai = line not in NAMED_ROUTES["decisions"] or item == "generation"
            openai = openai or bool(routes.get((method, path)) and routes[method, path].openai)
            routes[method, path] = Route(method, path, openai, admitted=line not in UNADMITTED)
    if not routes:
        raise SettingsError("names no route")
    return tuple(routes.values())


def _origins(text: str) -> tuple[str, ...]:
    origins = tuple(filter(None, (part.strip() for part in text.split(","))))
    for origin in origins:
        if origin != "*" and not re.fullmatch(r"https?://[^/\s*@?#]+", origin):
            raise SettingsError("takes `*` or origins such as https://app.example, comma-separated")
    return origins


def _bytes(value: float) -> int:
    return int(value * MIB)


KNOBS = (
    Knob(
        "OMNI_JEV_BIND",
        "bind",
        "127.0.0.1:8080",
        _bind,
        "Address to listen on: host:port, [v6]:port or unix:PATH.",
    ),
    Knob(
        "OMNI_JEV_BACKEND_URL",
        "backend_url",
        "http://127.0.0.1:8000",
        _backend_url,
        "Root URL of the backend. A path prefix is allowed; credentials, a query or a fragment are not.",
    ),
    Knob(
        "OMNI_JEV_TIMEOUT",
        "timeout",
        "60",
        _number(0.05, 86400),
        "Seconds for a whole exchange with the backend, from the first byte sent to the last byte read. After it: 504.",
    ),
    Knob(
        "OMNI_JEV_HEALTH_TIMEOUT",
        "health_timeout",
        "2",
        _number(0.05, 3600),
        "The same limit for GET /health.",
    ),
    Knob(
        "OMNI_JEV_STREAM_TIMEOUT",
        "stream_timeout",
        "600",
        _number(0.05, 86400),
        "The same limit for a response that is a stream (event-stream, NDJSON, audio, video).",
    ),
    Knob(
        "OMNI_JEV_STREAM_IDLE",
        "stream_idle",
        "60",
        _number(0.05, 86400),
        "Seconds a stream may go without a byte before it is cut.",
    ),
    Knob(
        "OMNI_JEV_MAX_CONCURRENT",
        "max_concurrent",
        "256",
        _count(1, 100000),
        "Exchanges in flight per process. Above it: 503 with Retry-After: 1. "
        "/health, /metrics and /v1/models do not count.",
    ),
    Knob(
        "OMNI_JEV_MAX_BODY_MB",
        "max_body",
        "128",
        _number(0.001, 1048576, _bytes),
        "Largest request body in MiB, declared or chunked. Above it: 413.",
    ),
    Knob(
        "OMNI_JEV_ROUTES",
        "routes",
        "decisions",
        _routes,
        "Routes to forward, comma-separated: `decisions`, `generation` or `METHOD /path`. "
        "A trailing `*` takes the whole subtree.",
    ),
    Knob(
        "OMNI_JEV_POOL_IDLE",
        "pool_idle",
        "4",
        _number(0, 3600),
        "Seconds an idle backend connection stays usable. Keep it below the backend's own keep-alive.",
    ),
    Knob(
        "OMNI_JEV_DRAIN",
        "drain",
        "65",
        _number(0, 86400),
        "Seconds a stopping process waits for exchanges in flight. Keep it above OMNI_JEV_TIMEOUT.",
    ),
    Knob(
        "OMNI_JEV_CORS_ORIGINS",
        "cors_origins",
        "",
        _origins,
        "Origins whose pages may read the answers, comma-separated, or `*`. Unset: no CORS.",
    ),
)


def from_environ(environ: Mapping[str, str]) -> Settings:
    """Settings from a mapping such as `os.environ`; an empty value counts as unset.

    Raises SettingsError, one line naming the variable and the accepted form. The value is not repeated in it:
    it may hold a password.
    """
    values = {}
    for knob in KNOBS:
        try:
            values[knob.field] = knob.read(environ.get(knob.variable, "").strip() or knob.default)
        except SettingsError as error:
            raise SettingsError(f"{knob.variable} {error}") from None
    return Settings(**values)


def conflicts(settings: Settings) -> list[str]:
    """Settings that are each right and do not fit together: one line for each."""
    found = []
    if settings.drain < settings.timeout:
        found.append(
            f"OMNI_JEV_DRAIN ({settings.drain:g}) is below OMNI_JEV_TIMEOUT ({settings.timeout:g}): "
            "a stop cuts exchanges that still have time"
        )
    if settings.stream_timeout < settings.stream_idle:
        found.append(
            f"OMNI_JEV_STREAM_TIMEOUT ({settings.stream_timeout:g}) is below OMNI_JEV_STREAM_IDLE "
            f"({settings.stream_idle:g}): a silent stream ends earlier than that"
        )
    return found


def load() -> Settings:
    """Settings of this process's environment."""
    return from_environ(os.environ)


def metrics_directory() -> str | None:
    """The directory in which the processes of one gunicorn share their metrics, as prometheus-client names it."""
    return os.environ.get(METRICS_DIRECTORY)
