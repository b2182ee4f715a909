"""Fixtures for every test: one worker with the embedded model, and one jevproxy in front of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.servers import Program, start_jevproxy, start_worker

# The files that take longest start first, so that no process is left alone with one at the end.
LONGEST_FIRST = (
    "worker/test_parity.py",
    "worker/test_start.py",
    "worker/test_server.py",
    "worker/test_engine.py",
    "generation/test_limits.py",
    "worker/test_folder.py",
    "worker/test_openapi.py",
    "jevproxy/test_upstream.py",
    "jevproxy/test_exchange.py",
    "worker/test_http.py",
    "gpu/test_device.py",
    "jevproxy/test_gunicorn_conf.py",
)

# The machine may be busy: a test of examples asserts no time.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {name: rank for rank, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: ranks.get("/".join(item.path.parts[-2:]), len(ranks)))


@pytest.fixture(scope="session")
def embedded_worker() -> Iterator[Program]:
    """The worker as `jevworker` starts it, with the embedded model and as many threads as it chooses itself."""
    with start_worker(LAYA_THREADS="") as program:
        yield program


@pytest.fixture(scope="session")
def deployed(embedded_worker: Program) -> Iterator[Program]:
    """jevproxy in front of the worker: the address that a client is given."""
    with start_jevproxy(embedded_worker.url) as program:
        yield program
