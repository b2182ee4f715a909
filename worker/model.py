"""A Laya model: an encoder, the decision head on top of it, and both as a sequence of steps.

It knows tensors and the checkpoint's parameter names. It must not know files, queues, text or questions.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from worker.encoders import Encoder, Rotations, WholeEncoder
from worker.layouts import Layout
from worker.linears import linear, reorder_weights
from worker.tensors import RowBatch

# The logit where a row has no option: its probability is 0 in fp32, and nothing becomes NaN.
NO_OPTION = -1e4
ATTENTION_HEAD_WIDTH = 64
ACTION_HIDDEN_WIDTH = 256


class DecisionHead(nn.Module):
    """The decision head's transformer layers: a container of parameters under the names that checkpoints use."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        num_heads = max(1, width // ATTENTION_HEAD_WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, num_heads, 4 * width, batch_first=True, norm_first=True)
            for _ in range(layers)
        )


class LayaModel(nn.Module):
    """Encoder, decision head, scorer and action head. Attribute names are the checkpoint's parameter names."""

    def __init__(self, encoder: Any, head_layers: int, actions: int) -> None:
        """`encoder`: what AutoModel built. `actions`: how many logits the action head gives."""
        super().__init__()
        width = encoder.config.hidden_size
        self.encoder = encoder
        self.head = DecisionHead(width, head_layers) if head_layers else None
        self.type_emb = nn.Embedding(3, width)
        self.scorer = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1)
        )
        self.act_head = nn.Sequential(
            nn.Linear(width + 4, ACTION_HIDDEN_WIDTH), nn.GELU(), nn.Linear(ACTION_HIDDEN_WIDTH, actions)
        )
        self.register_buffer("temperature", torch.ones(3))


class DecisionHeadLayer:
    """A pre-norm transformer layer with ReLU.

    Queries are projected apart from keys and values, because only a few positions of the last layer are read.
    """

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        attention = layer.self_attn
        self.num_heads = attention.num_heads
        width = attention.embed_dim
        self.query = linear_slice(attention.in_proj_weight[:width], attention.in_proj_bias[:width])
        self.key_value = linear_slice(attention.in_proj_weight[width:], attention.in_proj_bias[width:])

    def reorder_weights(self) -> None:
        """See `linears.reorder_weights`."""
        for module in (self.layer, self.query, self.key_value):
            reorder_weights(module)
        # Both slices now hold it, in their own order.
        self.layer.self_attn.in_proj_weight = None

    def run(self, hidden: Tensor, layout: Layout, positions: Tensor | None = None) -> Tensor:
        """[N, d] -> [N, d]; with `positions`, int64 [n, P], the output of these alone: [n, P, d]."""
        normed = self.layer.norm1(hidden)
        key, value = linear(self.key_value, normed).view(hidden.shape[0], 2, self.num_heads, -1).unbind(1)
        if positions is None:
            query = linear(self.query, normed).view(key.shape)
            attended = layout.attend(query, key, value, None)
        else:
            query = linear(self.query, normed[positions]).view(*positions.shape, self.num_heads, -1)
            attended = layout.attend_selected(query, key, value)
            hidden = hidden[positions]
        hidden = hidden + linear(self.layer.self_attn.out_proj, attended)
        inner = linear(self.layer.linear1, self.layer.norm2(hidden)).relu()
        return hidden + linear(self.layer.linear2, inner)


def linear_slice(weight: Tensor, bias: Tensor) -> nn.Linear:
    """A linear layer that gives some of the outputs of another, and shares its memory."""
    layer = nn.Linear(1, 1)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer


class ModelSteps:
    """A model as a sequence of steps: `begin`, then `step` 0 to depth - 1, then `end`.

    The model's linear layers may be in a lower precision. Norms, the residual stream, the scorer and the action head
    stay in fp32.
    """

    def __init__(self, model: LayaModel, encoder: Encoder) -> None:
        self.model = model
        self.encoder = encoder
        layers = model.head.layers if model.head is not None else ()
        self.head_layers = [DecisionHeadLayer(layer) for layer in layers]
        self.depth = encoder.depth + len(self.head_layers)

    def reorder_weights(self) -> None:
        """See `linears.reorder_weights`; for the layers that run here."""
        if not isinstance(self.encoder, WholeEncoder):
            reorder_weights(self.model.encoder)
        for layer in self.head_layers:
            layer.reorder_weights()

    def begin(self, batch: RowBatch) -> tuple[Tensor, Rotations]:
        hidden, rotations = self.encoder.begin(batch)
        return (hidden if self.encoder.depth else self._end_encoder(hidden, batch)), rotations

    def _end_encoder(self, hidden: Tensor, batch: RowBatch) -> Tensor:
        return self.encoder.end(hidden) + self.model.type_emb(batch.question_types)

    def step(self, index: int, hidden: Tensor, batch: RowBatch, rotations: Rotations) -> Tensor:
        if index >= self.encoder.depth:
            last = index == self.depth - 1
            layer = self.head_layers[index - self.encoder.depth]
            return layer.run(hidden, batch.layout, batch.output_positions if last else None)
        hidden = self.encoder.layer(index, hidden, batch, rotations)
        return self._end_encoder(hidden, batch) if index == self.encoder.depth - 1 else hidden

    def end(self, hidden: Tensor, batch: RowBatch) -> tuple[Tensor, Tensor]:
        """Option logits [n, K], NO_OPTION where a row has none, and action logits [n, actions], fp32.

        `hidden` is what the last step gave.
        """
        if not self.head_layers:
            hidden = hidden[batch.output_positions]
        logits = self.model.scorer(hidden[:, 1:]).squeeze(-1).float()
        logits = logits.masked_fill(~batch.option_mask, NO_OPTION)
        probabilities = logits.softmax(-1)
        # At least 2: the entropy of one option is 0 whatever divides it, and log 1 would make it NaN.
        count = batch.option_mask.sum(-1).clamp(min=2).float()
        entropy = -(probabilities * probabilities.clamp_min(1e-9).log()).sum(-1) / count.log()
        top = F.pad(probabilities, (0, 1)).topk(2, -1).values
        features = torch.stack((top[:, 0], top[:, 0] - top[:, 1], entropy, count / 255.0), -1)
        return logits, self.model.act_head(torch.cat((hidden[:, 0].float(), features), -1))

    def run(self, batch: RowBatch) -> tuple[Tensor, Tensor]:
        """All steps at once."""
        hidden, rotations = self.begin(batch)
        for index in range(self.depth):
            hidden = self.step(index, hidden, batch, rotations)
        return self.end(hidden, batch)
