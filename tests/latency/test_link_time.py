"""Collectives and dispatch: bounds of the link, one rank costs nothing, fits recover what made the rows."""

from dataclasses import replace
from functools import partial

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up import made_up_fit

from medusa_sim.arrays import FloatArray
from medusa_sim.doubts.of_scenario import scenario_doubts
from medusa_sim.gpus.fitted_links import CollectiveKernel, CollectiveRegime, DispatchKernel
from medusa_sim.gpus.gpu import Gpu, load_gpu
from medusa_sim.gpus.gpu_names import gpu_names
from medusa_sim.lab.calibrate.collective import fit_collective
from medusa_sim.lab.calibrate.dispatch import fit_dispatch
from medusa_sim.lab.calibrate.rows import Rows
from medusa_sim.latency.bands import less_certain
from medusa_sim.latency.calibrated import CalibratedLatency
from medusa_sim.latency.collective import collective_time
from medusa_sim.latency.dispatch import dispatch_time
from medusa_sim.latency.operator_time import Bound, OperatorTime, Source
from medusa_sim.latency.roofline import RooflineLatency
from medusa_sim.operators.collective import Collective
from medusa_sim.operators.dispatch import Dispatch
from medusa_sim.operators.operator import Size
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.step import decode_step
from medusa_sim.units import US_PER_S

GPU = load_gpu("h100-sxm")
FIT = made_up_fit((4096.0, 0.9, 1.1), rows=20, errors=(0.05, 0.06))
ALL_REDUCE = CollectiveKernel(
    regimes=(
        CollectiveRegime(
            start_us=3.0, rank_us=0.1, copy_passes=0.0, link_passes=1.5, bytes_max=524288.0, growth=-0.5,
            one_shot=True,
        ),
        CollectiveRegime(start_us=12.0, rank_us=1.0, copy_passes=0.3, link_passes=1.2),
    ),
    fit=FIT,
)  # fmt: skip
DISPATCH = DispatchKernel(
    start_us=10.0, width_us=1.0, spread_us=0.5, rank_us=1.0, fill_us=1.0, fill_tokens=64.0, token_us=0.1,
    own_us=0.1, copy_us=0.2, link_fraction=0.6, norm=3.0, per_expert=False, fit=FIT,
)  # fmt: skip


def all_reduce(message: Size, ranks: Size) -> Collective:
    return Collective(name="all_reduce", kind="all_reduce", dtype="bf16", message_bytes=message, ranks=ranks)


def dispatch(tokens: Size, ranks: Size = 8, hidden: Size = 7168, topk: Size = 8, sms: Size = 0) -> Dispatch:
    return Dispatch(
        name="dispatch", kind="dispatch", dtype="bf16", tokens=tokens, hidden=hidden, topk=topk, experts=256,
        ranks=ranks, sms=sms,
    )  # fmt: skip


def by_hand_us(
    gpu: Gpu, kernel: CollectiveKernel, kind: str, message: float, ranks: int, *, cold: bool
) -> float:
    """(C1) to (C4) of one message, number by number."""
    link = gpu.link_bandwidth_bytes_per_s / 1e6
    ring = (
        {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}[kind] * (ranks - 1) / ranks
    )

    def line_us(regime: CollectiveRegime, size: float) -> float:
        sent = ring * size
        if regime.one_shot and kernel.knows_ranks:
            sent = size * (ranks - 1)
        elif regime.in_switch:
            sent = min(sent, regime.in_switch * size * (1 + 1 / ranks))
        start_us = regime.start_us + regime.rank_us * (ranks - 2)
        return start_us + (regime.copy_passes * size + regime.link_passes * sent) / link

    regimes = kernel.regimes
    ends = [each.bytes_max * (ranks / 2) ** each.growth if each.bytes_max else np.inf for each in regimes]
    most = [np.inf] * len(regimes)  # (C4): of the regime, and of all behind it
    for place in reversed(range(len(regimes) - 1)):
        end = ends[place]
        reached = line_us(regimes[place], end), line_us(regimes[place + 1], 2**0.5 * end)
        most[place] = min(*reached, most[place + 1])
    times = []
    for place, regime in enumerate(regimes):
        own_us = line_us(regime, message)
        if cold:
            own_us = min(own_us, most[place])
            if place and message > ends[place - 1]:
                own_us = max(own_us, most[place - 1])
        times.append(own_us)
    serving = [time for time, end in zip(times, ends, strict=True) if message <= end]
    return serving[0] if ranks <= 8 else min(serving)


def in_a_step_us(gpu, kernel, kind, message, ranks):
    """(C6), on top of the regimes."""
    own = partial(by_hand_us, gpu, kernel, kind, ranks=ranks, cold=True)
    ends = [each.bytes_max * (ranks / 2) ** each.growth for each in kernel.regimes[:-1]]
    for before, end, after in zip([0.0, *ends], ends, [*ends[1:], np.inf], strict=False):
        low = min(max(end / 2**0.5, before * 2**0.5), end)
        high = max(min(end * 2**0.5, after / 2**0.5), end)
        if ranks <= 8 and low < message < high:
            return own(low) + (own(high) - own(low)) * (message - low) / (high - low)
    return own(message)


@pytest.mark.parametrize("cold", [False, True])
def test_the_time_is_that_of_the_equations(cold):
    """Of shipped kernels that know more than two ranks, and of one with every term."""
    shipped = [
        (gpu, kernel, key.partition("@")[0].partition("-")[0].rpartition("_")[0])
        for gpu in map(load_gpu, ("h100-sxm", "h200-sxm", "b200"))
        for kernels in gpu.kernels.values()
        for key, kernel in kernels.collective.items()
        if not kernel.ranks_of and not kernel.fit.inherited_from
    ]
    switched = CollectiveRegime(start_us=20.0, rank_us=0.5, copy_passes=0.1, link_passes=1.1, in_switch=0.9)
    every = CollectiveKernel(
        regimes=(
            ALL_REDUCE.regimes[0],
            msgspec.structs.replace(ALL_REDUCE.regimes[1], bytes_max=2.0**22, growth=0.5),
            switched,
        ),
        fit=FIT,
    )
    messages = 2.0 ** np.arange(10, 29, 1.5)
    for gpu, kernel, kind in [*shipped, (GPU, every, "all_reduce"), (GPU, ALL_REDUCE, "all_gather")]:
        for ranks in (2, 3, 8, 16):
            made = Collective(name=kind, kind=kind, dtype="bf16", message_bytes=messages, ranks=ranks)
            found = collective_time(gpu, kernel, made, cold=cold).time_us
            by_hand = in_a_step_us if cold else partial(by_hand_us, cold=False)
            told = [by_hand(gpu, kernel, kind, size, ranks) for size in messages]
            assert found == pytest.approx(np.array(told) * kernel.fit.slower), (gpu.name, kind, ranks)


@given(message=st.integers(256, 10**9), ranks=st.sampled_from([2, 4, 8]))
def test_time_rises_with_message_and_ranks_and_the_link_bounds_it(message, ranks):
    operator = all_reduce(message, ranks)
    found = float(collective_time(GPU, ALL_REDUCE, operator).time_us)
    assert found >= float(operator.link_bytes) / GPU.link_bandwidth_bytes_per_s * US_PER_S
    assert float(collective_time(GPU, ALL_REDUCE, all_reduce(2 * message, ranks)).time_us) >= found
    assert float(collective_time(GPU, ALL_REDUCE, all_reduce(message, 2 * ranks)).time_us) >= found


def test_collectives_over_pcie_grow_with_ranks_as_the_measured_card_s():
    """16 KB among eight RTX PRO 6000 take 27 us and between two 5; eight L40S took 7, by rows of two."""
    message = 2.0 ** np.arange(8, 28, 4)
    places = ("l40s", "vllm"), ("l40s", "nccl"), ("rtx-4090", "sglang"), ("a100-80gb-pcie", "nccl")
    for name, lent in places:
        gpu = load_gpu(name)
        for key, kernel in gpu.kernels[lent].collective.items():
            kind = key.rpartition("@")[0] or key
            if not kind.startswith("all_reduce") or "eager" in key:
                continue
            two, four, eight = (
                collective_time(gpu, kernel, all_reduce(message, ranks), cold=True) for ranks in (2, 4, 8)
            )
            assert (four.time_us > 1.5 * two.time_us).all(), (name, key)
            assert (eight.time_us > 1.2 * four.time_us).all(), (name, key)
            assert (eight.time_us < 9.0 * two.time_us).all(), (name, key)
            assert (eight.high_us / eight.time_us > two.high_us / two.time_us).all(), (name, key)
    kernel = load_gpu("l40s").kernels["vllm"].collective["all_reduce_bf16"]
    small = float(collective_time(load_gpu("l40s"), kernel, all_reduce(16384, 8), cold=True).time_us)
    assert 20.0 < small < 45.0


EVERY_SET = [
    (name, held)
    for name in gpu_names()
    for held, kernels in load_gpu(name).kernels.items()
    if kernels.collective
]


@pytest.mark.parametrize(("name", "held"), EVERY_SET)
def test_no_message_of_a_step_is_dearer_than_a_larger_one(name, held):
    """Between 256 KB and 512 a line drawn on said 31 us of eight B200 and the next one 15."""
    gpu = load_gpu(name)
    message = np.unique(np.round(2.0 ** np.arange(8, 30, 0.05)))
    for key, kernel in gpu.kernels[held].collective.items():
        kind = key.partition("@")[0].partition("-")[0].rpartition("_")[0]
        for ranks in (2, 3, 4, 8, 16):
            made = Collective(name=kind, kind=kind, dtype="bf16", message_bytes=message, ranks=ranks)
            time_us = collective_time(gpu, kernel, made, cold=True).time_us
            assert (time_us[1:] >= time_us[:-1] * (1.0 - 1e-9)).all(), (key, ranks)
            if ranks <= 8:  # 257 requests of a 70B took 2.8 times as long on A100s as 256
                assert (time_us[1:] <= 1.2 * time_us[:-1]).all(), (key, ranks)


ONE_SHOT_ROWS = 128


@pytest.mark.parametrize("name", ["a100-80gb-sxm", "h100-sxm", "h200-sxm", "b200", "gb200", "rtx-pro-6000"])
@pytest.mark.parametrize("width", [2880, 4096, 8192, 16384])
def test_one_request_more_than_are_added_up_in_one_shot_is_not_faster(name, width):
    """129 rows of a 70B among eight H200 took 30.6 us and 128 took 54.6: a step 18 % faster (C7)."""
    gpu, rows = load_gpu(name), np.arange(1.0, 700.0)
    for key, kernel in gpu.kernels["trtllm"].collective.items():
        if not key.startswith("all_reduce") or "eager" in key:
            continue
        for ranks in (2, 4, 8, 16):
            own = all_reduce(2.0 * width * rows, ranks)
            asked = replace(own, one_shot_bytes=2.0 * width * ONE_SHOT_ROWS)
            found, unasked = (collective_time(gpu, kernel, each, cold=True) for each in (asked, own))
            assert (np.diff(found.time_us) >= -1e-9).all(), (key, ranks)
            assert (found.time_us >= unasked.time_us).all(), (key, ranks)
            beyond = rows > ONE_SHOT_ROWS
            assert (found.low_us <= unasked.low_us * (1.0 + 1e-12))[beyond].all(), (key, ranks)
            many = found.time_us[-1], unasked.time_us[-1]
            assert many[0] == pytest.approx(many[1]) or width > 8192, (key, ranks)


@pytest.mark.parametrize("name", ["b300", "h100-sxm", "l40s"])
def test_twice_the_message_is_not_faster_among_more_cards_than_were_measured(name):
    """Sixteen B300 took 0.72 of the time for a step of 32 requests that they took for 16."""
    gpu = load_gpu(name)
    message = 2.0 ** np.arange(10, 28)
    for key, kernel in gpu.kernels["vllm"].collective.items():
        if "eager" not in key:
            cost = collective_time(gpu, kernel, all_reduce(message, 16)).time_us
            assert (cost[1:] >= 0.9 * cost[:-1]).all(), key


def test_the_roofline_of_an_exchange_is_its_link():
    for operator in (all_reduce(2**30, 8), dispatch(4096)):
        link_us = float(operator.link_bytes) / GPU.link_bandwidth_bytes_per_s * US_PER_S
        assert float(RooflineLatency(GPU).time(operator).time_us) == pytest.approx(link_us)


def test_one_rank_costs_nothing_small_messages_wait_and_large_ones_travel():
    assert float(collective_time(GPU, ALL_REDUCE, all_reduce(2**20, 1)).time_us) == 0.0
    assert float(dispatch_time(GPU, DISPATCH, dispatch(64, ranks=1)).time_us) == 0.0
    found = collective_time(GPU, ALL_REDUCE, all_reduce(np.asarray([1024.0, 2.0**28]), 8))
    assert found.bound.tolist() == [Bound.LATENCY, Bound.MEMORY]


@given(tokens=st.integers(1, 20_000), ranks=st.sampled_from([2, 4, 8, 16]))
def test_dispatch_takes_longer_for_more_tokens_and_with_fewer_multiprocessors(tokens, ranks):
    def time_us(operator: Dispatch) -> float:
        return float(dispatch_time(GPU, DISPATCH, operator).time_us)

    found = time_us(dispatch(tokens, ranks))
    line_us = float(dispatch(tokens, ranks).link_bytes) / GPU.link_bandwidth_bytes_per_s * US_PER_S
    assert line_us < found <= time_us(dispatch(2 * tokens, ranks))
    assert time_us(dispatch(tokens, ranks, sms=8)) >= time_us(dispatch(tokens, ranks, sms=24))
    assert found <= time_us(dispatch(tokens, ranks, hidden=8192))


def test_a_fit_of_two_and_eight_ranks_tells_four():
    sizes = 2.0 ** np.arange(8, 31, 2)
    message, ranks = (axis.ravel() for axis in np.meshgrid(sizes, [2.0, 8.0]))
    made = all_reduce(message, ranks)
    rows = Rows(made, collective_time(GPU, ALL_REDUCE, made, cold=False).time_us)
    found = fit_collective(replace(rows, kernel="custom"), GPU, source="made up")
    assert found.fit.fit_error < 1e-6
    four = all_reduce(np.asarray([2.0**10, 2.0**16, 2.0**24, 2.0**30]), 4)
    told, true = (collective_time(GPU, kernel, four, cold=False).time_us for kernel in (found, ALL_REDUCE))
    assert told == pytest.approx(true, rel=0.02)


def test_a_fit_of_dispatch_recovers_other_widths():
    axes = np.meshgrid([1.0, 16.0, 128.0, 1024.0, 8192.0], [2048.0, 5120.0, 7168.0], [1.0, 8.0])
    tokens, hidden, topk = (axis.ravel() for axis in axes)
    operator = dispatch(tokens, np.full_like(tokens, 8.0), hidden, topk, np.zeros_like(tokens))
    operator = operator.with_columns(experts=np.full_like(tokens, 256.0), nodes=np.ones_like(tokens))
    rows = Rows(operator, dispatch_time(GPU, DISPATCH, operator).time_us)
    found = fit_dispatch(rows, GPU, source="made up")
    assert found.fit.fit_error < 0.02
    other = dispatch(np.asarray([32.0, 4096.0]), hidden=4096)
    told, true = (dispatch_time(GPU, kernel, other).time_us for kernel in (found, DISPATCH))
    assert told == pytest.approx(true, rel=0.05)


def test_more_cards_than_a_bridge_joins_share_a_slower_link():
    pair, board = load_gpu("h100-nvl"), load_gpu("h100-pcie")
    message = 2.0 ** np.arange(14, 27)

    def times_us(gpu: Gpu, ranks: int) -> FloatArray:
        return CalibratedLatency(gpu, "sglang").time(all_reduce(message, ranks)).time_us

    assert (times_us(pair, 2) < times_us(board, 2)).all()
    line_us = all_reduce(message, 4).link_bytes / pair.wide_link_bandwidth_bytes_per_s * US_PER_S
    assert (times_us(pair, 4) > line_us).all()
    assert (times_us(pair, 4) > 1.5 * times_us(pair, 2)).all()
    assert times_us(pair, 4)[-1] == pytest.approx(times_us(board, 4)[-1], rel=0.5)
    floor = RooflineLatency(pair).time(all_reduce(message, np.asarray([[2.0], [4.0]]))).time_us
    assert (floor[1] > 4.0 * floor[0]).all()


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_a_group_beyond_the_bridge_is_shown(tp):
    scenario = Scenario(gpu="h100-nvl", model="llama-3.1-70b", drafter="ngram", acceptance="0.5", tp=tp)
    assert any("joins 2 " in line for line in scenario_doubts(scenario)) == (tp > 2)
    exchanged = decode_step(scenario.setting, 64, 1024).parts_us.get("exchange", np.zeros(()))
    assert (exchanged > 0.0) == (tp > 1)
    if tp > 2:
        assert "rtx-pro-6000:nccl" in scenario.kernel_fits.lenders
        linked = decode_step(scenario.but(gpu="h100-sxm").setting, 64, 1024).parts_us["exchange"]
        assert exchanged > 2.0 * linked


def test_dispatch_between_nodes_is_priced_term_by_term():
    """(Y1 to Y5) by hand: 300 tokens of 2048, 16 ranks on two nodes, 8 multiprocessors."""
    kernel = msgspec.structs.replace(DISPATCH, far_fraction=0.05, far_growth=0.5, far_us=7.0)
    near = dispatch(300, ranks=16, hidden=2048, topk=4, sms=8)
    link, copies = GPU.link_bandwidth_bytes_per_s, 16 * (1 - (15 / 16) ** 4)
    work = 300 * (0.1 + (0.1 + 0.2 * copies) * 2) / 8
    line = 300 * 2048 * 2 / link * 1e6
    near_us = line * copies * 15 / 16 / 0.6
    start = 10 + 0.5 * copies + 1.0 * 3 + (1.0 + 300 / 364) * 2  # 16 ranks: twice two, thrice
    for nodes, link_us, start_us in (
        (1, near_us, start),
        (2, (near_us**3 + (line / 0.05) ** 3) ** (1 / 3), start + 7),
        (4, (near_us**3 + (line * 2**0.5 / 0.05) ** 3) ** (1 / 3), start + 14),
    ):
        expected = start_us + (work**3 + link_us**3) ** (1 / 3)
        found = dispatch_time(GPU, kernel, replace(near, nodes=nodes))
        assert float(found.time_us) == pytest.approx(expected)


def test_another_doubt_joins_a_band_in_quadrature_where_it_holds():
    time = OperatorTime(
        time_us=np.array([100.0, 100.0]), low_us=np.array([80.0, 80.0]), high_us=np.array([125.0, 125.0]),
        bound=np.zeros(2, dtype=np.int8), source=np.zeros(2, dtype=np.int8),
    )  # fmt: skip
    found = less_certain(time, 0.3, Source.BORROWED, np.array([True, False]))
    half = np.sqrt(np.log(1.25) ** 2 + 0.3**2)
    assert found.low_us == pytest.approx([100 * np.exp(-half), 80])
    assert found.high_us == pytest.approx([100 * np.exp(half), 125])
    assert found.source.tolist() == [Source.BORROWED, 0]


@pytest.mark.parametrize("library", ["vllm", "sglang", "trtllm"])
def test_eight_cards_of_a_gb200_talk_like_those_of_a_b200(library):
    """The same chip and link; its rows end at four ranks, and a line through two and four gave 2.2 times."""
    messages = 2.0 ** np.arange(12, 26, 0.25)
    made = Collective(name="", kind="all_reduce", dtype="bf16", message_bytes=messages, ranks=8)
    own_us, other_us = (
        collective_time(gpu, gpu.kernels[library].collective["all_reduce_bf16"], made, cold=True).time_us
        for gpu in map(load_gpu, ("gb200", "b200"))
    )
    assert np.max(own_us / other_us) < 1.75
    assert np.all(np.diff(own_us) >= -1e-9)


@pytest.mark.parametrize(("ranks", "wider"), [(2, 1.0), (4, 1.5), (8, 1.5)])
def test_a_band_among_more_ranks_than_were_measured_is_half_as_wide_again(ranks, wider):
    """Of a kernel of two ranks, beside one that a picosecond a rank makes one of many."""
    regime = CollectiveRegime(start_us=20.0, rank_us=0.0, copy_passes=0.1, link_passes=1.1)
    of_two = CollectiveKernel(regimes=(regime,), fit=FIT, most_ranks=2)
    of_many = CollectiveKernel(regimes=(msgspec.structs.replace(regime, rank_us=1e-6),), fit=FIT)
    gpu, operator = load_gpu("h100-sxm"), all_reduce(1e6, ranks)
    known = collective_time(gpu, of_many, operator)
    found = collective_time(gpu, of_two, operator)
    assert (of_two.knows_ranks, of_many.knows_ranks) == (False, True)
    assert float(found.high_us) == pytest.approx(wider * float(known.high_us))
    assert float(found.low_us) == pytest.approx(float(known.low_us) / wider)
