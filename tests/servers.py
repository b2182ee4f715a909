"""Real programs for the tests: jevproxy and the worker under gunicorn, and nginx.

Each runs on a port of its own, is waited for by asking it, is stopped by its own process id, and keeps its
output for the failure's message. Knows nothing of what the tests check.
"""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from tests.client import Client

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
START_SECONDS = 180.0  # the machine may be busy; a start that works takes a few seconds
STOP_SECONDS = 90.0


def free_port() -> int:
    """A port of loopback that no other test gets, in this process or beside it: it stays reserved until this one ends.

    A socket that is bound with SO_REUSEADDR and does not listen keeps the kernel from giving the port away, and lets
    a program that sets the same option, as servers do, bind it.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
        probe.detach()
    return port


def clean_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without what would change the programs, and `settings` on top."""
    dropped = (
        "OMNI_JEV_",
        "LAYA_",
        "GUNICORN_",
        "OMP_",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "NO_PROXY",
    )
    kept = {name: value for name, value in os.environ.items() if not name.upper().startswith(dropped)}
    return kept | {"PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"} | dict(settings)


def status_of(url: str, path: str = "/health") -> int | None:
    """The status of one GET, or None where there is no answer."""
    try:
        with Client(url, timeout=10) as client:
            return client.send("GET", path)[0]
    except (OSError, http.client.HTTPException):
        return None


def listens(url: str) -> bool:
    host, _, port = url.partition("//")[2].rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError:
        return False
    return True


def wait_until(true: Callable[[], bool], seconds: float = 30.0, what: str = "the condition") -> None:
    """Asks often until `true`, or fails. For states of other processes, which no event here announces."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {seconds} s")
        time.sleep(0.02)


class Program:
    """One program as a process group of its own. A context manager; `stop` may be called more than once."""

    def __init__(
        self,
        argv: Sequence[str | Path],
        settings: Mapping[str, str],
        *,
        url: str,
        ready: Callable[[], bool],
        cwd: Path = ROOT,
        pass_fds: tuple[int, ...] = (),
    ) -> None:
        self.url = url
        self._output = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [str(part) for part in argv],
            cwd=cwd,
            env=clean_environment(settings),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=pass_fds,
        )
        why = ""
        try:
            wait_until(lambda: self._ended() or ready(), START_SECONDS, f"{argv[0]} being ready")
        except AssertionError:
            why = "was not ready in time"
        if self._ended():
            why = f"ended with {self._process.returncode}"
        if why:
            self.kill()
            words = self.output()[-4000:]
            self._output.close()
            raise AssertionError(f"{argv[0]} {why}:\n{words}")

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def pid(self) -> int:
        return self._process.pid

    def _ended(self) -> bool:
        return self._process.poll() is not None

    def output(self) -> str:
        """What it has written so far, standard output and error together; "" once stopped and closed."""
        if self._output.closed:
            return ""
        size = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), size, 0).decode(errors="replace")

    def lines(self) -> list[str]:
        """The whole lines of `output`: a line that is being written can be seen by its beginning."""
        return self.output().split("\n")[:-1]

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self, seconds: float = STOP_SECONDS) -> int:
        return self._process.wait(seconds)

    def kill(self) -> None:
        """Ends the whole group at once, as a machine that fails would."""
        if not self._ended():
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def stop(self) -> int:
        """SIGTERM, then the exit status. A program that does not end is killed, and that fails the test."""
        if not self._ended():
            self._process.terminate()
        try:
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"did not stop on SIGTERM:\n{self.output()[-4000:]}") from None

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        finally:
            self._output.close()


def start_jevproxy(backend_url: str, *arguments: str, port: int | None = None, **settings: str) -> Program:
    """`gunicorn -k gevent jevproxy.wsgi` in the repository's root; `arguments` are gunicorn's."""
    url = f"http://127.0.0.1:{port or free_port()}"
    named = {"OMNI_JEV_BIND": url.removeprefix("http://"), "OMNI_JEV_BACKEND_URL": backend_url, **settings}
    argv = [sys.executable, "-m", "gunicorn", "-k", "gevent", *arguments, "jevproxy.wsgi"]
    return Program(argv, named, url=url, ready=lambda: status_of(url) is not None)


def start_worker(port: int | None = None, **settings: str) -> Program:
    """`jevworker` on the CPU, with the embedded model where no other is named; ready when it is warm.

    One thread for the arithmetic unless told otherwise: on a busy machine two mostly wait for each other.
    """
    url = f"http://127.0.0.1:{port or free_port()}"
    named = {"LAYA_PORT": url.rpartition(":")[2], "LAYA_DEVICE": "cpu", "LAYA_THREADS": "1", **settings}
    return Program([BIN / "jevworker"], named, url=url, ready=lambda: status_of(url) == 200)


def serving(pid: int) -> int:
    """The process that serves, under a gunicorn with one worker."""
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def blocked(pid: int) -> set[int]:
    """The signals that a process's main thread keeps waiting."""
    status = Path(f"/proc/{pid}/status").read_text()
    mask = int(status.partition("SigBlk:")[2].split()[0], 16)
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


def struck_as_it_is_forked(folder: Path, package: str) -> Path:
    """A package's gunicorn configuration; the first process gets SIGTERM before gunicorn's hooks run in it."""
    file = folder / "struck.py"
    file.write_text(
        f"import os, signal\nfrom {package}.gunicorn_conf import *\nforks = []\n"
        "os.register_at_fork(before=lambda: forks.append(1))\n"
        "strike = lambda: len(forks) == 1 and os.kill(os.getpid(), signal.SIGTERM)\n"
        "os.register_at_fork(after_in_child=strike)\n"
    )
    return file


def memory(pid: int, field: str) -> int:
    """Bytes that a process has in memory (VmRSS), or the most that it ever had (VmHWM)."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition(f"{field}:")[2].split()[0]) * 1024


def nginx_path() -> str:
    """Debian puts it outside the usual PATH. `.ci/run` installs it where it is missing."""
    for folder in [*os.environ.get("PATH", "").split(os.pathsep), "/usr/sbin", "/usr/local/sbin"]:
        if os.access(Path(folder) / "nginx", os.X_OK):
            return str(Path(folder) / "nginx")
    raise AssertionError("nginx is needed by these tests: apt-get install nginx-light")


def start_nginx(folder: Path, configuration: str, url: str) -> Program:
    """nginx in the foreground with a whole configuration of its own; its files lie in `folder`."""
    file = folder / "nginx.conf"
    file.write_text(configuration)
    argv = [nginx_path(), "-p", f"{folder}/", "-c", file, "-g", "daemon off; error_log stderr warn;"]
    return Program(argv, {}, url=url, ready=lambda: listens(url))
