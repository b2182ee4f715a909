"""Linear layers, on the CPU by oneDNN with weights in its own order.

It knows linear layers and what oneDNN does well. It must not know models, rows or layouts.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# The number of rows for which oneDNN chooses the order of the weights. With none given it chooses an order that is 1.3
# times as slow for 30 rows and 1.1 times for 400; every number from 16 up gives the same order (two-core AMD EPYC
# virtual machine, 2026-11-30).
REORDER_ROWS = 512


def reorder_weights(module: nn.Module) -> None:
    """Puts the weights of all linear layers in `module` into oneDNN's blocked order, instead of the plain one.

    For fp32 on the CPU, and only for layers that `linear` runs: their own forward no longer works. Where torch has no
    oneDNN nothing changes.
    """
    if not torch.backends.mkldnn.is_available():
        return
    for layer in module.modules():
        if isinstance(layer, nn.Linear) and layer.weight is not None:
            layer.blocked_weight = torch.ops.mkldnn._reorder_linear_weight(
                layer.weight.detach(), REORDER_ROWS
            )
            layer.weight = None


def rows_for_onednn(count: int) -> int:
    """How many rows oneDNN is given for `count`: as many up to 32, above that at most a sixteenth more.

    oneDNN compiles code for each number of rows that it meets, 0.5 ms and 0.6 MiB for a layer, and keeps the last
    1,024 of these; what it drops leaves holes that malloc does not give back. With code for every number, four
    thousand random requests took 1.8 GB, still growing. Of the numbers here there are 96 up to 512, and oneDNN drops
    none. The added rows cost a pass 1.01 to 1.04 of its time (base size, random lengths from 33 to 512, all compiled
    before; two-core AMD EPYC virtual machine, 2026-12-01). `linear` adds them, so that attention, layouts and the
    last layer's few positions need not know.
    """
    step = max(1, (1 << (count - 1).bit_length()) // 32)
    return -(-count // step) * step


def linear(layer: Any, inputs: Tensor) -> Tensor:
    """The output of a linear layer, in the precision of its weights."""
    blocked_weight = getattr(layer, "blocked_weight", None)
    if blocked_weight is not None:
        rows = inputs.flatten(0, -2)
        count = rows.shape[0]
        if added := rows_for_onednn(count) - count:
            rows = F.pad(rows, (0, 0, 0, added))
        outputs = torch.ops.mkldnn._linear_pointwise(rows, blocked_weight, layer.bias, "none", [], "")
        return outputs[:count].unflatten(0, inputs.shape[:-1])
    return F.linear(inputs.to(layer.weight.dtype), layer.weight, layer.bias)
