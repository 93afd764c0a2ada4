"""Widths, states and weights of recurrent layers, by hand on small ones."""

import pytest

from medusa_sim.models.recurrent import GatedDelta, KimiDelta, Mamba2


def test_mamba_2_by_hand():
    """Two heads of 4 channels with a state of 8, one group: 8 channels, x, B and C are 8 + 8 + 8."""
    layer = Mamba2(heads=2, head_dim=4, groups=1, state=8, conv=4, named_states="fp32")
    assert (layer.output_width, layer.conv_width, layer.input_width) == (8, 24, 8 + 24 + 2)
    assert layer.state_size == 8 * 8
    assert layer.state_bytes("bf16") == 64 * 4 + 3 * 24 * 2
    # a kernel of 4 with a bias on 24 channels; A, D and dt of two heads; the norm of 8
    assert layer.other_parameters(32) == 24 * 5 + 3 * 2 + 8


def test_the_gated_delta_rule_by_hand():
    """Two key heads of 8 and four value heads of 16, chunks of 64."""
    layer = GatedDelta(key_heads=2, value_heads=4, key_dim=8, value_dim=16, conv=4, named_states="fp32")
    assert (layer.output_width, layer.conv_width, layer.input_width) == (64, 16 + 16 + 64, 96 + 64)
    assert layer.state_size == 4 * 8 * 16
    # beta and a of 32 inputs for four heads; the convolution; A and dt; the norm of a head
    assert layer.other_parameters(32) == 2 * 32 * 4 + 4 * 96 + 2 * 4 + 16
    assert layer.thin_projections(32) == (("ba_proj", 8, 32),)
    plain = layer.as_grouped()
    assert (plain.heads, plain.kv_heads, plain.head_dim) == (4, 2, 16)


@pytest.mark.parametrize(
    ("full_gate", "full_decay", "inputs", "thin"),
    [(False, False, 48, 2), (True, False, 64, 1), (False, True, 64, 1), (True, True, 80, 0)],
)
def test_kimi_delta_attention_by_hand(full_gate, full_decay, inputs, thin):
    """Two heads of 8; a whole gate or decay is a matrix more and a pair of thin ones less."""
    layer = KimiDelta(
        heads=2, head_dim=8, conv=4, named_states="fp32", full_gate=full_gate, full_decay=full_decay
    )
    assert (layer.output_width, layer.conv_width, layer.input_width) == (16, 48, inputs)
    assert layer.state_size == 2 * 8 * 8
    assert layer.other_parameters(32) == 32 * 2 + 4 * 48 + 2 + 16 + 8
    assert layer.weights(32) == 32 * inputs + 16 * 32 + thin * 8 * (32 + 16)
    assert len(layer.thin_projections(32)) == 1 + 2 * thin
