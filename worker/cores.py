"""How many threads the CPU arithmetic gets, and why.

It knows CPU affinity, physical cores and the CPU quotas of cgroups, versions 1 and 2. It must not know torch or the
environment.

A container with a quota of 2 cores on a machine with 64 still shows all 64. Threads over the quota do not only gain
nothing: the kernel stops all of them together until the next period.
"""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True, slots=True)
class Threads:
    """How many, and the reason in words."""

    count: int
    reason: str


def choose(own: int, openmp: int, root: Path = Path("/")) -> Threads:
    """The threads to use. `own`, `openmp`: the values of LAYA_THREADS and OMP_NUM_THREADS, 0 if not set.

    `root`: where /proc and /sys are found.
    """
    if own:
        return Threads(own, "LAYA_THREADS")
    if openmp:
        return Threads(openmp, "OMP_NUM_THREADS")
    physical, quota = physical_cores(root), cpu_quota(root)
    if quota is not None and math.ceil(quota) < physical:
        return Threads(max(1, math.ceil(quota)), f"a CPU quota of {quota:g} cores")
    return Threads(physical, "physical cores")


def physical_cores(root: Path = Path("/")) -> int:
    """The physical cores that this process may run on.

    A second thread on a core adds nothing to dense arithmetic.
    """
    cores = set()
    for cpu in os.sched_getaffinity(0):
        siblings = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        cores.add(siblings.read_text().strip() if siblings.exists() else str(cpu))
    return len(cores)


def cpu_quota(root: Path = Path("/")) -> float | None:
    """The cores' worth of time that this process's cgroups allow it; None for no bound.

    The least of its own cgroup and of all above it, as each of them limits what is below.
    """
    return min((quota for group in _groups(root) if (quota := _quota(group)) is not None), default=None)


def _groups(root: Path) -> Iterator[Path]:
    """The folders of this process's CPU cgroups, up to the top of what is mounted here."""
    for mount, top, own in _hierarchies(root):
        # Without a cgroup namespace, a container may see only its own subtree, or a path that is not in it.
        path = own.relative_to(top) if own.is_relative_to(top) else PurePosixPath()
        group = mount / path if ".." not in path.parts else mount
        yield group
        while group != mount:
            group = group.parent
            yield group


def _hierarchies(root: Path) -> Iterator[tuple[Path, PurePosixPath, PurePosixPath]]:
    """Where each hierarchy is mounted that may limit CPU time, which cgroup is its top there, and this process's own.

    cgroups(7): a line of /proc/PID/cgroup is "ID:CONTROLLERS:PATH", with no controllers for version 2.
    proc_pid_mountinfo(5): the fields 4 and 5 are the top and the mount point; those after " - " the type, the source
    and the options, which for version 1 name the controllers.
    """
    own: dict[str, PurePosixPath] = {}
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        own |= {controller: PurePosixPath(path) for controller in controllers.split(",")}
    for line in _lines(root / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        top, mount = before.split()[3:5]
        kind, _, options = after.split(maxsplit=2)
        controller = {"cgroup2": "", "cgroup": "cpu"}.get(kind)
        if controller in own and (not controller or controller in options.split(",")):
            yield root / mount.lstrip("/"), PurePosixPath(top), own[controller]


def _quota(group: Path) -> float | None:
    """The quota of one cgroup: version 2 has both numbers in cpu.max, version 1 has a file for each."""
    numbers = " ".join(_lines(group / "cpu.max")).split() or [
        number for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us") for number in _lines(group / name)
    ]
    if len(numbers) != 2 or numbers[0] in ("max", "-1"):
        return None
    return int(numbers[0]) / int(numbers[1])


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:  # not on Linux, not mounted, or not ours to read
        return []
