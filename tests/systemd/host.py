"""A machine on which `deploy/install` was run as docs/operations.md says, and what its operator does there."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.deploy import sites
from tests.deploy.test_install import copy_of_the_clone
from tests.servers import ROOT, status_of, wait_until
from tests.systemd.machine import Machine

CLONE = "/srv/clone"
ETC = "/etc/jevproxy"
UNITS = ("jevproxy.socket", "jevproxy.service", "jevworker@8000.service")
PUBLIC = "https://127.0.0.1:443"
PROXY = "http://127.0.0.1:8080"
WORKER = "http://127.0.0.1:8000"
# Of the worker instances that single tests start beside the installed one.
SPARE = 8009
START_SECONDS = 180.0


def told(beginning: str) -> str:
    """The commands that docs/operations.md gives after the paragraph that begins so."""
    _, _, after = (ROOT / "docs" / "operations.md").read_text().partition(beginning)
    block = re.search(r"\n((?:    .*\n)+)", after)
    assert block, f"docs/operations.md gives no commands after: {beginning}"
    return block[1]


class Host:
    """`machine` with the programs installed; `words` is what the installation said."""

    def __init__(self, machine: Machine, scratch: Path) -> None:
        self.machine = machine
        copy_of_the_clone(machine.path(CLONE))
        self.before = machine.files()
        self.words = self.shell(told("On Debian"))
        certificate = sites.certificate(scratch)
        self.trusting = ssl.create_default_context(cafile=str(certificate))
        tls = machine.path(f"{ETC}/tls")
        tls.mkdir()
        (tls / "fullchain.pem").write_bytes(certificate.read_bytes())
        (tls / "privkey.pem").write_bytes(certificate.with_name("key.pem").read_bytes())
        self.words += self.shell(told("To go public"))

    def shell(self, script: str) -> str:
        """What an operator types in the clone. Raises Failed as soon as one command fails."""
        return self.machine.run("sh", "-ec", f"cd {CLONE}\n{script}", EDITOR="true")

    @contextmanager
    def changed(self, name: str, text: str) -> Iterator[None]:
        """A file as the test wants it; then as it was. systemd reads its units again each time."""
        path = self.machine.path(name)
        before = path.read_text() if path.exists() else None
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        self.machine.run("systemctl", "daemon-reload")
        try:
            yield
        finally:
            path = self.machine.path(name)  # another one after a reboot
            if before is None:
                path.unlink(missing_ok=True)
            else:
                path.write_text(before)
            self.machine.run("systemctl", "daemon-reload")

    @contextmanager
    def spare(self, *, unit: str = "", service: str = "", **settings: str) -> Iterator[str]:
        """A worker of its own, not started yet: with settings, and lines for its unit. Afterwards it is gone."""
        name = f"jevworker@{SPARE}.service"
        lines = "".join(f"{variable}={value}\n" for variable, value in settings.items())
        drop_in = f"/run/systemd/system/{name}.d/test.conf"
        with (
            self.changed(f"{ETC}/jevworker-{SPARE}.env", lines),
            self.changed(drop_in, f"[Unit]\n{unit}\n[Service]\n{service}\n"),
        ):
            try:
                yield name
            finally:
                self.machine.run("systemctl", "stop", name)
                self.machine.call("systemctl", "reset-failed", name)

    def restore(self) -> None:
        """Whatever a test did: what was installed runs."""
        self.machine.call("systemctl", "reset-failed")
        self.machine.run("systemctl", "start", *UNITS)


def wait_for(url: str, status: int) -> list[int | None]:
    """Asks for health until it has the status; returns the different answers until then, in order."""
    seen: list[int | None] = []

    def there() -> bool:
        found = status_of(url)
        if seen[-1:] != [found]:
            seen.append(found)
        return found == status

    wait_until(there, START_SECONDS, f"{status} at {url}")
    return seen
