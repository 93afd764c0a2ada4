"""Wherever two commands name the same quantity of the same scenario, they print the same number.

Over every runtime, drafter and kind of acceptance, scopes and dtypes, batches and lengths: `sweep`, its best,
`recommend`, `recommend --by-count`, what the app's tables read, the Python API and one step priced alone
agree to 1e-9. Verification contains the plain step's work, so its overhead is at least 1 and nothing breaks
even below one token a step: asked of the roofline, whose kernels never get faster with more tokens (measured
ones do, at the edges of tiles).
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
from runtimes import every_runtime

from medusa_sim.acceptance.heads import HeadAccuracy
from medusa_sim.acceptance.profile import AcceptanceProfile, load_acceptance
from medusa_sim.acceptance.shaped import ShapedAcceptance
from medusa_sim.api import Scenario
from medusa_sim.engines.runtime import runtime_names
from medusa_sim.errors import UsageError
from medusa_sim.grid.axes import Grid
from medusa_sim.grid.sweep import count_table, sweep
from medusa_sim.models.named import load_model
from medusa_sim.plan.recommend import recommend
from medusa_sim.plan.sweep_answer import sweep_answer
from medusa_sim.scenario.acceptance import constant_rate, mean_length, rates_by_position
from medusa_sim.scenario.question import Question
from medusa_sim.step.drafter import drafter_class, drafter_names

EXACT = 1e-9
BATCHES, LENGTHS, COUNTS = [3, 4, 5], [128, 3000], [1, 2, 3, 4, 6, 9, 16, 24]
RANKS = HeadAccuracy.checked(
    [[0.6, 0.12, 0.06, 0.03], [0.5, 0.12, 0.06, 0.03], [0.4, 0.12, 0.06, 0.03]], [5000] * 3
)
ACCEPTANCE: dict[str, object] = {
    "ranks": AcceptanceProfile("made", "head-topk", "made", "for a test", ShapedAcceptance("made", RANKS)),
    "curve": load_acceptance("paper-fig4-sparse"),
    "positions": rates_by_position([0.8, 0.6, 0.5, 0.4]),
    "constant": constant_rate(0.7, 5),
    "mean length": mean_length(2.4, 3),
}
TARGET = replace(load_model("llama-2-7b"), mtp_layers=1)
MIXTURE = replace(load_model("qwen3-30b-a3b"), mtp_layers=2)
DRAFTERS = drafter_names()
COSTS = ("tokens_per_s", "tokens_per_s_per_user", "usd_per_million_tokens", "watts", "joule_per_token")
SHARED = ["tokens_per_step", "decode_step_us", "verify_step_us", "overhead", "speedup", "drafts"]


def scenario_of(runtime: str, drafter: str, acceptance: str, **other: object) -> Scenario | None:
    """The scenario, or None where the engine or the acceptance does not describe the drafter."""
    given = {"gpu": "h100-sxm", "model": TARGET, "latency": "roofline", "acceptance": ACCEPTANCE[acceptance]}
    draft = "llama-68m" if drafter_class(drafter).takes_draft_model else None
    try:
        scenario = Scenario(**given | other, runtime=runtime, drafter=drafter, draft_model=draft)
        scenario.options(24)
    except UsageError as refused:
        if not any(told in str(refused) for told in ("runs no", "rate per position", "knows no chains")):
            raise
        return None
    return scenario


def frame_of(scenario: Scenario) -> pd.DataFrame:
    (table,) = sweep([scenario], Grid.of(BATCHES, LENGTHS, list(scenario.covered(COUNTS))))
    return table.pandas()


def same(first: object, second: object) -> bool:
    return bool(np.allclose(np.asarray(first, float), np.asarray(second, float), rtol=EXACT, atol=0.0))


def check_steps(scenario: Scenario, frame: pd.DataFrame, *, monotone: bool) -> None:
    """Each row against one step priced alone."""
    for row in frame.to_dict("records"):
        step = scenario.step(int(row["batch"]), int(row["seq_len"]), int(row["candidates"]))
        assert same(row["verify_step_us"], step.time_us), row
        assert same([row["verify_low_us"], row["verify_high_us"]], step.band_us), row
        assert same(row["decode_step_us"], step.decode_step_us), row
        assert same(row["speedup"], step.step_speedup), row
        assert row["drafts"] >= step.drafts
        if monotone:
            assert row["overhead"] >= 1.0, row
            assert row["speedup"] <= row["tokens_per_step"] * (1.0 + EXACT), row


def check_recommendation(scenario: Scenario, frame: pd.DataFrame, *, monotone: bool) -> None:
    """The sweep against the search, its schedule, its curve, what the app reads, and the sweep's own best."""
    question = Question(
        batch_min=BATCHES[0], batch_max=BATCHES[-1], seq_len=tuple(LENGTHS), candidates_max=max(COUNTS)
    )
    found = recommend(scenario, question)
    curve = count_table(found.cells.by_count).to_pandas()
    keys = ["batch", "seq_len", "candidates"]
    both = frame.merge(curve, on=keys, suffixes=("", "_curve"))
    assert len(both) == len(frame)
    for name in SHARED:
        assert same(both[name], both[f"{name}_curve"]), name
    assert (both["fits_memory"] == both["fits_memory_curve"]).all()
    best = curve[curve["fits_memory"]].groupby(["batch", "seq_len"])["speedup"].max()
    of_sweep = sweep_answer(scenario, Grid.of(BATCHES, LENGTHS, [1]))
    swept_near, free = of_sweep.near_best, of_sweep.free.whole
    for case, (batch, seq_len) in enumerate(product(BATCHES, LENGTHS)):
        row = found.scheduled_row_at(batch, seq_len)
        assert same(row.best_speedup, best[batch, seq_len])
        assert row.near_best[0] <= row.best_candidates <= row.near_best[1]
        # kept within the price of a switch, or within the doubt about the two (R12)
        kept_for = max(row.speedup / (1.0 - question.switching_gain), row.speedup_high)
        assert row.best_speedup <= kept_for + EXACT
        if int(found.cells.configurations.counts[-1]) < max(
            COUNTS
        ):  # the sweep's best is of every count to 256
            assert same(of_sweep.gains[case][0], best[batch, seq_len])
            assert of_sweep.column("candidates")[case] == row.best_candidates
            assert tuple(swept_near[case]) == row.near_best
            assert free[case] == row.free_candidates
        cell = curve[(curve["batch"] == batch) & (curve["seq_len"] == seq_len)]
        one = cell.set_index("candidates").loc[row.candidates]
        assert row.speedup <= one["speedup"] * (1.0 + EXACT)
        assert same([row.decode_step_us, row.verify_step_us], one[["decode_step_us", "verify_step_us"]])
        written = frame[(frame["batch"] == batch) & (frame["seq_len"] == seq_len)].set_index("candidates")
        for count, prefix in ((row.candidates, ""), (1, "plain_")):
            for name in set(COSTS) & set(frame) if count in written.index else ():
                assert same(getattr(row, prefix + name), written[name][count]), (name, count)
        if monotone:
            assert row.required_tokens_per_step >= 1.0
        assert same(found.steps_at(batch, seq_len).plain.time_us, row.decode_step_us)
    if monotone:
        assert all(row.required_tokens_per_step >= 1.0 for row in found.schedule)


def scenarios(runtime: str) -> Iterator[tuple[str, str, Scenario]]:
    """Every drafter with a third of the acceptances, every acceptance once; the rest under other runtimes."""
    turn, seen = runtime_names().index(runtime), set()
    for place, (drafter, acceptance) in enumerate(product(DRAFTERS, ACCEPTANCE)):
        if (place + turn) % 3 == 0 or acceptance not in seen:
            scenario = scenario_of(runtime, drafter, acceptance)
            if scenario is not None:
                seen.add(acceptance)
                yield drafter, acceptance, scenario


@pytest.mark.parametrize("runtime", every_runtime())
def test_all_answers_about_a_scenario_agree(runtime):
    asked, turn = set(), runtime_names().index(runtime)
    for drafter, _, scenario in scenarios(runtime):
        frame = frame_of(scenario)
        check_steps(scenario, frame.iloc[turn % 9 :: 9], monotone=True)
        assert (frame["overhead"] >= 1.0).all()
        is_new = drafter not in asked and (turn + len(asked)) % 6 == 0
        if is_new or drafter == DRAFTERS[turn % len(DRAFTERS)]:
            check_recommendation(scenario, frame, monotone=True)
        asked.add(drafter)
    assert len(asked) > 3


@pytest.mark.parametrize(
    "other",
    [
        {"dtype": "bf16", "latency": "calibrated"},
        {"dtype": "fp16", "weight_dtype": "int4", "latency": "calibrated"},
        {"dtype": "fp8", "latency": "calibrated"},
        {"kv_dtype": "fp8"},
        {"scope": "block"},
        {"scope": "block", "baseline": "fixed"},
    ],
    ids=str,
)
@pytest.mark.parametrize("runtime", ["hf-eager", "vllm-0.33"])
def test_dtypes_scopes_and_fitted_kernels_agree(runtime, other):
    for drafter, acceptance in (("medusa", "ranks"), ("eagle3", "positions")):
        scenario = scenario_of(runtime, drafter, acceptance, **other)
        frame = frame_of(scenario)
        if other.get("baseline") == "fixed":
            speedup = frame["tokens_per_step"] * frame["decode_step_us"] / frame["verify_step_us"]
            frame = frame.assign(speedup=speedup)
        monotone = "latency" not in other and "baseline" not in other
        check_steps(scenario, frame.iloc[::5], monotone=monotone)
        if other.get("scope") != "block":
            check_recommendation(scenario, frame, monotone=monotone)


@pytest.mark.parametrize("drafter", ["mtp", "eagle3", "dspark", "suffix"])
@pytest.mark.parametrize("other", [{"tp": 4}, {"tp": 2, "ep": 2, "dp_attention": True}], ids=str)
def test_mixtures_of_experts_on_several_gpus_agree(drafter, other):
    scenario = scenario_of("vllm-0.33", drafter, "positions", model=MIXTURE, **other)
    frame = frame_of(scenario)
    own = {"mtp": {0, 1, 2, 8}, "suffix": {0, 1, 2, 3}}  # modules take turns; look-ups are not carried on
    assert set(frame["drafts"]) == own.get(drafter, {0, 1, 2, 3, 5, 8})
    check_steps(scenario, frame.iloc[::5], monotone=True)
    check_recommendation(scenario, frame, monotone=True)


@pytest.mark.parametrize(
    "given",
    [
        {"gpu": "h100-sxm", "model": "vicuna-7b", "runtime": "cuda-graph"},
        {"gpu": "h200-sxm", "model": "qwen3-30b-a3b", "drafter": "eagle3", "acceptance": "0.6"},
        {"gpu": "h100-sxm", "model": "llama-3.1-8b", "drafter": "eagle3", "prompt_tokens": 700.0,
         "output_tokens": 200.0},
        {"gpu": "h100-sxm", "model": "gemma-3-12b", "drafter": "ngram", "acceptance": "0.6"},
    ],
)  # fmt: skip
def test_rows_are_the_same_in_tables_of_any_size(given):
    grid = Grid.of([1, 2, 3, 8, 40], [300, 2000, 9000], [1, 2, 3, 4, 6])
    (whole,) = sweep([Scenario(**given)], grid)
    blocks = list(sweep([Scenario(**given)], grid, chunk_rows=1))
    assert len(blocks) == 15
    for name, column in {**whole.numbers, **whole.codes}.items():
        other = np.concatenate([{**block.numbers, **block.codes}[name] for block in blocks])
        np.testing.assert_allclose(other, column, rtol=1e-12, err_msg=name)
