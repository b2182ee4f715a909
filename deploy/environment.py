"""Makes virtual environments with pip, and reuses them while their inputs are unchanged.

Knows pip, and whether its index has the CPU build of torch. Must not know what runs in an environment.
Needs only the standard library.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "deploy" / "constraints-cpu.txt"
STAMP = "made-from"


class StepFailed(Exception):
    """A step failed: names it, and says what to do."""

    def __init__(self, step: str, advice: str) -> None:
        super().__init__(f"{step} failed.\n  {advice}")


def require_python() -> None:
    """Raises StepFailed on a Python older than the programs need."""
    if sys.version_info < (3, 11):  # noqa: UP036 - this is what refuses the older ones
        raise StepFailed(
            f"using Python {sys.version.split()[0]}", "It needs 3.11 or later: run this file with python3.11."
        )


def say(words: str) -> None:
    print(f"-- {words}", flush=True)


def step(name: str, command: Sequence[str | Path], advice: str) -> None:
    """Runs one command, its output on the terminal. Raises StepFailed with the advice."""
    say(name)
    if subprocess.run([str(part) for part in command]).returncode != 0:
        raise StepFailed(name, advice)


def torch_pin() -> str:
    """The pinned requirement, such as `torch==2.13.0`."""
    return CONSTRAINTS.read_text().strip()


def has_cpu_build(python: Path) -> bool:
    """Whether pip, as configured on this machine, offers the CPU build."""
    asked = [python, "-m", "pip", "install", "--dry-run", "--no-deps", "--quiet", f"{torch_pin()}+cpu"]
    done = subprocess.run([str(part) for part in asked], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return done.returncode == 0


def tell_of_torch(python: Path) -> None:
    """Say which build of torch pip will install: the CPU build if its indexes have one."""
    if has_cpu_build(python):
        say(f"pip will install the CPU build of {torch_pin()} (about 200 MB)")
    else:
        say(
            f"pip's index has no CPU build of {torch_pin()}; the default build can be several gigabytes. For the small "
            "one, press Ctrl-C, set PIP_EXTRA_INDEX_URL to PyTorch's index of CPU wheels, and run this again"
        )


def digest(inputs: Iterable[Path]) -> str:
    """One hash of the files' contents and of the clone's path."""
    total = hashlib.sha256(str(ROOT).encode())
    for path in inputs:
        total.update(path.name.encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def is_made(home: Path, stamp: str | None = None) -> bool:
    """Whether the environment is complete and, with a stamp, was made from the same inputs."""
    file = home / STAMP
    return file.is_file() and stamp in (None, file.read_text())


def make(home: Path, requirements: Sequence[str], stamp: str, *, torch: bool = False) -> Path:
    """Makes or reuses the environment `home`; returns its bin folder. Raises StepFailed.

    requirements: pip's arguments after `pip install`. stamp: what it is made from; a different stamp or Python
    means a new environment.
    """
    stamp = f"{stamp} {sys.version}"
    bin_folder = home / "bin"
    if is_made(home, stamp):
        say(f"the environment {home.name} is up to date")
        return bin_folder
    if home.is_dir():
        shutil.rmtree(home)
    else:
        home.unlink(missing_ok=True)
    step(
        f"making the virtual environment {home.name}",
        [sys.executable, "-m", "venv", home],
        "It needs Python's venv module. On Debian and Ubuntu: apt-get install python3-venv",
    )
    python = bin_folder / "python"
    if torch:
        tell_of_torch(python)
    step(
        f"installing {' '.join(requirements)} into {home.name}",
        [python, "-m", "pip", "install", "--quiet", "-c", CONSTRAINTS, *requirements],
        "See pip's message above. Make sure that the package index can be reached, then run this again.",
    )
    (home / STAMP).write_text(stamp)
    return bin_folder
