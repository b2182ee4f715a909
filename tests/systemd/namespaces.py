"""A network and control groups that belong to one machine, so that two of them beside each other never meet.

Knows the kernel's interfaces for both. Knows nothing of systemd.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _current() -> int:
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


class Network:
    """A network with a loopback device and nothing else. It lasts until `close`."""

    def __init__(self) -> None:
        def make() -> None:
            _checked(_libc.unshare(CLONE_NEWNET))
            self._descriptor = _current()

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """The calling thread, and the threads and programs that it starts, are in this network."""
        own = _current()
        _checked(_libc.setns(self._descriptor, CLONE_NEWNET))
        try:
            yield
        finally:
            _checked(_libc.setns(own, CLONE_NEWNET))
            os.close(own)

    def close(self) -> None:
        os.close(self._descriptor)


def own_groups() -> list[Path]:
    """The control groups that this process is in: of version 2, of systemd, and those that share out the CPU."""
    mounted = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            names = [""] if kind == "cgroup2" else options.split(",")
            mounted |= dict.fromkeys(names, Path(before.split()[4]))
    found = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, group = line.split(":", 2)
        for name in {"", "name=systemd", "cpu", "cpuacct"} & set(names.split(",")) & set(mounted):
            found.append(mounted[name] / group.lstrip("/"))
    return found


@contextmanager
def groups() -> Iterator[list[Path]]:
    """New control groups below this process's own, which go with all that was made in them.

    Those that a killed process left are removed first.
    """
    for left in (folder for group in own_groups() for folder in group.glob("jev-*")):
        if not Path("/proc", left.name.removeprefix("jev-")).exists():
            _remove(left)
    made = [group / f"jev-{os.getpid()}" for group in own_groups()]
    for group in made:
        group.mkdir()
    try:
        yield made
    finally:
        for group in made:
            _remove(group)


def _remove(group: Path) -> None:
    for folder, _, _ in os.walk(group, topdown=False):
        os.rmdir(folder)
