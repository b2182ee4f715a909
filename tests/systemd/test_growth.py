"""A second worker, upgrades and roll backs under load, a reboot: days after the first one."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.client import DECISIONS, Client, ask
from tests.load import decide, load
from tests.servers import wait_until
from tests.systemd.host import ETC, PROXY, PUBLIC, START_SECONDS, Host, wait_for

WORKERS = {port: f"http://127.0.0.1:{port}" for port in (8000, 8001)}
INNER = "http://127.0.0.1:8100"
# Enough that something is always in flight, and little enough to leave the cores to the restarts.
CLIENTS, PAUSE = 3, 0.05
LONG = "The parcel arrived crushed and the buyer wants the money back before Friday. " * 40
QUESTION = {"q": {"type": "noul", "instructions": "Does the buyer ask for a refund?"}}


@pytest.fixture(scope="module")
def pair(installed: Host) -> Iterator[Host]:
    """Two workers behind the inner site, as docs/operations.md sets up several GPUs, here without one.

    systemd gives up at the third start of either in ten minutes, in place of the sixth.
    """
    limit = "[Unit]\nStartLimitBurst=2\n"
    with ExitStack() as stack:
        stack.enter_context(installed.machine.network.entered())
        for name, text in (
            ("/run/systemd/system/jevworker@.service.d/limit.conf", limit),
            (f"{ETC}/jevworker.env", "LAYA_LISTEN=warm\n"),
            (f"{ETC}/jevproxy.env", f"OMNI_JEV_BACKEND_URL={INNER}\nGUNICORN_CMD_ARGS=--workers=2\n"),
        ):
            stack.enter_context(installed.changed(name, text))
        installed.shell(
            "ln -s ../sites-available/jevworkers.conf /etc/nginx/sites-enabled/\n"
            "nginx -t && systemctl reload nginx\n"
            "systemctl enable --now jevworker@8001\n"
            "deploy/roll 8000\n"
            "systemctl restart jevproxy"
        )
        yield installed


@pytest.fixture
def host(pair: Host, host: Host) -> Host:
    return host


def release(host: Host) -> str:
    return host.machine.run("readlink", "/opt/jevproxy/current").rpartition("/")[2].strip()


def decisions(host: Host, port: int) -> int:
    """How many the worker has made since its start."""
    return host.machine.journal(f"jevworker@{port}").count('"path": "/v1/systemone"')


def test_the_second_worker_takes_part(host: Host) -> None:
    before = {port: decisions(host, port) for port in WORKERS}
    with load(PUBLIC, CLIENTS, PAUSE) as tally:
        wait_until(
            lambda: all(decisions(host, port) > before[port] for port in WORKERS), 60, "both taking part"
        )
    assert not tally.failures, tally.failures


def test_upgrade_and_roll_back_under_load(host: Host) -> None:
    """The newer release differs by a line, and is made of a copy of the first: pip has been through this already."""
    first = release(host)
    with load(PUBLIC, CLIENTS, PAUSE) as tally:
        tally.wait_for_more(10)
        host.shell("echo 'NEWER = True' >> jevproxy/__init__.py")
        named = host.shell(
            "python3 -c 'import sys; sys.path.insert(0, \"deploy\"); import places; print(places.release_name())'"
        )
        newer = named.strip()
        host.shell(
            # Links to the same files, but for those that sed writes anew.
            f"cd /opt/jevproxy/releases\ncp -al {first} {newer}\n"
            f"grep -rlI {first} {newer}/bin {newer}/pyvenv.cfg | xargs sed -i s/{first}/{newer}/\n"
            f"sed -i s/{first}/{newer}/ {newer}/made-from\n"
            f"sed -i '$a NEWER = True' {newer}/lib/python3.11/site-packages/jevproxy/__init__.py"
        )
        words = host.shell("deploy/install")
        assert f"deploy/install --use {first}" in words and release(host) == newer != first
        tally.wait_for_more(30)
        for port in WORKERS:
            assert f"releases/{newer}/" in executable(host, f"jevworker@{port}")
        assert f"releases/{newer}/" in executable(host, "jevproxy")

        host.shell(f"deploy/install --use {first}")
        assert release(host) == first and f"releases/{first}/" in executable(host, "jevproxy")
        tally.wait_for_more(30)
    assert not tally.failures, tally.failures
    assert " down;" not in host.machine.path("/etc/nginx/sites-available/jevworkers.conf").read_text()


def executable(host: Host, unit: str) -> str:
    """The command line of the unit's process."""
    return host.machine.run("cat", f"/proc/{host.machine.show(unit, 'MainPID')}/cmdline")


def test_a_reboot(host: Host) -> None:
    """Everything comes back by itself."""
    host.machine.reboot()
    wait_for(PROXY, 200)
    for port, url in WORKERS.items():
        wait_for(url, 200)
        wait_until(lambda port=port: host.machine.state(f"jevworker@{port}") == "active", START_SECONDS)
    assert decide(PUBLIC)[0] == 200


def test_a_stop_waits_for_a_long_batch(host: Host) -> None:
    """A worker is told to stop when the first of many answers has arrived: all of them do."""
    states = 20  # well within the 60 seconds that a stop has, on a busy machine as well
    body = json.dumps(
        {"states": [f"{i}: {LONG}" for i in range(states)], "questions": QUESTION, "stream": True}
    )
    client = Client(WORKERS[8001])
    client.connection.request("POST", "/v1/systemone/batch", body.encode())
    answer = client.connection.getresponse()
    first = answer.readline()
    stopping = threading.Thread(target=host.machine.run, args=("systemctl", "stop", "jevworker@8001"))
    stopping.start()
    wait_until(lambda: host.machine.state("jevworker@8001") == "deactivating", what="the stop")
    wait_until(
        lambda: host.machine.show("jevworker@8001", "StatusText").startswith("draining"), what="it being told"
    )
    lines = [json.loads(line) for line in [first, *answer]]
    client.close()
    stopping.join()
    assert sum("answers" in line for line in lines) == states
    assert host.machine.show("jevworker@8001", "Result") == "success"


def test_a_stop_of_jevproxy_waits_for_a_long_decision(host: Host) -> None:
    questions = {f"q{i}": QUESTION["q"] for i in range(40)}
    body = json.dumps({"state": LONG, "questions": questions}).encode()
    answers: list[tuple[int, http.client.HTTPMessage, bytes]] = []
    asking = threading.Thread(target=lambda: answers.append(ask(PROXY, "POST", DECISIONS, body)))
    asking.start()
    in_flight = b"jevproxy_in_flight 1.0"
    wait_until(lambda: in_flight in ask(PROXY, "GET", "/metrics")[2], what="the exchange")
    host.machine.run("systemctl", "stop", "jevproxy.service")
    asking.join()
    ((status, _, document),) = answers
    assert status == 200 and len(json.loads(document)["answers"]) == len(questions)
    assert host.machine.show("jevproxy.service", "Result") == "success"
