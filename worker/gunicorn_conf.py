"""gunicorn's configuration for the worker: one process, many threads.

It knows gunicorn's names for the settings, and joins the application to the process that serves it. It must not know
models. gunicorn takes the values of its settings from a module's globals, so the environment is read at import.
"""

import sys

from worker import notify
from worker.errors import StartFailed
from worker.parent import Parent
from worker.server import Worker
from worker.settings import environment

try:
    _settings = environment()
except StartFailed as failed:
    notify.failed(failed)
    sys.exit(failed.exit_status)

_address = f"[{_settings.host}]" if ":" in _settings.host else _settings.host
bind = f"{_address}:{_settings.port}"
# One process owns the device; a second would hold the model a second time.
workers = 1
worker_class = Worker
# A thread for every slot, and some for metrics and quick refusals while all slots are taken.
threads = _settings.max_concurrent + 16
# Idle connections, and those whose head is arriving, hold no thread.
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

_parent = Parent(own_port=_settings.listen == "warm")
on_starting = _parent.on_starting
when_ready = _parent.when_ready
pre_fork = _parent.pre_fork
post_fork = _parent.post_fork
child_exit = _parent.child_exit


def post_worker_init(worker: Worker) -> None:
    """In the serving process, before its first request."""
    parts = worker.wsgi.extensions
    serving = parts["serving"]
    serving.when_ready(worker.warm.set)
    # Whoever watches the process must not wait for a thread.
    worker.attach(parts["metrics"], serving.is_ready, reserved=b"GET /health ")
