"""Shape of a Llama-family model, read strictly from a Hugging Face `config.json`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from medusa_sim.errors import SpecError
from medusa_sim.models.model import Layers, Length, Vocab, Width
from medusa_sim.outside.limits import CONFIG_BYTES
from medusa_sim.reading.documents import read_json
from medusa_sim.reading.strict import convert

ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the trained context (`rope_scaling` of a config).

    `dynamic` NTK scaling is refused: it re-rotates keys that a cache has already stored.
    """

    rope_type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """Dimensions and switches of the backbone; field names are those of Hugging Face.

    `attention_bias` is the bias of Q, K and V (always there in Qwen2), `output_bias` that of O.
    `sliding_window` limits attention to that many last positions (Mistral 7B v0.1); None is unlimited.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling = field(default_factory=RopeScaling)
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    sliding_window: int | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    model_type: str = "llama"
    torch_dtype: str = "float32"

    @property
    def group_size(self) -> int:
        """Query heads that share one K/V head."""
        return self.num_attention_heads // self.num_key_value_heads

    @property
    def parameter_count(self) -> int:
        """Weights of the backbone with its head, biases left out."""
        attention = (
            self.hidden_size * self.head_dim * (2 * self.num_attention_heads + 2 * self.num_key_value_heads)
        )
        layer = attention + 3 * self.hidden_size * self.intermediate_size + 2 * self.hidden_size
        vocab = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return self.num_hidden_layers * layer + vocab + self.hidden_size

    def to_hf(self) -> dict[str, Any]:
        """The `config.json` that `transformers` and `read_config` read back to this object."""
        values: dict[str, Any] = {
            "model_type": self.model_type,
            "architectures": [
                {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2"}[self.model_type] + "ForCausalLM"
            ],
            "hidden_act": "silu",
        }
        for name in _INTEGERS:
            values[name] = getattr(self, name)
        values |= {
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "tie_word_embeddings": self.tie_word_embeddings,
            "sliding_window": self.sliding_window,
            "bos_token_id": self.bos_token_id,
            "eos_token_id": list(self.eos_token_ids) or None,
        }
        if self.model_type == "llama":
            values |= {"attention_bias": self.attention_bias, "mlp_bias": self.mlp_bias}
            values.pop("sliding_window")
        if self.rope_scaling.rope_type != "default":
            scaling = {
                name: getattr(self.rope_scaling, name) for name in _SCALING_KEYS[self.rope_scaling.rope_type]
            }
            values["rope_scaling"] = {"rope_type": self.rope_scaling.rope_type} | {
                name: value for name, value in scaling.items() if value is not None
            }
        return values


_INTEGERS = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "max_position_embeddings",
)  # fmt: skip
_SCALING_KEYS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "attention_factor", "beta_fast", "beta_slow", "original_max_position_embeddings"),
}
_COMMON_ROPE_KEYS = ("rope_type", "type", "rope_theta", "original_max_position_embeddings")
_ROPE_DEFAULTS = (
    ("truncate", True),
    ("partial_rotary_factor", 1.0),
    ("mscale", None),
    ("mscale_all_dim", None),
)
"""Keys that change what is computed, at the values at which they do not."""


class _HfConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of a `config.json` that change what is computed; others are not looked at."""

    model_type: Literal["llama", "mistral", "qwen2"] = "llama"
    vocab_size: Vocab
    hidden_size: Width
    intermediate_size: Width
    num_hidden_layers: Layers
    num_attention_heads: Width
    num_key_value_heads: Width | None = None
    head_dim: Width | None = None
    max_position_embeddings: Length | None = None
    rms_norm_eps: float = 1e-6
    rope_theta: float | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    tie_word_embeddings: bool | None = None
    attention_bias: bool | None = None
    mlp_bias: bool | None = None
    sliding_window: Length | None = None
    use_sliding_window: bool | None = None
    hidden_act: Literal["silu", "swish"] = "silu"
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    dtype: str | None = None
    torch_dtype: str | None = None


def _rope_scaling(raw: Mapping[str, Any], max_positions: int, where: str) -> RopeScaling:
    rope_type = str(raw.get("rope_type", raw.get("type", "default")))
    if rope_type not in _SCALING_KEYS:
        raise SpecError(f"{where}: rope_type {rope_type!r} is not supported (known: {', '.join(ROPE_TYPES)})")
    for key, value in raw.items():
        if key not in (*_COMMON_ROPE_KEYS, *_SCALING_KEYS[rope_type]) and (key, value) not in _ROPE_DEFAULTS:
            raise SpecError(
                f"{where}: rope_scaling.{key} = {value!s:.40} is not supported for type {rope_type!r} "
                f"(known: {', '.join(_SCALING_KEYS[rope_type]) or 'none'})"
            )
    given: dict[str, Any] = {}
    for key in _SCALING_KEYS[rope_type]:
        if raw.get(key) is not None:
            number = raw[key]
            if not isinstance(number, int | float) or not math.isfinite(number) or number <= 0:
                raise SpecError(f"{where}: rope_scaling.{key} is {number!r}; it must be a positive number")
            given[key] = int(number) if key == "original_max_position_embeddings" else float(number)
        elif key == "factor":
            raise SpecError(f"{where}: rope_scaling of type {rope_type!r} needs a factor")
    given.setdefault("original_max_position_embeddings", max_positions)
    return RopeScaling(rope_type=rope_type, **given)


def _end_tokens(given: int | list[int] | None) -> tuple[int, ...]:
    return tuple([given] if isinstance(given, int) else given or ())


def config_from_hf(values: Mapping[str, Any], where: str) -> DecoderConfig:
    """The configuration in a parsed Hugging Face `config.json`; `where` names the file in errors.

    Raises SpecError for another architecture, activation or rope type, and for sizes that do not fit.
    """
    given = convert(dict(values), _HfConfig, where)
    heads, kind = given.num_attention_heads, given.model_type
    kv_heads = given.num_key_value_heads or heads
    max_positions = given.max_position_embeddings or 2048
    if heads % kv_heads:
        raise SpecError(
            f"{where}: num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}"
        )
    head_dim = given.head_dim or given.hidden_size // heads
    if head_dim < 2 or head_dim % 2:
        raise SpecError(f"{where}: head_dim {head_dim} is odd or 0; rotary embedding needs pairs")
    if kind == "qwen2" and given.use_sliding_window:
        raise SpecError(
            f"{where}: use_sliding_window=true (windows in some layers only) is not supported; set false"
        )
    # transformers 4 writes rope_scaling, transformers 5 rope_parameters with rope_theta inside
    rope = given.rope_parameters or {}
    bias = bool(given.attention_bias) if kind == "llama" else kind == "qwen2"
    return DecoderConfig(
        vocab_size=given.vocab_size,
        hidden_size=given.hidden_size,
        intermediate_size=given.intermediate_size,
        num_hidden_layers=given.num_hidden_layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=max_positions,
        rms_norm_eps=given.rms_norm_eps,
        rope_theta=float(rope.get("rope_theta") or given.rope_theta or 10000.0),
        rope_scaling=_rope_scaling(rope or given.rope_scaling or {}, max_positions, where),
        tie_word_embeddings=bool(given.tie_word_embeddings),
        attention_bias=bias,
        output_bias=bias and kind == "llama",
        mlp_bias=bool(given.mlp_bias) and kind == "llama",
        sliding_window=given.sliding_window if kind == "mistral" else None,
        bos_token_id=given.bos_token_id,
        eos_token_ids=_end_tokens(given.eos_token_id),
        model_type=kind,
        torch_dtype=given.dtype or given.torch_dtype or "float32",
    )


class _Generation(msgspec.Struct, frozen=True):
    """What of a `generation_config.json` counts here."""

    eos_token_id: int | list[int] | None = None


def read_config(directory: Path) -> DecoderConfig:
    """`config_from_hf` of `directory/config.json`, with the end tokens of a generation_config.json there.

    Raises SpecError if it is missing or not JSON. A head repository (Medusa heads alone) is told apart.
    """
    path = directory / "config.json"
    values = _json_object(path)
    if values is None:
        raise SpecError(f"{path}: no such file; a checkpoint is a folder with config.json and safetensors")
    if "hidden_size" not in values and any(key.startswith("medusa_") for key in values):
        raise SpecError(
            f"{path}: describes Medusa heads without a model; give --checkpoint BASE --head-file {directory}"
        )
    config = config_from_hf(values, str(path))
    beside = directory / "generation_config.json"
    end = convert(_json_object(beside) or {}, _Generation, beside).eos_token_id
    return config if end is None else replace(config, eos_token_ids=_end_tokens(end))


def _json_object(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None if there is no such file. Raises SpecError for anything else."""
    if not path.exists():
        return None
    values = read_json(path, CONFIG_BYTES, "a JSON file")
    if not isinstance(values, dict):
        raise SpecError(f"{path}: must hold a JSON object, not a {type(values).__name__}")
    return values
