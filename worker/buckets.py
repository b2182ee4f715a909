"""Which rows share a pass: arithmetic on token counts.

It knows lengths and counts. It must not know rows' owners, tensors or devices.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate, islice

# Token lengths of the built-in buckets: closest together where short decisions lie, because padding is pure cost there.
LENGTHS = (32, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512, 768, 1024)
COUNTS = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Buckets:
    """The lengths and row counts that passes come in.

    `lengths` and `counts` ascend. `max_tokens`: the most tokens that the rows of one pass may have together, because
    more would take longer than sharing a pass saves. One row alone may have any number.
    """

    lengths: tuple[int, ...] = LENGTHS
    counts: tuple[int, ...] = COUNTS
    max_tokens: int = 1 << 20

    def up_to(self, longest: int) -> "Buckets":
        """The same, without lengths that no row of a model with `longest` tokens can need."""
        lengths = (*(length for length in self.lengths if length < longest), longest)
        return replace(self, lengths=lengths)

    def length_for(self, tokens: int, options: int) -> int | None:
        """The smallest bucket length for a row of so many tokens and options; None if none fits."""
        index = bisect_left(self.lengths, tokens)
        while index < len(self.lengths) and options > option_slots(self.lengths[index]):
            index += 1
        return self.lengths[index] if index < len(self.lengths) else None

    def rows_that_fit(self, tokens: Iterable[int]) -> int:
        """How many of the first rows, with so many `tokens` each, may share a pass."""
        sums = islice(accumulate(tokens), self.counts[-1])
        return max(1, sum(total <= self.max_tokens for total in sums))

    def count_for(self, rows: int) -> int:
        """The smallest bucket count for so many rows."""
        return self.counts[bisect_left(self.counts, rows)]


def option_slots(length: int) -> int:
    """How many options a bucket of this length has room for: nearly all take two tokens or more."""
    return max(4, min(256, length // 2))
