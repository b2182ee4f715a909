"""An encoder's config, `encoder/config.json`, as transformers 4 and 5 spell it.

It knows the keys that both write, and what each leaves out. It must not know tensors or files.
"""

from collections.abc import Mapping
from typing import Any

# ModernBERT's own rotary bases, for configs that leave them out.
GLOBAL_THETA, LOCAL_THETA = 160_000.0, 10_000.0
GLOBAL_ATTENTION, LOCAL_ATTENTION = "full_attention", "sliding_attention"


def rope_thetas(config: Mapping[str, Any]) -> dict[str, float]:
    """ModernBERT's rotary base for each type of layer.

    transformers 4 writes `global_rope_theta` and `local_rope_theta` (None: the global one), transformers 5
    `rope_parameters` for each type of layer. Each ignores the other's spelling without a word. Raises ValueError(key,
    reason).
    """
    whole = config.get("global_rope_theta", GLOBAL_THETA)
    local = config.get("local_rope_theta", LOCAL_THETA)
    thetas = {GLOBAL_ATTENTION: whole, LOCAL_ATTENTION: whole if local is None else local}
    parameters = config.get("rope_parameters") or {}
    for layer_type, theta in thetas.items():
        if layer_type in parameters:
            own = parameters[layer_type] or {}
        else:
            own = parameters if "rope_theta" in parameters else {}
        if own.get("rope_type", "default") != "default":
            reason = f"rope_type {own['rope_type']!r} is not supported, only 'default'"
            raise ValueError("rope_parameters", reason)
        value = own.get("rope_theta", theta)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise ValueError("rope_parameters", f"{layer_type}: rope_theta must be a positive number")
        thetas[layer_type] = value
    return {layer_type: float(theta) for layer_type, theta in thetas.items()}


def layer_types(config: Mapping[str, Any], depth: int) -> list[str]:
    """The type of each ModernBERT layer. Raises ValueError(key, reason)."""
    every = config.get("global_attn_every_n_layers") or 3
    types = config.get("layer_types") or [
        LOCAL_ATTENTION if index % every else GLOBAL_ATTENTION for index in range(depth)
    ]
    if len(types) != depth or not set(types) <= {GLOBAL_ATTENTION, LOCAL_ATTENTION}:
        reason = f"must name {GLOBAL_ATTENTION} or {LOCAL_ATTENTION} for each of {depth} layers"
        raise ValueError("layer_types", reason)
    return list(types)


def in_both_spellings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with what either transformers looks for. Raises ValueError(key, reason)."""
    settings = dict(config)
    if settings.get("model_type") == "modernbert":
        layer_types(settings, settings.get("num_hidden_layers", 22))
        thetas = rope_thetas(settings)
        settings |= {
            "global_rope_theta": thetas[GLOBAL_ATTENTION],
            "local_rope_theta": thetas[LOCAL_ATTENTION],
            "rope_parameters": {
                layer_type: {"rope_type": "default", "rope_theta": theta}
                for layer_type, theta in thetas.items()
            },
            "reference_compile": False,
        }
    # Without these the model is built in fp32, whatever precision the encoder was once saved in.
    settings.pop("dtype", None)
    settings.pop("torch_dtype", None)
    return settings
