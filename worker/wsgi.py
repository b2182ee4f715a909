"""The worker as a program: `jevworker`, and `application` for gunicorn.

It knows how the process starts, loads and ends. It must not know requests.
"""

import gc
import logging
import os
import sys
import threading
import time
from typing import Any, NoReturn

from gunicorn.app.wsgiapp import WSGIApplication

from worker import observe
from worker.app import Serving, create_app
from worker.errors import StartFailed
from worker.lane import Lane
from worker.settings import Settings, environment

log = logging.getLogger("worker")

# gunicorn's own status of a worker that cannot boot: its arbiter then stops too, and exits with it.
BOOT_FAILED = 3
# After a device error: long enough for the waiting requests to get their 503s.
LAST_WORDS_S = 3.0
# Set when this process's models are there.
warm = threading.Event()


def main() -> None:
    """Run the worker under gunicorn until it is told to stop."""
    try:
        environment()
    except StartFailed as failed:
        sys.exit(f"jevworker: {failed}")
    sys.argv = ["jevworker", "-c", "python:worker.gunicorn_conf", "worker.wsgi"]
    WSGIApplication("%(prog)s").run()


def build(settings: Settings) -> Any:
    """The application, which answers at once; its models load behind it, once, in a thread of their own."""
    observe.start_log(settings.log_level)
    serving = Serving()

    def fail(reason: str) -> None:
        serving.failed = True
        log.critical("the device failed, the worker ends: %s", reason)
        threading.Thread(target=_end, args=(LAST_WORDS_S,), daemon=True).start()

    def load() -> None:
        try:
            # torch takes seconds to import; until then the port says that it is loading, if it is open.
            from worker import loading

            lane = Lane(
                cache_rows=settings.row_cache,
                overtaking=settings.overtaking,
                patience=settings.patience,
                on_failure=fail,
            )
            catalog = loading.load(settings, lane)
            # What torch and transformers brought stays. Python's collector would walk through it now and then, holding
            # every thread: 200 to 330 ms on two cores of a shared machine, 2026-11-30.
            gc.collect()
            gc.freeze()
            serving.catalog = catalog
        except StartFailed as failed:
            print(f"jevworker: {failed}", file=sys.stderr)
            _end()
        except BaseException:
            log.exception("the models could not be loaded")
            _end()
        warm.set()
        log.info("ready")

    threading.Thread(target=load, name="load", daemon=True).start()
    return create_app(settings, serving)


def _end(after: float = 0.0) -> NoReturn:
    time.sleep(after)
    sys.stderr.flush()
    # Not sys.exit: this is not the main thread, and after a device error no clean-up is sure to return.
    os._exit(BOOT_FAILED)


def __getattr__(name: str) -> Any:
    # gunicorn asks for `application` in the worker process; importing this module builds and loads nothing.
    if name != "application":
        raise AttributeError(name)
    globals()[name] = build(environment())
    return globals()[name]
