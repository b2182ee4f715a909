"""Checkpoints and a running worker for the worker's tests."""

from __future__ import annotations

import http.client
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import write
from tests.servers import Program, start_worker

EMBEDDED = Path(__file__).resolve().parents[2] / "worker" / "default"


class Client:
    """One keep-alive connection to a worker."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=120)

    def send(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers (lower case) and body of one exchange."""
        self._connection.request(method, path, body, headers or {})
        response = self._connection.getresponse()
        found = response.read()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, found

    def post(self, document: Any, path: str = "/v1/systemone", **headers: str) -> tuple[int, Any]:
        """Status and JSON answer of a request; `headers` with _ for -."""
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        status, fields, answer = self.send("POST", path, body, {"Content-Type": "application/json"} | sent)
        assert fields["content-type"] == "application/json"
        return status, json.loads(answer)

    def get(self, path: str, **headers: str) -> tuple[int, Any]:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        status, _, answer = self.send("GET", path, None, sent)
        return status, json.loads(answer)

    def close(self) -> None:
        self._connection.close()


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
def client(jev: Program) -> Iterator[Client]:
    found = Client(jev.url)
    yield found
    found.close()


@pytest.fixture
def connect() -> Iterator[Callable[[Program], Client]]:
    """Clients of other workers, closed at the end."""
    made: list[Client] = []

    def connect_to(program: Program) -> Client:
        made.append(Client(program.url))
        return made[-1]

    yield connect_to
    for one in made:
        one.close()
