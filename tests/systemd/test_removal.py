"""deploy/uninstall removes what deploy/install laid, and no more. Last, as nothing is installed after it."""

from __future__ import annotations

from tests.servers import listens
from tests.systemd.host import CLONE, ETC, PROXY, PUBLIC, UNITS, Host

# What an operator's own hands, systemd and nginx left: kept until it is purged.
KEPT = {
    f"{ETC}/jevproxy.env", f"{ETC}/jevworker.env", f"{ETC}/tls/fullchain.pem", f"{ETC}/tls/privkey.pem",
    "/etc/systemd/system/jevproxy.service.d/own.conf", "/var/lib/private/jevworker", "/var/lib/jevworker",
    "/var/log/nginx/jevproxy.log",
}  # fmt: skip
# systemd's times, what apt's own timers fetch, and nginx's logs of itself.
DEBIANS = (
    "/var/lib/systemd/",
    "/var/lib/apt/",
    "/var/cache/apt/",
    "/var/log/nginx/access.log",
    "/var/log/nginx/error.log",
)
KEPT |= {ETC, f"{ETC}/tls", "/etc/systemd/system/jevproxy.service.d"}


def left(host: Host) -> set[str]:
    """Paths that were not there before the installation, and that neither the operator nor Debian has written."""
    found = {f"/{name}" for name in host.machine.files() - host.before}
    return {path for path in found if not path.startswith((CLONE, *DEBIANS))}


def test_uninstall_and_purge(installed: Host) -> None:
    host = installed
    with host.machine.network.entered():
        host.restore()
        drop_in = host.machine.path("/etc/systemd/system/jevproxy.service.d/own.conf")
        drop_in.parent.mkdir()
        drop_in.write_text("[Service]\nNice=1\n")
        host.shell("deploy/uninstall")
        assert left(host) == KEPT
        for unit in UNITS:
            assert (host.machine.show(unit, "LoadState"), host.machine.state(unit)) == (
                "not-found",
                "inactive",
            )
        assert not listens(PROXY) and not listens(PUBLIC)
        assert host.machine.run("systemctl", "is-system-running").strip() == "running"
        host.shell("deploy/uninstall --purge")
        assert left(host) == set()
