"""What one longer (or shorter) time for a request means for every file: jevproxy.env, nginx's sites, the units.

Knows which times must be above which. Knows nothing of systemctl or pip.

    client <- nginx <- jevproxy <- [nginx <-] worker: each waits longer than what stands behind it, so that the one that
    knows what went wrong answers. A stop lasts longer than the longest exchange, and systemd waits for the stop.
"""

from __future__ import annotations

import re
from pathlib import Path

from environment import StepFailed
from places import DROP_INS, File, files

# Seconds above the exchange's: the shipped files have the same distances from their 60 s.
DRAIN, NGINX, STOP = 5, 15, 20
STREAM = 600  # OMNI_JEV_STREAM_TIMEOUT's default
SITES = ("proxy_send_timeout", "proxy_read_timeout")


def timed(prefix: Path, part: str, seconds: int) -> list[File]:
    """The installation's files as they are below the prefix, with every time that follows from `seconds`.

    Raises StepFailed where nginx's site has no such directive.
    """
    listed = []
    for file in files(prefix, part):
        target = prefix / file.place
        text = target.read_text() if target.exists() else file.text
        if target.name == "jevproxy.env":
            listed.append(File(file.place, variables(text, seconds), file.mode))
        elif target.name in ("jevproxy.conf", "jevworkers.conf"):
            for directive in SITES:
                text = with_directive(text, directive, f"{seconds + NGINX}s", target)
            listed.append(File(file.place, text, file.mode))
    proxy, worker = DROP_INS
    if part in ("proxy", "all"):
        listed.append(File(proxy, drop_in(seconds, f"TimeoutStopSec={seconds + STOP}")))
    if part in ("worker", "all"):
        stop = f"TimeoutStopSec={seconds + STOP}"
        listed.append(
            File(
                worker, drop_in(seconds, f"Environment=GUNICORN_CMD_ARGS=--graceful-timeout={seconds}", stop)
            )
        )
    return listed


def variables(text: str, seconds: int) -> str:
    """jevproxy.env with its times."""
    wanted = {"TIMEOUT": seconds, "STREAM_IDLE": seconds, "DRAIN": seconds + DRAIN}
    if seconds > STREAM:  # a stream has at least the time of an exchange
        wanted["STREAM_TIMEOUT"] = seconds
    for name, value in wanted.items():
        text = with_variable(text, f"OMNI_JEV_{name}", value)
    return text


def with_variable(text: str, name: str, value: int) -> str:
    """An environment file with one variable set: where it is set, else where it is commented out, else at the end."""
    for start in ("", "#"):
        changed, count = re.subn(rf"(?m)^{start}{name}=.*$", f"{name}={value}", text)
        if count:
            return changed
    return f"{text.rstrip()}\n{name}={value}\n".lstrip("\n")


def with_directive(text: str, name: str, value: str, target: Path) -> str:
    """An nginx site with one directive's value changed wherever it stands."""
    changed, count = re.subn(rf"(?m)^(\s*{name}\s+)[^;]+;", rf"\g<1>{value};", text)
    if not count:
        raise StepFailed(
            f"setting {name} in {target}", f"It has none: write `{name} {value};` into its location."
        )
    return changed


def drop_in(seconds: int, *lines: str) -> str:
    return "\n".join([f"# Written by deploy/install --timeout {seconds}.", "[Service]", *lines, ""])
