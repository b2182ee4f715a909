"""Checkpoints and a running worker for the worker's tests."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from tests.checkpoints import write
from tests.client import Client
from tests.servers import Program, start_worker

EMBEDDED = Path(__file__).resolve().parents[2] / "worker" / "default"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small ModernBERT checkpoint: 512 tokens, all of the format's features."""
    return write(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def copy(tiny: Path, tmp_path: Path) -> Path:
    """The small checkpoint, for a test to change."""
    return Path(shutil.copytree(tiny, tmp_path / "copy"))


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT checkpoint with short budgets."""
    return write(tmp_path_factory.mktemp("tiny_bert"), family="bert", seed=3, max_len=128, head_max_len=64)


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ModernBERT checkpoint of a published encoder's base size."""
    return write(tmp_path_factory.mktemp("base"), size="base", seed=1)


@pytest.fixture(scope="session")
def jev(tiny: Path) -> Iterator[Program]:
    """A worker in the contract's wire: the small checkpoint, then the embedded one."""
    with start_worker(
        LAYA_MODELS=f"tiny={tiny},demo", LAYA_MAX_CONCURRENT="8", LAYA_BODY_TIMEOUT="6"
    ) as program:
        yield program


@pytest.fixture
def torch_threads() -> Iterator[None]:
    """For a test that changes how many threads torch uses: afterwards it uses as many as before."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def client(jev: Program) -> Iterator[Client]:
    with Client(jev.url) as found:
        yield found


@pytest.fixture
def connect() -> Iterator[Callable[[Program], Client]]:
    """Clients of other workers, closed at the end."""
    with ExitStack() as made:
        yield lambda program: made.enter_context(Client(program.url))
