"""Four SDKs of the hosted API against a whole deployment: client -> jevproxy -> worker."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.node import SDK, folder_with
from tests.servers import Program, clean_environment

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def node_folder() -> Path:
    """A folder with the official JS SDK in its node_modules."""
    return folder_with(*SDK)


def report_of(command: list[str], settings: dict[str, str]) -> dict[str, dict[str, object]]:
    done = subprocess.run(
        command, env=clean_environment(settings), cwd=HERE, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("client", ["typesafe_py.py", "jev_lite_client.py", "langchain_client.py"])
def test_python_client(client: str, deployed: Program) -> None:
    report = report_of([sys.executable, str(HERE / client)], {"BASE_URL": deployed.url})
    assert report["good"]["ok"] and report["error"]["status"] == 400


def test_js_client(deployed: Program, node_folder: Path) -> None:
    settings = {"BASE_URL": deployed.url, "NODE_DIR": str(node_folder)}
    report = report_of(["node", str(HERE / "typesafe_js.mjs")], settings)
    assert report["good"]["ok"] and report["error"]["status"] == 400
