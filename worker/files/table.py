"""A job's table: the input's columns, then those of the answers.

It knows columns and cells. It must not know how a table is written.
"""

import json
from collections.abc import Sequence
from typing import Any

from worker.files import answered
from worker.files.answered import Result
from worker.files.records import STDIN, JobRefused, Record, Source, parquet
from worker.protocol import Question


class Table:
    """How a record becomes a row: the input's columns, then the answers'."""

    def __init__(self, columns: Sequence[str], questions: Sequence[Question], probabilities: bool) -> None:
        """Raises JobRefused when the input has a column of an answer's name."""
        self._questions = questions
        self._probabilities = probabilities
        self.columns = tuple(columns)
        self.added = answered.columns(questions, probabilities)
        taken = [name for i, name in enumerate(self.added) if name in self.columns or name in self.added[:i]]
        if taken:
            raise JobRefused(
                f"there would be two columns named '{taken[0]}'; rename the question or the column"
            )

    def row(self, record: Record, result: Result) -> dict[str, Any]:
        """One row by column; a column that it lacks is empty."""
        own = record.value if isinstance(record.value, dict) else {}
        return own | answered.flat(self._questions, self._probabilities, record, result)

    def schema(self, source: Source) -> Any:
        """pyarrow's schema: a Parquet input's own columns, or text ones; then the answers'."""
        import pyarrow

        if source.format == "parquet":
            own = list(parquet().ParquetFile(source.files[0]).schema_arrow)
        else:
            own = [pyarrow.field(name, pyarrow.string()) for name in self.columns]
        # Choices and the error are text, everything else a number.
        texts = {question.id for question in self._questions if question.type == "choice"} | {answered.ERROR}
        types = [(name, pyarrow.string() if name in texts else pyarrow.float64()) for name in self.added]
        return pyarrow.schema([*own, *(pyarrow.field(name, type) for name, type in types)])

    def problem(self, value: Any) -> str | None:
        """Why a record does not fit the table."""
        if not isinstance(value, dict):
            return "only an object has columns"
        extra = [name for name in value if name not in self.columns]
        return f"a field that the first record lacks: '{extra[0]}'" if extra else None


def columns_of(source: Source) -> tuple[str, ...]:
    """The columns of a source: a table's own, or the fields of the first record of JSON Lines. Raises JobRefused."""
    columns = source.columns()
    if columns is not None:
        return columns
    if source.files == (STDIN,):
        raise JobRefused("a table is made of JSON Lines from a file: name it with --input")
    first = next((record.value for record in source.records() if isinstance(record.value, dict)), None)
    if not first:
        raise JobRefused("a table needs records that are objects, and there is none")
    return tuple(first)


def cell(value: Any) -> str | None:
    """A value as a table's text: itself, nothing for None, JSON for the rest."""
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)
