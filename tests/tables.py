"""Writes the settings tables of docs/settings.md and the files of deploy/etc from the settings in the code.

`python -m tests.tables` writes them; the tests compare.
"""

from __future__ import annotations

import re
import textwrap

import jevproxy.settings
import worker.settings
from tests.servers import ROOT

PAGE = ROOT / "docs" / "settings.md"
PROXY_FILE = ROOT / "deploy" / "etc" / "jevproxy.env"
WORKER_FILE = ROOT / "deploy" / "etc" / "jevworker.env"
# How the variables of each program begin.
PROXY_PREFIX, WORKER_PREFIX = "OMNI_JEV_", "(?:LAYA|OMP)_"

PROXY_HEAD = """\
# jevproxy's settings, read by systemd. Every setting is listed with its default; docs/settings.md has the table.
# After a change: systemctl restart jevproxy. No client is refused meanwhile.
"""
PROXY_TAIL = """\
# jevproxy.socket's ListenStream decides where jevproxy listens under systemd, whatever stands here.
#OMNI_JEV_BIND=127.0.0.1:8080

# gunicorn's own settings. Start with two processes on two cores; each allows OMNI_JEV_MAX_CONCURRENT exchanges.
GUNICORN_CMD_ARGS=--workers=2
"""
WORKER_HEAD = """\
# Settings of every worker on this host, read by systemd. Every setting is listed with its default.
# Settings of a single worker go into jevworker-PORT.env beside this file: LAYA_DEVICE=cuda:1 in jevworker-8001.env.
# After a change: deploy/roll with the ports of all workers.
"""
WORKER_TAIL = """\
# The instance's name sets the port (jevworker@8000). Do not set it here.
#LAYA_PORT=8000

# GET /playground is off: nginx would show the page to everybody. 1 serves it.
LAYA_PLAYGROUND=0
"""


def cell(text: str) -> str:
    return text.replace("|", "\\|") or "none"


def proxy_rows() -> list[str]:
    return [
        f"| {knob.variable} | {cell(knob.default)} | {cell(knob.meaning)} |"
        for knob in jevproxy.settings.KNOBS
    ]


def worker_rows() -> list[str]:
    return [
        f"| {knob.variable} | {cell(knob.default or knob.shown)} | {cell(knob.accepted)} | {cell(knob.meaning)} |"
        for knob in worker.settings.KNOBS
    ]


def block(variable: str, default: str, *sentences: str) -> str:
    lines = (
        textwrap.fill(words, 100, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
        for words in sentences
    )
    return "\n".join([*lines, f"#{variable}={default}\n"])


def proxy_file() -> str:
    knobs = [knob for knob in jevproxy.settings.KNOBS if knob.variable != "OMNI_JEV_BIND"]
    return "\n".join([PROXY_HEAD, *(block(k.variable, k.default, k.meaning) for k in knobs), PROXY_TAIL])


def accepted(knob: worker.settings.Knob) -> str:
    blank = f" Blank: {knob.shown}." if knob.shown else ""
    return f"Takes {knob.accepted}.{blank}"


def worker_file() -> str:
    knobs = [knob for knob in worker.settings.KNOBS if knob.variable not in ("LAYA_PORT", "LAYA_PLAYGROUND")]
    blocks = (block(k.variable, k.default, k.meaning, accepted(k)) for k in knobs)
    return "\n".join([WORKER_HEAD, *blocks, WORKER_TAIL])


def main() -> None:
    page = PAGE.read_text()
    for prefix, rows in ((PROXY_PREFIX, proxy_rows()), (WORKER_PREFIX, worker_rows())):
        table = "".join(f"{row}\n" for row in rows)
        page = re.sub(rf"(?m)(^\| {prefix}.*\n)+", lambda _, table=table: table, page)
    PAGE.write_text(page)
    PROXY_FILE.write_text(proxy_file())
    WORKER_FILE.write_text(worker_file())


if __name__ == "__main__":
    main()
