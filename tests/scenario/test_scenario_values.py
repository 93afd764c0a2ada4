"""Numbers of a scenario by hand: what is searched, what pastes of rows say, laws in so many times as fast."""

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from left_out import numbers_left_out
from one_line import one_line

from medusa_sim.acceptance.heads import HeadAccuracy
from medusa_sim.engines.runtime import load_runtime
from medusa_sim.errors import CoverageError, DataError, UsageError
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.gpus.local import laws
from medusa_sim.latency.local import LocalLatency
from medusa_sim.models.named import load_model
from medusa_sim.models.variants import with_dtypes
from medusa_sim.scenario.acceptance import (
    _of_the_family,
    accepted_share,
    common_letters,
    constant_rate,
    doubtful_shares,
    mean_length,
    rates_by_position,
)
from medusa_sim.scenario.adjusted_acceptance import matched
from medusa_sim.scenario.defaults import (
    CANDIDATES_MAX,
    DEFAULT_BATCHES,
    DEFAULT_CANDIDATES,
    DEFAULT_SEQ_LEN,
    FIXED_BASELINE_BATCH,
    FIXED_BASELINE_SEQ_LEN,
    FREE_WITHIN,
    LENGTH_CV,
    LOAD_OUTPUT_TOKENS,
    LOAD_PROMPT_TOKENS,
    LOAD_REQUESTS,
    LOAD_SEEDS,
    LOAD_SHARE,
    LONGEST_DRAFT,
    MAX_DRAFTS,
    SWITCHING_GAIN,
    request_length,
)  # fmt: skip
from medusa_sim.scenario.draft_options import _tree_options
from medusa_sim.scenario.local_correction import (
    NOISE,
    SPREAD,
    _curve,
    corrected,
    pass_times,
    replace_law,
    scaled,
)
from medusa_sim.scenario.local_rows import LocalRow, LocalRows, rows_of
from medusa_sim.scenario.question import Question
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.drafter import drafter_class
from medusa_sim.step.step import decode_step

PLACE = Path("paste.txt")


def test_every_batch_is_searched_to_256_and_every_fiftieth_beyond():
    """From 256 to 300 in steps of 2 %: ln(300 / 256) / ln 1.02 = 8.01, so nine steps."""
    assert Question(batch_max=256).batches.tolist() == list(range(1, 257))
    beyond = Question(batch_max=300).batches
    assert beyond[:256].tolist() == list(range(1, 257))
    assert beyond[256:].tolist() == [round(256 * (300 / 256) ** (step / 9)) for step in range(1, 10)]
    later = Question(batch_min=300, batch_max=400).batches  # ln(4 / 3) / ln 1.02 = 14.5
    assert later.tolist() == [round(300 * (4 / 3) ** (step / 15)) for step in range(16)]
    assert Question(batch_min=7, batch_max=7).batches.tolist() == [7]


def test_a_step_is_half_way_through_its_request():
    assert [request_length(*of) for of in ((896, 256), (100, 1001), (0.0, 1.0))] == [1024, 600, 1]


# Acceptance.


@pytest.mark.parametrize(
    ("rates", "is_doubtful"),
    [("0.5,0.45", False), ("0.5,0.4501", True), ([0.5, 0.3, 0.28], True), ("0.7", False), ("0,0", False)],
)
def test_shares_that_fall_by_less_than_a_tenth_are_doubted(rates, is_doubtful):
    assert bool(doubtful_shares(rates)) is is_doubtful


def test_a_rate_a_mean_length_and_a_share_of_all_drafts_are_one_chain():
    """Two drafts at a rate of 0.8: 1 + 0.8 + 0.64 = 2.44 tokens a step, 1.44 of 2 drafts accepted, 72 %."""
    for profile in (mean_length(2.44, 2), accepted_share(72.0, 2), constant_rate(0.8, 2)):
        assert profile.heads.conditional()[:, 0].tolist() == pytest.approx([0.8, 0.8])
    assert mean_length(3.0, 2).heads.conditional()[:, 0].tolist() == [1.0, 1.0]
    assert accepted_share(100.0, 2).heads.conditional()[:, 0].tolist() == [1.0, 1.0]
    given = rates_by_position([0.8, 0.4], conditional=True), rates_by_position([0.8, 0.32])
    for profile in given:
        assert profile.heads.conditional()[:, 0].tolist() == pytest.approx([0.8, 0.4])


def test_rates_and_lengths_end_where_none_are_possible():
    assert constant_rate(1.0).heads.depth == 16
    for rate in (0.0, 1.0001):
        with pytest.raises(UsageError, match="above 0"):
            constant_rate(rate)
    for percent in (0.0, 100.1):
        with pytest.raises(UsageError, match="100 %"):
            accepted_share(percent, 2)
    assert mean_length(1.5, 16).heads.depth == rates_by_position([0.5] * 16).heads.depth == 16
    for drafts in (0, 17):
        with pytest.raises(UsageError, match="1 to 16"):
            mean_length(1.5, drafts)
    with pytest.raises(UsageError, match="at most 16"):
        rates_by_position([0.5] * 17)


def test_a_match_rate_scales_what_a_match_is_worth():
    """A first draft in 0.265 of the steps is one in 0.265 / 0.53 = 0.5 where drafts are found."""
    profile, kind = rates_by_position([0.265, 0.1]), drafter_class("ngram")
    share, same = matched(None, kind, profile)
    assert share == pytest.approx(0.5)
    assert same.ratio == 1.0
    share, fewer = matched(0.3, kind, profile)
    assert (share, fewer.ratio) == (0.3, pytest.approx(0.6))
    assert matched(1.0, kind, profile)[1].ratio == pytest.approx(2.0)
    assert matched(None, drafter_class("eagle3"), profile) == (1.0, profile)
    for rate in (0.0, 1.1, 0.264):
        with pytest.raises(UsageError, match="match rate"):
            matched(rate, kind, profile)


@pytest.mark.parametrize(
    ("name", "other", "count"),
    [("qwen3-8b", "qwen3-32b", 6), ("a", "b", 0), ("glm", "glm-5", 3), ("", "x", 0)],
)
def test_names_are_alike_as_far_as_they_begin_alike(name, other, count):
    assert common_letters(name, other) == count


@pytest.mark.parametrize(
    ("model", "taken"),
    [
        ("glm-4.6", "glm-4.5"), ("glm-4.5-air", "glm-4.5"), ("glm-5", "glm-4"), ("qwen3-14b", "qwen3-8b"),
        ("llama-9", None), ("9b", None),
    ],
)  # fmt: skip
def test_a_profile_is_borrowed_from_the_nearest_of_the_family(model, taken):
    """The longest common beginning; of equals the shorter name, so no variant where its model is known."""
    known = [f"eagle-{name}" for name in ("glm-4.5-no-thinking", "glm-4.5", "glm-4", "qwen3-8b", "qwen3-32b")]
    assert _of_the_family("eagle-", model, known) == (taken and f"eagle-{taken}")


def test_counts_are_those_that_some_draft_length_has():
    scenario = Scenario(gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3", acceptance="0.7,0.5,0.3")
    chain = scenario.but(chain_only=True, max_drafts=3)
    assert chain.covered([1, 2, 4, 4]).tolist() == [1, 2, 4, 4]
    assert chain.covered([1]).tolist() == [1]
    assert chain.covered([]).size == 0
    assert chain.covered([2, 50]).tolist() == [2]
    with pytest.raises(CoverageError, match=r"2\.\.4, given 50"):
        chain.covered([50, 60])
    assert chain.depth == 3
    assert chain.but(max_drafts=2).depth == 2


def test_a_curve_scales_its_accepted_drafts_to_those_of_a_chain():
    """A curve of 2.5 tokens for 8 candidates: 1.5 drafts accepted, half as many give 1.75, at most 6."""
    scenario = Scenario(acceptance="paper-fig4-sparse")
    (option,) = scenario.options(64)
    for count in (2, 8, 64):
        own = option.tokens(count)
        assert option.scaled_tokens(count, 0.5) == pytest.approx(1.0 + 0.5 * (own - 1.0))
        most = min(count, option.depth + 1)
        assert option.scaled_tokens(count, 1000.0) == pytest.approx(most)
        assert option.most_factor(count) == pytest.approx((most - 1.0) / (own - 1.0))
    assert option.candidates.tolist() == list(range(2, 65))
    assert scenario.options(8)[0].candidates.tolist() == list(range(2, 9))
    with pytest.raises(UsageError, match="at least 2"):
        scenario.options(1)


def test_a_head_is_right_at_most_always():
    """Rates of 0.5 and 0.25: at twice the rates 1 and 0.5, at four times 1 and 1; beyond nothing is left."""
    (option,) = (
        each
        for each in Scenario(
            gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3", acceptance="conditional:0.5,0.25",
            max_drafts=2,
        ).options()
        if each.depth == 2
    )  # fmt: skip
    found = [option.scaled_tokens(3, factor) for factor in (0.0, 0.5, 1.0, 2.0, 4.0, 9.0)]
    # 1 + r + r s: 1 + 0.25 + 0.03125, 1 + 0.5 + 0.125, 1 + 1 + 0.5, 3
    assert found == pytest.approx([1.0, 1.28125, 1.625, 2.5, 3.0, 3.0])
    assert option.most_factor(3) == pytest.approx(4.0)
    np.testing.assert_allclose(option.emission_chances_if(3, 2.0), [1.0, 1.0, 0.5])
    assert option.drafts(3) == 2


# Rows of one's own machine.


def entry(**more: object) -> dict[str, object]:
    return {"n_prompt": 0, "n_gen": 0, "n_depth": 0, "avg_ts": 100.0, **more}


def rows(*entries: dict[str, object]) -> list[tuple[int, float, float]]:
    """(columns, depth, microseconds) of each row."""
    return [(row.columns, row.depth, row.time_us) for row in rows_of(json.dumps(list(entries)), PLACE).rows]


def test_a_generation_is_as_deep_as_half_of_what_it_makes():
    """64 tokens behind 100: 132 on average, each 1 s / 100; a prompt of 8 at 400 tokens/s takes 20 ms."""
    assert rows(entry(n_gen=64, n_depth=100)) == [(1, 132.0, 10_000.0)]
    assert rows(entry(n_prompt=8, avg_ts=400.0)) == [(8, 1.0, 20_000.0)]
    assert rows(entry(n_prompt=64), entry(n_prompt=65), entry(n_gen=64)) == [
        (64, 1.0, 640_000.0),
        (1, 32.0, 1e4),
    ]
    assert rows(entry(n_prompt=8, n_gen=8), entry(n_gen=64)) == [(1, 32.0, 10_000.0)]  # both: neither alone
    # the median of three runs of 64 tokens, 0.8 s of 0.5, 0.8 and 9.0
    assert rows(entry(n_gen=64, samples_ns=[8e8, 9e9, 5e8])) == [(1, 32.0, pytest.approx(12_500.0))]
    (found,) = rows_of(json.dumps([entry(n_gen=64)]), PLACE).rows
    assert found.passes == 64.0


def test_a_servers_plain_run_is_as_deep_as_its_prompt_and_half_the_answer():
    timings = {"prompt_n": 20, "predicted_n": 400, "predicted_per_second": 100.0}
    assert rows({"timings": timings}) == [(1, 220.0, 10_000.0)]
    assert rows({"timings": {**timings, "cache_n": 9000}}) == [(1, 9220.0, 10_000.0)]
    drafted = rows_of(json.dumps({"timings": {**timings, "draft_n": 300, "draft_n_accepted": 240}}), PLACE)
    assert (drafted.drafted, drafted.accepted, drafted.drafted_us) == (300.0, 240.0, 10_000.0)
    both = rows_of(json.dumps([{"timings": {**timings, "draft_n": 300, "draft_n_accepted": 240}}] * 2), PLACE)
    assert (both.drafted, both.accepted, both.rounds) == (600.0, 480.0, 318.0)


def test_what_drafts_nothing_counts_no_drafts():
    found = rows_of(json.dumps([entry(n_gen=64)]), PLACE)
    assert (found.drafted, found.accepted, found.rounds, found.drafted_us) == (0.0, 0.0, 0.0, 0.0)
    assert (found.accepted_share, found.drafts, found.tokens_per_round, found.acceptance()) == (None,) * 4


def test_columns_are_tokens_of_one_sequence_or_sequences():
    """Four sequences of 8,192 tokens read four caches, four tokens of one sequence read one."""
    setting = Scenario(
        gpu="rtx-3090", model="llama-3.1-8b", weight_dtype="Q4_0", runtime="llama.cpp-cuda", drafter="ngram",
        acceptance=0.5,
    ).setting  # fmt: skip
    latency = LocalLatency(load_gpu("rtx-3090"), "cuda")
    latency = replace_law(latency, msgspec.structs.replace(latency.law, row_us_per_million=0.0))
    plain = replace(setting, latency=latency, runtime=setting.runtime.kernels_alone)
    asked = [
        LocalRow(columns=m, depth=8192.0, time_us=1.0, is_batch=batch)
        for m, batch in ((1, False), (4, True), (4, False))
    ]
    one, four, verified = pass_times(latency, setting.model, setting.runtime, asked)
    assert one == pytest.approx(float(decode_step(plain, 1, 8192).time_us), rel=1e-6)
    assert four == pytest.approx(float(decode_step(plain, 4, 8192).time_us), rel=1e-6)
    cache_us = 3 * 8192 * 131_072 / 936.2e9 * 1e6  # of three sequences, at the GPU's bandwidth
    assert four - verified > cache_us
    assert pass_times(latency, setting.model, setting.runtime, []).size == 0


def test_batches_of_llama_batched_bench_and_means_of_mlx():
    head = "|    PP |     TG |    B |   N_KV |   T_PP s | T_TG s |\n"
    of = [f"| 512 | 32 | {batch} | 0 | 0.1 | 0.64 |\n" for batch in (1, 64, 65)]
    found = rows_of(head + "".join(of), PLACE).rows
    # 32 steps in 0.64 s, at 512 + 16 tokens
    assert [(row.columns, row.depth, row.time_us, row.is_batch) for row in found] == [
        (1, 528.0, 20_000.0, False), (64, 528.0, 20_000.0, True),
    ]  # fmt: skip
    (mean,) = rows_of("generation_tps=40.0\nAverages: generation_tps=50.0\n", PLACE).rows
    assert (mean.columns, mean.depth, mean.time_us) == (1, 256.0, 20_000.0)


@pytest.mark.parametrize(
    ("rate", "fits"), [(20_000.0, True), (20_001.0, False), (1 / 60, True), (1 / 61, False)]
)
def test_a_pass_takes_50_us_to_a_minute(rate, fits):
    if fits:
        assert rows(entry(n_gen=1, avg_ts=rate))
    else:
        with one_line(DataError, "not a time that a model takes"):
            rows(entry(n_gen=1, avg_ts=rate))


@pytest.mark.parametrize(
    ("drafted", "accepted", "rounds", "drafts"),
    [(300, 240, 100, 3), (260, 240, 100, 3), (240, 100, 100, 2), (20, 0, 100, 1), (20, 0, 0, None)],
)
def test_a_rounds_drafts_are_those_of_most_and_no_fewer_than_accepted(drafted, accepted, rounds, drafts):
    """2.6 drafts a round are 3; 2.4 are 2, but not where 2.4 of them are accepted."""
    found = LocalRows(rows=(), told={}, drafted=drafted, accepted=accepted, rounds=rounds)
    assert found.drafts == drafts
    assert found.tokens_per_round == (pytest.approx(1.0 + accepted / rounds) if rounds else None)


LAW = next(law for law in laws() if law.backend == "cuda" and law.half is not None)


def test_a_law_is_so_many_times_as_fast_in_each():
    """Bandwidth twice, arithmetic four times, what is fixed five times, tiles eight times."""
    found = scaled(LAW, 2.0, 4.0, 5.0, 8.0)
    for name in ("launch_us", "pass_us", "attention_us", "step_us", "routing_us", "sorted_us"):
        assert getattr(found, name) == pytest.approx(getattr(LAW, name) / 5.0)
    assert found.attention_share == pytest.approx(2.0 * LAW.attention_share)
    for kind, law in LAW.types.items():
        own = found.types[kind]
        assert own.share == pytest.approx(2.0 * law.share)
        assert [own.unpack, own.column] == pytest.approx([law.unpack / 4.0, law.column / 4.0])
        assert own.single == (None if law.single is None else pytest.approx(law.single / 4.0))
        assert [ops for _, ops in own.blocks] == pytest.approx([ops / 4.0 for _, ops in law.blocks])
    for name in ("matrix", "grouped", "half"):
        own, tiles = getattr(found, name), getattr(LAW, name)
        assert (own.share, own.peak) == (pytest.approx(2.0 * tiles.share), pytest.approx(8.0 * tiles.peak))
        assert [own.unpack, own.column] == pytest.approx([tiles.unpack / 8.0, tiles.column / 8.0])


def test_what_is_left_is_the_mean_over_passes_added_to_what_was():
    """0.1 of one pass and 0.3 of three: 0.25; never beyond 0.7, a factor of two."""
    rows = [LocalRow(columns=2, depth=1.0, time_us=1.0, passes=passes) for passes in (1.0, 3.0)]
    rows.append(LocalRow(columns=4, depth=1.0, time_us=1.0))
    assert _curve(rows, np.array([0.1, 0.3, 0.9]), ()) == ((2, pytest.approx(0.25)), (4, 0.7))
    before = ((2, 0.3), (3, 0.2))
    assert _curve(rows, np.array([0.1, 0.3, -0.9]), before) == ((2, pytest.approx(0.55)), (3, 0.2), (4, -0.7))


def test_a_correction_is_the_likeliest_of_laws_near_the_class():
    """(O1): rows err by 0.03 and a pass's own, devices by 0.12 and 0.35 from their law."""
    from scipy.optimize import least_squares

    runtime = load_runtime("llama.cpp-cuda")
    model = with_dtypes(load_model("llama-3.1-8b"), None, "Q4_0")
    own = LocalLatency(load_gpu("rtx-3090"), "cuda")
    asked = [
        LocalRow(columns=m, depth=512.0, time_us=1.0, passes=64.0 if m == 1 else 1.0) for m in (1, 2, 4, 8)
    ]
    true = pass_times(own, model, runtime, asked) * np.array([1.8, 1.3, 1.25, 1.1])
    measured = [replace(row, time_us=us) for row, us in zip(asked, true.tolist(), strict=True)]
    noise = 0.03 * np.sqrt(1.0 + 3.0 / np.array([64.0, 1.0, 1.0, 1.0]))

    def residuals(factors: np.ndarray) -> np.ndarray:
        law = replace_law(own, scaled(own.law, *np.exp(factors)))
        return np.concatenate(
            [
                np.log(pass_times(law, model, runtime, measured) / true) / noise,
                factors / [0.12, 0.35, 0.35, 0.35],
            ]
        )

    found, fit = corrected(own, model, runtime, measured), least_squares(residuals, np.zeros(4))
    expected = fit.x
    likeliest = scaled(own.law, *np.exp(expected))
    for name in ("launch_us", "attention_share", "attention_us"):
        assert getattr(found.law, name) == pytest.approx(getattr(likeliest, name), rel=5e-3)
    assert found.law.types["q4_0"].share == pytest.approx(likeliest.types["q4_0"].share, rel=5e-3)
    assert found.law.types["q4_0"].column == pytest.approx(likeliest.types["q4_0"].column, rel=5e-3)
    assert pass_times(found, model, runtime, measured) == pytest.approx(true, rel=5e-3)
    # of four rows, what four factors that are known to within (O1) leave
    hat = fit.jac[:4] @ np.linalg.inv(fit.jac.T @ fit.jac) @ fit.jac[:4].T
    left = 1.2815515655 * np.sqrt(((fit.fun[:4] * noise) ** 2).sum() / (4.0 - np.trace(hat)))
    assert found.law.band == pytest.approx(min(max(left, 0.03), own.law.band), rel=1e-2)
    assert found.law.beyond == (8.0, own.law.band)
    *_, (columns, factor) = found.law.curve
    assert (columns, factor) == (own.law.limit + 1, 0.0)  # other kernels run behind the switch
    assert (NOISE, SPREAD) == (0.03, (0.12, 0.35, 0.35, 0.35))


def test_trees_of_a_drafter_that_runs_level_by_level_are_of_every_width_that_it_has_ranks_for():
    ranks = [[0.6, 0.2, 0.1, 0.05], [0.5, 0.2, 0.1, 0.05]]
    scenario = Scenario(model="llama-3.1-8b", gpu="h100-sxm", runtime="cuda-graph", drafter="eagle")
    options = _tree_options(scenario.drafting, scenario.profile, HeadAccuracy.checked(ranks), 16)
    assert [(option.width, option.chain) for option in options] == [(2, False), (4, False)]
    (two, _) = options
    assert [two.is_chain(count) for count in (2, 3, 4)] == [True, two.tree(3).depth == 2, False]


def test_a_limit_of_latency_is_milliseconds_and_there_may_be_none():
    assert Question(max_latency_ms=12.5).max_latency_us == 12_500.0
    assert Question().max_latency_us is None


@pytest.mark.parametrize(("given", "knows"), [({}, True), ({"latency": "roofline"}, False)])
def test_a_roofline_knows_no_kernel_of_attention(given, knows):
    scenario = Scenario(model="llama-3.1-8b", gpu="h100-sxm", runtime="vllm-0.11", drafter="ngram",
                        acceptance=0.5, **given)  # fmt: skip
    assert (scenario.backend is not None) is knows


def test_what_is_asked_where_nothing_is_stated():
    """What the commands' reference promises: one set of defaults, of which each has its reason beside it."""
    assert DEFAULT_CANDIDATES == (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
    assert (DEFAULT_SEQ_LEN, DEFAULT_BATCHES) == (1024, (1, 64))
    assert (MAX_DRAFTS, LONGEST_DRAFT, CANDIDATES_MAX) == (16, 64, 256)
    assert (FREE_WITHIN, SWITCHING_GAIN) == (1.10, 0.03)
    assert (LOAD_REQUESTS, LOAD_SEEDS, LOAD_SHARE, LENGTH_CV) == (1000, 3, 0.9, 0.4)
    # half way through its output a request is as long as the default length
    assert request_length(LOAD_PROMPT_TOKENS, LOAD_OUTPUT_TOKENS) == DEFAULT_SEQ_LEN
    assert (LOAD_PROMPT_TOKENS, LOAD_OUTPUT_TOKENS) == (896, 256)
    assert [request_length(*given) for given in ((900, 900), (0.0, 1.0), (10, 5))] == [1350, 1, 12]
    # the Medusa paper's figures are divided by one request of 1024 tokens
    assert (FIXED_BASELINE_BATCH, FIXED_BASELINE_SEQ_LEN) == (1, 1024)


def test_a_cache_is_compacted_by_the_drafts_that_were_measured():
    """Rates of three drafts are carried on further, by guess; where no more are asked for none is guessed."""
    given = {"gpu": "h100-sxm", "model": "llama-3.1-8b", "drafter": "eagle3", "acceptance": "0.7,0.5,0.3"}
    further, measured = Scenario(**given), Scenario(**given, max_drafts=3)
    assert (further.guessed_from, measured.guessed_from) == (4, None)
    assert further.depth > 3 == measured.depth
    for scenario in (further, measured):
        assert (scenario.setting.compacted_drafts, scenario.setting.longest_drafts) == (3, scenario.depth)


def test_a_pasted_row_is_one_pass_of_one_sequence_and_tells_of_no_drafts():
    row = LocalRow(columns=1, depth=1.0, time_us=5.0)
    assert (row.passes, row.is_batch) == (1.0, False)
    found = LocalRows(rows=(row,), told={})
    assert (found.drafted, found.accepted, found.rounds, found.drafted_us) == (0.0, 0.0, 0.0, 0.0)
    assert (found.accepted_share, found.drafts, found.tokens_per_round) == (None, None, None)


def test_a_plain_step_is_one_token_behind_another_and_a_step_of_two_adds_what_only_it_has():
    """On each of eight GPUs 16 of 128 heads; they and the latent key rotate 64 values each."""
    launches = Scenario(gpu="h200-sxm", model="deepseek-r1", tp=8).kernel_fits.plain_launches
    named = {launch.operator.name: launch.operator for launch in launches}
    assert (named["rope"].m, named["rope"].n) == (1, 17 * 64)
    (attention,) = (launch.operator for launch in launches if launch.attends)
    assert (attention.batch, attention.q_len, attention.kv_len) == (1, 1, 2)
    assert not any(launch.composed for launch in launches)
    sparse = Scenario(gpu="h200-sxm", model="deepseek-v3.2", tp=8).kernel_fits.plain_launches
    modules = [launch.operator for launch in sparse if launch.composed]
    sizes = [[float(each.batch), float(each.q_len), float(each.prefix)] for each in modules]
    assert sizes == [[1.0, 1.0, 1.0], [1.0, 2.0, 1.0]]


@pytest.mark.parametrize(
    ("runtime", "ranks", "is_told"), [("vllm", 1, False), ("vllm", 2, True), ("cuda-graph", 2, False)]
)
def test_trees_are_shown_of_where_a_runtime_without_them_has_several_guesses_a_place(runtime, ranks, is_told):
    guesses = replace(constant_rate(0.5).heads, accuracy=np.array([[0.5, 0.2][:ranks]] * 3))
    profile = constant_rate(0.5)
    made = replace(profile, model=replace(profile.model, heads=guesses))
    scenario = Scenario(
        gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3", acceptance=made, runtime=runtime
    )
    assert bool(scenario.where_trees_run) == is_told


def test_what_is_left_out_is_nothing_but_for_these():
    """Factors and counts are one, sizes those that most have."""
    assert numbers_left_out("scenario") == {
        "Arguments.max_drafts": 16,
        "Arguments.length_cv": 0.4,
        "Arguments.tp": 1,
        "Arguments.ep": 1,
        "Drafting.max_drafts": 16,
        "LocalRow.passes": 1.0,
        "Question.batch_min": 1,
        "Question.batch_max": 64,
        "Question.candidates_max": 256,
        "Question.free_within": 1.1,
        "Question.switching_gain": 0.03,
    }
