"""A Hugging Face `config.json` -> Model.

Dense decoders of the Llama, Mistral, Qwen2, Qwen3, Gemma 3 and OPT families. Whatever would change the cost
and is not modelled (experts, other quantisations, other layouts) is refused by name, not guessed.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from medusa_sim.errors import SpecError, shown
from medusa_sim.reading import SPEC_BYTES, read_json
from medusa_sim.specs.model import (
    ARCHITECTURES,
    LAYERS,
    LENGTH,
    VOCAB,
    WIDTH,
    Architecture,
    Model,
    with_dtypes,
)
from medusa_sim.specs.sourced import Table

_CLASSES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma3ForCausalLM": "gemma3_text",
    "OPTForCausalLM": "opt",
}
_EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size")
_DTYPES = {
    "float16": "fp16",
    "torch.float16": "fp16",
    "bfloat16": "bf16",
    "torch.bfloat16": "bf16",
    "float32": "fp16",
    "torch.float32": "fp16",
}


def model_from_config(path: Path) -> Model:
    """The model that a `config.json` (or the folder that holds it) describes.

    Its name is the folder's, or the file's where it is called something else. Raises SpecError naming
    file, field, what was given and what is allowed.
    """
    file = path / "config.json" if path.is_dir() else path
    config = Table(str(file), _read_json(file))
    _refuse_unmodelled(config)
    family = _family(config)
    name = file.resolve().parent.name if file.name == "config.json" else file.stem
    sizes = _opt_sizes(config) if family == "opt" else _llama_sizes(config)
    heads, kv_heads = sizes["heads"], sizes["kv_heads"]
    if heads % kv_heads:
        config.fail("num_key_value_heads", f"given {kv_heads}; it must divide num_attention_heads = {heads}")
    dtype, notes = _dtype(config)
    notes += _remarks(config)
    layout = _layout(config, family)
    model = Model(
        name=name,
        architecture=family,
        layers=sizes["layers"],
        hidden=sizes["hidden"],
        intermediate=sizes["intermediate"],
        heads=heads,
        kv_heads=kv_heads,
        head_dim=sizes["head_dim"],
        vocab=sizes["vocab"],
        max_seq_len=sizes["max_seq_len"],
        gated=layout.gated,
        norm=layout.norm,
        positions=layout.positions,
        qkv_bias=layout.qkv_bias,
        output_bias=layout.output_bias,
        mlp_bias=layout.mlp_bias,
        qk_norm=layout.qk_norm,
        norms_per_layer=layout.norms_per_layer,
        samples_top_k=layout.samples_top_k,
        tied_embeddings=_flag(config, "tie_word_embeddings", default=family in ("opt", "gemma3_text")),
        dtype=dtype,
        weight_dtype=dtype,
        kv_dtype=dtype,
        activation_dtype=dtype,
        source=str(file),
        notes=notes,
    )
    return _quantised(config, model)


def _read_json(file: Path) -> object:
    content = read_json(file, SPEC_BYTES, "a model's name, or the path of its Hugging Face config.json")
    if not isinstance(content, dict):
        raise SpecError(f"{file}: holds {shown(content)}; a JSON object with a model's sizes is needed")
    return content


def _refuse_unmodelled(config: Table) -> None:
    for key in _EXPERT_KEYS:
        if key in config and config.raw(key, "") not in (None, 0, 1):
            config.fail(
                key,
                f"given {shown(config.raw(key, ''))}; mixture-of-experts models are not modelled, only dense",
            )
    if "text_config" in config:
        config.fail(
            "text_config", "a multimodal model; save the language model's part as its own config.json"
        )


def _family(config: Table) -> str:
    allowed = ", ".join(_CLASSES)
    families: dict[str, str] = {}
    if _given(config, "architectures"):
        classes = config.raw("architectures", "a list with one class name")
        if not isinstance(classes, list) or len(classes) != 1 or str(classes[0]) not in _CLASSES:
            config.fail("architectures", f"given {shown(classes)}; allowed: one of {allowed}")
        families["architectures"] = _CLASSES[classes[0]]
    if _given(config, "model_type"):
        families["model_type"] = config.choice("model_type", ARCHITECTURES)
    if not families:
        config.fail("architectures", f"missing; allowed: one of {allowed}")
    if len(set(families.values())) > 1:
        config.fail(
            "model_type",
            f"given {families['model_type']!r}; architectures says {families['architectures']!r}",
        )
    return next(iter(families.values()))


def _given(config: Table, key: str) -> bool:
    return key in config and config.raw(key, "") is not None


def _flag(config: Table, key: str, *, default: bool) -> bool:
    return config.flag(key) if _given(config, key) else default


def _llama_sizes(config: Table) -> dict[str, int]:
    heads = config.integer("num_attention_heads", *WIDTH)
    hidden = config.integer("hidden_size", *WIDTH)
    return {
        "layers": config.integer("num_hidden_layers", *LAYERS),
        "hidden": hidden,
        "intermediate": config.integer("intermediate_size", *WIDTH),
        "heads": heads,
        "kv_heads": config.integer("num_key_value_heads", *WIDTH)
        if _given(config, "num_key_value_heads")
        else heads,
        "head_dim": config.integer("head_dim", *WIDTH)
        if _given(config, "head_dim")
        else _head_dim(config, hidden, heads),
        "vocab": config.integer("vocab_size", *VOCAB),
        "max_seq_len": config.integer("max_position_embeddings", *LENGTH),
    }


def _opt_sizes(config: Table) -> dict[str, int]:
    heads = config.integer("num_attention_heads", *WIDTH)
    hidden = config.integer("hidden_size", *WIDTH)
    if _given(config, "word_embed_proj_dim"):
        projected = config.integer("word_embed_proj_dim", *WIDTH)
        if projected != hidden:
            config.fail(
                "word_embed_proj_dim", f"given {projected}; allowed: hidden_size = {hidden} (no projection)"
            )
    for key in ("do_layer_norm_before", "layer_norm_elementwise_affine"):
        if not _flag(config, key, default=True):
            config.fail(key, "given false; allowed: true, as in every OPT model but 350m")
    return {
        "layers": config.integer("num_hidden_layers", *LAYERS),
        "hidden": hidden,
        "intermediate": config.integer("ffn_dim", *WIDTH),
        "heads": heads,
        "kv_heads": heads,
        "head_dim": _head_dim(config, hidden, heads),
        "vocab": config.integer("vocab_size", *VOCAB),
        "max_seq_len": config.integer("max_position_embeddings", *LENGTH),
    }


def _head_dim(config: Table, hidden: int, heads: int) -> int:
    if hidden % heads:
        config.fail(
            "num_attention_heads",
            f"given {heads}, which does not divide hidden_size = {hidden}; add head_dim",
        )
    return hidden // heads


def _layout(config: Table, family: str) -> Architecture:
    """The family's layout with the biases that a config may switch."""
    layout = ARCHITECTURES[family]
    if family == "opt":
        bias = _flag(config, "enable_bias", default=True)
        return dataclasses.replace(layout, qkv_bias=bias, output_bias=bias, mlp_bias=bias)
    if family in ("llama", "qwen3", "gemma3_text"):
        bias = _flag(config, "attention_bias", default=False)
        layout = dataclasses.replace(layout, qkv_bias=bias, output_bias=bias)
    if family == "llama":
        layout = dataclasses.replace(layout, mlp_bias=_flag(config, "mlp_bias", default=False))
    return layout


def _dtype(config: Table) -> tuple[str, tuple[str, ...]]:
    key = next((key for key in ("torch_dtype", "dtype") if _given(config, key)), None)
    if key is None:
        return "fp16", ("no dtype in the config: run in fp16",)
    given = config.choice(key, _DTYPES)
    remark = (f"{key} is {given}: run in fp16",) if given.endswith("float32") else ()
    return _DTYPES[given], remark


def _remarks(config: Table) -> tuple[str, ...]:
    remarks = []
    window = config.raw("sliding_window", "") if _given(config, "sliding_window") else None
    if window is not None and _flag(config, "use_sliding_window", default=True):
        size = config.integer("sliding_window", *LENGTH)
        remarks.append(f"sliding window of {size}: attention and KV cache are charged for the whole length")
    for key in ("rope_scaling", "rope_parameters"):
        if _given(config, key):
            kind = config.table(key)
            name = next((kind.raw(name, "") for name in ("rope_type", "type") if name in kind), "default")
            if name != "default":
                remarks.append(f"{key} {shown(name)}: costs the same as plain rope")
    return tuple(remarks)


def _quantised(config: Table, model: Model) -> Model:
    """The dtypes of `quantization_config`: AWQ or GPTQ at 4 bits, or fp8."""
    if not _given(config, "quantization_config"):
        return model
    table = config.table("quantization_config")
    method = table.raw("quant_method", "awq, gptq or fp8")
    if method in ("awq", "gptq"):
        key = "bits" if "bits" in table else "w_bit"
        bits = table.integer(key, 1, 64)
        if bits != 4:
            table.fail(key, f"given {bits}; allowed: 4 (weight-only int4)")
        return with_dtypes(model, weight_dtype="int4")
    if method not in ("fp8", "fbgemm_fp8"):
        table.fail("quant_method", f"given {shown(method)}; allowed: awq or gptq (4 bits), fp8 or fbgemm_fp8")
    return with_dtypes(model, dtype="fp8")
