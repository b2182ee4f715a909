"""Records of JSON Lines, CSV and Parquet files, one at a time, each with its file and line.

It knows how each format marks a record and what a broken one looks like. It must not know questions or models.
A broken record is a value, not an exception: the records after it are still read.
"""

import csv
import glob
import gzip
import io
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from worker.document import decode
from worker.errors import FieldsRefused, StartFailed, words

FORMATS = ("jsonl", "csv", "parquet")
STDIN = "-"
# A record is a text that somebody reads. Longer lines are most often a file of another kind, and would fill memory.
MAX_LINE = 16 << 20
# Rows that a Parquet file gives at once: some megabytes of text.
PARQUET_ROWS = 1024
# How bytes that are not UTF-8 come out of `_text`: one bad field then spoils its own record alone.
_UNDECODED = re.compile("[\udc80-\udcff]")


class JobRefused(StartFailed):
    """A job that cannot start or go on. The message is one line for the person who ran the command."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record: its file as named, its line (1-based; a Parquet file's row), and its value, or why it has none."""

    file: str
    line: int
    value: Any
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """The files to read, in order, all of one format. `STDIN` alone stands for standard input."""

    files: tuple[str, ...]
    format: str

    def records(self) -> Iterator[Record]:
        """Every record of every file."""
        for file in self.files:
            yield from _READERS[self.format](file)

    def columns(self) -> tuple[str, ...] | None:
        """The columns of a table, which all files must share; None for JSON Lines. Raises JobRefused."""
        if self.format == "jsonl":
            return None
        if self.files == (STDIN,):
            raise JobRefused("standard input is read as JSON Lines only; name other formats with --input")
        found = {file: _COLUMNS[self.format](file) for file in self.files}
        first, *others = found
        for other in others:
            if found[other] != found[first]:
                raise JobRefused(f"{other} has other columns than {first}")
        if len(set(found[first])) != len(found[first]):
            raise JobRefused(f"{first} has two columns of one name")
        return found[first]

    def count(self) -> int | None:
        """How many records there are, None where only reading them would tell. Lines are counted, not parsed."""
        if self.format == "parquet":
            return sum(parquet().ParquetFile(file).metadata.num_rows for file in self.files)
        if self.format == "csv" or any(file == STDIN or file.endswith(".gz") for file in self.files):
            return None
        return sum(_lines(file) for file in self.files)


def find(patterns: Sequence[str], format: str | None) -> Source:
    """The files that names and globs stand for, each glob's in the order of their names. Raises JobRefused."""
    files: list[str] = []
    for pattern in patterns:
        matched = (
            [pattern]
            if pattern == STDIN or Path(pattern).is_file()
            else sorted(glob.glob(pattern, recursive=True))
        )
        if not matched:
            raise JobRefused(f"{pattern}: there is no such file")
        files += [file for file in matched if file == STDIN or Path(file).is_file()]
    if STDIN in files and len(files) > 1:
        raise JobRefused("standard input cannot be read beside files")
    formats = {format or format_of(file) or "jsonl" for file in files}
    if len(formats) != 1:
        raise JobRefused(
            f"the files are of several formats ({', '.join(sorted(formats))}); one job reads one"
        )
    return Source(tuple(files), formats.pop())


def format_of(file: str) -> str | None:
    """The format that a file's name ends with, None where it does not say."""
    ending = Path(file.removesuffix(".gz")).suffix.lower().removeprefix(".")
    return {"ndjson": "jsonl", "json": "jsonl"}.get(ending, ending if ending in FORMATS else None)


def parquet() -> Any:
    """pyarrow's Parquet module. Raises JobRefused where it is not installed."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise JobRefused("Parquet needs pyarrow: pip install 'jevproxy[worker,files]'") from None
    return pyarrow.parquet


def _opened(file: str) -> IO[bytes]:
    if file == STDIN:
        return sys.stdin.buffer
    try:
        return gzip.open(file, "rb") if file.endswith(".gz") else open(file, "rb")  # type: ignore[return-value]
    except OSError as error:
        raise JobRefused(f"{file}: {error.strerror}") from None


def _json_lines(file: str) -> Iterator[Record]:
    with _opened(file) as opened:
        number = 0
        while line := opened.readline(MAX_LINE):
            number += 1
            if len(line) == MAX_LINE and not line.endswith(b"\n"):
                while (more := opened.readline(MAX_LINE)) and not more.endswith(b"\n"):
                    pass
                yield Record(file, number, None, f"the line is longer than {MAX_LINE} bytes")
            elif line.strip():
                yield _json_record(file, number, line)


def _json_record(file: str, number: int, line: bytes) -> Record:
    try:
        return Record(file, number, decode(line))
    except FieldsRefused as refused:
        return Record(file, number, None, refused.detail[0]["msg"])


def _csv(file: str) -> Iterator[Record]:
    with _text(file) as opened:
        # Not strict: a quote inside a field is text to most programs that write CSV.
        reader = csv.reader(opened)
        columns = tuple(next(reader, ()))
        first = reader.line_num + 1
        while True:
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield Record(file, first, None, words(f"not CSV: {error}"))
            else:
                if row:
                    yield _csv_record(file, first, columns, row)
            first = reader.line_num + 1


def _csv_record(file: str, line: int, columns: tuple[str, ...], row: list[str]) -> Record:
    if len(row) != len(columns):
        return Record(file, line, None, f"{len(row)} fields, where the first line names {len(columns)}")
    if any(not cell.isascii() and _UNDECODED.search(cell) for cell in row):
        return Record(file, line, None, "not UTF-8")
    return Record(file, line, dict(zip(columns, row, strict=True)))


def _text(file: str) -> IO[str]:
    # Spreadsheets write a byte order mark, which would become part of the first column's name.
    return io.TextIOWrapper(_opened(file), encoding="utf-8-sig", errors="surrogateescape", newline="")


def _csv_columns(file: str) -> tuple[str, ...]:
    with _text(file) as opened:
        try:
            columns = tuple(next(csv.reader(opened), ()))
        except csv.Error as error:
            raise JobRefused(f"{file}: {words(str(error))}") from None
    if not columns:
        raise JobRefused(f"{file}: its first line names no columns")
    return columns


def _parquet(file: str) -> Iterator[Record]:
    number = 0
    for rows in parquet().ParquetFile(file).iter_batches(PARQUET_ROWS):
        for value in rows.to_pylist():
            number += 1
            yield Record(file, number, value)


def _parquet_columns(file: str) -> tuple[str, ...]:
    try:
        return tuple(parquet().ParquetFile(file).schema_arrow.names)
    except (OSError, ValueError) as error:  # pyarrow's own errors are of these two kinds
        raise JobRefused(f"{file}: {words(str(error))}") from None


def _lines(file: str) -> int:
    with open(file, "rb") as opened:
        return sum(bool(line.strip()) for line in opened)


_READERS = {"jsonl": _json_lines, "csv": _csv, "parquet": _parquet}
_COLUMNS = {"csv": _csv_columns, "parquet": _parquet_columns}
