"""Fits of collectives: rows at the fewest and at the most ranks, and what the switch costs."""

import numpy as np
import pytest
from made_up import made_up_fit

from medusa_sim.gpus.fitted_links import CollectiveKernel, CollectiveRegime
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.gpus.gpu_names import gpu_names
from medusa_sim.lab.calibrate import collective
from medusa_sim.lab.calibrate.collective import IN_SWITCH, fit_collective
from medusa_sim.lab.calibrate.rows import Rows
from medusa_sim.latency.collective import collective_time
from medusa_sim.operators.collective import Collective


def test_rows_of_the_most_ranks_are_fitted_too():
    gpu = load_gpu("h100-sxm")
    kernel = CollectiveKernel(
        regimes=(CollectiveRegime(start_us=9.0, rank_us=2.0, copy_passes=0.4, link_passes=1.2),),
        fit=made_up_fit((4096.0, 0.9, 1.1), rows=20, errors=(0.05, 0.06)),
    )
    message, ranks = (axis.ravel() for axis in np.meshgrid(2.0 ** np.arange(10, 30, 2), [2.0, 8.0]))
    rows = Collective(name="g", kind="all_gather", dtype="bf16", message_bytes=message, ranks=ranks)
    found = fit_collective(Rows(rows, collective_time(gpu, kernel, rows).time_us), gpu, source="made up")
    assert len(found.regimes) == 1
    assert found.regimes[0].rank_us == pytest.approx(2.0, rel=0.05)
    assert found.fit.fit_error < 1e-3


@pytest.mark.parametrize(
    ("card", "kind", "dtype", "in_switch"),
    [("h100-sxm", "all_reduce", "bf16", 1.23), ("h100-sxm", "all_gather", "bf16", 0.0),
     ("h100-sxm", "all_reduce", "fp32", 0.0), ("h100-pcie", "all_reduce", "bf16", 0.0)],
)  # fmt: skip
def test_a_switch_adds_up_halves_of_an_all_reduce_over_fast_links(card, kind, dtype, in_switch):
    """Large messages whose bytes are those of the switch where it may be one, else of a ring."""
    gpu, fit = load_gpu(card), made_up_fit((2.0**23, 0.9, 1.1), rows=24, errors=(0.05, 0.06))
    made = CollectiveRegime(start_us=9.0, rank_us=2.0, copy_passes=0.4, link_passes=1.2, in_switch=in_switch)
    message, ranks = (axis.ravel() for axis in np.meshgrid(2.0 ** np.arange(23, 29, 0.5), [2.0, 8.0]))
    rows = Collective(name="g", kind=kind, dtype=dtype, message_bytes=message, ranks=ranks)
    time_us = collective_time(gpu, CollectiveKernel(regimes=(made,), fit=fit), rows).time_us
    found = fit_collective(Rows(rows, time_us), gpu, source="made up")
    assert {regime.in_switch for regime in found.regimes} == {in_switch}
    assert found.fit.fit_error < 1e-3


def test_where_a_regime_ends_falls_with_ranks_as_it_was_made():
    """Between 2^18 and 2^19 bytes at two ranks, between 2^17 and 2^18 at eight."""
    gpu, fit = load_gpu("h100-pcie"), made_up_fit((2.0**24, 0.9, 1.1), rows=24, errors=(0.05, 0.06))
    ends = 2.0**18.5
    first = CollectiveRegime(
        start_us=9.0, rank_us=0.5, copy_passes=0.2, link_passes=1.0, bytes_max=ends, growth=-0.5
    )
    second = CollectiveRegime(start_us=60.0, rank_us=4.0, copy_passes=0.4, link_passes=1.5)
    made = CollectiveKernel(regimes=(first, second), fit=fit)
    message, ranks = (axis.ravel() for axis in np.meshgrid(2.0 ** np.arange(12, 25), [2.0, 8.0]))
    rows = Collective(name="g", kind="all_gather", dtype="bf16", message_bytes=message, ranks=ranks)
    found = fit_collective(Rows(rows, collective_time(gpu, made, rows).time_us), gpu, source="made up")
    assert [regime.growth for regime in found.regimes] == pytest.approx([-0.5, 0.0])
    assert found.regimes[0].bytes_max == pytest.approx(ends)


def test_a_regime_of_rows_at_one_number_of_ranks_ends_alike_at_all(monkeypatch):
    """Between 1 and 2 MiB, half way in the logarithm."""
    message = 2.0 ** np.arange(12, 25)
    rows = Collective(
        name="g", kind="all_gather", dtype="bf16", message_bytes=message, ranks=np.full(13, 4.0)
    )
    monkeypatch.setattr(collective, "_cheapest", lambda *sizes, **more: [(0, 9, 0, 9), (9, 13, 9, 13)])
    first, last = collective._search(Rows(rows, 1.0 + message / 1e6), load_gpu("h100-pcie")).regimes
    assert (first.bytes_max, first.growth) == (pytest.approx(2.0**20.5), 0.0)
    assert (last.bytes_max, last.growth) == (0.0, 0.0)


def test_the_switch_costs_what_stored_kernels_were_fitted_with():
    stored = {
        (gpu.architecture, regime.in_switch)
        for gpu in map(load_gpu, gpu_names())
        for kernels in gpu.kernels.values()
        for kernel in kernels.collective.values()
        for regime in kernel.regimes
        if regime.in_switch > 0.0 and gpu.architecture in IN_SWITCH  # others borrow it
    }
    assert stored == set(IN_SWITCH.items())
