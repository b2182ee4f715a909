"""How many threads the CPU arithmetic gets: in stand-in /proc and /sys folders, and in a real cgroup with a quota."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.servers import ROOT
from worker import loading
from worker.cores import Threads, choose, cpu_quota, physical_cores
from worker.lane import Lane
from worker.settings import read

V2 = "0::{path}\n", "32 24 0:28 {top} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "12:cpuset:/elsewhere\n4:cpu,cpuacct:{path}\n1:name=systemd:{path}\n0::/unlimited\n",
    "31 23 0:27 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755\n"
    "33 31 0:30 {top} /sys/fs/cgroup/cpu,cpuacct rw shared:12 - cgroup cgroup rw,cpu,cpuacct\n"
    "34 31 0:31 {top} /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
)


def machine(root: Path, version: tuple[str, str], path: str, top: str = "/", cores: int = 64) -> Path:
    """Stand-in /proc and /sys, of a process in the cgroup `path` where the cgroup `top` is mounted."""
    proc = root / "proc" / "self"
    proc.mkdir(parents=True)
    (proc / "cgroup").write_text(version[0].format(path=path))
    (proc / "mountinfo").write_text(
        "23 1 0:21 / / rw,relatime - ext4 /dev/sda1 rw\n" + version[1].format(top=top)
    )
    for number, cpu in enumerate(sorted(os.sched_getaffinity(0))):
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{number % cores},{number % cores + cores}\n")
    return root


def limit(root: Path, version: tuple[str, str], group: str, quota: int | None, period: int = 100_000) -> None:
    """The quota of a cgroup under the mount point, in microseconds of each period."""
    if version is V2:
        folder = root / "sys/fs/cgroup" / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cpu.max").write_text(f"{'max' if quota is None else quota} {period}\n")
    else:
        folder = root / "sys/fs/cgroup/cpu,cpuacct" / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cpu.cfs_quota_us").write_text(f"{-1 if quota is None else quota}\n")
        (folder / "cpu.cfs_period_us").write_text(f"{period}\n")


@pytest.fixture(params=[V1, V2], ids=["version 1", "version 2"])
def version(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param  # type: ignore[no-any-return]


def test_what_is_set_counts_before_everything_else(tmp_path: Path) -> None:
    limit(machine(tmp_path, V2, "/"), V2, "", 50_000)
    assert choose(3, 5, tmp_path) == Threads(3, "LAYA_THREADS")
    assert choose(0, 5, tmp_path) == Threads(5, "OMP_NUM_THREADS")
    assert choose(0, 0, tmp_path) == Threads(1, "a CPU quota of 0.5 cores")


def test_no_quota_gives_the_physical_cores(tmp_path: Path, version: tuple[str, str]) -> None:
    limit(machine(tmp_path, version, "/a"), version, "a", None)
    assert cpu_quota(tmp_path) is None
    assert choose(0, 0, tmp_path) == Threads(len(os.sched_getaffinity(0)), "physical cores")


def test_threads_of_one_core_are_one_core(tmp_path: Path) -> None:
    assert choose(0, 0, machine(tmp_path, V2, "/", cores=1)) == Threads(1, "physical cores")


@pytest.mark.parametrize(
    ("quota", "cores"), [(50_000, 0.5), (100_000, 1), (150_000, 1.5), (1_000, 0.01), (6_400_000, 64)]
)
def test_a_quota_is_in_cores(tmp_path: Path, version: tuple[str, str], quota: int, cores: float) -> None:
    limit(machine(tmp_path, version, "/a"), version, "a", quota)
    assert cpu_quota(tmp_path) == cores


def test_a_quota_counts_its_period(tmp_path: Path, version: tuple[str, str]) -> None:
    limit(machine(tmp_path, version, "/a"), version, "a", 50_000, 25_000)
    assert cpu_quota(tmp_path) == 2


def test_the_least_of_nested_groups_counts(tmp_path: Path, version: tuple[str, str]) -> None:
    machine(tmp_path, version, "/system.slice/pod/laya")
    limit(tmp_path, version, "system.slice/pod/laya", 400_000)
    limit(tmp_path, version, "system.slice/pod", 150_000)
    limit(tmp_path, version, "system.slice", None)
    assert cpu_quota(tmp_path) == 1.5


@pytest.mark.parametrize(
    ("path", "top"),
    [("/docker/abc/inner", "/docker/abc"), ("/", "/"), ("/docker/abc", "/"), ("/../x", "/..")],
)
def test_a_container_that_sees_only_its_own_groups(
    tmp_path: Path, version: tuple[str, str], path: str, top: str
) -> None:
    limit(machine(tmp_path, version, path, top), version, "", 200_000)
    assert cpu_quota(tmp_path) == 2


@pytest.mark.parametrize("nothing", ["no /proc", "no cgroups"])
def test_without_cgroups_there_is_no_quota(tmp_path: Path, nothing: str) -> None:
    if nothing == "no cgroups":
        machine(tmp_path, ("", ""), "/")
    assert cpu_quota(tmp_path) is None


@pytest.fixture
def half_a_core() -> Iterator[Path]:
    """A real cgroup, below this process's own, with a quota of half a core."""
    for kind, controller in (("cgroup2", ""), ("cgroup", "cpu")):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            mount, (kind_here, _, options) = line.split()[4], line.partition(" - ")[2].split(maxsplit=2)
            if kind_here != kind or (controller and controller not in options.split(",")):
                continue
            group = Path(mount, f"laya-test-{os.getpid()}")
            try:
                group.mkdir()
            except OSError:
                continue
            try:
                if (group / "cpu.max").exists():
                    (group / "cpu.max").write_text("50000 100000")
                elif (group / "cpu.cfs_quota_us").exists():
                    (group / "cpu.cfs_period_us").write_text("100000")
                    (group / "cpu.cfs_quota_us").write_text("50000")
                else:
                    continue
                yield group
                return
            finally:
                group.rmdir()
    pytest.skip("hardware: no cgroup with a CPU quota can be made here")


def test_in_a_real_cgroup_with_a_quota(half_a_core: Path) -> None:
    program = "from worker.cores import choose\nprint(choose(0, 0))"
    ran = subprocess.run(
        ["sh", "-c", 'echo $$ > "$1/cgroup.procs" && exec "$2" -c "$3"', "sh", half_a_core, sys.executable, program],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert ran.stdout.strip() == str(Threads(1, "a CPU quota of 0.5 cores"))


@pytest.mark.usefixtures("torch_threads")
@pytest.mark.parametrize(
    ("settings", "count", "reason"),
    [
        ({"OMP_NUM_THREADS": "1"}, 1, "OMP_NUM_THREADS"),
        ({"OMP_NUM_THREADS": "1", "LAYA_THREADS": "2"}, 2, "LAYA_THREADS"),
    ],
)
def test_a_start_uses_them_and_says_why(
    settings: dict[str, str], count: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "worker"):
        loading.load(read({"LAYA_DEVICE": "cpu", **settings}), Lane())
    assert torch.get_num_threads() == count
    assert f"threads on the CPU: {count} ({reason})" in caplog.messages


def test_this_machine_has_a_core() -> None:
    assert 1 <= physical_cores() <= len(os.sched_getaffinity(0))
