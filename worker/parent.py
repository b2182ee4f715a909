"""gunicorn's parent process: the hooks it calls, the port it gives away, and what it does when a process ends.

It knows gunicorn's Arbiter. It must not know routes, models, or what a serving process does. With `server`, which has
the other process, it owns all use of gunicorn's insides. `ASSUMED` lists what it leans on, and
tests/worker/test_gunicorn_contract.py checks each line, by its name, against the installed gunicorn.

gunicorn starts a process again however it ended, at once and without end. Here one that dies before its models are
warm ends the parent, so that a supervisor counts it, and a later crash starts another after growing pauses.
"""

import os
import signal
import sys
import time
from functools import partial
from typing import Any

from gunicorn import systemd
from gunicorn.app.wsgiapp import WSGIApplication
from gunicorn.errors import HaltServer

from worker import notify
from worker.errors import SettingRefused, StartFailed
from worker.restarts import End, pause
from worker.server import Worker, bound

ASSUMED = {
    "listener": "Arbiter.LISTENERS[0].sock is the parent's socket, and may be replaced",
    "forks": "Arbiter.spawn_worker calls cfg.pre_fork, forks, and calls cfg.post_fork in the new process, which has "
    "inherited the parent's signal handlers",
    "starts": "Arbiter.manage_workers calls self.spawn_workers while a process is missing, once a second or more often",
    "ends": "Arbiter calls self.reap_workers, which calls cfg.child_exit for each process that ended",
    "halting": "HaltServer, raised in cfg.child_exit, ends the parent with its status",
    "boot status": "a process that exits with StartFailed.exit_status ends the parent with the same",
    "stopping": "Arbiter.halt and Arbiter.handle_quit call self.stop before they end the processes",
    "readiness": "Arbiter.start tells systemd READY=1 by gunicorn.systemd.sd_notify, called through the module",
}  # fmt: skip

# What ends a process.
ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)


def run(configuration: str, application: str) -> None:
    """Serve until told to stop: gunicorn with a configuration and an application, both by their dotted names."""
    sys.argv = ["jevworker", "-c", f"python:{configuration}", application]
    WSGIApplication("%(prog)s").run()


class Parent:
    """gunicorn's parent process: its hooks, and what it remembers of the processes that ended.

    With `own_port` a serving process opens the port by itself once it is ready, and the parent does not.
    """

    def __init__(self, own_port: bool) -> None:
        self._own_port = own_port
        self._address: Any = None
        self._stopping = False
        # By process id, until gunicorn has taken the status away.
        self._ends: dict[int, End] = {}
        self._times: list[float] = []
        self._next_start = 0.0

    def on_starting(self, server: Any) -> None:
        """Refuse what GUNICORN_CMD_ARGS and gunicorn's command line, which go before this file, may not change."""
        for wrong, name, words in self._unfit(server.cfg):
            if wrong:
                failed = SettingRefused(name, words)
                notify.failed(failed)
                sys.exit(failed.exit_status)
        # It would say READY=1 before a model is there.
        systemd.sd_notify = lambda *_, **__: None

    def _unfit(self, cfg: Any) -> tuple[tuple[bool, str, str], ...]:
        plain = len(cfg.address) == 1 and isinstance(cfg.address[0], tuple) and not cfg.reuse_port
        inherited = systemd.listen_fds(unset_environment=False) > 0
        other = cfg.is_ssl or cfg.protocol != "http" or "h2" in cfg.http_protocols
        return (
            (
                cfg.workers != 1 or cfg.worker_class is not Worker,
                "GUNICORN_CMD_ARGS",
                "the worker is one process of its own class: give gunicorn no --workers or --worker-class",
            ),
            (
                self._own_port and (inherited or not plain),
                "LAYA_LISTEN",
                "warm is for one address and port, that nobody else holds",
            ),
            (
                other or cfg.proxy_protocol not in ("off", "v1"),
                "GUNICORN_CMD_ARGS",
                "the worker reads plain HTTP/1.1: TLS, HTTP/2, uwsgi and PROXY v2 are for the proxy before it",
            ),
        )

    def when_ready(self, server: Any) -> None:
        """Once, before any fork: with `own_port` the parent listens no longer."""
        os.register_at_fork(after_in_parent=_unblock)
        self._stop, self._reap, self._spawn = server.stop, server.reap_workers, server.spawn_workers
        server.stop = self._stop_workers
        server.reap_workers = partial(self._reap_workers, server)
        server.spawn_workers = self._spawn_workers
        if self._own_port:
            self._address = closed(server.LISTENERS[0])

    def pre_fork(self, server: Any, worker: Worker) -> None:
        """A signal waits until the new process has shed the parent's handlers, whose queue nobody reads there.

        The parent takes signals again at once (`when_ready`), also where the fork fails.
        """
        if self._address:
            worker.listen_at(self._address)
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)

    def post_fork(self, server: Any, worker: Worker) -> None:
        """Until the new process has handlers of its own, a signal ends it."""
        for number in ENDS:
            signal.signal(number, signal.SIG_DFL)
        _unblock()

    def _stop_workers(self, graceful: bool = True) -> None:
        self._stopping = True
        self._stop(graceful)

    def _reap_workers(self, server: Any) -> None:
        """gunicorn's hook for a process that ended does not say how it ended; ask the kernel before gunicorn does."""
        for pid in list(server.WORKERS):
            try:
                ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                continue
            if ended:
                by_signal = ended.si_code in (os.CLD_KILLED, os.CLD_DUMPED)
                self._ends[pid] = End(signal=ended.si_status) if by_signal else End(status=ended.si_status)
        self._reap()

    def child_exit(self, server: Any, worker: Worker) -> None:
        """A serving process has ended, and the parent's loop will start another unless this says otherwise."""
        # One that ended between the question above and gunicorn's own is taken for one that was told to.
        end = self._ends.pop(worker.pid, End())
        if self._stopping:
            return
        if not (end.asked or worker.warm.is_set()):
            failed = StartFailed(f"the process that loads the models {end.words()}")
            if end.status != SettingRefused.exit_status:  # else it has said which setting
                notify.failed(failed)
            raise HaltServer(str(failed), end.exit_status)
        now = time.monotonic()
        self._times.append(now)
        wait = pause(self._times, now)
        self._next_start = now + wait
        told = f"the serving process {end.words()}; another one starts in {wait:g} s"
        (server.log.info if end.asked else server.log.error)("%s", told)
        notify.status(told)

    def _spawn_workers(self) -> None:
        if time.monotonic() >= self._next_start:
            self._spawn()


def closed(listener: Any) -> Any:
    """In gunicorn's parent: it listens no more, for a worker to do so. The address, which stays taken."""
    address = listener.getsockname()
    listener.sock.close()
    listener.sock = bound(address)
    listener.sock.set_inheritable(True)
    return address


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
