"""Stored terms of engines against the published measurements that they were fitted to."""

from dataclasses import replace
from pathlib import Path

import deepseek_rows
import engine_fit as fit
import numpy as np
import operator_rows
import pandas as pd
import pytest
import torch
from common import agreement, engine_rows
from decoder_models import tiny_llama

from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.grid.axes import Grid
from medusa_sim.grid.sweep import sweep
from medusa_sim.lab.decoder.generate import generate
from medusa_sim.lab.decoder.generation import GenerationSettings
from medusa_sim.lab.decoder.model_drafter import TreeDrafter
from medusa_sim.lab.decoder.ngram_drafter import NgramDrafter, continuation
from medusa_sim.lab.validate.operators import scores
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.pass_cost import timed_pass
from medusa_sim.step.step import decode_step


@pytest.fixture(scope="module")
def rows(shared_data: Path) -> list[object]:
    return [fit.Kernels(row) for row in fit.published_rows()]


def test_stored_terms_are_the_fitted_ones(rows):
    fitted, stored = fit.fit(rows), fit.stored(fit.TERMS)
    for term, value, kept in zip(fit.TERMS, fitted, stored, strict=True):
        # kernels may change by a per cent before the terms must be fitted anew
        assert abs(value - kept) <= 0.15 * term.spread, f"{term.term} of {term.runtimes}: run engine_fit.py"


@pytest.mark.parametrize(
    ("source", "most"),
    [
        ("ML.ENERGY", 0.025), ("PR 32374", 0.035), ("specdecode-bench plain", 0.02),
        ("specdecode-bench ngram", 0.02), ("specdecode-bench eagle3", 0.045), ("PR 16937", 0.03),
        ("PR 16035", 0.03), ("vLLM A100 eagle", 0.04), ("vLLM A100 eagle3", 0.06), ("issue 20780", 0.09),
        ("SGLang eagle3", 0.08), ("SGLang eagle", 0.13),
    ],
)  # fmt: skip
def test_mean_error_of_a_source(rows, source, most):
    own = [row for row in rows if row.row.source == source]
    assert own
    assert np.abs(fit.errors(fit.stored(fit.TERMS), own)).mean() <= most


def test_rates_of_whole_requests_tell_the_gain_of_decoding_alone():
    """A plain step of 5 ms, rounds of 7 and 9; a request's prompt and way take 0.1 and 1 ms a token more."""
    rounds_ms, beside_ms = {(3, 1): 7.0, (7, 4): 9.0}, {"long": 0.1, "short": 1.0}
    runs = [
        {"benchmark": benchmark, "batch": 8, "steps": shape[0], "topk": shape[1], "accept_length": tokens,
         "baseline_tok_s": 8.0 / (5.0 + more_ms), "spec_tok_s": 8.0 * tokens / (round_ms + tokens * more_ms)}
        for benchmark, more_ms in beside_ms.items() for shape, round_ms in rounds_ms.items()
        for tokens in (1.7, 2.9)
    ]  # fmt: skip
    gains = engine_rows.gains_of_decoding(pd.DataFrame(runs))
    truth = [run["accept_length"] * 5.0 / rounds_ms[run["steps"], run["topk"]] for run in runs]
    np.testing.assert_allclose(gains, truth, rtol=1e-6)


AT_NIGHT = [pytest.param(name, marks=pytest.mark.nightly) for name in ("gemma-3-27b", "llama-3.1-8b")]


@pytest.mark.parametrize("model", ["qwen3-14b", *AT_NIGHT])
def test_a_served_model_that_was_left_out(rows, model):
    others = [row for row in rows if row.row.group != model]
    own = [row for row in rows if row.row.group == model]
    assert np.abs(fit.errors(fit.fit(others), own)).mean() <= 0.05


def test_intervals_hold_most_fitted_speedups_and_not_all(rows):
    """Intervals are made for sources that nobody fitted (engine_fit.py), so they hold more of these."""
    shipped = fit.errors(fit.stored(fit.TERMS), rows)
    found = fit.banded(rows, shipped, shipped).query("kind == 'speedup'")
    assert len(found) > 130
    # groups of many cells weigh as little as in the fit: one served model is a third of all cells
    weight = 1.0 / found.groupby("group").group.transform("size").clip(lower=8)
    assert 0.75 <= np.average(found.held, weights=weight) <= 0.95


def test_served_deepseek_plain_and_with_mtp(shared_data):
    """The shipped terms of several GPUs; groups left out: benchmarks/deepseek_rows.py."""
    rows = deepseek_rows.newest()
    # before any are left out: rows without means take the tokens of others
    rows["tokens"] = deepseek_rows.tokens_per_round(rows)
    rows = rows[(rows.runtime == rows.engine) & (rows.prompt_tokens == 1024)]
    shipped = {name: deepseek_rows.launched(name) for name in deepseek_rows.RUNTIMES}
    rows["error"] = deepseek_rows.predicted(rows, shipped) / rows.median_tpot_ms - 1.0
    means = rows.error.abs().groupby(rows.speculation).mean()
    assert means["none"] < 0.06
    assert means["mtp"] < 0.08
    # three drafts of the shipped profile emit 2.82 tokens a round on long outputs
    long = rows[(rows.speculation == "mtp") & (rows.output_tokens == 8192) & ~rows.dp_attention]
    assert long.tokens.mean() == pytest.approx(2.82, rel=0.05)


def test_several_gpus_and_experts_as_served(shared_data):
    """Nothing is fitted to these rows; kernels, experts and collectives have measurements of their own.

    Prompts are assumed (`engine_rows.TYPICAL_PROMPTS`); from 600 requests on a server queues some.
    """
    found = pd.read_csv(shared_data / "engines" / "plain_decode_mlenergy.csv")
    found["experts"] = found.architecture == "MoE"
    found = found[((found.n_gpus > 1) | found.experts) & (found.avg_batch < 600)]
    errors = []
    for row in found.itertuples():
        prompt, output = engine_rows.TYPICAL_PROMPTS[row.task], round(row.avg_output_len)
        scenario = Scenario(
            gpu="h100-sxm", model=engine_rows.MODELS[row.model], runtime="vllm-0.11", drafter="ngram",
            acceptance="0.5", tp=row.n_gpus, ep=row.ep, prompt_tokens=prompt, output_tokens=output,
        )  # fmt: skip
        (cell,) = sweep([scenario], Grid.of([round(row.avg_batch)], [round(prompt + output / 2)], [1]))
        errors.append(float(cell.numbers["itl_us"][0]) / (1e3 * row.median_itl_ms) - 1.0)
    errors = pd.Series(errors, index=found.index).abs().groupby(found.experts)
    assert (errors.size() >= 15).all()
    assert errors.mean()[False] < 0.075
    assert errors.mean()[True] < 0.08
    assert errors.max().max() < 0.20


def test_forward_passes_that_no_fit_saw(shared_data):
    """Qwen3-1.7B in vLLM 0.28, 1 to 64 requests of 1 to 32,000 tokens; the passes end before the LM head."""
    table = pd.read_csv(shared_data / "engines" / "vllm028_forward_steps.csv")
    table = table[table.tokens_in_step == table.requests]
    setting = engine_rows.plain_setting("h100-sxm", "qwen3-1.7b", "vllm-0.24", ("bf16", None, None))
    errors = []
    for row in table.itertuples():
        length = np.asarray(max(float(row.context_per_request), 1.0))
        work = decode_step(setting, np.asarray(float(row.requests)), length).passes[0].work
        before_head = (one for one in work.launches if one.operator.name not in ("lm_head", "next_token"))
        found = timed_pass(setting.latency, replace(work, launches=tuple(before_head)))
        errors.append(float(found.device_us) / (1e3 * row.value_ms) - 1.0)
    assert len(errors) == 40
    assert np.abs(errors).mean() < 0.04
    assert np.abs(errors).max() < 0.09


LENGTH, NEW_TOKENS = 4, 40


def test_the_earliest_copy_of_the_longest_ending_is_continued():
    assert continuation([7, 1, 2, 3, 7, 1, 9, 7, 1], 2, 3) == [2, 3]
    assert continuation([1, 5, 8, 1, 6, 5, 8, 1], 3, 3) == [6, 5, 8]
    assert continuation([1, 2, 3], 3, 3) == []
    assert continuation([4, 4], 3, 3) == [4]
    assert continuation([1, 2, 1], 3, 1) == [2, 1]


@pytest.mark.parametrize("method", ["draft", "ngram"])
def test_walking_along_a_plain_text_takes_the_steps_of_a_run(method):
    target, draft = tiny_llama(seed=1), tiny_llama(seed=1)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.add_(0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
    prompts = [[1, 2, 3, 4, 1, 2], [5, 6, 7, 5, 6, 7]]
    settings = GenerationSettings(max_new_tokens=NEW_TOKENS, stop_at_end_of_text=False)
    texts = [s.prompt + s.token_ids for s in generate(target, prompts, settings).sequences]
    if method == "draft":
        drafter = TreeDrafter(draft, [1] * LENGTH, temperature=0.0, rejection_rule="multi-round")
        walked = agreement.walked_draft(draft, texts, len(prompts[0]), LENGTH)
    else:
        drafter = NgramDrafter(length=LENGTH, ngram_max=3)
        walked = agreement.walked_lookup(texts, len(prompts[0]), LENGTH, 3)
    run = [s.accepted_lengths for s in generate(target, prompts, settings, drafter).sequences]
    assert [steps[:-1] for steps in walked] == [steps[:-1] for steps in run]
    assert sum(map(sum, run)) > 0
    rows = agreement.chain_rows(method, "decoder", run, length=LENGTH)
    assert [row["position"] for row in rows] == list(range(1, LENGTH + 1))
    shares = [row["share"] for row in rows]
    assert shares == sorted(shares, reverse=True)


HELD_OUT = {"linear": 0.075, "decode_attention": 0.075, "prefill_attention": 0.085}
"""What shapes left out of a refit may err; elementwise kernels 12.5 % (rows are whole microseconds)."""


@pytest.mark.parametrize("start", sorted(operator_rows.GPU_OF_FILE))
def test_stored_kernels_keep_their_error_on_their_rows(start, shared_data):
    gpu, found = load_gpu(operator_rows.GPU_OF_FILE[start]), 0
    for path in sorted((shared_data / "measured").glob(f"{start}_*.parquet")):
        for score in scores(operator_rows.compared(path, gpu, "calibrated"), gpu):
            told = f"{path.stem} {score.op} {score.dtype} {score.size}"
            held_out = operator_rows.heldout(gpu, score)
            assert held_out < HELD_OUT.get(score.op, 0.125), told
            if score.size == "all":
                assert score.mean < 1.1 * held_out + 0.002, told
                assert 0.78 < score.within_band < 0.96, told  # 80 % are promised
                found += 1
            if (score.op, score.size) == ("linear", "m <= 512"):
                assert score.mean < 1.25 * held_out + 0.002, told
            if (score.op, score.size) == ("decode_attention", "KV beyond"):
                assert score.mean < 0.08, told
    assert found
