"""A Hugging Face `config.json` -> Model.

What every decoder has is read here, what its layers are by the reader of its family in `hf_families.py`. Only
what decides sizes is read: rope scaling, dropout and other settings are not. Whatever would change the cost
and is not modelled is refused by name, not guessed.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import msgspec

from medusa_sim.errors import SpecError, names_meant, shown
from medusa_sim.models.feed_forwards import Mlp
from medusa_sim.models.hf_families import CLASSES, FAMILIES, TYPES, WRAPPERS, read_family, unmodelled
from medusa_sim.models.hf_given import PARTS, Given, Refusal
from medusa_sim.models.model import NOT_PRICED, RUN_IN_FP16, Layers, Length, Model, Vocab, Width, of_dtype
from medusa_sim.models.quantisation import quantised
from medusa_sim.models.variants import Architecture
from medusa_sim.outside.limits import CONFIG_BYTES, NAME_CHARACTERS
from medusa_sim.reading.documents import read_json
from medusa_sim.reading.files import named
from medusa_sim.reading.strict import convert

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
_OUTER = ("torch_dtype", "dtype", "quantization_config", "tie_word_embeddings")
"""Keys that a multimodal config may keep beside its `text_config`."""
_LENGTHS = {"max_seq_len": "max_position_embeddings", "model_max_length": "max_position_embeddings"}
_INNER = ("text_config", "llm_config", "language_config")
"""Where multimodal configs keep the decoder."""
_FAMILIES_READ = "docs/models.md lists the families that are read"
_CLASS_ENDING = re.compile(r"For[A-Z]\w+$")
"""What classes of unlike models share: ForCausalLM, ForConditionalGeneration."""


class _Config(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of a config that decide sizes; others are not looked at."""

    hidden_size: Width
    num_hidden_layers: Layers
    num_attention_heads: Width
    vocab_size: Vocab
    max_position_embeddings: Length
    intermediate_size: Width | None = None
    num_key_value_heads: Width | None = None
    head_dim: Width | None = None
    word_embed_proj_dim: Width | None = None
    tie_word_embeddings: bool | None = None
    attention_bias: bool | None = None
    mlp_bias: bool | None = None
    enable_bias: bool | None = None
    use_bias: bool | None = None
    use_qkv_bias: bool | None = None
    attention_out_bias: bool | None = None
    do_layer_norm_before: bool | None = None
    layer_norm_elementwise_affine: bool | None = None
    torch_dtype: _Dtype | None = None
    dtype: _Dtype | None = None
    rope_scaling: Any = None
    rope_parameters: Any = None
    dual_chunk_attention_config: dict[str, Any] | None = None
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
    what = "a model's name, or the path of its Hugging Face config.json"
    content = read_json(file, CONFIG_BYTES, what, finite=False)
    if not isinstance(content, dict):
        raise SpecError(
            f"{named(file)}: holds {shown(content)}; a JSON object with a model's sizes is needed"
        )
    return model_of(content, file, place.parent.name if file.name == "config.json" else file.stem)


def model_of(content: dict[str, Any], file: Path, name: str) -> Model:
    """The model of that name that the content of a config describes, read from `file`. Raises SpecError."""
    refuse = Refusal(file)
    content = _language_model(content, refuse)
    family = _family(content, refuse)
    content = _by_known_names(content, family, refuse)
    config = convert(content, _Config, file)
    heads = config.num_attention_heads
    kv_heads = config.num_key_value_heads or heads
    if heads % kv_heads:
        refuse("num_key_value_heads", f"given {kv_heads}; it must divide num_attention_heads = {heads}")
    if family == "opt":
        _check_opt(config, refuse)
    layout = _layout(content, family)
    found = read_family(
        family,
        Given(
            content=content,
            keys={**PARTS, **FAMILIES[family].keys},
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            heads=heads,
            kv_heads=kv_heads,
            given_head_dim=config.head_dim,
            given_width=config.intermediate_size,
            layout=layout,
            refuse=refuse,
        ),
    )
    dtype, notes = _dtype(config)
    has_dense = any(isinstance(layer.feed_forward, Mlp) for layer in found.layers)
    model = Model(
        name=_checked_name(name),
        architecture=family,
        hidden=config.hidden_size,
        groups=found.layers,
        mlp_width=0 if has_dense else found.mlp_width or config.intermediate_size or 0,
        vocab=config.vocab_size,
        max_seq_len=config.max_position_embeddings,
        mtp_layers=found.mtp_layers,
        mtp=found.mtp,
        streams=found.streams,
        tied_embeddings=bool(config.tie_word_embeddings),
        **of_dtype(dtype),
        source=str(file),
        notes=notes + found.notes + _remarks(config),
        **layout.of_model,
    )
    return quantised(model, config.quantization_config, _beside(file), file)


def _checked_name(name: str) -> str:
    """The name. Raises SpecError for one that cannot stand in a line of a report or script."""
    name = name.encode("utf-8", "replace").decode()
    if not name.isprintable() or len(name) > NAME_CHARACTERS:
        raise SpecError(
            f"model name {shown(name)}: at most {NAME_CHARACTERS} letters without line breaks and control "
            "characters are allowed; rename the folder or file"
        )
    return name


def _beside(file: Path) -> dict[str, Any] | None:
    """`hf_quant_config.json` in the same folder, where modelopt writes it; None without one."""
    beside = file.with_name("hf_quant_config.json")
    if file.name != "config.json" or not beside.is_file():
        return None
    content = read_json(beside, CONFIG_BYTES, "modelopt's description of a quantised checkpoint")
    inner = content.get("quantization") if isinstance(content, dict) else None
    if not isinstance(inner, dict):
        raise SpecError(f"{named(beside)}: quantization: given {shown(inner)}; a table is needed")
    return inner


def _by_known_names(content: dict[str, Any], family: str, refuse: Refusal) -> dict[str, Any]:
    """The config with the values that its family leaves out, its keys renamed to those that readers know."""
    about = FAMILIES[family]
    for key in about.plain:
        if (value := content.get(key)) is True or value not in (None, 0, 1):
            refuse(key, f"given {shown(value)}; allowed: none (others are not modelled)")
    renamed = {
        name: content[key]
        for key, name in {**about.aliases, **_LENGTHS}.items()
        if content.get(key) is not None and content.get(name) is None
    }
    if content.get("tie_word_embeddings") is None:
        renamed.setdefault("tie_word_embeddings", about.defaults.get("tie_word_embeddings", False))
    return {**about.defaults, **content, **renamed}


def _language_model(content: dict[str, Any], refuse: Refusal) -> dict[str, Any]:
    """The decoder's part of a multimodal config, with the keys of the outer config."""
    thinker = content.get("thinker_config")
    if isinstance(thinker, dict):  # of an omni model, which speaks through a decoder that is not answered for
        beside = {name: content[name] for name in ("architectures", *_OUTER) if name in content}
        content = {**thinker, **beside}
    key = next((key for key in _INNER if content.get(key) is not None), None)
    if key is None:
        return content
    inner, classes = content[key], content.get("architectures")
    if not isinstance(inner, dict):
        refuse(key, f"given {shown(inner)}; a table with the language model's sizes is needed")
    outer = {name: content[name] for name in _OUTER if content.get(name) is not None}
    if inner.get("model_type") is not None or inner.get("architectures") is not None:
        return {**outer, **inner}
    wrapper = classes[0] if isinstance(classes, list) and len(classes) == 1 else None
    if not isinstance(wrapper, str) or wrapper not in WRAPPERS:
        if isinstance(wrapper, str) and unmodelled(wrapper) is not None:
            refuse("architectures", _unknown(wrapper, wrapper, WRAPPERS))
        refuse(
            "architectures",
            f"given {shown(classes)} with a {key} that names no model_type; allowed: one of "
            f"{', '.join(WRAPPERS)}, or save the language model's part as its own config.json",
        )
    return {**outer, "model_type": WRAPPERS[wrapper], **inner}


def _family(content: dict[str, Any], refuse: Refusal) -> str:
    families: dict[str, str] = {}
    if (classes := content.get("architectures")) is not None:
        name = classes[0] if isinstance(classes, list) and len(classes) == 1 else None
        if not isinstance(name, str) or name not in CLASSES:
            refuse("architectures", _unknown(classes, name, CLASSES))
        families["architectures"] = CLASSES[name]
    if (kind := content.get("model_type")) is not None:
        if not isinstance(kind, str) or kind not in TYPES:
            refuse("model_type", _unknown(kind, kind, TYPES))
        families["model_type"] = TYPES[kind]
    if not families:
        refuse("architectures", f"missing; {_FAMILIES_READ}")
    kind = families.get("model_type", next(iter(families.values())))
    # Kimi-K2 says kimi_k2 and DeepseekV3ForCausalLM
    if families.get("architectures", kind) not in (kind, FAMILIES[kind].layout_of):
        refuse(
            "model_type",
            f"given {shown(content['model_type'])}; architectures says {families['architectures']!r}",
        )
    # MiniMax-M3's snapshot calls its language model by the name of M2
    return "minimax_m3" if kind == "minimax_m2" and content.get("sparse_attention_config") else kind


def _unknown(given: object, name: object, allowed: Iterable[str]) -> str:
    """Why a family cannot be read."""
    if isinstance(name, str) and (what := unmodelled(name)) is not None:
        return f"given {shown(given)}: not modelled: its {what}"
    by_stem = {_CLASS_ENDING.sub("", each): each for each in allowed}
    stem = _CLASS_ENDING.sub("", name) if isinstance(name, str) else ""
    near = [by_stem[meant] for meant in names_meant(stem, by_stem)]
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    return f"given {shown(given)}{meant}; {_FAMILIES_READ}; or name a model of like sizes"


def _check_opt(config: _Config, refuse: Refusal) -> None:
    projected = config.word_embed_proj_dim
    if projected not in (None, config.hidden_size):
        refuse(
            "word_embed_proj_dim",
            f"given {projected}; allowed: hidden_size = {config.hidden_size} (no projection)",
        )
    for key in ("do_layer_norm_before", "layer_norm_elementwise_affine"):
        if getattr(config, key) is False:
            refuse(key, "given false; allowed: true, as in every OPT model but 350m")


def _layout(content: dict[str, Any], family: str) -> Architecture:
    """The family's layout with the biases that a config may switch."""
    switched = {
        name: content[key]
        for key, names in FAMILIES[family].biases.items()
        for name in names
        if content.get(key) is not None
    }
    return dataclasses.replace(FAMILIES[family].layout, **switched)


def _dtype(config: _Config) -> tuple[str, tuple[str, ...]]:
    key = next((key for key in ("dtype", "torch_dtype") if getattr(config, key) is not None), None)
    if key is None:
        return "fp16", (f"no dtype in the config: {RUN_IN_FP16}",)
    given = getattr(config, key)
    remark = (f"{key} is {given}: {RUN_IN_FP16}",) if given.endswith("float32") else ()
    return _DTYPES[given], remark


def _remarks(config: _Config) -> tuple[str, ...]:
    remarks = []
    for key in ("rope_scaling", "rope_parameters"):
        kind = getattr(config, key)
        name = kind.get("rope_type", kind.get("type")) if isinstance(kind, dict) else None
        if name not in (None, "default"):
            remarks.append(f"{key} {shown(name)}: costs the same as plain rope")
    if config.dual_chunk_attention_config:
        remarks.append(
            "dual_chunk_attention_config: timed as plain attention; passes over chunks, which SGLang alone "
            f"still runs (dual_chunk_flash_attn), are {NOT_PRICED}"
        )
    return tuple(remarks)
