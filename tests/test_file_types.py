"""Bytes of stored weights follow from how a block is laid out."""

import numpy as np
import pytest

from medusa_sim.file_types import FILES, TYPES, bytes_per_weight, shares

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
