"""Loading: strict about what is wrong, indifferent to how a config is spelled, and sparing with memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.checkpoints import edit, write
from worker import checkpoint, encoder_config, folder
from worker.errors import CheckpointRefused, SettingRefused

WEIGHTS, CONFIG, ENCODER = "model.safetensors", "rl_agent_config.json", "encoder/config.json"


def refusal(source: Path | str, dtype: str = "fp32") -> str:
    with pytest.raises(CheckpointRefused) as caught:
        checkpoint.load(str(source), "cpu", dtype)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_loaded(tiny: Path) -> None:
    loaded = checkpoint.load(str(tiny), "cpu", "fp32")
    assert (loaded.folder, loaded.name) == (tiny, tiny.name)
    assert len(loaded.revision) == 12
    assert loaded.config.max_len == 512
    assert loaded.config.head_max_len == 192
    assert loaded.config.temperature_by_options == {"choice:3-5": 1.3}
    assert (loaded.tokenizer.cls, loaded.tokenizer.sep, loaded.tokenizer.mask) == (1, 2, 4)
    assert loaded.tokenizer.mask_text == "[MASK]"
    stored = load_file(tiny / WEIGHTS)
    for name, tensor in loaded.model.state_dict().items():
        assert torch.equal(tensor, stored[name]), name
        assert not tensor.requires_grad


def test_the_revision_is_the_content(tiny: Path, copy: Path) -> None:
    before = folder.digest(copy)
    assert before == folder.digest(tiny)
    stored = load_file(copy / WEIGHTS)
    stored["type_emb.weight"] += 1
    save_file(stored, copy / WEIGHTS)
    assert folder.digest(copy) != before


@pytest.mark.parametrize(
    "name", [CONFIG, ENCODER, "tokenizer/tokenizer.json", "tokenizer/tokenizer_config.json"]
)
def test_every_file_that_decides_the_answers_is_in_the_revision(copy: Path, name: str) -> None:
    before = folder.digest(copy)
    (copy / name).write_bytes((copy / name).read_bytes() + b"\n")
    assert folder.digest(copy) != before


def test_half_precision_weights_are_computed_in_fp32(copy: Path) -> None:
    stored = {name: tensor.half() for name, tensor in load_file(copy / WEIGHTS).items()}
    save_file(stored, copy / WEIGHTS)
    edit(copy / ENCODER, lambda config: config.update(dtype="float16"))
    for name, tensor in checkpoint.load(str(copy), "cpu", "fp32").model.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, stored[name].float())


def test_a_missing_parameter_is_named(copy: Path) -> None:
    stored = load_file(copy / WEIGHTS)
    del stored["encoder.layers.2.mlp.Wi.weight"]
    save_file(stored, copy / WEIGHTS)
    message = refusal(copy)
    assert WEIGHTS in message
    assert "encoder.layers.2.mlp.Wi.weight: missing" in message


def test_a_surplus_parameter_is_named(copy: Path) -> None:
    save_file(load_file(copy / WEIGHTS) | {"head.layers.2.norm1.bias": torch.zeros(64)}, copy / WEIGHTS)
    assert "head.layers.2.norm1.bias: surplus" in refusal(copy)


def test_a_misshaped_parameter_is_named(copy: Path) -> None:
    save_file(load_file(copy / WEIGHTS) | {"type_emb.weight": torch.zeros(4, 64)}, copy / WEIGHTS)
    assert "type_emb.weight: has shape (4, 64), not (3, 64)" in refusal(copy)


def test_weights_that_are_not_finite_are_refused(copy: Path) -> None:
    stored = load_file(copy / WEIGHTS)
    stored["scorer.1.bias"][3] = float("nan")
    save_file(stored, copy / WEIGHTS)
    assert "scorer.1.bias: holds a value that is not finite" in refusal(copy)


@pytest.mark.parametrize(
    "name", [WEIGHTS, CONFIG, ENCODER, "tokenizer/tokenizer.json", "tokenizer/tokenizer_config.json"]
)
def test_a_missing_file_is_named(copy: Path, name: str) -> None:
    (copy / name).unlink()
    message = refusal(copy)
    assert name in message
    assert "missing" in message


@pytest.mark.parametrize("name", [WEIGHTS, CONFIG, ENCODER, "tokenizer/tokenizer.json"])
def test_a_file_of_another_kind_is_named(copy: Path, name: str) -> None:
    (copy / name).write_bytes(b"\x00\x01 nonsense")
    assert name in refusal(copy)


def test_a_cut_weights_file_is_named(copy: Path) -> None:
    whole = (copy / WEIGHTS).read_bytes()
    (copy / WEIGHTS).write_bytes(whole[: len(whole) // 2])
    assert WEIGHTS in refusal(copy)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"option_layout": "parallel"}, "option_layout: 'parallel'"),
        ({"head_layers": None}, "head_layers"),
        ({"head_layers": "2"}, "head_layers"),
        ({"head_layers": True}, "head_layers"),
        ({"act_costs": [1.0]}, "act_costs"),
        ({"max_len": 0}, "max_len"),
        ({"max_len": 100_000}, "max_position_embeddings"),
        ({"head_max_len": "192"}, "head_max_len"),
        ({"temperature": [1.0, 1.0]}, "temperature"),
        ({"temperature_by_options": []}, "temperature_by_options"),
        ({"head_layers": 1}, "head.layers.1"),
        ({"act_costs": {}}, "act_head.2"),
    ],
)
def test_a_wrong_config_is_named(copy: Path, change: dict[str, Any], key: str) -> None:
    edit(copy / CONFIG, lambda config: config.update(change))
    assert key in refusal(copy)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"model_type": "nonesuch"}, ENCODER),
        ({"model_type": None}, "model_type"),
        ({"hidden_size": 96}, "has shape"),
        ({"hidden_size": "wide"}, ENCODER),
        ({"num_hidden_layers": 3}, "layer"),
        ({"layer_types": ["full_attention", "causal", "full_attention", "full_attention"]}, "layer_types"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "yarn", "rope_theta": 1.0}}},
            "rope_parameters",
        ),
        ({"rope_parameters": {"full_attention": {"rope_theta": "x"}}}, "rope_parameters"),
        ({"vocab_size": 100}, "vocab_size"),
    ],
)
def test_a_wrong_encoder_config_is_named(copy: Path, change: dict[str, Any], key: str) -> None:
    edit(copy / ENCODER, lambda config: config.update(change))
    assert key in refusal(copy)


def test_a_tokenizer_without_a_special_token_is_named(copy: Path) -> None:
    edit(copy / "tokenizer/tokenizer_config.json", lambda config: config.pop("mask_token"))
    (copy / "tokenizer/special_tokens_map.json").unlink(missing_ok=True)
    message = refusal(copy)
    assert "tokenizer_config.json" in message
    assert "mask_token" in message


def test_a_path_that_is_not_there() -> None:
    assert "/nowhere/at/all" in refusal("/nowhere/at/all")


def test_devices_and_precisions_that_are_not_there(tiny: Path) -> None:
    with pytest.raises(SettingRefused, match="LAYA_DTYPE"):
        checkpoint.load(str(tiny), "cpu", "bf16")
    if not torch.cuda.device_count():
        with pytest.raises(SettingRefused, match="LAYA_DTYPE"):
            checkpoint.load("no/such-repository", "auto", "bf16")
    with pytest.raises(SettingRefused, match="LAYA_DEVICE"):
        checkpoint.load(str(tiny), f"cuda:{torch.cuda.device_count()}", "fp32")


# Rotary bases: a config of transformers 4, one of 5, mmBERT's in both, and what is left out.
PER_KIND = {
    "full_attention": {"rope_type": "default", "rope_theta": 160000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 160000.0},
}


@pytest.mark.parametrize(
    ("config", "whole", "local"),
    [
        ({"global_rope_theta": 160000.0, "local_rope_theta": 160000.0}, 160000.0, 160000.0),
        ({"rope_parameters": PER_KIND}, 160000.0, 160000.0),
        ({"rope_parameters": PER_KIND, "local_rope_theta": 10000.0}, 160000.0, 160000.0),
        ({"global_rope_theta": 80000, "local_rope_theta": None}, 80000.0, 80000.0),
        ({"global_rope_theta": 80000.0}, 80000.0, 10000.0),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}, 500.0, 500.0),
        ({"rope_parameters": {"sliding_attention": {"rope_theta": 7.0}}}, 160000.0, 7.0),
        ({"rope_parameters": None}, 160000.0, 10000.0),
        ({}, 160000.0, 10000.0),
    ],
)
def test_rotary_bases_of_either_spelling(config: dict[str, Any], whole: float, local: float) -> None:
    assert encoder_config.rope_thetas(config) == {"full_attention": whole, "sliding_attention": local}


def last_hidden(loaded: checkpoint.Checkpoint, *, whole: bool) -> torch.Tensor:
    """The last hidden state of 200 tokens, by the installed transformers' own forward or by our layers."""
    tokens = torch.arange(5, 205)
    with torch.inference_mode():
        if whole:
            module = loaded.model.encoder
            return module(input_ids=tokens[None], attention_mask=torch.ones(1, 200).long()).last_hidden_state[
                0
            ]
        from worker.rows import Row
        from worker.tensors import packed_batch

        batch, encoder = packed_batch([Row(tuple(tokens.tolist()), (1,), 0)]), loaded.steps.encoder
        hidden, rotations = encoder.begin(batch)
        for index in range(encoder.depth):
            hidden = encoder.layer(index, hidden, batch, rotations)
        return encoder.end(hidden)


@pytest.mark.parametrize("spelling", ["transformers 4", "transformers 5"])
def test_a_local_base_of_its_own_reaches_the_arithmetic(copy: Path, tiny: Path, spelling: str) -> None:
    def respell(config: dict[str, Any]) -> None:
        config.pop("rope_parameters", None)
        config.pop("local_rope_theta", None)
        if spelling == "transformers 4":
            config.pop("layer_types", None)
            config.update(global_rope_theta=160000.0, local_rope_theta=160000.0, global_attn_every_n_layers=3)
        else:
            config.update(rope_parameters=PER_KIND)

    edit(copy / ENCODER, respell)
    changed, usual = (checkpoint.load(str(path), "cpu", "fp32") for path in (copy, tiny))
    ours, theirs = last_hidden(changed, whole=False), last_hidden(changed, whole=True)
    assert (ours - theirs).abs().max() < 1e-4, "the installed transformers computes something else"
    assert (ours - last_hidden(usual, whole=False)).abs().max() > 1e-2, "the local base made no difference"


@pytest.mark.parametrize("family", ["modernbert", "bert"])
def test_our_layers_equal_the_installed_transformers(tmp_path: Path, family: str) -> None:
    loaded = checkpoint.load(str(write(tmp_path / family, family=family)), "cpu", "fp32")
    assert (last_hidden(loaded, whole=False) - last_hidden(loaded, whole=True)).abs().max() < 1e-4


def test_any_other_encoder_runs_through_its_own_forward(tiny: Path, tmp_path: Path) -> None:
    from transformers import ElectraConfig, ElectraModel

    from worker.engine import Engine
    from worker.rows import Row

    target = Path(shutil.copytree(tiny, tmp_path / "electra"))
    config = ElectraConfig(
        vocab_size=2000, embedding_size=64, hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=96, max_position_embeddings=512, pad_token_id=3,
    )  # fmt: skip
    config.save_pretrained(target / "encoder")
    encoder = ElectraModel(config)
    stored = {name: tensor for name, tensor in load_file(tiny / WEIGHTS).items() if "encoder." not in name}
    stored |= {f"encoder.{name}": tensor.contiguous() for name, tensor in encoder.state_dict().items()}
    save_file(stored, target / WEIGHTS)
    engine = Engine(checkpoint.load(str(target), "cpu", "fp32"))
    rows = [Row(tuple(range(5, 30)), (1, 4), 0), Row(tuple(range(7, 90)), (2,), 2)]
    together = engine.run(rows)
    alone = [engine.run([row])[0] for row in rows]
    for one, other in zip(together, alone, strict=True):
        assert one.options == pytest.approx(other.options, abs=2e-5)


# Memory.


def test_the_weights_are_held_once(tiny: Path, copy: Path) -> None:
    """The peak of a process that loads 130 MB of weights, above one that has loaded a small checkpoint."""
    wide = {"hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 1024, "num_hidden_layers": 12}
    edit(copy / ENCODER, lambda config: config.update(wide, layer_types=None))
    skeleton = checkpoint.build_model(copy, folder.read_config(copy), folder.read_json(copy, ENCODER))
    assert all(parameter.is_meta for parameter in skeleton.parameters())
    save_file(
        {name: torch.ones(value.shape) for name, value in skeleton.state_dict().items()}, copy / WEIGHTS
    )
    program = (
        "import pathlib, sys\nfrom worker import checkpoint\n"
        "def peak(): return int(pathlib.Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0]) * 1024\n"
        "checkpoint.load(sys.argv[1], 'cpu', 'fp32')\nbefore = peak()\n"
        "loaded = checkpoint.load(sys.argv[2], 'cpu', 'fp32')\nprint(peak() - before)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tiny), str(copy)],
        env=os.environ | {"PYTHONPATH": str(Path.cwd())}, capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    size = (copy / WEIGHTS).stat().st_size
    assert size > 100e6
    assert 0.8 * size < int(ran.stdout) < 1.5 * size
