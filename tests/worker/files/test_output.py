"""What is written, and what is left of it after a kill at any byte."""

from __future__ import annotations

import csv
import io
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.files.answered import failure
from worker.files.output import Csv, JsonLines, Parquet, journal_of, whole_rows
from worker.files.records import JobRefused, Record, Source, find
from worker.files.table import Table
from worker.protocol import questions

ASKED = questions(
    {
        "team": {"type": "choice", "criteria": {"billing": None, "sales": None}},
        "anger": {"type": "score", "criteria": ["calm", "angry"]},
        "refund": {"type": "noul", "instructions": "A refund?"},
    },
    "jev",
)
RESULT: dict[str, Any] = {
    "model": "demo@1",
    "answers": {
        "team": {
            "type": "choice", "choice": "sales", "probabilities": {"billing": 0.25, "sales": 0.75}, "confidence": 0.5,
        },
        "anger": {"type": "score", "score": 0.5, "probabilities": {"0": 0.5, "1": 0.5}, "confidence": 0.1},
        "refund": {"type": "noul", "noul": 0.875},
    },
    "usage": {"input_tokens": 9, "output_tokens": 0},
}  # fmt: skip
BAD = failure({"message": "no field named 'text'"}, 422)


def record(line: int, value: Any) -> Record:
    return Record("in.jsonl", line, value)


def test_json_lines_hold_the_record_and_its_whole_result(tmp_path: Path) -> None:
    with closing(JsonLines(tmp_path / "out.jsonl")) as out:
        out.write(record(1, {"id": 7, "text": "hé"}), RESULT)
        out.write(record(2, "only text"), RESULT)
        out.write(record(3, {"id": 8}), BAD)
        out.write(Record("in.jsonl", 4, None, "Invalid JSON"), failure({"message": "Invalid JSON"}, 422))
    first, second, third, fourth = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert first == {"id": 7, "text": "hé", **RESULT}
    assert second == {"record": "only text", **RESULT}
    assert third == {"id": 8, "error": {"file": "in.jsonl", "line": 3, "status": 422, **BAD["error"]}}
    assert set(fourth) == {"error"}


def test_a_table_gets_flat_columns(tmp_path: Path) -> None:
    with closing(Csv(tmp_path / "out.csv", Table(("id", "text"), ASKED, probabilities=True))) as out:
        out.write(record(1, {"id": "7", "text": "two\nlines"}), RESULT)
        out.write(record(2, {"id": "8", "text": "x"}), BAD)
    rows = list(csv.reader(io.StringIO((tmp_path / "out.csv").read_text())))
    assert rows == [
        ["id", "text", "team", "team_confidence", "team_p_billing", "team_p_sales", "anger", "anger_confidence",
         "anger_p_0", "anger_p_1", "refund", "error"],
        ["7", "two\nlines", "sales", "0.5", "0.25", "0.75", "0.5", "0.1", "0.5", "0.5", "0.875", ""],
        ["8", "x", *[""] * 9, "in.jsonl:2: no field named 'text'"],
    ]  # fmt: skip


def test_a_column_cannot_be_named_twice() -> None:
    with pytest.raises(JobRefused, match="'team'"):
        Table(("id", "team"), ASKED, probabilities=False)


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)


@given(texts=st.lists(TEXT, min_size=1, max_size=4), at=st.floats(0, 1), table=st.booleans())
def test_a_file_cut_at_any_byte_is_mended_and_gone_on_with(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], at: float, table: bool
) -> None:
    folder = tmp_path_factory.mktemp("cut")

    def opened(path: Path) -> Csv | JsonLines:
        return Csv(path, Table(("text",), ASKED, False)) if table else JsonLines(path)

    def write(path: Path) -> int:
        with closing(opened(path)) as out:
            before = out.done
            for line, text in list(enumerate(texts, 1))[out.done :]:
                out.write(record(line, {"text": text}), RESULT)
            out.finish()
        return before

    whole = folder / "whole"
    write(whole)
    cut = folder / "cut"
    content = whole.read_bytes()
    size = int(at * len(content))
    cut.write_bytes(content[:size])
    before = write(cut)
    assert cut.read_bytes() == content
    if size < len(content):
        assert before < len(texts)
    assert write(whole) == len(texts)


def test_a_quoted_line_feed_ends_no_row(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_bytes(b'a,b\n1,"x\ny"\n2,"half\n')
    assert whole_rows(file) == (2, len(b'a,b\n1,"x\ny"\n'))


def parquet_job(tmp_path: Path) -> tuple[Source, Table]:
    import pyarrow
    import pyarrow.parquet

    file = tmp_path / "in.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"n": [1, 2], "tags": [["a"], []]}), file)
    return find([str(file)], None), Table(("n", "tags"), ASKED, False)


def test_parquet_is_made_from_its_journal_at_the_end(tmp_path: Path) -> None:
    import pyarrow.parquet

    source, table = parquet_job(tmp_path)
    path = tmp_path / "out.parquet"
    one, two = source.records()
    with closing(Parquet(path, table, source)) as out:
        out.write(one, RESULT)
    assert not path.exists()

    with closing(Parquet(path, table, source)) as again:
        assert again.done == 1
        again.write(two, BAD)
        again.finish()
    assert not journal_of(path).exists()
    rows = pyarrow.parquet.read_table(path).to_pylist()
    assert [(row["n"], row["tags"], row["team"], row["refund"]) for row in rows] == [
        (1, ["a"], "sales", 0.875),
        (2, [], None, None),
    ]
    assert rows[1]["error"].endswith("in.parquet:2: no field named 'text'")

    with closing(Parquet(path, table, source)) as done:
        assert done.done == 2
        done.finish()
    assert path.exists()
