"""Numbers in doubts by hand: shares of a step that is carried elsewhere, formats that lose, what is near."""

import json
import re
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numbers_in_text import numbers

from medusa_sim.doubts import kernels as kernel_doubts
from medusa_sim.doubts import of_scenario as rules
from medusa_sim.doubts import room as room_doubts
from medusa_sim.doubts import terms as doubt_terms
from medusa_sim.doubts.acceptance import (
    acceptance_of_outputs,
    acceptance_of_shorter_contexts,
    acceptance_of_shorter_requests,
    guessed_acceptance,
    lossless_as_given,
    workload_of_medusa,
)
from medusa_sim.doubts.of_answer import length_doubts, limit_with_a_drafter
from medusa_sim.doubts.of_scenario import (
    cut_scale_blocks,
    prompts_beyond_a_step,
    scenario_doubts,
    slow_link,
)
from medusa_sim.doubts.stand_ins import borrowed_shares, other_form, slower_than_halves, taken_over
from medusa_sim.doubts.term_shares import doubled, token_us, usual_option
from medusa_sim.doubts.terms import WORDS, terms_out_of_range
from medusa_sim.operators.gemm import Gemm
from medusa_sim.scenario.scenario import Scenario

RATES = "0.7,0.5,0.35"
"""Three drafts: 1 + 0.7 + 0.5 + 0.35 = 2.55 tokens a step."""
SERVED = {"prompt_tokens": 256, "output_tokens": 256}


def dense(runtime: str, **more: object) -> Scenario:
    given = {"gpu": "h100-sxm", "model": "llama-3.1-8b", "drafter": "eagle3", "acceptance": RATES, **more}
    return Scenario(**given, runtime=runtime)


@pytest.mark.parametrize(("runtime", "own"), [
    ("vllm", "bf16 for fp32"), ("sglang", "Gemma in bf16"), ("tensorrt-llm", "bf16 where it has none"),
    ("cuda-graph", "run in fp16"),
])  # fmt: skip
def test_a_config_without_a_dtype_is_shown_with_what_the_engine_would_take(runtime, own, tmp_path):
    config = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 11008,
        "num_hidden_layers": 2, "num_attention_heads": 32, "vocab_size": 32000,
        "max_position_embeddings": 4096,
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    given = {"model": path, "gpu": "h100-sxm", "runtime": runtime, "drafter": None, "acceptance": 0.5}
    (told,) = rules.notes_of_the_model(Scenario(**given))
    assert "no dtype in the config: run in fp16" in told
    assert told.endswith(own) or f"{own}: give --dtype bf16" in told
    assert not list(rules.notes_of_the_model(Scenario(**given, dtype="bf16")))


def percent(line: str) -> tuple[int, float]:
    """(requests, per cent longer) that a sentence names."""
    found = re.search(r"take (\d+) % longer at (\d+) request", line)
    assert found
    return int(found[2]), float(found[1])


@pytest.mark.parametrize(("runtime", "requests", "words"), [
    ("sglang", 256, "launches of prompts"), ("vllm", 1, "the host in the drafter's passes"),
])  # fmt: skip
def test_what_twice_of_a_term_from_elsewhere_adds_is_shown(runtime, requests, words):
    scenario, batch = dense(runtime, **SERVED), np.array([float(requests)])
    engine, option = scenario.setting.runtime.engine, usual_option(scenario)
    names = [name for name, text in WORDS.items() if text.startswith(words) and engine.terms[name].value]
    terms = doubled({name: engine.terms[name] for name in names if engine.terms[name].outside})
    once, twice = (token_us(scenario, each, batch, 640, option) for each in ({}, terms))
    (line,) = terms_out_of_range(scenario, (1, requests), 640)
    assert line.startswith(words)
    assert percent(line) == (requests, pytest.approx(100 * float((twice / once - 1)[0]), abs=0.6))


@pytest.mark.parametrize("drafter", ["ngram", "suffix"])
def test_what_twice_of_a_term_adds_to_look_ups_is_priced_where_prompts_keep_requests_waiting(drafter):
    """The mean number of requests that decode is no whole one then."""
    scenario = Scenario(
        gpu="rtx-3090", tp=4, model="qwen3.5-35b-a3b", drafter=drafter, runtime="vllm-0.24",
        prompt_tokens=8000, output_tokens=500,
    )  # fmt: skip
    few_us, more_us = token_us(scenario, {}, np.array([30.0, 35.0]), 8250, usual_option(scenario))
    assert 0.0 < few_us < more_us


@pytest.mark.parametrize(("added", "told"), [(0.095, []), (0.105, [(16, 10)]), (0.124, [(16, 12)])])
def test_a_term_from_elsewhere_is_shown_from_a_tenth_of_a_token(monkeypatch, added, told):
    scenario = dense("sglang")
    monkeypatch.setattr(
        doubt_terms, "_is_out_of_range",
        lambda name, term, batch: np.full(batch.shape, name == "host_us_per_step"),
    )  # fmt: skip
    monkeypatch.setattr(
        doubt_terms,
        "token_us",
        lambda scenario, terms, batch, *_: np.full(batch.shape, 1 + bool(terms) * added),
    )
    assert [percent(line) for line in terms_out_of_range(scenario, (16, 16), 640)] == told


@pytest.mark.parametrize(("room", "told"), [(1.0, 0), (0.99, 1)])
def test_a_model_is_too_large_where_one_token_of_one_request_has_no_room(monkeypatch, room, told):
    monkeypatch.setattr(room_doubts, "step_memory_bytes", lambda model, _, *sizes: float(np.prod(sizes)))
    monkeypatch.setattr(room_doubts, "fewest_gpus", lambda *given: 2)
    made = dense("vllm")
    given = SimpleNamespace(
        scope="model", shard=made.shard, model=made.model, gpu=made.gpu, runtime=made.runtime,
        usable_memory_bytes=room,
    )  # fmt: skip
    assert len(list(room_doubts.model_too_large(given))) == told


def test_kernels_are_doubted_where_times_are_of_kernels():
    lent = dense("vllm", gpu="b300")
    assert (
        list(rules.fitted_kernels(lent))
        == [line for rule in kernel_doubts.RULES_OF_KERNELS for line in rule(lent)]
        != []
    )
    assert list(rules.fitted_kernels(dense("cuda-graph", gpu="b300", latency="roofline"))) == []


def test_borrowed_kernels_tell_the_most_by_which_times_are_scaled(monkeypatch):
    monkeypatch.setattr(kernel_doubts, "borrowed_shares", lambda scenario: {"norms": 0.5, "attention": 0.25})
    fits = SimpleNamespace(
        lenders=("a40:torch",),
        by_key={"one": SimpleNamespace(slower=1.0), "two": SimpleNamespace(slower=1.25)},
    )
    (line,) = kernel_doubts.borrowed_kernels(
        SimpleNamespace(kernel_fits=fits, gpu=SimpleNamespace(name="made"))
    )
    assert re.findall(r"[\d.]+\d", line.split(":", 2)[-1]) == ["75", "1.25"]


@pytest.mark.parametrize(("drafter", "acceptance", "told"), [
    ("medusa", None, []), ("eagle3", None, [workload_of_medusa]), ("medusa", 0.6, [lossless_as_given]),
])  # fmt: skip
def test_what_was_measured_with_medusa_heads_is_doubted_elsewhere(drafter, acceptance, told):
    asked = {"lossless": True} if acceptance else {"workload": "coding"}
    scenario = Scenario(model="vicuna-7b", drafter=drafter, acceptance=acceptance, **asked)
    assert [rule for rule in (workload_of_medusa, lossless_as_given) if any(rule(scenario))] == told


def accepted(**profile: Any) -> Any:
    """A scenario with this acceptance, whose requests grow from 600 to 1,000 tokens: 800 on average."""
    given = {"name": "made", "longest_context": None, "output_share": 1.0, **profile}
    return SimpleNamespace(
        profile=SimpleNamespace(**given), model=SimpleNamespace(name="model"),
        traffic=SimpleNamespace(prompt_tokens=600.0, output_tokens=400.0),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("longest", "tokens", "told"), [(800, 840.0, []), (800, 841.0, ["800", "841"]), (None, 1e6, [])]
)
def test_contexts_beyond_those_of_an_acceptance_are_shown_with_both(longest, tokens, told):
    lines = list(acceptance_of_shorter_contexts(accepted(longest_context=longest), tokens))
    assert [numbers(line)[:2] for line in lines] == ([told] if told else [])


@pytest.mark.parametrize(("longest", "count"), [(761, 1), (762, 0)])
def test_requests_are_as_long_as_half_way_through_their_outputs(longest, count):
    scenario = accepted(longest_context=longest)
    assert len(list(acceptance_of_shorter_requests(scenario))) == count
    scenario.traffic = None
    assert not list(acceptance_of_shorter_requests(scenario))


@pytest.mark.parametrize(("first", "told"), [(None, []), (2, ["1", "2"]), (5, ["4", "5"])])
def test_drafts_beyond_those_that_were_measured_are_guesses(first, told):
    scenario = accepted()
    scenario.guessed_from = first
    assert [each for line in guessed_acceptance(scenario) for each in numbers(line)] == told


def test_a_share_of_published_rates_is_shown():
    (line,) = acceptance_of_outputs(accepted(output_share=0.85, output_tokens=256.0))
    assert numbers(line) == ["0.85", "256"]
    assert not list(acceptance_of_outputs(accepted()))


def test_requests_beyond_what_a_drafter_leaves_are_shown():
    """SGLang admits 48 with a drafter."""
    scenario = dense("sglang")
    assert list(limit_with_a_drafter(scenario, 48)) == []
    (line,) = limit_with_a_drafter(scenario, 49)
    assert "at most 48 requests" in line
    assert list(limit_with_a_drafter(dense("cuda-graph"), 4096)) == []


def test_kernels_of_other_cards_are_shares_of_a_plain_step():
    """Of a GPU with no row of its own all of a step, of a measured one nothing."""
    lent = borrowed_shares(dense("vllm", gpu="b300"))
    assert sum(lent.values()) == pytest.approx(1.0, rel=1e-9)
    assert all(share > 0.0 for share in lent.values())
    assert borrowed_shares(dense("vllm")) == {}
    some = borrowed_shares(Scenario(gpu="l40s", model="qwen3-30b-a3b", drafter="eagle3", acceptance=RATES))
    assert 0.0 < sum(some.values()) < 1.0


def test_a_format_that_loses_is_shown_at_the_rows_where_it_loses_most():
    """Times of all linear layers of a step at 1, 64 and 256 rows, in the format over bf16."""
    slow = dense("sglang", gpu="b200", tp=4, dtype="fp8")
    form, rows, times = slower_than_halves(slow)
    latency, taken = slow.latency, {}
    for m in (1, 64, 256):
        own = halves = 0.0
        for launch in slow.kernel_fits.plain_launches:
            if isinstance(launch.operator, Gemm) and launch.operator.dtype == "fp8":
                layer = replace(launch.operator, m=np.asarray(m))
                own += launch.count * float(latency.time(layer).time_us)
                wide = replace(layer, dtype="bf16", weight_dtype=None)
                halves += launch.count * float(latency.time(wide).time_us)
        taken[m] = own / halves
    assert form == "fp8"
    assert (rows, times) == (max(taken, key=taken.__getitem__), pytest.approx(max(taken.values()), rel=0.02))
    assert times > 1.0
    assert slower_than_halves(dense("vllm")) is None


def test_experts_of_another_format_are_named_where_formats_differ():
    assert other_form(dense("vllm")) is None
    assert (
        other_form(Scenario(gpu="h100-sxm", model="qwen3-30b-a3b", drafter="eagle3", acceptance=RATES))
        is None
    )
    assert taken_over(dense("cuda-graph")) == []


def test_links_and_lengths_beyond_what_is_known_are_shown():
    """An H100 has links to eight; its model positions of 131,072 tokens."""
    assert list(slow_link(dense("vllm", tp=8))) == []
    (line,) = slow_link(dense("vllm", model="llama-3.1-405b", dtype="fp8", tp=16))
    assert "one node" in line
    plain = dense("vllm", drafter="ngram", acceptance="0.5")
    positions = plain.model.max_seq_len
    assert [len(length_doubts(plain, tokens)) for tokens in (positions, positions + 1)] == [0, 1]
    assert not [each for each in scenario_doubts(plain) if "positions" in each]


@pytest.mark.parametrize(("share", "told"), [(0.0099, "under 1 %"), (0.0101, "1 %"), (0.5, "50 %")])
def test_a_borrowed_share_below_a_hundredth_is_under_one_percent(monkeypatch, share, told):
    monkeypatch.setattr(kernel_doubts, "borrowed_shares", lambda scenario: {"norms": share})
    (line,) = kernel_doubts.borrowed_kernels(dense("vllm", gpu="b300"))
    assert f"norms ({told} of a plain step)" in line


def test_terms_that_were_taken_over_are_counted_beside_all_that_count():
    scenario = dense("sglang", model="llama-3.1-70b", tp=4)
    terms = scenario.runtime.engine.terms
    every = [name for name, term in terms.items() if term.value != 0.0]
    (line,) = rules.engine_on_other_gpus(scenario)
    assert line.startswith(f"{len(taken_over(scenario))} of the {len(every)} terms")
    assert 0 < len(taken_over(scenario)) < len(every)


@pytest.mark.parametrize(("ep", "lines"), [(1, 0), (2, 1), (8, 1)])
def test_experts_that_are_spread_are_priced_by_kernels_without(ep, lines):
    scenario = dense("vllm", model="qwen3-30b-a3b", tp=ep, ep=ep)
    assert len(list(kernel_doubts.spread_experts(scenario))) == lines
    # the link of an H100 joins eight; of two GPUs collectives were measured everywhere
    assert list(kernel_doubts.collectives_of_more_gpus(dense("vllm", tp=2))) == []


@pytest.mark.parametrize(("tp", "knows", "told"), [(2, False, 0), (4, False, 1), (4, True, 0), (2, True, 0)])
def test_collectives_of_two_cards_are_an_extrapolation_to_more(tp, knows, told):
    kernels = SimpleNamespace(collective={"all_reduce": SimpleNamespace(knows_ranks=knows)})
    made = SimpleNamespace(
        parallel=SimpleNamespace(tp=tp), gpu=SimpleNamespace(name="made", kernels={"set": kernels}),
        kernel_fits=SimpleNamespace(by_key={"collective.set:all_reduce": None, "gemm.set:bf16": None}),
    )  # fmt: skip
    assert len(list(kernel_doubts.collectives_of_more_gpus(made))) == told


def left_with_host(**given: object) -> tuple[Scenario, list[float]]:
    """A scenario of llama.cpp on 24 GB, and the numbers of the option that makes room."""
    scenario = Scenario(gpu="rtx-4090", runtime="llama.cpp-cuda", drafter="ngram", acceptance="0.5", **given)
    return scenario, [
        float(each) for each in re.findall(r"(?<![\w-])\d+\.?\d*", room_doubts._with_the_host(scenario))
    ]


def test_layers_that_a_card_has_no_room_for_stay_with_the_host():
    """Of 80 layers of a 70B in four bits; a token waits for what the host reads at 80 GB/s."""
    scenario, told = left_with_host(model="llama-3.1-70b", weight_dtype="q4_k_m")
    model, room = scenario.shard, scenario.usable_memory_bytes
    beyond = model.weight_bytes - room
    assert 15e9 < beyond < 30e9
    kept, layers, gigabytes, waits_ms = told[:4]
    assert layers == 80
    assert gigabytes == pytest.approx(beyond / 1e9, abs=0.2)
    assert kept == pytest.approx(80 * (1 - beyond / model.layers_weight_bytes), abs=1.1)
    assert waits_ms == pytest.approx(1e3 * beyond / 80e9, abs=3.0)


def test_of_a_mixture_experts_stay_and_a_token_reads_its_own():
    """128 experts of 3 x 2048 x 768 weights in each of 48 layers, of which a token reads 8."""
    scenario, told = left_with_host(model="qwen3-30b-a3b", weight_dtype="q8_0")
    beyond = scenario.shard.weight_bytes - scenario.usable_memory_bytes
    layer = 128 * 3 * 2048 * 768 * 8.5 / 8  # q8_0: 32 weights and a scale of two bytes
    moved, again, layers, gigabytes, waits_ms = told[:5]
    assert layers == 48
    assert moved == again == pytest.approx(np.ceil(beyond / layer), abs=1)
    assert gigabytes == pytest.approx(beyond / 1e9, abs=0.2)
    assert waits_ms == pytest.approx(1e3 * moved * layer * 8 / 128 / 80e9, abs=0.6)


def test_doubts_are_of_what_an_answer_rests_on(monkeypatch):
    """Plain decoding rests on no acceptance, few candidates on no guess of later ones."""
    told = {rules.whose_acceptance: "whose", rules.guessed_acceptance: "guess", rules.slow_link: "link"}
    named = {
        listed.rule: listed._replace(rule=lambda scenario, line=told[listed.rule]: (line,))
        for listed in rules.RULES
        if listed.rule in told
    }
    monkeypatch.setattr(rules, "RULES", tuple(named.values()))
    monkeypatch.setattr(rules, "guessed_acceptance", named[rules.guessed_acceptance].rule)
    scenario = namedtuple("scenario", "guessed_from")
    found = {
        (guessed_from, count): scenario_doubts(scenario(guessed_from), count)
        for guessed_from, count in ((4, 1), (4, 2), (4, 4), (4, 5), (None, 2), (4, None))
    }
    assert found == {
        (4, 1): ("link",), (4, 2): ("whose", "link"), (4, 4): ("whose", "link"),
        (4, 5): ("whose", "guess", "link"), (None, 2): ("whose", "guess", "link"),
        (4, None): ("whose", "guess", "link"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("stored", "held", "told"),
    [
        ("bf16", "bf16", None), ("bf16", "fp16", None), ("fp8", "fp8", None),
        ("fp8", "bf16", ("fp8", "bf16")), ("bf16", "fp8", ("bf16", "fp8")),
    ],
)  # fmt: skip
def test_formats_of_experts_differ_but_for_halves(stored, held, told):
    kernel_fits = SimpleNamespace(by_key={f"moe.set:{held}": None})
    form = SimpleNamespace(dtype=stored, weight_dtype=stored)
    made = SimpleNamespace(experts=SimpleNamespace(form=""), in_form=lambda _: form)
    assert other_form(SimpleNamespace(model=made, kernel_fits=kernel_fits)) == told


@pytest.mark.parametrize(
    ("runtime", "split", "dtype", "options"),
    [
        ("vllm", {"tp": 8}, "fp8_block", ["--ep 8", "--tp 4"]),  # 1536 / 8 is 192, 1536 / 4 three blocks
        ("sglang", {"tp": 8}, "fp8_block", ["--ep 8", "--tp 4"]),
        ("vllm", {"tp": 8, "ep": 8}, "fp8_block", []), ("vllm", {"tp": 4}, "fp8_block", []),
        ("vllm", {"tp": 8}, "bf16", []), ("tensorrt-llm", {"tp": 8}, "fp8_block", []),
    ],
)  # fmt: skip
def test_blocks_of_scales_that_gpus_would_share_are_shown_with_what_would_do(runtime, split, dtype, options):
    asked = dense(runtime, gpu="h200-sxm", model="qwen3-235b-a22b", dtype=dtype, **split)
    found = [re.findall(r"--[et]p \d+", line) for line in cut_scale_blocks(asked)]
    assert found == ([options] if options else [])


def test_eleven_blocks_are_whole_on_one_gpu_alone():
    asked = dense("vllm", gpu="h200-sxm", model="deepseek-v2-lite", dtype="fp8_block", tp=2)
    (line,) = cut_scale_blocks(asked)
    assert re.findall(r"--[et]p \d+", line) == ["--ep 2", "--tp 1"]


@pytest.mark.parametrize(
    ("runtime", "prompt_tokens", "told"),
    [
        ("tensorrt-llm", 8193, ["8,192"]), ("tensorrt-llm", 8192, []), ("tensorrt-llm", None, []),
        ("vllm", 9000, []), ("sglang", 9000, []), ("cuda-graph", 9000, []),
    ],
)  # fmt: skip
def test_prompts_that_an_engine_refuses_to_cut_are_shown(runtime, prompt_tokens, told):
    traffic = {} if prompt_tokens is None else {"prompt_tokens": prompt_tokens, "output_tokens": 100}
    asked = dense(runtime, gpu="h100-sxm", model="llama-3.1-8b", **traffic)
    assert [re.findall(r"[\d,]{4,}", line)[0] for line in prompts_beyond_a_step(asked)] == told


def test_a_gpu_of_another_vendor_is_shown_by_how_much_its_one_published_round_was_missed():
    """The page of published rows says what that round took and what it is predicted at today."""
    page = Path(__file__).parents[2].joinpath("docs/validation-engines.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"\| cook-dsv3-mi300x-c1 \| round \| \S+ \| ([\d.]+) \| ([\d.]+) \|", page)
    measured_ms, predicted_ms = map(float, row)
    scenario = Scenario(
        gpu="mi300x", model="llama-3.1-8b", runtime="sglang", drafter="eagle3", acceptance=0.7
    )
    told = " ".join(kernel_doubts.verification_by_other_kernels(scenario))
    assert f"took {measured_ms / predicted_ms:.1f} times the prediction" in told
    assert not list(kernel_doubts.verification_by_other_kernels(scenario.but(gpu="h100-sxm")))
