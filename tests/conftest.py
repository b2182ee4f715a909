"""Fixtures for every test: one worker with the embedded model, and one jevproxy in front of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.servers import Program, start_jevproxy, start_worker

# The machine may be busy: a test of examples asserts no time.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


@pytest.fixture(scope="session")
def embedded_worker() -> Iterator[Program]:
    """The worker as `jevworker` starts it, with the embedded model."""
    with start_worker() as program:
        yield program


@pytest.fixture(scope="session")
def deployed(embedded_worker: Program) -> Iterator[Program]:
    """jevproxy in front of the worker: the address that a client is given."""
    with start_jevproxy(embedded_worker.url) as program:
        yield program
