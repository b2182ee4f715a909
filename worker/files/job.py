"""One job: a source, questions and an output, gone through in order, and gone on with after a stop.

It knows that a record is decided once and written once. It must not know arguments, formats or HTTP.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from worker.errors import Refused
from worker.files.answered import ERROR, failure, message
from worker.files.deciders import Decider, Stopped, Task
from worker.files.output import Output, journal_of
from worker.files.progress import Progress, Tally
from worker.files.records import JobRefused, Record, Source
from worker.protocol import check_state

STATE = "state"


class BadRecord(Stopped):
    """A record failed, and the job was to stop at the first."""

    exit_status = 1


@dataclass(frozen=True, slots=True)
class Selection:
    """What of a record is its state: the fields named; else the field `state`, if there is one; else all of it."""

    fields: tuple[str, ...] = ()

    def state(self, value: Any) -> Any:
        """The state. Raises KeyError with the name of a field that is not there."""
        if not self.fields:
            return value[STATE] if isinstance(value, dict) and STATE in value else value
        if not isinstance(value, dict):
            raise KeyError(self.fields[0])
        if len(self.fields) == 1:
            return value[self.fields[0]]
        return {name: value[name] for name in self.fields}


@dataclass(frozen=True, slots=True)
class Job:
    """What to decide. `problem` says why a record's value cannot be written with its answers, None if it can."""

    source: Source
    selection: Selection
    problem: Callable[[Any], str | None]

    def tasks(self, skip: int) -> Iterator[Task]:
        """Every record after the first `skip`, as something to decide."""
        return map(self._task, islice(self.source.records(), skip, None))

    def _task(self, record: Record) -> Task:
        problem = record.problem or self.problem(record.value)
        if problem is None:
            try:
                state = self.selection.state(record.value)
                check_state(state, STATE)
                return Task(record, state)
            except KeyError as missing:
                problem = f"there is no field named '{missing.args[0]}'"
            except Refused as refused:
                problem = message(refused.detail)
        return Task(record, refused=failure({"message": problem}, 422))


def decide_all(
    job: Job, decider: Decider, output: Output, progress: Progress, tally: Tally, fail_fast: bool
) -> None:
    """Decides and writes what is left of a job. Raises Stopped; BadRecord at the first failed one with `fail_fast`."""
    for record, result in decider.results(job.tasks(output.done)):
        if fail_fast and ERROR in result:
            raise BadRecord(f"{record.file}:{record.line}: {message(result[ERROR]['detail'])}")
        output.write(record, result)
        tally.add(result)
        progress.step()
    output.finish()


@contextmanager
def claimed(output: Path | None, job: Job, *asked: Any, restart: bool) -> Iterator[None]:
    """Holds an output file for one job, and sees to it that a job that is gone on with is the same job.

    Beside the output lies `.job`: a digest of the questions, the files and all else that the answers depend on
    (`asked`). Raises JobRefused when it differs, when the output is somebody else's, or when another process writes it.
    """
    if output is None:
        yield
        return
    digest = _digest(job, asked)
    beside = output.with_name(output.name + ".job")
    with open(os.open(beside, os.O_RDWR | os.O_CREAT, 0o644), "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JobRefused(f"{output}: another process is writing it") from None
        earlier = file.read()
        written = [path for path in (output, journal_of(output)) if path.exists()]
        if restart:
            for path in written:
                path.unlink()
        elif written and not earlier:
            beside.unlink()
            raise JobRefused(f"{output}: it exists, and no job wrote it; --restart replaces it")
        elif written and earlier != digest:
            raise JobRefused(
                f"{output}: another job wrote it (questions, files or settings); --restart replaces it"
            )
        file.seek(0)
        file.truncate()
        file.write(digest)
        file.flush()
        yield


def _digest(job: Job, asked: Sequence[Any]) -> str:
    sizes = [os.stat(file).st_size if os.path.isfile(file) else None for file in job.source.files]
    told = [job.source.files, job.source.format, sizes, job.selection.fields, asked]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
