"""The arithmetic of encoders, a layer at a time, and of rows that share a pass.

It knows tensors, layouts and the names of the parameters that transformers' encoders have. It must not know
the decision head, files, devices' queues, text or questions.

Tokens of all rows of a pass lie in one flat axis N, row after row; a layout says which belong together,
so linear layers never see where one row ends. ModernBERT's and BERT's layers run here one at a time, from the
parameters of the module that AutoModel built, so that a caller can stop between two layers. Any other encoder
runs as one step through its own forward.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Layout(Protocol):
    """Which tokens of the flat axis form a row."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, reach: int | None) -> Tensor:
        """Attention inside each row: [N, heads, width] three times -> [N, heads * width].

        `reach`: how many positions to each side a token sees; None for the whole row.
        """

    def look(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention of P positions of each of n rows over their row.

        `query` [n, P, heads, width], `key` and `value` [N, heads, width] -> [n, P, heads * width].
        """

    def encode(self, encoder: nn.Module, token_ids: Tensor) -> Tensor:
        """The last hidden state of a whole encoder, [N, d], from token ids [N]."""


def near(length: int, reach: int, device: torch.device) -> Tensor:
    """The pairs of positions at most `reach` apart: bool [length, length]."""
    place = torch.arange(length, device=device)
    return (place[:, None] - place[None, :]).abs() <= reach


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Scaled dot-product attention of n rows of one length: [n, L, heads, width] -> [n, L, heads * width]."""
    seen = F.scaled_dot_product_attention(
        query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), attn_mask=mask
    )
    return seen.transpose(1, 2).flatten(2)


# Local attention on the CPU goes by so many queries at a time, over the keys that they reach, in place of over a masked
# square: 4.8 ms for 512 tokens in place of 8.4, 3.7 for 400 in place of 5.7, and equal from 160 down (base size, a
# two-core AMD EPYC virtual machine, 2026-11-30; blocks of 96 and 128 are slower).
BLOCK = 64


class Packed:
    """Rows end to end at their own lengths, without padding."""

    def __init__(self, lengths: tuple[int, ...]) -> None:
        self.lengths = lengths
        self._bands: dict[tuple[int, int], Tensor] = {}

    def _band(self, length: int, reach: int, device: torch.device) -> Tensor:
        if (length, reach) not in self._bands:
            self._bands[length, reach] = near(length, reach, device)
        return self._bands[length, reach]

    def _blocks(self, query: Tensor, key: Tensor, value: Tensor, reach: int | None) -> Iterator[Tensor]:
        """The attention of one row, [L, heads, width] three times, a block of queries at a time."""
        length = query.shape[0]
        if reach is None or reach >= length - 1:
            yield attention(query[None], key[None], value[None], None)[0]
            return
        band = self._band(length, reach, query.device)
        for start in range(0, length, BLOCK):
            block = slice(start, start + BLOCK)
            seen = slice(max(0, start - reach), start + BLOCK + reach)
            yield attention(query[None, block], key[None, seen], value[None, seen], band[block, seen])[0]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, reach: int | None) -> Tensor:
        rows = zip(*(tensor.split(self.lengths) for tensor in (query, key, value)), strict=True)
        parts = [part for q, k, v in rows for part in self._blocks(q, k, v, reach)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def look(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        rows = zip(query, key.split(self.lengths), value.split(self.lengths), strict=True)
        return torch.cat([attention(q[None], k[None], v[None], None) for q, k, v in rows])

    def encode(self, encoder: nn.Module, token_ids: Tensor) -> Tensor:
        parts = [
            encoder(input_ids=ids[None], attention_mask=torch.ones_like(ids)[None]).last_hidden_state[0]
            for ids in token_ids.split(self.lengths)
        ]
        return torch.cat(parts)


class Padded:
    """n rows in a rectangle of length L: N = n * L. `valid`, bool [n, L], tells text from padding.

    A padding position in a local layer may see padding only; some attention kernels make a fully masked row
    NaN, and 0 * NaN carries it to real positions in the next layer. So every position also sees itself:
    padding stays finite, and no real position ever looks at it.
    """

    def __init__(self, valid: Tensor) -> None:
        self.valid = valid
        self.shape = tuple(valid.shape)
        self._masks: dict[int | None, Tensor] = {}

    def _mask(self, reach: int | None) -> Tensor:
        if reach not in self._masks:
            length, device = self.shape[1], self.valid.device
            itself = torch.eye(length, dtype=torch.bool, device=device)
            seen = self.valid[:, None, :].expand(-1, length, -1)
            if reach is not None and reach < length - 1:
                seen = seen & near(length, reach, device)
            self._masks[reach] = (seen | itself)[:, None]
        return self._masks[reach]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, reach: int | None) -> Tensor:
        rows = (*self.shape, *query.shape[1:])
        seen = attention(query.view(rows), key.view(rows), value.view(rows), self._mask(reach))
        return seen.reshape(query.shape[0], -1)

    def look(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        # The first position of an empty line too, as a row that sees nothing becomes NaN.
        seen = self.valid | (torch.arange(self.shape[1], device=self.valid.device) == 0)
        rows = (*self.shape, *key.shape[1:])
        return attention(query, key.view(rows), value.view(rows), seen[:, None, None])

    def encode(self, encoder: nn.Module, token_ids: Tensor) -> Tensor:
        state = encoder(
            input_ids=token_ids.view(self.shape), attention_mask=self.valid.long()
        ).last_hidden_state
        return state.flatten(0, 1)


@dataclass(frozen=True)
class Batch:
    """The tensors of one pass over n rows with N tokens and at most K options, on the model's device.

    `token_ids`, `positions`, `types`: int64 [N]. `firsts`: int64 [n], where each row's [CLS] lies. `markers`:
    int64 [n, K], where its options' [MASK]s lie, 0 where there is none; `marked`: bool [n, K].
    """

    token_ids: Tensor
    positions: Tensor
    types: Tensor
    firsts: Tensor
    markers: Tensor
    marked: Tensor
    layout: Layout

    @property
    def asked(self) -> Tensor:
        """Where the answers are read off: each row's [CLS], then its markers; int64 [n, 1 + K]."""
        return torch.cat((self.firsts[:, None], self.markers), 1)


# What an encoder keeps from the embedding for all of its layers (rotations), or nothing.
Kept = dict[str, tuple[Tensor, Tensor]]


class Encoder(Protocol):
    """An encoder in steps: `begin`, then `layer` 0 to depth - 1, then `end`. Hidden states are [N, d]."""

    depth: int

    def begin(self, batch: Batch) -> tuple[Tensor, Kept]: ...

    def layer(self, index: int, state: Tensor, batch: Batch, kept: Kept) -> Tensor: ...

    def end(self, state: Tensor) -> Tensor: ...


# The rows that oneDNN is told to expect. Told none, it chooses an order that is 1.3 times as slow for 30 rows and 1.1
# times for 400; from 16 on all numbers give the same (two-core AMD EPYC virtual machine, 2026-11-30).
PACKED_FOR = 512


def pack(part: nn.Module) -> None:
    """Puts the weights of all linear layers of `part` into oneDNN's own blocked order, in place of the plain one.

    For fp32 on the CPU, and only for layers that `linear` runs: their own forward is lost. A torch without oneDNN
    keeps the plain order.
    """
    if not torch.backends.mkldnn.is_available():
        return
    for module in part.modules():
        if isinstance(module, nn.Linear) and module.weight is not None:
            module.packed = torch.ops.mkldnn._reorder_linear_weight(module.weight.detach(), PACKED_FOR)
            module.weight = None


def rounded(count: int) -> int:
    """The number of rows that oneDNN is given for `count`: itself up to 32, then at most a sixteenth more.

    oneDNN compiles code for each number of rows that it meets, 0.5 ms and 0.6 MiB for a layer, and keeps the last
    1,024 of these; what it drops leaves holes that malloc does not give back. With every number its own code, four
    thousand random requests took 1.8 GB, still growing; of these numbers there are 96 up to 512, and none is
    dropped. Filling up costs a pass 1.01 to 1.04 of its time (base size, random lengths from 33 to 512, all compiled
    before; two-core AMD EPYC virtual machine, 2026-12-01). It is done in each linear, so that attention, layouts and
    the last layer's few positions need not know of it.
    """
    step = max(1, (1 << (count - 1).bit_length()) // 32)
    return -(-count // step) * step


def linear(module: Any, state: Tensor) -> Tensor:
    """A linear layer in its weights' own precision."""
    packed = getattr(module, "packed", None)
    if packed is not None:
        rows = state.flatten(0, -2)
        count = rows.shape[0]
        if spare := rounded(count) - count:
            rows = F.pad(rows, (0, 0, 0, spare))
        done = torch.ops.mkldnn._linear_pointwise(rows, packed, module.bias, "none", [], "")
        return done[:count].unflatten(0, state.shape[:-1])
    return F.linear(state.to(module.weight.dtype), module.weight, module.bias)


def rotated(pair: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of queries and keys [N, 2, heads, width] by tables [N, width], in fp32."""
    left, right = pair.float().chunk(2, dim=-1)
    turned = torch.cat((-right, left), dim=-1)
    return (pair * cos[:, None, None] + turned * sin[:, None, None]).to(pair.dtype)


class ModernBert:
    """ModernBERT by layers: pre-norm, rotary positions, gated feed-forward, mostly local attention."""

    def __init__(self, module: Any, kinds: list[str], thetas: dict[str, float], max_len: int) -> None:
        """`kinds`: "full_attention" or "sliding_attention", of each layer. `thetas`: a kind's rotary base."""
        config = module.config
        self.module = module
        self.depth = len(module.layers)
        self.kinds = kinds
        self.reach = config.local_attention // 2
        self.width = config.hidden_size // config.num_attention_heads
        device = module.embeddings.tok_embeddings.weight.device
        place = torch.arange(max_len, device=device, dtype=torch.float32)[:, None]
        self.tables: Kept = {}
        for kind, theta in thetas.items():
            # On the CPU always, so that every device gets the same frequencies, to the bit.
            frequency = 1.0 / (theta ** (torch.arange(0, self.width, 2, dtype=torch.float32) / self.width))
            angle = (place * frequency.to(device)).repeat(1, 2)
            self.tables[kind] = (angle.cos(), angle.sin())

    def begin(self, batch: Batch) -> tuple[Tensor, Kept]:
        words = self.module.embeddings
        kept = {
            kind: (cos[batch.positions], sin[batch.positions]) for kind, (cos, sin) in self.tables.items()
        }
        return words.norm(words.tok_embeddings(batch.token_ids)), kept

    def layer(self, index: int, state: Tensor, batch: Batch, kept: Kept) -> Tensor:
        layer, kind = self.module.layers[index], self.kinds[index]
        mixed = linear(layer.attn.Wqkv, layer.attn_norm(state)).view(state.shape[0], 3, -1, self.width)
        query, key = rotated(mixed[:, :2], *kept[kind]).unbind(1)
        reach = self.reach if kind == "sliding_attention" else None
        state = state + linear(layer.attn.Wo, batch.layout.attend(query, key, mixed[:, 2], reach))
        wide, gate = linear(layer.mlp.Wi, layer.mlp_norm(state)).chunk(2, dim=-1)
        return state + linear(layer.mlp.Wo, layer.mlp.act(wide) * gate)

    def end(self, state: Tensor) -> Tensor:
        return self.module.final_norm(state)


class Bert:
    """BERT by layers: learned positions, post-norm, attention over the whole row."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.depth = len(module.encoder.layer)
        self.heads = module.config.num_attention_heads

    def begin(self, batch: Batch) -> tuple[Tensor, Kept]:
        table = self.module.embeddings
        state = table.word_embeddings(batch.token_ids) + table.token_type_embeddings.weight[0]
        return table.LayerNorm(state + table.position_embeddings(batch.positions)), {}

    def layer(self, index: int, state: Tensor, batch: Batch, kept: Kept) -> Tensor:
        layer = self.module.encoder.layer[index]
        own = layer.attention.self
        query, key, value = (
            linear(part, state).view(state.shape[0], self.heads, -1)
            for part in (own.query, own.key, own.value)
        )
        seen = batch.layout.attend(query, key, value, None)
        inner = layer.attention.output
        state = inner.LayerNorm(linear(inner.dense, seen) + state)
        wide = layer.intermediate.intermediate_act_fn(linear(layer.intermediate.dense, state))
        return layer.output.LayerNorm(linear(layer.output.dense, wide) + state)

    def end(self, state: Tensor) -> Tensor:
        return state


class Whole:
    """Any other encoder, through its own forward, as one step."""

    depth = 0

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def begin(self, batch: Batch) -> tuple[Tensor, Kept]:
        return batch.layout.encode(self.module, batch.token_ids), {}

    def layer(self, index: int, state: Tensor, batch: Batch, kept: Kept) -> Tensor:
        raise IndexError(index)

    def end(self, state: Tensor) -> Tensor:
        return state
