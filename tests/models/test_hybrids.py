"""Recurrent, sparse and compressed attention: counts, caches, states, shares, configs as published."""

import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tables import table

from medusa_sim.doubts.of_scenario import scenario_doubts
from medusa_sim.engines.runtime import load_runtime
from medusa_sim.errors import SpecError, UsageError
from medusa_sim.models.feed_forwards import MoE
from medusa_sim.models.mixers import Grouped, Latent, Mixer
from medusa_sim.models.model import Model
from medusa_sim.models.named import load_model
from medusa_sim.models.parallel import Parallel
from medusa_sim.models.recurrent import GatedDelta, KimiDelta, Mamba2, Recurrent
from medusa_sim.models.sparse import Compressed
from medusa_sim.models.state_rules import as_served
from medusa_sim.models.variants import on_one_gpu, unpacked_where
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.memory import step_memory_bytes
from medusa_sim.step.network import model_launches
from medusa_sim.step.step import decode_step
from medusa_sim.step.workload import decode, verify

MODELS = table("models")
HYBRIDS, IN_WORDS = MODELS["hybrids"], MODELS["in_words"]
DELTA: dict[str, Any] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "text_config": {
        "model_type": "qwen3_5_text", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 8,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 32_000,
        "max_position_embeddings": 4096, "linear_num_key_heads": 8, "linear_num_value_heads": 16,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "mamba_ssm_dtype": "float32",
        "dtype": "bfloat16",
    },
}  # fmt: skip


def _load(folder: Path, content: dict[str, Any], **beside: Any) -> Model:
    (folder / "config.json").write_text(json.dumps(content))
    for name, held in beside.items():
        (folder / f"{name}.json").write_text(json.dumps(held))
    return load_model(folder / "config.json")


@pytest.mark.parametrize("name", sorted(HYBRIDS))
def test_counts_are_the_sums_of_the_formulas(name):
    total, active, *_ = HYBRIDS[name]
    model = load_model(name)
    assert model.parameter_count / 1e9 == pytest.approx(total, rel=5e-3)
    assert model.active_parameter_count / 1e9 == pytest.approx(active, rel=1e-2)


def _digit(published: str) -> float:
    """One of the last digit."""
    whole, _, decimals = published.partition(".")
    return 10.0 ** -len(decimals) if decimals else 10.0 ** (len(whole) - len(whole.rstrip("0") or "0"))


@pytest.mark.parametrize("name", sorted(HYBRIDS))
def test_counts_are_the_published_ones(name):
    """Within half a per cent, or what rounding leaves: half a digit, a whole one where it is down."""
    _, _, total, active, source = HYBRIDS[name]
    model = load_model(name)
    share = 1.0 if "rounded down" in source else 0.5
    allowed = max(share * _digit(total) + 0.25 * ("rounded down" in source), 5e-3 * float(total))
    assert abs(model.parameter_count / 1e9 - float(total)) <= allowed, source
    if active:
        # publishers count the tables of the vocabulary or not: any of the three
        tables = [model.active_parameter_count - n * model.vocab * model.hidden for n in (0, 1, 2)]
        near = min(abs(count / 1e9 - float(active)) for count in tables)
        assert near <= max(0.55 * _digit(active), 0.03 * float(active)) + 0.1 * ("rounded" in source), source


def test_sizes_that_nobody_checked_are_stated_with_the_answer():
    for name, is_checked in (("kimi-linear-48b-a3b", False), ("glm-5.2", False), ("kimi-k3", True)):
        told = " ".join(scenario_doubts(Scenario(model=name, gpu="h200-sxm")))
        assert ("not checked" in told) is not is_checked, name
        assert ("not checked" in load_model(name).source) is not is_checked, name


def test_states_are_bytes_of_a_request_and_each_verified_token_keeps_one():
    # Kimi-K3: 96 heads of 128 x 128 in fp32 and a convolution over 3 x 12,288 channels, 69 layers: 449 MB
    assert load_model("kimi-k3").state_bytes == 69 * (96 * 128**2 * 4 + 3 * 3 * 96 * 128 * 2)
    assert load_model("qwen3.5-397b-a17b").state_bytes == pytest.approx(192e6, rel=1e-3)
    assert load_model("llama-3.1-8b").state_bytes == 0.0
    model = load_model("qwen3.5-27b")
    one, four = (float(step_memory_bytes(model, None, 10, 1024, q)) for q in (1, 4))
    plain = load_model("qwen3-32b")
    grown = [float(step_memory_bytes(plain, None, 10, 1024, q)) for q in (1, 4)]
    assert four - one > 10 * 3 * model.state_bytes
    assert four - one > 5 * (grown[1] - grown[0])


def test_caches_of_chosen_and_compressed_keys():
    sparse = load_model("deepseek-v3.2")
    (_, mixer), *_ = sparse.blocks(Latent)
    assert (mixer.token_bytes("bf16"), mixer.token_bytes("fp8")) == (1152 + 132, 656 + 132)
    shared = sum(count for count, each in load_model("glm-5.3").blocks(Latent) if each.indexer.reuses)
    assert shared == 78 - 21
    compressed = load_model("deepseek-v4-flash")
    counts = {each.ratio: count for count, each in compressed.blocks(Compressed)}
    assert counts == {0: 2, 4: 21, 128: 20}
    assert (compressed.mtp.count, compressed.mtp_layers) == (1, 1)
    near, far = (float(compressed.kv_bytes(np.asarray(s))) for s in (1e4, 2e4))
    assert far - near == pytest.approx(1e4 * (21 * (1024 + 132) / 4 + 20 * 1024 / 128))


@pytest.mark.parametrize("name", ["qwen3.5-397b-a17b", "kimi-k3", "nemotron-3-super-120b-a12b"])
def test_states_are_split_with_the_heads(name):
    model = load_model(name)
    shard = on_one_gpu(model, Parallel(tp=8))
    assert shard.state_bytes == pytest.approx(model.state_bytes / 8, rel=1e-2)
    for kind in (GatedDelta, KimiDelta, Mamba2):
        for (_, whole), (_, part) in zip(model.blocks(kind), shard.blocks(kind), strict=True):
            assert part.state_size * 8 == whole.state_size


@pytest.mark.parametrize("name", sorted(HYBRIDS))
def test_a_step_reads_every_weight_of_a_layer_once(name):
    """Matrices that a step of one token multiplies are those that the mixers and MLPs hold."""
    model = load_model(name)
    launches = model_launches(model, decode(1, 16), load_runtime("cuda-graph"))
    read = sum(
        launch.count * float(launch.operator.n) * float(launch.operator.k)
        for module in launches
        for launch in module.composed or (module,)
        if launch.operator.kind == "gemm" and launch.part in ("qkv", "o_proj")
    )
    held = sum(count * mixer.weights(model.hidden) for count, mixer in model.blocks(Mixer))
    assert read == pytest.approx(held, rel=0.02)


def test_verification_of_a_recurrence_grows_with_its_tokens_and_not_with_length():
    model, runtime = load_model("qwen3.5-27b"), load_runtime("cuda-graph")

    def moved(queries: int, length: int) -> float:
        launches = model_launches(model, verify(8, length, queries), runtime)
        return sum(float(each.operator.bytes) for each in launches if each.operator.name == "recurrence")

    assert moved(4, 1000) == pytest.approx(2.5 * moved(1, 1000), rel=0.02)
    assert moved(4, 100_000) == moved(4, 1000)


def test_trees_are_refused_where_states_cannot_be_rolled_back():
    with pytest.raises(UsageError, match=r"recurrent.*trees"):
        Scenario(model="qwen3.5-27b", gpu="h200-sxm", chain_only=False)
    assert Scenario(model="qwen3.5-27b", gpu="h200-sxm").chain_only


# --- configs -----------------------------------------------------------------------------------------


def test_a_text_model_in_a_wrapper_with_a_file_of_formats_beside_it(tmp_path):
    model = _load(tmp_path, DELTA)
    assert [(type(group.mixers[0]), group.count) for group in model.groups] == [(GatedDelta, 6), (Grouped, 2)]
    assert model.mtp_layers == 1
    excluded = ["lm_head", "model.language_model.layers.0.linear_attn*", "*.self_attn.*"]
    about = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": excluded}
    stored = _load(tmp_path, DELTA, hf_quant_config={"quantization": about})
    forms = {(type(group.mixers[0]), group.mixers[0].form): group.count for group in stored.groups}
    assert forms == {(GatedDelta, "bf16"): 1, (GatedDelta, None): 5, (Grouped, "bf16"): 2}
    assert (stored.form, stored.kv_dtype) == ("nvfp4", "fp8")
    ampere, unpacked = unpacked_where(stored, lambda dtype: dtype in ("fp8", "nvfp4"))
    assert (ampere.form, unpacked) == ("nvfp4_wo", ("nvfp4",))
    assert ampere.weight_bytes == stored.weight_bytes


def test_formats_by_layer(tmp_path):
    layers = {
        f"model.language_model.layers.{i}.mlp.down_proj": {"quant_algo": "W4A16_NVFP4"} for i in range(8)
    }
    layers["model.language_model.layers.3.self_attn.q_proj"] = {"quant_algo": "FP8"}
    about = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    model = _load(tmp_path, {**DELTA, "quantization_config": about})
    assert model.form == "nvfp4_wo"
    assert {group.mixers[0].form for group in model.groups} == {"bf16", "fp8"}
    with pytest.raises(SpecError, match=r"quant_algo.*'W2'"):
        _load(tmp_path, {**DELTA, "quantization_config": {"quant_method": "modelopt", "quant_algo": "W2"}})


def _quark(weight: Any, inputs: Any, **more: Any) -> dict[str, Any]:
    return {
        "quant_method": "quark",
        "global_quant_config": {"weight": weight, "input_tensors": inputs},
        **more,
    }


FP8: dict[str, Any] = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False, "ch_axis": None}
MXFP4: dict[str, Any] = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}


def test_quark_s_rules_are_those_of_the_engine(tmp_path):
    """Pairs of weights and inputs as vllm-project/vllm reads them (`quantization/quark/quark.py`)."""
    cache = {"*k_proj": {"weight": FP8, "input_tensors": FP8, "output_tensors": FP8}}
    more = {"exclude": ["lm_head", "re:.*linear_attn.*"], "layer_quant_config": cache}
    fp8 = _load(tmp_path, {**DELTA, "quantization_config": _quark(FP8, FP8, **more)})
    forms = {(type(group.mixers[0]), group.mixers[0].form): group.count for group in fp8.groups}
    assert forms == {(GatedDelta, "bf16"): 6, (Grouped, None): 2}
    assert (fp8.form, fp8.kv_dtype) == ("fp8", "fp8")
    mx = _load(tmp_path, {**DELTA, "quantization_config": _quark(MXFP4, MXFP4)})
    assert mx.form == "mxfp4"
    assert any("multiplied in 16 bits" in note for note in mx.notes)
    two = [{**MXFP4, "group_size": 16}, FP8]
    assert _load(tmp_path, {**DELTA, "quantization_config": _quark(two, two)}).form == "nvfp4"
    with pytest.raises(SpecError, match=r"global_quant_config: given weights fp8\+int4 with inputs fp8"):
        _load(tmp_path, {**DELTA, "quantization_config": _quark([FP8, {"dtype": "int4"}], FP8)})


def test_formats_without_kernels_say_what_stands_in(tmp_path):
    about = {"quant_method": "modelopt", "quant_algo": "MXFP8", "kv_cache_quant_algo": "NVFP4"}
    model = _load(tmp_path, {**DELTA, "quantization_config": about})
    assert (model.form, model.kv_dtype) == ("fp8_block", "fp8")
    assert sum("not checked" in note for note in model.notes) == 2


def test_modules_that_integer_checkpoints_leave_alone(tmp_path):
    int4 = {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": 128,
        "dynamic": {"-:.*attn.*": {}, "lm_head": {}},
    }
    model = _load(tmp_path, {**DELTA, "quantization_config": int4})
    assert {group.mixers[0].form for group in model.groups} == {"bf16"}
    names = {f"model.language_model.layers.{i}.mlp.down_proj": {"bits": 16} for i in range(8)}
    about = {"quant_method": "auto-round", "bits": 4, "group_size": 128, "extra_config": names}
    model = _load(tmp_path, {**DELTA, "quantization_config": about})
    assert {group.feed_forward.form for group in model.groups} == {"bf16"}
    three = {**about, "extra_config": {"lm_head": {"bits": 3}}}
    with pytest.raises(SpecError, match=r"lm_head: bits: given 3; allowed: 4 or 16"):
        _load(tmp_path, {**DELTA, "quantization_config": three})


def test_layers_of_newer_puzzles(tmp_path):
    """Keys of `block_config.py` of NVIDIA/Model-Optimizer."""
    moe = {"num_local_experts": 8, "num_experts_per_tok": 2, "expert_intermediate_dim": 512}
    blocks = [
        {"attention": {"num_key_value_heads": 2}, "ffn": {"intermediate_size": 1024}},
        {"attention": {"no_op": True}, "ffn": {"moe": moe}},
        {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 1.0}},
    ]
    config = {**_sizes("nemotron-nas", 512, 3, 8, 8, 1, 1000), "block_configs": blocks}
    model = _load(tmp_path, config)
    first, second, third = model.groups
    assert (first.mixers[0].kv_heads, first.feed_forward.width) == (2, 1024)
    assert (second.mixers, second.feed_forward.experts) == ((), 8)
    assert (third.mixers[0].kv_heads, third.feed_forward.width) == (2, 512)
    blocks[0]["attention"] = {"mamba": {"state_dim": 128}}
    with pytest.raises(SpecError, match=r"block_configs\[0\].attention.mamba"):
        _load(tmp_path, config)


def test_infinity_where_no_size_depends_on_it(tmp_path):
    text = {**DELTA["text_config"], "time_step_limit": [0.0, float("inf")]}
    assert _load(tmp_path, {**DELTA, "text_config": text}).layers == 8


def test_an_ending_that_all_classes_share_makes_no_model_alike(tmp_path):
    with pytest.raises(SpecError, match=r"'FooBarForCausalLM'.; docs/models.md lists"):
        _load(tmp_path, {"architectures": ["FooBarForCausalLM"]})
    with pytest.raises(SpecError, match="did you mean LlamaForCausalLM"):
        _load(tmp_path, {"architectures": ["LamaForCausalLM"]})


@pytest.mark.parametrize(
    ("key", "value"),
    [("layer_types", ["linear_attention"]), ("mamba_ssm_dtype", "int3"), ("linear_num_value_heads", 0)],
)
def test_what_stays_unknown_names_the_field(tmp_path, key, value):
    with pytest.raises(SpecError, match=key):
        _load(tmp_path, {**DELTA, "text_config": {**DELTA["text_config"], key: value}})


CONFIGS = Path(os.environ.get("MEDUSA_SIM_DATA", "../shared/data")) / "model_configs"


def test_deployed_configs_are_read():
    if not CONFIGS.is_dir():
        pytest.skip("configs of deployed models are not beside this checkout")
    folders = sorted(CONFIGS.iterdir())
    models = {folder.name: load_model(folder) for folder in folders}
    assert len(models) == len(folders)
    for name, model in models.items():
        assert model.parameter_count > 0, name
        if "NVFP4" in name and (CONFIGS / name / "hf_quant_config.json").is_file():
            assert model.weight_bytes < 0.85 * 2 * model.parameter_count, name
    same = {
        "Qwen--Qwen3.5-397B-A17B": "qwen3.5-397b-a17b", "moonshotai--Kimi-K3": "kimi-k3",
        "deepseek-ai--DeepSeek-V4-Flash": "deepseek-v4-flash", "zai-org--GLM-5.3": "glm-5.3",
    }  # fmt: skip
    for name, known in same.items():
        read, named = models[name], load_model(known)
        assert read.parameter_count == named.parameter_count
        assert read.weight_bytes == pytest.approx(named.weight_bytes)
        assert len(read.blocks(Recurrent)) == len(named.blocks(Recurrent))
        assert bool(read.blocks(MoE)) == bool(named.blocks(MoE))


def test_a_format_that_only_the_name_says_is_taken_for_experts_and_stated(tmp_path):
    folder = tmp_path / "tiny-NVFP4"
    folder.mkdir()
    sizes = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "head_dim": 64}
    more = {"intermediate_size": 512, "vocab_size": 1000, "max_position_embeddings": 4096}
    model = _load(folder, {"model_type": "qwen3_moe", "torch_dtype": "bfloat16", **sizes, **experts, **more})
    assert model.in_form(model.experts.form).weight_dtype == "nvfp4"
    assert model.weight_dtype == "bf16"
    assert any("nvfp4 of its name" in note for note in model.notes)


LING: dict[str, Any] = {
    "architectures": ["BailingMoeV3ForCausalLM"], "model_type": "bailing_hybrid", "dtype": "bfloat16",
    "hidden_size": 2560, "intermediate_size": 6144, "num_hidden_layers": 42, "vocab_size": 157184,
    "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128, "max_position_embeddings": 262144,
    "layer_group_size": 6, "short_conv_kernel_size": 4, "no_kda_lora": True, "kv_lora_rank": 512,
    "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "first_k_dense_replace": 2, "num_experts": 512, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
    "num_shared_experts": 1, "moe_shared_expert_intermediate_size": 768, "num_nextn_predict_layers": 1,
}  # fmt: skip


def test_ling_is_read_as_named_and_its_forerunner_is_not_taken_for_it(tmp_path):
    read, named = _load(tmp_path, LING), load_model("ling-3.0-flash")
    assert read.groups == named.groups
    assert (read.parameter_count, read.mtp_layers) == (named.parameter_count, named.mtp_layers)
    odd = _load(tmp_path, {**LING, "num_hidden_layers": 44})
    assert [type(group.mixers[0]) for group in odd.groups][-1] is Latent
    assert sum(count for count, _ in odd.blocks(Latent)) == 7 + 2
    with pytest.raises(SpecError, match="no_kda_lora"):
        _load(tmp_path, {key: value for key, value in LING.items() if key != "no_kda_lora"})


def test_experts_of_hybrids_are_computed_in_eight_bits_where_the_engine_quantises_what_enters():
    def form(gpu: str, model: str, runtime: str) -> str | None:
        made = Scenario(gpu=gpu, model=model, runtime=runtime, tp=8, drafter="ngram", acceptance="0.5")
        return made.model.experts.form

    assert form("b300", "kimi-k3", "sglang-0.5") == "mxfp4_fp8"
    assert form("h200-sxm", "kimi-k3", "sglang-0.5") == form("b300", "kimi-k3", "vllm-0.24") == "mxfp4"
    assert form("b200", "gpt-oss-120b", "sglang-0.5") == "mxfp4"


_BASE = {"torch_dtype": "bfloat16", "max_position_embeddings": 4096}


def _sizes(kind: str, hidden: int, layers: int, heads: int, kv: int, mlp: int, vocab: int) -> dict[str, Any]:
    return {
        "model_type": kind, "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv, "intermediate_size": mlp, "vocab_size": vocab, **_BASE,
    }  # fmt: skip


def _in_words(name: str) -> dict[str, Any]:
    """The configuration of a model in the words of its family's class."""
    of = IN_WORDS[name]
    return {**_sizes(of["kind"], *of["sizes"]), **of.get("more", {}), **dict.fromkeys(of.get("without", ()))}


GRANITE, NANO = _in_words("granite-4.0-h-small"), _in_words("Nemotron-Nano-9B-v2")
HUNYUAN, ERNIE, TRINITY = map(_in_words, ("Hunyuan-A13B", "ERNIE-4.5-21B-A3B", "Trinity-Large"))


@pytest.mark.parametrize("name", sorted(IN_WORDS))
def test_families_near_the_deployed_ones_have_their_published_counts(tmp_path: Path, name: str) -> None:
    read = _load(tmp_path, _in_words(name))
    assert read.parameter_count / 1e9 == pytest.approx(IN_WORDS[name]["parameters"], rel=0.005)


def test_minimax_m3_under_the_name_of_m2_is_m3(tmp_path: Path) -> None:
    sparse = {
        "sparse_num_index_heads": 4, "sparse_index_dim": 64, "sparse_block_size": 128,
        "sparse_topk_blocks": 16, "sparse_attention_freq": [0, 1],
    }  # fmt: skip
    more = {"num_local_experts": 8, "num_experts_per_tok": 2, "moe_layer_freq": [0, 1], "head_dim": 64}
    config = {**_sizes("minimax_m2", 512, 2, 8, 4, 1024, 1000), **more, "sparse_attention_config": sparse}
    named = _load(tmp_path, {**config, "model_type": "minimax_m3"})
    assert _load(tmp_path, config).groups == named.groups


def test_keys_under_another_name_are_not_passed_over(tmp_path: Path) -> None:
    named = _load(tmp_path, {**NANO, "attention_head_dim": 128})
    assert _load(tmp_path, NANO).kv_bytes_per_token == named.kv_bytes_per_token == 4 * 2 * 8 * 128 * 2
    assert _load(tmp_path, {**NANO, "attention_head_dim": 64}).kv_bytes_per_token == 4 * 2 * 8 * 64 * 2
    assert (
        _load(tmp_path, {**GRANITE, "mamba_d_head": "auto"}).state_bytes
        == _load(tmp_path, GRANITE).state_bytes
    )
    # Granite's name no dtype of states, Nemotron's default is fp32
    granite, nano = (
        {served.state_bytes for served in (as_served(model, "vllm"), as_served(model, "sglang"))}
        for model in (_load(tmp_path, GRANITE), _load(tmp_path, NANO))
    )
    assert (len(granite), len(nano)) == (2, 1)
    length = {**NANO, "model_max_length": 8192}
    del length["max_position_embeddings"]
    assert _load(tmp_path, length).max_seq_len == 8192


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({**_sizes("llama", 512, 2, 8, 8, 1024, 1000), "layer_types": ["conv"] * 2}, "layer_types"),
        ({**HUNYUAN, "use_cla": True}, "use_cla"),
        ({**HUNYUAN, "moe_topk": [8] * 31 + [4]}, "num_experts_per_tok"),
        ({**ERNIE, "moe_layer_interval": 2}, "moe_layer_interval"),
        ({**TRINITY, "block_configs": [{}]}, "block_configs"),
    ],
)  # fmt: skip
def test_what_would_be_misread_is_refused_by_its_key(tmp_path: Path, config: Any, key: str) -> None:
    with pytest.raises(SpecError, match=key):
        _load(tmp_path, config)


def test_layers_that_share_a_choice_follow_the_first_full_ones(tmp_path: Path) -> None:
    latent = {"kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32}
    index = {"index_topk": 64, "index_n_heads": 2, "index_head_dim": 32, "q_lora_rank": 64}
    experts = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    config = {**_sizes("glm_moe_dsa", 256, 12, 4, 4, 512, 1000), **latent, **index, **experts}

    def full(**more: Any) -> int:
        mixers = _load(tmp_path, {**config, **more}).blocks(Latent)
        return sum(count for count, mixer in mixers if mixer.indexer and not mixer.indexer.reuses)

    assert full() == 12
    assert full(index_topk_freq=4) == 2 + 2  # layers 0, 1, 5, 9, as transformers' glm_moe_dsa has them
    assert full(index_topk_freq=4, index_skip_topk_offset=3) == 3 + 2
    assert full(index_topk_pattern="FFS" * 4) == 8
    with pytest.raises(SpecError, match="indexer_types"):
        full(index_topk_pattern="S" * 12)


def test_a_layer_of_attention_and_mamba_side_by_side_runs_holds_and_sends_both(tmp_path: Path) -> None:
    falcon = _load(tmp_path, _in_words("Falcon-H1-7B"))
    (group,) = falcon.groups
    attention, mamba = group.mixers
    assert (group.count, type(attention), type(mamba)) == (44, Grouped, Mamba2)
    assert (group.blocks, falcon.block_count, falcon.part_count) == (2, 2 * 44, 3 * 44)
    assert falcon.kv_bytes_per_token == 44 * 2 * 2 * 128 * 2
    convolution = (3072 + 2 * 256) * 3 * 2
    assert falcon.state_bytes == falcon.draft_state_bytes == 44 * (3072 * 256 * 2 + convolution)
    runtime = load_runtime("cuda-graph")
    names = Counter[str]()
    for launch in model_launches(on_one_gpu(falcon, Parallel(tp=2)), decode(1, 1024), runtime):
        names[launch.operator.name] += launch.count
    assert names["all_reduce"] == 3 * 44 + 1
    assert names["residuals"] == names["norms"] == 2 * 44
    for once in ("mixer_sum", "decode_attention", "recurrence", "causal_conv", "o_proj", "out_proj"):
        assert names[once] == 44, once
    parts = (attention, mamba)
    alone = [replace(falcon, groups=(replace(group, mixers=(each,)),)) for each in parts]
    assert falcon.layers_weight_bytes + 44 * 2 * (3 * 3072 * 12_288 + 2 * 3072) == pytest.approx(
        sum(each.layers_weight_bytes for each in alone)
    )


@pytest.mark.parametrize("runtime", ["vllm", "cuda-graph"])
def test_a_layer_of_two_mixers_is_priced_between_either_alone_and_both(tmp_path: Path, runtime: str) -> None:
    falcon = _load(tmp_path, _in_words("Falcon-H1-7B"))
    (group,) = falcon.groups

    def step_us(*mixers: Mixer) -> float:
        model = replace(falcon, groups=(replace(group, mixers=mixers),))
        scenario = Scenario(gpu="h100-sxm", model=model, drafter="ngram", chain_only=True, runtime=runtime)
        return float(decode_step(scenario.setting, 8, 1024).time_us)

    attention, mamba = (step_us(mixer) for mixer in group.mixers)
    both = step_us(*group.mixers)
    assert max(attention, mamba) < both < attention + mamba
