"""What the test environments install is what setup.cfg declares."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MARK = "\npytestmark = pytest.mark.once\n"


def declared() -> dict[str, str]:
    """Lower bound of every run-time dependency, by name."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lines = (
        setup["options"]["install_requires"]
        + setup["options.extras_require"]["worker"]
        + setup["options.extras_require"]["files"]
    )
    pairs = (
        re.match(r"([\w-]+)(?:\[\w+\])?>=([\w.]+),<", line.strip())
        for line in lines.splitlines()
        if line.strip()
    )
    return {pair[1]: pair[2] for pair in pairs if pair}


def constraints(path: Path) -> dict[str, str]:
    lines = (line.strip() for line in path.read_text().splitlines())
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def test_what_runs_once_imports_no_dependency() -> None:
    """A module marked `once` is left out of the environment `oldest`, so nothing with a range may be under it."""
    files = [
        path.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py") if MARK in path.read_text()
    ]
    modules = [".".join(path.with_suffix("").parts) for path in files]
    program = f"import sys, {', '.join(modules)}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert len(modules) > 5
    assert {name.replace("-", "_") for name in declared()} & set(done.stdout.split()) == set()


def test_every_dependency_has_both_bounds() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lines = (
        setup["options"]["install_requires"]
        + setup["options.extras_require"]["worker"]
        + setup["options.extras_require"]["files"]
    )
    assert len(declared()) == len([line for line in lines.splitlines() if line.strip()])


def test_the_oldest_environment_has_the_lower_bounds() -> None:
    assert constraints(ROOT / "tests" / "constraints-oldest.txt") == declared()


def test_torch_is_pinned_within_its_bounds() -> None:
    assert constraints(ROOT / "deploy" / "constraints-cpu.txt") == {"torch": declared()["torch"]}
