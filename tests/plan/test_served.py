"""A scenario in an engine: traffic of a server, look-ups that match, trees, the limit beside the answer."""

import math
import re
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numbers_in_text import numbers

import medusa_sim as ms
from medusa_sim.doubts.of_answer import length_doubts
from medusa_sim.doubts.of_scenario import grave_doubts, scenario_doubts
from medusa_sim.engines.runtime import load_runtime, runtime_names
from medusa_sim.errors import UsageError
from medusa_sim.grid.axes import Grid
from medusa_sim.grid.cells import price
from medusa_sim.grid.quantities import BY_COUNT, OF_SCENARIO, SWEEP
from medusa_sim.grid.quantity import BY_NAME
from medusa_sim.grid.sweep import count_table, sweep
from medusa_sim.plan.recommend import recommend
from medusa_sim.plan.sweep_answer import sweep_answer
from medusa_sim.report.quantity_table import quantity_text
from medusa_sim.report.recommend.python import recommendation_values, row_values
from medusa_sim.report.recommend.sentences import step_text
from medusa_sim.report.sweep.screen import best_table
from medusa_sim.report.sweep.sentences import better_text
from medusa_sim.scenario.question import Question
from medusa_sim.scenario.scenario import Scenario

COMMON = {"gpu": "h100-sxm", "model": "llama-3.1-8b"}
CHAIN = {**COMMON, "drafter": "eagle", "acceptance": 0.7}


def swept(scenario: Scenario, batch: tuple[int, ...] = (1, 16, 64), **axes: tuple[int, ...]) -> pd.DataFrame:
    grid = Grid.of(batch, axes.get("seq_len", (512,)), axes.get("candidates", (1, 2, 4)))
    return pd.concat([table.pandas() for table in sweep([scenario], grid)], ignore_index=True)


def test_throughput_is_that_of_decode_steps_and_kernels_alone_wait_for_nothing_else():
    # a server filters top-p and top-k: without requests no column holds that
    for runtime in ("vllm-0.11", "cuda-graph"):
        rows = swept(Scenario(**CHAIN, runtime=runtime))
        rate = rows.batch * rows.tokens_per_step / rows.verify_step_us * 1e6
        np.testing.assert_allclose(rows.tokens_per_s, rate)
        np.testing.assert_allclose(rows.itl_us, rows.verify_step_us)
        np.testing.assert_allclose(rows.tpot_us, rows.verify_step_us / rows.tokens_per_step)
        assert rows.server_speedup.isna().all()


def test_traffic_changes_the_server_and_leaves_the_step_alone():
    alone = swept(Scenario(**CHAIN, runtime="vllm-0.11"))
    busy = swept(Scenario(**CHAIN, runtime="vllm-0.11", prompt_tokens=1024, output_tokens=256))
    for column in ("decode_step_us", "verify_step_us", "overhead", "step_speedup"):
        np.testing.assert_array_equal(alone[column], busy[column])
    assert (busy.memory_bytes > alone.memory_bytes).all()  # a request in flight is longer than the mean
    assert (busy.tpot_us[busy.batch > 1] > alone.tpot_us[busy.batch > 1]).all()
    np.testing.assert_allclose(busy.tokens_per_s_per_user, 1e6 / busy.tpot_us)
    # prompts ride on most steps at 64 requests and on few at one
    gain = (busy.itl_us / alone.itl_us).groupby(busy.batch).mean()
    assert gain.is_monotonic_increasing


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"prompt_tokens": 100}, "both or neither"),
        ({"output_tokens": 100}, "both or neither"),
        ({"prompt_tokens": 0.5, "output_tokens": 100}, "prompt tokens 0.5"),
        ({"prompt_tokens": 100, "output_tokens": float("nan")}, "output tokens nan"),
        ({"match_rate": 0.5}, "no --match-rate"),
    ],
)
def test_impossible_traffic_is_refused(arguments, told):
    with pytest.raises(UsageError, match=told):
        Scenario(**CHAIN, **arguments)


def test_a_look_up_is_charged_where_it_matches():
    lookup = {**COMMON, "drafter": "ngram", "runtime": "vllm-0.10"}
    often, rarely, by_rate, never_more = (
        swept(Scenario(**lookup, acceptance=rate, match_rate=match)).verify_step_us.to_numpy()
        for rate, match in ((0.2, 1.0), (0.2, 0.2), (0.2, None), (0.9, None))
    )
    drafted = np.tile([False, True, True], 3)
    assert (rarely[drafted] < often[drafted]).all()
    assert (rarely <= by_rate).all()  # 0.2 / 0.53 of the steps match
    assert (by_rate <= often).all()
    np.testing.assert_array_equal(never_more, often)
    with pytest.raises(UsageError, match=r"match rate 1\.5"):
        Scenario(**lookup, acceptance=0.2, match_rate=1.5)


def test_engines_without_tree_attention_draft_chains_with_their_own_drafters_alone():
    medusa = {"model": "vicuna-7b", "drafter": "medusa"}
    assert Scenario(**medusa, runtime="vllm").chain_only
    assert all(option.chain for option in Scenario(**medusa, runtime="vllm").options())
    assert not Scenario(**medusa, runtime="vllm", chain_only=False).chain_only
    assert not Scenario(**medusa, runtime="cuda-graph").chain_only
    assert Scenario(**medusa, runtime="cuda-graph", chain_only=True).chain_only
    with pytest.raises(UsageError, match=r"sglang-0\.5 runs no medusa drafter; it has: .*eagle"):
        Scenario(runtime="sglang", drafter="medusa")


def test_the_limit_stands_beside_the_answer_of_an_engine_and_kernels_alone_are_their_own():
    scenario = Scenario(**CHAIN, runtime="vllm")
    answer = recommend(scenario, Question(batch_max=32, seq_len=(1024,)))
    row = answer.schedule[0]
    priced = price(scenario, [row.batch_max], [row.seq_len], scenario.options()).by_count
    alone = priced.with_kernels_alone
    assert alone.surface.setting.runtime.library == scenario.runtime.library
    place = int(np.flatnonzero(alone.candidates[0, 0] == row.candidates)[0])
    assert row.kernels_speedup == pytest.approx(float(alone.step_speedup[0, 0, place]))
    found = sweep_answer(scenario, Grid.of([row.batch_max], [row.seq_len], [1, row.candidates]))
    if found.column("candidates")[0] == row.candidates:  # a sweep says the same
        assert found.column("kernels_speedup")[0] == pytest.approx(row.kernels_speedup)
    assert f"{row.kernels_speedup:.2f}x with the kernels alone" in step_text(answer, row)
    values = recommendation_values(answer)["schedule"][0]
    assert values["kernels_speedup"] == row.kernels_speedup
    assert values["itl_us"] >= row.verify_step_us
    scenario = Scenario(**CHAIN, runtime="cuda-graph")
    assert price(scenario, [1], [512]).with_kernels_alone is None
    answer = recommend(scenario, Question(batch_max=4))
    assert answer.schedule[0].kernels_speedup is None
    assert step_text(answer, answer.schedule[0]) == ""


def test_a_plain_row_is_as_fast_as_plain_decoding_whatever_the_best_drafts_would_gain():
    """Speedups of a row are those of what it runs; `speculative_` ones those of the best that it could."""
    scenario = Scenario(**COMMON, drafter="eagle", acceptance=0.3, runtime="vllm", prompt_tokens=2000,
                        output_tokens=300)  # fmt: skip
    answer = recommend(scenario, Question(batch_max=256))
    (row, *_) = [row for row in answer.schedule if row.candidates == 1]
    assert row.speculative_speedup != 1.0
    for name in ("speedup", "step_speedup", "server_speedup", "kernels_speedup"):
        assert row_values(row)[name] == pytest.approx(1.0), name


@pytest.mark.parametrize("asked", [{}, {"prompt_tokens": 2000, "output_tokens": 300}], ids=["step", "server"])
def test_two_speedups_have_one_name_in_every_command(asked):
    """`step_speedup` and `server_speedup` in rows of a sweep, of a schedule and by count; without requests
    a server has none."""
    scenario = Scenario(**CHAIN, runtime="vllm", **asked)
    found = recommend(scenario, Question(batch_min=8, batch_max=8, seq_len=(2150,)))
    (row,) = recommendation_values(found)["schedule"]
    counts = count_table(found.cells.by_count).to_pandas().set_index("candidates").loc[row["candidates"]]
    rows = swept(scenario, batch=(8,), seq_len=(2150,), candidates=(row["candidates"],)).iloc[0]
    for name in ("step_speedup", "server_speedup"):
        of = [math.nan if each[name] is None else float(each[name]) for each in (row, rows, counts)]
        assert of == pytest.approx([of[0]] * 3, nan_ok=True)
        assert math.isnan(of[0]) == (name == "server_speedup" and not asked)
    assert row["speedup"] == (row["server_speedup"] or row["step_speedup"])


def test_a_recommendation_with_prompts_is_that_of_the_server_and_names_the_step():
    asked, lengths = {"prompt_tokens": 1024, "output_tokens": 256}, (1152, 1500)
    scenario = Scenario(**CHAIN, runtime="vllm", **asked)
    found = recommend(scenario, Question(batch_max=64, seq_len=lengths))
    every = swept(scenario, seq_len=lengths, candidates=tuple(range(1, 17)))
    every = every.set_index(["seq_len", "batch", "candidates"])
    for length, batch in product(lengths, (1, 16, 64)):
        rows = every.loc[length]
        row = found.scheduled_row_at(batch, length)
        swept_row, plain = rows.loc[(batch, row.candidates)], rows.loc[(batch, 1)]
        for name in (
            "speedup", "speedup_low", "speedup_high", "server_speedup", "step_speedup", "tpot_us", "itl_us",
            "tokens_per_s", "watts", "joule_per_token",
        ):  # fmt: skip
            assert getattr(row, name) == pytest.approx(swept_row[name]), name
        assert row.plain_tokens_per_s == pytest.approx(plain.tokens_per_s)
        assert row.plain_watts == pytest.approx(plain.watts)
        assert row.best_speedup == pytest.approx(rows.loc[batch].speedup.max())
        assert 1.0 < row.speedup < row.step_speedup
        assert row.tokens_per_step / row.required_tokens_per_step > row.speedup  # beside it all else stays
    last = max(found.schedule, key=lambda row: (row.batch_max, -row.seq_len))
    assert f"{last.step_speedup:.2f}x" in step_text(found, last)
    request = recommend(Scenario(**CHAIN, runtime="vllm"), Question(batch_max=64, request=(1024, 256)))
    alike = recommend(scenario, Question(batch_max=64)).schedule[0]
    assert row_values(request.schedule[0]) == row_values(alike)


@pytest.mark.parametrize("traffic", [{}, {"prompt_tokens": 512, "output_tokens": 256}], ids=str)
def test_a_name_has_one_meaning_in_schedule_curve_and_sweep(traffic):
    """`--by-count` called the step's gain `speedup` where the schedule's rows called the server's so."""
    scenario = Scenario(**CHAIN, **traffic)
    found = recommend(scenario, Question(batch_min=16, batch_max=16, seq_len=(scenario.length,)))
    (row,) = found.schedule
    curve = count_table(found.cells.by_count).to_pandas().set_index("candidates").loc[row.candidates]
    (rows,) = sweep([scenario], Grid.of([16], [scenario.length], [1, row.candidates]))
    swept_row = rows.pandas().set_index("candidates").loc[row.candidates]
    assert row.speedup == pytest.approx(curve.speedup)
    assert row.step_speedup == pytest.approx(curve.step_speedup) == pytest.approx(swept_row.step_speedup)
    if traffic:
        assert row.speedup == pytest.approx(swept_row.speedup) == pytest.approx(swept_row.server_speedup)
        assert row.speedup < row.step_speedup
    else:
        assert np.isnan(swept_row.server_speedup)
        assert row.speedup == row.step_speedup


def test_every_column_is_explained():
    page = (Path(__file__).resolve().parents[2] / "docs" / "guide.md").read_text(encoding="utf-8")
    explained = set(
        re.findall(r"`([a-z_]+)`", page.partition("What the columns of rows mean")[2].partition("## ")[0])
    )
    own = {name for name in (*SWEEP, *BY_COUNT) if name not in OF_SCENARIO}
    assert own - {"batch", "seq_len"} <= explained


def test_a_request_waits_for_the_prompts_of_others_and_the_rate_for_every_prompt():
    """A lone request's prompt was in its time per token, so that `check` found a right engine too fast."""
    asked = {"prompt_tokens": 4000, "output_tokens": 200}
    alone = swept(Scenario(**CHAIN), seq_len=(4100,), batch=(1,))
    busy = swept(Scenario(**CHAIN, **asked), seq_len=(4100,))
    # its own prompt, read once, on steps that others make longer
    own_us = (200 * 1e6 * busy.batch / busy.tokens_per_s - 199 * busy.tpot_us).groupby(busy.candidates)
    assert own_us.apply(lambda values: values.is_monotonic_increasing).all()
    assert (own_us.min() > 0.05e6).all()
    one = busy[busy.batch == 1].reset_index()
    # a request in flight is longer, and tokens are sampled
    np.testing.assert_allclose(one.tpot_us, alone.tpot_us, rtol=2e-2)
    load = ms.Scenario(**CHAIN).simulate(
        ["none", "1"], users=1, requests=60, length_cv=0, seeds=1, search=False, **asked
    )
    np.testing.assert_allclose(1e6 * load.frame.tpot_mean_s, one.tpot_us[:2], rtol=0.02)
    np.testing.assert_allclose(load.frame.tokens_per_s, one.tokens_per_s[:2], rtol=0.03)


def test_contexts_beyond_those_of_the_acceptance_are_shown_once():
    def told(lines):
        return sum("measured to contexts of 1024 tokens" in line for line in lines)

    known = Scenario(**COMMON, drafter="eagle3", runtime="vllm")
    assert [told(length_doubts(known, tokens)) for tokens in (1075, 1076)] == [0, 1]
    busy = known.but(prompt_tokens=1100, output_tokens=100)
    assert (told(scenario_doubts(busy)), told(length_doubts(busy, 4096))) == (1, 0)
    assert not told(scenario_doubts(known))
    # requests of a known length behind a cached prefix that is longer
    cached = known.but(prompt_tokens=500, output_tokens=100)
    assert (told(scenario_doubts(cached)), told(length_doubts(cached, 4096))) == (0, 1)
    assert told(grave_doubts(busy)) == 1  # it may overturn the answer: among the first that are shown
    assert not length_doubts(Scenario(**CHAIN), 8192)  # nobody said


def test_a_server_gains_less_than_its_steps_and_both_are_named():
    asked = {**CHAIN, "runtime": "vllm", "prompt_tokens": 2048, "output_tokens": 256}
    rows = swept(Scenario(**asked), batch=(1, 32, 256))
    rate = rows.groupby("batch").tokens_per_s.transform("first")
    np.testing.assert_allclose(rows.server_speedup, rows.tokens_per_s / rate)
    drafted = rows[rows.candidates > 1]
    # at 256 requests a round loses since drafting costs 0.14's 23.9 us a request: prompts dilute that too
    gains = drafted.step_speedup > 1.0
    assert set(drafted.batch[gains]) >= {1, 32}
    assert (drafted.server_speedup < drafted.step_speedup)[gains].all()
    assert (drafted.server_speedup < 1.0)[~gains].all()
    assert (drafted.speedup == drafted.server_speedup).all()
    assert (drafted.speedup_low < drafted.speedup).all()
    assert (drafted.speedup < drafted.speedup_high).all()


@pytest.mark.parametrize("traffic", [{}, {"prompt_tokens": 2048, "output_tokens": 256}])
def test_the_first_line_of_a_sweep_is_a_row_of_its_file(traffic):
    scenario = Scenario(**CHAIN, runtime="vllm", **traffic)
    grid = Grid.of([1, 64], [512], range(1, 17))
    found, rows = sweep_answer(scenario, grid), swept(scenario, (1, 64), candidates=tuple(range(1, 17)))
    for case, (gain, low, high) in enumerate(found.gains):
        of_batch = rows[rows.batch == grid.batch[case]]
        row = of_batch.loc[of_batch.speedup.idxmax()]
        assert (row.speedup, row.speedup_low, row.speedup_high) == pytest.approx((gain, low, high))
        assert row.tokens_per_s == pytest.approx(found.column("tokens_per_s")[case])
    assert (BY_NAME["step_speedup"].title in best_table(found).headers) is bool(traffic)


@pytest.mark.parametrize("counts", [[4], [6, 12], [1, 4]], ids=str)
def test_a_sweep_of_given_counts_answers_about_these_and_names_the_best_of_all(counts):
    scenario = Scenario(**CHAIN, runtime="vllm", latency="roofline")
    grid = Grid.of([1, 64, 512], [512], counts)
    found, best = sweep_answer(scenario, grid, grid_alone=True), sweep_answer(scenario, grid)
    rows = swept(scenario, (1, 64, 512), candidates=tuple(counts))
    chosen = rows.loc[rows.groupby("batch").speedup.idxmax()]
    assert found.column("candidates").tolist() == chosen.candidates.tolist()
    assert [gain for gain, _, _ in found.gains] == pytest.approx(chosen.speedup.tolist())
    assert all(set(ends) <= {1, *counts} for ends in found.near_best)
    assert found.column("candidates", found.best_of_all).tolist() == best.column("candidates").tolist()
    others = (found.best_of_all.candidates != found.best.candidates).any()
    assert (numbers(better_text(found)) != []) == others
    assert better_text(best) == ""
    pays = found.break_evens[0].is_drafting(grid.batch)
    assert (pays <= (chosen.speedup.to_numpy() > 1.0)).all()


@pytest.mark.parametrize(
    "more", [{}, {"baseline": "fixed"}, {"prompt_tokens": 2048, "output_tokens": 256}], ids=str
)
def test_a_heading_of_a_sweeps_table_has_the_numbers_of_its_column(more):
    scenario = Scenario(**CHAIN, runtime="vllm", **more)
    table = best_table(sweep_answer(scenario, Grid.of([1, 64], [512], range(1, 17))))
    rows = swept(scenario, (1, 64), candidates=tuple(range(1, 17))).set_index(["batch", "candidates"])
    names = {quantity.title: name for name, quantity in BY_NAME.items() if name in rows and quantity.title}
    told = [name for title in table.headers if (name := names.get(title))]
    assert {"baseline_speedup" if "baseline" in more else "speedup", "tokens_per_step"} <= {*told}
    for line in (dict(zip(table.headers, row, strict=True)) for row in table.rows):
        row = rows.loc[(int(line["batch"]), int(line["candidates"]))]
        for name in set(told) - {"bound"}:
            assert line[BY_NAME[name].title] == quantity_text(name, row[name].item()), name


ENGINES = [name for name in runtime_names() if load_runtime(name).engine is not None]


@pytest.mark.parametrize("runtime", ENGINES)
@pytest.mark.parametrize(
    "where",
    [
        {"gpu": "h100-sxm", "model": "llama-3.1-8b"},
        {"gpu": "a100-80gb-pcie", "model": "vicuna-7b"},
        {"gpu": "h200-sxm", "model": "deepseek-r1", "tp": 8},
        {"gpu": "h100-sxm", "model": "qwen3-30b-a3b"},
    ],
    ids=lambda where: str(where["model"]),
)
def test_no_engine_beats_its_own_kernels(runtime, where):
    drafter = ("eagle3", "ngram")[(ENGINES.index(runtime) + len(where["model"])) % 2]
    scenario = Scenario(**where, runtime=runtime, drafter=drafter, acceptance=0.7, chain_only=True)
    engine = price(scenario, [1, 8, 33, 300], [512, 8192])
    alone = engine.with_kernels_alone
    assert (engine.steps.decode_us >= alone.steps.decode_us * (1.0 - 1e-12)).all()
    assert (engine.steps.time_us >= alone.steps.time_us * (1.0 - 1e-12)).all()


def test_time_per_token_grows_with_requests_where_every_step_carries_prompts():
    """At 1,737 requests prompts fill further steps, in which few requests decode."""
    asked = {"gpu": "a100-80gb-pcie", "model": "mistral-7b-v0.2", "tp": 8, "runtime": "sglang-0.4"}
    scenario = Scenario(**asked, drafter="eagle", prompt_tokens=896, output_tokens=256)
    cells = price(scenario, [1024, 1654, 1737, 1823], [scenario.length])
    assert cells.fits.all()
    for quantity in (cells.server.token_us, cells.server.tpot_us):
        assert (quantity > 0.0).all()
        assert (np.diff(np.broadcast_to(quantity, cells.shape), axis=0) > 0.0).all()
    assert np.isfinite(cells.speedup_band).all()
