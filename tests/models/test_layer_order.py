"""Which layer of a config is what: each family's rule for windows, experts and states, layer by layer."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from medusa_sim.models import hf_config
from medusa_sim.models.feed_forwards import MoE
from medusa_sim.models.hf_families import read_family
from medusa_sim.models.hf_given import Found, Given
from medusa_sim.models.mixers import Grouped, Latent
from medusa_sim.models.named import load_model
from medusa_sim.models.recurrent import Recurrent

LAYERS = 12
SIZES: dict[str, Any] = {
    "hidden_size": 256, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 64, "vocab_size": 1000, "max_position_embeddings": 4096, "intermediate_size": 512,
    "torch_dtype": "bfloat16",
}  # fmt: skip
EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 128}
FEW = {**EXPERTS, "num_experts": 8}
LOCAL = {**EXPERTS, "num_local_experts": 8}
ROUTED = {**EXPERTS, "n_routed_experts": 8}
LATENT = {"kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32}
DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32,
    "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4,
}  # fmt: skip
NEAR = {"sliding_window": 128}
MAMBA = {
    "mamba_num_heads": 8, "mamba_head_dim": 32, "ssm_state_size": 16, "n_groups": 2, "conv_kernel": 4,
}  # fmt: skip
SMALL_MAMBA = {"mamba_n_heads": 8, "mamba_d_state": 16, "mamba_d_conv": 4}
FALCON = {**SMALL_MAMBA, "mamba_n_groups": 1}
KIMI = {"head_dim": 64, "num_heads": 4, "short_conv_kernel_size": 4}
STEP = {
    **NEAR, "num_attention_groups": 2, "moe_num_experts": 8, "moe_top_k": 2, "moe_intermediate_size": 128,
    "layer_types": (["full_attention"] + ["sliding_attention"] * 3) * 3,
}  # fmt: skip


def _letter(mixers: tuple[Any, ...]) -> str:
    """r: a state, l: latent, w: a window, f: all tokens; -: none."""
    letters = {Recurrent: "r", Latent: "l", Grouped: "f"}
    found = [next(letters[kind] for kind in letters if isinstance(mixer, kind)) for mixer in mixers]
    near = [getattr(mixer, "size", None) is not None for mixer in mixers]
    return "".join("w" if each else letter for letter, each in zip(found, near, strict=True)) or "-"


def _order(found: Found) -> tuple[str, str]:
    """A letter of each layer's mixer, and one of its other part; x: experts, m: an MLP."""
    parts = (
        "-" if part is None else "x" if isinstance(part, MoE) else "m"
        for part in (layer.feed_forward for layer in found.layers)
    )
    return "".join(_letter(layer.mixers) for layer in found.layers), "".join(parts)


@pytest.fixture
def found_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, dict[str, Any]], Found]:
    """What the reader of a family finds in a config; a model holds its layers sorted by kind."""
    kept: list[Found] = []

    def read(family: str, given: Given) -> Found:
        kept.append(read_family(family, given))
        return kept[-1]

    def found(family: str, given: dict[str, Any]) -> Found:
        path = tmp_path / "config.json"
        path.write_text(json.dumps({**SIZES, "model_type": family, **given}))
        load_model(path)
        return kept[-1]

    monkeypatch.setattr(hf_config, "read_family", read)
    return found


@pytest.mark.parametrize(
    ("family", "given", "mixers", "parts"),
    [
        ("qwen2", {**NEAR, "use_sliding_window": False}, "f" * 12, "m" * 12),
        ("qwen2", {**NEAR, "use_sliding_window": True, "max_window_layers": 9}, "f" * 9 + "www", "m" * 12),
        ("gemma3_text", {**NEAR, "sliding_window_pattern": 4}, "wwwf" * 3, "m" * 12),
        ("exaone4", {**NEAR, "sliding_window_pattern": "LLG"}, "wwf" * 4, "m" * 12),
        *((family, NEAR, "wwwf" * 3, "m" * 12) for family in ("olmo3", "cohere2", "exaone4")),
        ("cohere", {}, "f" * 12, "m" * 12),
        ("qwen3_moe", {**FEW, "decoder_sparse_step": 3, "mlp_only_layers": [5]}, "f" * 12, "mmxmmmmmxmmx"),
        ("glm4_moe", {**ROUTED, "first_k_dense_replace": 1}, "f" * 12, "m" + "x" * 11),
        ("deepseek_v3", {**ROUTED, **LATENT, "moe_layer_freq": 2, "first_k_dense_replace": 3},
         "l" * 12, "mmmmxmxmxmxm"),
        ("deepseek_v3", {**ROUTED, **LATENT, "mlp_layer_types": ["dense"] * 2 + ["sparse"] * 10},
         "l" * 12, "mm" + "x" * 10),
        ("llama4_text", {**LOCAL, "intermediate_size_mlp": 512, "attention_chunk_size": 128,
                         "interleave_moe_layer_step": 3}, "wwwf" * 3, "mmx" * 4),
        ("llama4_text", {**LOCAL, "intermediate_size_mlp": 512, "attention_chunk_size": 128,
                         "no_rope_layers": [1, 0] * 6, "moe_layers": [0, 7]}, "wf" * 6, "xmmmmmmxmmmm"),
        ("qwen3_next", {**FEW, **DELTA}, "rrrf" * 3, "x" * 12),
        ("qwen3_5", {**DELTA, "full_attention_interval": 3}, "rrf" * 4, "m" * 12),
        ("gemma4_text", {**NEAR}, "wwwwwf" * 2, "m" * 12),
        ("mimo_v2_flash", {**ROUTED, **NEAR, "v_head_dim": 48, "swa_num_attention_heads": 4,
                           "swa_num_key_value_heads": 2, "swa_head_dim": 64, "swa_v_head_dim": 48,
                           "hybrid_layer_pattern": [0, 1, 1, 1] * 3, "moe_layer_freq": [0] + [1] * 11},
         "fwww" * 3, "m" + "x" * 11),
        ("kimi_linear", {**FEW, **LATENT, "num_experts_per_token": 2, "first_k_dense_replace": 1,
                         "linear_attn_config": {**KIMI, "kda_layers": [1, 2, 3, 5, 6, 7, 9, 10, 11],
                                                "full_attn_layers": [4, 8, 12]}}, "rrrl" * 3, "m" + "x" * 11),
        ("nemotron_h", {**MAMBA, **ROUTED, "hybrid_override_pattern": "M-M*ME" * 2},
         "r-rfr-" * 2, "-m---x" * 2),
        ("granitemoehybrid", {**SMALL_MAMBA, "shared_intermediate_size": 128,
                              "layer_types": ["mamba"] * 5 + ["attention"] + ["mamba"] * 6},
         "rrrrrfrrrrrr", "m" * 12),
        ("step3p5", {**STEP, "moe_layers_enum": "3,4,11"}, "fwww" * 3, "mmmxxmmmmmmx"),
        ("step3p5", {**STEP, "mlp_layer_types": ["dense"] * 9 + ["sparse"] * 3}, "fwww" * 3, "m" * 9 + "xxx"),
    ],
)  # fmt: skip
def test_layers_follow_the_rule_of_their_family(found_in, family, given, mixers, parts):
    assert _order(found_in(family, given)) == (mixers, parts)


def _full(found: Found) -> Grouped:
    return next(
        m for layer in found.layers for m in layer.mixers if isinstance(m, Grouped) and m.size is None
    )


def _state(found: Found) -> Recurrent:
    return next(m for layer in found.layers for m in layer.mixers if isinstance(m, Recurrent))


def _shared(found: Found) -> int:
    return next(part.shared for layer in found.layers if isinstance(part := layer.feed_forward, MoE))


SPARSE = {
    "sparse_num_index_heads": 4, "sparse_index_dim": 64, "sparse_block_size": 128, "sparse_topk_blocks": 16,
    "sparse_attention_freq": [0] * 6 + [1] * 6,
}  # fmt: skip
MINIMAX = {**LOCAL, "sparse_attention_config": SPARSE, "moe_layer_freq": [1] * 12}


def _puzzle(width: dict[str, Any]) -> dict[str, Any]:
    block = {"attention": {"n_heads_in_group": 4}, "ffn": width}
    return {"block_configs": [block] * LAYERS}


@pytest.mark.parametrize(
    ("family", "given", "read", "value"),
    [
        ("gemma4_text", NEAR, lambda found: _full(found).head_dim, 512),
        ("gemma4_text", {**NEAR, "attention_k_eq_v": True, "num_global_key_value_heads": 1},
         lambda found: _full(found).kv_heads, 1),
        ("gemma4_text", {**NEAR, "num_global_key_value_heads": 1}, lambda found: _full(found).kv_heads, 2),
        ("granitemoehybrid", {**SMALL_MAMBA, "shared_intermediate_size": 128, "layer_types": ["mamba"] * 12},
         lambda found: (_state(found).head_dim, _state(found).groups), (2 * 256 // 8, 1)),
        ("falcon_h1", FALCON,
         lambda found: _state(found).head_dim, 2 * 256 // 8),
        ("falcon_h1", {**FALCON, "mamba_d_ssm": 384},
         lambda found: _state(found).head_dim, 384 // 8),
        ("nemotron_h", {**MAMBA, **ROUTED, "hybrid_override_pattern": "ME" * 6, "n_shared_experts": 3,
                        "moe_shared_expert_intermediate_size": 96}, _shared, 3 * 96),
        ("minimax_m3", {**MINIMAX, "n_shared_experts": 2, "shared_intermediate_size": 96}, _shared, 2 * 96),
        ("minimax_m3", MINIMAX, _shared, 0),
        ("minimax_m3", {**MINIMAX, "shared_intermediate_size": 96}, _shared, 0),
        ("minimax_m3", {**MINIMAX, "n_shared_experts": 2}, _shared, 0),
        ("glm4_moe", {**ROUTED, "n_shared_experts": 2}, _shared, 2 * 128),
        ("nemotron-nas", _puzzle({"ffn_mult": 1.5}), lambda found: found.layers[0].feed_forward.width, 256),
        ("nemotron-nas", _puzzle({"ffn_mult": 2.0}), lambda found: found.layers[0].feed_forward.width, 512),
        ("nemotron-nas", _puzzle({"intermediate_size": 300}),
         lambda found: (found.layers[0].feed_forward.width, _full(found).kv_heads), (300, 1)),
        ("minimax_m2", {**LOCAL, "use_mtp": True, "num_mtp_modules": 3}, lambda found: found.mtp_layers, 3),
        ("minimax_m2", {**LOCAL, "num_mtp_modules": 3}, lambda found: found.mtp_layers, 0),
        ("qwen3_next", {**FEW, **DELTA}, lambda found: found.mtp_layers, 1),
    ],
)  # fmt: skip
def test_sizes_that_a_config_leaves_out_or_says_in_parts(found_in, family, given, read, value):
    """Of 256 hidden and four heads; an MLP of `ffn_mult` is two thirds of it, up to a multiple of 256."""
    assert read(found_in(family, given)) == value
