"""The worker as a program: `jevworker`, and `application` for gunicorn.

It knows how the process starts, loads and ends. It must not know requests or gunicorn.
"""

import argparse
import gc
import logging
import os
import sys
import threading
import time
from typing import Any, NoReturn

from worker import notify, observe, parent
from worker.app import create_app
from worker.errors import StartFailed
from worker.lane import Lane
from worker.serving import Serving
from worker.settings import Settings, environment

log = logging.getLogger("worker")

# After a device error: long enough for the waiting requests to get their 503s.
LAST_WORDS_S = 3.0


def main() -> None:
    """Run the worker until it is told to stop."""
    try:
        environment()
    except StartFailed as failed:
        notify.failed(failed)
        sys.exit(failed.exit_status)
    parent.run("worker.gunicorn_conf", "worker.wsgi")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Serving has no options: its settings are environment variables."""
    parser.epilog = "The settings are environment variables; docs/settings.md lists them."


def run(args: argparse.Namespace) -> int:
    """Serves until it is told to stop."""
    main()
    return 0


def build(settings: Settings) -> Any:
    """The application, which answers at once; its models load behind it, once, in a thread of their own."""
    observe.start_log(settings.log_level)
    serving = Serving()
    threading.Thread(target=_load, args=(settings, serving), name="load", daemon=True).start()
    return create_app(settings, serving, observe.Metrics())


def _load(settings: Settings, serving: Serving) -> None:
    names = ", ".join(source.name for source in settings.models)
    notify.status(f"loading {names}")

    def fail(reason: str) -> None:
        serving.fail()
        log.critical("the device failed, the worker ends: %s", reason)
        notify.status(f"the device failed: {reason}")
        threading.Thread(target=_end, args=(StartFailed.exit_status, LAST_WORDS_S), daemon=True).start()

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
        serving.begin(catalog)
    except StartFailed as failed:
        notify.failed(failed)
        _end(failed.exit_status)
    except BaseException:
        log.exception("the models could not be loaded")
        notify.status("the models could not be loaded: the log says why")
        _end(StartFailed.exit_status)
    log.info("ready")
    notify.ready(f"ready: serving {names}")


def _end(status: int, after: float = 0.0) -> NoReturn:
    time.sleep(after)
    sys.stderr.flush()
    # Not sys.exit: this is not the main thread, and after a device error no clean-up is sure to return.
    os._exit(status)


def __getattr__(name: str) -> Any:
    # gunicorn asks for `application` in the worker process; importing this module builds and loads nothing.
    if name != "application":
        raise AttributeError(name)
    globals()[name] = build(environment())
    return globals()[name]
