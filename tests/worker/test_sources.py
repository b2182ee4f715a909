"""Checkpoints on the hub: what its client's cache holds, and what is asked of a hub that answers, or never does."""

from __future__ import annotations

import http.server
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import pytest

from tests.checkpoints import edit
from tests.servers import BIN, ROOT
from worker.folder import complete

COMMIT = "55cf4c4ebb4ebe31b2550e8bdf3bd21b99753851"
REPO = "someone/laya-tiny"


@pytest.fixture
def home(tiny: Path, tmp_path: Path) -> Path:
    """HF_HOME with one commit of a repository, whole, and with the same once more in a subfolder."""
    repo = tmp_path / "hub" / "models--someone--laya-tiny"
    shutil.copytree(tiny, repo / "snapshots" / COMMIT)
    shutil.copytree(tiny, repo / "snapshots" / COMMIT / "multilingual")
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(COMMIT)
    return tmp_path


def snapshot(home: Path) -> Path:
    return home / "hub" / "models--someone--laya-tiny" / "snapshots" / COMMIT


RESOLVE = """
import sys
from worker.errors import CheckpointRefused
from worker.sources import resolve
try:
    _, name, revision = resolve(sys.argv[1])
except CheckpointRefused as refused:
    sys.exit(str(refused))
print(name, revision)
"""
LOAD = """
import sys
from worker import checkpoint
loaded = checkpoint.load(sys.argv[1], "cpu", "fp32")
print(loaded.name, loaded.revision)
"""


def in_child(program: str, source: str, home: Path, **hub: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, as the hub's client reads its environment once, when it is imported."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    return subprocess.run(
        [sys.executable, "-c", program, source],
        env=kept | {"HF_HOME": str(home), "PYTHONPATH": str(Path.cwd())} | hub,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (REPO, REPO),
        (f"{REPO}@{COMMIT}", REPO),
        (f"{REPO}@{COMMIT}#multilingual", f"{REPO}/multilingual"),
    ],
)
def test_a_hub_id_with_revision_and_subfolder(home: Path, source: str, name: str) -> None:
    ran = in_child(RESOLVE, source, home, HF_HUB_OFFLINE="1")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == [name, COMMIT]


@pytest.mark.parametrize("source", ["someone/nothing", f"{REPO}@main#nowhere", "not an id"])
def test_a_hub_id_that_is_not_to_be_had(home: Path, source: str) -> None:
    ran = in_child(RESOLVE, source, home, HF_HUB_OFFLINE="1")
    assert ran.returncode == 1
    assert len(ran.stderr.strip().splitlines()) == 1, ran.stderr
    assert source.partition("@")[0].partition("#")[0] in ran.stderr


@pytest.fixture
def silent() -> Iterator[tuple[str, list[socket.socket]]]:
    """A hub that accepts connections and never answers: its address, and the connections so far."""
    taken: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def take() -> None:
            while True:
                try:
                    taken.append(listener.accept()[0])
                except OSError:  # closed below
                    return

        thread = threading.Thread(target=take)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", taken
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    for connection in taken:
        connection.close()


@pytest.mark.parametrize(
    ("program", "subfolder"),
    [(RESOLVE, ""), (RESOLVE, "#multilingual"), (LOAD, "")],
    ids=["root", "subfolder", "loaded"],
)
def test_a_commit_that_is_cached_whole_asks_the_hub_nothing(
    home: Path, silent: tuple[str, list[socket.socket]], program: str, subfolder: str
) -> None:
    url, connections = silent
    ran = in_child(program, f"{REPO}@{COMMIT}{subfolder}", home, HF_ENDPOINT=url)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split()[1] == COMMIT
    assert len(connections) == 0


class Hub(http.server.BaseHTTPRequestHandler):
    """The part of the hub's API that its client needs for a snapshot of one repository."""

    repo = REPO
    folder: Path
    asked: list[tuple[str, str]]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.asked.append((self.command, path))
        files = {file.relative_to(self.folder).as_posix(): file.read_bytes() for file in self.files()}
        if path == f"/api/models/{self.repo}/revision/{COMMIT}":
            siblings = [{"rfilename": name} for name in files]
            self.send(json.dumps({"id": self.repo, "sha": COMMIT, "siblings": siblings}).encode())
        elif path.startswith(f"/api/models/{self.repo}/tree/{COMMIT}"):
            tree = [
                {"type": "file", "path": name, "size": len(content), "oid": etag(content)}
                for name, content in files.items()
            ]
            self.send(json.dumps(tree).encode())
        elif (name := path.removeprefix(f"/{self.repo}/resolve/{COMMIT}/")) in files:
            self.send(files[name])
        else:
            self.send_error(404)

    def files(self) -> list[Path]:
        return [file for file in self.folder.rglob("*") if file.is_file()]

    def send(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Type", "application/json")
        self.send_header("ETag", f'"{etag(content)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def etag(content: bytes) -> str:
    return sha256(content).hexdigest()[:40]


@contextmanager
def serve(folder: Path, repo: str = REPO) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    asked: list[tuple[str, str]] = []
    handler = type("TinyHub", (Hub,), {"folder": folder, "repo": repo, "asked": asked})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


@pytest.fixture
def hub(tiny: Path) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """A hub that has the repository: its address, and what it was asked for."""
    with serve(tiny) as running:
        yield running


@pytest.mark.parametrize(
    "missing",
    [
        ("model.safetensors",),
        ("encoder/config.json", "tokenizer/tokenizer.json"),
        ("rl_agent_config.json",),
        ("tokenizer/tokenizer_config.json",),
    ],
    ids=lambda names: names[0],
)
def test_a_commit_that_is_cached_in_part_is_completed_from_the_hub(
    home: Path, hub: tuple[str, list[tuple[str, str]]], missing: tuple[str, ...]
) -> None:
    url, asked = hub
    for name in missing:
        (snapshot(home) / name).unlink()
    ran = in_child(RESOLVE, f"{REPO}@{COMMIT}", home, HF_ENDPOINT=url, HF_HUB_DISABLE_XET="1")
    assert ran.returncode == 0, ran.stderr
    fetched = {path for method, path in asked if method == "GET" and "/resolve/" in path}
    assert fetched == {f"/{REPO}/resolve/{COMMIT}/{name}" for name in missing}
    assert asked
    asked.clear()
    again = in_child(RESOLVE, f"{REPO}@{COMMIT}", home, HF_ENDPOINT=url, HF_HUB_DISABLE_XET="1")
    assert again.returncode == 0, again.stderr
    assert asked == []


@pytest.mark.parametrize("named", [True, False])
def test_the_map_of_special_tokens_is_missed_only_where_it_names_them(
    home: Path, silent: tuple[str, list[socket.socket]], hub: tuple[str, list[tuple[str, str]]], named: bool
) -> None:
    """A tokenizer of transformers 4 may name them there alone."""
    folder = snapshot(home) / "tokenizer"
    (folder / "special_tokens_map.json").unlink(missing_ok=True)
    if not named:
        edit(folder / "tokenizer_config.json", lambda config: config.pop("mask_token"))
    url = silent[0] if named else hub[0]
    ran = in_child(RESOLVE, f"{REPO}@{COMMIT}", home, HF_ENDPOINT=url, HF_HUB_DISABLE_XET="1")
    assert ran.returncode == 0, ran.stderr
    assert len(silent[1]) == 0
    assert bool(hub[1]) is not named


@pytest.mark.parametrize(("option", "subfolder"), [("exclude", ""), ("include", "multilingual")])
def test_the_documented_download_makes_a_folder_that_can_be_served(
    tiny: Path, tmp_path: Path, option: str, subfolder: str
) -> None:
    (command,) = re.findall(r"^ +(hf download .*)$", (ROOT / "docs" / "operations.md").read_text(), re.M)
    command = command.replace("--exclude", f"--{option}")
    assert f"--{option} 'multilingual/*'" in command
    repo = shutil.copytree(tiny, tmp_path / "repo")
    shutil.copytree(tiny, repo / "multilingual")
    argv = [sys.executable, BIN / "hf", *shlex.split(command)[1:]]
    with serve(repo, "convaiinnovations/laya") as (url, _):
        environment = {
            **os.environ,
            "HF_ENDPOINT": url,
            "HF_HOME": str(tmp_path / "home"),
            "HF_HUB_DISABLE_XET": "1",
        }
        environment.pop("HF_HUB_OFFLINE", None)
        subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, timeout=120, check=True)
    assert complete(tmp_path / "laya" / subfolder)
    assert (tmp_path / "laya" / "multilingual").exists() == bool(subfolder)
