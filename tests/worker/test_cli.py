"""The command line: each verb explains itself, and a wrong one says what is right."""

from __future__ import annotations

import subprocess
import sys

import pytest

from worker.cli import VERBS


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "worker.cli", *arguments], capture_output=True, text=True, timeout=60
    )


def test_help_lists_every_verb() -> None:
    done = run("--help")
    assert done.returncode == 0
    for verb in VERBS:
        assert verb.name in done.stdout


@pytest.mark.parametrize("verb", [verb.name for verb in VERBS])
def test_every_verb_explains_itself(verb: str) -> None:
    done = run(verb, "--help")
    assert done.returncode == 0, done.stderr
    assert f"jevworker {verb}" in done.stdout
    assert len(done.stdout.splitlines()) > 5


def test_an_unknown_verb_names_the_known_ones() -> None:
    done = run("sevre")
    assert done.returncode == 2
    assert "serve" in done.stderr


def test_help_needs_no_torch() -> None:
    code = (
        "import sys; from worker.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.endswith("False\n")
