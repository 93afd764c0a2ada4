"""What of a lender's rates memory decides, and what multiprocessors do."""

import msgspec
import numpy as np
import pytest

from medusa_sim.gpus.carried import carried, flops_per_clock
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.gpus.gpu_names import gpu_names
from medusa_sim.gpus.inheritance import fitted_kernels
from medusa_sim.latency.attention import attention_time
from medusa_sim.latency.gemm import gemm_time
from medusa_sim.latency.moe import experts_time
from medusa_sim.operators.attention import Attention
from medusa_sim.operators.experts import Experts
from medusa_sim.operators.gemm import Gemm

H100, H20 = load_gpu("h100-sxm"), load_gpu("h20-sxm")
CARDS = [load_gpu(name) for name in gpu_names()]
SLOWEST_HZ, FASTEST_HZ = 1.3e9, 2.71e9


@pytest.mark.parametrize(
    "gpu", [each for each in CARDS if each.architecture != "cpu"], ids=lambda gpu: gpu.name
)
def test_a_clock_of_every_card_is_one_that_there_is(gpu):
    clock_hz = gpu.chip.flops_per_s / gpu.chip.flops_per_clock
    assert SLOWEST_HZ < clock_hz < FASTEST_HZ
    assert gpu.chip.bytes_per_clock == pytest.approx(gpu.chip.bytes_per_s / clock_hz)


def test_an_h20_has_a_quarter_of_an_h100s_tensor_cores():
    assert H100.chip.flops_per_clock == 4096.0
    assert H20.chip.flops_per_clock == 1024.0
    assert flops_per_clock(1.41e9 * 2048) == 2048.0


def test_clocks_beside_the_arithmetic_are_the_lenders():
    """(I2): of a kernel in clocks, arithmetic takes four times as long on an H20 and the rest as long."""
    kernel = H100.kernels["sglang"].gemm["fp8_block"]
    found = carried(kernel, H100.chip, H20.chip, "fp8_block")
    arithmetic, whole = (
        1.0 / H100.chip.flops_per_clock,
        1.0 / H100.chip.flops_per_clock / kernel.peak_fraction,
    )
    told = 4.0 * arithmetic / (4.0 * arithmetic + whole - arithmetic)
    assert found.peak_fraction == pytest.approx(told)
    assert (
        carried(kernel, H20.chip, H100.chip, "fp8_block").peak_fraction == kernel.peak_fraction
    )  # no law for faster ones


def test_tiles_load_in_as_many_clocks_as_a_lenders():
    """(I3): half as much memory bandwidth behind L2 changes nothing of it."""
    kernel = H100.kernels["sglang"].gemm["bf16"]
    half = H100.chip._replace(bytes_per_s=H100.chip.bytes_per_s / 2.0)
    found = carried(kernel, H100.chip, half, "bf16")
    assert found.load_ratio * half.bytes_per_s == pytest.approx(kernel.load_ratio * H100.chip.bytes_per_s)
    assert found.peak_fraction == kernel.peak_fraction


def test_another_architecture_takes_rates_as_they_are():
    kernel = H100.kernels["sglang"].gemm["bf16"]
    assert carried(kernel, H100.chip, load_gpu("l40s").chip, "bf16") is kernel


def _share(gpu, time_us, flops):
    return float(np.max(flops / gpu.peak("bf16") * 1e6 / time_us))


def test_slower_tensor_cores_reach_more_of_their_peak():
    """Linear layers, attention and experts with work enough, on an H20."""
    layer = Gemm(name="", kind="gemm", m=8192, n=8192, k=8192, dtype="bf16")
    prompt = Attention(name="", kind="prefill_attention", batch=4, q_len=8192, kv_len=8192, heads=32,
                       kv_heads=8, head_dim=128, dtype="bf16")  # fmt: skip
    tokens = 65536
    experts = Experts(name="", dtype="bf16", weight_dtype="bf16", tokens=tokens, hidden=4096, inter=1536,
                      experts=128, topk=8, local_experts=128, hit=128.0, rows=8.0 * tokens)  # fmt: skip
    for law, section, key, operator in (
        (gemm_time, "gemm", "bf16", layer),
        (attention_time, "attention", "prefill_attention", prompt),
        (experts_time, "moe", "bf16", experts),
    ):
        lent, own = (getattr(gpu.kernels["sglang"], section)[key] for gpu in (H100, H20))
        shares = [
            _share(gpu, law(gpu, each, operator).time_us, operator.flops)
            for gpu, each in ((H100, lent), (H20, own))
        ]
        assert shares[0] < shares[1] <= 1.0, section


def test_no_borrowed_kernel_holds_a_lenders_fraction_where_tensor_cores_are_slower():
    """Every GPU and set."""
    for gpu in CARDS:
        for name, held in gpu.kernels.items():
            for place, kernel in fitted_kernels(held).items():
                lender = kernel.fit.lender
                if lender in ("", gpu.name) or not hasattr(kernel, "peak_fraction"):
                    continue
                other = load_gpu(lender)
                set_name, _, entry = kernel.fit.inherited_from.partition(":")[2].partition(":")
                section, _, key = place.partition(".")
                stored = other.kernels[set_name or name].table(section)[entry or key]
                assert kernel == msgspec.structs.replace(
                    carried(stored, other.chip, gpu.chip, entry or key), fit=kernel.fit
                )


LINK_SECTIONS = ("collective", "dispatch")


@pytest.mark.parametrize("gpu", CARDS, ids=lambda gpu: gpu.name)
def test_a_card_borrows_all_that_its_relative_has(gpu):
    """A library's latent attention and collectives too: an H20 priced vLLM's by SGLang's kernels.

    Of a library from which it borrows anything at a GPU of its architecture; what crosses a link where its
    own is of the same kind.
    """
    for name, held in gpu.kernels.items():
        kernels = fitted_kernels(held)
        lenders = {kernel.fit.lender for kernel in kernels.values()} - {"", gpu.name}
        for lender in (load_gpu(each) for each in sorted(lenders)):
            of_library = lender.kernels.get(name)
            if lender.architecture != gpu.architecture or of_library is None:
                continue
            slower = lender.link_bandwidth_bytes_per_s / (gpu.link_bandwidth_bytes_per_s or 1.0)
            has = {
                place.partition(".")[0]
                for place, kernel in fitted_kernels(of_library).items()
                if not kernel.fit.lender
            }
            lacks = has - {place.partition(".")[0] for place in kernels}
            if slower > 3.0 or gpu.linked_gpus:
                lacks -= set(LINK_SECTIONS)
            assert not lacks, f"{gpu.name} {name} from {lender.name}"


def test_experts_of_four_bits_come_at_the_rate_of_memory():
    """By their kind: what else loads as slowly follows multiprocessors, with no jump at any rate."""
    kernel = H100.kernels["vllm"].moe["mxfp4"]
    for times in (0.5, 2.0):
        other = H100.chip._replace(bytes_per_s=times * H100.chip.bytes_per_s)
        for entry in ("mxfp4", "mxfp4@name", "int4"):
            assert carried(kernel, H100.chip, other, entry).load_ratio == kernel.load_ratio
        for entry in ("bf16", "nvfp4", "mxfp4_fp8", "fp8_block@name"):
            for rate in (1.0, 2.0, 2.01, 5.0):
                lent = msgspec.structs.replace(kernel, load_ratio=rate)
                assert carried(lent, H100.chip, other, entry).load_ratio == pytest.approx(rate / times)


def _experts_us(gpu, kernel, tokens):
    experts = Experts(name="", dtype="bf16", weight_dtype="mxfp4", tokens=tokens, hidden=2880, inter=2880,
                      experts=128, topk=4, local_experts=128, hit=128 * -np.expm1(-tokens * 4 / 128),
                      rows=4.0 * tokens)  # fmt: skip
    return experts_time(gpu, kernel, experts, form="mxfp4").time_us


def test_faster_memory_helps_experts_of_four_bits_with_few_rows_alone():
    """(I4): an H200 computes as an H100 does, and read prompts 1.4 times as fast."""
    h200 = load_gpu("h200-sxm")
    lent, own = (gpu.kernels["vllm"].moe["mxfp4"] for gpu in (H100, h200))
    faster = h200.chip.bytes_per_clock / H100.chip.bytes_per_clock
    gained = _experts_us(H100, lent, np.array([16, 64, 65_536])) / _experts_us(
        h200, own, np.array([16, 64, 65_536])
    )
    assert gained[:2] == pytest.approx(faster, rel=0.05)
    assert 1.0 <= gained[2] < 1.05
    # clocks are counted: slower ones reach the same share of their peak
    for clock in (1.0, 0.84):
        chip = H100.chip._replace(
            bytes_per_s=clock * h200.chip.bytes_per_s, flops_per_s=clock * h200.chip.flops_per_s
        )
        assert carried(lent, H100.chip, chip, "mxfp4").peak_fraction == pytest.approx(0.671, abs=0.001)
    half = H100.chip._replace(bytes_per_s=H100.chip.bytes_per_s / 2.0)
    slower = carried(lent, H100.chip, half, "mxfp4")  # no law for that
    assert slower.peak_fraction == pytest.approx(lent.peak_fraction)


def test_streams_alone_are_carried_to_another_architecture():
    """What takes 1.84 times its bytes: 1.6 of them follow memory that is 2.1 times as fast."""
    kernel = H100.kernels["sglang"].recurrent["gdn_conv_context"]
    kernel = msgspec.structs.replace(kernel, loads=dict.fromkeys(kernel.loads, 1.84))
    other = H100.chip._replace(architecture="blackwell", bytes_per_s=2.1 * H100.chip.bytes_per_s)
    found = carried(kernel, H100.chip, other, "gdn_conv_context")
    assert list(found.loads.values()) == pytest.approx([1.84 + 0.24 * 1.1] * len(kernel.loads))


def test_tiles_of_experts_are_chosen_by_time_on_slower_tensor_cores():
    """A lender's rule jumped from tiles of 16 rows to 64, whose padding an H20 pays for in full."""
    tokens = np.arange(32, 129)
    experts = Experts(name="", dtype="fp8", weight_dtype="fp8_block", tokens=tokens, hidden=7168, inter=256,
                      experts=384, topk=8, local_experts=384, hit=384 * -np.expm1(-tokens * 8 / 384),
                      rows=8.0 * tokens)  # fmt: skip
    for name in ("vllm", "sglang"):
        time_us = experts_time(H20, H20.kernels[name].moe["fp8_block"], experts, form="fp8_block").time_us
        assert np.max(time_us[1:] / time_us[:-1]) < 1.15


def test_a_tiles_own_pace_is_clocks_beside_its_arithmetic():
    """140 rows took 3.6 times as long as 128 on an H20: what stalls fast Tensor Cores stalls slow ones less.

    Of a tile the share of the peak is that of the kernel over its pace, and carried as any share.
    """
    lent, own = (gpu.kernels["sglang"].gemm["fp8_block"] for gpu in (load_gpu("h200-sxm"), H20))
    for theirs, mine in zip(lent.tiles, own.tiles, strict=True):
        of_tile = lent.peak_fraction / theirs.pace_alone
        if of_tile < 1.0:
            told = 1.0 / (1.0 + (1.0 / of_tile - 1.0) / 4.0)
            assert own.peak_fraction / mine.pace_alone == pytest.approx(told)
    rows = np.array([128, 140])
    layer = Gemm(name="", kind="gemm", m=rows, n=7168, k=8192, dtype="fp8", weight_dtype="fp8_block")
    few_us, many_us = gemm_time(H20, own, layer, form="fp8_block").time_us
    assert many_us < 2.5 * few_us
