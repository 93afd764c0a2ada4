"""Kernels on another GPU, number by number: (I2) to (I4) and streams, of made-up kernels."""

from typing import Any

import msgspec
import pytest

from medusa_sim.gpus.carried import Chip, carried
from medusa_sim.gpus.fitted import Residual
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.gpus.inheritance import EVERY_ENTRY, _is_other_format, widen_band

H100 = load_gpu("h100-sxm").kernels["sglang"]
LENDER = Chip("hopper", 25e9, 7.5e12)
"""4096 FLOPs and 13.65 bytes in a clock of 1.83 GHz."""


def _slower(times: float) -> Chip:
    return LENDER._replace(flops_per_s=LENDER.flops_per_s / times, bytes_per_s=LENDER.bytes_per_s / times)


def _with(kernel: Any, **fields: Any) -> Any:
    return msgspec.structs.replace(kernel, **fields)


SHARES = [(0.5, 0.8), (0.2, 0.5), (1.0, 1.0), (1.2, 1.2)]
"""Of the peak on the lender and where arithmetic takes four times the clocks: 1 / (1 + (1 / f - 1) / 4)."""


@pytest.mark.parametrize(("lent", "own"), SHARES)
def test_shares_of_the_peak_where_arithmetic_takes_four_times_the_clocks(lent, own):
    other = _slower(4.0)
    attention = H100.attention["prefill_attention"]
    path = _with(attention.wide, whole_fraction=lent, split_fraction=lent)
    found = carried(_with(attention, wide=path, narrow=path), LENDER, other, "prefill_attention")
    for each in (found.wide, found.narrow):
        assert (each.whole_fraction, each.split_fraction) == pytest.approx((own, own))
    key, stream = next(iter(H100.recurrent.items()))
    found = carried(_with(stream, work={"a": 1.0 / lent, "none": 0.0}), LENDER, other, key)
    assert found.work == pytest.approx({"a": 1.0 / own, "none": 0.0})
    product = _with(H100.gemm["bf16"], peak_fraction=lent)
    assert carried(product, LENDER, other, "bf16").peak_fraction == pytest.approx(own)


@pytest.mark.parametrize(("pace", "own"), [(1.0, 1.0), (2.0, 0.8 / (1.0 / 1.75)), (0.5, 0.5), (0.4, 0.4)])
def test_a_tiles_pace_is_its_own_share_of_the_peak(pace, own):
    """A half of the peak becomes 0.8; a quarter 1 / (1 + 3 / 4) = 4 / 7; all of it and more stay."""
    kernel = _with(H100.gemm["bf16"], peak_fraction=0.5)
    tiles = tuple(_with(tile, pace=pace, pace_alone=pace, pace_half=pace) for tile in kernel.tiles)
    found = carried(_with(kernel, tiles=tiles), LENDER, _slower(4.0), "bf16").tiles[0]
    assert (found.pace, found.pace_alone, found.pace_half) == pytest.approx((own,) * 3)


@pytest.mark.parametrize(
    ("lent_bytes_per_s", "times", "ratio", "found"),
    [
        (25e9, 2.0, 2.0, 2.4), (25e9, 3.0, 2.0, 2.8), (25e9, 2.0, 1.6, 1.6), (25e9, 2.0, 1.2, 1.2),
        (25e9, 0.5, 2.0, 2.0), (25e9, 1.0, 2.0, 2.0), (25e9, 1.05, 2.0, 2.02), (20e9, 2.0, 2.0, 2.0),
        (20.1e9, 2.0, 2.0, 2.4),
    ],
)  # fmt: skip
def test_a_streams_bytes_follow_memory_up_to_1_6_times_the_datasheet(lent_bytes_per_s, times, ratio, found):
    """Of 2.0 times, 0.4 keep their time where memory is twice as fast; slow memory bounds all of it."""
    lender = LENDER._replace(bytes_per_s=lent_bytes_per_s)
    other = lender._replace(bytes_per_s=times * lent_bytes_per_s, architecture="other")
    key, stream = next(iter(H100.recurrent.items()))
    assert carried(_with(stream, loads={"a": ratio}), lender, other, key).loads == {"a": pytest.approx(found)}


@pytest.mark.parametrize(
    ("entry", "times", "peak"),
    [("mxfp4", 2.0, 0.25), ("mxfp4@name", 2.0, 0.25), ("mxfp4", 1.0, 0.9), ("mxfp4", 0.5, 0.9)],
)
def test_experts_of_four_bits_compute_as_fast_as_the_lender_loaded(entry, times, peak):
    """(I4): 64 x 256 tiles load 64 x 2 + 256 x 0.53 bytes a step of k in the lender's clocks."""
    experts = load_gpu("h100-sxm").kernels["vllm"].moe["mxfp4"]
    small, large = (_with(experts.tiles[0], rows=rows, columns=256) for rows in (16, 64))
    moved = 64 * 2.0 + 256 * 17.0 / 32.0
    rate = moved / LENDER.bytes_per_clock / (2.0 * 64 * 256 / 4096.0 / 0.25)
    kernel = _with(experts, tiles=(small, large, small), peak_fraction=0.9, load_ratio=rate)
    other = LENDER._replace(bytes_per_s=times * LENDER.bytes_per_s)
    found = carried(kernel, LENDER, other, entry)
    assert (found.peak_fraction, found.load_ratio) == pytest.approx((peak, rate))


@pytest.mark.parametrize(
    ("factor", "error", "half"), [(1.0, 0.0, 0.3), (2.0, 0.0, 0.6), (1.0, 0.4, 0.5), (2.0, 0.4, 0.6)]
)
def test_a_band_is_wider_about_its_own_centre(factor, error, half):
    """Half-widths of the logarithm: 0.3 and 0.4 in quadrature are 0.5."""
    centre = 1.1
    band = Residual(size_max=8.0, low=centre * 2.718281828**-0.3, high=centre * 2.718281828**0.3)
    found = widen_band(band, factor, error)
    assert (found.low, found.high) == pytest.approx((centre * 2.718281828**-half, centre * 2.718281828**half))
    assert found.size_max == 8.0


@pytest.mark.parametrize(
    ("entry", "lent", "other"),
    [
        ("fp8", "fp16", True),
        ("fp8", "fp8@vllm", False),
        ("bf16", "fp16@sglang", False),
        ("fp8", EVERY_ENTRY, False),
    ],
)  # fmt: skip
def test_a_kernel_of_another_format_is_shown_but_for_the_two_of_16_bits(entry, lent, other):
    assert [_is_other_format(*names) for names in ((entry, lent), (lent, entry))] == [other, other]
