"""Attention inside each row of a pass, in the two ways that a pass can lay its rows out.

It knows tensors, masks and row lengths. It must not know parameters, layers, devices or what tokens mean.

All tokens of a pass lie on one flat axis N, row after row. A layout says which of them form a row, so linear layers
never see where one row ends and the next begins.
"""

from collections.abc import Iterator
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Layout(Protocol):
    """Which tokens of the flat axis form a row."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, window: int | None) -> Tensor:
        """Attention inside each row: [N, heads, width] three times -> [N, heads * width].

        `window`: how many positions to each side a token attends to; None for the whole row.
        """

    def attend_selected(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention of P selected positions of each of n rows to their whole row.

        `query` [n, P, heads, width], `key` and `value` [N, heads, width] -> [n, P, heads * width].
        """

    def run_encoder(self, encoder: nn.Module, token_ids: Tensor) -> Tensor:
        """The last hidden state of a whole encoder, [N, d], from token ids [N]."""


def window_mask(length: int, window: int, device: torch.device) -> Tensor:
    """The pairs of positions at most `window` apart: bool [length, length]."""
    position = torch.arange(length, device=device)
    return (position[:, None] - position[None, :]).abs() <= window


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Scaled dot-product attention of n rows of one length: [n, L, heads, width] -> [n, L, heads * width]."""
    output = F.scaled_dot_product_attention(
        query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), attn_mask=mask
    )
    return output.transpose(1, 2).flatten(2)


# On the CPU local attention takes this many queries at a time, with the keys that they attend to, instead of the whole
# masked square: 4.8 ms instead of 8.4 for 512 tokens, 3.7 instead of 5.7 for 400, and no difference up to 160 (base
# size, a two-core AMD EPYC virtual machine, 2026-11-30). Blocks of 96 and 128 are slower.
QUERY_BLOCK = 64


class PackedLayout:
    """Rows end to end at their own lengths, without padding."""

    def __init__(self, lengths: tuple[int, ...]) -> None:
        self.lengths = lengths
        self._masks: dict[tuple[int, int], Tensor] = {}

    def _mask(self, length: int, window: int, device: torch.device) -> Tensor:
        if (length, window) not in self._masks:
            self._masks[length, window] = window_mask(length, window, device)
        return self._masks[length, window]

    def _blocks(self, query: Tensor, key: Tensor, value: Tensor, window: int | None) -> Iterator[Tensor]:
        """The attention of one row, [L, heads, width] three times, a block of queries at a time."""
        length = query.shape[0]
        if window is None or window >= length - 1:
            yield attention(query[None], key[None], value[None], None)[0]
            return
        mask = self._mask(length, window, query.device)
        for start in range(0, length, QUERY_BLOCK):
            queries = slice(start, start + QUERY_BLOCK)
            keys = slice(max(0, start - window), start + QUERY_BLOCK + window)
            yield attention(query[None, queries], key[None, keys], value[None, keys], mask[queries, keys])[0]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, window: int | None) -> Tensor:
        rows = zip(*(tensor.split(self.lengths) for tensor in (query, key, value)), strict=True)
        outputs = [block for q, k, v in rows for block in self._blocks(q, k, v, window)]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def attend_selected(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        rows = zip(query, key.split(self.lengths), value.split(self.lengths), strict=True)
        return torch.cat([attention(q[None], k[None], v[None], None) for q, k, v in rows])

    def run_encoder(self, encoder: nn.Module, token_ids: Tensor) -> Tensor:
        outputs = [
            encoder(input_ids=ids[None], attention_mask=torch.ones_like(ids)[None]).last_hidden_state[0]
            for ids in token_ids.split(self.lengths)
        ]
        return torch.cat(outputs)


class PaddedLayout:
    """n rows padded to one length L, so N = n * L. `valid`, bool [n, L], is False at padding.

    In a local layer a padding position may have only padding within its window. Some attention kernels then return
    NaN for it, and in the next layer 0 * NaN carries the NaN to real positions. So every position also attends to
    itself: padding stays finite, and no real position ever attends to it.
    """

    def __init__(self, valid: Tensor) -> None:
        self.valid = valid
        self.shape = tuple(valid.shape)
        self._masks: dict[int | None, Tensor] = {}

    def _mask(self, window: int | None) -> Tensor:
        if window not in self._masks:
            length, device = self.shape[1], self.valid.device
            itself = torch.eye(length, dtype=torch.bool, device=device)
            mask = self.valid[:, None, :].expand(-1, length, -1)
            if window is not None and window < length - 1:
                mask = mask & window_mask(length, window, device)
            self._masks[window] = (mask | itself)[:, None]
        return self._masks[window]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, window: int | None) -> Tensor:
        shape = (*self.shape, *query.shape[1:])
        output = attention(query.view(shape), key.view(shape), value.view(shape), self._mask(window))
        return output.reshape(query.shape[0], -1)

    def attend_selected(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        # An empty row attends to its first position: attention to nothing is NaN.
        mask = self.valid | (torch.arange(self.shape[1], device=self.valid.device) == 0)
        shape = (*self.shape, *key.shape[1:])
        return attention(query, key.view(shape), value.view(shape), mask[:, None, None])

    def run_encoder(self, encoder: nn.Module, token_ids: Tensor) -> Tensor:
        hidden = encoder(
            input_ids=token_ids.view(self.shape), attention_mask=self.valid.long()
        ).last_hidden_state
        return hidden.flatten(0, 1)
