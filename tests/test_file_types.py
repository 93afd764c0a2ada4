"""Bytes of stored weights follow from how a block is laid out."""

import numpy as np
import pytest

from medusa_sim.file_types import (
    FILES,
    NAMES,
    TYPES,
    bytes_per_weight,
    mean_bytes,
    named_file,
    read_by,
    shares,
)

# (weights of a block, bits of a weight, bytes of scales, minima and signs beside them): the structures of
# llama.cpp's ggml-common.h and of MLX's affine quantisation, 16-bit scales of super-blocks included.
LAYOUTS = {
    "q4_0": (32, 4, 2), "q4_1": (32, 4, 4), "q5_0": (32, 5, 2), "q5_1": (32, 5, 4), "q8_0": (32, 8, 2),
    "q2_k": (256, 2, 16 + 4), "q3_k": (256, 3, 12 + 2), "q4_k": (256, 4, 12 + 4), "q5_k": (256, 5, 12 + 4),
    "q6_k": (256, 6, 16 + 2), "iq4_nl": (32, 4, 2), "iq4_xs": (256, 4, 2 + 2 + 4), "mxfp4": (32, 4, 1),
    "nvfp4": (64, 4, 4), "iq2_xxs": (256, 2, 2), "iq3_xxs": (256, 3, 2), "iq1_s": (256, 1.5, 2),
    "iq1_m": (256, 1.5, 8), "iq2_xs": (256, 2, 8 + 2), "iq2_s": (256, 2.25, 8 + 2),
    "iq3_s": (256, 3.25, 4 + 2), "tq2_0": (256, 2, 2),
    "f16": (1, 16, 0), "bf16": (1, 16, 0), "f32": (1, 32, 0),
    **{f"affine{bits}": (64, bits, 4) for bits in (2, 3, 4, 5, 6, 8)},
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_weight_takes_its_share_of_a_block(name):
    weights, bits, beside = LAYOUTS[name]
    assert TYPES[name] == (weights * bits / 8 + beside) / weights


def test_ternary_weights_are_five_to_a_byte():
    assert TYPES["tq1_0"] == (240 / 5 + 16 / 4 + 2) / 256


def test_every_type_is_laid_out():
    assert set(TYPES) == {*LAYOUTS, "tq1_0"}


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("role", ["linear", "down", "head", "embedding"])
def test_a_weight_of_a_file_is_the_mean_over_the_layers_that_have_each_type(file, role):
    mix = shares(file, role)
    assert sum(share for _, share in mix) == pytest.approx(1.0)
    assert bytes_per_weight(file, role) == pytest.approx(np.average(
        [TYPES[of] for of, _ in mix], weights=[share for _, share in mix]
    ))  # fmt: skip


def test_a_number_for_a_file_weighs_the_matrices_of_a_layer():
    """Of Llama-3.1-8B: queries, gate and up are `linear`. Shares are written with three digits."""
    hidden, width, keys_width = 4096, 14336, 8 * 128
    queries, keys, down = hidden * hidden, hidden * keys_width, hidden * width
    weights = {"linear": queries + 2 * down, "keys": keys, "values": keys, "output": queries, "down": down}
    for name in ("q2_k", "q3_k_l", "q4_k_m", "iq2_xxs", "iq3_m", "mlx-4bit"):
        by_role = [bytes_per_weight(name, role) for role in weights]  # type: ignore[arg-type]
        assert mean_bytes(name) == pytest.approx(np.average(by_role, weights=[*weights.values()]), rel=1e-3)
    assert mean_bytes("mxfp4_moe") == bytes_per_weight("mxfp4_moe", "experts")


def test_experts_without_a_type_are_gate_up_and_down():
    named = bytes_per_weight("q4_k_m", "linear"), bytes_per_weight("q4_k_m", "down")
    assert named[0] < named[1]
    assert bytes_per_weight("q4_k_m", "experts") == pytest.approx((named[0] + named[0] + named[1]) / 3)


def test_files_are_called_by_their_bits_and_by_their_tools():
    for bits in (2, 3, 4, 5, 6, 8):
        assert named_file(f"{bits}bit") == named_file(f"{bits}-bit") == f"mlx-{bits}bit"
    assert all(named_file(name) in FILES for name in NAMES)
    assert {name.startswith("mlx-") for name in read_by("mlx")} == {True}
    assert {name.startswith("mlx-") for name in read_by("llama.cpp-cuda")} == {False}
    assert len(read_by("mlx")) + len(read_by("llama.cpp-cuda")) == len(FILES)
    assert read_by("vllm") == ()
