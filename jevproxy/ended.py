"""Metric files of processes that have ended: their counts are kept in one file, and the files go.

Knows prometheus-client's files, by its own classes for them. Must not know which metrics there are.

Each process writes `counter_PID.db` and `histogram_PID.db`, and the collector sums over all `*.db` by the part before
`_`. What ended processes had counted is added up in `counter_ended.db` and `histogram_ended.db`.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import mark_process_dead

# The kinds that are summed over processes. Gauges of ended processes are dropped (`mark_process_dead`).
SUMMED = ("counter", "histogram")


@contextmanager
def locked(directory: str, shared: bool) -> Iterator[None]:
    """Keep a reader (`shared`) from seeing a count in two files, or in none. Both hold it for milliseconds.

    The kernel releases the lock of a process that ends.
    """
    with open(os.path.join(directory, "lock"), "ab") as file:
        fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield


def retire(pid: int, directory: str) -> None:
    """Add the counts of an ended process to those of all ended ones, and remove its files. For gunicorn's parent."""
    if not os.path.isdir(directory):  # it ended before it could load the application
        return
    with locked(directory, shared=False):
        mark_process_dead(pid, path=directory)  # type: ignore[no-untyped-call]
        for kind in SUMMED:
            own = Path(directory, f"{kind}_{pid}.db")
            if own.exists():
                _add(own, Path(directory, f"{kind}_ended.db"))
                own.unlink()


def _add(own: Path, all_ended: Path) -> None:
    """Replaces `all_ended` whole: a parent that is killed meanwhile leaves the old file."""
    sums: dict[str, float] = {}
    for file in (all_ended, own):
        if file.exists():
            for key, value, *_ in MmapedDict.read_all_values_from_file(str(file)):  # type: ignore[no-untyped-call]
                sums[key] = sums.get(key, 0.0) + value
    new = all_ended.with_suffix(".new")
    new.unlink(missing_ok=True)
    written = MmapedDict(str(new))  # type: ignore[no-untyped-call]
    for key, value in sums.items():
        written.write_value(key, value, 0.0)  # type: ignore[no-untyped-call]
    written.close()  # type: ignore[no-untyped-call]
    new.replace(all_ended)
