"""What launch commands are given, by hand."""

import re
from dataclasses import replace
from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from export_cases import answered
from left_out import numbers_left_out

from medusa_sim import api
from medusa_sim.acceptance.heads import HeadAccuracy
from medusa_sim.acceptance.shaped import ShapedAcceptance
from medusa_sim.engines.runtime import load_runtime
from medusa_sim.export import ab, chains
from medusa_sim.export.engines import engine_settings
from medusa_sim.export.launch import _longest_request, launch_command, launch_values
from medusa_sim.export.llama_cpp import LLAMA_CPP
from medusa_sim.export.settings import _listed, forgone_tree, length_note, range_notes, too_small
from medusa_sim.export.sglang import ADAPTIVE_FILE, SGLANG, adaptive_file, options
from medusa_sim.export.tensorrt_llm import TENSORRT_LLM, TensorrtLlm
from medusa_sim.export.vllm import VLLM, speculative_config
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.plan.recommend import recommend
from medusa_sim.scenario.acceptance import constant_rate
from medusa_sim.scenario.question import Question
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.memory import step_memory_bytes


def values(requests: int = 100, max_tokens: int | None = None, **split: Any) -> dict[str, Any]:
    """Of a model on the GPUs of `split`, for an engine whose caches are `fp8` and `auto`."""
    given = {"tp": 1, "ep": 1, "attention_tp": 1, "dp_attention": False, **split}
    model = SimpleNamespace(name="made", form="bf16", kv_dtype="bf16", precision="bf16", weight_dtype="bf16")
    arguments = SimpleNamespace(dtype=None, weight_dtype=None)
    scenario = SimpleNamespace(parallel=SimpleNamespace(**given), model=model, arguments=arguments)
    engine = SimpleNamespace(kv_dtypes=("fp8", "auto"), quantises_on_load=())
    return launch_values(scenario, engine, "checkpoint", requests, max_tokens)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("split", "a_rank"),
    [
        ({}, 100), ({"tp": 8, "attention_tp": 8}, 100),  # attention of all requests on every GPU
        ({"tp": 8, "attention_tp": 1, "dp_attention": True}, 13),  # 100 / 8 = 12.5, rounded up
        ({"tp": 8, "attention_tp": 2, "dp_attention": True}, 25),
    ],
)  # fmt: skip
def test_requests_of_a_rank_are_those_that_its_attention_has(split, a_rank):
    assert values(**split)["requests_a_rank"] == a_rank


def test_what_is_not_split_is_not_said():
    one = values()
    assert [one[name] for name in ("tp", "ep", "attention_tp", "dp")] == [None] * 4
    assert (one["is_ep"], one["is_dp"], one["requests"], one["max_tokens"]) == (False, False, 100, None)
    spread = values(tp=8, ep=8, attention_tp=1, dp_attention=True, max_tokens=4096)
    assert [spread[name] for name in ("tp", "ep", "attention_tp", "dp")] == [8, 8, None, 8]
    assert (spread["is_ep"], spread["is_dp"], spread["max_tokens"]) == (True, True, 4096)


def test_a_plan_gains_over_the_best_single_number(monkeypatch):
    """Two drafts gain 1.6 and 1.1 at 1 and 64 requests, one 1.4 at both: one alone, or two and then one."""
    log_speedup = np.log(np.array([[1.0, 1.4, 1.6], [1.0, 1.4, 1.1]]))
    grid = chains.ChainGrid(
        batch=np.array([1, 64]), drafts=np.arange(3), log_speedup=log_speedup, rates=np.array([0.8, 0.6]),
        max_batch=np.full(3, 64), searched_to=64,
    )  # fmt: skip
    answer = SimpleNamespace(chains=False, schedule=(), question=SimpleNamespace(switching_gain=0.03))
    monkeypatch.setattr(chains, "chain_grid", lambda answer: grid)
    monkeypatch.setattr(chains, "speculates", lambda answer, batch: np.ones(batch.shape, dtype=bool))

    def plan(margin: float) -> chains.ChainPlan:
        return chains.chain_plan(answer, (1, 64), scheduled=True, margin=margin)  # type: ignore[arg-type]

    assert chains.best_static(grid) == 1
    share = grid.weight[0] / grid.weight.sum()  # of the batches, those at which two are better
    assert plan(0.01).gain == pytest.approx((1.6 / 1.4) ** share - 1.0)
    assert [plan(0.01).drafts_at(batch) for batch in (1, 64, 99)] == [2, 1, 1]
    assert [plan(margin).dynamic for margin in (0.01, 0.5)] == [True, False]
    # what is gained is not worth the tiers
    assert [plan(0.5).drafts_at(batch) for batch in (1, 64)] == [1, 1]

    # an answer that drafts one number wherever it drafts has that number alone
    for numbers, drafts in (({2}, [2, 2]), ({0, 2}, [2, 1]), ({1, 2}, [2, 1])):
        monkeypatch.setattr(chains, "scheduled_numbers", lambda answer, numbers=numbers: numbers)
        assert [plan(0.01).drafts_at(batch) for batch in (1, 64)] == drafts
    monkeypatch.setattr(chains, "scheduled_numbers", lambda answer: set())

    # what an idle drafter costs is only paid where nothing is drafted
    idle = chains.chain_plan(answer, (1, 64), scheduled=True, margin=0.01, idle_cost=lambda batch: 0.5)  # type: ignore[arg-type]
    assert idle.gain == pytest.approx(plan(0.01).gain)

    # one number for both loses most against two drafts at one request
    batch, drafts, best, own = plan(0.5).largest_loss
    assert (batch, drafts) == (1, 2)
    assert (best, own) == pytest.approx((1.6, 1.4))


def test_the_largest_batch_of_a_plan_is_that_of_its_chain():
    """A long chain that does not fit at some batch takes it from the plan, not from what fits."""
    scenario = api.Scenario(model="qwen3-32b", gpu="h100-sxm", drafter="eagle3").with_usual_requests()
    answer = recommend(scenario, Question(batch_max=64))
    plan = chains.chain_plan(answer, (1, 2, 4, 8, 16, 32, 64), scheduled=False, margin=0.0)
    (option,) = (each for each in answer.scenario.options() if each.chain and each.depth == plan.drafts)

    assert scenario.traffic is not None
    in_flight = round(scenario.length + scenario.traffic.output_cv**2 / 2 * scenario.traffic.output_tokens)

    def fits(batch: int) -> bool:
        needed = step_memory_bytes(scenario.shard, option.drafter, batch, in_flight, plan.drafts + 1)
        return bool(needed <= scenario.usable_memory_bytes)

    assert plan.grid.searched_to == 64 > plan.max_batch >= plan.grid.batch[-1]
    assert fits(plan.max_batch)
    assert not fits(plan.max_batch + 1)


def plan_that_loses(*spans: tuple[int, int], begin: int = 1) -> chains.ChainPlan:
    """One draft gains 1.4 at the first batch, and 0.95 and 0.9 at 8 and 64."""
    grid = chains.ChainGrid(
        batch=np.array([begin, 8, 64]), drafts=np.arange(2), rates=np.array([0.8]), max_batch=np.full(2, 64),
        log_speedup=np.log(np.array([[1.0, 1.4], [1.0, 0.95], [1.0, 0.9]])), searched_to=64,
    )  # fmt: skip
    whole = (chains.Tier(1, 64, 1),)
    return chains.ChainPlan(
        grid=grid, drafts=1, tiers=whole, best_schedule=whole, gain=0.0, loses=spans, unsure=(), rates=(0.8,)
    )


@pytest.mark.parametrize(
    ("spans", "least", "cap"), [(((8, 64),), "0.90", True), (((8, 8),), "0.95", False), ((), None, False)]
)
def test_a_plan_that_loses_is_shown_with_its_worst_batch_and_where_to_end(spans, least, cap):
    told = " ".join(range_notes(plan_that_loses(*spans), "--max-num-seqs"))
    assert re.findall(r"([\d.]+)x", told) == ([] if least is None else [least])
    assert ("--max-num-seqs 7" in told) == cap


@pytest.mark.parametrize(("begin", "told"), [(1, []), (2, ["2", "2"]), (4, ["4", "4"])])
def test_batches_below_the_first_that_was_searched_run_as_it_does(begin, told):
    notes = " ".join(range_notes(plan_that_loses(begin=begin), "--max-num-seqs"))
    assert re.findall(r"below (\d+) were not searched and run as (\d+)", notes) == [tuple(told)][: len(told)]


def test_a_schedule_that_gains_too_little_is_told_in_per_cent():
    plan = replace(plan_that_loses(), gain=0.0123)
    assert re.findall(r"[\d.]+ %", too_small(plan, 0.0314)) == ["1.2 %", "3.1 %"]


@pytest.mark.parametrize(
    ("drafter", "version", "tiers", "told"),
    [
        ("mtp", "0.24", 1, ["n_predict"]), ("eagle3", "0.24", 2, []), ("eagle3", "0.33", 1, []),
        ("eagle3", "0.33", 2, ["num_speculative_tokens 5"]),
    ],
)  # fmt: skip
def test_vllm_notes_what_a_method_and_a_version_ask_for(drafter, version, tiers, told):
    """Of two tiers of five and two drafts the most are five."""
    schedule = (chains.Tier(1, 8, 5), chains.Tier(9, 64, 2))[:tiers]
    plan = replace(plan_that_loses(), best_schedule=schedule)
    looks_up = SimpleNamespace(drafting=SimpleNamespace(drafter_class=SimpleNamespace(looks_up=False)))
    chosen = SimpleNamespace(
        drafter=drafter, plan=plan, version=version, method=VLLM.methods[drafter],
        answer=SimpleNamespace(scenario=looks_up),
    )  # fmt: skip
    notes = [*VLLM.notes(chosen)]  # type: ignore[arg-type]
    assert len(notes) == len(told)
    assert all(word in note for word, note in zip(told, notes, strict=True))


def test_forced_rates_have_four_digits(monkeypatch):
    chosen = SimpleNamespace(plan=SimpleNamespace(rates=(0.5, 0.123456)))
    config = {"method": "eagle3", "num_speculative_tokens": 2, "model": "d"}
    monkeypatch.setattr("medusa_sim.export.vllm.speculative_config", lambda chosen: config)
    monkeypatch.setattr(type(VLLM), "server", lambda self, chosen: "serve")
    (line,) = VLLM.synthetic(chosen, 1.6)  # type: ignore[arg-type]
    assert re.findall(r"0\.\d+", line) == ["0.5", "0.1235"]


def test_many_spans_of_batches_are_shown_as_their_ends_and_number():
    assert _listed(((1, 4), (9, 9))) == "1..4, 9"
    assert "1..40 (16 batches" in _listed(((1, 4), (9, 9), (20, 20), (31, 40)))


def test_a_schedule_speculates_where_it_drafts_at_any_length(monkeypatch):
    """By length, candidates with the root: one draft is two."""
    of_length = {512: {1: 2, 8: 1, 64: 1}, 4096: {1: 1, 8: 3, 64: 1}}
    monkeypatch.setattr(chains, "scheduled_counts", lambda rows: rows)
    surface = SimpleNamespace(seq_len=np.array([512, 4096]))
    answer = SimpleNamespace(cells=SimpleNamespace(surface=surface), rows_at=of_length.__getitem__)
    assert chains.speculates(answer, np.array([1, 8, 64])).tolist() == [True, True, False]  # type: ignore[arg-type]


def test_the_tree_that_would_have_gained_most_over_its_chain_is_shown():
    """1.5 over 1.2 is a quarter more; 2.0 over 1.9 a twentieth."""
    rows = [
        SimpleNamespace(
            fits_memory=True, chain=False, candidates=8, speedup=tree, batch_max=batch, seq_len=1024,
            chain_speedup=chain,
        )
        for batch, tree, chain in ((1, 2.0, 1.9), (16, 1.5, 1.2), (64, 1.6, 1.4))
    ]  # fmt: skip
    (note,) = forgone_tree(SimpleNamespace(schedule=rows))  # type: ignore[arg-type]
    assert re.findall(r"batch (\d+)|([\d.]+)x|([+-]\d+ %)", note) == [
        ("16", "", ""), ("", "1.20", ""), ("", "1.50", ""), ("", "", "+25 %"),
    ]  # fmt: skip
    assert forgone_tree(SimpleNamespace(schedule=[])) == ()  # type: ignore[arg-type]
    no_chain = {"chain_speedup": None}
    for is_none in ({"fits_memory": False}, {"chain": True}, {"candidates": 1}, no_chain):
        told = [SimpleNamespace(**{**vars(row), **is_none}) for row in rows]
        assert forgone_tree(SimpleNamespace(schedule=told)) == ()  # type: ignore[arg-type]


def test_batches_count_by_the_doublings_that_they_stand_for():
    """1 stands for itself, 2 for one more, 8 for six more: 1 / ln 2, 1 / (2 ln 2) and 6 / (8 ln 2)."""
    grid = chains.ChainGrid(
        batch=np.array([1, 2, 8]), drafts=np.arange(2), log_speedup=np.zeros((3, 2)), rates=np.array([0.8]),
        max_batch=np.full(2, 8), searched_to=8,
    )  # fmt: skip
    assert grid.weight == pytest.approx(np.array([1.0, 0.5, 0.75]) / np.log(2.0))


@pytest.mark.parametrize("drafter", ["ngram", "eagle3"])
def test_vllm_looks_up_two_to_five_tokens(drafter):
    plan = SimpleNamespace(drafts=3, dynamic=False)
    method = SimpleNamespace(name="ngram" if drafter == "ngram" else "eagle3", parallel=None)
    chosen = SimpleNamespace(drafter=drafter, method=method, plan=plan, starts=(), draft_path="path")
    if drafter == "ngram":
        chosen.draft_path = None
    found = speculative_config(chosen)
    lookup = {"prompt_lookup_min": 2, "prompt_lookup_max": 5} if drafter == "ngram" else {"model": "path"}
    assert found == {"method": drafter, "num_speculative_tokens": 3, **lookup}


@pytest.mark.parametrize("drafter", ["ngram", "eagle3"])
def test_llama_cpp_looks_up_three_tokens_where_its_default_is_shown_to_find_fewer(drafter):
    scenario = SimpleNamespace(arguments=SimpleNamespace(p_min=0.5))
    chosen = SimpleNamespace(
        drafter=drafter, method=SimpleNamespace(name="way"), plan=SimpleNamespace(drafts=6), draft_path=None,
        answer=SimpleNamespace(scenario=scenario),
    )  # fmt: skip
    flags, notes = LLAMA_CPP.write(chosen).split(), list(LLAMA_CPP.notes(chosen))
    if drafter == "ngram":
        assert flags[2:] == ["--spec-ngram-simple-size-n", "3", "--spec-ngram-simple-size-m", "6"]
        assert [re.findall(r"\d+", note) for note in notes] == [["3", "12"]]
    else:
        assert flags[2:] == ["--spec-draft-n-max", "6", "--spec-draft-p-min", "0.5"]
        assert notes == []


@pytest.mark.parametrize(
    ("lengths", "loses", "numbers"),
    [
        ((512,), None, ["512"]), ((512,), 1, ["512"]), ((512, 1024), None, ["512", "1024"]),
        ((512,), 2048, ["512", "2048", "2047"]),
    ],
)  # fmt: skip
def test_a_note_names_its_lengths_and_where_drafts_lose(lengths, loses, numbers):
    answer = SimpleNamespace(
        question=SimpleNamespace(seq_len=lengths, batch_max=64),
        break_even_context=SimpleNamespace(loses_from=loses, searched_from=1),
    )
    told = [each for each in re.findall(r"\d+", length_note(answer, "--max-model-len")) if each != "64"]
    assert (told, "geometric" in length_note(answer, "x")) == (numbers, len(lengths) > 1)


@pytest.mark.parametrize(
    ("planned", "told"),
    [
        ((1.5, 1.2, 0.8), (1, 5, 2.0, 1.5)),  # 0.75 of the best, then 0.86 and 0.8
        ((2.0, 1.4, 0.6), (64, 0, 1.0, 0.6)),
        ((2.0, 1.0, 0.9), (8, 2, 1.4, 1.0)),
    ],
)
def test_a_plan_loses_most_where_it_is_furthest_below_the_best_number(monkeypatch, planned, told):
    speedup = np.log([[1.0, 1.5, 2.0], [1.0, 1.4, 1.2], [1.0, 0.8, 0.6]])
    grid = SimpleNamespace(
        batch=np.array([1, 8, 64]), drafts=np.array([0, 2, 5]), log_speedup=speedup,
        log_speedup_of=lambda drafts: np.log(planned),
    )  # fmt: skip
    monkeypatch.setattr(chains, "drafts_by_batch", lambda grid, tiers: tiers)
    plan = SimpleNamespace(grid=grid, tiers=())
    assert chains.ChainPlan.largest_loss.fget(plan) == pytest.approx(told)


def falling(grid: chains.ChainGrid, ends: list[int], switch: float) -> list[int]:
    """Drafts of the best sum of weighted log speedups less the switches: every falling order is tried."""
    edges = [grid.batch[0] - 1, *ends, grid.batch[-1]]
    inside = [(grid.batch > low) & (grid.batch <= high) for low, high in pairwise(edges)]
    every = product(range(grid.drafts.size), repeat=len(inside))
    worth = {
        columns: sum(
            float((grid.weight * grid.log_speedup[:, column])[rows].sum())
            for rows, column in zip(inside, columns, strict=True)
        )
        - switch * sum(before != after for before, after in pairwise(columns))
        for columns in every
        if all(before >= after for before, after in pairwise(columns))
    }
    best = max(worth, key=lambda columns: worth[columns])
    return [int(grid.drafts[column]) for column in best]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("gain", [0.0, 0.02, 0.2])
def test_tiers_are_the_best_of_all_that_never_rise(seed, gain):
    random = np.random.default_rng(seed)
    batch, drafts = np.array([1, 2, 3, 8, 12, 40, 100]), np.array([0, 1, 3, 4])
    speedup = np.hstack([np.zeros((batch.size, 1)), random.normal(0.05, 0.2, (batch.size, drafts.size - 1))])
    grid = chains.ChainGrid(
        batch=batch, drafts=drafts, log_speedup=speedup, max_batch=np.full(4, 100), searched_to=100,
        rates=np.array([0.8, 0.5, 0.4, 0.3]),
    )  # fmt: skip
    best = falling(grid, [2, 8, 40], np.log1p(gain))
    found = chains.best_tiers(grid, (2, 8, 40, 100, 256), gain=gain, idle_cost=lambda batch: 0.0)
    starts = [1, 3, 9, 41]
    assert [next(tier.drafts for tier in found if tier.batch_max >= start) for start in starts] == best
    assert (found[0].batch_min, found[-1].batch_max) == (1, 100)
    assert all(before.batch_max + 1 == after.batch_min for before, after in pairwise(found))
    assert all(before.drafts > after.drafts for before, after in pairwise(found))


@pytest.mark.parametrize(
    ("chain", "tree", "counted"),
    [
        # a tree gains where chains lose, and the other way round; where neither pays, nothing counts
        ((-0.1, -0.1, -0.1), (0.3, -0.1, -0.2), [0]),
        ((0.1, 0.2, -0.1), (0.3, -0.3, -9.0), None),
        ((0.1, 0.2, -0.1), (0.5, 0.2, -9.0), [0, 1]),
        ((0.1, 0.1, 0.1), (0.12, 0.12, 0.12), None),  # 2 % is not worth 3
    ],
)
def test_a_tree_is_worth_its_gain_where_it_or_a_chain_pays(chain, tree, counted):
    """Batches 1, 2 and 4, of equal weights but for the first's."""
    batch = np.array([1, 2, 4])
    grid = chains.ChainGrid(
        batch=batch, drafts=np.array([0, 2]), log_speedup=np.array([np.zeros(3), chain]).T,
        max_batch=np.full(2, 4), searched_to=4, rates=np.array([0.8, 0.6]),
    )  # fmt: skip
    options = (SimpleNamespace(width=1, depth=2), SimpleNamespace(width=3, depth=2))
    configurations = SimpleNamespace(
        options=options, option=np.array([-1, 0, 1]), candidates=np.array([1, 3, 9]),
        option_of=lambda column: options[1],
    )  # fmt: skip
    speedup = np.exp(np.array([np.zeros(3), chain, tree]).T[:, None, :])
    cells = SimpleNamespace(
        surface=SimpleNamespace(batch=batch), configurations=configurations, speedup=speedup,
        fits=np.ones(speedup.shape, dtype=bool),
    )  # fmt: skip
    answer = SimpleNamespace(
        cells=cells, scenario=SimpleNamespace(chain_only=False), question=SimpleNamespace(switching_gain=0.03)
    )
    plan = SimpleNamespace(grid=grid, tiers=(chains.Tier(1, 4, 2),))
    found = chains.best_tree(answer, plan, lambda shape: True)  # type: ignore[arg-type]
    gain = counted and np.average((np.array(tree) - chain)[counted], weights=grid.weight[counted])
    assert found == (counted and chains.TreeShape(2, 3, 9, pytest.approx(np.expm1(gain))))


def test_batches_at_which_a_plan_of_one_draft_loses_or_is_unsure_are_shown(monkeypatch):
    grid = chains.ChainGrid(
        batch=np.array([1, 2, 4, 8, 16]), drafts=np.array([0, 1]),
        log_speedup=np.array([np.zeros(5), [0.3, 0.2, 0.1, 0.0, -0.1]]).T,
        max_batch=np.full(2, 16), searched_to=16, rates=np.array([0.8]),
    )  # fmt: skip
    answer = SimpleNamespace(chains=False, schedule=(), question=SimpleNamespace(switching_gain=0.03))
    monkeypatch.setattr(chains, "chain_grid", lambda answer: grid)
    monkeypatch.setattr(chains, "speculates", lambda answer, batch: batch <= 1)
    plan = chains.chain_plan(answer, (), scheduled=False, margin=0.0)  # type: ignore[arg-type]
    assert (plan.drafts, plan.unsure, plan.loses, plan.rates) == (1, ((2, 4),), ((8, 16),), (0.8,))


@pytest.mark.parametrize(("kv_dtype", "spread", "prompt_tokens", "lines"), [
    ("bf16", False, None, []), ("fp8", False, 8192.0, ["kv_cache_config:", "  dtype: fp8"]),
    ("bf16", True, None, ["enable_attention_dp: true"]),
    ("bf16", False, 8193.0, ["enable_chunked_prefill: true"]),
])  # fmt: skip
def test_a_file_of_tensorrt_says_what_is_not_its_default(kv_dtype, spread, prompt_tokens, lines):
    scenario = SimpleNamespace(
        model=SimpleNamespace(kv_dtype=kv_dtype), parallel=SimpleNamespace(dp_attention=spread),
        runtime=load_runtime("tensorrt-llm"), gpu=load_gpu("h100-sxm"),
        traffic=None if prompt_tokens is None else SimpleNamespace(prompt_tokens=prompt_tokens),
    )  # fmt: skip
    scenario.refused_prompt = Scenario.refused_prompt.fget(scenario)  # type: ignore[attr-defined]
    for speculation in ([], ["speculative_config:", "  decoding_type: MTP"]):
        found = TensorrtLlm.launch_lines(None, scenario, speculation)  # type: ignore[arg-type]
        assert found[1:-2] == speculation + lines
        assert len(found) == (len(lines + speculation) and len(lines + speculation) + 3)


def test_rates_of_a_chain_end_at_always():
    """Shares of 0.95 and 0.3, 1.3 times as many on this text: 1.235 is 1, and 0.39."""
    profile = constant_rate(0.5)
    heads = HeadAccuracy.checked([[0.95], [0.3 / 0.95]])
    made = replace(profile, model=ShapedAcceptance("made", heads), ratio=1.3)
    grid = chains.chain_grid(answered("ngram", made, batch_max=4))
    assert grid.rates == pytest.approx([1.0, 0.39], rel=1e-6)


@pytest.mark.parametrize("drafter", ["suffix", "ngram"])
def test_a_package_is_asked_for_where_the_method_needs_one(drafter):
    settings = engine_settings(answered(drafter, batch_max=8), "vllm")
    assert ("arctic-inference" in " ".join(settings.notes)) == (drafter == "suffix")


@pytest.mark.parametrize(
    ("length", "request_tokens", "prompt", "output"),
    [(512, None, 384, 256), (4000, None, 3872, 256), (300, None, 225, 150), (1, None, 1, 1),
     (512, (700, 100), 700, 100)],
)  # fmt: skip
def test_runs_of_a_comparison_have_the_length_that_was_asked_for_in_their_middle(
    length, request_tokens, prompt, output
):
    engine = SimpleNamespace(bench_command="{common} {name} {port}", port=8000)
    answer = SimpleNamespace(question=SimpleNamespace(seq_len=(length,), request=request_tokens))
    (line,) = ab._bench(engine, answer, [4], "plain")
    words = line.split()
    assert words[words.index("--random-input-len") + 1] == str(prompt)
    assert words[words.index("--random-output-len") + 1] == str(output)
    assert words[words.index("--max-concurrency") + 1] == "4"
    assert words[words.index("--num-prompts") + 1] == "32"  # eight a request
    assert words[-2:] == ["plain_b4", "8000"]


def test_the_longest_request_leaves_room_for_the_steps_of_its_drafts():
    """24 GB with 16 GB of weights: the drafter takes a sixth of the room, each further draft a few slots."""
    scenario = api.Scenario(
        gpu="l4", model="llama-3.1-8b", drafter="eagle3", acceptance="eagle3-llama-3.1-8b", runtime="vllm"
    )
    longest = [_longest_request(scenario, drafts, requests=8) for drafts in (0, 1, 2, 3)]
    assert longest == [45151, 37453, 37435, 37401]


@pytest.mark.parametrize(
    ("version", "dynamic", "drafter", "count"),
    [("0.5", False, "eagle3", 1), ("0.5.23", False, "eagle3", 0), ("0.5.23", True, "eagle3", 1),
     ("0.5", True, "ngram", 3)],
)  # fmt: skip
def test_sglang_says_what_a_version_and_a_method_lack(version, dynamic, drafter, count):
    chosen = SimpleNamespace(
        version=version, plan=SimpleNamespace(dynamic=dynamic), tree=None, drafter=drafter
    )
    assert len([*SGLANG.notes(chosen)]) == count  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "form", "engine", "named"),
    [  # the id that was asked for where it has the format; one in the format, or what the engine makes fp8
        ("llama-3.1-8b", None, "vllm", "meta-llama/Llama-3.1-8B-Instruct"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic", None, "vllm",
         "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic", "bf16", "vllm",
         "meta-llama/Llama-3.1-8B-Instruct"),
        ("llama-3.1-8b", "fp8", "vllm", "meta-llama/Llama-3.1-8B-Instruct"),
        ("meta-llama/Llama-3.1-8B", None, "vllm", "meta-llama/Llama-3.1-8B"),
        ("meta-llama/Llama-3.1-8B", "fp8", "vllm", "meta-llama/Llama-3.1-8B"),
        ("meta-llama/llama-3.1-8b", "fp8", "tensorrt-llm", "meta-llama/Llama-3.1-8B"),
        ("llama-3.1-8b", "fp8", "tensorrt-llm", "nvidia/Llama-3.1-8B-Instruct-FP8"),
    ],
)  # fmt: skip
def test_the_checkpoint_of_a_command_has_the_format_that_was_priced(model, form, engine, named):
    scenario = Scenario(
        gpu="h100-sxm", model=model, runtime=engine, drafter="ngram", acceptance=0.5, latency="roofline",
        dtype=form, weight_dtype=form,
    )  # fmt: skip
    command = launch_command(scenario, engine, 4, None, None)
    (serve,) = (line for line in command.splitlines() if line.startswith(("vllm", "trtllm-serve")))
    assert named in serve.split()
    assert ("--quantization fp8" in serve) == (form == "fp8" and engine == "vllm")


@pytest.mark.parametrize(
    ("method", "version", "tree", "tiers", "given"),
    [
        ("NGRAM", "0.5.23", None, None, {"ngram-max-bfs-breadth": 1, "num-draft-tokens": 4}),
        ("DFLASH", "0.5.23", None, None, {"dflash-block-size": 4}),  # with the token that is known
        ("DSPARK", "0.5.23", None, None, {"dspark-block-size": 3}),
        ("EAGLE3", "0.5.23", None, None, {"num-steps": 3, "eagle-topk": 1, "num-draft-tokens": 4}),
        ("EAGLE3", "0.5.23", None, {1: 3, 9: 1}, {
            "num-steps": 3, "eagle-topk": 1, "num-draft-tokens": 4, "adaptive": True,
            "adaptive-config": ADAPTIVE_FILE,
        }),
        ("EAGLE3", "0.5.23", (2, 4, 8), None,
         {"num-steps": 2, "eagle-topk": 4, "num-draft-tokens": 8, "--page-size": 1}),
        ("EAGLE3", "0.5", (2, 4, 8), None,
         {"num-steps": 2, "eagle-topk": 4, "num-draft-tokens": 8, "--disable-overlap-schedule": True}),
    ],
)  # fmt: skip
def test_flags_of_sglang_are_the_drafts_of_the_plan_and_the_root(method, version, tree, tiers, given):
    """Three drafts; a tree of depth 2, 4 wide, of 8 candidates."""
    plan = SimpleNamespace(drafts=3, dynamic=tiers is not None)
    shape = None if tree is None else SimpleNamespace(depth=tree[0], width=tree[1], candidates=tree[2])
    chosen: Any = SimpleNamespace(
        plan=plan, tree=shape, method=SimpleNamespace(name=method), version=version, draft_path="d",
        starts=[(start, SimpleNamespace(drafts=drafts)) for start, drafts in (tiers or {}).items()],
    )  # fmt: skip
    told = {"algorithm": method, "draft-model-path": "d", **given}
    assert options(chosen) == {
        name if name.startswith("--") else f"--speculative-{name}": value for name, value in told.items()
    }
    slots = re.findall(r'"(\d+)": {"candidate_steps": \[(\d+)\]}', adaptive_file(chosen))
    assert {int(start): int(drafts) for start, drafts in slots} == (tiers or {})


@pytest.mark.parametrize(
    ("version", "length", "forced"),
    [("1.2", 1.2, 2.0), ("1.2", 2.6, 3.0), ("1.3", 2.4, 2.0), ("1.4", 1.2, 1.2), ("1.4", 2.6, 2.6)],
)
def test_tensorrt_llm_accepts_a_whole_number_of_drafts_and_at_least_one(version, length, forced):
    assert TENSORRT_LLM.nearest_length(version, length) == forced


@pytest.mark.parametrize(
    ("depth", "width", "candidates", "grows"),
    [(3, 2, 4, True), (3, 2, 3, False), (3, 2, 7, True), (3, 2, 8, False)],
)
def test_tensorrt_llm_grows_at_least_a_chain_and_at_most_its_width_a_level(depth, width, candidates, grows):
    shape = SimpleNamespace(depth=depth, width=width, candidates=candidates)
    method = TENSORRT_LLM.methods["eagle3"]
    fits = TENSORRT_LLM.trees(method, "1.3")
    assert fits is not None
    assert fits(shape) is grows  # type: ignore[arg-type]
    assert TENSORRT_LLM.trees(method, "1.2") is None
    assert TENSORRT_LLM.trees(TENSORRT_LLM.methods["ngram"], "1.3") is None


@pytest.mark.parametrize(
    ("version", "dynamic", "last", "tree", "method", "default", "count"),
    [
        ("1.2", True, 0, None, "Eagle3", True, 1), ("1.3", True, 0, None, "Eagle3", False, 1),
        ("1.3", True, 1, None, "Eagle3", False, 0), ("1.3", False, 0, None, "Eagle3", False, 0),
        ("1.3", True, 0, object(), "Eagle3", False, 1), ("1.3", False, 0, None, "PARD", False, 1),
        ("1.2", True, 0, None, "Eagle3", False, 0),
    ],
)  # fmt: skip
def test_tensorrt_llm_says_what_a_version_and_a_method_lack(
    version, dynamic, last, tree, method, default, count
):
    plan = SimpleNamespace(dynamic=dynamic, tiers=[SimpleNamespace(drafts=last)])
    chosen = SimpleNamespace(
        version=version, plan=plan, tree=tree, method=SimpleNamespace(name=method), is_default=default
    )
    assert len([*TENSORRT_LLM.notes(chosen)]) == count  # type: ignore[arg-type]


def test_what_an_engine_is_made_to_accept_is_predicted():
    """One for the step and the rates of the drafts: 1.8, 2.4 and 2.7 tokens of one, two and three."""
    tiers = (chains.Tier(1, 4, 3), chains.Tier(5, 16, 1), chains.Tier(17, 64, 0))
    grid = chains.ChainGrid(
        batch=np.array([1, 4, 16, 64]), drafts=np.arange(4), max_batch=np.full(4, 64), searched_to=64,
        log_speedup=np.log(np.arange(1.0, 17.0).reshape(4, 4)), rates=np.array([0.8, 0.6, 0.3]),
    )  # fmt: skip
    plan = SimpleNamespace(
        grid=grid, tiers=tiers, rates=(0.8, 0.6, 0.3),
        drafts_at=lambda batch: 3 if batch <= 4 else 1 if batch <= 16 else 0,
    )  # fmt: skip
    assert [ab.acceptance_length(plan, batch) for batch in (1, 16, 64)] == pytest.approx([2.7, 1.8, 1.0])  # type: ignore[arg-type]
    assert ab.batches(plan) == (1, 4, 16, 64)  # type: ignore[arg-type]
    engine = SimpleNamespace(nearest_length=lambda version, length: round(length))
    found = [*ab.predictions(engine, SimpleNamespace(version="1"), plan)]  # type: ignore[arg-type]
    told = [(1, 4.0 * 3 / 2.7, 3.0), (4, 8.0 * 3 / 2.7, 3.0), (16, 10.0 * 2 / 1.8, 2.0), (64, 13.0, 1.0)]
    assert np.array(found) == pytest.approx(np.array(told))


def test_a_middle_batch_is_the_geometric_mean_of_the_ends_or_the_next_one():
    plan = SimpleNamespace(
        grid=SimpleNamespace(batch=np.array([2, 3, 10, 20, 32])), tiers=[chains.Tier(2, 3, 2)]
    )
    assert ab.batches(plan) == (2, 3, 10, 32)  # type: ignore[arg-type]  # sqrt(2 x 32) = 8


def test_what_is_left_out_is_nothing_but_for_these():
    """Factors and counts are one, sizes those that most have."""
    assert numbers_left_out("export") == {
        "EngineExport.port": 8000,
        "Versions.ahead": 2,
    }
