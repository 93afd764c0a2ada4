"""Set-ups compared: the rows are those of `sweep`, the frontier is one, limits and copies hold."""

import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import medusa_sim as ms
from medusa_sim.doubts.of_scenario import scenario_doubts
from medusa_sim.errors import SpecError, UsageError
from medusa_sim.grid.cells import price
from medusa_sim.report.compare.python import with_warnings
from medusa_sim.report.compare.screen import warnings
from medusa_sim.setups.comparison import on_frontier
from medusa_sim.setups.quantities import COMPARE
from medusa_sim.setups.question import BATCHES, SURE, SetupChoices, SetupQuestion
from medusa_sim.setups.search import NothingRunsError, compare, together
from medusa_sim.setups.setup import SET_UP

DENSE = {
    "model": "llama-3.1-8b", "gpus": ("h100-sxm", "a100-80gb-sxm"), "counts": (1, 2),
    "engines": ("vllm", "sglang"), "drafters": ("none", "eagle3"), "prompt_tokens": 600, "output_tokens": 300,
}  # fmt: skip


@pytest.fixture(scope="module")
def dense() -> ms.CompareResult:
    return ms.compare(**DENSE, tokens_per_s_per_user=60)


@pytest.fixture(scope="module")
def experts() -> ms.CompareResult:
    return ms.compare(
        "deepseek-r1", gpus=("h200-sxm", "b200"), counts=8, engines="sglang", drafters=("none", "mtp"),
        weight_dtypes=("fp8_block", "nvfp4"), batches=(4, 64), prompt_tokens=900, output_tokens=900,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"acceptance": "1.5"}, "acceptance rate 1.5"), ({"price": 0.0}, "price 0"),
        ({"price": {"h100-sxm": -1.0}}, "price -1"), ({"workload": "zz"}, "unknown workload"),
        ({"kv_dtypes": ("zz",)}, "unknown kv dtype"), ({"draft_model": "zz"}, "unknown model"),
        ({"draft_runtime": "zz"}, "unknown runtime"),
    ],
)  # fmt: skip
def test_what_no_set_up_could_make_good_is_refused_as_itself(wrong, told):
    """Each of 612 set-ups was refused for it, and the first of them was told."""
    with pytest.raises((UsageError, SpecError), match=f"^{told}"):
        ms.compare(**DENSE, **wrong)


@pytest.mark.parametrize("name", ["dense", "experts"])
def test_a_row_is_the_row_of_a_sweep(name, request):
    found: ms.CompareResult = request.getfixturevalue(name)
    question = found.answer.question
    for row in found.table.sample(8, random_state=1).to_dict("records"):
        scenario = found.answer.scenario(row)
        # with no kernel's time that other set-ups asked for
        alone = ms.Scenario(**{**scenario.arguments.values, "latency": "calibrated"})
        again = alone.sweep(row["batch"], question.seq_len, row["drafts"] + 1)
        swept = again.iloc[0]
        assert row["drafts"] == swept.drafts
        assert bool(swept.fits_memory)
        for ours, theirs, scale in (
            ("tpot_ms", "tpot_us", 1e-3),
            ("tokens_per_s_per_user", "tokens_per_s_per_user", 1.0),
            ("tokens_per_s_per_gpu", "tokens_per_s", 1.0 / row["tp"]),
            ("usd_per_million_tokens", "usd_per_million_tokens", 1.0),
            ("joule_per_token", "joule_per_token", 1.0),
        ):
            assert row[ours] == pytest.approx(swept[theirs] * scale, rel=1e-12)


def test_requests_in_flight_are_their_rate_times_their_time(dense):
    """Little's law, but for the half step that a request waits: its prompt was counted twice."""
    table, output = dense.table, dense.answer.question.output_tokens
    in_flight = table.tokens_per_s_per_gpu * table.tp / output * table.e2e_ms / 1e3
    np.testing.assert_allclose(in_flight, table.batch, rtol=0.06)


@pytest.mark.parametrize("name", ["dense", "experts"])
def test_cost_is_as_sure_as_throughput_and_a_request_is_its_first_token_and_the_others(name, request):
    found: ms.CompareResult = request.getfixturevalue(name)
    table, output = found.table, found.answer.question.output_tokens
    paid = table.usd_per_million_tokens * table.tokens_per_s_per_gpu
    for cost, rate in (("low", "high"), ("high", "low")):
        beside = table[f"usd_per_million_tokens_{cost}"] * table[f"tokens_per_s_per_gpu_{rate}"]
        np.testing.assert_allclose(beside, paid, rtol=1e-9)
    hourly = table.gpu.map(lambda card: ms.Scenario(gpu=card, model="llama-3.1-8b").usd_per_gpu_hour)
    np.testing.assert_allclose(paid, hourly / 3600 * 1e6, rtol=1e-9)
    np.testing.assert_allclose(table.e2e_ms, table.ttft_ms + (output - 1) * table.tpot_ms, rtol=1e-9)


@pytest.mark.parametrize("name", ["dense", "experts"])
def test_nothing_beats_the_frontier_and_all_else_is_beaten(name, request):
    found: ms.CompareResult = request.getfixturevalue(name)
    table = found.table
    speed, worth = table.tokens_per_s_per_user.to_numpy(), -table.usd_per_million_tokens.to_numpy()
    for own_speed, own_worth, is_on in zip(speed, worth, table.on_frontier, strict=True):
        beaten = (
            (speed >= own_speed) & (worth >= own_worth) & ((speed > own_speed) | (worth > own_worth))
        ).any()
        assert is_on != beaten


def test_of_equal_rows_one_is_on_the_frontier():
    speed, worth = np.array([1.0, 2.0, 2.0, 3.0, np.nan]), np.array([5.0, 4.0, 4.0, 1.0, 9.0])
    assert on_frontier(speed, worth).tolist() == [True, True, False, True, False]


def test_the_chosen_keeps_the_limits_and_costs_least(dense):
    """Since set-ups are judged by their intervals, the speed must be kept with the certainty asked for."""
    for found, sure in ((dense, SURE), (dense.for_target(sure=0.5), 0.5)):
        chosen, table = found.chosen, found.table
        assert chosen is not None
        assert chosen["tokens_per_s_per_user"] >= 60
        assert chosen["sure"] >= sure
        within = table[table.sure >= sure]
        assert (within.index == table.index[table.meets_limits]).all()
        assert chosen["usd_per_million_tokens"] == within.usd_per_million_tokens.min()
        assert table.chosen.sum() == 1
    table = dense.table
    assert ((table.sure >= 0.5) == (table.tokens_per_s_per_user >= 60)).all()
    assert ((table.sure >= 0.9) == (table.tokens_per_s_per_user_low >= 60 * (1 - 1e-4))).all()
    surer = dense.answer.surer.chosen
    assert surer is not None
    assert surer["usd_per_million_tokens"] >= dense.chosen["usd_per_million_tokens"]
    assert dense.sentence.count("at least 60") == 1
    free = ms.compare(**{**DENSE, "gpus": "h100-sxm", "counts": 1}, batches=(1, 8))
    assert (free.table.sure == 1.0).all()  # where no speed is asked for, none is missed
    assert "certainty" not in free.sentence
    drafted = ms.compare(**{**DENSE, "gpus": "h100-sxm", "counts": 1, "drafters": "eagle3"}, batches=8)
    assert "without speculation" not in drafted.sentence  # nobody asked for it


FEW = {**DENSE, "counts": 2, "engines": "vllm", "weight_dtypes": "bf16", "batches": BATCHES[:-1]}
"""Other batches than the usual ones stay as they are."""


def test_a_limit_takes_away_and_adds_nothing():
    loose, some = ms.compare(**FEW), ms.compare(**FEW, tokens_per_s_per_user=60)
    strict = ms.compare(**FEW, tokens_per_s_per_user=60, ttft_ms=60, e2e_ms=3000)
    kept = [found.table.meets_limits.to_numpy() for found in (loose, some, strict)]
    assert kept[0].all()
    assert (kept[1] >= kept[2]).all()
    assert kept[1].sum() > kept[2].sum()
    for column in ("tokens_per_s_per_gpu", "usd_per_million_tokens"):
        assert (loose.table[column] == strict.table[column]).all()
    assert strict.chosen is None or strict.chosen["e2e_ms"] <= 3000


def test_times_to_the_first_token_say_what_is_known_to_be_wrong():
    asked = {**DENSE, "gpus": "h100-sxm", "counts": 1, "batches": 8, "drafters": "none"}
    for limits, told in (({}, 0), ({"ttft_ms": 500}, 1), ({"e2e_ms": 9000}, 1)):
        found = ms.compare(**asked, **limits)
        assert sum("times to the first token" in line for line in found.answer.warnings) == told
        with_warnings(found.answer)


def test_copies_carry_the_rate_and_its_cost_is_theirs():
    one, many = ms.compare(**FEW), ms.compare(**FEW, rate=40.0)
    carried = many.table.tokens_per_s_per_gpu * many.table.gpus
    assert (carried >= 40.0 * 300 * (1 - 1e-12)).all()
    assert (carried * (1 - 1 / many.table.replicas) < 40.0 * 300).all()
    assert (many.table.usd_per_million_tokens >= one.table.usd_per_million_tokens * (1 - 1e-12)).all()
    assert (many.table.gpus == many.table.tp * many.table.replicas).all()


def test_users_are_held_by_copies():
    found = ms.compare(**{**FEW, "batches": BATCHES}, users=100)
    assert (found.table.replicas * found.table.batch >= 100).all()
    assert ((found.table.replicas - 1) * found.table.batch < 100).all()
    # copies share the users: none is priced as fuller than it is
    assert (found.table.replicas * found.table.batch < 100 + found.table.replicas).all()


def test_the_chosen_batch_is_the_largest_that_keeps_the_limits():
    given = {**DENSE, "counts": 1, "engines": "vllm"}
    coarse = ms.compare(**given, batches=BATCHES[::2], tokens_per_s_per_user=70)
    found = ms.compare(**{**given, "batches": BATCHES}, tokens_per_s_per_user=70)
    chosen, added = found.chosen, found.table[~found.table.batch.isin(BATCHES)]
    assert coarse.table.batch.isin(BATCHES).all()  # batches that were asked for stay as they are
    assert 0 < len(added) <= 12
    assert chosen["usd_per_million_tokens"] <= coarse.chosen["usd_per_million_tokens"]
    near = tuple(range(chosen["batch"] - 4, chosen["batch"] + 12))
    every = ms.compare(**{**given, "gpus": chosen["gpu"]}, batches=near, tokens_per_s_per_user=70)
    assert every.chosen["batch"] == chosen["batch"]
    own = {name: chosen[name] for name in SET_UP}
    rows = found.table[(found.table[list(own)] == list(own.values())).all(axis=1)]
    assert rows.batch.is_monotonic_increasing


@pytest.mark.parametrize("measure", ["throughput", "cost"])
@pytest.mark.parametrize(
    "asked", [{"model": "llama-3.1-8b", "tokens_per_s_per_user": 60}, {"model": "qwen3-32b"}], ids=str
)
def test_what_lies_between_batches_is_found_as_if_every_batch_was_asked_for(asked, measure):
    """A limit ends the batches of the first, the GPU's memory those of the second."""
    given = {
        "gpus": "h100-sxm", "counts": 1, "engines": "vllm", "drafters": ("none", "eagle3"), **asked,
        "weight_dtypes": "bf16", "prompt_tokens": 600, "output_tokens": 300, "measure": measure,
    }  # fmt: skip
    found = ms.compare(**given).answer
    every = ms.compare(**given, batches=tuple(range(1, 257))).answer
    for best, one_by_one in ((found.chosen, every.chosen), (found.chosen_plain, every.chosen_plain)):
        assert (best["batch"], best["drafts"]) == (one_by_one["batch"], one_by_one["drafts"])
        assert best[found.column] == pytest.approx(one_by_one[found.column], rel=1e-12)
    assert set(found.table.batch) - set(found.question.tried)


def test_bands_hold_their_values_and_speculation_is_less_sure(dense):
    table = dense.table
    for name in ("tokens_per_s_per_user", "tokens_per_s_per_gpu", "usd_per_million_tokens"):
        assert (table[f"{name}_low"] < table[name]).all()
        assert (table[name] < table[f"{name}_high"]).all()
    width = table.tokens_per_s_per_user_high / table.tokens_per_s_per_user_low
    assert width[table.drafter == "eagle3"].mean() > width[table.drafter == "none"].mean()


def test_bands_beyond_what_an_engine_was_measured_with_are_those_that_recommend_reads():
    beyond = {"gpus": "h100-sxm", "counts": 2, "batches": (8, 1024), "prompt_tokens": 100}
    found = ms.compare(**{**DENSE, **beyond})
    rows = found.table[found.table.batch == 1024].to_dict("records")
    assert {row["drafter"] for row in rows} == {"none", "eagle3"}
    for row in rows:
        scenario = found.answer.scenario(row)
        engine = scenario.runtime.engine
        assert engine is not None
        assert engine.measured_requests < 1024
        cells = price(scenario, [1024], [found.answer.question.seq_len]).by_count
        count = cells.configurations.counts.tolist().index(row["drafts"] + 1)
        for end, other in (("low", 1), ("high", 0)):  # the longer a token takes, the lower the rate
            asked = row["tokens_per_s_per_gpu"] / cells.bands.token_us.ratios()[other][0, 0, count]
            assert row[f"tokens_per_s_per_gpu_{end}"] == pytest.approx(asked, rel=1e-12)


def test_what_a_card_or_an_engine_cannot_run_is_refused_with_its_reason(experts):
    assert {row["gpu"] for row in experts.table[experts.table.precision == "nvfp4"].to_dict("records")} == {
        "b200"
    }
    reasons = [item["reason"] for item in experts.refused if "h200" in item["setup"]]
    assert reasons
    assert all("nvfp4" in reason for reason in reasons)
    other = ms.compare(
        "llama-3.1-8b", gpus="h100-sxm", counts=(1, 3), engines=("vllm", "tensorrt-llm"),
        drafters=("none", "suffix"), batches=4,
    )  # fmt: skip
    told = " ".join(f"{item['setup']}: {item['reason']}" for item in other.refused)
    assert "runs no suffix drafter" in told
    assert "cannot be split over tp 3" in told
    assert "--gpus 1, 2, 4" in told
    assert "--tp" not in told  # no option of a comparison
    with pytest.raises(UsageError, match="tensorrt-llm runs on NVIDIA"):
        ms.compare("llama-3.1-8b", gpus="mi300x", counts=1, engines="tensorrt-llm", batches=4)
    with pytest.raises(SpecError, match="h10"):
        ms.compare("llama-3.1-8b", gpus="h100-sxm", price={"h10": 3.0})
    with pytest.raises(UsageError, match="none of 3 set-ups"):
        ms.compare("llama-3.1-8b", gpus="h100-sxm", counts=3, engines="vllm", drafters="none")


def test_cost_decides_where_every_named_card_has_a_price():
    few = {"model": "llama-3.1-8b", "counts": 1, "engines": "vllm", "drafters": "none", "batches": (8, 64),
           "weight_dtypes": "bf16"}  # fmt: skip
    named = ms.compare(**few, gpus=("h100-sxm", "b300"))
    assert named.answer.measure == "throughput"
    given = ms.compare(**few, gpus=("h100-sxm", "b300"), price={"b300": 9.0})
    assert given.answer.measure == "cost"
    assert given.table.usd_per_million_tokens.notna().all()
    every = ms.compare(**few)
    assert every.answer.measure == "cost"
    assert every.chosen is not None
    assert any("not chosen" in line and "b300" in line for line in every.warnings)
    assert {"a100-80gb-sxm", "b200", "b300", "h200-sxm", "mi300x"} <= set(every.table.gpu)


def test_a_model_in_several_formats_is_named_by_its_experts():
    found = ms.compare(
        "gpt-oss-120b", gpus="h100-sxm", counts=2, engines="vllm", drafters="none", batches=8, eps=1
    )
    assert "mxfp4" in set(found.table.precision)
    published = found.answer.scenario(found.table[found.table.precision == "mxfp4"].iloc[0])
    assert published.arguments.weight_dtype is None


def test_another_target_answers_as_if_asked(dense):
    moved = dense.for_target(tokens_per_s_per_user=110)
    asked = ms.compare(**DENSE, tokens_per_s_per_user=110)
    assert moved.chosen == asked.chosen
    assert moved.table.equals(asked.table)
    assert moved.sentence == asked.sentence
    assert dense.for_target(measure="throughput").answer.column == "tokens_per_s_per_gpu"
    with pytest.raises(UsageError, match="limit"):
        dense.for_target(rate=3.0)


def test_warnings_are_shown_once_a_kind_and_rows_keep_their_own(experts):
    answer = experts.answer
    rows = with_warnings(answer)
    for _, row in rows.sample(10, random_state=2).iterrows():
        own = [answer.warnings[int(number) - 1] for number in row.warnings.split()]
        alike = (rows[list(SET_UP)] == row[list(SET_UP)]).all(axis=1)
        assert tuple(own) == scenario_doubts(answer.scenario(row), 1 + int(rows.drafts[alike].max()))
    told = warnings(answer)
    splits = [line.partition("'s own")[0] for line in told if "were fitted on one GPU" in line]
    assert len(splits) == len(set(splits))


def test_the_first_columns_are_those_that_name_and_score_a_set_up():
    assert COMPARE[:15] == (
        "gpu", "gpus", "tp", "ep", "dp_attention", "precision", "engine", "drafter", "drafts", "batch",
        "tokens_per_s_per_gpu", "tokens_per_s_per_user", "usd_per_million_tokens", "on_frontier", "chosen",
    )  # fmt: skip


def test_the_drafts_of_a_row_are_the_best_of_the_sweep(dense):
    answer = dense.answer
    for row in dense.table[dense.table.drafts > 1].sample(10, random_state=4).to_dict("records"):
        counts = np.asarray(answer.question.drafts) + 1
        scenario = ms.Scenario(**answer.scenario(row).arguments.values)
        swept = scenario.sweep(row["batch"], answer.question.seq_len, counts.tolist())
        assert row["drafts"] == swept.drafts[swept.tokens_per_s.idxmax()]


def test_batches_that_the_published_cache_does_not_hold_take_fp8():
    long = {**DENSE, "counts": 1, "engines": "vllm", "prompt_tokens": 3000, "weight_dtypes": "bf16"}
    found = ms.compare(**long)
    table = found.table
    own = [name for name in SET_UP if name != "kv_precision"]
    assert not table.duplicated([*own, "batch"]).any()
    narrow = table[table.kv_precision == "fp8"]
    assert set(narrow.gpu) == {"h100-sxm"}  # the A100 computes in no fp8
    for key, part in narrow.groupby(own):
        held = table[(table[own] == list(key)).all(axis=1) & (table.kv_precision == "bf16")]
        assert held.batch.max() < part.batch.min()
    assert ("kv-cache-dtype" in found.command()) == (found.chosen["kv_precision"] == "fp8")
    assert set(ms.compare(**long, kv_dtypes="bf16").table.kv_precision) == {"bf16"}


def test_both_caches_are_searched_at_every_batch_where_both_are_asked_for():
    long = {**DENSE, "counts": 1, "engines": "vllm", "prompt_tokens": 3000, "weight_dtypes": "bf16"}
    found = ms.compare(**{**long, "gpus": "h100-sxm"}, kv_dtypes=("auto", "fp8"), batches=(1, 64, 192))
    table = found.table
    assert not table.duplicated([*SET_UP, "batch"]).any()
    narrow, wide = (table[table.kv_precision == name] for name in ("fp8", "bf16"))
    both = narrow.merge(wide, on=["drafter", "batch"], suffixes=("", "_wide"))
    assert len(both) == len(wide) < len(narrow)  # it holds more requests
    many = both[both.batch == both.batch.max()]  # half the bytes of K and V, where these are many
    assert (many.tpot_ms < many.tpot_ms_wide).all()
    assert found.chosen["kv_precision"] == "fp8"
    assert "KV in fp8" in found.sentence
    assert "--kv-cache-dtype fp8" in found.command()
    assert "KV in fp8" in {
        tip for line in found.chart().series for row in line.rows for tip in row["set_up"].split(", ")
    }
    assert set(ms.compare(**long, kv_dtypes=("auto", "bf16"), batches=(1, 512)).table.kv_precision) == {
        "bf16"
    }


def test_cards_searched_apart_are_the_search_of_all():
    """One GPU at a time, then together: the same rows, choice and refusals as at once."""
    asked = SetupQuestion(tokens_per_s_per_user=50, measure="cost")
    cards = ("h100-sxm", "l40s", "a100-80gb-sxm")
    of_all = SetupChoices(
        gpus=cards, counts=(1,), engines=("vllm",), weight_dtypes=("bf16",), drafters=("none", "eagle3")
    )
    parts = []
    for card in cards:
        try:
            parts.append(compare("qwen3-32b", asked, replace(of_all, gpus=(card,)), refine=False))
        except NothingRunsError as error:
            parts.append(pickle.loads(pickle.dumps(error)))  # noqa: S301  # as it leaves a process
    assert any(isinstance(part, NothingRunsError) for part in parts)
    one, every = together(parts), compare("qwen3-32b", asked, of_all)
    pd.testing.assert_frame_equal(one.table, every.table)
    assert (one.measure, one.refused) == (every.measure, every.refused)
    assert one.scenarios.keys() == every.scenarios.keys()
