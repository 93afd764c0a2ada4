"""Mixtures of experts, latent attention and windows: published counts, configs of every family, shards."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import table

from medusa_sim.errors import SpecError, UsageError
from medusa_sim.models.feed_forwards import MoE
from medusa_sim.models.mixers import Grouped, Latent
from medusa_sim.models.model import Model
from medusa_sim.models.named import load_model
from medusa_sim.models.parallel import ONE, Parallel, divisors
from medusa_sim.models.variants import on_one_gpu, with_dtypes

MODELS = table("models")
PUBLISHED, FAMILIES, SAME = MODELS["mixtures"], MODELS["families"], MODELS["deployed"]
NO_EMBEDDING = ("gpt-oss-20b", "gpt-oss-120b", "minimax-m2", "deepseek-v2-lite")
"""Active without the token embedding, as these cards say or as their figure follows."""
NO_VOCABULARY = ("glm-4.5-air", "glm-4.5", "glm-4.6")
"""Active without embedding and LM head: GLM-4.5's report."""


def _beside(model: Model) -> int:
    """Elements of a checkpoint that cost nothing: router corrections, attention sinks, an MTP module."""
    corrections = sum(count * experts.experts for count, experts in model.blocks(MoE))
    match model.architecture:
        case "deepseek_v3":
            return corrections
        case "gpt_oss":
            return model.layers * model.attention.heads
        case "glm4_moe":
            fusion = 2 * model.hidden**2 + 3 * model.hidden
            copies = 2 * model.vocab * model.hidden
            module = model.resized(layers=1).layers_parameter_count + model.experts.experts
            return corrections + module + fusion + copies
        case _:
            return 0


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_counts_are_the_published_ones(name):
    model = load_model(name)
    total, active = PUBLISHED[name]
    if isinstance(total, int):
        assert model.parameter_count + _beside(model) == total
    else:
        assert model.parameter_count == pytest.approx(total, rel=0.005 if total > 1e12 else 0.015)
    tables = (name in NO_EMBEDDING) + 2 * (name in NO_VOCABULARY)
    counted = model.active_parameter_count - tables * model.vocab * model.hidden
    assert counted == pytest.approx(active, rel=0.06)


def test_activations_of_a_token_are_those_of_its_experts_and_the_shared_ones():
    gated = MoE(experts=64, topk=8, inter=768, shared=1024)
    assert gated.widest == 3 * (8 * 768 + 1024)
    assert msgspec.structs.replace(gated, gated=False).widest == 2 * (8 * 768 + 1024)


def test_weights_and_caches_lie_in_memory_as_released():
    # gpt-oss model card: checkpoints of 60.8 and 12.8 GiB, experts in mxfp4
    for name, gib in (("gpt-oss-120b", 60.8), ("gpt-oss-20b", 12.8)):
        assert load_model(name).weight_bytes / 2**30 == pytest.approx(gib, rel=0.01)
    # DeepSeek-V3: about 689 GB with the MTP module of 14 GB
    assert load_model("deepseek-v3").weight_bytes == pytest.approx(675e9, rel=0.01)
    bf16 = with_dtypes(load_model("gpt-oss-20b"), dtype="bf16")
    assert bf16.weight_bytes == 2 * bf16.parameter_count
    assert load_model("deepseek-v3").kv_bytes_per_token == 61 * (512 + 64) * 2


def test_a_windowed_layer_keeps_its_window():
    model = load_model("gpt-oss-20b")
    assert model.windows == (128,)
    tokens = np.asarray([1.0, 128.0, 4096.0])
    kept = model.kv_bytes(tokens)
    assert kept[:2] == pytest.approx(tokens[:2] * model.kv_bytes_per_token)
    assert kept[2] == pytest.approx((4096 + 128) / 2 * model.kv_bytes_per_token)
    plain = load_model("qwen3-30b-a3b")
    assert np.array_equal(plain.kv_bytes(tokens), tokens * plain.kv_bytes_per_token)
    near = next(mixer for _, mixer in model.blocks(Grouped) if mixer.size)
    assert near.keys(np.asarray(4096.0), np.asarray(1.0)) == 128
    assert near.keys(np.asarray(100.0), np.asarray(4.0)) == 100


# --- configs -----------------------------------------------------------------------------------------

COMMON: dict[str, Any] = {
    "hidden_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 4,
    "vocab_size": 32000, "max_position_embeddings": 4096, "intermediate_size": 5632, "num_experts_per_tok": 2,
    "torch_dtype": "bfloat16",
}  # fmt: skip


def _load(folder: Path, content: dict[str, Any]) -> Model:
    path = folder / "config.json"
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))
    return load_model(path)


def _config(family: str) -> dict[str, Any]:
    of = FAMILIES[family]
    return {**COMMON, "architectures": [of["architecture"]], "model_type": family, **of["config"]}


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_configs_of_every_family(tmp_path, family):
    model = _load(tmp_path, _config(family))
    assert model.architecture == family
    assert model.blocks(MoE) == ((FAMILIES[family]["layers"], MoE(**FAMILIES[family]["experts"])),)
    assert bool(model.blocks(Latent)) == (family in ("deepseek_v2", "kimi_k2"))
    assert model.mtp_layers == {"glm4_moe": 1, "minimax_m2": 3}.get(family, 0)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_missing_field_is_named(tmp_path, family):
    for key in ("num_experts_per_tok", *FAMILIES[family]["config"]):
        if key in ("num_local_experts", "num_experts", "n_routed_experts", "kv_lora_rank", "v_head_dim"):
            with pytest.raises(SpecError, match=rf"config\.json: {key}: missing"):
                _load(tmp_path, {**_config(family), key: ...})
    with pytest.raises(SpecError, match="num_experts_per_tok: given 1000"):
        _load(tmp_path, {**_config(family), "num_experts_per_tok": 1000})


def _windows(model: Model) -> dict[tuple[int | None, bool], int]:
    """(size, chunked) -> layers."""
    return {(mixer.size, mixer.chunked): count for count, mixer in model.blocks(Grouped)}


def test_windows_of_configs(tmp_path):
    gpt = _load(tmp_path, {**_config("gpt_oss"), "layer_types": ["sliding_attention", "full_attention"] * 4})
    assert _windows(gpt) == {(128, False): 4, (None, False): 4}
    with pytest.raises(SpecError, match="layer_types: 1 entries"):
        _load(tmp_path, {**_config("gpt_oss"), "layer_types": ["sliding_attention"]})
    llama = _load(tmp_path, _config("llama4_text"))
    assert _windows(llama) == {(8192, True): 6, (None, False): 2}
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    gemma = _load(tmp_path, {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text})
    named = load_model("gemma-3-4b")
    assert gemma == dataclasses.replace(
        named, name=gemma.name, source=gemma.source, notes=gemma.notes,
        dtype="fp16", weight_dtype="fp16", kv_dtype="fp16", activation_dtype="fp16",
    )  # fmt: skip


@pytest.mark.parametrize(("family", "told"), [("minimax_m1", "lightning"), ("bamba", "lists the families")])
def test_families_that_are_not_modelled_say_what_is_missing(tmp_path, family, told):
    with pytest.raises(SpecError, match=told):
        _load(tmp_path, {**COMMON, "model_type": family})


@pytest.mark.parametrize("config", sorted(SAME))
def test_deployed_configs_equal_the_named_models(tmp_path, config):
    shapes = Path(os.environ.get("MEDUSA_SIM_DATA", "../shared/data")) / "moe_tp" / "model_shapes.json"
    if not shapes.is_file():
        pytest.skip("the sizes of deployed models are not beside this checkout")
    held = {key: value for key, value in json.loads(shapes.read_text())[config].items() if key[0] != "_"}
    named = load_model(SAME[config])
    if isinstance(held.get("layer_types"), str):  # abridged there
        del held["layer_types"]
    if held["architectures"] == ["Llama4ForConditionalGeneration"]:
        held = {"architectures": held.pop("architectures"), "text_config": held}
        held["text_config"]["max_position_embeddings"] = named.max_seq_len
    read = _load(tmp_path, {"max_position_embeddings": named.max_seq_len, "torch_dtype": "bfloat16", **held})
    changed = {
        "name": named.name, "source": named.source, "notes": named.notes,
        "samples_top_k": named.samples_top_k, "samples_top_p": named.samples_top_p,
    }  # fmt: skip
    assert dataclasses.replace(read, **changed) == named


# --- shards ------------------------------------------------------------------------------------------


def _replicated(model: Model) -> int:
    """Parameters that every GPU of a tensor-parallel group holds whole, of a model without biases."""
    hidden, layers = model.hidden, model.layers
    norms = layers * model.norms_per_layer * hidden + hidden
    norms += sum(count * 2 * mixer.head_dim for count, mixer in model.blocks(Grouped) if mixer.qk_norm)
    for count, mixer in model.blocks(Latent):
        norms += count * (mixer.norm_weights + hidden * mixer.down_width)
    for count, experts in model.blocks(MoE):
        norms += count * hidden * (experts.experts + experts.shared_gate)
    return norms


@pytest.mark.parametrize(
    "name", ["llama-3.1-70b", "qwen3-32b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3", "llama-4-scout"]
)
@given(tp=st.sampled_from([1, 2, 4, 8]), whole=st.booleans())
def test_the_shards_hold_the_model(name, tp, whole):
    model = load_model(name)
    ep = tp if whole and model.experts is not None else 1
    shard = on_one_gpu(model, Parallel(tp=tp, ep=ep))
    heads = model.attention
    again = max(0, tp - heads.kv_heads) * model.layers * 2 * model.hidden * heads.head_dim  # copied K/V heads
    held = tp * shard.parameter_count
    padding = tp * 2 * (shard.vocab * tp - model.vocab) * model.hidden // tp
    assert held == model.parameter_count + (tp - 1) * _replicated(model) + again + padding
    assert shard.parallel == (ONE if tp == 1 else Parallel(tp=tp, ep=ep))
    if tp == 1:
        assert shard is model


@pytest.mark.parametrize(
    ("name", "ways", "told"),
    [
        ("llama-3.1-8b", {"tp": 3}, r"heads \(32\) cannot be split over tp 3; choose --tp 1, 2, 4, 8"),
        ("llama-3.1-8b", {"tp": 2, "ep": 2}, "has no experts"),
        ("llama-3.1-8b", {"tp": 2, "dp_attention": True}, "has no experts"),
        (
            "mixtral-8x7b",
            {"tp": 16, "ep": 16},
            "8 experts cannot be split over ep 16; choose --ep 1, 2, 4, 8",
        ),
        ("qwen3-30b-a3b", {"tp": 2, "ep": 4}, "ep 4 does not divide tp 2"),
        ("qwen3-30b-a3b", {"tp": 0}, "tp 0: whole numbers from 1"),
        ("deepseek-v3", {"tp": 8, "ep": 2, "dp_attention": True}, "allowed: 1 or 8"),
        ("llama-4-scout", {"tp": 16}, r"heads \(40\)"),
    ],
)
def test_what_cannot_be_split_says_what_can(name, ways, told):
    with pytest.raises(UsageError, match=told):
        on_one_gpu(load_model(name), Parallel(**ways))


def test_nvfp4_leaves_out_what_published_checkpoints_leave_out():
    """DeepSeek-R1-0528-FP4-v2: experts and the output of attention in nvfp4, the MTP module in 16 bits."""
    model = with_dtypes(load_model("deepseek-r1"), weight_dtype="nvfp4")
    for group in model.groups:
        assert (group.mixers[0].form, group.mixers[0].out_form) == ("bf16", "nvfp4")
    assert model.form == "nvfp4"
    published, module = load_model("deepseek-r1").mtp_module, model.mtp_module
    heads = 2 * model.embedding_parameter_count
    assert (module.weight_bytes - heads) / (published.weight_bytes - heads) == pytest.approx(2.0, rel=1e-3)
    back = with_dtypes(model, dtype="fp8_block")
    assert back.weight_bytes == with_dtypes(load_model("deepseek-r1"), dtype="fp8_block").weight_bytes
    dense = with_dtypes(load_model("llama-3.1-8b"), weight_dtype="nvfp4")
    assert all(group.mixers[0].form is None for group in dense.groups)


@pytest.mark.parametrize(
    ("size", "told"), [(12, "1, 2, 3, 4, 6"), (7, "1, 7"), (128, "1, 2, 4, 8, 16, 32, 64, 128")]
)
def test_numbers_of_gpus_that_divide_a_size_are_shown(size, told):
    assert divisors(size, "tp") == f"choose --tp {told}"
