"""`make run` as its user has it: a first request is answered, Ctrl-C stops both, and a taken port is named."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest

from tests.servers import BIN, ROOT, Program, clean_environment, free_port, listens, status_of, wait_until

# The environment of the tests has both programs; making one is what the installer's tests cover.
RUN = [sys.executable, str(ROOT / "deploy" / "run"), "--bin", str(BIN)]


def settings() -> dict[str, str]:
    return {"LAYA_PORT": str(free_port()), "OMNI_JEV_BIND": f"127.0.0.1:{free_port()}", "LAYA_DEVICE": "cpu"}


def test_it_serves_until_it_is_told_to_stop() -> None:
    given = settings()
    url = f"http://{given['OMNI_JEV_BIND']}"
    with Program(RUN, given, url=url, ready=lambda: status_of(url) == 200) as program:
        wait_until(lambda: "Ctrl-C stops both" in program.output(), 60, "the first request's answer")
        assert '"refund"' in program.output() and '"probabilities"' in program.output()
        program.signal(signal.SIGINT)
        assert program.wait() == 0
        assert program.output().rstrip().endswith("-- stopped")
        assert not listens(url) and not listens(f"http://127.0.0.1:{given['LAYA_PORT']}")


@pytest.mark.parametrize("taken", ["LAYA_PORT", "OMNI_JEV_BIND"])
def test_a_taken_port_is_named(taken: str) -> None:
    given = settings()
    port = int(given[taken].rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)):
        environment = clean_environment({"PATH": os.environ["PATH"]} | given)
        done = subprocess.run(RUN, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert f"port {port}" in done.stderr and f"{taken}=" in done.stderr and "make run" in done.stderr


def test_a_refused_setting_stops_it() -> None:
    given = settings() | {"LAYA_WIRE": "morse"}
    environment = clean_environment({"PATH": os.environ["PATH"]} | given)
    done = subprocess.run(RUN, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "LAYA_WIRE" in done.stderr and "starting jevworker failed" in done.stderr


def test_a_formatter_without_an_answer_says_so() -> None:
    """README's first command while nothing serves: curl prints nothing."""
    command = [sys.executable, str(ROOT / "deploy" / "readable.py")]
    done = subprocess.run(command, input="", capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "no answer came: is `make run` still running?\n"
