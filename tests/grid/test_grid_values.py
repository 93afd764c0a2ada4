"""Numbers of cells by hand: costs, energy, units, the pieces of a grid, requests, and where edges lie."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from left_out import numbers_left_out

import medusa_sim.load.quantities
import medusa_sim.plan.quantities
import medusa_sim.setups.quantities  # noqa: F401  # these rooms declare quantities of cells, too
from medusa_sim.arrays import Band, Halves
from medusa_sim.engines.runtime import load_runtime
from medusa_sim.errors import UsageError
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.grid.axes import Grid
from medusa_sim.grid.bands import FIRST_TOKEN_LATER, FIRST_TOKEN_SOONER, Bands
from medusa_sim.grid.cell import best_cell
from medusa_sim.grid.cells import Cells, price
from medusa_sim.grid.configurations import NO_LIMIT, Configurations
from medusa_sim.grid.costs import joule_band, joule_per_token, usd_per_million_tokens, watts_band
from medusa_sim.grid.extrapolation import edges_below
from medusa_sim.grid.quantities import values, with_band
from medusa_sim.grid.quantity import BY_NAME
from medusa_sim.grid.roofline import Roof, roof_of, roofline_points
from medusa_sim.grid.single_step import single_step
from medusa_sim.grid.steps import Steps, picked
from medusa_sim.grid.surface import in_groups, surface_at
from medusa_sim.grid.sweep import Slices
from medusa_sim.latency.roofline import RooflineLatency
from medusa_sim.models.named import load_model
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.serving.chance import log_normal
from medusa_sim.serving.watts import launch_joules, prompt_joules, sampling_joules, watts
from medusa_sim.step.step import decode_step, verification_step, verification_work
from medusa_sim.step.verified import Verified
from medusa_sim.step.workload import verify

DENSE = {"gpu": "h100-sxm", "model": "llama-3.1-8b", "drafter": "eagle3", "acceptance": "0.7,0.5,0.3"}
SERVED = Scenario(**DENSE, runtime="vllm", tp=2, price=1.8, prompt_tokens=2000, output_tokens=200)
TREES = Scenario(runtime="cuda-graph", latency="roofline")


def test_a_rate_costs_what_its_gpus_cost_an_hour_and_draw():
    """2 GPUs at $1.8 an hour are $0.001 a second, at 1,000 tokens/s $1 a million; 700 W are 0.7 J a token."""
    assert float(usd_per_million_tokens(1.8, 2, 1000.0)) == pytest.approx(1.0)
    assert np.isnan(usd_per_million_tokens(None, 2, 1000.0))
    assert float(joule_per_token(700.0, 1000.0)) == pytest.approx(0.7)


def test_quantities_are_cells_in_the_units_of_their_names():
    """One server of two GPUs: milliseconds are thousandths, rates are the batch over the time of a token."""
    cells = price(SERVED, [4, 16], [SERVED.length]).by_count
    batch = cells.batch
    token_s, tpot_s = cells.server.token_us / 1e6, cells.server.tpot_us / 1e6
    expected = {
        "time_per_token_ms": 1e3 * token_s,
        "itl_us": cells.server.itl_us,
        "tpot_us": cells.server.tpot_us,
        "tpot_ms": 1e3 * tpot_s,
        "ttft_ms": cells.server.first_token_us / 1e3,
        "benchmark_ttft_ms": cells.server.benchmark_first_token_us / 1e3,
        "tokens_per_s": batch / token_s,
        "tokens_per_s_per_gpu": batch / token_s / 2,
        "tokens_per_s_per_user": 1 / tpot_s,
        "usd_per_million_tokens": 2 * 1.8 / 3600 / (batch / token_s) * 1e6,
        "joule_per_token": cells.server_steps.watts * token_s / batch,
        "tokens_per_s_per_mw": 1e6 / (cells.server_steps.watts * token_s / batch),
        "overhead": cells.steps.time_us / cells.steps.decode_us,
        "baseline_overhead": cells.steps.time_us / cells.steps.decode_us,
        "step_speedup": cells.tokens_per_step * cells.steps.decode_us / cells.steps.time_us,
        "baseline_speedup": cells.tokens_per_step * cells.steps.decode_us / cells.steps.time_us,
        "speedup": cells.server.token_us[..., :1] / cells.server.token_us,
        "server_speedup": cells.server.token_us[..., :1] / cells.server.token_us,
        "memory_bytes": cells.memory.total,
    }
    found = values(cells, expected)
    for name, value in expected.items():
        assert np.asarray(found[name]) == pytest.approx(np.asarray(value)), name
    assert BY_NAME["batch"].digits == 3
    faster, slower = cells.bands.token_us.ratios()
    for name, low, high in (
        ("tpot_us", faster, slower), ("usd_per_million_tokens", faster, slower), ("itl_us", faster, slower),
        ("tokens_per_s", 1 / slower, 1 / faster), ("tokens_per_s_per_gpu", 1 / slower, 1 / faster),
    ):  # fmt: skip
        ends = values(cells, [f"{name}_low", f"{name}_high"])
        assert ends[f"{name}_low"] == pytest.approx(found[name] * low)
        assert ends[f"{name}_high"] == pytest.approx(found[name] * high)
    name, (low, high) = "tokens_per_s_per_mw", joule_band(cells)
    ends = values(cells, [f"{name}_low", f"{name}_high"])
    assert ends[f"{name}_low"] == pytest.approx(found[name] / high)
    assert ends[f"{name}_high"] == pytest.approx(found[name] / low)


def test_energy_is_as_sure_as_a_cards_parameters_and_the_time_in_which_it_draws():
    """A step takes longer by a factor: what the kernels draw stays, what is drawn idle grows with it."""
    cells = price(SERVED, [4, 16], [SERVED.length]).by_count
    power = SERVED.gpu.power
    faster, slower = (np.abs(np.log(end)) for end in cells.bands.token_us.ratios())
    idle = np.minimum(2 * power.fit.idle_watts / cells.server_steps.watts, 1.0)
    low, high = joule_band(cells)
    assert low == pytest.approx(np.exp(-np.hypot(power.fit.error, idle * faster)))
    assert high == pytest.approx(np.exp(np.hypot(power.fit.error, idle * slower)))
    low, high = watts_band(cells)  # a longer step draws less while it runs
    assert low == pytest.approx(np.exp(-np.hypot(power.fit.error, (1 - idle) * slower)))
    most = 2 * power.limit_watts / cells.server_steps.watts
    assert high == pytest.approx(np.minimum(np.exp(np.hypot(power.fit.error, (1 - idle) * faster)), most))
    sooner, later = cells.bands.first_token.ratios()
    assert sooner == pytest.approx(np.exp(-np.hypot(faster, 0.22)))
    assert later == pytest.approx(np.exp(np.hypot(slower, 0.74)))
    assert (FIRST_TOKEN_SOONER, FIRST_TOKEN_LATER) == (0.22, 0.74)


def test_watts_are_those_of_all_gpus_over_the_time_of_a_step():
    """Without traffic a step's joules over its own time; a block has none."""
    scenario = SERVED.but(prompt_tokens=None, output_tokens=None)
    cells = price(scenario, [4], [1024]).by_count
    assert cells.server_steps.watts == pytest.approx(
        2 * watts(scenario.gpu.power, cells.steps.joules, cells.steps.time_us)
    )
    assert np.isnan(price(scenario.but(scope="block", tp=1), [4], [1024]).server_steps.watts)


def test_drafts_that_are_not_run_draw_nothing():
    """llama.cpp's p-min: a pass draws in the steps that reach it, verification for the mean of tokens."""
    whole = Scenario(
        gpu="rtx-5090", model="qwen3-8b", weight_dtype="q4_k_m", runtime="llama.cpp-cuda",
        drafter="draft-model", draft_model="qwen3-0.6b", acceptance="0.7,0.5",
    )  # fmt: skip
    early = whole.but(p_min=0.6)
    surface = price(early, [1], [1024]).by_count.surface
    (one,) = (option for option in early.options() if option.depth == 2)
    of = replace(surface.setting, drafter=one.drafter)
    sure = of.verified.sure_shares
    tokens = 1 + sure[0] + sure[0] * sure[1]
    target = verification_work(replace(of, verified=Verified()), 1, 1024, tokens)
    reading, first, second = of.drafter.work(of.shard, verify(1, 1024, 3), of.runtime)
    expected, back, draft, further = (
        float(launch_joules(whole.gpu, whole.gpu.power, work.launches))
        for work in (target, reading, first, second)
    )
    expected += back + draft + sure[0] * further
    cells = price(early, [1], [1024], [one]).by_count
    assert float(cells.steps.joules[0, 0, -1]) == pytest.approx(expected)


def test_without_traffic_those_in_flight_are_as_long_as_asked_though_not_whole():
    surface = surface_at(SERVED.but(prompt_tokens=None, output_tokens=None), [1], [100.5])
    assert surface.in_flight is surface


def test_a_server_draws_for_prompts_and_for_choosing_tokens_as_well():
    """Requests of 200 tokens: each reads its prompt and decodes for as many steps as it takes."""
    cells = price(SERVED, [4, 16], [SERVED.length]).by_count
    power, of = SERVED.gpu.power, cells.surface.setting
    assert SERVED.traffic is not None
    lengths = 2000 * log_normal(np.array([SERVED.traffic.prompt_cv]))[0]
    plain, drafting = (
        prompt_joules(power, of, lengths, drafter).mean() for drafter in (None, cells.surface.loaded_drafter)
    )
    assert plain > prompt_joules(power, of, 2000)  # attention grows with the square of a length
    prompt = np.where(cells.candidates > 1, drafting, plain)
    prompts = cells.batch * prompt
    chosen = sampling_joules(power, of, cells.batch * cells.candidates)
    steps = cells.server_steps.steps
    decode_steps = steps.surface.decode_steps[steps.index]
    joules = decode_steps * (steps.joules + chosen) + prompts
    assert float(prompts.min()) > float(np.max(decode_steps * chosen)) >= 0.0
    expected = 2 * watts(power, joules, cells.server.token_us * 200)
    assert cells.server_steps.watts == pytest.approx(expected)


def test_a_fixed_baseline_is_one_request_of_1024_tokens():
    scenario = TREES.but(baseline="fixed")
    cells = price(scenario, [8], [4096]).by_count
    one = float(decode_step(scenario.setting, 1, 1024).time_us)
    found = values(cells, ["baseline_overhead", "baseline_speedup"])
    assert found["baseline_overhead"] == pytest.approx(cells.steps.time_us / one)
    assert found["baseline_speedup"] == pytest.approx(cells.tokens_per_step * one / cells.steps.time_us)


@pytest.mark.parametrize("batch", [4, 256])
def test_the_pass_that_verifies_is_the_mean_one_and_no_longer_than_the_step(batch):
    """Both count the steps in which a look-up finds nothing."""
    scenario = Scenario(**{**DENSE, "drafter": "ngram", "acceptance": 0.2}, runtime="vllm-0.10")
    assert scenario.match_rate == pytest.approx(0.2 / 0.53)
    cells = price(scenario, [batch], [512], scenario.options(4)).by_count
    found = np.ravel(values(cells, ["verify_only_us"])["verify_only_us"])
    mean = [float(verification_step(scenario.setting, batch, 512, count).time_us) for count in (2, 3, 4)]
    assert found == pytest.approx([float(cells.steps.decode_us[0, 0, 0]), *mean], rel=1e-6)
    assert (found <= (1.0 + 1e-12) * np.ravel(cells.steps.time_us)).all()


# Pieces of a grid.


def test_lengths_are_priced_four_at_a_time():
    assert [(group.start, group.stop) for group in in_groups(9)] == [(0, 4), (4, 8), (8, 9)]
    assert in_groups(0) == []


@pytest.mark.parametrize(
    ("counts", "rows", "steps", "pieces"),
    [
        (5, 1000, (66, 3), 2),  # 15 rows a batch: 66 batches in 1,000 rows
        (5, 15, (1, 3), 100), (5, 14, (1, 2), 200), (5, 4, (1, 1), 300),  # whole batches, then some lengths
    ],
)  # fmt: skip
def test_a_piece_is_whole_batches_or_one_batch_with_some_lengths(counts, rows, steps, pieces):
    slices = Slices.of(Grid.of(range(1, 101), [128, 256, 512], [1]), counts, rows)
    assert (slices.batch_step, slices.length_step) == steps
    assert slices.count == pieces
    first, last = slices.at(0), slices.at(pieces - 1)
    assert (first[0].start, first[1].start) == (0, 0)
    assert (last[0].start + steps[0] >= 100, last[1].start + steps[1] >= 3) == (True, True)


def test_a_search_that_is_too_large_is_refused():
    """16 million batches at one length in 4 configurations are 64 million cells, 15 million are not."""
    options = TREES.but(acceptance=0.7).options(4)
    assert Configurations(options).candidates.size == 4
    for million, fits in ((15, True), (16, False)):
        batch = np.broadcast_to(np.int64(1), million * 10**6)
        if fits:
            assert surface_at(TREES, batch, [1], options).shape == (million * 10**6, 1)
        else:
            with pytest.raises(UsageError, match="too many"):
                surface_at(TREES, batch, [1], options)


def test_a_block_keeps_nothing_in_memory():
    cells = price(TREES.but(scope="block"), [1], [64])
    assert np.unique(cells.max_batch).tolist() == [NO_LIMIT] == [2**40]


def test_configurations_are_found_by_how_they_draft_and_how_many():
    """Chains of one to three drafts: sizes of a chain are the chains; plain decoding is the first."""
    scenario = TREES.but(drafter="eagle", acceptance="0.7,0.5,0.3", chain_only=True, max_drafts=3)
    of = Configurations(scenario.options())
    assert of.candidates.tolist() == [1, 2, 3, 4]
    assert of.depth.tolist() == [0, 1, 2, 3]
    assert of.option.tolist() == [-1, 0, 1, 2]
    assert of.tokens_per_step.tolist() == pytest.approx([1.0, 1.7, 2.2, 2.5])
    assert [half[0] for half in of.token_halves] == [0.0, 0.0]  # a plain step emits one for certain
    assert of.with_count.tolist() == [[0], [1], [2], [3]]
    assert of.sizes_of(2).tolist() == [1, 2, 3]
    assert [of.find(option, int(option.candidates[0])) for option in of.options] == [1, 2, 3]
    assert of.find(None, 1) == 0
    with pytest.raises(ValueError, match="one size"):
        of.sizes_of(0)
    trees = Configurations(TREES.options(8))
    (one,) = {trees.option_of(place) for place in trees.sizes_of(1)}
    assert one is trees.options[0]
    assert [trees.find(one, count) for count in one.candidates] == trees.sizes_of(1).tolist()
    # of counts that several options have, the rows are filled up with their first
    for row, count in zip(trees.with_count, trees.counts, strict=True):
        assert set(trees.candidates[row]) == {count}


def test_an_engine_with_an_idle_drafter_pays_one_pass_and_the_hidden_host():
    """Beside the plain step: the pass that keeps the drafter's state, of the shortest chain."""
    scenario = Scenario(**DENSE, runtime="vllm")
    surface = surface_at(scenario, [1, 8], [1024], scenario.options(4))
    shortest = min(
        range(len(surface.configurations.options)), key=lambda i: surface.configurations.options[i].depth
    )
    loaded = surface.setting.runtime.drafting("eagle3")

    plain = decode_step(replace(surface.setting, runtime=loaded), surface.batch[:, None, None], 1024).time_us
    expected = (plain + surface.drafting[shortest].time_us)[:, 0, 0] / surface.decode.time_us[:, 0, 0] - 1.0
    assert surface.idle_share[:, 0] == pytest.approx(expected)
    assert (surface.idle_share > 0.0).all()
    looked_up = surface_at(scenario.but(drafter="ngram", acceptance=0.5), [1], [64])
    assert looked_up.idle_share.tolist() == [[0.0]]
    assert surface_at(TREES.but(acceptance=0.5), [1], [64]).idle_share.tolist() == [[0.0]]


@pytest.mark.parametrize(("searched", "max_drafts", "ends"), [(8, 16, True), (3, 16, False), (8, 3, False)])
def test_an_acceptance_ends_where_no_longer_draft_is_described(searched, max_drafts, ends):
    """Rates of three drafts end at four candidates, unless the search or a limit on drafts ended before."""
    scenario = Scenario(**DENSE, runtime="cuda-graph", chain_only=True, max_drafts=max_drafts)
    assert surface_at(scenario, [1], [64], scenario.options(searched)).search_ends_profile is ends
    assert not surface_at(scenario, [1], [64], ()).search_ends_profile


def test_cells_that_are_the_same_everywhere_have_one_index():
    cells = Cells.every(price(SERVED, [1, 4], [512, 1024]).surface)
    same = np.broadcast_to(np.array([0, 2]), (2, 2, 2))
    assert cells.with_index(same).index.tolist() == [[[0, 2]]]
    by_batch = np.array([[[0], [0]], [[1], [1]]])
    assert cells.with_index(by_batch).index.tolist() == [[[0]], [[1]]]
    by_length = np.array([[[0], [1]], [[0], [1]]])
    assert cells.with_index(by_length).index.tolist() == [[[0], [1]]]
    assert cells.with_index(cells.index) is cells


def test_entries_of_a_table_are_those_that_an_index_names():
    table = np.arange(12).reshape(2, 2, 3)
    index = np.array([[[0], [1]], [[2], [0]]])
    assert picked(table, index).tolist() == [[[0], [4]], [[8], [9]]]
    assert picked(table, np.array([[[2, 0]]])).tolist() == [[[2, 0], [5, 3]], [[8, 6], [11, 9]]]
    assert picked(table, np.arange(3)[None, None]) is table
    assert picked(table[..., :1], index).tolist() == table[..., :1].tolist()


def test_kernels_of_a_step_are_no_surer_than_the_least_sure_of_drafting_and_verifying():
    steps = SimpleNamespace(
        drafting=lambda number: np.array([0, 3, 1]), target=lambda number: np.array([2, 1, 1], np.int8)
    )
    assert Steps.source.func(steps).tolist() == [2, 3, 1]


@pytest.mark.parametrize(("count", "drafts"), [(1, 0), (2, 1), (3, 2)])
def test_a_step_of_so_many_candidates_drafts_one_fewer(count, drafts):
    step = single_step(SERVED, 4, 512, count)
    assert (step.candidates, step.cells.configurations.depth[step.cells.index[0, 0, step.k]]) == (
        count,
        drafts,
    )


def test_edges_of_batches_come_before_those_of_lengths():
    class Made:
        def _at_least(self, axis: int, halves_of: Any) -> Any:
            return axis, halves_of(self)

    assert Bands.widened(Made(), lambda bands: "own") == (1, (0, "own"))  # type: ignore[arg-type]


def test_ends_of_a_step_and_half_of_a_band_on_the_logarithm():
    """100 us from 80 to 150; a speedup of 1.2 and of 2 in their own bands, of one count or of two."""
    steps = SimpleNamespace(time_us=np.array([[[100.0, 200.0]]]))
    found = Bands.step_us.fget(SimpleNamespace(steps=steps, step=Halves(np.log(1.25), np.log(1.5))))
    assert found.low == pytest.approx(np.array([[[80.0, 160.0]]]))
    assert found.high == pytest.approx(np.array([[[150.0, 300.0]]]))
    half = Band(np.array([0.9, 1.8]), np.array([1.6, 2.1])).half
    assert half == pytest.approx(np.log([1.6 / 0.9, 2.1 / 1.8]) / 2)


@pytest.mark.parametrize(
    ("measured", "asked", "edges"),
    [(1, 5, [1, 2, 4]), (1, 4, [1, 2]), (1, 1, []), (0, 5, []), (3, 12, [3, 6]), (3, 13, [3, 6, 12])],
)
def test_edges_double_below_what_is_asked_most(measured, asked, edges):
    assert edges_below(measured, np.array([1, asked])[::-1]).tolist() == edges


def test_a_roof_is_memory_up_to_its_ridge_and_arithmetic_beyond():
    roof = Roof(peak_flops_per_s=900.0, bandwidth_bytes_per_s=3.0)
    assert roof.ridge == 300.0
    assert [roof.flops_per_s(each) for each in (2.0, 299.0, 300.0, 301.0)] == [6.0, 897.0, 900.0, 900.0]


@pytest.mark.parametrize(("verify", "found"), [(7.0, [5.0, 7.0, 7.0]), (5.0, [5.0, 5.0, 5.0])])
def test_a_steps_target_is_the_plain_step_and_then_verification(verify, found):
    counts = SimpleNamespace(counts=np.arange(1, 4), column=np.arange(3))
    surface = SimpleNamespace(decode=np.array(5.0), verify=np.array(verify), configurations=counts)
    of_all = Steps(surface, np.arange(3).reshape(1, 1, 3))
    assert np.broadcast_to(of_all.target(lambda time: time), 3).tolist() == found
    surface.configurations = SimpleNamespace(counts=np.ones(1))
    assert Steps(surface, np.zeros((1, 1, 1), dtype=int)).target(lambda time: time) == 5.0


def test_points_of_the_roofline_lie_under_the_roof_at_the_tokens_of_their_phase():
    gpu, runtime = load_gpu("h100-sxm"), load_runtime("cuda-graph")
    grid = Grid.of([1, 64], [128, 2048], [1, 4, 64])
    points = roofline_points(RooflineLatency(gpu), gpu, load_model("llama-3.1-8b"), runtime, grid).to_pandas()
    linear = points[points["op"].str.endswith("_proj")]
    intensity, roof = linear["flops"] / linear["bytes"], roof_of(gpu, "bf16")
    assert roof.ridge == pytest.approx(gpu.peak("bf16") / gpu.bandwidth_bytes_per_s)
    told = np.minimum(gpu.peak("bf16"), intensity * gpu.bandwidth_bytes_per_s)
    assert [roof.flops_per_s(each) for each in intensity] == pytest.approx(told)
    for name in ("flops_per_s", "roofline_flops_per_s"):
        assert linear[name].to_numpy() == pytest.approx(told)
    tokens = {phase: set(rows["query_tokens"]) for phase, rows in points.groupby("phase")}
    assert tokens == {"prefill": {128, 2048}, "decode": {1}, "verify": {1, 4, 64}}
    of_one = points[points["op"] == "down_proj"].groupby("phase").size().to_dict()
    assert of_one == {"prefill": 4, "decode": 4, "verify": 12}


def test_of_ways_of_drafting_that_give_the_same_the_first_is_taken():
    """Both take 12 us for two tokens: the second is taken where it is quicker, or the first has no room."""
    for step_us, fits, taken in (
        ([10, 12, 12], [1, 1, 1], 1),
        ([10, 12, 11], [1, 1, 1], 2),
        ([10, 12, 12], [1, 0, 1], 2),
    ):
        configurations = SimpleNamespace(
            with_count=np.array([[0, 0], [1, 2]]), candidates=np.array([1, 2, 2]),
            option=np.array([-1, 0, 1]), tokens_per_step=np.array([1.0, 2.0, 2.0]),
        )  # fmt: skip
        cells = SimpleNamespace(
            configurations=configurations, index=np.zeros((1, 1, 3)), surface=None,
            steps=SimpleNamespace(time_us=np.array([[step_us]], dtype=float)),
            fits=np.array([[fits]], dtype=bool), with_index=lambda index: index,
        )  # fmt: skip
        assert Cells.by_count.__get__(cells, Cells).tolist() == [[[0, taken]]]


def test_plain_decoding_alone_emits_one_token():
    alone = price(Scenario(model="llama-3.1-8b", latency="roofline"), [1], [512], []).configurations
    assert alone.emission_chances.tolist() == [[1.0]]
    assert alone.counts.tolist() == [1]


def test_what_is_left_out_is_nothing_but_for_these():
    """Factors and counts are one, sizes those that most have."""
    assert numbers_left_out("grid") == {
        "Quantity.digits": 3,
    }


def test_the_best_cell_of_a_length_is_of_no_other():
    cells = price(SERVED, [1, 8], [512, 4096])
    worth = np.zeros(cells.fits.shape)
    worth[1, 1, 2], worth[0, 0, 1] = 2.0, 1.0
    allowed = np.ones(worth.shape, dtype=np.bool_)
    found = [best_cell(cells, allowed, worth, s) for s in (0, 1, None)]
    assert [(cell.b, cell.s, cell.k) for cell in found] == [(0, 0, 1), (1, 1, 2), (1, 1, 2)]
    assert best_cell(cells, ~allowed, worth) is None


def test_an_interval_is_its_ratios_times_the_value():
    fields = with_band(lambda cells: np.array([2.0, 4.0]), lambda cells: (0.5, 1.5))
    low, high = fields["low_high"](None)
    assert (low.tolist(), high.tolist()) == ([1.0, 2.0], [3.0, 6.0])


@pytest.mark.parametrize("batches", [[1], [1, 64], [3, 200]])
def test_steps_of_fewer_requests_are_known_from_one_to_the_most_in_steps_of_a_quarter(batches):
    few = price(SERVED, batches, [512]).surface.fewer_requests.batch
    assert few[0] == 1
    assert few[-1] >= batches[-1]
    assert np.all(np.diff(few) <= np.maximum(0.25 * few[:-1] + 1.0, 1.0))


def test_no_tile_is_charged_whose_edge_lies_between_all_requests_and_those_that_run():
    """A hundredth more acceptance, or 2 % more prompt, moved the throughput of these by 5 %."""
    given = {"gpu": "a100-80gb-sxm", "model": "qwen3-32b", "runtime": "vllm", "tp": 2, "drafter": "eagle3"}
    less, more, longer = (
        price(
            Scenario(**given, acceptance=rate, prompt_tokens=prompt, output_tokens=256), [214, 271], [640]
        ).by_count.tokens_per_s[:, 0, 2]
        for rate, prompt in ((0.85, 512), (0.86, 512), (0.86, 522))
    )
    assert np.all((more / less > 1.0) & (more / less < 1.01))
    assert np.all((longer / more > 0.97) & (longer / more < 1.0))


def test_no_tile_falls_on_the_mean_number_of_drafts_that_are_found():
    """Three more of 430 to 560 requests that look drafts up: time per token wobbled by 4 to 10 %."""
    scenario = Scenario(
        gpu="a100-80gb-sxm", model="llama-3.1-8b", runtime="vllm", drafter="ngram", prompt_tokens=64,
        output_tokens=64,
    )  # fmt: skip
    tpot_us = price(scenario, range(430, 560, 3), [96]).by_count.server.tpot_us[:, 0, 3]
    assert np.diff(np.log(tpot_us)).min() > -0.015


def test_surfaces_share_verification_where_they_verify_as_many_tokens_as_often():
    """A look-up that finds nothing in half of the steps verifies in fewer of them."""
    same = {"gpu": "h100-sxm", "model": "llama-3.1-8b", "runtime": "vllm", "max_drafts": 3, "acceptance": 0.7}
    eagle, other, looks_up = (
        price(Scenario(**same, drafter=name), [1], [512]).surface for name in ("eagle3", "p-eagle", "ngram")
    )
    assert eagle._verifies_as(other)
    assert not eagle._verifies_as(looks_up)
