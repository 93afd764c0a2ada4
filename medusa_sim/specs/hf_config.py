"""A Hugging Face `config.json` -> Model.

Dense decoders of the Llama, Mistral, Qwen2, Qwen3, Gemma 3 and OPT families. Only what decides sizes is read,
so rope scaling, dropout and other settings may say what they like. Whatever would change the cost and is not
modelled (experts, other quantisations, other layouts) is refused by name, not guessed.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import msgspec
from msgspec import Meta

from medusa_sim.errors import SpecError, shown
from medusa_sim.reading import SPEC_BYTES, named, read_json
from medusa_sim.specs.model import ARCHITECTURES, Architecture, Layers, Length, Model, Vocab, Width
from medusa_sim.specs.quantisation import quantised
from medusa_sim.specs.strict import converted

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
_Dtype = Literal[
    "float16", "torch.float16", "bfloat16", "torch.bfloat16", "float32", "torch.float32"
]  # the keys of _DTYPES


class _Config(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of a config that decide sizes; others are not looked at."""

    hidden_size: Width
    num_hidden_layers: Layers
    num_attention_heads: Width
    vocab_size: Vocab
    max_position_embeddings: Length
    intermediate_size: Width | None = None
    ffn_dim: Width | None = None
    num_key_value_heads: Width | None = None
    head_dim: Width | None = None
    word_embed_proj_dim: Width | None = None
    tie_word_embeddings: bool | None = None
    num_nextn_predict_layers: Annotated[int, Meta(ge=0, le=1000)] | None = None
    attention_bias: bool | None = None
    mlp_bias: bool | None = None
    enable_bias: bool | None = None
    do_layer_norm_before: bool | None = None
    layer_norm_elementwise_affine: bool | None = None
    torch_dtype: _Dtype | None = None
    dtype: _Dtype | None = None
    sliding_window: Annotated[int, Meta(ge=1, le=100_000_000)] | None = None
    use_sliding_window: bool | None = None
    rope_scaling: Any = None
    rope_parameters: Any = None
    quantization_config: dict[str, Any] | None = None


def model_from_config(path: Path) -> Model:
    """The model that a `config.json` (or the folder that holds it) describes.

    Its name is the folder's, or the file's where it is called something else. Raises SpecError naming
    file, field, what was given and what is allowed.
    """
    try:
        file = path / "config.json" if path.is_dir() else path
        place = file.resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: links that lead to each other
        raise SpecError(f"{named(path)}: cannot be read ({shown(str(error))}); check the path") from error
    content = read_json(file, SPEC_BYTES, "a model's name, or the path of its Hugging Face config.json")
    if not isinstance(content, dict):
        raise SpecError(
            f"{named(file)}: holds {shown(content)}; a JSON object with a model's sizes is needed"
        )
    refuse = _Refusal(file)
    _refuse_unmodelled(content, refuse)
    family = _family(content, refuse)
    config = converted(content, _Config, file)
    heads = config.num_attention_heads
    kv_heads = heads if family == "opt" else config.num_key_value_heads or heads
    if heads % kv_heads:
        refuse("num_key_value_heads", f"given {kv_heads}; it must divide num_attention_heads = {heads}")
    if family == "opt":
        _check_opt(config, refuse)
    width = "ffn_dim" if family == "opt" else "intermediate_size"
    if (intermediate := getattr(config, width)) is None:
        refuse(width, "missing; a whole number from 1 to 1e+06 is needed")
    dtype, notes = _dtype(config)
    layout = _layout(config, family)
    name = place.parent.name if file.name == "config.json" else file.stem
    model = Model(
        name=name.encode("utf-8", "replace").decode(),
        architecture=family,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        intermediate=intermediate,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_head_dim(config, family, refuse),
        vocab=config.vocab_size,
        max_seq_len=config.max_position_embeddings,
        mtp_layers=config.num_nextn_predict_layers or 0,
        tied_embeddings=_or(config.tie_word_embeddings, default=family in ("opt", "gemma3_text")),
        dtype=dtype,
        weight_dtype=dtype,
        kv_dtype=dtype,
        activation_dtype=dtype,
        source=str(file),
        notes=notes + _remarks(config),
        **dataclasses.asdict(layout),
    )
    return quantised(model, config.quantization_config, file)


class _Refusal:
    """Raises SpecError for a key of a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __call__(self, key: str, problem: str) -> NoReturn:
        """One line: file, key, problem."""
        raise SpecError(f"{named(self.file)}: {key}: {problem}")


def _refuse_unmodelled(content: dict[str, Any], refuse: _Refusal) -> None:
    for key in _EXPERT_KEYS:
        if content.get(key) not in (None, 0, 1):
            refuse(
                key, f"given {shown(content[key])}; mixture-of-experts models are not modelled, only dense"
            )
    if "text_config" in content:
        refuse("text_config", "a multimodal model; save the language model's part as its own config.json")


def _family(content: dict[str, Any], refuse: _Refusal) -> str:
    allowed = ", ".join(_CLASSES)
    families: dict[str, str] = {}
    if (classes := content.get("architectures")) is not None:
        known = isinstance(classes, list) and len(classes) == 1 and isinstance(classes[0], str)
        if not known or classes[0] not in _CLASSES:
            refuse("architectures", f"given {shown(classes)}; allowed: one of {allowed}")
        families["architectures"] = _CLASSES[classes[0]]
    if (kind := content.get("model_type")) is not None:
        if not isinstance(kind, str) or kind not in ARCHITECTURES:
            refuse("model_type", f"given {shown(kind)}; allowed: {', '.join(ARCHITECTURES)}")
        families["model_type"] = kind
    if not families:
        refuse("architectures", f"missing; allowed: one of {allowed}")
    if len(set(families.values())) > 1:
        refuse(
            "model_type",
            f"given {families['model_type']!r}; architectures says {families['architectures']!r}",
        )
    return next(iter(families.values()))


def _check_opt(config: _Config, refuse: _Refusal) -> None:
    projected = config.word_embed_proj_dim
    if projected not in (None, config.hidden_size):
        refuse(
            "word_embed_proj_dim",
            f"given {projected}; allowed: hidden_size = {config.hidden_size} (no projection)",
        )
    for key in ("do_layer_norm_before", "layer_norm_elementwise_affine"):
        if getattr(config, key) is False:
            refuse(key, "given false; allowed: true, as in every OPT model but 350m")


def _head_dim(config: _Config, family: str, refuse: _Refusal) -> int:
    hidden, heads = config.hidden_size, config.num_attention_heads
    if config.head_dim is not None and family != "opt":
        return config.head_dim
    if hidden % heads:
        refuse(
            "num_attention_heads",
            f"given {heads}, which does not divide hidden_size = {hidden}; add head_dim",
        )
    return hidden // heads


def _layout(config: _Config, family: str) -> Architecture:
    """The family's layout with the biases that a config may switch."""
    layout = ARCHITECTURES[family]
    if family == "opt":
        bias = _or(config.enable_bias, default=True)
        return dataclasses.replace(layout, qkv_bias=bias, output_bias=bias, mlp_bias=bias)
    if family in ("llama", "qwen3", "gemma3_text"):
        bias = _or(config.attention_bias, default=False)
        layout = dataclasses.replace(layout, qkv_bias=bias, output_bias=bias)
    if family == "llama":
        layout = dataclasses.replace(layout, mlp_bias=_or(config.mlp_bias, default=False))
    return layout


def _or(given: bool | None, *, default: bool) -> bool:
    return default if given is None else given


def _dtype(config: _Config) -> tuple[str, tuple[str, ...]]:
    key = next((key for key in ("torch_dtype", "dtype") if getattr(config, key) is not None), None)
    if key is None:
        return "fp16", ("no dtype in the config: run in fp16",)
    given = getattr(config, key)
    remark = (f"{key} is {given}: run in fp16",) if given.endswith("float32") else ()
    return _DTYPES[given], remark


def _remarks(config: _Config) -> tuple[str, ...]:
    remarks = []
    if config.sliding_window is not None and config.use_sliding_window is not False:
        remarks.append(
            f"sliding window of {config.sliding_window}: attention and KV cache are charged for the whole "
            "length"
        )
    for key in ("rope_scaling", "rope_parameters"):
        kind = getattr(config, key)
        name = kind.get("rope_type", kind.get("type")) if isinstance(kind, dict) else None
        if name not in (None, "default"):
            remarks.append(f"{key} {shown(name)}: costs the same as plain rope")
    return tuple(remarks)
