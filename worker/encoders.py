"""The arithmetic of encoders, a layer at a time.

It knows tensors and the names of the parameters that transformers' encoders have. It must not know the decision head,
files, queues, text or questions.

ModernBERT's and BERT's layers run here one at a time, with the parameters of the module that AutoModel built, so that
a caller can stop between two layers. Any other encoder runs as one step through its own forward.
"""

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from worker.linears import linear
from worker.tensors import RowBatch

# The rotary tables of each type of layer, (cos, sin), each [N, width]; empty where an encoder has none.
Rotations = dict[str, tuple[Tensor, Tensor]]


class Encoder(Protocol):
    """An encoder in steps: `begin`, then `layer` 0 to depth - 1, then `end`. Hidden states are [N, d]."""

    depth: int

    def begin(self, batch: RowBatch) -> tuple[Tensor, Rotations]: ...

    def layer(self, index: int, hidden: Tensor, batch: RowBatch, rotations: Rotations) -> Tensor: ...

    def end(self, hidden: Tensor) -> Tensor: ...


def rotate(query_key: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of queries and keys [N, 2, heads, width] by tables [N, width], in fp32."""
    left, right = query_key.float().chunk(2, dim=-1)
    turned = torch.cat((-right, left), dim=-1)
    return (query_key * cos[:, None, None] + turned * sin[:, None, None]).to(query_key.dtype)


class ModernBertEncoder:
    """ModernBERT by layers: pre-norm, rotary positions, gated feed-forward, mostly local attention."""

    def __init__(self, module: Any, layer_types: list[str], thetas: dict[str, float], max_len: int) -> None:
        """`layer_types`: "full_attention" or "sliding_attention", of each layer. `thetas`: each type's rotary base."""
        config = module.config
        self.module = module
        self.depth = len(module.layers)
        self.layer_types = layer_types
        self.window = config.local_attention // 2
        self.width = config.hidden_size // config.num_attention_heads
        device = module.embeddings.tok_embeddings.weight.device
        position = torch.arange(max_len, device=device, dtype=torch.float32)[:, None]
        self.tables: Rotations = {}
        for layer_type, theta in thetas.items():
            # Computed on the CPU always, so that every device gets the same frequencies, to the bit.
            frequency = 1.0 / (theta ** (torch.arange(0, self.width, 2, dtype=torch.float32) / self.width))
            angle = (position * frequency.to(device)).repeat(1, 2)
            self.tables[layer_type] = (angle.cos(), angle.sin())

    def begin(self, batch: RowBatch) -> tuple[Tensor, Rotations]:
        embeddings = self.module.embeddings
        rotations = {
            layer_type: (cos[batch.positions], sin[batch.positions])
            for layer_type, (cos, sin) in self.tables.items()
        }
        return embeddings.norm(embeddings.tok_embeddings(batch.token_ids)), rotations

    def layer(self, index: int, hidden: Tensor, batch: RowBatch, rotations: Rotations) -> Tensor:
        layer, layer_type = self.module.layers[index], self.layer_types[index]
        projected = linear(layer.attn.Wqkv, layer.attn_norm(hidden)).view(hidden.shape[0], 3, -1, self.width)
        query, key = rotate(projected[:, :2], *rotations[layer_type]).unbind(1)
        window = self.window if layer_type == "sliding_attention" else None
        hidden = hidden + linear(layer.attn.Wo, batch.layout.attend(query, key, projected[:, 2], window))
        inner, gate = linear(layer.mlp.Wi, layer.mlp_norm(hidden)).chunk(2, dim=-1)
        return hidden + linear(layer.mlp.Wo, layer.mlp.act(inner) * gate)

    def end(self, hidden: Tensor) -> Tensor:
        return self.module.final_norm(hidden)


class BertEncoder:
    """BERT by layers: learned positions, post-norm, attention to the whole row."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.depth = len(module.encoder.layer)
        self.num_heads = module.config.num_attention_heads

    def begin(self, batch: RowBatch) -> tuple[Tensor, Rotations]:
        embeddings = self.module.embeddings
        hidden = embeddings.word_embeddings(batch.token_ids) + embeddings.token_type_embeddings.weight[0]
        return embeddings.LayerNorm(hidden + embeddings.position_embeddings(batch.positions)), {}

    def layer(self, index: int, hidden: Tensor, batch: RowBatch, rotations: Rotations) -> Tensor:
        layer = self.module.encoder.layer[index]
        projections = layer.attention.self
        query, key, value = (
            linear(projection, hidden).view(hidden.shape[0], self.num_heads, -1)
            for projection in (projections.query, projections.key, projections.value)
        )
        attended = batch.layout.attend(query, key, value, None)
        output = layer.attention.output
        hidden = output.LayerNorm(linear(output.dense, attended) + hidden)
        inner = layer.intermediate.intermediate_act_fn(linear(layer.intermediate.dense, hidden))
        return layer.output.LayerNorm(linear(layer.output.dense, inner) + hidden)

    def end(self, hidden: Tensor) -> Tensor:
        return hidden


class WholeEncoder:
    """Any other encoder, through its own forward, as one step."""

    depth = 0

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def begin(self, batch: RowBatch) -> tuple[Tensor, Rotations]:
        return batch.layout.run_encoder(self.module, batch.token_ids), {}

    def layer(self, index: int, hidden: Tensor, batch: RowBatch, rotations: Rotations) -> Tensor:
        raise IndexError(index)

    def end(self, hidden: Tensor) -> Tensor:
        return hidden
