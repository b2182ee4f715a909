"""Small Laya-format checkpoints with random weights, for the worker's tests.

The answers mean nothing; the arithmetic is real. Knows the format's files; must not know the code under test
beyond the class that names the parameters.
"""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    BertConfig,
    BertModel,
    ModernBertConfig,
    ModernBertModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
)

from worker.model import LayaModel

# `base` and `large` have the work a token of published encoders of these sizes.
SIZES: dict[str, dict[str, int]] = {
    "tiny": {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 96},
    "base": {
        "hidden_size": 768,
        "num_hidden_layers": 22,
        "num_attention_heads": 12,
        "intermediate_size": 1152,
    },
    "large": {
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "intermediate_size": 2624,
    },
}
SPECIAL = ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")
SPECIAL_NAMES = dict(
    zip(("unk_token", "cls_token", "sep_token", "pad_token", "mask_token"), SPECIAL, strict=True)
)
CONFIG: Mapping[str, Any] = {
    "encoder": "random",
    "head_layers": 2,
    "act_costs": {"escalate": 1.0},
    "max_len": 512,
    "head_max_len": 192,
    "temperature": [1.2, 1.1, 0.9],
    "temperature_by_options": {"choice:3-5": 1.3},
}


def write(
    directory: Path, size: str = "tiny", family: str = "modernbert", seed: int = 0, **config: Any
) -> Path:
    """A checkpoint in `directory`; `config` goes over `rl_agent_config.json`. The same arguments, the same bytes."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer()
    tokenizer.save_pretrained(directory / "tokenizer")
    own = {**CONFIG, **config}
    torch.manual_seed(seed)
    encoder = _encoder(family, size, len(tokenizer))
    encoder.config.save_pretrained(directory / "encoder")
    model = LayaModel(encoder, own["head_layers"], len(own["act_costs"]) + 1)
    _spread(model)
    save_file(
        {name: tensor.contiguous() for name, tensor in model.state_dict().items()},
        directory / "model.safetensors",
    )
    (directory / "rl_agent_config.json").write_text(json.dumps(own))
    return directory


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Lets `change` alter one of a checkpoint's JSON files."""
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def train_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE of 2,000 tokens, trained on some of the standard library's sources."""
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:40]
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((path.read_text(errors="ignore") for path in sources), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL_NAMES)


def _encoder(family: str, size: str, vocabulary: int) -> Any:
    if family == "bert":
        return BertModel(
            BertConfig(vocab_size=vocabulary, pad_token_id=3, max_position_embeddings=512, **SIZES[size])
        )
    if family == "roberta":  # one that the worker runs whole
        return RobertaModel(
            RobertaConfig(vocab_size=vocabulary, pad_token_id=3, max_position_embeddings=520, **SIZES[size])
        )
    return ModernBertModel(
        ModernBertConfig(
            vocab_size=vocabulary,
            pad_token_id=3,
            cls_token_id=1,
            sep_token_id=2,
            bos_token_id=1,
            eos_token_id=2,
            max_position_embeddings=8192,
            global_attn_every_n_layers=3,
            local_attention=128,
            **SIZES[size],
        )
    )


def _spread(model: Any) -> None:
    """Make the random model opinionated: at the usual initialization every option gets the same probability."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2 and "embedding" not in name and name.startswith(("encoder.", "head.")):
                weight.normal_(0, 1.3 / weight.shape[1] ** 0.5)
        for linear in (model.scorer[1], model.act_head[0]):
            linear.weight.normal_(0, 1.0 / linear.weight.shape[1] ** 0.5)
        model.scorer[-1].weight.normal_(0, 3.0 / model.scorer[-1].weight.shape[1] ** 0.5)
        model.type_emb.weight.normal_(0, 0.5)
