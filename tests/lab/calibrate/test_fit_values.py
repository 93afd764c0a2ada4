"""What each fit tries, by hand: tiles, paces, collectives, attention, streams and starts."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from fitted_rows import GPU, gemm, of

from medusa_sim.gpus.fitted_links import CollectiveKernel, CollectiveRegime
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.gpus.kernels import GemmKernel, GemmTile
from medusa_sim.lab.calibrate import attention as attention_fits
from medusa_sim.lab.calibrate import collective, dispatch, moe, stream, transfer
from medusa_sim.lab.calibrate.attention import _is_seen, _rows_per_head
from medusa_sim.lab.calibrate.collective import _cheapest, _may_end, _regime
from medusa_sim.lab.calibrate.driver import UNFITTED, FitDriver
from medusa_sim.lab.calibrate.elementwise import _groups
from medusa_sim.lab.calibrate.gemm import _driver, _refit, _with_paces, _with_penalties, gemm_start
from medusa_sim.lab.calibrate.hardware_file import _item
from medusa_sim.lab.calibrate.rows import Rows
from medusa_sim.lab.calibrate.search import least_log_errors, soft_cost
from medusa_sim.lab.calibrate.stream import _is_stepped, _may_hide
from medusa_sim.lab.calibrate.transfer import _Evidence, _preferring
from medusa_sim.latency.collective import collective_time
from medusa_sim.latency.gemm import gemm_time
from medusa_sim.operators.attention import Attention
from medusa_sim.operators.collective import Collective
from medusa_sim.operators.dispatch import Dispatch
from medusa_sim.operators.elementwise import Elementwise
from medusa_sim.operators.operator import CONTEXT, GENERATION
from medusa_sim.operators.recurrent import Recurrent

# Errors.


TILES = (GemmTile(m=64, n=64), GemmTile(m=128, n=128))


def two_tiles(**more: object) -> GemmKernel:
    start = gemm_start("torch", "fp16", GPU)
    return msgspec.structs.replace(start, **{"tiles": TILES, "splits": (1,), **more})


M = np.array([1, 32, 64, 96, 128, 192, 256, 384, 512, 1024], dtype=float)


def test_a_penalty_that_the_library_has_is_found_among_those_tried():
    """To like the large tile at 0.7 of its time is to dislike the small one at 1.43: 1.4 is tried first."""
    likes = two_tiles(tiles=(TILES[0], GemmTile(m=128, n=128, selection_penalty=0.7)))
    rows = Rows(gemm(M, 8192.0), gemm_time(GPU, likes, gemm(M, 8192.0), cold=False).time_us)
    found = _with_penalties(two_tiles(), rows, _driver(GPU), np.ones(M.size))
    assert [tile.selection_penalty for tile in found.tiles] == pytest.approx([1.4, 1.0])
    own = Rows(gemm(M, 8192.0), gemm_time(GPU, two_tiles(), gemm(M, 8192.0), cold=False).time_us)
    same = _with_penalties(two_tiles(), own, _driver(GPU), np.ones(M.size))
    assert [tile.selection_penalty for tile in same.tiles] == [1.0, 1.0]  # a tie leaves it as it is


def test_a_pace_that_the_library_has_is_found_among_those_tried():
    paced = two_tiles(
        fewest_waves=True, tiles=tuple(msgspec.structs.replace(tile, pace=1.25) for tile in TILES)
    )
    rows = Rows(gemm(M, 8192.0), gemm_time(GPU, paced, gemm(M, 8192.0), cold=False).time_us)
    found = _with_paces(two_tiles(fewest_waves=True), rows, _driver(GPU), np.ones(M.size))
    assert {tile.pace for tile in found.tiles} <= {1.0, 1.25}
    assert 1.25 in {tile.pace for tile in found.tiles}
    again = gemm_time(GPU, found, gemm(M, 8192.0), cold=False).time_us
    assert again == pytest.approx(rows.time_us, rel=0.02)


def test_whole_microseconds_weigh_short_kernels_by_their_rounding():
    """Rounded to 1 us, 0.15 us beside 3 % of 5 us is as much as the model's own error: 1 / sqrt 2."""
    weights: list[np.ndarray] = []
    from medusa_sim.lab.calibrate import gemm as module

    physics, penalties = module._least_squares, module._with_penalties
    try:
        module._least_squares = lambda kernel, rows, gpu, weight, pinned: weights.append(weight) or kernel
        module._with_penalties = lambda kernel, rows, gpu, weight: kernel
        _refit(two_tiles(), of([5.0, 500.0], m=[1, 1024]), _driver(GPU), rounds=1)
        _refit(two_tiles(), of([5.1, 500.3], m=[1, 1024]), _driver(GPU), rounds=1)
    finally:
        module._least_squares, module._with_penalties = physics, penalties
    assert weights[0] == pytest.approx([0.5**0.5, 1.0], abs=1e-3)
    assert weights[1].tolist() == [1.0, 1.0]


# Collectives.


def test_sizes_are_cut_where_it_costs_least():
    """Errors of 1 a size that spans 4 to 5, and 0.1 a range: two ranges of four and four."""
    sizes = [2.0 ** np.arange(8), 2.0 ** np.arange(8)]
    ways = _cheapest(
        sizes, lambda low, high, a, b: 0.1 + (low < 4 < high) + (a < 4 < b), at_most_as_far=False
    )
    assert ways == [(0, 4, 0, 4), (4, 8, 4, 8)]
    assert _cheapest(sizes, lambda *_: 0.1, at_most_as_far=False) == [(0, 8, 0, 8)]
    # of one-shot kernels a range that ends at the same size for all ranks costs 0.02 more
    either = _cheapest(
        sizes, lambda low, high, a, b: 0.1 + (low < 4 < high) + (a < 3 < b and a < 4 < b), at_most_as_far=True
    )
    assert either == [(0, 4, 0, 3), (4, 8, 3, 8)]


@pytest.mark.parametrize(
    ("high", "high_most", "one_shot", "may"),
    [
        (8, 8, False, True), (8, 5, False, False), (5, 8, False, False),  # both at their last or neither
        (4, 4, False, True), (7, 4, False, False), (4, 7, False, False),  # two sizes are left of each
        (6, 7, False, False), (7, 6, False, False),
        (6, 6, False, True), (3, 5, False, True), (2, 5, False, False), (5, 2, False, False),  # a factor of 4
        (3, 5, True, False), (5, 3, True, True), (4, 4, True, True),  # no later at the most ranks
    ],
)  # fmt: skip
def test_where_a_range_may_end(high, high_most, one_shot, may):
    sizes = [2.0 ** np.arange(8), 2.0 ** np.arange(8)]
    assert _may_end(sizes, high, high_most, at_most_as_far=one_shot) is may


def test_a_regime_is_the_exact_sum_of_its_parts():
    """10 us, 2 us a rank beyond two, a pass of copies and two of the link are found again."""
    gpu = load_gpu("h100-sxm")
    true = {"start_us": 10.0, "rank_us": 2.0, "copy_passes": 1.0, "link_passes": 2.0}
    kernel = CollectiveKernel(regimes=(CollectiveRegime(**true),), fit=UNFITTED)
    message, ranks = (axis.ravel() for axis in np.meshgrid(2.0 ** np.arange(12, 28, 2), [2.0, 4.0, 8.0]))
    rows = Collective(name="g", kind="all_gather", dtype="bf16", message_bytes=message, ranks=ranks)
    found = _regime(Rows(rows, collective_time(gpu, kernel, rows).time_us), gpu)
    assert {name: getattr(found.regime, name) for name in true} == pytest.approx(true, rel=1e-6)
    assert found.error == pytest.approx(0.0, abs=1e-9)
    # of one number of ranks neither the time of a rank nor copies can be told from the rest
    two = rows.with_columns(message_bytes=message[ranks == 2], ranks=ranks[ranks == 2])
    alone = _regime(Rows(two, 7.0 * np.ones(8)), gpu).regime
    assert (alone.start_us, alone.rank_us, alone.copy_passes) == (pytest.approx(7.0), 0.0, 0.0)


# Attention, streams, passes.


def attention(kind: str = "decode_attention", **sizes: object) -> Attention:
    given = {"batch": 1.0, "q_len": 1.0, "kv_len": 1024.0, "heads": 32.0, "kv_heads": 8.0, "head_dim": 128.0}
    columns = dict(zip([*given, *sizes], np.broadcast_arrays(*given.values(), *sizes.values()), strict=False))
    columns |= {
        name: np.broadcast_to(np.asarray(value, float), (2,)) for name, value in {**given, **sizes}.items()
    }
    return Attention(name=kind, kind=kind, dtype="bf16", **columns)


def test_attention_rows_tell_a_parameter_or_leave_it():
    path = next(iter(load_gpu("h100-sxm").kernels["sglang"].attention.values())).wide
    small, large = attention(kv_len=64.0), attention(batch=256.0, kv_len=8192.0)
    for name in ("bandwidth_fraction", "l2_fill", "l2_sharpness"):
        assert [_is_seen(name, path, of_, GPU) for of_ in (small, large)] == [False, True]
    for name in ("store_passes", "append_ratio"):
        assert not _is_seen(name, path, small, GPU)
    alone, shared = (msgspec.structs.replace(path, ctas_per_sm=count) for count in (1, 2))
    assert [_is_seen("sharing", of_, small, GPU) for of_ in (alone, shared)] == [False, True]
    assert _rows_per_head(attention(q_len=3.0)).tolist() == [12.0, 12.0]  # 3 x 32 / 8


def elementwise(m: object, n: object) -> Elementwise:
    m, n = np.broadcast_arrays(np.asarray(m, float), np.asarray(n, float))
    return Elementwise(name="rms_norm", kind="rms_norm", dtype="bf16", m=m, n=n)


def test_passes_of_one_width_are_held_out_in_sixteenths_of_their_rows():
    many = Rows(elementwise(np.arange(32.0)[::-1], 4096.0), np.ones(32))
    assert _groups(many).tolist() == [place // 2 for place in range(32)][::-1]
    widths = Rows(elementwise([1.0, 2.0, 3.0], [64.0, 128.0, 64.0]), np.ones(3))
    assert _groups(widths).tolist() == [0, 1, 0]


def test_a_graph_ends_where_all_that_is_longer_takes_longer():
    rows = of([1.0, 2.0, 5.0, 6.0], m=[64, 256, 257, 512])
    assert _is_stepped(rows, 256)
    assert not _is_stepped(of([1.0, 5.0, 5.0, 6.0], m=[64, 256, 257, 512]), 256)
    assert not _is_stepped(rows, 512)  # nothing is longer
    assert not _is_stepped(rows, 32)


def test_what_is_stored_has_six_digits():
    assert _item(3.14159265) == 3.14159
    assert _item(1234567.8) == 1234570.0
    assert _item(64) == 64


# One weight shape.


def test_layers_that_were_not_measured_hold_a_start_back_by_a_tenth():
    start = two_tiles(ramp_us=5.0)
    rows = Rows(gemm(M, 8192.0), gemm_time(GPU, start, gemm(M, 8192.0)).time_us)
    evidence = _Evidence.of(GPU, rows, start)
    assert evidence.errors(start) == pytest.approx(np.zeros(M.size + 9 * 14))
    slower = msgspec.structs.replace(start, ramp_us=15.0)
    found = evidence.errors(slower)
    assert found[: M.size] == pytest.approx(np.log(1.0 + 10.0 / rows.time_us))
    assert found[M.size :] == pytest.approx(np.zeros(9 * 14))  # beside its ramp it is the start
    assert evidence.cost(start) == pytest.approx(0.0, abs=1e-9)
    assert evidence.cost(slower) == pytest.approx(soft_cost(found, 0.02))


def test_a_preference_is_tried_for_large_tiles_from_their_own_rows_to_twice_as_many():
    """128 x 128 from m = 129, 193 (of 128, 192 measured) for outputs from half the width, at 0.8 and 0.67."""
    tried = list(_preferring(two_tiles(split_penalty=1.5), of(np.ones(M.size), m=M, n=8191.0)))
    entries = [
        (kernel.tiles[-1].selection_penalty, kernel.split_penalty, kernel.tiles[-1].m_min) for kernel in tried
    ]
    assert entries == [
        (penalty, pytest.approx(split), m)
        for penalty in (0.8, 0.67) for split in (1.5, 1.8) for m in (129, 193)
    ]  # fmt: skip
    assert {kernel.tiles[-1].n_min for kernel in tried} == {4096}
    assert {(kernel.tiles[-1].m, kernel.tiles[-1].n) for kernel in tried} == {(128, 128)}


def test_a_search_begins_at_shares_of_the_shortest_row():
    """Of 4 us, all of it a ramp and a tenth the host's; where a share is none, at the bound's own start."""
    classes = (("loads", "bytes", stream._LOAD), ("work", "flops", stream._WORK))
    rows = SimpleNamespace(time_us=np.array([8.0, 4.0]))
    problem = stream._Problem(rows, None, classes, {})
    own = [limit[0] for limit in stream._OWN.values()]
    begun = problem.begin(stream._Start(scale=2.0, ramp=1.0, host=0.1, norm=0.7, l2_fill=0.3))
    assert begun[:3] == [4.0, pytest.approx(0.4), own[2]]
    assert begun[3:7] == [0.7, own[4], 0.3, own[6]]
    assert begun[-2:] == [stream._LOAD[0], 2.0 * stream._WORK[0]]
    assert problem.begin(stream._STARTS[0])[:2] == own[:2]


# What a fit tries.


def test_least_squares_begin_inside_bounds_from_a_start_beyond_them():
    rows = np.log([2.0, 8.0])
    found = least_log_errors([50.0], [(0.1, 9.0)], lambda values: np.log(values[0]) - rows)
    assert found == pytest.approx([4.0], rel=1e-4)
    at_the_top = least_log_errors([50.0], [(0.1, 3.0)], lambda values: np.log(values[0]) - rows)
    assert at_the_top == pytest.approx([3.0], rel=1e-4)


def test_a_range_of_sizes_has_two_of_each():
    seen = []

    def cost(low: int, high: int, a: int, b: int) -> float:
        seen.append((high - low, b - a))
        return 1.0

    _cheapest([2.0 ** np.arange(8), 2.0 ** np.arange(8)], cost, at_most_as_far=False)
    assert min(seen) == (2, 2)
    assert min(fewest for _, fewest in seen) == 2


@pytest.mark.parametrize(
    ("kind", "name", "tried"),
    [("all_reduce", "custom", True), ("all_reduce", "nccl", False), ("all_gather", "custom", False)],
)
def test_one_shot_kernels_add_up_small_messages_of_no_ring(monkeypatch, kind, name, tried):
    seen: dict[bool, float] = {False: 0.0, True: 0.0}

    def regime(rows: Rows[Collective], gpu: object, *, one_shot: bool = False, in_switch: float = 0.0) -> Any:
        seen[one_shot] = max(seen[one_shot], float(np.max(rows.operator.message_bytes)))
        return SimpleNamespace(
            error=0.0, regime=CollectiveRegime(start_us=1.0, rank_us=0.0, copy_passes=0.0, link_passes=1.0)
        )

    monkeypatch.setattr(collective, "_regime", regime)
    message, ranks = (axis.ravel() for axis in np.meshgrid(2.0 ** np.arange(10, 26), [2.0, 8.0]))
    rows = Collective(name="g", kind=kind, dtype="bf16", message_bytes=message, ranks=ranks)
    collective._search(Rows(rows, np.ones(message.size), name), load_gpu("a100-80gb-sxm"))
    assert (seen[True] > 0.0) == tried
    assert seen[False] == 2.0**25


@pytest.mark.parametrize(("few", "many", "paths"), [(150, 99, 1), (99, 150, 1), (100, 101, 3), (101, 100, 3)])
def test_a_path_of_few_rows_is_tried_where_both_have_a_hundred(monkeypatch, few, many, paths):
    """One head of keys a head of queries: 1 row is few, 64 are many."""
    seen = []
    monkeypatch.setattr(
        attention_fits, "_search_path", lambda rows, law: (seen.append(rows.time_us.size), _Paths())[1]
    )
    monkeypatch.setattr(attention_fits, "_refit", lambda kernel, rows, law: kernel)
    rows = attention(q_len=1.0)
    whole = rows.with_columns(
        **{name: np.full(few + many, getattr(rows, name)[0]) for name in ("batch", "kv_len", "heads",
        "head_dim")},
        kv_heads=np.full(few + many, 32.0), q_len=np.r_[np.ones(few), np.full(many, 64.0)],
    )  # fmt: skip
    law = SimpleNamespace(cost=lambda kernel, rows: 1.0, gpu=load_gpu("h100-sxm"))
    attention_fits._search(Rows(whole, np.ones(few + many)), law)
    assert seen == [few + many, many, few][:paths]


@pytest.mark.parametrize(("kind", "is_tried"), [("decode_attention", False), ("prefill_attention", True)])
def test_rows_of_one_query_pack_and_store_next_to_nothing(monkeypatch, kind, is_tried):
    tried = {}

    def searched(start, choices, *given):
        tried.update(start=start, choices=choices)
        return start, None

    monkeypatch.setattr(attention_fits, "_least_squares", lambda kernel, **given: kernel)
    monkeypatch.setattr(attention_fits, "coordinate_search", searched)
    rows = SimpleNamespace(operator=SimpleNamespace(kind=kind))
    given = attention_fits._STYLES[0] | {"packs_gqa": False, "store_passes": 0.5}
    attention_fits._coordinate_search(given, rows, None)
    path = tried["start"].wide
    assert ("wide.packs_gqa" in tried["choices"], path.packs_gqa) == (is_tried, not is_tried)
    assert path.store_passes == (0.5 if is_tried else 0.0)


class _Paths(msgspec.Struct):
    wide: Any = None
    narrow: Any = None
    narrow_rows: int = 0


def test_how_much_slower_a_tile_is_than_the_first_is_one_of_the_factors_tried():
    """The second takes 1.2 times as long, the third 0.8; the first is what they are beside."""
    true = (1.0, 1.2, 0.8)

    class Tiles(msgspec.Struct):
        default_tiles: tuple[Any, ...]

    class Tile(msgspec.Struct):
        slower: float

    law = SimpleNamespace(
        cost=lambda kernel, rows: sum(
            abs(np.log(tile.slower / slower)) for tile, slower in zip(kernel.default_tiles, true, strict=True)
        )
    )
    found = moe._with_slower_tiles(Tiles((Tile(1.0),) * 3), None, law)
    assert [tile.slower for tile in found.default_tiles] == pytest.approx(true)


@pytest.mark.parametrize(("gated", "tried"), [((1.0, 1.0), {False}), ((1.0, 0.0), {False, True})])
def test_experts_without_a_gate_are_fitted_with_and_without_one(monkeypatch, gated, tried):
    seen = set()
    monkeypatch.setattr(moe, "require_rows", lambda rows, source: None)
    monkeypatch.setattr(moe, "rules_of", lambda form, gpu: [SimpleNamespace(default_tiles=(), tuned=False)])
    monkeypatch.setattr(moe, "_start", lambda name, rule, *, gates_all: gates_all)
    monkeypatch.setattr(moe, "_refit", lambda start, *given, **more: seen.add(start))
    monkeypatch.setattr(FitDriver, "best", lambda self, candidates, rows: candidates[0])
    monkeypatch.setattr(FitDriver, "with_fit", lambda self, kernel, rows, refit, **more: kernel)
    rows = SimpleNamespace(operator=SimpleNamespace(gated=np.array(gated), form=""), kernel="")
    moe.fit_experts(rows, GPU, source="")
    assert seen == tried


@pytest.mark.parametrize(
    ("shapes", "measured", "called"),
    [(1, True, "transferred"), (1, False, "fitted"), (2, True, "fitted"), (2, False, "fitted")],
)
def test_rows_of_one_shape_borrow_the_rest_from_what_was_measured_there(
    monkeypatch, shapes, measured, called
):
    start = SimpleNamespace(ramp_us=3.0)
    monkeypatch.setattr(transfer, "_measured_gemm", lambda gpu, form: start if measured else None)
    monkeypatch.setattr(transfer, "fit_gemm", lambda *given, **more: ("fitted", None))
    monkeypatch.setattr(
        transfer, "fit_transferred_gemm", lambda *given, ramp_us, **more: ("transferred", ramp_us)
    )
    fit = transfer.fit_linear
    rows = of(
        np.ones(20), m=np.arange(1.0, 21.0), n=np.where(np.arange(20) < 10 * (shapes - 1), 2048.0, 4096.0)
    )
    expected = 3.0 if called == "transferred" else None
    assert fit(rows, GPU, source="made") == (called, expected)
    if called == "transferred":
        assert fit(rows, GPU, source="made", ramp_us=5.0) == (called, 5.0)


def test_rows_are_drawn_evenly_in_their_order_and_all_where_there_are_no_more():
    rows = Rows(elementwise(np.arange(21.0)[::-1], 4096.0), np.arange(21.0))
    assert rows.thin(100, "m").operator.m.tolist() == list(range(21))
    assert rows.thin(7, "m").operator.m.tolist() == [0, 3, 6, 9, 12, 15, 18]
    assert rows.thin(4, "m").operator.m.tolist() == [0, 5, 10, 15]  # 5.25 apart


def test_the_best_kernel_has_the_least_error():
    rows = of([100.0, 200.0], m=1.0, n=[64.0, 128.0])
    start = gemm_start("torch", "fp16", GPU)
    trials = [msgspec.structs.replace(start, ramp_us=us) for us in (10.0, 150.0, 900.0)]
    driver = FitDriver(GPU, lambda gpu, kernel, operator: SimpleNamespace(time_us=np.full(2, kernel.ramp_us)))
    assert driver.best(trials, rows) is trials[1]


@pytest.mark.parametrize(
    ("part", "phase", "bytes_per_s", "may"),
    [("conv", CONTEXT, 2.1e12, True), ("conv", CONTEXT, 1.9e12, False), ("conv", GENERATION, 2.1e12, False),
     ("state", CONTEXT, 2.1e12, False)],
)  # fmt: skip
def test_a_prompts_convolution_is_bound_by_multiprocessors_beside_fast_memory(part, phase, bytes_per_s, may):
    """20 GB/s each: 2 TB/s of a hundred."""
    gpu = replace(GPU, sms=100, bandwidth_bytes_per_s=bytes_per_s)
    operator = Recurrent(
        name="r", kind="gdn", dtype="bf16", batch=1, q_len=64, heads=4, key_heads=4, part=part, phase=phase
    )
    assert _may_hide(operator, gpu) is may


@pytest.mark.parametrize(
    ("nodes", "fitted"), [((1, 1, 1), [(1, 1, 1)]), ((2, 4, 2), [(2, 4, 2)]), ((1, 2, 1), [(1, 1), (2,)])]
)
def test_ranks_of_one_node_are_fitted_before_those_of_several(monkeypatch, nodes, fitted):
    seen: list[tuple[int, ...]] = []

    def least(kernel: object, rows: Rows[Any], driver: object, bounds: object) -> object:
        seen.append(tuple(rows.operator.nodes.tolist()))
        return kernel

    monkeypatch.setattr(dispatch, "_least_squares", least)
    operator = Dispatch(
        name="d", kind="dispatch", dtype="bf16", tokens=64.0, hidden=7168, experts=256, topk=8, ranks=8.0,
        nodes=np.array(nodes),
    )  # fmt: skip
    spread = {name: np.broadcast_to(size, 3) for name, size in operator.sizes.items()}
    rows = Rows(replace(operator, **spread), np.ones(3))
    dispatch._refit(dispatch._start("x", per_expert=False), rows, None)
    assert seen == fitted
