"""One machine for all tests here. Each test finds the programs installed and running, and is in its network."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.systemd import ground, machine
from tests.systemd.host import Host


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    why = ground.missing()
    if why and os.environ.get("CI") != "true":
        pytest.skip(f"no machine with systemd can be made here: {why}")
    assert not why, why
    with machine.machine() as made:
        yield Host(made, tmp_path_factory.mktemp("host"))


@pytest.fixture
def host(installed: Host) -> Iterator[Host]:
    with installed.machine.network.entered():
        yield installed
        installed.restore()
