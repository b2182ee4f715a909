"""A Laya model: an encoder, the decision head on top of it, and both as a row of steps.

It knows tensors and the checkpoint's parameter names. It must not know files, queues, text or questions.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from worker.encoders import Batch, Encoder, Kept, Layout, Whole, linear, pack

# Logit of a marker slot that no option fills: its probability is 0 in fp32, and nothing becomes NaN.
UNFILLED = -1e4
HEAD_WIDTH = 64
ACTION_WIDTH = 256


class Head(nn.Module):
    """The head's transformer layers, a container of parameters under the names that checkpoints use."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        heads = max(1, width // HEAD_WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True, norm_first=True)
            for _ in range(layers)
        )


class Decision(nn.Module):
    """Encoder and decision head. Parameter names are the checkpoint's."""

    def __init__(self, encoder: Any, head_layers: int, actions: int) -> None:
        """`encoder`: what AutoModel built. `actions`: how many logits the action head gives."""
        super().__init__()
        width = encoder.config.hidden_size
        self.encoder = encoder
        self.head = Head(width, head_layers) if head_layers else None
        self.type_emb = nn.Embedding(3, width)
        self.scorer = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1)
        )
        self.act_head = nn.Sequential(
            nn.Linear(width + 4, ACTION_WIDTH), nn.GELU(), nn.Linear(ACTION_WIDTH, actions)
        )
        self.register_buffer("temperature", torch.ones(3))


def head_layer(layer: Any, state: Tensor, layout: Layout) -> Tensor:
    """A pre-norm transformer layer with ReLU: [N, d] -> [N, d]."""
    own = layer.self_attn
    mixed = F.linear(layer.norm1(state).to(own.in_proj_weight.dtype), own.in_proj_weight, own.in_proj_bias)
    query, key, value = mixed.view(state.shape[0], 3, own.num_heads, -1).unbind(1)
    state = state + linear(own.out_proj, layout.attend(query, key, value, None))
    return state + linear(layer.linear2, linear(layer.linear1, layer.norm2(state)).relu())


class Steps:
    """A model as a row of steps: `begin`, then `step` 0 to depth - 1, then `end`.

    The model's linear layers may be in a lower precision; norms, the residual stream, the scorer and the
    action head stay in fp32.
    """

    def __init__(self, model: Decision, encoder: Encoder) -> None:
        self.model = model
        self.encoder = encoder
        self.head = list(model.head.layers) if model.head is not None else []
        self.depth = encoder.depth + len(self.head)

    def pack(self) -> None:
        """Puts the weights of the layers that run here into the CPU's own order; see `encoders.pack`."""
        if not isinstance(self.encoder, Whole):
            pack(self.model.encoder)
        for layer in self.head:
            pack(layer)

    def begin(self, batch: Batch) -> tuple[Tensor, Kept]:
        state, kept = self.encoder.begin(batch)
        return (state if self.encoder.depth else self._typed(state, batch)), kept

    def _typed(self, state: Tensor, batch: Batch) -> Tensor:
        return self.encoder.end(state) + self.model.type_emb(batch.types)

    def step(self, index: int, state: Tensor, batch: Batch, kept: Kept) -> Tensor:
        if index >= self.encoder.depth:
            return head_layer(self.head[index - self.encoder.depth], state, batch.layout)
        state = self.encoder.layer(index, state, batch, kept)
        return self._typed(state, batch) if index == self.encoder.depth - 1 else state

    def end(self, state: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Option logits [n, K], UNFILLED where there is no option, and action logits [n, actions], fp32."""
        logits = self.model.scorer(state[batch.markers]).squeeze(-1).float()
        logits = logits.masked_fill(~batch.marked, UNFILLED)
        shares = logits.softmax(-1)
        # Two options at least: the entropy of one is 0 whatever divides it, and log 1 would make it NaN.
        count = batch.marked.sum(-1).clamp(min=2).float()
        entropy = -(shares * shares.clamp_min(1e-9).log()).sum(-1) / count.log()
        top = F.pad(shares, (0, 1)).topk(2, -1).values
        features = torch.stack((top[:, 0], top[:, 0] - top[:, 1], entropy, count / 255.0), -1)
        return logits, self.model.act_head(torch.cat((state[batch.firsts].float(), features), -1))

    def run(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """All steps at once."""
        state, kept = self.begin(batch)
        for index in range(self.depth):
            state = self.step(index, state, batch, kept)
        return self.end(state, batch)
