"""`jevworker batch` as a process: every format, refusals before the first record, and kills at random moments."""

from __future__ import annotations

import csv
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers import clean_environment
from tests.worker.files.deployment import Deployment, decided, deployment

QUESTIONS = {"q": {"type": "noul", "instructions": "Is it?"}}
CALLERS = 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "q.json").write_text(json.dumps(QUESTIONS))
    (tmp_path / "in.jsonl").write_text(
        "".join(json.dumps({"id": i, "state": f"text {i}"}) + "\n" for i in range(200))
    )
    return tmp_path


@pytest.fixture
def server() -> Iterator[Deployment]:
    with deployment() as running:
        yield running


def command(folder: Path, *arguments: str, **settings: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "worker.cli", "batch", *arguments],
        cwd=folder,
        env=clean_environment(settings),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def run(folder: Path, *arguments: str, given: bytes = b"", **settings: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error."""
    process = command(folder, *arguments, **settings)
    out, err = process.communicate(given, timeout=120)
    return process.returncode, out.decode(), err.decode()


def rows(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_standard_input_to_standard_output_with_a_summary(folder: Path, server: Deployment) -> None:
    given = b'{"id": 1, "state": "a"}\nbroken\n{"id": 2, "state": "b"}\n'
    status, out, err = run(folder, "q.json", "--url", server.url, given=given)
    assert status == 1
    first, second, third = map(json.loads, out.splitlines())
    assert (first["id"], first["answers"], third["id"]) == (1, {"q": {"type": "noul", "noul": 0.75}}, 2)
    assert second["error"]["line"] == 2
    assert "decided 2, failed 1, cut 0" in err and "q: 0.6-0.8 2 (100%)" in err


def test_killed_twenty_times_nothing_is_lost_and_nothing_is_written_twice(folder: Path) -> None:
    moment = random.Random(7)
    kills = 0

    def slowly(document: dict[str, Any]) -> Any:
        time.sleep(0.01)  # so that a job of 200 records lasts about half a second
        return decided(document)

    with deployment(slowly) as server:
        arguments = ("q.json", "--input", "in.jsonl", "--output", "out.jsonl", "--url", server.url)
        arguments += ("--callers", str(CALLERS))
        out = folder / "out.jsonl"
        while kills < 20:
            process = command(folder, *arguments)
            size = out.stat().st_size if out.exists() else 0
            # Not before it writes: a kill while it starts would show nothing.
            while process.poll() is None and (not out.exists() or out.stat().st_size <= size):
                time.sleep(0.001)
            time.sleep(moment.uniform(0, 0.01))
            process.kill()
            process.communicate()
            assert process.returncode == -signal.SIGKILL, "it ended before its last kill"
            kills += 1
        assert run(folder, *arguments)[0] == 0
    assert [line["id"] for line in lines(out)] == list(range(200))
    assert all("answers" in line for line in lines(out))
    # What was under way at a kill had no line yet, and is asked again: at most as many as may be under way.
    assert server.asked.total() <= 200 + kills * 2 * CALLERS


def test_a_half_written_line_is_mended(folder: Path, server: Deployment) -> None:
    arguments = ("q.json", "--input", "in.jsonl", "--output", "out.jsonl", "--url", server.url)
    assert run(folder, *arguments)[0] == 0
    out = folder / "out.jsonl"
    whole = out.read_bytes()
    out.write_bytes(whole[:-150])
    status, _, err = run(folder, *arguments)
    assert status == 0 and "198 records are decided already" in err
    assert out.read_bytes() == whole


def test_sigterm_stops_it_and_the_same_command_goes_on(folder: Path) -> None:
    with deployment(lambda document: time.sleep(0.02) or decided(document)) as server:
        arguments = (
            "q.json",
            "--input",
            "in.jsonl",
            "--output",
            "out.jsonl",
            "--url",
            server.url,
            "--callers",
            "2",
        )
        process = command(folder, *arguments)
        out = folder / "out.jsonl"
        while not out.exists() or not out.stat().st_size:
            time.sleep(0.005)
        process.terminate()
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130 and b"goes on from here" in err
        assert run(folder, *arguments)[0] == 0
    assert [line["id"] for line in lines(out)] == list(range(200))


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_tables_in_and_out(folder: Path, server: Deployment, ending: str) -> None:
    import pyarrow
    import pyarrow.csv
    import pyarrow.parquet

    table = pyarrow.table({"id": ["1", "2"], "text": ["a,b", 'two\n"lines"']})
    source, out = folder / f"in.{ending}", folder / f"out.{ending}"
    if ending == "csv":
        pyarrow.csv.write_csv(table, source)
    else:
        pyarrow.parquet.write_table(table, source)
    arguments = (
        "q.json",
        "--input",
        source.name,
        "--state",
        "text",
        "--output",
        out.name,
        "--url",
        server.url,
    )
    assert run(folder, *arguments)[0] == 0
    assert set(server.asked) == {'"a,b"', json.dumps('two\n"lines"')}
    found = (
        rows(out)[1:]
        if ending == "csv"
        else [[*row.values()] for row in pyarrow.parquet.read_table(out).to_pylist()]
    )
    assert [(*row[:2], float(row[2])) for row in found] == [("1", "a,b", 0.75), ("2", 'two\n"lines"', 0.75)]


def test_several_columns_and_the_whole_record_as_state(folder: Path, server: Deployment) -> None:
    (folder / "in.csv").write_text("id,subject,body\n1,S,B\n")
    base = ("q.json", "--input", "in.csv", "--url", server.url)
    assert run(folder, *base, "--state", "subject,body")[0] == 0
    assert run(folder, *base)[0] == 0
    assert set(server.asked) == {
        json.dumps({"subject": "S", "body": "B"}),
        json.dumps({"id": "1", "subject": "S", "body": "B"}),
    }


def test_json_lines_become_a_table(folder: Path, server: Deployment) -> None:
    (folder / "in.jsonl").write_text('{"id": 1, "text": "a"}\n{"id": 2, "other": "b"}\n')
    arguments = (
        "q.json",
        "--input",
        "in.jsonl",
        "--state",
        "text",
        "--output",
        "out.csv",
        "--url",
        server.url,
    )
    assert run(folder, *arguments)[0] == 1
    assert rows(folder / "out.csv") == [
        ["id", "text", "q", "error"],
        ["1", "a", "0.75", ""],
        ["2", "", "", "in.jsonl:2: a field that the first record lacks: 'other'"],
    ]


@pytest.mark.parametrize(
    ("content", "arguments", "words"),
    [
        (None, [], "q.json: No such file"),
        ('{"q": {"type": "nul"}}', [], "questions.q.type"),
        ('{"q": {"type": "choice", "criteria": {}}}', [], "q"),
        ("{", [], "Invalid JSON"),
        (json.dumps(QUESTIONS), ["--input", "none.jsonl"], "no such file"),
        (
            json.dumps(QUESTIONS),
            ["--input", "in.csv", "--state", "txt"],
            "no column 'txt'; there are q, text",
        ),
        (json.dumps(QUESTIONS), ["--input", "in.csv", "--output", "out.csv"], "two columns named 'q'"),
        (json.dumps(QUESTIONS), ["--input", "in.csv", "--output", "out.xlsx"], ".jsonl, .csv or .parquet"),
        (json.dumps(QUESTIONS), ["--callers", "0"], "from 1 to 1024"),
        (json.dumps(QUESTIONS), ["--model", "other"], "not among LAYA_MODELS"),
    ],
)
def test_what_is_wrong_is_told_in_one_line_before_the_first_record(
    tmp_path: Path, content: str | None, arguments: list[str], words: str
) -> None:
    (tmp_path / "in.csv").write_text("q,text\n1,a\n")
    if content is not None:
        (tmp_path / "q.json").write_text(content)
    status, out, err = run(tmp_path, "q.json", *arguments, given=b'"text"\n')
    assert status == 2 and not out
    assert words in err.splitlines()[-1] and "Traceback" not in err


def test_the_engine_in_this_process_answers_as_the_server_does(tiny: Path, folder: Path) -> None:
    settings = {"LAYA_MODELS": f"tiny={tiny}", "LAYA_DEVICE": "cpu", "LAYA_THREADS": "1"}
    (folder / "some.jsonl").write_text("".join((folder / "in.jsonl").read_text().splitlines(True)[:40]))
    arguments = ("q.json", "--input", "some.jsonl", "--output", "out.jsonl")
    status, _, err = run(folder, *arguments, **settings)
    assert status == 0, err
    found = lines(folder / "out.jsonl")
    assert [line["id"] for line in found] == list(range(40))

    from worker import loading
    from worker.decide import Policy, decide
    from worker.lane import Lane
    from worker.protocol import questions
    from worker.settings import read

    lane = Lane(cache_rows=0)
    model = loading.load(read(settings), lane).find(None)
    for line in found[::7]:
        one = decide(model, lane, line["state"], questions(QUESTIONS, "jev"), Policy(), lambda: True)
        assert line["answers"]["q"]["noul"] == pytest.approx(one.answers["q"]["noul"], abs=1e-5)
        assert line["model"] == model.identity and line["usage"] == one.usage


def test_a_dry_run_shows_rows_and_cuts_and_decides_nothing(tiny: Path, folder: Path) -> None:
    (folder / "in.jsonl").write_text(
        json.dumps({"state": "word " * 900}) + '\n{"state": 7}\n{"state": "b"}\n4\n'
    )
    settings = {"LAYA_MODELS": f"tiny={tiny}", "LAYA_DEVICE": "cpu", "LAYA_THREADS": "1"}
    status, out, _ = run(
        folder, "q.json", "--input", "in.jsonl", "--output", "out.jsonl", "--dry-run", **settings
    )
    assert status == 0 and not (folder / "out.jsonl").exists()
    assert "q: 512 of at most 512 tokens; cut: state:" in out
    assert "in.jsonl:2\n  bad record: " in out
    assert out.count("in.jsonl:") == 3 and "[MASK]" in out and "nothing is cut" in out
