"""Models of this project as GGUF files, F16: what runs inside the engine's own environment (gguf, numpy).

    .venv-llama/bin/python benchmarks/engine/write_gguf.py PLAN.json

A plan is a list of files. `config` is the folder of a config.json. `checkpoint` is true where the folder
has weights and a tokenizer; otherwise weights are random, the same for a seed on every machine, and tokens
are the first of `vocabulary`, a GGUF file of llama.cpp's. `quiet_from`: layers from there on change the
residual stream little, so that a model of the layers before (`layers`) often agrees with the whole: a pair
to draft with.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
QUIET = 0.05
"""Of the usual size, what layers from `quiet_from` on add."""
_NORMAL, _CONTROL, _BYTE = 1, 3, 6


def random_weights(config: dict[str, Any], plan: dict[str, Any]) -> Iterator[tuple[str, Array]]:
    """(name in ggml, matrix) of a Llama with normal weights."""
    hidden, inter, vocab = (config[key] for key in ("hidden_size", "intermediate_size", "vocab_size"))
    heads, groups, head_dim = _heads(config)
    quiet_from = plan.get("quiet_from", config["num_hidden_layers"])

    def normal(layer: int, place: int, rows: int, columns: int, size: float = 1.0) -> Array:
        draws = np.random.default_rng([plan["seed"], layer, place])
        return draws.standard_normal((rows, columns), dtype=np.float32) * np.float32(size / columns**0.5)

    yield "token_embd", normal(-1 % 2**31, 0, vocab, hidden, hidden**0.5)
    if not config.get("tie_word_embeddings"):
        yield "output", normal(-1 % 2**31, 1, vocab, hidden)
    yield "output_norm", np.ones(hidden, dtype=np.float32)
    for layer in range(plan.get("layers", config["num_hidden_layers"])):
        own = QUIET if layer >= quiet_from else 1.0
        at = f"blk.{layer}"
        yield f"{at}.attn_norm", np.ones(hidden, dtype=np.float32)
        yield f"{at}.ffn_norm", np.ones(hidden, dtype=np.float32)
        yield f"{at}.attn_q", normal(layer, 0, heads * head_dim, hidden)
        yield f"{at}.attn_k", normal(layer, 1, groups * head_dim, hidden)
        yield f"{at}.attn_v", normal(layer, 2, groups * head_dim, hidden)
        yield f"{at}.attn_output", normal(layer, 3, hidden, heads * head_dim, own)
        yield f"{at}.ffn_gate", normal(layer, 4, inter, hidden)
        yield f"{at}.ffn_up", normal(layer, 5, inter, hidden)
        yield f"{at}.ffn_down", normal(layer, 6, hidden, inter, own)


_NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
}  # fmt: skip
_STORED = {"F16": np.float16, "F32": np.float32}


def stored_weights(folder: Path, config: dict[str, Any]) -> Iterator[tuple[str, Array]]:
    """(name in ggml, matrix) of a checkpoint; queries and keys in the order of ggml's rotation."""
    content = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    heads, groups, _ = _heads(config)
    for name, told in json.loads(content[8 : 8 + length]).items():
        words = name.removesuffix(".weight")
        layer = ""
        if words.startswith("model.layers."):
            _, _, number, words = words.split(".", 3)
            layer = f"blk.{number}."
        if words not in _NAMES:  # heads of Medusa's
            continue
        begin, end = told["data_offsets"]
        values = np.frombuffer(content[8 + length + begin : 8 + length + end], _STORED[told["dtype"]])
        matrix = values.reshape(told["shape"]).astype(np.float32)
        if _NAMES[words] in ("attn_q", "attn_k"):
            matrix = interleaved(matrix, heads if _NAMES[words] == "attn_q" else groups)
        yield f"{layer}{_NAMES[words]}", matrix


def interleaved(matrix: Array, heads: int) -> Array:
    """Rows of each head with the halves that rotate together side by side."""
    rows, columns = matrix.shape
    halves = matrix.reshape(heads, 2, rows // heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, columns))


def _heads(config: dict[str, Any]) -> tuple[int, int, int]:
    heads = config["num_attention_heads"]
    return heads, config["num_key_value_heads"], config.get("head_dim", config["hidden_size"] // heads)


def add_tokenizer(out: gguf.GGUFWriter, folder: Path) -> None:
    """Tokens and merges of a byte-level tokenizer.json."""
    told = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    tokens = sorted(told["model"]["vocab"], key=told["model"]["vocab"].__getitem__)
    special = {each["content"] for each in told["added_tokens"]}
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    out.add_token_list(tokens)
    out.add_token_types([_CONTROL if token in special else _NORMAL for token in tokens])
    out.add_token_merges(
        [merge if isinstance(merge, str) else " ".join(merge) for merge in told["model"]["merges"]]
    )
    end = next(iter(special))
    out.add_eos_token_id(tokens.index(end))
    out.add_bos_token_id(tokens.index(end))
    out.add_add_bos_token(False)


def add_vocabulary(out: gguf.GGUFWriter, vocabulary: Path, count: int) -> None:
    """The first tokens of a vocabulary of llama.cpp's."""
    fields = gguf.GGUFReader(vocabulary).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()[:count]
    out.add_tokenizer_model("llama")
    out.add_token_list(tokens)
    out.add_token_scores(fields["tokenizer.ggml.scores"].contents()[:count])
    out.add_token_types(fields["tokenizer.ggml.token_type"].contents()[:count])
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)


def write(plan: dict[str, Any]) -> None:
    """One file."""
    folder = Path(plan["config"])
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    heads, groups, head_dim = _heads(config)
    out = gguf.GGUFWriter(plan["file"], "llama")
    out.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    out.add_block_count(plan.get("layers", config["num_hidden_layers"]))
    out.add_context_length(config["max_position_embeddings"])
    out.add_embedding_length(config["hidden_size"])
    out.add_feed_forward_length(config["intermediate_size"])
    out.add_head_count(heads)
    out.add_head_count_kv(groups)
    out.add_key_length(head_dim)
    out.add_value_length(head_dim)
    out.add_rope_dimension_count(head_dim)
    out.add_rope_freq_base(config["rope_theta"])
    out.add_layer_norm_rms_eps(config["rms_norm_eps"])
    out.add_vocab_size(config["vocab_size"])
    if plan.get("checkpoint"):
        add_tokenizer(out, folder)
        weights = stored_weights(folder, config)
    else:
        add_vocabulary(out, Path(plan["vocabulary"]), config["vocab_size"])
        weights = random_weights(config, plan)
    for name, matrix in weights:
        out.add_tensor(f"{name}.weight", matrix if matrix.ndim == 1 else matrix.astype(np.float16))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


if __name__ == "__main__":
    for file in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
        write(file)
