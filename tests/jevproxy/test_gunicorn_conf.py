"""Running under gunicorn: where it listens, how it stops and reloads, several processes, preloading."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from jevproxy.ended import retire
from jevproxy.settings import METRICS_DIRECTORY
from tests.backends import scripted
from tests.callers import Caller, ask
from tests.jevproxy.conftest import Pair, assert_quiet
from tests.jevproxy.scripts import SCRIPTS
from tests.messages import get, post
from tests.servers import (
    ROOT,
    Program,
    blocked,
    clean_environment,
    free_port,
    listens,
    serving,
    start_jevproxy,
    status_of,
    struck_as_it_is_forked,
    wait_until,
)


def test_sigterm_under_load_loses_nothing_and_ends_with_0() -> None:
    """Fifty exchanges in flight, a client that polls on a kept connection, and an idle one."""
    with scripted(SCRIPTS) as backend, start_jevproxy(backend.url) as proxy:
        held = [
            Caller(proxy.url).send(post("hold", b"{}", "/v1/systemone", "x-marker: held")) for _ in range(50)
        ]
        streaming = Caller(proxy.url).send(post("breaks_off", b"{}", "/v1/systemone", "X-Gate: drain"))
        streaming.until(b"data: 1")
        idle = Caller(proxy.url)
        assert idle.ask(get()).status == 200
        wait_until(lambda: len(backend.of("x-marker: held")) == 50, what="all being in flight")
        told: list[str] = []

        def poll() -> None:
            with Caller(proxy.url) as caller:
                while not told or told[-1] != "close":
                    told.append(caller.ask(get()).value("connection") or "")
                assert caller.at_end()

        polling = threading.Thread(target=poll)
        polling.start()
        wait_until(lambda: len(told) > 2, what="the poll running")
        proxy.signal(signal.SIGTERM)
        polling.join(60)
        assert told[-1] == "close", "a polling client is told to close, not reset"
        assert idle.at_end(), "an idle connection is closed in an orderly way"
        backend.released.set()
        replies = [caller.reply() for caller in held]
        assert [(reply.status, reply.whole, reply.value("connection")) for reply in replies] == [
            (200, True, "close")
        ] * 50
        backend.gates.setdefault("drain", threading.Event()).set()
        streaming.rest()
        for caller in [*held, idle, streaming]:
            caller.close()
        assert proxy.wait() == 0
        assert_quiet(proxy)


def test_a_second_sigterm_ends_what_is_in_flight() -> None:
    with scripted(SCRIPTS) as backend, start_jevproxy(backend.url) as proxy, Caller(proxy.url) as caller:
        caller.send(post("hold", b"{}", "/v1/systemone", "x-marker: cut-off"))
        seen = backend.await_request("x-marker: cut-off")
        proxy.signal(signal.SIGTERM)
        # Two signals at once are one.
        wait_until(lambda: "Handling signal: term" in proxy.output(), what="the first one being taken up")
        proxy.signal(signal.SIGTERM)
        assert proxy.wait(30) == 0, "its bound of 65 s was not waited for"
        assert seen.ended.wait(30)


def test_a_stop_while_it_starts_does_not_wait_for_the_drain() -> None:
    argv = [sys.executable, "-m", "gunicorn", "-k", "gevent", "--workers", "4", "jevproxy.wsgi"]
    settings = {"OMNI_JEV_BIND": "127.0.0.1:0", "OMNI_JEV_DRAIN": "3600"}
    with Program(argv, settings, url="", ready=lambda: True) as proxy:
        wait_until(lambda: "Booting worker" in proxy.output(), what="the first worker being forked")
        proxy.signal(signal.SIGTERM)
        assert proxy.wait(60) == 0


def test_a_stop_that_comes_as_a_process_is_forked_is_not_lost(tmp_path: Path) -> None:
    """The process ends, gunicorn forks another, and no signal stays blocked."""
    url = f"http://127.0.0.1:{free_port()}"
    struck = struck_as_it_is_forked(tmp_path, "jevproxy")
    argv = [sys.executable, "-m", "gunicorn", "-k", "gevent", "-c", struck, "jevproxy.wsgi"]
    settings = {"OMNI_JEV_BIND": url.removeprefix("http://")}
    with Program(argv, settings, url=url, ready=lambda: listens(url)) as proxy:
        wait_until(lambda: "was sent SIGTERM" in proxy.output(), what="the end of the first process")
        wait_until(lambda: status_of(url, "/metrics") == 200, what="the second one serving")
        assert blocked(proxy.pid) == blocked(serving(proxy.pid)) == set()
        assert proxy.stop() == 0


def test_the_drain_is_bounded() -> None:
    drain = {"OMNI_JEV_DRAIN": "1"}
    with (
        scripted(SCRIPTS) as backend,
        start_jevproxy(backend.url, **drain) as proxy,
        Caller(proxy.url) as caller,
    ):
        caller.send(post("hold", b"{}", "/v1/systemone", "x-marker: bounded"))
        seen = backend.await_request("x-marker: bounded")
        proxy.signal(signal.SIGTERM)
        assert proxy.wait(50) == 0
        assert seen.ended.wait(30)


def test_hup_reloads_without_a_refused_connection_or_a_lost_exchange() -> None:
    with scripted(SCRIPTS) as backend, start_jevproxy(backend.url) as proxy:
        stop = threading.Event()
        statuses: list[int] = []
        failures: list[str] = []

        def ask() -> None:
            while not stop.is_set():
                try:
                    with Caller(proxy.url) as caller:
                        statuses.append(caller.ask(post()).status)
                except OSError as error:
                    failures.append(repr(error))

        with Caller(proxy.url) as held:
            held.send(post("hold", b"{}", "/v1/systemone", "x-marker: across"))
            backend.await_request("x-marker: across")
            threads = [threading.Thread(target=ask) for _ in range(3)]
            for thread in threads:
                thread.start()
            proxy.signal(signal.SIGHUP)
            wait_until(lambda: proxy.output().count("Booting worker") == 2, what="the new worker")
            before = len(statuses)
            wait_until(lambda: len(statuses) > before + 100, what="requests after the reload")
            backend.released.set()
            assert held.reply().status == 200
            stop.set()
            for thread in threads:
                thread.join()
        assert set(statuses) == {200} and failures == []
        assert_quiet(proxy)


def test_several_preloaded_processes_share_one_account() -> None:
    with scripted(SCRIPTS) as backend, start_jevproxy(backend.url, "--preload", "--workers", "3") as proxy:
        both = Pair(proxy, backend)
        held = [
            both.caller().send(post("hold", b"{}", "/v1/systemone", "x-marker: counted")) for _ in range(9)
        ]
        wait_until(lambda: len(backend.of("x-marker: counted")) == 9, what="all being in flight")
        answered = sum(both.ask(post()).status == 200 for _ in range(60))
        wait_until(
            lambda: both.metric('jevproxy_requests_total{route="POST /v1/systemone",status="200"}') == 60
        )
        assert answered == 60
        assert both.metric("jevproxy_in_flight") == 9
        backend.released.set()
        for caller in held:
            assert caller.reply().status == 200
            caller.close()
        both.becomes_idle()
        assert_quiet(proxy)


@pytest.mark.parametrize("form", ["unix", "v6"])
def test_it_listens_on_other_addresses(form: str, tmp_path: Path) -> None:
    with scripted(SCRIPTS) as backend:
        if form == "unix":
            family, address = socket.AF_UNIX, f"{tmp_path}/jevproxy.sock"
            bind = url = f"unix:{address}"
        else:
            with socket.socket(socket.AF_INET6) as probe:
                probe.bind(("::1", 0))
                family, address = socket.AF_INET6, probe.getsockname()
            bind = f"[::1]:{address[1]}"
            url = f"http://{bind}"

        def ready() -> bool:
            with socket.socket(family) as one:
                return one.connect_ex(address) == 0

        settings = {"OMNI_JEV_BIND": bind, "OMNI_JEV_BACKEND_URL": backend.url}
        with Program(
            [sys.executable, "-m", "jevproxy"], settings, url=url, ready=ready, cwd=tmp_path
        ) as proxy:
            with Caller(url) as caller:
                assert [caller.ask(post("echo", b"hello")).body for _ in range(3)] == [b"hello"] * 3
                caller.send(post("hold", b"{}", "/v1/systemone", f"x-marker: {form}"))
                seen = backend.await_request(f"x-marker: {form}")
            assert seen.ended.wait(20), "a client that leaves is noticed here too"
            assert_quiet(proxy)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OMNI_JEV_BACKEND_URL", "http://user:sesame@h"),
        ("OMNI_JEV_TIMEOUT", "soon"),
        ("OMNI_JEV_ROUTES", "nothing"),
    ],
)
@pytest.mark.parametrize(
    "command", [["jevproxy"], ["gunicorn", "-k", "gevent", "jevproxy.wsgi"]], ids=lambda c: c[0]
)
def test_a_wrong_setting_stops_the_start_in_one_line_that_names_it(
    variable: str, value: str, command: list[str]
) -> None:
    with pytest.raises(AssertionError) as caught:
        Program([sys.executable, "-m", *command], {variable: value}, url="", ready=lambda: False)
    lines = str(caught.value).splitlines()
    assert len(lines) == 2 and variable in lines[1], str(caught.value)
    assert value not in lines[1] and "sesame" not in str(caught.value)


def has_no_files(folder: Path, pid: int) -> bool:
    return not list(folder.glob(f"*_{pid}.db"))


def test_killed_processes_leave_their_counts_and_no_files(tmp_path: Path) -> None:
    """Every count stays while eight processes are killed, one after the other; the number of files does not grow."""
    with (
        scripted(SCRIPTS) as backend,
        start_jevproxy(backend.url, PROMETHEUS_MULTIPROC_DIR=str(tmp_path)) as proxy,
    ):
        pair = Pair(proxy, backend)
        asked = 0
        for turn in range(8):
            for _ in range(5):
                assert ask(proxy.url, post()).status == 200
            assert ask(proxy.url, post("garbage")).status == 502
            asked += 6
            named = 'route="POST /v1/systemone"'
            assert pair.metric(f"jevproxy_requests_total{{{named}") == asked
            assert pair.metric(f"jevproxy_exchange_seconds_count{{{named}") == asked
            assert pair.metric(f'jevproxy_backend_seconds_bucket{{le="+Inf",{named}') == asked
            assert pair.metric('jevproxy_failures_total{kind="protocol"}') == turn + 1
            assert pair.metric("jevproxy_in_flight") == 0
            pid = serving(proxy.pid)
            os.kill(pid, signal.SIGKILL)
            wait_until(partial(has_no_files, tmp_path, pid), what="its files going")
            wait_until(lambda: status_of(proxy.url, "/metrics") == 200, what="the next process")
            files = {file.name.partition("_")[0] for file in tmp_path.glob("*_ended.db")}
            assert files == {"counter", "histogram"}
            assert len(list(tmp_path.glob("*.db"))) <= 5, (
                "these two, and up to three of the process that serves"
            )


def test_counts_of_ended_processes_are_never_seen_twice_or_missing(tmp_path: Path) -> None:
    """A reader asks all the time while processes end."""
    clean = clean_environment({METRICS_DIRECTORY: str(tmp_path)})
    count = "from jevproxy.observe import *; import io, sys, time; o = Observer(io.StringIO(), sys.argv[1]);"
    count += "[o.finish(Record('GET', '/', 'i', 0.0, status=200)) for _ in range(100)]; print(os.getpid())"
    pids = [
        int(subprocess.check_output([sys.executable, "-c", count, tmp_path], env=clean, cwd=ROOT))
        for _ in range(12)
    ]
    read = "from jevproxy.observe import *\nimport sys\no = Observer(shared=sys.argv[1])\nprint('on', flush=True)\n"
    read += "while True:\n print([l for l in o.metrics().decode().splitlines() if 'requests_total{' in l], flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", read, tmp_path], env=clean, cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdout
        first = [reader.stdout.readline() for _ in range(3)]
        for pid in pids:
            retire(pid, str(tmp_path))
        later = [reader.stdout.readline() for _ in range(20)]
        reader.kill()
        lines = {*first[1:], *later}
    assert lines == {'[\'jevproxy_requests_total{route="other",status="200"} 1200.0\']\n'}
    assert [file.name for file in tmp_path.glob("counter_*.db")] == ["counter_ended.db"]


def test_stopping_leaves_no_files_of_its_own(tmp_path: Path) -> None:
    with scripted({}) as backend, start_jevproxy(backend.url, TMPDIR=str(tmp_path)) as proxy:
        assert os.listdir(tmp_path)
        proxy.signal(signal.SIGHUP)
        wait_until(lambda: proxy.output().count("Booting worker") == 2, what="the new worker")
        assert proxy.stop() == 0
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({}, []),
        ({"OMNI_JEV_TIMEOUT": "65"}, []),
        ({"OMNI_JEV_TIMEOUT": "120"}, ["OMNI_JEV_DRAIN (65) is below OMNI_JEV_TIMEOUT (120)"]),
        (
            {"OMNI_JEV_DRAIN": "30", "OMNI_JEV_STREAM_IDLE": "700"},
            [
                "OMNI_JEV_DRAIN (30) is below OMNI_JEV_TIMEOUT (60)",
                "OMNI_JEV_STREAM_TIMEOUT (600) is below OMNI_JEV_STREAM_IDLE (700)",
            ],
        ),
    ],
)
def test_settings_that_do_not_fit_together_are_told_at_start(
    settings: dict[str, str], warned: list[str]
) -> None:
    with start_jevproxy("http://127.0.0.1:1", **settings) as proxy:
        told = [line.partition("[WARNING] ")[2] for line in proxy.lines() if "[WARNING]" in line]
    assert [line.partition(":")[0] for line in told] == warned
