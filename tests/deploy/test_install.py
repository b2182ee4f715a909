"""deploy/install and deploy/uninstall below a folder of the test: install, again, upgrade, back, gone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jevproxy.settings import conflicts, from_environ
from tests.servers import ROOT, Program, clean_environment, free_port, status_of


def run(clone: Path, program: str, *arguments: object) -> str:
    """The program's output. Raises when it fails."""
    command = [sys.executable, str(clone / "deploy" / program), *map(str, arguments)]
    done = subprocess.run(
        command,
        cwd="/",
        env=clean_environment({}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def copy_of_the_clone(folder: Path) -> Path:
    """What git knows of this clone, as it is now."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.splitlines():
        if (ROOT / name).is_file() and not name.startswith("tests/"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def tree(folder: Path) -> dict[str, bytes]:
    """Everything but the releases, which are large."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "releases" not in path.parts and "current" not in path.parts
    }


def release(prefix: Path) -> str:
    return (prefix / "opt/jevproxy/current").readlink().name


def test_a_rehearsal_changes_nothing(tmp_path: Path) -> None:
    words = run(ROOT, "install", "--dry-run", "--prefix", tmp_path)
    assert "would make" in words and "jevworker@.service" in words
    assert not list(tmp_path.iterdir())


def test_it_asks_for_root_where_it_needs_it() -> None:
    """Everything below a prefix needs none; the real paths do."""
    assert "as root" in (ROOT / "deploy" / "install").read_text()
    assert "would" in run(ROOT, "install", "--dry-run")


def test_install_upgrade_and_roll_back(tmp_path: Path) -> None:
    clone, prefix = copy_of_the_clone(tmp_path / "clone"), tmp_path / "host"
    here = ["--part", "proxy", "--prefix", prefix]
    run(clone, "install", *here)
    first = release(prefix)
    assert sorted(path for path in tree(prefix) if path.startswith("etc/systemd")) == [
        "etc/systemd/system/jevproxy.service",
        "etc/systemd/system/jevproxy.socket",
    ]
    secrets = prefix / "etc/jevproxy/jevproxy.env"
    assert secrets.stat().st_mode & 0o777 == 0o600

    laid = tree(prefix)
    words = run(clone, "install", *here)
    assert "up to date" in words and "wrote" not in words
    assert tree(prefix) == laid

    # The operator sets something; a newer clone has a newer file and newer code.
    secrets.write_text("OMNI_JEV_TIMEOUT=7\n")
    with (
        (clone / "deploy/etc/jevproxy.env").open("a") as ours,
        (clone / "jevproxy/__init__.py").open("a") as code,
    ):
        ours.write("# newer\n")
        code.write("NEWER = True\n")
    words = run(clone, "install", *here)
    second = release(prefix)
    assert second != first and f"--use {first}" in words
    assert secrets.read_text() == "OMNI_JEV_TIMEOUT=7\n"
    assert "# newer" in secrets.with_name("jevproxy.env.new").read_text()

    # Both releases run; the older one after a roll back.
    seen = "import jevproxy; print(hasattr(jevproxy, 'NEWER'))"
    python = prefix / "opt/jevproxy/current/bin/python"
    assert subprocess.check_output([python, "-c", seen], cwd="/", text=True) == "True\n"
    run(clone, "install", "--use", first, *here)
    assert release(prefix) == first
    assert subprocess.check_output([python, "-c", seen], cwd="/", text=True) == "False\n"
    assert run(clone, "install", "--list", *here).count("in use") == 1
    with pytest.raises(AssertionError, match="finding release"):
        run(clone, "install", "--use", "9.9.9-none", *here)

    url = f"http://127.0.0.1:{free_port()}"
    settings = {"OMNI_JEV_BIND": url.removeprefix("http://")}
    command = [prefix / "opt/jevproxy/current/bin/jevproxy"]
    with Program(
        command, settings, url=url, ready=lambda: status_of(url) is not None, cwd=Path("/")
    ) as program:
        assert program.stop() == 0

    run(clone, "uninstall", "--prefix", prefix)
    assert set(tree(prefix)) == {"etc/jevproxy/jevproxy.env"}
    run(clone, "uninstall", "--purge", "--prefix", prefix)
    assert not tree(prefix) and not (prefix / "opt/jevproxy").exists()


def test_the_worker_runs_from_its_release(tmp_path: Path) -> None:
    """The package holds the embedded model, and all that the worker imports."""
    run(copy_of_the_clone(tmp_path / "clone"), "install", "--part", "worker", "--prefix", tmp_path / "host")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [tmp_path / "host/opt/jevproxy/current/bin/jevworker"]
    settings = {"LAYA_PORT": str(port), "PATH": os.environ["PATH"]}
    with Program(command, settings, url=url, ready=lambda: status_of(url) == 200, cwd=Path("/")) as program:
        assert program.stop() == 0


def in_file(file: Path, pattern: str) -> list[int]:
    return [int(found) for found in re.findall(pattern, file.read_text(), re.M)]


def test_one_time_is_written_wherever_it_must_follow(tmp_path: Path) -> None:
    """Every wait is longer than the one behind it, in files that an operator has changed too."""
    clone, prefix = copy_of_the_clone(tmp_path / "clone"), tmp_path / "host"
    sys.path.insert(0, str(ROOT / "deploy"))
    import places
    import timeouts

    laid = {file.place: file.text for file in places.files(prefix, "all")}
    same = {file.place: file.text for file in timeouts.timed(prefix, "all", 60)}
    for place in places.DROP_INS:
        del same[place]
    for place, text in same.items():
        if not place.endswith(".env"):
            assert text == laid[place], "the shipped files have the times of 60 seconds"

    here = ["--part", "proxy", "--prefix", prefix]
    run(clone, "install", *here)
    env, units = prefix / "etc/jevproxy/jevproxy.env", prefix / "etc/systemd/system"
    sites = [prefix / f"etc/nginx/sites-available/{name}.conf" for name in ("jevproxy", "jevworkers")]
    env.write_text("# mine\nOMNI_JEV_BACKEND_URL=http://127.0.0.1:7000\nOMNI_JEV_TIMEOUT=7\n")
    sites[0].write_text("# mine\n" + sites[0].read_text())
    words = run(clone, "install", "--timeout", 700, *here)
    assert "nginx -s reload" in words

    given = dict(line.split("=") for line in env.read_text().splitlines() if not line.startswith("#"))
    settings = from_environ(given)
    assert (settings.timeout, settings.stream_idle, settings.backend_url) == (
        700,
        700,
        "http://127.0.0.1:7000",
    )
    assert env.read_text().startswith("# mine\n") and env.stat().st_mode & 0o777 == 0o600
    assert conflicts(settings) == []
    for site in sites:
        waits = in_file(site, r"^ *proxy_(?:read|send)_timeout (\d+)s;")
        assert len(waits) == 2 and min(waits) > settings.timeout
    assert sites[0].read_text().startswith("# mine\n")
    (stop,) = in_file(units / "jevproxy.service.d/timeout.conf", r"^TimeoutStopSec=(\d+)$")
    assert stop > settings.drain > settings.timeout
    laid_again = tree(prefix)
    assert "wrote" not in run(clone, "install", *here), "a later installation leaves the times"
    assert {path: laid_again[path] for path in laid_again} == {
        path: text for path, text in tree(prefix).items() if path in laid_again
    }

    run(clone, "uninstall", "--purge", "--prefix", prefix)
    assert not tree(prefix) and not (units / "jevproxy.service.d").exists()


def test_the_worker_gets_as_long_to_stop(tmp_path: Path) -> None:
    sys.path.insert(0, str(ROOT / "deploy"))
    import timeouts

    (drop_in,) = timeouts.timed(tmp_path, "worker", 120)
    assert (
        "GUNICORN_CMD_ARGS=--graceful-timeout=120\n" in drop_in.text
        and "TimeoutStopSec=140\n" in drop_in.text
    )


@pytest.mark.parametrize("given", ["0", "-1", "1.5", "soon", "100000"])
def test_a_time_that_makes_no_sense_is_refused(given: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="takes whole seconds"):
        run(ROOT, "install", f"--timeout={given}", "--dry-run", "--prefix", tmp_path)


def test_a_site_without_the_directive_is_named(tmp_path: Path) -> None:
    site = tmp_path / "etc/nginx/sites-available/jevproxy.conf"
    site.parent.mkdir(parents=True)
    site.write_text("server { }\n")
    with pytest.raises(AssertionError, match="proxy_send_timeout 135s;"):
        run(ROOT, "install", "--timeout=120", "--dry-run", "--part", "proxy", "--prefix", tmp_path)
