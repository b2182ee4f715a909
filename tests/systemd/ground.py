"""What every machine is made of: a Debian root folder, and the wheels that `deploy/install` takes there.

Both are made once for their inputs and kept in .cache/systemd. Nothing is ever written into them after that.
"""

from __future__ import annotations

import configparser
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.servers import ROOT

CACHE = ROOT / ".cache" / "systemd"
CONSTRAINTS = ROOT / "deploy" / "constraints-cpu.txt"
SUITE = "bookworm"
# What docs/operations.md has an operator install, what Debian's own installer brings, and what the tests look with.
PACKAGES = (
    "systemd", "systemd-sysv", "dbus", "python3", "procps", "ca-certificates", "iproute2",
    "python3-venv", "curl", "nginx-light",
)  # fmt: skip
PROGRAMS = ("mmdebstrap", "systemd-nspawn", "nsenter", "unshare", "setpriv", "openssl")


def missing() -> str | None:
    """Why there can be no machine here, in one line; None where there can."""
    if os.geteuid() != 0:
        return "the user is not root"
    if absent := [name for name in PROGRAMS if shutil.which(name) is None]:
        return f"not installed: {', '.join(absent)}"
    layers = "mkdir l u w m; mount -t overlay none m -o lowerdir=l,upperdir=u,workdir=w"
    script = f"mount -t tmpfs none /mnt; cd /mnt; {layers}"
    command = ["unshare", "--net", "--mount", "--pid", "--fork", "sh", "-ec", script]
    done = subprocess.run(command, capture_output=True, text=True)
    return f"no namespaces: {done.stderr.strip()}" if done.returncode else None


def debian() -> Path:
    """The root folder."""

    def make(folder: Path) -> None:
        command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(PACKAGES)}"]
        subprocess.run([*command, SUITE, folder], check=True, stdin=subprocess.DEVNULL)

    return _made("debian", [SUITE, *PACKAGES], make)


def wheels() -> Path:
    """A folder with all that both programs need, for pip on a machine without a network."""
    assert sys.version_info[:2] == (3, 11), f"{SUITE} has Python 3.11, and takes wheels for it"
    setup, project = configparser.ConfigParser(), ROOT / "pyproject.toml"
    setup.read(ROOT / "setup.cfg")
    lines = setup["options"]["install_requires"] + setup["options.extras_require"]["worker"]
    wanted = [*lines.split(), "setuptools>=77", "wheel"]

    def make(folder: Path) -> None:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", folder, "-c", CONSTRAINTS]
        subprocess.run([*command, *wanted], check=True, stdin=subprocess.DEVNULL)

    return _made("wheels", [*wanted, CONSTRAINTS.read_text(), project.read_text(), sys.version], make)


def _made(name: str, inputs: Sequence[str], make: Callable[[Path], None]) -> Path:
    total = hashlib.sha256("\0".join(inputs).encode()).hexdigest()[:12]
    folder = CACHE / f"{name}-{total}"
    if folder.is_dir():
        return folder
    part = folder.with_suffix(".part")
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "making").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            shutil.rmtree(part, ignore_errors=True)
            try:
                make(part)
                part.rename(folder)
            finally:
                shutil.rmtree(part, ignore_errors=True)
    return folder


@contextmanager
def place() -> Iterator[Path]:
    """A folder for what one machine writes. Where no other machine runs, what a killed run left is removed first."""
    CACHE.mkdir(parents=True, exist_ok=True)
    keep = {debian(), wheels(), CACHE / "making", CACHE / "running"}
    with (CACHE / "running").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for left in set(CACHE.iterdir()) - keep:
                shutil.rmtree(left)
        except BlockingIOError:
            pass
        fcntl.flock(lock, fcntl.LOCK_SH)
        folder = CACHE / f"machine-{os.getpid()}"
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder)
