"""The header of a GGUF file -> Model, with the types of its own tensors.

Sizes, names and types stand at the start of the file, before the tensors, which are never read: a file of 50
GB takes as long as one of 5. Format: ggml's description of GGUF (versions 2 and 3, little endian).

Sizes become the keys of a Hugging Face config, which the readers of families know; types of tensors become
the mix of a file (`file_types`) that no name describes.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from medusa_sim.errors import SpecError, shown
from medusa_sim.file_types import FILES, TYPES, Role
from medusa_sim.outside.limits import HEADER_BYTES
from medusa_sim.reading import named, read_start
from medusa_sim.specs.hf_config import model_of
from medusa_sim.specs.model import Model
from medusa_sim.specs.variants import with_dtypes
from medusa_sim.units import learn_file

MAGIC = b"GGUF"
"""How such a file begins."""
_VERSIONS = (2, 3)
_MOST = 1_000_000
"""Keys, tensors or dimensions of a header; the largest published models have some 2,000 tensors."""
_LONGEST = 10_000_000
"""Entries of a list: tokens and merges of a vocabulary."""
_KEPT = 4_096
"""Entries of a list that are kept: a number a layer; vocabularies are counted alone."""
_WHOLE = "<Q"
_NUMBERS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_TEXT, _LIST = 8, 9
_TYPES = {
    0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 10: "q2_k", 11: "q3_k",
    12: "q4_k", 13: "q5_k", 14: "q6_k", 16: "iq2_xxs", 17: "iq2_xs", 18: "iq3_xxs", 19: "iq1_s", 20: "iq4_nl",
    21: "iq3_s", 22: "iq2_s", 23: "iq4_xs", 29: "iq1_m", 30: "bf16", 34: "tq1_0", 35: "tq2_0", 39: "mxfp4",
    40: "nvfp4",
}  # fmt: skip
"""Number of a tensor's type -> its name (ggml.h, enum ggml_type)."""
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
"""Tensors beside the linear layers, which no file quantises."""


class _Family(NamedTuple):
    """Class of a Hugging Face config with the layers of an architecture of ggml, and keys by other names."""

    name: str
    keys: Mapping[str, str] = {}
    always: Mapping[str, Any] = {}


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
_SIZES = {
    "block_count": "num_hidden_layers", "embedding_length": "hidden_size", "vocab_size": "vocab_size",
    "context_length": "max_position_embeddings", "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads", "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim", "attention.sliding_window": "sliding_window",
}  # fmt: skip
_SHARD = re.compile(r"(.*)-00001-of-(\d{5})\.gguf")
_MOST_SHARDS = 64


class Tensor(NamedTuple):
    """Name, weights and type of one tensor."""

    name: str
    weights: int
    type: str
    is_matrix: bool


class Header(NamedTuple):
    """What stands before the tensors. keys: numbers and texts; of a list its start, and `length` of each."""

    keys: dict[str, Any]
    lengths: dict[str, int]
    tensors: tuple[Tensor, ...]


class _Reader:
    """A place in the start of a file; every step is within it, or a struct.error."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.at = 0

    def number(self, form: str) -> Any:
        """The next number."""
        (value,) = struct.unpack_from(form, self.content, self.at)
        self.at += struct.calcsize(form)
        return value

    def text(self) -> str:
        """The next text: its length, then that many bytes."""
        length = self.number(_WHOLE)
        if length > len(self.content) - self.at:
            raise struct.error("a text ends beyond the header")
        start, self.at = self.at, self.at + length
        return self.content[start : self.at].decode("utf-8", "replace")

    def passed_texts(self, count: int) -> None:
        """Skip `count` texts: a vocabulary of 250,000 takes some hundredths of a second."""
        unpack, content, at = struct.Struct(_WHOLE).unpack_from, self.content, self.at
        try:
            for _ in repeat(None, count):
                at += unpack(content, at)[0] + 8
        except OverflowError:  # a place that no memory has
            raise struct.error("a text ends beyond the header") from None
        if at > len(content):
            raise struct.error("a list ends beyond the header")
        self.at = at

    def listed(self, count: int, kind: int) -> list[Any]:
        """The first entries of a list of `count` entries of one kind; the rest is skipped."""
        if kind == _TEXT:
            kept = [self.text() for _ in range(min(count, 1))]
            self.passed_texts(count - len(kept))
            return kept
        form = _NUMBERS[kind]
        size = struct.calcsize(form)
        if count * size > len(self.content) - self.at:
            raise struct.error("a list ends beyond the header")
        start, self.at = self.at, self.at + count * size
        return [struct.unpack_from(form, self.content, start + size * i)[0] for i in range(min(count, _KEPT))]


def read_header(path: Path) -> Header:
    """The header of a file. Raises SpecError in one line where it is none, is cut short or says too much."""
    what = "a GGUF file"
    for limit in (
        HEADER_BYTES // 8,
        HEADER_BYTES,
    ):  # most headers are short, those with large vocabularies 10 MB
        content, is_whole = read_start(path, limit, what)
        if content[:4] != MAGIC:
            raise SpecError(f"{named(path)}: begins with {shown(content[:4])}, not with 'GGUF'; give {what}")
        try:
            return _header(_Reader(content), path)
        except struct.error as cut:
            if is_whole:
                raise SpecError(
                    f"{named(path)}: its header is cut short ({cut}); give a whole GGUF file"
                ) from cut
    raise SpecError(f"{named(path)}: its header is longer than {HEADER_BYTES:,} bytes, the most that is read")


def _header(reader: _Reader, path: Path) -> Header:
    def refuse(problem: str) -> NoReturn:
        raise SpecError(f"{named(path)}: {problem}; give a whole GGUF file")

    reader.at = 4
    version, tensors, count = reader.number("<I"), reader.number(_WHOLE), reader.number(_WHOLE)
    if version not in _VERSIONS:
        refuse(f"GGUF version {version}; versions 2 and 3, little endian, are read")
    if max(tensors, count) > _MOST:
        refuse(f"{tensors:,} tensors and {count:,} keys, of each {_MOST:,} at most are read")
    keys: dict[str, Any] = {}
    lengths: dict[str, int] = {}
    for _ in range(count):
        key, kind = reader.text(), reader.number("<I")
        if key in keys:
            refuse(f"key {shown(key)} is given twice")
        if kind == _TEXT:
            keys[key] = reader.text()
        elif kind == _LIST:
            inner, length = reader.number("<I"), reader.number(_WHOLE)
            if length > _LONGEST or (inner != _TEXT and inner not in _NUMBERS):
                refuse(f"key {shown(key)}: a list of {length:,} entries of kind {inner}")
            keys[key], lengths[key] = reader.listed(length, inner), length
        elif kind in _NUMBERS:
            keys[key] = reader.number(_NUMBERS[kind])
        else:
            refuse(f"key {shown(key)}: a value of kind {kind}, which GGUF has not")
    return Header(keys, lengths, tuple(_tensor(reader, refuse) for _ in range(tensors)))


def _tensor(reader: _Reader, refuse: Any) -> Tensor:
    name, dimensions = reader.text(), reader.number("<I")
    if dimensions > 4:
        refuse(f"tensor {shown(name)}: {dimensions} dimensions")
    weights = 1
    sizes = [reader.number(_WHOLE) for _ in range(dimensions)]
    for size in sizes:
        weights *= size
    kind = reader.number("<I")
    reader.number(_WHOLE)  # where it lies
    if kind not in _TYPES:
        refuse(f"tensor {shown(name)}: type {kind}, which is not known")
    if not 0 < weights < 10**13:
        refuse(f"tensor {shown(name)}: {weights:.3g} weights")
    return Tensor(name, weights, _TYPES[kind], sum(size > 1 for size in sizes) > 1)


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
        config["num_hidden_layers"] = (
            config.get("num_hidden_layers", 0) - extra
        )  # they are counted among the blocks
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
            of = sizes.setdefault(_role(tensor.name), {})
            of[tensor.type] = of.get(tensor.type, 0) + tensor.weights
    layers = {role: of for role, of in sizes.items() if role not in ("head", "embedding")}
    if not layers:
        raise SpecError(f"{named(path)}: names no matrix of a layer; give a GGUF file of a model's weights")
    sizes.setdefault("linear", next(iter(layers.values())))
    sizes.setdefault("head", sizes.get("embedding", sizes["linear"]))
    mix = {
        str(role): tuple((name, weights / sum(of.values())) for name, weights in sorted(of.items()))
        for role, of in sizes.items()
    }
    read = sum(TYPES[name] * weights for of in layers.values() for name, weights in of.items())
    mean = read / sum(weights for of in layers.values() for weights in of.values())
    number = header.keys.get("general.file_type")
    label = _FILES.get(number, "gguf") if isinstance(number, int) else "gguf"
    name = f"{label}@{zlib.crc32(repr(sorted(mix.items())).encode()):08x}"
    if name not in FILES:
        learn_file(name, mix, mean)
    return name
