"""Four SDKs of the hosted API against a whole deployment: client -> jevproxy -> worker."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import ROOT, Program, clean_environment

HERE = Path(__file__).parent
NODE_PACKAGE, NODE_VERSION = "@typesafe-ai/sdk", "0.6.0"


@pytest.fixture(scope="session")
def node_folder() -> Path:
    """A folder with the official JS SDK in its node_modules; kept between runs, and made by one of them at a time."""
    folder = ROOT / ".cache" / "node"
    installed = folder / "node_modules" / NODE_PACKAGE / "package.json"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not installed.is_file() or json.loads(installed.read_text())["version"] != NODE_VERSION:
            (folder / "package.json").write_text('{"private": true}\n')
            command = ["npm", "install", "--no-audit", "--no-fund", f"{NODE_PACKAGE}@{NODE_VERSION}"]
            subprocess.run(command, cwd=folder, check=True, timeout=600)
    return folder


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
