"""Rows as the tensors of one pass, and the model's outputs as logits again.

It knows rows, logits, tensors and layouts. It must not know parameters, queues or graphs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.layouts import Layout, PackedLayout, PaddedLayout
from worker.rows import Logits, Row


@dataclass(frozen=True)
class RowBatch:
    """The tensors of one pass over n rows with N tokens and at most K options, on the model's device.

    `token_ids`, `positions` (of each token in its row) and `question_types`: int64 [N]. `row_starts`: int64 [n], the
    index of each row's [CLS] on the flat axis. `markers`: int64 [n, K], the indices of its options' [MASK]s, 0 where
    it has no option; `option_mask`: bool [n, K], True where it has one.
    """

    token_ids: Tensor
    positions: Tensor
    question_types: Tensor
    row_starts: Tensor
    markers: Tensor
    option_mask: Tensor
    layout: Layout

    @property
    def output_positions(self) -> Tensor:
        """Where the answers are read off: each row's [CLS], then its markers; int64 [n, 1 + K]."""
        return torch.cat((self.row_starts[:, None], self.markers), 1)


def packed_batch(rows: Sequence[Row]) -> RowBatch:
    """The batch of `rows` end to end, without padding, on the CPU."""
    lengths = tuple(len(row.token_ids) for row in rows)
    options = max(len(row.markers) for row in rows)
    ends = torch.tensor(lengths).cumsum(0)
    row_starts = ends - torch.tensor(lengths)
    markers = torch.zeros(len(rows), options, dtype=torch.int64)
    option_mask = torch.zeros(len(rows), options, dtype=torch.bool)
    for index, row in enumerate(rows):
        markers[index, : len(row.markers)] = torch.tensor(row.markers) + row_starts[index]
        option_mask[index, : len(row.markers)] = True
    return RowBatch(
        token_ids=torch.tensor([token for row in rows for token in row.token_ids]),
        positions=torch.cat([torch.arange(length) for length in lengths]),
        question_types=torch.tensor([row.question_type for row in rows]).repeat_interleave(
            torch.tensor(lengths)
        ),
        row_starts=row_starts,
        markers=markers,
        option_mask=option_mask,
        layout=PackedLayout(lengths),
    )


def pad_rows(rows: Sequence[Row], length: int, count: int, options: int) -> Tensor:
    """Rows as one int64 tensor [count, length + options + 3] on the CPU, so that one copy brings them to a device.

    A line holds the token ids, then the markers, each padded with 0; then the number of tokens, the number of markers
    and the question type. Lines past the last row are empty.
    """
    padded = torch.zeros(count, length + options + 3, dtype=torch.int64)
    for line, row in zip(padded, rows, strict=False):
        line[: len(row.token_ids)] = torch.tensor(row.token_ids)
        line[length : length + len(row.markers)] = torch.tensor(row.markers)
        line[-3:] = torch.tensor((len(row.token_ids), len(row.markers), row.question_type))
    return padded


def padded_batch(padded: Tensor, length: int, options: int) -> RowBatch:
    """The batch of what `pad_rows` made, by operations of fixed shapes on its device."""
    count, device = padded.shape[0], padded.device
    token_counts, marker_counts, question_types = padded[:, -3], padded[:, -2], padded[:, -1]
    positions = torch.arange(length, device=device)
    row_starts = torch.arange(count, device=device) * length
    return RowBatch(
        token_ids=padded[:, :length].reshape(-1),
        positions=positions.repeat(count),
        question_types=question_types[:, None].expand(count, length).reshape(-1),
        row_starts=row_starts,
        markers=padded[:, length : length + options] + row_starts[:, None],
        option_mask=torch.arange(options, device=device) < marker_counts[:, None],
        layout=PaddedLayout(positions < token_counts[:, None]),
    )


def join_outputs(outputs: tuple[Tensor, Tensor]) -> Tensor:
    """Option logits and action logits side by side, so that one copy brings both off the device."""
    return torch.cat(outputs, -1)


def split_outputs(rows: Sequence[Row], lines: list[list[float]], options: int) -> list[Logits]:
    """The logits of each row, out of lines of `join_outputs` with room for `options` options."""
    return [
        Logits(tuple(line[: len(row.markers)]), tuple(line[options:]))
        for row, line in zip(rows, lines, strict=False)
    ]
