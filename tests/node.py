"""Packages from the npm registry that tests use: the JS SDK, and the accessibility rules."""

from __future__ import annotations

import fcntl
import json
import subprocess
from pathlib import Path

from tests.servers import ROOT

SDK = ("@typesafe-ai/sdk", "0.6.0")
AXE = ("axe-core", "4.14.1")


def folder_with(package: str, version: str) -> Path:
    """A folder whose node_modules has the package in this version; kept between runs, made by one at a time."""
    folder = ROOT / ".cache" / "node"
    installed = folder / "node_modules" / package / "package.json"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not installed.is_file() or json.loads(installed.read_text())["version"] != version:
            if not (folder / "package.json").exists():
                (folder / "package.json").write_text('{"private": true}\n')
            command = ["npm", "install", "--no-audit", "--no-fund", "--save-exact", f"{package}@{version}"]
            subprocess.run(command, cwd=folder, check=True, timeout=600)
    return folder
