"""Records as files hold them, good and broken ones."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from worker.files.records import MAX_LINE, JobRefused, Record, Source, find


def records(path: Path, content: bytes) -> list[Record]:
    path.write_bytes(content)
    return list(find([str(path)], None).records())


def test_json_lines_give_their_values_and_lines(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    found = records(file, b'{"a": 1}\n\n"text"\n[1, 2]')
    assert found == [
        Record(str(file), 1, {"a": 1}),
        Record(str(file), 3, "text"),
        Record(str(file), 4, [1, 2]),
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"a": ', "Invalid JSON"),
        (b'{"a": 1, "a": 2}', "appears twice"),
        (b'{"a": NaN}', "NaN"),
        (b'"\xff"', "not UTF-8"),
    ],
)
def test_a_broken_line_is_told_and_the_next_is_read(tmp_path: Path, line: bytes, reason: str) -> None:
    bad, good = records(tmp_path / "in.jsonl", line + b"\n1\n")
    assert bad.line == 1 and reason in (bad.problem or "")
    assert good == Record(good.file, 2, 1)


def test_a_line_that_would_fill_memory_is_skipped_whole(tmp_path: Path) -> None:
    long = b'"' + b"x" * (2 * MAX_LINE) + b'"'
    bad, good = records(tmp_path / "in.jsonl", long + b"\n2\n")
    assert "longer than" in (bad.problem or "")
    assert (good.line, good.value) == (2, 2)


def test_csv_rows_are_objects_and_count_lines_not_rows(tmp_path: Path) -> None:
    found = records(tmp_path / "in.csv", '\ufeffid,text\n1,"two\nlines"\n2,é\n3\n4,last'.encode())
    assert [record.value for record in found] == [
        {"id": "1", "text": "two\nlines"},
        {"id": "2", "text": "é"},
        None,
        {"id": "4", "text": "last"},
    ]
    assert [record.line for record in found] == [2, 4, 5, 6]
    assert found[2].problem == "1 fields, where the first line names 2"


def test_a_csv_field_that_is_not_utf8_spoils_its_record_alone(tmp_path: Path) -> None:
    first, second, third = records(tmp_path / "in.csv", b"text\nfine\n\xff\nfine too\n")
    assert (first.problem, second.problem, third.problem) == (None, "not UTF-8", None)


def test_parquet_rows_keep_their_types(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    file = tmp_path / "in.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", None], "n": [1, 2]}), file)
    source = find([str(file)], None)
    assert [(record.line, record.value) for record in source.records()] == [
        (1, {"text": "a", "n": 1}),
        (2, {"text": None, "n": 2}),
    ]
    assert source.columns() == ("text", "n") and source.count() == 2


def test_globs_give_files_by_name_and_gzip_is_read(tmp_path: Path) -> None:
    for name in ("b", "a"):
        with gzip.open(tmp_path / f"{name}.jsonl.gz", "wb") as file:
            file.write(f'"{name}"\n'.encode())
    source = find([str(tmp_path / "*.gz")], None)
    assert [record.value for record in source.records()] == ["a", "b"]


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (["missing.jsonl"], "no such file"),
        (["a.jsonl", "b.csv"], "several formats"),
        (["b.csv", "c.csv"], "other columns"),
        (["d.csv"], "two columns of one name"),
        (["empty.csv"], "names no columns"),
        (["not.parquet"], "not.parquet"),
        (["-", "a.jsonl"], "standard input"),
    ],
)
def test_what_cannot_be_read_is_refused_before_the_first_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[str], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "a.jsonl": "1\n", "b.csv": "x\n1\n", "c.csv": "y\n1\n", "d.csv": "x,x\n1,2\n", "empty.csv": "",
        "not.parquet": "text",
    }.items():  # fmt: skip
        Path(name).write_text(text)
    with pytest.raises(JobRefused, match=reason):
        find(files, None).columns()


def test_lines_are_counted_without_reading_them(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"broken\n\n2\n3")
    source = find([str(tmp_path / "in.jsonl")], None)
    assert source.count() == len(list(source.records())) == 3
    assert Source(("-",), "jsonl").count() is None
