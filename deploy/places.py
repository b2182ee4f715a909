"""Where an installation's files go, and how each is written.

Knows paths and file contents. Knows nothing of systemctl, nginx or pip.
"""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from environment import ROOT

SHARE = "opt/jevproxy"
ETC = "etc/jevproxy"
# The sources of a release. The rest of the clone (tests, deploy) is not installed.
PACKAGE = ("jevproxy", "worker", "setup.cfg", "pyproject.toml", "README.md", "LICENSE")

# What deploy/install --timeout writes beside the units: jevproxy's and the workers'.
DROP_INS = tuple(f"etc/systemd/system/{unit}.service.d/timeout.conf" for unit in ("jevproxy", "jevworker@"))


@dataclass(frozen=True)
class File:
    """A file of the installation: its place below the prefix, its text, its mode.

    `kept`: the operator may change it, so it is never overwritten; a newer text goes beside it as `.new`.
    """

    place: str
    text: str
    mode: int = 0o644
    kept: bool = False


def release_name() -> str:
    """The version and a hash of the sources and the Python version."""
    version = next(
        line.partition("=")[2].strip()
        for line in (ROOT / "setup.cfg").read_text().splitlines()
        if line.startswith("version")
    )
    total = hashlib.sha256(sys.version.encode())
    for path in package_files():
        total.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return f"{version}-{total.hexdigest()[:8]}"


def package_files() -> list[Path]:
    found: list[Path] = []
    for name in PACKAGE:
        path = ROOT / name
        found += [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sorted(file for file in found if "__pycache__" not in file.parts)


def files(prefix: Path, part: str) -> list[File]:
    """Every file outside the releases, for `part` = proxy, worker or all, its paths rewritten for the prefix."""

    def shipped(name: str) -> str:
        text = (ROOT / "deploy" / name).read_text()
        for place in (SHARE, ETC):
            text = text.replace(f"/{place}", str(prefix / place))
        return text

    units, sites = "etc/systemd/system", "etc/nginx/sites-available"
    listed = []
    if part in ("proxy", "all"):
        listed += [
            File(f"{units}/jevproxy.service", shipped("systemd/jevproxy.service")),
            File(f"{units}/jevproxy.socket", shipped("systemd/jevproxy.socket"), kept=True),
            File(f"{ETC}/jevproxy.env", shipped("etc/jevproxy.env"), 0o600, kept=True),
            File(f"{sites}/jevproxy.conf", shipped("nginx/jevproxy.conf"), kept=True),
            File("etc/nginx/conf.d/jev-common.conf", shipped("nginx/jev-common.conf")),
            File(f"{sites}/jevworkers.conf", shipped("nginx/jevworkers.conf"), kept=True),
        ]
    if part in ("worker", "all"):
        listed += [
            File(f"{units}/jevworker@.service", shipped("systemd/jevworker@.service")),
            File(f"{ETC}/jevworker.env", shipped("etc/jevworker.env"), 0o600, kept=True),
        ]
    return listed


def write(prefix: Path, file: File) -> str | None:
    """Writes one file. Returns what was done, or None if nothing had to be."""
    target = prefix / file.place
    if target.exists():
        if target.read_text() == file.text:
            return None
        if file.kept:
            beside = target.with_name(target.name + ".new")
            if beside.exists() and beside.read_text() == file.text:
                return None
            _put(beside, file)
            return f"kept {target}; the new version is beside it as {beside.name}"
    _put(target, file)
    return f"wrote {target}"


def _put(target: Path, file: File) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(target.name + ".part")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, file.mode), "w") as opened:
        opened.write(file.text)
    temporary.chmod(file.mode)
    temporary.replace(target)


def current(prefix: Path) -> Path:
    """The link to the release in use."""
    return prefix / SHARE / "current"


def release(prefix: Path, name: str) -> Path:
    return prefix / SHARE / "releases" / name


def switch(prefix: Path, name: str) -> None:
    """Points `current` at a release in one atomic step."""
    link = current(prefix)
    temporary = link.with_name("current.part")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(Path("releases") / name)
    temporary.replace(link)
