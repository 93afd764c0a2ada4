"""Numbers of a GPU, by hand: how far its link reaches, watts of a lender, kernels without clusters."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from medusa_sim.errors import SpecError
from medusa_sim.gpus.gpu import Chip, load_gpu
from medusa_sim.gpus.inheritance import (
    BORROWED,
    InheritFile,
    transfer_error,
)
from medusa_sim.gpus.kernels import chosen_by_time, without_clusters
from medusa_sim.gpus.local import LAWS_FILE, TypeLaw, _laws, _of_target, laws, local_law
from medusa_sim.gpus.power import TRANSFER_ERROR, scaled
from medusa_sim.reading.files import file_state
from medusa_sim.reading.strict import convert

H100 = load_gpu("h100-sxm")


def test_a_link_joins_as_many_gpus_as_it_names_and_slower_ones_join_more():
    gpu = replace(H100, linked_gpus=8, link_bandwidth_bytes_per_s=9e11, wide_link_bandwidth_bytes_per_s=1e11)
    ranks = np.array([1.0, 8.0, 9.0])
    assert gpu.exceeds_link(ranks).tolist() == [False, False, True]
    assert gpu.link_to(ranks).tolist() == [9e11, 9e11, 1e11]
    assert not replace(gpu, linked_gpus=0).exceeds_link(ranks).any()


def test_watts_of_another_card_are_within_thirty_percent():
    assert TRANSFER_ERROR == 0.3


@pytest.mark.parametrize("error", [0.1, 2.0 * TRANSFER_ERROR])
def test_a_lenders_watts_are_the_same_share_of_the_limit_at_the_same_shares_of_the_rates(error):
    lent = msgspec.structs.replace(
        H100.power.fit, idle_watts=80.0, joule_per_byte=2e-11, joule_per_cache_byte=6e-11,
        joule_per_flop=3e-13, sampling_watts=50.0, error=error,
    )  # fmt: skip
    found = scaled(lent, "fp16", limit=0.5, peak=4.0, bandwidth=2.0)
    assert (found.idle_watts, found.sampling_watts) == pytest.approx((40.0, 25.0))
    joules = found.joule_per_byte, found.joule_per_cache_byte, found.joule_per_flop
    assert joules == pytest.approx((0.5e-11, 1.5e-11, 0.375e-13))
    assert (found.dtype, found.error) == ("fp16", max(error, TRANSFER_ERROR))


def test_a_kernel_without_clusters_launches_each_block_alone_and_by_time_any_tile_serves_all():
    bf16 = H100.kernels["sglang"].gemm["bf16"]
    tile = msgspec.structs.replace(bf16.tiles[0], cluster=2, m_min=64, m_max=256, n_min=512, n_max=4096)
    kernel = msgspec.structs.replace(bf16, tiles=(tile,), fewest_waves=True)
    alone, by_time = without_clusters(kernel), chosen_by_time(kernel)
    assert alone.tiles == (msgspec.structs.replace(tile, cluster=1),)
    assert by_time.tiles == (msgspec.structs.replace(tile, cluster=1, m_min=1, m_max=0, n_min=1, n_max=0),)
    assert (alone.fewest_waves, by_time.fewest_waves) == (True, False)
    assert without_clusters(alone) is alone


def test_every_section_that_may_be_borrowed_is_a_key_of_a_file_and_no_other():
    assert set(InheritFile.__struct_fields__) == {"reason", "widen", "slower", *BORROWED}


@pytest.mark.parametrize(
    ("peaks", "flops_per_s"),
    [({"fp32": 1e12, "fp8": 4e12}, 4e12), ({"fp32": 1e12, "bf16": 2e12, "fp8": 4e12}, 2e12)],
)
def test_a_chip_is_as_quick_as_its_16_bits_or_its_quickest_format(peaks, flops_per_s):
    gpu = replace(H100, sms=100, bandwidth_bytes_per_s=3e12, peak_flops_per_s=peaks)
    assert gpu.chip == Chip("hopper", 3e10, flops_per_s / 100)


def test_limits_of_a_device_are_those_of_the_longest_start_of_its_name():
    tables = {"cuda": {"q4": 8}, "cuda-9": {"q4": 16}, "metal": {"q4": 4}}
    found = [_of_target(tables, name).get("q4") for name in ("cuda-9.0", "cuda-8.6", "metal-m4", "vulkan")]
    assert found == [16, 8, 4, None]


@pytest.mark.parametrize(
    ("section", "near", "far"),
    [
        ("gemm", 0.1, 0.24), ("elementwise", 0.1, 0.24), ("attention", 0.1, 0.67), ("moe", 0.1, 0.24),
        ("recurrent", 0.06, 0.23), ("window", 0.05, 0.27), ("sparse", 0.02, 0.31), ("hyper", 0.05, 0.21),
    ],
)  # fmt: skip
def test_a_kernel_of_another_gpu_errs_by_what_was_found_between_measured_ones(section, near, far):
    """From one of the same architecture and of another; on its own it errs by no more than it did."""
    found = [
        transfer_error(section, is_far=is_far, is_alike=is_alike, is_scaled=False)
        for is_far, is_alike in ((True, True), (True, False), (False, True))
    ]
    assert found == [near, far, 0.0]


def test_scaled_formats_err_by_less_alike_and_by_more_elsewhere():
    found = [transfer_error("gemm", is_far=True, is_alike=alike, is_scaled=True) for alike in (True, False)]
    assert found == [0.05, 0.63]


@pytest.mark.parametrize(("times", "allowed"), [(1.0, True), (10.0, True), (10.5, False)])
def test_a_borrowed_kernel_is_at_most_ten_times_as_slow_or_uncertain(times, allowed):
    for key in ("widen", "slower"):
        given = {"reason": "a test", key: times}
        if allowed:
            assert getattr(convert(given, InheritFile, "a.toml"), key) == times
        else:
            with pytest.raises(SpecError, match=key):
                convert(given, InheritFile, "a.toml")


@pytest.mark.parametrize(("bytes_per_s", "is_over"), [(1e10, True), (6.4e10, True), (6.5e10, False)])
def test_a_link_as_fast_as_the_fastest_slot_is_over_pcie(bytes_per_s, is_over):
    gpu = replace(H100, linked_gpus=0, link_bandwidth_bytes_per_s=bytes_per_s)
    assert gpu.is_over_pcie(np.array([2.0])) == is_over


@pytest.mark.parametrize(
    ("known", "asked", "nearest"),
    [
        (("q8_0", "f16"), "q4_0", "q8_0"), (("q8_0", "f16"), "f32", "f16"),
        (("q4_0", "q8_0"), "q5_0", "q4_0"), (("iq1_s", "f32"), "a type of no file", "iq1_s"),
        (("q4_0", "f16"), "a type of no file", "f16"),
    ],
)  # fmt: skip
def test_a_type_that_nobody_measured_has_the_law_of_the_nearest_by_bits(known, asked, nearest):
    """And one without a size that of 16 bits."""
    types = {name: TypeLaw(share=0.5 + 0.1 * at, column=1.0) for at, name in enumerate(known)}
    law = msgspec.structs.replace(laws()[0], types=types)
    assert law.of_type(asked) is types[nearest]


def test_a_device_has_the_law_of_the_backend_that_runs_there():
    assert local_law("vulkan", "x", H100.local).backend == "vulkan"
    with pytest.raises(SpecError, match="does not run on x"):
        local_law("metal", "x", H100.local)


def test_a_law_of_a_type_that_there_is_not_is_refused(tmp_path):
    path = tmp_path / "local.toml"
    path.write_text(LAWS_FILE.read_text().replace("q8_0", "q8_9", 1))
    with pytest.raises(SpecError, match="q8_9"):
        _laws(file_state(path))
