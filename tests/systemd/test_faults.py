"""What goes wrong on a host: killed processes, wrong settings, a full disk. The rest goes on, and the unit says why."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.client import ask
from tests.load import decide, load
from tests.servers import status_of, wait_until
from tests.systemd.host import ETC, PROXY, PUBLIC, SPARE, WORKER, Host, wait_for

SPARE_URL = f"http://127.0.0.1:{SPARE}"


def process_of(host: Host, unit: str) -> int:
    """One of the processes that serve, under the unit's main one."""
    main = host.machine.show(unit, "MainPID")
    return int(host.machine.run("cat", f"/proc/{main}/task/{main}/children").split()[0])


def restarts(host: Host, unit: str) -> int:
    return int(host.machine.show(unit, "NRestarts"))


def gone(host: Host, pid: int) -> bool:
    return host.machine.call("kill", "-0", str(pid)).returncode != 0


@pytest.mark.parametrize("which", ["main", "serving"])
def test_jevproxy_is_killed(host: Host, which: str) -> None:
    """What was in flight is lost. Whoever comes next waits in its socket, or is another process's: none fails."""
    before = restarts(host, "jevproxy")
    main, serving = int(host.machine.show("jevproxy", "MainPID")), process_of(host, "jevproxy")
    host.machine.kill(main if which == "main" else serving)
    wait_until(lambda: gone(host, serving), what="the process being gone")
    if which == "main":
        wait_until(lambda: host.machine.show("jevproxy", "MainPID") != str(main), what="systemd noticing")
    assert [decide(PROXY)[0] for _ in range(10)] == [200] * 10
    assert restarts(host, "jevproxy") == before + (which == "main")


@pytest.mark.parametrize("which", ["main", "serving"])
def test_the_worker_is_killed(host: Host, which: str) -> None:
    """Until it has loaded again, clients of jevproxy are told 502 or 503, and nothing hangs."""
    unit = "jevworker@8000"
    before = restarts(host, unit)
    statuses: list[int] = []
    host.machine.kill(int(host.machine.show(unit, "MainPID")) if which == "main" else process_of(host, unit))

    def refused() -> bool:
        statuses.append(decide(PROXY)[0])
        return statuses[-1] != 200

    wait_until(refused, what="a refusal")
    wait_for(WORKER, 200)
    assert decide(PROXY)[0] == 200
    assert set(statuses) <= {200, 502, 503}
    wait_until(lambda: host.machine.state(unit) == "active", 60, "the unit being active")
    assert restarts(host, unit) == before + (which == "main")


def test_jevproxy_is_restarted_and_reloaded_under_load(host: Host) -> None:
    with load(PUBLIC, 3) as tally:
        tally.wait_for_more(10)
        for command in ("restart", "reload", "restart"):
            host.machine.run("systemctl", command, "jevproxy")
            tally.wait_for_more(20)
    assert not tally.failures, tally.failures


def result(host: Host, unit: str) -> tuple[str, str, str, int]:
    """How a unit failed: its state, systemd's word, the exit status and the number of further tries."""
    names = ("ActiveState", "Result", "ExecMainStatus")
    state, word, status = (host.machine.show(unit, name) for name in names)
    return state, word, status, restarts(host, unit)


@pytest.mark.parametrize("line", ["OMNI_JEV_TIMEOUT=soon", "GUNICORN_CMD_ARGS=--nonsense"])
def test_a_wrong_setting_stops_jevproxy_at_once(host: Host, line: str) -> None:
    """Nobody is left waiting in its socket, and a start by hand is taken when the setting is right again."""
    with host.changed(f"{ETC}/jevproxy.env", f"{line}\n"):
        assert host.machine.call("systemctl", "restart", "jevproxy").returncode != 0
        if line.startswith("OMNI_JEV"):
            assert result(host, "jevproxy") == ("failed", "exit-code", "78", 0)
            words = host.machine.call("systemctl", "status", "jevproxy").stdout
            assert 'Status: "OMNI_JEV_TIMEOUT takes a number' in words
        assert restarts(host, "jevproxy") == 0
        # A client's connection starts it again, until systemd gives up and closes the socket.
        assert status_of(PROXY) is None
        wait_until(lambda: host.machine.state("jevproxy.socket") == "failed", what="the socket being closed")
    host.machine.run("systemctl", "reset-failed", "jevproxy")
    host.machine.run("systemctl", "start", "jevproxy")
    assert decide(PROXY)[0] == 200


def test_a_wrong_setting_stops_a_worker_at_once(host: Host) -> None:
    with host.spare(LAYA_THREADS="many") as unit:
        assert host.machine.call("systemctl", "start", unit).returncode != 0
        assert result(host, unit) == ("failed", "exit-code", "78", 0)
        assert host.machine.show(unit, "StatusText").startswith("LAYA_THREADS")
        assert 'Status: "LAYA_THREADS' in host.machine.call("systemctl", "status", unit).stdout


def test_a_model_folder_is_missing(host: Host) -> None:
    """It may be on a disk that comes later: systemd tries again, a few times, and then says which folder."""
    with host.spare(
        unit="StartLimitBurst=2", service="RestartSec=100ms", LAYA_MODELS="mine=/srv/none"
    ) as unit:
        assert host.machine.call("systemctl", "start", unit).returncode != 0
        wait_until(lambda: host.machine.state(unit) == "failed", 120, "the unit giving up")
        assert result(host, unit)[2] == "3"
        assert "/srv/none" in host.machine.show(unit, "StatusText")


def test_a_worker_is_killed_while_it_loads(host: Host) -> None:
    """As the kernel does it when memory runs out. The unit fails, is tried a few times, and says what to look at."""
    lib = host.machine.path("/srv/killer/torch")
    lib.mkdir(parents=True, exist_ok=True)
    (lib / "__init__.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    service = "Environment=PYTHONPATH=/srv/killer\nRestartSec=100ms"
    with removed(lib.parent), host.spare(unit="StartLimitBurst=2", service=service) as unit:
        assert host.machine.call("systemctl", "start", unit).returncode != 0
        wait_until(lambda: host.machine.state(unit) == "failed", 120, "the unit giving up")
        assert result(host, unit)[2] == "137"
        assert "SIGKILL" in host.machine.show(unit, "StatusText")
        assert "memory" in host.machine.show(unit, "StatusText")


@contextmanager
def removed(folder: Path) -> Iterator[None]:
    """A folder of the test's own goes with the block."""
    try:
        yield
    finally:
        shutil.rmtree(folder)


@contextmanager
def full(host: Host, folder: str) -> Iterator[None]:
    """A file system of its own at a folder, without a free byte."""
    host.machine.run("mount", "-t", "tmpfs", "-o", "size=64k", "none", folder)
    try:
        assert host.machine.call("dd", "if=/dev/zero", f"of={folder}/fill", "bs=4k").returncode != 0
        yield
    finally:
        host.machine.run("umount", folder)


def test_the_state_directory_is_full(host: Host) -> None:
    """The embedded model needs none of it."""
    with full(host, "/var/lib/private/jevworker"), host.spare() as unit:
        host.machine.run("systemctl", "start", unit)
        assert decide(SPARE_URL)[0] == 200
        host.machine.run("systemctl", "stop", unit)


def test_the_disk_for_temporary_files_is_full(host: Host) -> None:
    """No process of either program ends."""
    host.machine.run("systemctl", "stop", "jevproxy.service")
    with full(host, "/tmp"):
        host.machine.run("systemctl", "start", "jevproxy")
        process = process_of(host, "jevproxy")
        assert [decide(PROXY)[0] for _ in range(5)] == [200] * 5
        assert ask(PROXY, "GET", "/metrics")[0] == 200
        assert process_of(host, "jevproxy") == process
        host.machine.run("systemctl", "stop", "jevproxy.service")
