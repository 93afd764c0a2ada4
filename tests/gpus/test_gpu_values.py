"""Numbers of a GPU, by hand: how far its link reaches, watts of a lender, kernels without clusters."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.gpus.inheritance import BORROWED, InheritFile
from medusa_sim.gpus.kernels import chosen_by_time, without_clusters
from medusa_sim.gpus.power import TRANSFER_ERROR, scaled

H100 = load_gpu("h100-sxm")


def test_a_link_joins_as_many_gpus_as_it_names_and_slower_ones_join_more():
    gpu = replace(H100, linked_gpus=8, link_bandwidth_bytes_per_s=9e11, wide_link_bandwidth_bytes_per_s=1e11)
    ranks = np.array([1.0, 8.0, 9.0])
    assert gpu.exceeds_link(ranks).tolist() == [False, False, True]
    assert gpu.link_to(ranks).tolist() == [9e11, 9e11, 1e11]
    assert not replace(gpu, linked_gpus=0).exceeds_link(ranks).any()


@pytest.mark.parametrize("error", [0.1, 2.0 * TRANSFER_ERROR])
def test_a_lenders_watts_are_the_same_share_of_the_limit_at_the_same_shares_of_the_rates(error):
    lent = msgspec.structs.replace(
        H100.power.fit, idle_watts=80.0, joule_per_byte=2e-11, joule_per_flop=3e-13, sampling_watts=50.0,
        error=error,
    )  # fmt: skip
    found = scaled(lent, "fp16", limit=0.5, peak=4.0, bandwidth=2.0)
    assert (found.idle_watts, found.sampling_watts) == pytest.approx((40.0, 25.0))
    assert (found.joule_per_byte, found.joule_per_flop) == pytest.approx((0.5e-11, 0.375e-13))
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
