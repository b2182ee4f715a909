"""Installed as docs/operations.md says: it runs, it decides, it is confined, and systemctl tells what it does."""

from __future__ import annotations

import http.client
import json

import pytest

from tests.load import BODY, decide
from tests.systemd.host import ETC, PROXY, UNITS, WORKER, Host


def test_all_is_started_and_starts_at_boot(host: Host) -> None:
    for unit in UNITS:
        assert (host.machine.state(unit), host.machine.show(unit, "UnitFileState")) == ("active", "enabled")
    assert host.machine.run("systemctl", "is-system-running").strip() == "running"
    for step in ("restarting the worker on 8000", "the worker on 8000 is ready", "restarting jevproxy"):
        assert f"-- {step}\n" in host.words


def test_a_decision_through_nginx(host: Host) -> None:
    """From a client that checks the certificate."""
    connection = http.client.HTTPSConnection("localhost", timeout=60, context=host.trusting)
    connection.request("POST", "/v1/systemone", BODY)
    answer = connection.getresponse()
    document = json.loads(answer.read())
    connection.close()
    assert answer.status == 200 and document["answers"]["q"]["type"] == "noul"


def test_status_says_what_each_does(host: Host) -> None:
    assert host.machine.show("jevworker@8000", "StatusText") == "ready: serving demo"
    assert host.machine.show("jevproxy", "StatusText") == f"ready, forwards to {WORKER}"
    assert f'Status: "ready, forwards to {WORKER}"' in host.machine.run("systemctl", "status", "jevproxy")


@pytest.mark.parametrize(("unit", "most"), [("jevproxy.service", 20), ("jevworker@8000.service", 30)])
def test_exposure_is_low(host: Host, unit: str, most: int) -> None:
    """Tenths of systemd's exposure level, of the unit as it is loaded."""
    host.machine.run("systemd-analyze", "security", f"--threshold={most}", unit)


@pytest.mark.parametrize("unit", ["jevproxy.service", "jevworker@8000.service"])
def test_processes_are_confined(host: Host, unit: str) -> None:
    """No root, no capability, a filter for system calls, and none of the machine's files to write."""
    main = host.machine.show(unit, "MainPID")
    children = host.machine.run("cat", f"/proc/{main}/task/{main}/children").split()
    assert children
    for process in [main, *children]:
        lines = host.machine.run("cat", f"/proc/{process}/status").splitlines()
        status = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
        assert "0" not in status["Uid"]
        assert all(
            int(status[name][0], 16) == 0 for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
        )
        assert (status["NoNewPrivs"], status["Seccomp"]) == (["1"], ["2"])
    view = host.machine.run("cat", f"/proc/{main}/mountinfo").splitlines()
    options = {line.split()[4]: line.split()[5].split(",") for line in view}
    assert "ro" in options["/"]


def test_other_addresses_are_out_of_reach(host: Host) -> None:
    """nginx listens at another address of the machine too. A shell gets there; what jevproxy sends there is lost."""
    address = "198.51.100.7"
    host.machine.run("ip", "address", "replace", f"{address}/32", "dev", "lo")
    assert "200 OK" in host.machine.run("curl", "--silent", "--head", f"http://{address}/")
    with host.changed(
        f"{ETC}/jevproxy.env", f"OMNI_JEV_TIMEOUT=0.5\nOMNI_JEV_BACKEND_URL=http://{address}\n"
    ):
        host.machine.run("systemctl", "restart", "jevproxy")
        assert decide(PROXY)[0] == 504
    host.machine.run("systemctl", "restart", "jevproxy")
    assert decide(PROXY)[0] == 200
