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


class HeadLayer:
    """A pre-norm transformer layer with ReLU.

    Queries are projected apart from keys and values: of the last layer only few positions are read.
    """

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        own = layer.self_attn
        self.heads = own.num_heads
        width = own.embed_dim
        self.query = part(own.in_proj_weight[:width], own.in_proj_bias[:width])
        self.key_value = part(own.in_proj_weight[width:], own.in_proj_bias[width:])

    def pack(self) -> None:
        """See `encoders.pack`."""
        for module in (self.layer, self.query, self.key_value):
            pack(module)
        self.layer.self_attn.in_proj_weight = None  # held by the two parts, in their own order

    def run(self, state: Tensor, layout: Layout, asked: Tensor | None = None) -> Tensor:
        """[N, d] -> [N, d], or of the positions `asked`, int64 [n, P], alone: [n, P, d]."""
        normed = self.layer.norm1(state)
        key, value = linear(self.key_value, normed).view(state.shape[0], 2, self.heads, -1).unbind(1)
        if asked is None:
            query = linear(self.query, normed).view(key.shape)
            seen = layout.attend(query, key, value, None)
        else:
            query = linear(self.query, normed[asked]).view(*asked.shape, self.heads, -1)
            seen = layout.look(query, key, value)
            state = state[asked]
        state = state + linear(self.layer.self_attn.out_proj, seen)
        return state + linear(self.layer.linear2, linear(self.layer.linear1, self.layer.norm2(state)).relu())


def part(weight: Tensor, bias: Tensor) -> nn.Linear:
    """A linear layer that is some of the outputs of another; it shares the other's memory."""
    found = nn.Linear(1, 1)
    found.weight = nn.Parameter(weight, requires_grad=False)
    found.bias = nn.Parameter(bias, requires_grad=False)
    return found


class Steps:
    """A model as a row of steps: `begin`, then `step` 0 to depth - 1, then `end`.

    The model's linear layers may be in a lower precision; norms, the residual stream, the scorer and the
    action head stay in fp32.
    """

    def __init__(self, model: Decision, encoder: Encoder) -> None:
        self.model = model
        self.encoder = encoder
        self.head = [HeadLayer(layer) for layer in model.head.layers] if model.head is not None else []
        self.depth = encoder.depth + len(self.head)

    def pack(self) -> None:
        """Puts the weights of the layers that run here into the CPU's own order; see `encoders.pack`."""
        if not isinstance(self.encoder, Whole):
            pack(self.model.encoder)
        for layer in self.head:
            layer.pack()

    def begin(self, batch: Batch) -> tuple[Tensor, Kept]:
        state, kept = self.encoder.begin(batch)
        return (state if self.encoder.depth else self._typed(state, batch)), kept

    def _typed(self, state: Tensor, batch: Batch) -> Tensor:
        return self.encoder.end(state) + self.model.type_emb(batch.types)

    def step(self, index: int, state: Tensor, batch: Batch, kept: Kept) -> Tensor:
        if index >= self.encoder.depth:
            last = index == self.depth - 1
            layer = self.head[index - self.encoder.depth]
            return layer.run(state, batch.layout, batch.asked if last else None)
        state = self.encoder.layer(index, state, batch, kept)
        return self._typed(state, batch) if index == self.encoder.depth - 1 else state

    def end(self, state: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Option logits [n, K], UNFILLED where there is no option, and action logits [n, actions], fp32.

        `state` is what the last step gave.
        """
        if not self.head:
            state = state[batch.asked]
        logits = self.model.scorer(state[:, 1:]).squeeze(-1).float()
        logits = logits.masked_fill(~batch.marked, UNFILLED)
        shares = logits.softmax(-1)
        # Two options at least: the entropy of one is 0 whatever divides it, and log 1 would make it NaN.
        count = batch.marked.sum(-1).clamp(min=2).float()
        entropy = -(shares * shares.clamp_min(1e-9).log()).sum(-1) / count.log()
        top = F.pad(shares, (0, 1)).topk(2, -1).values
        features = torch.stack((top[:, 0], top[:, 0] - top[:, 1], entropy, count / 255.0), -1)
        return logits, self.model.act_head(torch.cat((state[:, 0].float(), features), -1))

    def run(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """All steps at once."""
        state, kept = self.begin(batch)
        for index in range(self.depth):
            state = self.step(index, state, batch, kept)
        return self.end(state, batch)
