"""A job goes through its records once, goes on where it was, and is told apart from another job."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from worker.files import answered
from worker.files.answered import Result
from worker.files.deciders import Stopped, Task
from worker.files.job import BadRecord, Job, Selection, claimed, decide_all
from worker.files.output import JsonLines
from worker.files.progress import Progress, Tally
from worker.files.records import JobRefused, Record, find
from worker.protocol import questions

ASKED = questions({"q": {"type": "noul", "instructions": "Is it?"}}, "jev")


class Echo:
    """Decides every good record; stops before the one with this state."""

    def __init__(self, stops_at: Any = None) -> None:
        self.stops_at = stops_at
        self.states: list[Any] = []

    def results(self, tasks: Iterable[Task]) -> Iterator[tuple[Record, Result]]:
        for task in tasks:
            if task.refused is None and task.state == self.stops_at:
                raise Stopped("as asked")
            self.states.append(task.state)
            answers = {"q": {"type": "noul", "noul": 0.9}}
            yield task.record, task.refused or {"model": "m", "answers": answers, "usage": {}}


@pytest.fixture
def job(tmp_path: Path) -> Job:
    file = tmp_path / "in.jsonl"
    file.write_text("".join(json.dumps(value) + "\n" for value in ["a", 7, {"state": "c"}, "d"]))
    return Job(find([str(file)], None), Selection(), answered.clash)


def go(job: Job, path: Path, decider: Echo, fail_fast: bool = False) -> Tally:
    tally = Tally(ASKED)
    with closing(JsonLines(path)) as output:
        decide_all(job, decider, output, Progress(4, output.done, tally), tally, fail_fast)
    return tally


def test_good_and_bad_records_are_written_in_order_and_counted(job: Job, tmp_path: Path) -> None:
    decider = Echo()
    tally = go(job, tmp_path / "out", decider)
    assert decider.states == ["a", None, "c", "d"]
    lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert [("error" in line) for line in lines] == [False, True, False, False]
    assert lines[1]["error"]["line"] == 2 and "string, an object or an array" in str(lines[1]["error"])
    assert (tally.decided, tally.failed) == (3, 1)
    assert tally.lines()[1] == "q: 0.8-1.0 3 (100%)"


@pytest.mark.parametrize("at", ["a", "c", "d"])
def test_a_stopped_job_goes_on_where_it_was(job: Job, tmp_path: Path, at: str) -> None:
    whole, first, second = Echo(), Echo(at), Echo()
    go(job, tmp_path / "whole", whole)
    with pytest.raises(Stopped):
        go(job, tmp_path / "out", first)
    go(job, tmp_path / "out", second)
    assert first.states + second.states == whole.states
    assert (tmp_path / "out").read_bytes() == (tmp_path / "whole").read_bytes()


def test_the_first_bad_record_stops_a_job_that_asked_for_it(job: Job, tmp_path: Path) -> None:
    with pytest.raises(BadRecord, match=r"in\.jsonl:2: "):
        go(job, tmp_path / "out", Echo(), fail_fast=True)
    assert len((tmp_path / "out").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("fields", "value", "state"),
    [
        ((), {"state": "s", "id": 1}, "s"),
        ((), {"text": "s"}, {"text": "s"}),
        ((), ["a"], ["a"]),
        (("text",), {"text": "s", "id": 1}, "s"),
        (("b", "a"), {"a": 1, "b": 2, "c": 3}, {"b": 2, "a": 1}),
    ],
)
def test_what_of_a_record_is_its_state(fields: tuple[str, ...], value: Any, state: Any) -> None:
    assert Selection(fields).state(value) == state


@pytest.mark.parametrize(("fields", "value"), [(("x",), {"a": 1}), (("x",), "text"), (("a", "x"), {"a": 1})])
def test_a_record_without_the_field_says_so(fields: tuple[str, ...], value: Any) -> None:
    with pytest.raises(KeyError):
        Selection(fields).state(value)


def test_a_record_that_has_a_field_of_an_answers_name_is_not_overwritten() -> None:
    assert "'answers'" in (answered.clash({"answers": 1}) or "")
    assert answered.clash({"answer": 1}) is None and answered.clash("answers") is None


def test_an_output_belongs_to_one_job(job: Job, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with claimed(out, job, "one", restart=False):
        go(job, out, Echo())
    with claimed(out, job, "one", restart=False):
        assert out.exists()
    with pytest.raises(JobRefused, match="another job"), claimed(out, job, "two", restart=False):
        pass
    with claimed(out, job, "two", restart=True):
        assert not out.exists()
    with claimed(out, job, "three", restart=False):  # nothing of two was written
        pass


def test_a_file_that_no_job_wrote_is_left_alone(job: Job, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("mine")
    with pytest.raises(JobRefused, match="no job wrote it"), claimed(out, job, restart=False):
        pass
    assert out.read_text() == "mine"
    with pytest.raises(JobRefused, match="no job wrote it"), claimed(out, job, restart=False):
        pass


def test_two_processes_do_not_write_one_output(job: Job, tmp_path: Path) -> None:
    with open(tmp_path / "out.job", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with (
            pytest.raises(JobRefused, match="another process"),
            claimed(tmp_path / "out", job, restart=False),
        ):
            pass
