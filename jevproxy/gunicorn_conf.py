"""gunicorn's own settings for jevproxy. Its defaults bind to the backend's port, log no JSON, and trust headers."""

import math
import os
import shutil
import signal
import tempfile
from typing import Any

from .notify import refuse, status
from .settings import METRICS_DIRECTORY, SettingsError, load, metrics_directory

try:
    _settings = load()
except SettingsError as error:
    refuse(error)

# What ends a process.
_ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
_given = metrics_directory()
_metrics_directory = _given or tempfile.mkdtemp(prefix="jevproxy-metrics-")

bind = _settings.bind
worker_class = "gevent"
proc_name = "jevproxy"
# Connections, not exchanges: those that wait in keep-alive, or are shed, need a place as well.
worker_connections = 8192
# Longer than nginx keeps its upstream connections (60 s), so that it is never we who close one as it is used.
keepalive = 75
graceful_timeout = max(1, math.ceil(_settings.drain))
errorlog = "-"
accesslog = None  # jevproxy writes its own
limit_request_line = 8190
# Header fields cross as they are, underscores included; no field is taken as a fact about the connection.
header_map = "dangerous"
forwarded_allow_ips = ""
forwarder_headers = ""
secure_scheme_headers: dict[str, str] = {}
control_socket_disable = True
# Set before the application is loaded, in the master too where that loads it.
raw_env = [f"{METRICS_DIRECTORY}={_metrics_directory}"]


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)


def pre_fork(server: Any, worker: Any) -> None:
    """A signal waits until the new worker has shed the master's handlers: they note it in a queue nobody reads there.

    The master goes on at once (`when_ready`), also where the fork fails.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)


def post_fork(server: Any, worker: Any) -> None:
    """Until a worker has handlers of its own, a signal ends it."""
    for number in _ENDS:
        signal.signal(number, signal.SIG_DFL)
    _unblock()


def pre_request(worker: Any, request: Any) -> None:
    """Keep every header field for the backend; show WSGI only those that it can name without confusion.

    SCRIPT_NAME as a header field would otherwise change the path, and A_B could pass for A-B. And read all options of
    Connection: gunicorn knows `close` alone, but not beside another one, such as in `TE, close`.
    """
    names = [name for name, _ in request.headers]
    if "CONNECTION" in names:
        options = (
            ",".join(value for name, value in request.headers if name == "CONNECTION").lower().split(",")
        )
        if "close" in [option.strip() for option in options]:
            request.force_close()
    if any("_" in name for name in names):
        request.jevproxy_fields = request.headers
        request.headers = [(name, value) for name, value in request.headers if "_" not in name]


def post_worker_init(worker: Any) -> None:
    # gunicorn loads this file in its master, where gevent has not patched anything.
    from .server import install

    install(worker, worker.wsgi.extensions["jevproxy"])


def when_ready(server: Any) -> None:
    """Make a second SIGTERM end at once what the first one is draining, as SIGQUIT does. Once, before any fork."""
    os.register_at_fork(after_in_parent=_unblock)
    seen: list[int] = []

    def terminate(number: int, frame: Any) -> None:
        server.signal(signal.SIGQUIT if seen else number, frame)
        status(f"draining: what is in flight has {_settings.drain:g} seconds")
        seen.append(number)

    signal.signal(signal.SIGTERM, terminate)
    status(f"ready, forwards to {_settings.backend_url}")


def child_exit(server: Any, worker: Any) -> None:
    # Not before raw_env is set: prometheus-client looks for its directory when it is imported.
    from prometheus_client.multiprocess import mark_process_dead

    mark_process_dead(worker.pid, path=_metrics_directory)  # type: ignore[no-untyped-call]


def on_exit(server: Any) -> None:
    if not _given:
        shutil.rmtree(_metrics_directory, ignore_errors=True)
