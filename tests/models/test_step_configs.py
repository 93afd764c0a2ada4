"""Configs of Step-3.7: its own names of sizes and the common ones are one model, of 196 billion weights."""

import json

import pytest

from medusa_sim.models.named import load_model

KINDS = (["full_attention"] + ["sliding_attention"] * 3) * 12
OTHER = {"num_attention_heads": 96, "num_attention_groups": 8, "head_dim": 128}
COMMON = {
    "architectures": ["Step3p5ForCausalLM"], "model_type": "step3p5", "num_hidden_layers": 45,
    "num_nextn_predict_layers": 3, "hidden_size": 4096, "num_attention_heads": 64, "head_dim": 128,
    "intermediate_size": 11264, "sliding_window": 512, "vocab_size": 128896,
    "max_position_embeddings": 262144, "layer_types": KINDS,
    "moe_layers_enum": ",".join(map(str, range(3, 45))), "moe_intermediate_size": 1280,
    "share_expert_dim": 1280, "attention_other_setting": OTHER, "use_head_wise_attn_gate": True,
    "torch_dtype": "bfloat16",
}  # fmt: skip
OWN = {"num_attention_groups": 8, "moe_num_experts": 288, "moe_top_k": 8}
WAYS = {
    "its own names": OWN,
    "common names": {"num_key_value_heads": 8, "moe_num_experts": 288, "num_experts_per_tok": 8},
    "kinds by layer": {**OWN, "moe_layers_enum": None, "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 42},
    "kinds without those of its modules": {**OWN, "layer_types": KINDS[:45]},
    "rotation by layer": {**OWN, "rope_theta": [5e6] + [1e4] * 47, "partial_rotary_factors": [0.5] * 48},
}


@pytest.mark.parametrize("way", WAYS)
def test_step_3_7_is_read_however_its_sizes_are_called(way, tmp_path):
    path = tmp_path / "config.json"
    wrapped = {"architectures": ["Step3p7ForConditionalGeneration"], "model_type": "step3p7"}
    path.write_text(json.dumps({**wrapped, "text_config": COMMON | WAYS[way]}))
    model = load_model(path)
    assert model.layers == 45
    assert model.weight_bytes / 2.0 == pytest.approx(196.9e9, rel=0.02)
