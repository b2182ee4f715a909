"""gunicorn's configuration for the worker: one process, many threads.

It knows gunicorn's names for the settings. It must not know models.
"""

import os
import signal
import sys
from typing import Any

from gunicorn import systemd

from worker.errors import StartFailed
from worker.server import Worker, closed
from worker.settings import environment
from worker.wsgi import warm

try:
    _settings = environment()
except StartFailed as failed:
    sys.exit(f"jevworker: {failed}")

_address = f"[{_settings.host}]" if ":" in _settings.host else _settings.host
bind = f"{_address}:{_settings.port}"
# One process owns the device; a second would hold the model a second time.
workers = 1
worker_class = Worker
# A thread for every slot, and some for health, metrics and quick refusals while all slots are taken.
threads = _settings.max_concurrent + 16
# Idle connections may wait for a thread's turn without holding one.
worker_connections = threads + 1000
# Longer than any client's pool keeps one idle (jevproxy: 4 s, nginx: 60 s), so that the client closes first.
keepalive = 75
# A stopping worker finishes what it has accepted.
graceful_timeout = 60
# Loading holds the interpreter for seconds at a time; a short timeout would kill a slow start.
timeout = 300
preload_app = False
# gunicorn would put a control socket into the home directory, where two workers would meet.
control_socket_disable = True
loglevel = _settings.log_level
proc_name = "jevworker"


# What ends a process.
_ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
# The address at which the serving process listens by itself, with LAYA_LISTEN=warm.
_own: list[Any] = []


def on_starting(server: Any) -> None:
    """GUNICORN_CMD_ARGS and gunicorn's own command line go before this file: what they may not change is refused."""
    if server.cfg.workers != 1 or server.cfg.worker_class is not Worker:
        sys.exit(
            "jevworker: the worker is one process of its own class: give gunicorn no --workers or --worker-class"
        )
    places = server.cfg.address
    plain = len(places) == 1 and isinstance(places[0], tuple) and not server.cfg.reuse_port
    if _settings.listen == "warm" and (not plain or systemd.listen_fds(unset_environment=False)):
        sys.exit("jevworker: LAYA_LISTEN=warm is for one address and port, that nobody else holds")


def when_ready(server: Any) -> None:
    """The parent listens: with LAYA_LISTEN=warm no longer. Once, before any fork."""
    os.register_at_fork(after_in_parent=_unblock)
    if _settings.listen == "warm":
        _own.append(closed(server.LISTENERS[0]))


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)


def pre_fork(server: Any, worker: Worker) -> None:
    """With LAYA_LISTEN=warm the port is the serving process's own: while none is warm, nobody listens there.

    And a signal waits until the new process has shed its parent's handlers: they note it in a queue nobody reads
    there. The parent goes on at once (`when_ready`), also where the fork fails.
    """
    if _own:
        worker.open_when(warm.is_set, _own[0])
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)


def post_fork(server: Any, worker: Worker) -> None:
    """Until the new process has handlers of its own, a signal ends it."""
    for number in _ENDS:
        signal.signal(number, signal.SIG_DFL)
    _unblock()
