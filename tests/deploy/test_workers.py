"""One box grows to many: jevproxy -> the shipped inner site -> three workers. One dies; then all are rolled."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.backends import Exchange, scripted
from tests.deploy import sites
from tests.load import decide, load
from tests.servers import (
    ROOT,
    Program,
    clean_environment,
    free_port,
    start_jevproxy,
    start_nginx,
    start_worker,
    wait_until,
)

CLIENTS = 6


class Host:
    """Three workers behind nginx, as three hosts or three devices would be. `workers` maps a port to its program."""

    def __init__(self, folder: Path, running: ExitStack) -> None:
        self._running = running
        self.workers: dict[int, Program] = {}
        for _ in range(3):
            self.start(free_port())
        self.site_file = folder / "jevworkers.conf"
        port = free_port()
        self.site_file.write_text(sites.inner_site(port, list(self.workers)))
        text = sites.configuration(folder, f"include {self.site_file};")
        self.nginx = running.enter_context(start_nginx(folder, text, f"http://127.0.0.1:{port}"))
        self.proxy = running.enter_context(start_jevproxy(self.nginx.url, "--workers=2"))

    def start(self, port: int) -> None:
        self.workers[port] = self._running.enter_context(start_worker(port, LAYA_LISTEN="warm"))

    def served(self) -> dict[int, int]:
        """Decisions that each worker has logged."""
        return {
            port: worker.output().count('"path": "/v1/systemone"') for port, worker in self.workers.items()
        }


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    with ExitStack() as running:
        yield Host(tmp_path_factory.mktemp("host"), running)


def test_one_dies_under_load(host: Host) -> None:
    """What was in flight on it fails, as nobody may send a decision twice unasked; nothing else does.

    While it comes back it refuses, and nginx goes elsewhere; then it takes part again.
    """
    with load(host.proxy.url, CLIENTS) as tally:
        tally.wait_for_more(60)
        assert min(host.served().values()) > 0, "every worker takes part"
        port, victim = next(iter(host.workers.items()))
        victim.kill()
        tally.wait_for_more(60)
        host.start(port)
        wait_until(lambda: host.served()[port] > 0, what="a request to the one that came back")
        tally.wait_for_more(60)
    assert set(tally.statuses) <= {200, 502}
    assert len(tally.failures) <= CLIENTS, tally.failures


def test_all_are_rolled_under_load(host: Host) -> None:
    """deploy/roll as it is; only systemctl's part is played by a small server that the restart command asks."""

    def supervise(exchange: Exchange) -> None:
        port = int(exchange.target.removeprefix("/"))
        host.workers[port].stop()
        host.start(port)
        exchange.answer()

    before = {port: worker.pid for port, worker in host.workers.items()}
    with scripted(supervise) as supervisor, load(host.proxy.url, CLIENTS) as tally:
        tally.wait_for_more(20)
        command = [
            sys.executable,
            str(ROOT / "deploy" / "roll"),
            *map(str, host.workers),
            "--site",
            str(host.site_file),
        ]
        command += ["--reload", f"kill -HUP {host.nginx.pid}"]
        command += ["--restart", f"curl --fail --silent {supervisor.url}/{{port}}"]
        done = subprocess.run(
            command, env=clean_environment({"PATH": os.environ["PATH"]}), capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        tally.wait_for_more(60)
    assert not tally.failures, tally.failures
    assert all(worker.pid != before[port] for port, worker in host.workers.items())
    assert " down;" not in host.site_file.read_text()


def test_nginx_never_finds_half_a_site(tmp_path: Path) -> None:
    """A reload command returns before nginx has read: the file that it may be reading is never written into."""
    site, seen = tmp_path / "site.conf", tmp_path / "seen"
    seen.mkdir()
    linked = tmp_path / "enabled.conf"
    linked.symlink_to(site)
    with scripted({}) as one, scripted({}) as other:  # their /health says 200, and that is all that is asked
        before = sites.inner_site(free_port(), [one.port, other.port, free_port()])
        site.write_text(before)
        site.chmod(0o640)
        command = [sys.executable, str(ROOT / "deploy" / "roll"), str(one.port), str(other.port)]
        command += ["--site", str(linked), "--restart", "true", "--settle", "0"]
        # The reload keeps hold of the file that is there, and looks at it only when all is over.
        command += ["--reload", f"sh -c 'ln {site} {seen}/$(ls {seen} | wc -l)'"]
        subprocess.run(command, env=clean_environment({"PATH": os.environ["PATH"]}), check=True)
    down = [before.replace(f":{port} max_fails=1 fail_timeout=2s", f":{port} max_fails=1 fail_timeout=2s down")
            for port in (one.port, other.port)]  # fmt: skip
    assert [path.read_text() for path in sorted(seen.iterdir())] == [down[0], before, down[1], before]
    assert linked.is_symlink() and site.read_text() == before and site.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["enabled.conf", "seen", "site.conf"]


def test_with_none_left_the_answer_is_json(host: Host) -> None:
    for worker in host.workers.values():
        worker.kill()
    status, fields, body = decide(host.proxy.url)
    assert (status, fields["Content-Type"]) == (502, "application/json") and b'"bad_gateway"' in body
