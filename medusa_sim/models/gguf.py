"""The header of a GGUF file (`gguf_header`) -> Model, with the types of its own tensors.

Sizes become the keys of a Hugging Face config, which the readers of families know; types of tensors become
the mix of a file (`file_types`) that no name describes.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from medusa_sim.errors import SpecError, shown
from medusa_sim.file_types import FILES, TYPES, Role
from medusa_sim.models.gguf_header import Header, Tensor, read_header
from medusa_sim.models.hf_config import model_of
from medusa_sim.models.model import Model
from medusa_sim.models.variants import with_dtypes
from medusa_sim.reading.files import named
from medusa_sim.units import learn_file

_FILES = {
    0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 7: "q8_0", 8: "q5_0", 9: "q5_1", 10: "q2_k", 11: "q3_k_s",
    12: "q3_k_m", 13: "q3_k_l", 14: "q4_k_s", 15: "q4_k_m", 16: "q5_k_s", 17: "q5_k_m", 18: "q6_k",
    19: "iq2_xxs", 20: "iq2_xs", 21: "q2_k_s", 23: "iq3_xxs", 24: "iq1_s", 25: "iq4_nl", 26: "iq3_s",
    27: "iq3_m", 28: "iq2_s", 29: "iq2_m", 30: "iq4_xs", 31: "iq1_m", 32: "bf16", 38: "mxfp4_moe",
}  # fmt: skip
"""`general.file_type` -> what people call the file (llama.h, enum llama_ftype)."""
_ROLES: tuple[tuple[str, Role], ...] = (
    ("token_embd", "embedding"), ("output", "head"), ("_exps", "experts"), ("attn_v", "values"),
    ("attn_k", "keys"), ("attn_output", "output"), ("ssm_out", "output"), ("ffn_down", "down"),
)  # fmt: skip
"""What a tensor's name holds -> what its matrix is for; the first that fits, others are `linear`."""
_UNCOUNTED = ("ffn_gate_inp", "rope_freqs")
"""Tensors other than the linear layers, which no file quantises."""
_EXPERTS = {
    "expert_count": "num_experts", "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}  # fmt: skip
_LINEAR = {
    "ssm.conv_kernel": "linear_conv_kernel_dim", "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads", "ssm.time_step_rank": "linear_num_value_heads",
    "full_attention_interval": "full_attention_interval", "nextn_predict_layers": "mtp_num_hidden_layers",
}  # fmt: skip
_ROUTED = {
    "expert_count": "n_routed_experts", "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size", "expert_shared_count": "n_shared_experts",
    "leading_dense_block_count": "first_k_dense_replace", "nextn_predict_layers": "num_nextn_predict_layers",
    "attention.q_lora_rank": "q_lora_rank", "attention.kv_lora_rank": "kv_lora_rank",
}  # fmt: skip
_SIZES = {
    "block_count": "num_hidden_layers", "embedding_length": "hidden_size", "vocab_size": "vocab_size",
    "context_length": "max_position_embeddings", "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads", "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim", "attention.sliding_window": "sliding_window",
}  # fmt: skip
_SHARD = re.compile(r"(.*)-00001-of-(\d{5})\.gguf")
_MOST_SHARDS = 64


class _Family(NamedTuple):
    """Class of a Hugging Face config with the layers of an architecture of ggml, and keys by other names."""

    name: str
    keys: Mapping[str, str] = {}
    always: Mapping[str, Any] = {}


FAMILIES: dict[str, _Family] = {
    "llama": _Family("LlamaForCausalLM"),
    "mixtral": _Family(
        "MixtralForCausalLM",
        {"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
    ),
    "mistral3": _Family("MistralForCausalLM"),
    "qwen2": _Family("Qwen2ForCausalLM"),
    "qwen2moe": _Family("Qwen2MoeForCausalLM", _EXPERTS),
    "qwen3": _Family("Qwen3ForCausalLM"),
    "qwen3moe": _Family("Qwen3MoeForCausalLM", _EXPERTS),
    "qwen3next": _Family("Qwen3NextForCausalLM", {**_EXPERTS, **_LINEAR}),
    "qwen35": _Family("Qwen3_5ForCausalLM", _LINEAR),
    "qwen35moe": _Family("Qwen3_5MoeForCausalLM", {**_EXPERTS, **_LINEAR}),
    "gemma2": _Family("Gemma2ForCausalLM"),
    "gemma3": _Family("Gemma3ForCausalLM"),
    "phi3": _Family("Phi3ForCausalLM"),
    "gpt-oss": _Family(
        "GptOssForCausalLM", {"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"}
    ),
    "glm4moe": _Family("Glm4MoeForCausalLM", _ROUTED),
    "granite": _Family("GraniteForCausalLM"),
}
"""Architectures of ggml whose sizes are read."""


def model_from_gguf(path: Path) -> Model:
    """The model of a GGUF file (or of the set of files that it begins), in its own types.

    Raises SpecError in one line for what is no such file, or an architecture that is not modelled.
    """
    header = read_header(path)
    tensors = header.tensors
    for shard in _shards(path):
        tensors += read_header(shard).tensors
    config = _config(header, tensors, path)
    model = model_of(config, path, path.stem)
    return with_dtypes(model, None, _learned(header, tensors, path))


def _shards(path: Path) -> Iterator[Path]:
    """The other files of a model that is split, the given one being the first."""
    if found := _SHARD.fullmatch(path.name):
        if (count := int(found[2])) > _MOST_SHARDS:
            raise SpecError(f"{named(path)}: one of {count} files; {_MOST_SHARDS} at most are read")
        yield from (path.with_name(f"{found[1]}-{n:05}-of-{count:05}.gguf") for n in range(2, count + 1))


def _config(header: Header, tensors: tuple[Tensor, ...], path: Path) -> dict[str, Any]:
    """The sizes as a Hugging Face config has them."""
    keys, name = header.keys, header.keys.get("general.architecture")
    if name == "llama" and keys.get("llama.expert_count"):
        own, family = "llama", FAMILIES["mixtral"]
    elif isinstance(name, str) and name in FAMILIES:
        own, family = name, FAMILIES[name]
    else:
        raise SpecError(
            f"{named(path)}: general.architecture: given {shown(name)}; allowed: {', '.join(FAMILIES)}; or "
            "name the model and give --weight-dtype"
        )
    config: dict[str, Any] = {"architectures": [family.name], "torch_dtype": "bfloat16", **family.always}
    for key, known in {**_SIZES, **family.keys}.items():
        value = keys.get(f"{own}.{key}")
        if isinstance(value, list):  # a number a layer: layers without have 0
            value = max((each for each in value if isinstance(each, int)), default=None)
        if value is not None:
            config[known] = value
    config.setdefault("vocab_size", header.lengths.get("tokenizer.ggml.tokens"))
    if (extra := keys.get(f"{own}.nextn_predict_layers")) and isinstance(extra, int):
        # they are counted among the blocks
        config["num_hidden_layers"] = config.get("num_hidden_layers", 0) - extra
    heads, inner = config.get("linear_num_value_heads"), keys.get(f"{own}.ssm.inner_size")
    if isinstance(heads, int) and heads and isinstance(inner, int):
        config["linear_value_head_dim"] = inner // heads
    config["tie_word_embeddings"] = not any(tensor.name == "output.weight" for tensor in tensors)
    return config


def _role(name: str) -> Role:
    return next((role for part, role in _ROLES if _holds(name, part)), "linear")


def _holds(name: str, part: str) -> bool:
    """Whether a tensor is one of that part; `output` is the head, not a layer's."""
    return name.startswith(f"{part}.") if part in ("output", "token_embd") else part in name


def _learned(header: Header, tensors: tuple[Tensor, ...], path: Path) -> str:
    """The name under which the file's own mix is known from here on."""
    sizes: dict[Role, dict[str, int]] = {}
    for tensor in tensors:
        if tensor.is_matrix and not any(part in tensor.name for part in _UNCOUNTED):
            types = sizes.setdefault(_role(tensor.name), {})
            types[tensor.type] = types.get(tensor.type, 0) + tensor.weights
    layers = {role: types for role, types in sizes.items() if role not in ("head", "embedding")}
    if not layers:
        raise SpecError(f"{named(path)}: names no matrix of a layer; give a GGUF file of a model's weights")
    sizes.setdefault("linear", next(iter(layers.values())))
    sizes.setdefault("head", sizes.get("embedding", sizes["linear"]))
    mix = {
        str(role): tuple((name, weights / sum(types.values())) for name, weights in sorted(types.items()))
        for role, types in sizes.items()
    }
    read = sum(TYPES[name] * weights for types in layers.values() for name, weights in types.items())
    mean = read / sum(weights for types in layers.values() for weights in types.values())
    number = header.keys.get("general.file_type")
    label = _FILES.get(number, "gguf") if isinstance(number, int) else "gguf"
    name = f"{label}@{zlib.crc32(repr(sorted(mix.items())).encode()):08x}"
    if name not in FILES:
        learn_file(name, mix, mean)
    return name
