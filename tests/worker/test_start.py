"""How the worker starts, lets in and ends: keys, refusals at start, loading, stopping."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from jevcompat.runner import Report, run

from tests.callers import Caller
from tests.client import Client
from tests.messages import request
from tests.servers import (
    BIN,
    ROOT,
    Program,
    blocked,
    clean_environment,
    free_port,
    listens,
    serving,
    start_jevproxy,
    start_worker,
    status_of,
    struck_as_it_is_forked,
    wait_until,
)
from tests.worker.test_http import BASE, NOUL, STATE

KEY = "sk-worker-test-key"


@pytest.fixture(scope="module")
def keyed() -> Iterator[Program]:
    """A worker that wants a key, refuses what its model cannot see, and counts out of range as wrong fields."""
    with start_worker(LAYA_API_KEY=KEY, LAYA_OVERFLOW="refuse", LAYA_LIMIT_STATUS="422") as program:
        yield program


@pytest.fixture(scope="module")
def specified() -> Iterator[Program]:
    with start_worker(LAYA_LIMIT_STATUS="422") as program:
        yield program


@pytest.fixture
def locked(keyed: Program, connect: Callable[[Program], Client]) -> Client:
    return connect(keyed)


class Told:
    """A service manager's socket, and the messages that came to it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.settimeout(120)

    def until(self, word: str) -> list[str]:
        """The messages since the last call, up to one that has `word` in it."""
        found = [self._socket.recv(4096).decode()]
        while word not in found[-1]:
            found.append(self._socket.recv(4096).decode())
        return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def told(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Told]:
    """Of each kind of address that systemd may give."""
    found = Told(str(tmp_path / "notify") if request.param == "path" else f"@jevworker-test-{os.getpid()}")
    yield found
    found.close()


def bearer(key: str) -> str:
    return f"Bearer {key}"


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (None, 403),
        ("", 403),
        ("Bearer", 403),
        ("Bearer ", 403),
        (KEY, 403),
        ("Bearer wrong", 401),
        ("Basic eDp5", 403),
        ("Bearer \xff\xfe", 401),
        (bearer(KEY[:-1]), 401),
        (bearer(KEY + "x"), 401),
        (bearer(KEY), 200),
        (bearer(KEY).replace("Bearer", "bearer"), 200),
    ],
)
def test_the_key(locked: Client, header: str | None, status: int) -> None:
    sent = {} if header is None else {"Authorization": header}
    for method, path, body in (
        ("POST", "/v1/systemone", json.dumps(BASE).encode()),
        ("GET", "/v1/models", None),
    ):
        found, headers, answer = locked.send(method, path, body, sent)
        assert found == status
        if status != 200:
            assert json.loads(answer)["detail"]["error_type"] == "authentication_error"
        assert headers.get("www-authenticate") == ("Bearer" if status == 401 else None)


@pytest.mark.parametrize("header", ["Bearer ", KEY])
def test_no_usable_key_is_told_through_jevproxy_too(keyed: Program, locked: Client, header: str) -> None:
    sent = {"Authorization": header, "X-Request-Id": "unusable"}
    direct = locked.send("GET", "/v1/models", None, sent)
    with start_jevproxy(keyed.url) as entrance, Client(entrance.url) as proxied:
        relayed = proxied.send("GET", "/v1/models", None, sent)
    assert (relayed[0], relayed[2]) == (direct[0], direct[2])
    assert direct[0] == 403 and "Authorization: Bearer KEY" in json.loads(direct[2])["detail"]["message"]


def test_health_tells_details_with_the_key_alone(locked: Client) -> None:
    assert locked.get("/health") == (200, {"status": "ok"})
    assert "models" in locked.get("/health", Authorization=bearer(KEY))[1]
    assert locked.send("GET", "/metrics")[0] == 403 and locked.send("GET", "/openapi.json")[0] == 200


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"state": STATE * 60}, "state"),
        ({"questions": {"q": {"type": "noul", "instructions": "late? " * 400}}}, "instructions"),
        ({"questions": {"q": {"type": "score", "criteria": ["word " * 60, "b"]}}}, "criteria"),
    ],
)
def test_overflow_can_be_refused(locked: Client, change: dict[str, Any], field: str) -> None:
    status, refused = locked.post(BASE | change, Authorization=bearer(KEY))
    assert status == 400 and refused["detail"]["error_type"] == "max_tokens_exceeded"
    assert "'q'" in refused["detail"]["message"] and field in refused["detail"]["message"]
    assert STATE[:20] not in json.dumps(refused)


def test_a_state_that_overflows_fails_alone_in_a_batch(locked: Client) -> None:
    batch = {"states": [STATE, STATE * 60, "x"], "questions": {"q": NOUL}}
    status, found = locked.post(batch, "/v1/systemone/batch", Authorization=bearer(KEY))
    assert status == 200 and [sorted(result)[0] for result in found["results"]] == [
        "answers",
        "error",
        "answers",
    ]
    assert found["results"][1]["error"]["status"] == 400


def test_the_log_has_a_line_for_each_request_and_no_secret(keyed: Program, locked: Client) -> None:
    sent = {"Authorization": bearer(KEY), "X-Request-Id": "traced-1"}
    assert locked.send("POST", "/v1/systemone", json.dumps(BASE).encode(), sent)[0] == 200
    assert locked.send("POST", "/v1/systemone", b"{", {**sent, "X-Request-Id": "two words"})[0] == 422

    def logged() -> list[str]:
        return [line for line in keyed.lines() if line.startswith("{")]

    wait_until(lambda: '"status": 422' in (logged() or [""])[-1], what="the last request's line")
    lines = [json.loads(line) for line in logged()]
    (traced,) = [line for line in lines if line["id"] == "traced-1"]
    assert (traced["method"], traced["path"], traced["status"]) == ("POST", "/v1/systemone", 200)
    assert traced["bytes"] > 0 and traced["ms"] > 0 and set(lines[-1]) == set(traced)
    assert lines[-1]["status"] == 422 and len(lines[-1]["id"]) == 32
    assert KEY not in keyed.output() and STATE[:12] not in keyed.output()


def conformance(entrance: Program, key: str | None = None) -> Report:
    report = run(entrance.url, key=key, model="demo")
    assert report.conformant and report.count("MUST", "pass") == 32
    return report


@pytest.mark.parametrize("proxied", [False, True])
@pytest.mark.parametrize("key", [None, KEY])
def test_conformance(specified: Program, keyed: Program, proxied: bool, key: str | None) -> None:
    """Every requirement of the suite, with its own status for counts out of range.

    The keyed worker refuses overflow, and the suite has 255 options: they are read in parts, and fit.
    """
    worker = keyed if key else specified
    with start_jevproxy(worker.url) if proxied else nullcontext(worker) as entrance:
        report = conformance(entrance, key)
    # Two of the requirements are about keys.
    assert (report.count("SHOULD", "pass"), report.count("SHOULD", "fail")) == (15 if key else 13, 0)


def test_the_hosted_status_of_counts_is_all_that_the_suite_would_have_otherwise(jev: Program) -> None:
    """The hosted service answers counts out of range with 400 and plain words, the suite's text wants 422."""
    report = conformance(jev)
    failed = [finding for result in report.results if result.status == "fail" for finding in result.findings]
    assert {finding.req for finding in failed} == {"errors.validation-shape"}
    counts = ("choice-no-options", "choice-256", "score-11")
    assert all(finding.case.endswith(counts) for finding in failed), failed


def test_counts_out_of_range_can_be_wrong_fields(locked: Client) -> None:
    question = {"type": "score", "instructions": "How angry?", "criteria": ["level"] * 11}
    status, refused = locked.post(BASE | {"questions": {"anger": question}}, Authorization=bearer(KEY))
    (error,) = refused["detail"]
    assert status == 422 and error["loc"] == ["body", "questions", "anger", "criteria"]
    assert "11 were sent, at most 10" in error["msg"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"LAYA_PORT": "http"}, "LAYA_PORT: expected a port"),
        ({"LAYA_MODELS": "gone=/no/such/place"}, "gone: /no/such/place"),
        ({"LAYA_DEVICE": "cuda:9"}, "LAYA_DEVICE: cuda:9 is not there"),
    ],
)
def test_a_start_that_cannot_work_ends_with_one_line(settings: dict[str, str], words: str) -> None:
    for command in (
        [BIN / "jevworker"],
        [sys.executable, "-m", "gunicorn", "-c", "python:worker.gunicorn_conf"],
    ):
        argv = [*command, *(["worker.wsgi"] if len(command) > 1 else [])]
        environment = clean_environment({"LAYA_PORT": str(free_port()), "LAYA_DEVICE": "cpu", **settings})
        ended = subprocess.run(
            argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        # The unit does not try a wrong setting again (EX_CONFIG).
        assert ended.returncode == (3 if "LAYA_MODELS" in settings else 78)
        (line,) = [line for line in ended.stderr.splitlines() if line.startswith("jevworker: ")]
        assert words in line and "Traceback" not in ended.stderr


def test_a_checkpoint_that_cannot_work_names_file_and_key(tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(tiny, folder)
    config = json.loads((folder / "rl_agent_config.json").read_text())
    (folder / "rl_agent_config.json").write_text(json.dumps(config | {"option_layout": "parallel"}))
    environment = clean_environment({"LAYA_PORT": str(free_port()), "LAYA_MODELS": f"demo,b={folder}"})
    ended = subprocess.run(
        [BIN / "jevworker"], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("jevworker: ")]
    assert (
        ended.returncode == 3 and "b: " in line and "rl_agent_config.json" in line and "option_layout" in line
    )


def test_loading_is_told_and_happens_once() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    argv = [BIN / "jevworker"]
    settings = {"LAYA_PORT": url.rpartition(":")[2], "LAYA_DEVICE": "cpu"}
    with Program(argv, settings, url=url, ready=lambda: status_of(url) is not None) as program:
        early, statuses = Client(url), []
        status, found = early.get("/health")
        assert (status, found) == (503, {"status": "loading"})
        status, headers, _ = early.send("POST", "/v1/systemone", json.dumps(BASE).encode())
        assert status == 503 and headers["retry-after"] == "1"
        early.close()

        def first() -> None:
            client = Client(url)
            while (status := client.post(BASE)[0]) == 503:
                time.sleep(0.1)  # loading needs the cores too
            statuses.append(status)
            client.close()

        threads = [threading.Thread(target=first) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert statuses == [200] * 8
        assert program.output().count("loaded demo@") == 1
        assert "LAYA_MODELS=english" in program.output() and "not for" in program.output()


def test_what_was_accepted_is_finished_on_sigterm(tiny: Path) -> None:
    with start_worker(LAYA_MODELS=f"tiny={tiny}") as program:
        states = 600
        batch = json.dumps(
            {"states": [STATE * 40] * states, "questions": {"q": NOUL}, "stream": True}
        ).encode()
        with Caller(program.url, timeout=120) as caller:
            caller.send(request("POST /v1/systemone/batch", batch))
            caller.until(b'{"index":0')
            program.signal(signal.SIGTERM)
            rest = caller.rest()
        assert b'"summary":{"states":%d,"decided":%d' % (states, states) in rest
        assert program.wait() == 0


def test_a_stop_that_comes_as_the_process_is_forked_is_not_lost(tmp_path: Path) -> None:
    """The process ends, gunicorn forks another, and no signal stays blocked."""
    url = f"http://127.0.0.1:{free_port()}"
    argv = [sys.executable, "-m", "gunicorn", "-c", struck_as_it_is_forked(tmp_path, "worker"), "worker.wsgi"]
    settings = {"LAYA_PORT": url.rpartition(":")[2], "LAYA_DEVICE": "cpu"}
    with Program(argv, settings, url=url, ready=lambda: listens(url)) as program:
        wait_until(lambda: "was sent SIGTERM" in program.output(), what="the end of the first process")
        wait_until(lambda: status_of(url) == 200, 120, "the second one serving")
        assert blocked(program.pid) == blocked(serving(program.pid)) == set()
        assert program.stop() == 0


# The worker, but for an engine whose device is lost at the first pass: what a CUDA error does, without one.
LOSES_ITS_DEVICE = """
import dataclasses, sys
from worker import loading, wsgi
from worker.errors import DeviceFailed

class Lost:
    def __init__(self, engine):
        self._engine = engine

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def start(self, rows):
        raise DeviceFailed

load = loading.load

def load_lost(settings, lane):
    catalog = load(settings, lane)
    (entry,) = catalog.entries
    model = dataclasses.replace(entry.model, engine=Lost(entry.model.engine))
    return dataclasses.replace(catalog, entries=(dataclasses.replace(entry, model=model),))

loading.load = load_lost
wsgi.main()
"""


def test_a_lost_device_ends_the_worker() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    settings = {"LAYA_PORT": url.rpartition(":")[2], "LAYA_DEVICE": "cpu"}
    argv = [sys.executable, "-c", LOSES_ITS_DEVICE]
    with Program(argv, settings, url=url, ready=lambda: status_of(url) == 200) as program:
        client = Client(url)
        status, refused = client.post(BASE)
        assert status == 503 and refused["detail"]["error_type"] == "device_failed"
        assert client.get("/health") == (503, {"status": "device_failed"})
        client.close()
        assert program.wait() == 3
        assert "the device failed" in program.output()


@pytest.mark.parametrize("listen", ["at once", "warm", "by reuse-port"])
@pytest.mark.parametrize(
    ("death", "status", "words"),
    [
        ("os.kill(os.getpid(), 9)", 137, "was killed by SIGKILL: most likely memory ran out"),
        ("os.kill(os.getpid(), 11)", 139, "was killed by SIGSEGV: a native library crashed"),
        ("os._exit(7)", 7, "ended with status 7: look at the lines above"),
    ],
)
def test_a_death_before_the_models_are_warm_ends_the_worker(
    tmp_path: Path, listen: str, death: str, status: int, words: str
) -> None:
    """A stand-in for torch dies as it is imported, as it would for want of memory. Nothing starts again."""
    (tmp_path / "torch").mkdir()
    # A signal to the process may reach another thread first: this one must not go on meanwhile.
    text = f"import os, threading\n{death}\nthreading.Event().wait(60)\n"
    (tmp_path / "torch" / "__init__.py").write_text(text)
    settings = {
        "LAYA_PORT": str(free_port()),
        "LAYA_LISTEN": "warm" if listen == "warm" else "at-once",
        # gunicorn's parent then has no listener.
        "GUNICORN_CMD_ARGS": "--reuse-port" if listen == "by reuse-port" else "",
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }
    ended = subprocess.run(
        [BIN / "jevworker"],
        env=clean_environment(settings),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == status
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("jevworker: ")]
    assert line.startswith(f"jevworker: the process that loads the models {words}")
    assert ended.stderr.count("Booting worker") == 1 and "Traceback" not in ended.stderr


def test_systemd_is_told_what_the_worker_does(told: Told) -> None:
    """STATUS= at each step, and READY=1 when the models are warm: not when gunicorn's parent listens."""
    with start_worker(NOTIFY_SOCKET=told.address) as program:
        assert told.until("ready") == ["STATUS=loading demo", "READY=1\nSTATUS=ready: serving demo"]
        os.kill(serving(program.pid), signal.SIGKILL)
        crash, *after = told.until("ready")
        assert "was killed by SIGKILL" in crash and "another one starts in 0 s" in crash
        assert after == ["STATUS=loading demo", "READY=1\nSTATUS=ready: serving demo"]
        program.stop()
        assert told.until("draining")[0].startswith("STATUS=draining")


def test_systemd_is_told_which_setting_is_wrong(told: Told) -> None:
    settings = {"LAYA_PORT": "http", "NOTIFY_SOCKET": told.address}
    ended = subprocess.run([BIN / "jevworker"], env=clean_environment(settings), timeout=120, check=False)
    assert ended.returncode == 78
    assert told.until("LAYA_PORT") == ["STATUS=LAYA_PORT: expected a port, 0 to 65535 (0 takes a free one)"]


COLLECTED = """
import gc, threading
from worker import wsgi
from worker.settings import read

warm = threading.Event()
wsgi.build(read({"LAYA_DEVICE": "cpu"})).extensions["serving"].when_ready(warm.set)
assert warm.wait(120)
print(gc.get_freeze_count(), len(gc.get_objects()))
"""


def test_the_collector_has_little_to_walk_through_once_the_models_are_there() -> None:
    """A walk through all that torch and transformers bring stops every thread, /health too, for a third of a second."""
    done = subprocess.run(
        [sys.executable, "-c", COLLECTED], cwd=ROOT, capture_output=True, text=True, check=True, timeout=180
    )
    frozen, watched = map(int, done.stdout.split())
    assert watched < 20_000 < frozen
