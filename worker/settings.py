"""Every setting of the worker: one table, and one function that reads it from a mapping.

It knows the variables' names, defaults and accepted forms. It must not load, open or look for anything: a
value of the right form may still name a device or a directory that does not exist.
"""

import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from worker.errors import SettingRefused

# The embedded demonstration model, and the published checkpoints by the names that laya-serve gives them.
# The revisions are the ones that were reviewed; `name=source` loads any other.
EMBEDDED = "demo"
KNOWN = {
    EMBEDDED: str(Path(__file__).with_name("default")),
    "english": "convaiinnovations/laya@55cf4c4ebb4ebe31b2550e8bdf3bd21b99753851",
    "multilingual": "convaiinnovations/laya@55cf4c4ebb4ebe31b2550e8bdf3bd21b99753851#multilingual",
    "typed-decisions": "convaiinnovations/laya-typed-decisions",
}
# Names of the hosted models: a client that changed nothing but its base URL asks for one of these.
ALIASES = ("jev-latest", "jev-preview")
LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model to serve: the name that requests use, and where its checkpoint is."""

    name: str
    source: str


@dataclass(frozen=True, slots=True)
class Settings:
    """The worker's settings. Times in seconds, sizes in bytes unless the name says otherwise."""

    host: str
    port: int
    listen: str
    models: tuple[ModelSource, ...]
    device: str
    dtype: str
    threads: int
    omp_threads: int
    graphs: bool
    buckets: tuple[int, ...]
    row_cache: int
    overtaking: float
    patience: float
    wire: str
    overflow: str
    limit_status: int
    playground: bool | None
    api_key: str | None = field(repr=False)
    max_concurrent: int
    max_body_mb: float
    body_timeout: float
    log_level: str

    @property
    def shows_playground(self) -> bool:
        """Whether GET /playground is served: as set, else where only this machine can ask."""
        return _is_loopback(self.host) if self.playground is None else self.playground


@dataclass(frozen=True, slots=True)
class Knob:
    """One variable: the field it fills, its default as text, its reader, its accepted form, its meaning.

    `shown` says in words what a blank default means. It is no value.
    """

    variable: str
    field: str
    default: str
    read: Callable[[str], Any]
    accepted: str
    meaning: str
    shown: str = ""


def read(environ: Mapping[str, str]) -> Settings:
    """Settings from `environ`; a variable that is unset or blank has its default.

    Raises SettingRefused with the variable's name and accepted form, never with the value.
    """
    values: dict[str, Any] = {}
    for knob in KNOBS:
        text = environ.get(knob.variable, "").strip() or knob.default
        try:
            values[knob.field] = knob.read(text)
        except ValueError:
            raise SettingRefused(knob.variable, f"expected {knob.accepted}") from None
    return Settings(**values)


def environment() -> Settings:
    """Settings from this process's environment."""
    return read(os.environ)


def notify_socket() -> str:
    """Where systemd wants to be told of this process's state; "" where nobody does. Not a setting of ours."""
    return os.environ.get("NOTIFY_SOCKET", "")


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text) or not low <= int(text) <= high:
            raise ValueError
        return int(text)

    return parse


def _number(low: float, high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text) or not low <= float(text) <= high:
            raise ValueError
        return float(text)

    return parse


def _one_of(*accepted: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in accepted:
            raise ValueError
        return text.lower()

    return parse


def _matching(pattern: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError
        return text

    return parse


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _switch(text: str) -> bool:
    if text.lower() not in ("1", "0", "true", "false", "yes", "no", "on", "off"):
        raise ValueError
    return text.lower() in ("1", "true", "yes", "on")


def _host(text: str) -> str:
    """A host; an IPv6 address may stand in brackets, as in a URL."""
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") and ":" in text else text
    return _matching(r"[^\s/\[\]]{1,255}")(bare)


def _lengths(text: str) -> tuple[int, ...]:
    if not text:
        return ()
    lengths = tuple(_whole(1, 65536)(part.strip()) for part in text.split(","))
    if list(lengths) != sorted(set(lengths)):
        raise ValueError
    return lengths


def _threads(text: str) -> int:
    return _whole(1, 1024)(text) if text else 0


def _omp_threads(text: str) -> int:
    # OpenMP takes a list, one number for each level of nested parallel regions; torch nests none.
    return _threads(text.partition(",")[0].strip())


def _switch_or_blank(text: str) -> bool | None:
    return _switch(text) if text else None


def _status(text: str) -> int:
    return int(_one_of("400", "422")(text))


def _key(text: str) -> str | None:
    return text or None


def _models(text: str) -> tuple[ModelSource, ...]:
    models = []
    for entry in text.split(","):
        name, _, source = (part.strip() for part in entry.partition("="))
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name) or name in ALIASES:
            raise ValueError
        if not source and ("=" in entry or name not in KNOWN):
            raise ValueError
        models.append(ModelSource(name, KNOWN.get(source or name, source)))
    if len({model.name for model in models}) != len(models):
        raise ValueError
    return tuple(models)


KNOBS = (
    Knob("LAYA_HOST", "host", "127.0.0.1", _host, "an address or a host name",
         "Address to listen on."),
    Knob("LAYA_PORT", "port", "8000", _whole(0, 65535), "a port, 0 to 65535 (0 takes a free one)",
         "Port to listen on."),
    Knob("LAYA_LISTEN", "listen", "at-once", _one_of("at-once", "warm"), "at-once or warm",
         "When the port opens. at-once: at start, with 503 while the models load. warm: once they are ready, so that a "
         "load balancer tries another worker meanwhile."),
    Knob("LAYA_MODELS", "models", EMBEDDED, _models,
         "name or name=source, comma-separated, each name once; known names: " + ", ".join(KNOWN),
         "Models to serve. A source is a known name, a directory or a hub id with optional @revision and #subfolder. "
         "Requests for jev-latest, jev-preview or no model get the first one."),
    Knob("LAYA_DEVICE", "device", "auto", _matching(r"auto|cpu|cuda(:[0-9]{1,3})?"),
         "auto, cpu, cuda or cuda:N", "Where the models run. Naming a device that is missing stops the start."),
    Knob("LAYA_DTYPE", "dtype", "fp32", _one_of("fp32", "bf16"), "fp32 or bf16 (bf16 on CUDA only)",
         "Number format of the arithmetic."),
    Knob("LAYA_THREADS", "threads", "", _threads, "a whole number, 1 to 1024",
         "torch threads on the CPU.", shown="OMP_NUM_THREADS, else the physical cores or a smaller CPU quota"),
    Knob("OMP_NUM_THREADS", "omp_threads", "", _omp_threads, "a whole number, 1 to 1024; of a list the first counts",
         "torch threads on the CPU where LAYA_THREADS is not set. OpenMP's own variable.", shown="not used"),
    Knob("LAYA_GRAPHS", "graphs", "1", _switch, "1 or 0", "1 captures CUDA graphs at start; 0 runs without them."),
    Knob("LAYA_BUCKETS", "buckets", "", _lengths, "token lengths in rising order, comma-separated",
         "Token lengths that get a CUDA graph.", shown="the built-in ones"),
    Knob("LAYA_ROW_CACHE", "row_cache", "4096", _whole(0, 100_000_000), "a whole number, 0 switches it off",
         "Rows whose results are cached. A row is one question on one text."),
    Knob("LAYA_OVERTAKING", "overtaking", "0.5", _number(0.0, 0.95), "a number from 0 to 0.95",
         "Share of the device's time that shorter rows may take from a long pass that has begun."),
    Knob("LAYA_PATIENCE", "patience", "1", _number(0.0, 3600), "seconds, 0 to 3600",
         "Seconds after which a waiting row goes before all others."),
    Knob("LAYA_WIRE", "wire", "jev", _one_of("jev", "laya"), "jev or laya",
         "Response format: jev is the hosted service's, laya is laya-serve's."),
    Knob("LAYA_OVERFLOW", "overflow", "truncate", _one_of("truncate", "refuse"), "truncate or refuse",
         "Text past the model's limit. truncate: cut it and say so in the answer. refuse: answer 400."),
    Knob("LAYA_LIMIT_STATUS", "limit_status", "400", _status, "400 or 422",
         "Status for counts out of range: 400 with a sentence, as the hosted service does, or 422 with a field list."),
    Knob("LAYA_PLAYGROUND", "playground", "", _switch_or_blank, "1 or 0",
         "1 serves GET /playground, a page to try questions in a browser.",
         shown="1 where LAYA_HOST is a loopback address, else 0"),
    Knob("LAYA_API_KEY", "api_key", "", _key, "any text", "Bearer key that requests must carry.",
         shown="no key"),
    Knob("LAYA_MAX_CONCURRENT", "max_concurrent", "64", _whole(1, 10_000), "a whole number, 1 to 10000",
         "Authenticated requests in flight. Above it: 503 with Retry-After: 1."),
    Knob("LAYA_MAX_BODY_MB", "max_body_mb", "4", _number(0.001, 1024), "a number of MiB, 0.001 to 1024",
         "Largest request body in MiB, as sent and as decompressed. Above it: 413."),
    Knob("LAYA_BODY_TIMEOUT", "body_timeout", "10", _number(0.05, 600), "seconds, 0.05 to 600",
         "Seconds for a request body to arrive. After them: 408."),
    Knob("LAYA_LOG_LEVEL", "log_level", "info", _one_of(*LEVELS), "debug, info, warning or error",
         "Level of the log on stderr."),
)  # fmt: skip
