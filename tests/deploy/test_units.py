"""The shipped systemd units: valid, hardened, in step with the settings, and started the way systemd starts them."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import jevproxy.settings
import worker.gunicorn_conf
from tests import tables
from tests.servers import (
    BIN,
    ROOT,
    Program,
    clean_environment,
    free_port,
    listens,
    status_of,
    wait_until,
)

sys.path.insert(0, str(ROOT / "deploy"))
import places

UNITS = ROOT / "deploy" / "systemd"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The units as installed below a folder, with empty programs where the release has its own."""
    for file in places.files(tmp_path, "all"):
        places.write(tmp_path, file)
    programs = places.release(tmp_path, "r1") / "bin"
    programs.mkdir(parents=True)
    for name in ("jevproxy", "jevworker"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    places.switch(tmp_path, "r1")
    return tmp_path / "etc/systemd/system"


@pytest.mark.parametrize("unit", ["jevproxy.service", "jevproxy.socket", "jevworker@8000.service"])
def test_systemd_finds_no_fault(installed: Path, unit: str) -> None:
    if "@" in unit:
        (installed / unit).symlink_to("jevworker@.service")
    command = ["systemd-analyze", "verify", "--recursive-errors=yes", str(installed / unit)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("unit", "most"), [("jevproxy.service", 20), ("jevworker@.service", 30)])
def test_exposure_is_low(unit: str, most: int) -> None:
    """Tenths of systemd's exposure level: 2.0 for the proxy, 3.0 for the worker."""
    command = ["systemd-analyze", "security", "--offline=yes", f"--threshold={most}", str(UNITS / unit)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def seconds(unit: str, name: str) -> int:
    found = re.search(rf"^{name}=(\d+)$", (UNITS / unit).read_text(), re.M)
    assert found
    return int(found[1])


def test_a_stop_outlasts_the_longest_exchange() -> None:
    drain = jevproxy.settings.from_environ({}).drain
    assert seconds("jevproxy.service", "TimeoutStopSec") > drain
    assert seconds("jevworker@.service", "TimeoutStopSec") > worker.gunicorn_conf.graceful_timeout


def test_the_socket_listens_where_the_settings_say() -> None:
    assert (
        f"ListenStream={jevproxy.settings.from_environ({}).bind}\n" in (UNITS / "jevproxy.socket").read_text()
    )


def test_the_environment_files_have_every_setting_with_its_default() -> None:
    assert tables.PROXY_FILE.read_text() == tables.proxy_file(), "write it anew: python -m tests.tables"
    assert tables.WORKER_FILE.read_text() == tables.worker_file(), "write it anew: python -m tests.tables"


def test_jevproxy_takes_its_socket_from_systemd(tmp_path: Path) -> None:
    """Without a port of its own; what the unit's ExecStart and environment file say."""
    port, unused = free_port(), free_port()
    exec_start = re.search(r"^ExecStart=(.*)$", (UNITS / "jevproxy.service").read_text(), re.M)
    assert exec_start and exec_start[1] == "/opt/jevproxy/current/bin/jevproxy"
    argv = ["systemd-socket-activate", "--listen", f"127.0.0.1:{port}"]
    names = ["OMNI_JEV_BIND", "OMNI_JEV_BACKEND_URL", "GUNICORN_CMD_ARGS", "PATH"]
    argv += [f"--setenv={name}" for name in names] + [str(BIN / "jevproxy")]
    settings = {
        "OMNI_JEV_BIND": f"127.0.0.1:{unused}",
        "OMNI_JEV_BACKEND_URL": f"http://127.0.0.1:{free_port()}",
    }
    url = f"http://127.0.0.1:{port}"
    # The first connection is what starts it.
    with Program(
        argv, settings | {"GUNICORN_CMD_ARGS": "--workers=2"}, url=url, ready=lambda: listens(url)
    ) as program:
        wait_until(lambda: status_of(url) == 502, 60, "an answer through the socket")
        assert not listens(f"http://127.0.0.1:{unused}")
        wait_until(lambda: program.output().count("Booting worker") == 2, what="both processes")


@pytest.fixture
def told(tmp_path: Path) -> Iterator[socket.socket]:
    """Stands in for systemd's notification socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(60)
        yield listening


def test_systemd_is_told_when_jevproxy_serves_and_when_it_drains(told: socket.socket) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    settings = {
        "OMNI_JEV_BIND": f"127.0.0.1:{port}",
        "OMNI_JEV_BACKEND_URL": "http://127.0.0.1:9/prefix",
        "OMNI_JEV_DRAIN": "7.5",
        "NOTIFY_SOCKET": told.getsockname(),
    }
    with Program([BIN / "jevproxy"], settings, url=url, ready=lambda: listens(url)) as program:
        assert b"READY=1" in told.recv(4096)
        assert told.recv(4096) == b"STATUS=ready, forwards to http://127.0.0.1:9/prefix"
        assert status_of(url) is not None
        assert program.stop() == 0
    assert told.recv(4096) == b"STATUS=draining: what is in flight has 7.5 seconds"


@pytest.mark.parametrize(
    "command",
    [[BIN / "jevproxy"], [sys.executable, "-m", "gunicorn", "-k", "gevent", "jevproxy.wsgi"]],
    ids=["jevproxy", "gunicorn"],
)
def test_a_setting_that_is_refused_is_not_tried_again(command: list[str], told: socket.socket) -> None:
    """The exit status that both units take for final, and the sentence as the unit's status."""
    for unit in ("jevproxy.service", "jevworker@.service"):
        assert "\nRestartPreventExitStatus=78 2\n" in (UNITS / unit).read_text()
    settings = {"OMNI_JEV_TIMEOUT": "soon", "NOTIFY_SOCKET": told.getsockname()}
    done = subprocess.run(
        command, cwd=ROOT, env=clean_environment(settings), stderr=subprocess.PIPE, text=True
    )
    sentence = "OMNI_JEV_TIMEOUT takes a number from 0.05 to 86400"
    assert (done.returncode, done.stderr) == (78, f"jevproxy: {sentence}\n")
    assert told.recv(4096) == f"STATUS={sentence}".encode()
