"""The programs live within what the units allow: every system call that they make is in the unit's filter."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.client import ask
from tests.load import decide
from tests.servers import BIN, ROOT, Program, free_port, status_of

# Writable executable memory is refused by a system call of its own since Linux 6.3: PR_SET_MDWE, 65, with 1.
DENY_WRITE_EXECUTE = """
import ctypes, errno, os, sys
library = ctypes.CDLL(None, use_errno=True)
if library.prctl(65, 1, 0, 0, 0) and ctypes.get_errno() != errno.EINVAL:
    sys.exit("prctl failed")
os.execv(sys.argv[1], sys.argv[1:])
"""


@cache
def calls_of(group: str) -> frozenset[str]:
    """The system calls in one of systemd's groups, and in the groups within it."""
    done = subprocess.run(
        ["systemd-analyze", "syscall-filter", group], capture_output=True, text=True, check=True
    )
    found: set[str] = set()
    for name in done.stdout.split("\n"):
        name = name.strip()
        if name.startswith("@") and name != group:
            found |= calls_of(name)
        elif name and not name.startswith(("#", "@")):
            found.add(name)
    return frozenset(found)


def allowed(unit: str) -> set[str]:
    """What the unit's SystemCallFilter lines leave, in their order."""
    calls: set[str] = set()
    for line in re.findall(
        r"^SystemCallFilter=(.*)$", (ROOT / "deploy" / "systemd" / unit).read_text(), re.M
    ):
        groups = set().union(*(calls_of(group) for group in line.lstrip("~").split()))
        calls = calls - groups if line.startswith("~") else calls | groups
    return calls


def made(trace: Path) -> set[str]:
    return set(re.findall(r"^\d+ +(?:<\.\.\. )?(\w+)[( ]", trace.read_text(errors="replace"), re.M))


@pytest.mark.parametrize("unit", ["jevproxy.service", "jevworker@.service"])
def test_every_system_call_is_allowed(unit: str, embedded_worker: Program, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    strace = ["strace", "-f", "-qq", "-e", "signal=none", "-o", trace]
    if unit == "jevproxy.service":
        assert "MemoryDenyWriteExecute=yes" in (ROOT / "deploy" / "systemd" / unit).read_text()
        program = [sys.executable, "-c", DENY_WRITE_EXECUTE, BIN / "jevproxy", "--workers=2"]
        settings = {"OMNI_JEV_BIND": f"127.0.0.1:{port}", "OMNI_JEV_BACKEND_URL": embedded_worker.url}
    else:
        program, settings = [BIN / "jevworker"], {"LAYA_PORT": str(port), "LAYA_DEVICE": "cpu"}
    with Program([*strace, *program], settings, url=url, ready=lambda: status_of(url) == 200) as traced:
        assert decide(url)[0] == 200
        assert ask(url, "GET", "/metrics")[0] == 200
        # strace itself leaves a signal to its child unheard: the program is told.
        children = Path(f"/proc/{traced.pid}/task/{traced.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGTERM)
        assert traced.wait() == 0
    assert {"execve", "accept4"} <= made(trace)
    assert "mount" not in allowed(unit) and made(trace) - allowed(unit) == set()
