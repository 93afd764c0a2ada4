"""Models: published parameter counts, Hugging Face configs, dtypes."""

import dataclasses
import itertools
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from one_line import one_line
from tables import table

from medusa_sim.errors import SpecError
from medusa_sim.models.feed_forwards import Mlp
from medusa_sim.models.hf_families import FAMILIES
from medusa_sim.models.mixers import Grouped
from medusa_sim.models.model import Model
from medusa_sim.models.named import load_model, model_names
from medusa_sim.models.variants import with_dtypes
from medusa_sim.report.specs.rows import model_rows

MODELS = table("models")
PUBLISHED = MODELS["counts"]

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "vocab_size": 128256, "max_position_embeddings": 8192, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}  # fmt: skip
OPT: dict[str, Any] = {
    "architectures": ["OPTForCausalLM"], "model_type": "opt", "hidden_size": 768, "ffn_dim": 3072,
    "num_hidden_layers": 12, "num_attention_heads": 12, "vocab_size": 50272, "max_position_embeddings": 2048,
    "word_embed_proj_dim": 768, "torch_dtype": "float16",
}  # fmt: skip


def _config(folder: Path, content: Any, name: str = "my-model") -> Path:
    path = folder / name / "config.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def _load(folder: Path, base: dict[str, Any] = LLAMA, **changes: Any) -> Model:
    merged = {key: value for key, value in {**base, **changes}.items() if value is not ...}
    return load_model(_config(folder, merged))


def _refused(folder: Path, *told: str, base: dict[str, Any] = LLAMA, **changes: Any) -> None:
    with one_line(SpecError, "config.json", *told):
        _load(folder, base, **changes)


# --- named models -------------------------------------------------------------------------------------


def test_every_named_model_has_a_published_count():
    named = {name: load_model(name) for name in model_names()}
    for counted, mixed in ((PUBLISHED, False), (MODELS["mixtures"], True)):
        names = {name for name, model in named.items() if (model.experts is not None) is mixed}
        assert set(counted) | MODELS["hybrids"].keys() >= names >= set(counted)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_parameter_counts_are_the_published_ones(name):
    model = load_model(name)
    # 0.5 %: a wrong width, a forgotten matrix or an untied embedding moves the count by more
    assert model.parameter_count == pytest.approx(PUBLISHED[name], rel=5e-3)
    if isinstance(PUBLISHED[name], int):
        assert model.parameter_count == PUBLISHED[name]
    assert model.weight_bytes == 2 * model.parameter_count
    assert len(model.source) > 10
    assert model.attention.query_width >= model.hidden // 2


def test_kv_bytes_count_kv_heads_and_a_resized_model_keeps_its_layers():
    # 2 (K, V) x 80 layers x 8 heads x 128 x 2 bytes; by 64 query heads it would be eight times that
    assert load_model("llama-2-70b").kv_bytes_per_token == 2 * 80 * 8 * 128 * 2
    assert load_model("llama-7b").kv_bytes_per_token == 2 * 32 * 4096 * 2
    model = load_model("llama-7b")
    one = model.resized(layers=1)
    assert model.layers_parameter_count == 32 * one.layers_parameter_count
    assert model.parameter_count - one.parameter_count == 31 * one.layers_parameter_count
    assert model.resized(vocab=1000).vocab == 1000


def test_model_rows_carry_the_source_and_full_numbers():
    rows = {row.key: row for row in model_rows(load_model("zephyr-7b"))}
    assert rows["parameter_count"].value == 7_241_732_096
    assert rows["weight_bytes"].unit == "bytes"
    assert rows["hidden"].source.startswith("config.json of HuggingFaceH4")
    assert "sliding window" in rows["architecture"].note


# --- Hugging Face configs -----------------------------------------------------------------------------


def test_a_config_equals_the_named_model(tmp_path):
    read = _load(tmp_path)
    named = load_model("llama-3-8b")
    assert read.name == "my-model"
    same = dataclasses.replace(named, name=read.name, source=read.source, notes=read.notes)
    assert read == same
    assert load_model(tmp_path / "my-model") == read  # a folder works too
    read = _load(tmp_path, OPT)
    named = load_model("opt-125m")
    assert read == dataclasses.replace(named, name=read.name, source=read.source, notes=read.notes)
    assert not read.rope
    assert not read.mlp.gated


def test_fields_that_configs_leave_out_or_give_with_a_remark(tmp_path):
    assert _load(tmp_path, num_key_value_heads=...).attention.kv_heads == 32
    assert _load(tmp_path, num_key_value_heads=None).attention.kv_heads == 32
    assert _load(tmp_path, head_dim=64).attention.head_dim == 64
    assert _load(tmp_path, head_dim=None).attention.head_dim == 128
    assert _load(tmp_path, architectures=...).architecture == "llama"
    assert _load(tmp_path, model_type=...).architecture == "llama"
    assert _load(tmp_path, torch_dtype=..., dtype="float16").dtype == "fp16"
    # engines read the newer key first
    assert _load(tmp_path, torch_dtype="float16", dtype="bfloat16").dtype == "bf16"
    assert "run in fp16" in _load(tmp_path, torch_dtype="float32").notes[0]
    assert "run in fp16" in _load(tmp_path, torch_dtype=...).notes[0]
    assert "'llama3'" in _load(tmp_path, rope_scaling={"rope_type": "llama3", "factor": 8.0}).notes[0]
    chunks = {"chunk_size": 262144, "local_size": 8192, "original_max_position_embeddings": 262144}
    assert "dual_chunk_attention_config" in _load(tmp_path, dual_chunk_attention_config=chunks).notes[0]
    assert _load(tmp_path, dual_chunk_attention_config=None).notes == ()
    qwen = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
    assert _load(tmp_path, **qwen, sliding_window=4096, use_sliding_window=False).windows == ()


def test_biases_and_norms_of_each_family(tmp_path):
    qwen2 = _load(tmp_path, architectures=["Qwen2ForCausalLM"], model_type="qwen2")
    heads = qwen2.attention
    assert (heads.qkv_bias, heads.output_bias, heads.qk_norm) == (True, False, False)
    qwen3 = _load(tmp_path, architectures=["Qwen3ForCausalLM"], model_type="qwen3")
    assert (qwen3.attention.qkv_bias, qwen3.attention.qk_norm) == (False, True)
    biased = _load(tmp_path, attention_bias=True, mlp_bias=True)
    assert (biased.attention.qkv_bias, biased.attention.output_bias, biased.mlp.bias) == (True, True, True)


def _linear(model: Model) -> int:
    """Weights of the linear layers of a dense model."""
    blocks = (*model.blocks(Grouped), *model.blocks(Mlp))
    return sum(count * block.weights(model.hidden) for count, block in blocks)


def test_quantised_checkpoints(tmp_path):
    awq = _load(tmp_path, quantization_config={"quant_method": "awq", "bits": 4, "group_size": 128})
    assert (awq.dtype, awq.weight_dtype, awq.kv_dtype) == ("bf16", "int4", "bf16")
    assert awq.parameter_count == load_model("llama-3-8b").parameter_count
    linear = _linear(awq)
    scales = linear * (2 + 0.5) / 128  # a 16-bit scale and a 4-bit zero point for 128 weights
    assert awq.weight_bytes == pytest.approx(linear / 2 + scales + 2 * (awq.parameter_count - linear))
    fp8 = _load(tmp_path, quantization_config={"quant_method": "fp8", "activation_scheme": "dynamic"})
    assert (fp8.dtype, fp8.weight_dtype, fp8.activation_dtype, fp8.kv_dtype) == ("fp8", "fp8", "bf16", "bf16")
    block = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    assert _load(tmp_path, quantization_config=block).weight_dtype == "fp8_block"
    gptq = _load(tmp_path, quantization_config={"quant_method": "gptq", "bits": 8})
    assert (gptq.dtype, gptq.weight_dtype) == ("bf16", "int8")
    for config, *told in (
        ({**block, "weight_block_size": [64, 64]}, "weight_block_size"),
        ({"quant_method": "gptq", "bits": 3}, "quantization_config.bits", "3"),
        ({"quant_method": "awq", "bits": 4, "group_size": "all"}, "group_size"),
        ({"quant_method": "gptq", "bits": 4, "group_size": "all"}, "group_size"),
        ({"quant_method": "mxfp4"}, "quant_method", "experts"),
        ({"quant_method": "bitsandbytes"}, "quant_method", "bitsandbytes"),
        ({"bits": 4}, "quant_method", "missing"),
    ):
        _refused(tmp_path, *told, quantization_config=config)


@pytest.mark.parametrize(
    ("name", "stored_gb"), [("llama-3.1-8b", 5.73), ("llama-3.1-70b", 39.77), ("qwen2.5-7b", 5.57)]
)
def test_int4_checkpoints_are_as_large_as_the_published_ones(name, stored_gb):
    # AWQ at group 128: sizes of the safetensors of hugging-quants' and Qwen's repositories
    model = with_dtypes(load_model(name), weight_dtype="int4")
    assert model.weight_bytes / 1e9 == pytest.approx(stored_gb, rel=0.01)


@pytest.mark.parametrize("kept", ["awq", "gptq", "compressed-tensors"])
def test_smaller_groups_store_more_scales(tmp_path, kept):
    def stored(group: Any, **more: Any) -> float:
        if kept != "compressed-tensors":
            config = {"quant_method": kept, "bits": 4, "group_size": group}
        else:
            weights = {"num_bits": 4, "type": "int", "group_size": group, **more}
            config = {"quant_method": kept, "config_groups": {"group_0": {"weights": weights}}}
        model = _load(tmp_path, quantization_config=config)
        linear = _linear(model)
        return (model.weight_bytes - 2 * (model.parameter_count - linear)) / linear

    column, wide, narrow = (stored(group) for group in (None if "-" in kept else -1, 128, 32))
    assert column == 0.5
    assert narrow - 0.5 == pytest.approx(4 * (wide - 0.5))
    zero = 0.0 if kept == "compressed-tensors" else 0.5
    assert wide == pytest.approx(0.5 + (2 + zero) / 128)
    if kept == "compressed-tensors":
        assert stored(128, symmetric=False) == pytest.approx(0.5 + 2.5 / 128)


def test_scales_follow_the_weights_that_have_them():
    published = load_model("llama-3-8b")
    int4 = with_dtypes(published, weight_dtype="int4")
    assert with_dtypes(int4, dtype="bf16").weight_bytes == published.weight_bytes
    assert with_dtypes(published, weight_dtype="int8").weight_bytes < published.weight_bytes
    fp8 = with_dtypes(published, dtype="fp8").weight_bytes
    assert 0.5 * fp8 < int4.weight_bytes < fp8


@pytest.mark.parametrize(
    ("given", "tied"),
    [
        ({}, True), ({"tie_embedding": False}, False), ({"tie_embedding": True}, True),
        ({"tie_embedding": True, "tie_word_embeddings": False}, False), ({"tie_word_embeddings": None}, True),
    ],
)  # fmt: skip
def test_what_a_family_calls_a_key_is_not_overwritten_by_its_default(tmp_path, monkeypatch, given, tied):
    """A family whose models tie their embeddings unless its own name of the key says otherwise."""
    own = msgspec.structs.replace(FAMILIES["gemma"], aliases={"tie_embedding": "tie_word_embeddings"})
    monkeypatch.setitem(FAMILIES, "gemma", own)
    gemma = {"architectures": ["GemmaForCausalLM"], "model_type": "gemma", "tie_word_embeddings": ...}
    assert _load(tmp_path, **{**gemma, **given}).tied_embeddings is tied


INT4, INT8, FP4, FP8 = (4, "int"), (8, "int"), (4, "float"), (8, "float")
GROUP = {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "group_size": 128}}


@pytest.mark.parametrize(
    ("weights", "activations", "cache", "dtypes"),
    [
        (INT4, None, None, ("bf16", "int4", "bf16")), (INT8, None, None, ("bf16", "int8", "bf16")),
        (INT8, INT8, None, ("int8", "int8", "bf16")), (FP4, FP4, None, ("nvfp4", "nvfp4", "bf16")),
        (FP8, FP8, None, ("fp8", "fp8", "bf16")), (FP8, None, None, ("bf16", "fp8", "bf16")),
        (FP8, FP8, FP8, ("fp8", "fp8", "fp8")), (INT4, None, FP8, ("bf16", "int4", "fp8")),
    ],
)  # fmt: skip
def test_compressed_tensors(tmp_path, weights, activations, cache, dtypes):
    def table(of: Any) -> Any:
        return None if of is None else {"num_bits": of[0], "type": of[1]}

    config = {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": table(weights), "input_activations": table(activations)}},
        "kv_cache_scheme": table(cache),
    }
    model = _load(tmp_path, quantization_config=config)
    assert (model.dtype, model.weight_dtype, model.kv_dtype) == dtypes


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"config_groups": {"a": {**GROUP, "input_activations": {"num_bits": 8, "type": "float"}}}},
         "int4 with activations fp8"),
        ({"config_groups": {"a": GROUP, "b": {"weights": {"num_bits": 8, "type": "int"}}}}, "all linear"),
        ({"config_groups": {}}, "config_groups"),
        ({"config_groups": {"a": 3}}, "allowed: a table with weights"),
        ({"config_groups": {"a": {"weights": {"num_bits": [4], "type": "int"}}}}, "given [4] bits"),
        ({"config_groups": {"a": GROUP}, "kv_cache_scheme": {"num_bits": 8, "type": "int"}}, "kv_cache"),
        ({"config_groups": {"a": GROUP}, "sparsity_config": {"sparsity_structure": "2:4"}}, "2:4 sparsity"),
        ({"config_groups": {"a": {**GROUP, "format": "marlin-24"}}}, "2:4 sparsity"),
        ({"config_groups": {"a": GROUP}, "format": "marlin-24"}, "2:4 sparsity"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin_24"}, "2:4 sparsity"),
        ({"quant_method": "gptq", "bits": 4, "lm_head": True}, "lm_head: given true"),
    ],
)  # fmt: skip
def test_weights_that_are_not_modelled(tmp_path, config, told):
    _refused(tmp_path, told, quantization_config={"quant_method": "compressed-tensors", **config})


def test_rotations_at_run_time_are_stated_to_be_free(tmp_path):
    """Of a transform in front of a layer, but not of one that is in its weights."""

    def notes(*locations: str) -> tuple[str, ...]:
        applied = [{"targets": ["Linear"], "location": location} for location in locations]
        rotated = {"config_groups": {"R1": {"type": "hadamard", "apply": applied}}}
        config = {"quant_method": "compressed-tensors", "config_groups": {"a": GROUP}}
        return _load(tmp_path, quantization_config={**config, "transform_config": rotated}).notes

    assert not any("transform_config" in note for note in notes("weight_input", "weight_output"))
    (told,) = (note for note in notes("input", "weight_input", "output") if "transform_config" in note)
    assert told.endswith("not priced")
    for transforms in (3, {}, {"config_groups": 3}, {"config_groups": {"a": {"apply": [3]}}}):
        config = {"quant_method": "compressed-tensors", "config_groups": {"a": GROUP}}
        _load(tmp_path, quantization_config={**config, "transform_config": transforms})


def test_modelopt_and_settings_that_do_not_decide_sizes(tmp_path):
    config = {"quant_method": "modelopt", "quant_algo": "FP8"}
    assert _load(tmp_path, quantization_config=config).dtype == "fp8"
    assert _load(tmp_path, quantization_config={**config, "quant_algo": "NVFP4"}).weight_dtype == "nvfp4"
    _refused(tmp_path, "W4A8", quantization_config={**config, "quant_algo": "W4A8"})
    for scaling in ({"rope_type": "llama3", "factor": 8.0}, {"type": "dynamic"}, 3, "x", [], {"type": [1]}):
        assert _load(tmp_path, rope_scaling=scaling, attention_dropout="?").layers == 32
    for names in ([["LlamaForCausalLM"]], [{}]):
        _refused(tmp_path, "architectures", architectures=names)


def test_hugging_face_ids_name_the_shape(tmp_path, monkeypatch):
    for hf_id, name in (
        ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.3-70b"),
        ("Qwen/Qwen3-8B", "qwen3-8b"),
        ("lmsys/vicuna-7b-v1.3", "vicuna-7b"),
        ("Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("QWEN/qwen2.5-7b-instruct", "qwen2.5-7b"),
    ):
        named = load_model(hf_id)
        assert named.checkpoint.lower().endswith(hf_id.lower())
        assert dataclasses.replace(named, checkpoint="") == load_model(name)
    with pytest.raises(SpecError, match=r"no folder here.*did you mean 'Qwen/Qwen3-8B'.*config\.json"):
        load_model("Qwen/Qwen3-8")
    with pytest.raises(SpecError, match=r"download its config\.json \(huggingface\.co/org/new/raw"):
        load_model("org/new")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Qwen" / "Qwen3-8B").mkdir(parents=True)
    (tmp_path / "Qwen" / "Qwen3-8B" / "config.json").write_text(json.dumps(LLAMA))
    assert load_model("Qwen/Qwen3-8B").architecture == "llama"


def test_other_architectures_and_sizes_that_contradict_each_other_are_refused_by_field(tmp_path):
    _refused(
        tmp_path, "architectures", "GPT2LMHeadModel", "docs/models.md", architectures=["GPT2LMHeadModel"]
    )
    _refused(tmp_path, "model_type", "gpt2", "docs/models.md", architectures=..., model_type="gpt2")
    _refused(tmp_path, "architectures", "missing", architectures=..., model_type=...)
    _refused(tmp_path, "model_type", "'opt'", "'llama'", model_type="opt")
    _refused(tmp_path, "num_local_experts", "mixture-of-experts", "mixtral", num_local_experts=8)
    _refused(tmp_path, "architectures", "text_config", "Gemma3ForConditionalGeneration", text_config={})
    _refused(tmp_path, "text_config", "given 3", text_config=3)
    _refused(tmp_path, "word_embed_proj_dim", "512", base=OPT, word_embed_proj_dim=512)
    _refused(tmp_path, "do_layer_norm_before", base=OPT, do_layer_norm_before=False)
    _refused(tmp_path, "num_key_value_heads", "divide", num_key_value_heads=5)
    _refused(tmp_path, "num_attention_heads", "divide", num_attention_heads=24, num_key_value_heads=8)


@pytest.mark.parametrize("field", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
@pytest.mark.parametrize("value", [..., 0, 2.5, "4096", None, 10**12])
def test_a_wrong_size_names_the_field(tmp_path, field, value):
    _refused(tmp_path, field, "allowed" if value is not ... else "missing", **{field: value})


def test_files_that_are_no_config(tmp_path):
    for text, told in (
        ("{", "cannot be parsed"),
        ("[1]", "JSON object"),
        ('{"vocab_size": NaN}', "architectures: missing"),
        ('{"vocab_size": 1, "vocab_size": 2}', "given twice"),
        ("[" * 100_000, "nested too deep"),
        (" " * 8_000_001, "more than 8,000,000 bytes"),
    ):
        with pytest.raises(SpecError, match=told):
            load_model(_config(tmp_path, text))
    with pytest.raises(SpecError, match="no such file"):
        load_model(tmp_path / "nowhere" / "config.json")


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    base=st.sampled_from([LLAMA, OPT]),
    key=st.sampled_from(
        [
            *LLAMA, "ffn_dim", "head_dim", "rope_scaling", "quantization_config", "sliding_window",
            "num_experts",
        ]
    ),
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(st.sampled_from(["bits", "quant_method", "type"]), inner, max_size=2)
        ),
        max_leaves=4,
    ),
)  # fmt: skip
def test_any_config_is_a_model_or_a_one_line_error(tmp_path, base, key, value):
    try:
        model = load_model(_config(tmp_path, {**base, key: value}))
    except SpecError as error:
        told = str(error)
        assert "\n" not in told
    else:
        assert model.parameter_count > 0
        assert model.attention.heads % model.attention.kv_heads == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", ["llama-68m", "llama-3.2-1b", "mistral-7b-v0.2", "qwen2-0.5b", "qwen3-0.6b", "opt-125m"]
)
def test_counts_match_the_reference_implementation(tmp_path, name):
    """Parameters of the class that loads such a checkpoint, built without memory, are ours exactly."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = load_model(name)
    sizes: dict[str, Any] = {
        "hidden_size": model.hidden, "num_hidden_layers": model.layers, "vocab_size": model.vocab,
        "num_attention_heads": model.attention.heads, "max_position_embeddings": model.max_seq_len,
        "tie_word_embeddings": model.tied_embeddings,
    }  # fmt: skip
    if model.architecture == "opt":
        sizes |= {"ffn_dim": model.mlp.width, "word_embed_proj_dim": model.hidden}
    else:
        heads = {"num_key_value_heads": model.attention.kv_heads, "head_dim": model.attention.head_dim}
        sizes |= {"intermediate_size": model.mlp.width, **heads}
    config = transformers.AutoConfig.for_model(model.architecture, **sizes)
    with torch.device("meta"):
        reference = transformers.AutoModelForCausalLM.from_config(config)
    assert sum(parameter.numel() for parameter in reference.parameters()) == model.parameter_count
    config.architectures = [type(reference).__name__]
    config.save_pretrained(tmp_path)
    assert load_model(tmp_path / "config.json").parameter_count == model.parameter_count


# --- dtypes -------------------------------------------------------------------------------------------


def test_allowed_dtypes():
    model = load_model("llama-3-8b")
    assert with_dtypes(model) == model
    fp16 = with_dtypes(model, dtype="fp16")
    assert (fp16.dtype, fp16.weight_dtype, fp16.kv_dtype, fp16.activation_dtype) == ("fp16",) * 4
    fp8 = with_dtypes(model, dtype="fp8", kv_dtype="fp8")
    assert (fp8.dtype, fp8.weight_dtype, fp8.kv_dtype, fp8.activation_dtype) == ("fp8", "fp8", "fp8", "bf16")
    assert fp8.kv_bytes_per_token == model.kv_bytes_per_token / 2
    int4 = with_dtypes(model, weight_dtype="int4")
    assert (int4.dtype, int4.weight_dtype, int4.activation_dtype) == ("bf16", "int4", "bf16")
    assert with_dtypes(int4, kv_dtype="fp8").weight_dtype == "int4"
    assert with_dtypes(with_dtypes(model, kv_dtype="fp8"), dtype="fp16").kv_dtype == "fp8"


@pytest.mark.parametrize(
    ("dtypes", "told"),
    [
        ({"dtype": "fp64"}, "dtype 'fp64'; allowed: fp16, bf16, fp32, fp8, int8, nvfp4"),
        ({"dtype": "int4"}, "dtype 'int4'"),
        ({"weight_dtype": "fp32"}, "bf16 with bf16 or int4 or int8 or fp8"),
        ({"dtype": "fp8", "weight_dtype": "int4"}, "fp8 with fp8"),
        ({"kv_dtype": "int4"}, "allowed: bf16 or fp8"),
        ({"kv_dtype": "fp16"}, "allowed: bf16 or fp8"),
    ],
)
def test_refused_dtypes_say_what_is_allowed(dtypes, told):
    with one_line(SpecError, "llama-3-8b: ", told):
        with_dtypes(load_model("llama-3-8b"), **dtypes)


def test_what_a_module_for_drafting_repeats_is_one_layer():
    """DeepSeek-V3's first three layers are dense, its modules have experts (arXiv 2412.19437)."""
    deepseek, llama = (load_model(name).last_layer for name in ("deepseek-v3", "llama-3.1-8b"))
    assert (deepseek.count, llama.count) == (1, 1)
    assert deepseek.feed_forward.experts == 256
    assert llama.feed_forward.width == 14336


@pytest.mark.parametrize(
    "name", ["llama-3.1-8b", "deepseek-r1", "deepseek-v4-flash", "gpt-oss-20b", "qwen3.5-35b-a3b"]
)
def test_dtypes_that_do_not_go_together_name_some_that_do(name: str) -> None:
    model = load_model(name)
    dtypes = ("fp16", "bf16", "fp32", "fp8", "fp8_block", "int8", "nvfp4")
    for dtype, weights in itertools.product(dtypes, (*dtypes, "int4", "mxfp4", "q4_k_m")):
        try:
            with_dtypes(model, dtype=dtype, weight_dtype=weights)
        except SpecError as refused:
            would = re.search(r"give --dtype (\w+) ", str(refused))
            assert would is not None, (dtype, weights)
            with_dtypes(model, dtype=would[1], weight_dtype=weights)
