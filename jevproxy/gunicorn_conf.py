"""gunicorn's own settings for jevproxy. Its defaults bind to the backend's port, log no JSON, and trust headers."""

import math
import secrets
import shutil
import tempfile
from functools import partial
from typing import Any

from .gunicorn_seam import end_at_second_signal, install, post_fork, pre_fork  # noqa: F401
from .notify import refuse, status
from .settings import METRICS_DIRECTORY, SettingsError, conflicts, load, metrics_directory

# gunicorn reads its settings off this file as it is loaded, so what they depend on is read here and not in a hook.
try:
    _settings = load()
except SettingsError as error:
    refuse(error)

_given = metrics_directory()
# A name alone, which nobody can guess: the first process that loads the application makes the directory.
_metrics_directory = _given or f"{tempfile.gettempdir()}/jevproxy-metrics-{secrets.token_hex(16)}"

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


def post_worker_init(worker: Any) -> None:
    # gunicorn's master loads this file, and prometheus-client looks for its directory when it is imported.
    from . import refusals
    from .wsgi import observer

    install(worker, partial(refusals.refuse, observer))


def when_ready(server: Any) -> None:
    end_at_second_signal(
        server, lambda: status(f"draining: what is in flight has {_settings.drain:g} seconds")
    )
    for conflict in conflicts(_settings):
        server.log.warning(conflict)
    status(f"ready, forwards to {_settings.backend_url}")


def child_exit(server: Any, worker: Any) -> None:
    from .ended import retire

    retire(worker.pid, _metrics_directory)


def on_exit(server: Any) -> None:
    if not _given:
        shutil.rmtree(_metrics_directory, ignore_errors=True)
