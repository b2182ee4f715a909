"""Where results go: JSON Lines, CSV or Parquet, one record after the other, and how a killed job's file is mended.

It knows files, and which part of one was written whole. It must not know models, or how records are decided.

Each record leaves in one write as soon as it is decided. So a killed job leaves whole records and at most one half
of one, which the next start cuts off. Parquet cannot be written that way, as its index comes last: results go to a
JSON Lines journal beside it, which becomes the Parquet file when the last record is decided.
"""

import csv
import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from worker.encoding import encode
from worker.files import answered
from worker.files.answered import Result
from worker.files.records import JobRefused, Record, Source, parquet
from worker.files.table import Table, cell

# Rows of one Parquet row group: pyarrow's readers like tens of thousands, and this many texts fit in memory.
GROUP_ROWS = 16384


class Output(Protocol):
    """One job's results. `done`: how many records an earlier start has written. `close` it, finished or not."""

    done: int

    def write(self, record: Record, result: Result) -> None: ...

    def finish(self) -> None:
        """Every record is written."""

    def close(self) -> None: ...


class JsonLines:
    """One JSON object a line; `path` None is standard output, which cannot be gone on with."""

    def __init__(self, path: Path | None) -> None:
        self.done = 0 if path is None else mend(path, whole_lines)
        self._file = sys.stdout.buffer if path is None else open(path, "ab", buffering=0)

    def write(self, record: Record, result: Result) -> None:
        self._file.write(encode(answered.whole(record, result)) + b"\n")

    def finish(self) -> None:
        self._file.flush()

    def close(self) -> None:
        if self._file is not sys.stdout.buffer:
            self._file.close()


class Csv:
    """A CSV file; objects and arrays in it are JSON."""

    def __init__(self, path: Path | None, table: Table) -> None:
        self._table = table
        self._names = (*table.columns, *table.added)
        # The first row names the columns.
        rows = 0 if path is None else mend(path, whole_rows)
        self.done = max(0, rows - 1)
        self._file = sys.stdout.buffer if path is None else open(path, "ab", buffering=0)
        if not rows:
            self._file.write(_csv_line(self._names))

    def write(self, record: Record, result: Result) -> None:
        row = self._table.row(record, result)
        self._file.write(_csv_line([cell(row.get(name)) for name in self._names]))

    def finish(self) -> None:
        self._file.flush()

    def close(self) -> None:
        if self._file is not sys.stdout.buffer:
            self._file.close()


class Parquet:
    """A Parquet file, made from its journal at the end."""

    def __init__(self, path: Path, table: Table, source: Source) -> None:
        parquet()
        self._path = path
        self._table = table
        self._source = source
        self._journal = journal_of(path)
        # A job that was done left the file and no journal.
        self._lines = None if path.exists() and not self._journal.exists() else JsonLines(self._journal)
        self.done = parquet().ParquetFile(path).metadata.num_rows if self._lines is None else self._lines.done

    def write(self, record: Record, result: Result) -> None:
        if self._lines is not None:
            # The record itself is read again at the end.
            self._lines.write(Record(record.file, record.line, {}), result)

    def finish(self) -> None:
        if self._lines is None:
            return
        temporary = self._path.with_name(self._path.name + ".part")
        rows = self._rows()
        schema = self._table.schema(self._source)
        import pyarrow

        with parquet().ParquetWriter(temporary, schema) as writer:
            while group := [row for _, row in zip(range(GROUP_ROWS), rows, strict=False)]:
                writer.write_table(pyarrow.Table.from_pylist(group, schema=schema))
        temporary.replace(self._path)
        self._journal.unlink()

    def close(self) -> None:
        if self._lines is not None:
            self._lines.close()

    def _rows(self) -> Iterator[dict[str, Any]]:
        text = self._source.format != "parquet"
        with open(self._journal, "rb") as lines:
            for record, line in zip(self._source.records(), lines, strict=True):
                row = self._table.row(record, json.loads(line))
                yield row | {name: cell(row.get(name)) for name in self._table.columns} if text else row


def open_output(path: Path | None, format: str, table: Table | None, source: Source) -> Output:
    """The output of a job; `path` None is standard output. `table`: for every format but jsonl."""
    if table is None:
        return JsonLines(path)
    if format == "csv":
        return Csv(path, table)
    if path is None:
        raise JobRefused("Parquet is written to a file: name it with --output")
    return Parquet(path, table, source)


def journal_of(path: Path) -> Path:
    """Where a Parquet file's results lie until it is made."""
    return path.with_name(path.name + ".journal")


def mend(path: Path, whole: Callable[[Path], tuple[int, int]]) -> int:
    """How many whole records a file holds; what follows the last of them is cut off. 0 where there is no file."""
    if not path.exists():
        return 0
    records, size = whole(path)
    os.truncate(path, size)
    return records


def whole_lines(path: Path) -> tuple[int, int]:
    """How many lines of a file end in a line feed, and how many bytes those are."""
    count = size = 0
    with open(path, "rb") as opened:
        for line in opened:
            if line.endswith(b"\n"):
                count, size = count + 1, size + len(line)
    return count, size


def whole_rows(path: Path) -> tuple[int, int]:
    """The same for CSV, where a quoted line feed ends no row."""
    count = size = read = 0

    def lines() -> Iterator[str]:
        nonlocal read
        with open(path, "rb") as opened:
            for line in opened:
                if not line.endswith(b"\n"):
                    return
                read += len(line)
                # Undecodable bytes can only be of a half-written row, or somebody else's: either is cut off.
                yield line.decode("utf-8", "replace")

    try:
        for _ in csv.reader(lines(), strict=True):
            count, size = count + 1, read
    except csv.Error:
        pass  # the end came inside quotes
    return count, size


def _csv_line(cells: Sequence[Any]) -> bytes:
    line = io.StringIO()
    # RFC 4180 line ends: csv quotes a field for the line ends that it writes, so a lone carriage return is quoted too.
    csv.writer(line, lineterminator="\r\n").writerow(cells)
    return line.getvalue().encode()
