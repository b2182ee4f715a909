"""A Debian machine of the test's own: systemd as process 1, in namespaces for files, processes and network.

It starts from the same clean root each time: what it writes lies in a layer above, which goes with it. All its
processes end with the process that made it, however that ends. Knows nothing of jevproxy or the worker.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.servers import wait_until
from tests.systemd import ground
from tests.systemd.namespaces import Network, groups

WHEELS = "/srv/wheels"
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "SYSTEMD_PAGER": "",
    "PIP_NO_INDEX": "1",
    "PIP_FIND_LINKS": WHEELS,
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}
COMMAND_SECONDS = 600
BOOT_SECONDS = 120.0

# In this order: into the machine's control groups; tied to this process's life; into namespaces whose first process is
# systemd-nspawn, so that all others end with it; the layers.
JOIN = 'for group in $CONTROL_GROUPS; do echo $$ > "$group/cgroup.procs"; done; exec "$@"'
TIED = [
    "setpriv",
    "--pdeathsig",
    "KILL",
    "unshare",
    "--mount",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
]
LAYER = 'mount -t overlay none "$1" -o "lowerdir=$2,upperdir=$3,workdir=$4"; shift 4; exec "$@"'


class Failed(AssertionError):
    """A command in the machine that did not work, with what it printed."""


class Machine:
    """Made by `machine()`. Paths are the machine's own; its network is entered with `network.entered()`."""

    def __init__(self, folder: Path, network: Network, control_groups: list[Path]) -> None:
        self.network = network
        self._folder = folder
        self._groups = control_groups
        for name in ("upper", "work", "root"):
            (folder / name).mkdir()
        self._console = folder / "console"
        self._process: subprocess.Popen[bytes] | None = None

    def boot(self) -> None:
        """Returns when systemd has started all that it starts by itself."""
        layers = [self._folder / "root", ground.debian(), self._folder / "upper", self._folder / "work"]
        # Every capability, and bpf: IPAddressDeny= of the units is a program that systemd gives to the kernel.
        nspawn = [
            "systemd-nspawn",
            "--quiet",
            "--boot",
            "--directory",
            self._folder / "root",
            "--console=pipe",
        ]
        nspawn += ["--register=no", "--keep-unit", "--resolv-conf=off", "--timezone=off", "--link-journal=no"]
        nspawn += ["--capability=all", "--system-call-filter=bpf", f"--bind-ro={ground.wheels()}:{WHEELS}"]
        command = ["sh", "-c", JOIN, "sh", *TIED, "sh", "-ec", LAYER, "sh", *layers, *nspawn]
        environment = {"PATH": os.environ["PATH"], "CONTROL_GROUPS": " ".join(map(str, self._groups))}
        with self.network.entered(), self._console.open("wb") as console:
            self._process = subprocess.Popen(
                [str(part) for part in command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        wait_until(self._is_up, BOOT_SECONDS, "the machine being up")

    def _is_up(self) -> bool:
        assert self._process
        if self._process.poll() is not None:
            raise Failed(f"the machine did not start:\n{self._console.read_text(errors='replace')[-4000:]}")
        init = self._find_init()
        if init is None:
            return False
        self._init = init
        state = self.call("systemctl", "is-system-running").stdout.strip()
        return state in ("running", "degraded")

    def _find_init(self) -> int | None:
        """systemd in the machine, by its number on this side."""
        assert self._process
        for nspawn in _children(self._process.pid):
            for child in _children(nspawn):
                try:
                    status = Path(f"/proc/{child}/status").read_text()
                except OSError:
                    continue
                if status.partition("NSpid:")[2].split("\n")[0].split()[-1] == "1":
                    return child
        return None

    def call(self, *command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs a command as root in the machine; what it writes is in `stdout`, errors included."""
        enter = [
            "nsenter",
            "--target",
            str(self._init),
            "--mount",
            "--uts",
            "--ipc",
            "--net",
            "--pid",
            "--cgroup",
        ]
        variables = [f"{name}={value}" for name, value in {**ENVIRONMENT, **environment}.items()]
        return subprocess.run(
            [*enter, "env", "-C", "/", "-i", *variables, *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=COMMAND_SECONDS,
        )

    def run(self, *command: str | Path, **environment: str) -> str:
        """What a command printed. Raises Failed when it does not end with 0."""
        done = self.call(*command, **environment)
        if done.returncode != 0:
            raise Failed(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}")
        return done.stdout

    def path(self, name: str) -> Path:
        """One of the machine's files, to be read and written from this side. No absolute link may be on the way."""
        return Path(f"/proc/{self._init}/root") / name.lstrip("/")

    def files(self) -> set[str]:
        """What is on the machine's disk and not in Debian's root folder as it is now; journal and /tmp aside."""
        upper, found = self._folder / "upper", set()
        for path in upper.rglob("*"):
            name = path.relative_to(upper).as_posix()
            aside = name.startswith(("var/log/journal", "tmp", "run", "var/tmp"))
            if not aside and not _same(path, ground.debian() / name):
                found.add(name)
        return found

    def show(self, unit: str, name: str) -> str:
        """A property of a unit, as `systemctl show` gives it."""
        return self.run("systemctl", "show", "--value", f"--property={name}", unit).strip()

    def state(self, unit: str) -> str:
        return self.show(unit, "ActiveState")

    def journal(self, unit: str) -> str:
        """What the unit's latest start has logged, systemd's own lines included."""
        identity = self.show(unit, "InvocationID")
        return self.run("journalctl", "--quiet", "--output=cat", f"_SYSTEMD_INVOCATION_ID={identity}", "+",
                        f"INVOCATION_ID={identity}")  # fmt: skip

    def kill(self, pid: int, number: int = signal.SIGKILL) -> None:
        """Signals a process by its number in the machine."""
        self.run("kill", f"-{int(number)}", str(pid))

    def reboot(self) -> None:
        """`systemctl reboot`; returns when the machine is up again. Its disk and its network stay."""
        assert self._process
        self.call("systemctl", "reboot")
        self._process.wait(BOOT_SECONDS)
        self.boot()

    def stop(self) -> None:
        """At once, as if the power was cut. May be called more than once."""
        if self._process and self._process.poll() is None:
            for nspawn in _children(self._process.pid):
                os.kill(nspawn, signal.SIGKILL)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def _same(path: Path, other: Path) -> bool:
    """Both folders, or files with the same bytes."""
    if path.is_symlink() or other.is_symlink() or not other.exists():
        return False
    if path.is_dir():
        return other.is_dir()
    return path.is_file() and other.is_file() and path.read_bytes() == other.read_bytes()


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


@contextmanager
def machine() -> Iterator[Machine]:
    """A machine that is up. It leaves nothing: no process, mount, control group or file."""
    with ExitStack() as stack:
        folder = stack.enter_context(ground.place())
        network = Network()
        stack.callback(network.close)
        made = Machine(folder, network, stack.enter_context(groups()))
        stack.callback(made.stop)
        made.boot()
        yield made
