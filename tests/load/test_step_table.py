"""The table that the scheduler looks up is the surface's, and steps with prompts are the server's."""

from dataclasses import replace

import numpy as np
import pytest

from medusa_sim.errors import UsageError
from medusa_sim.grid.cells import price
from medusa_sim.latency.waves import norm_max
from medusa_sim.load.answer import run_load
from medusa_sim.load.arguments import LoadArguments
from medusa_sim.load.lengths import Lengths
from medusa_sim.load.limits import limits_of
from medusa_sim.load.load_test import load_test
from medusa_sim.load.policies import Fixed
from medusa_sim.load.prompt_table import PromptTable
from medusa_sim.load.serving_loop import run
from medusa_sim.load.sources import closed_loop
from medusa_sim.load.step_table import StepTable, acceptance_rates, chains, step_table
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.serving.mixed_steps import mixed_step_law
from medusa_sim.serving.request_cycle import request_cycle, steps_alone
from medusa_sim.serving.running import Requests
from medusa_sim.serving.traffic import Traffic
from medusa_sim.step.host import HOST_OVERLAP
from medusa_sim.step.memory import (
    activation_bytes,
    profiled_bytes,
    step_memory_bytes,
    usable_memory_bytes,
)
from medusa_sim.step.prompt_kernels import linear_us, prompt_attention_us
from medusa_sim.step.prompts import GRAPHS, PromptHost, PromptTerms, prompt_terms
from medusa_sim.step.sampling import sampled
from medusa_sim.step.step import prefill_step

SCENARIO = Scenario(gpu="h100-sxm", model="llama-3.1-8b", runtime="vllm-0.11", drafter="eagle3", max_drafts=3)
CHAINS = chains(SCENARIO)
LIMITS = limits_of(SCENARIO, CHAINS[-1], LoadArguments(max_num_seqs=96))


@pytest.fixture(scope="module")
def table() -> StepTable:
    return step_table(SCENARIO, CHAINS, LIMITS, longest=4096)


def test_steps_are_the_surfaces_at_every_batch_and_any_length(table):
    batch, length = np.array([1, 7, 33, 96]), np.array([90, 1000, 3333])
    cells = price(SCENARIO, batch, length, CHAINS).by_count
    added = sampled(cells.surface.setting, batch[:, None, None], cells.candidates, cells.tokens_per_step)
    seen = cells.steps.time_us + added.time_us
    for i, b in enumerate(batch.tolist()):
        for j, s in enumerate(length.tolist()):
            for drafts in range(len(CHAINS) + 1):
                found = 1e6 * table.decoding_s(drafts, b, s)
                assert found == pytest.approx(float(seen[i, j, drafts]), rel=0.01)


def test_acceptance_by_position_is_the_profiles_and_a_curve_knows_none(table):
    # the shipped profile of EAGLE-3 on Llama-3.1-8B
    np.testing.assert_allclose(table.accepted.rates, [0.7296, 0.5208, 0.3545])
    assert table.accepted.tokens_per_step.tolist() == pytest.approx(
        [1.0, *(o.tokens(o.depth + 1) for o in CHAINS)]
    )
    assert acceptance_rates(()).size == 0
    scenario = Scenario(model="vicuna-7b", runtime="cuda-graph", acceptance="paper-fig21")
    with pytest.raises(UsageError, match="accepted by position"):
        chains(scenario)


def test_nobody_makes_no_tokens_even_where_a_step_without_requests_takes_no_time(table):
    # (DeepSeek-R1 on eight H200: kernels beside others leave nothing of a step less its token)
    idle = replace(
        table, step_s=np.where(np.arange(table.step_s.shape[1])[None, :, None] > 0, table.step_s, 0.0)
    )
    assert (idle.rate_per_s[:, 0] == 0.0).all()
    np.testing.assert_array_equal(idle.rate_per_s, table.rate_per_s)


def test_prompts_ride_as_in_the_server(table):
    # (N8) with one prompt a step: tokens that are shared, and the attention of the prompt
    setting, prompt = SCENARIO.setting, 480
    with_prompt, without = linear_us(setting, np.array([32.0 + prompt, 32.0]))
    carried = with_prompt - without + prompt_attention_us(setting, prompt, prompt)
    share, extra_us, _ = prompt_terms(setting)
    drafter_us = 1e6 * float(table.prompts.drafter_s[prompt])
    carried = share * (carried + drafter_us) + extra_us
    assert table.prompts_s(0, 32, [(prompt, prompt)], step_s=10.0) == pytest.approx(
        1e-6 * float(carried), rel=0.03
    )


def test_prompts_that_fill_a_step_beyond_its_graphs_wait_for_their_launches(table):
    own_s = table.decoding_s(0, 32, 512.0)
    launching_s = 1e-6 * SCENARIO.setting.runtime.engine.eager_us_per_layer.value * SCENARIO.model.layers
    assert 1e-6 * table.prompts.host.outgrown_us == pytest.approx(launching_s)
    # sizes of requests of one token end at 512, in multiples of three of two drafts at 498
    two = step_table(SCENARIO, CHAINS[:2], LIMITS, longest=64).prompts
    assert [of.host.most_rows for of in (two, two.without_drafter())] == [498.0, 512.0]
    bare = replace(table, prompts=replace(table.prompts, host=GRAPHS))
    for tokens, waits in ((480, False), (481, True)):
        with_law, without = (own_s + of.prompts_s(0, 32, [(tokens, tokens)], own_s) for of in (table, bare))
        smooth = float(norm_max(np.asarray(without), np.asarray(launching_s), HOST_OVERLAP))
        assert with_law == pytest.approx(smooth if waits else without)
        assert (with_law > without) == waits


@pytest.mark.parametrize("runtime", ["vllm", "sglang", "tensorrt-llm"])
@pytest.mark.parametrize("drafts", [0, 2])
def test_a_step_of_prompts_alone_is_a_prefill(runtime, drafts):
    """With an engine's share of kernels, its host and what the drafter reads; attention is interpolated."""
    scenario = SCENARIO.but(runtime=runtime)
    options = chains(scenario, drafts) if drafts else ()
    drafter = options[-1].drafter if drafts else None
    limits = replace(LIMITS, max_requests=1)
    found = step_table(scenario, options, limits, longest=4096)
    for tokens in (64, 480, 505, 4096):  # of three tokens a request vLLM's graphs end at 498
        alone = found.decoding_s(0, 0, 0.0)
        alone += found.prompts_s(0, 0, [(tokens, tokens)], alone)
        whole = float(prefill_step(scenario.setting, 1, tokens, drafter, candidates=1 + drafts).time_us)
        # the server's filters of one row are in the one and not in the other
        assert 1e6 * alone == pytest.approx(whole, rel=0.035), tokens


@pytest.mark.parametrize(
    ("model", "runtime", "tokens", "more"),
    [
        ("qwen3-0.6b", "vllm", 400, {}),
        ("qwen3-0.6b", "vllm", 600, {}),
        ("qwen3-0.6b", "vllm", 1500, {}),
        ("llama-3.1-8b", "vllm", 1500, {"tp": 4}),
        ("qwen3-30b-a3b", "vllm", 1500, {}),
        ("qwen3-0.6b", "sglang", 1500, {}),
        ("qwen3-4b", "tensorrt-llm", 600, {}),
    ],
)
def test_a_lone_request_sees_its_first_token_when_the_surface_says(model, runtime, tokens, more):
    """Also beyond the captured sizes (512 rows), where vLLM launches a step whoever decodes beside."""
    traffic = {"prompt_tokens": tokens, "output_tokens": 16, "length_cv": 0.0}
    scenario = Scenario(gpu="h100-sxm", model=model, runtime=runtime, **traffic, **more)
    priced_us = float(price(scenario, [1], [scenario.length], ()).server.first_token_us.flat[0])
    test = load_test(scenario, policies=("none",), users=1, requests=5, seeds=1, **traffic)
    simulated_s = run_load(test, search=False).points[0].mean["ttft_mean_s"]
    # attention is interpolated between lengths, and SGLang's step takes the filters of one row
    assert 1e6 * simulated_s == pytest.approx(priced_us, rel=0.03)


def test_gpus_that_attend_to_their_own_prompts_read_one_as_one_gpu_and_eight_as_eight():
    """Its attention and the layers around it are on one GPU; of eight prompts each GPU has one."""
    scenario = SCENARIO.but(gpu="h200-sxm", model="deepseek-v3", runtime="sglang", tp=8, dp_attention=True)
    found = step_table(scenario, (), replace(LIMITS, max_requests=1, token_budget=16384), longest=2048)
    alone = found.decoding_s(0, 0, 0.0)
    for count in (1, 8):
        read_us = 1e6 * (alone + found.prompts_s(0, 0, [(2048, 2048)] * count, alone))
        whole_us = float(prefill_step(scenario.setting, count, 2048).time_us)
        assert read_us == pytest.approx(whole_us, rel=0.035), count


def test_a_prompt_in_chunks_takes_no_less_than_at_once(table):
    whole = table.prompts_s(0, 0, [(4096, 4096)])
    parts = sum(table.prompts_s(0, 0, [(1024, end)]) for end in (1024, 2048, 3072, 4096))
    assert parts > 0.98 * whole


@pytest.mark.parametrize("drafts", [0, 3])
def test_a_saturated_server_emits_the_surfaces_tokens(table, drafts):
    users, prompt, output = 64, 128, 2048
    lengths = Lengths(prompt_tokens=prompt, output_tokens=output, prompt_cv=0, output_cv=0)
    found = run(closed_loop(users, lengths, count=users), table.for_drafts(drafts), LIMITS, Fixed(drafts))
    line = found.timeline
    middle = line.time_s < 0.8 * found.end_s
    middle &= line.requests > users - 0.01
    assert middle.sum() > 20
    mean = float(line.kv_tokens[middle].mean()) / users
    cells = price(SCENARIO, [users], [round(mean)], CHAINS).by_count
    added = sampled(cells.surface.setting, users, drafts + 1, float(table.accepted.tokens_per_step[drafts]))
    seen_us = float(cells.steps.time_us[0, 0, drafts] + added.time_us)
    expected = users * float(table.accepted.tokens_per_step[drafts]) / seen_us * 1e6
    assert float(line.tokens_per_s[middle].mean()) == pytest.approx(
        expected, rel=0.02
    )  # the mean of rates over lengths


def test_the_cache_is_what_weights_leave_or_no_room_is_stated(table):
    # a full cache with its requests fits on the GPU, and one request's block more does not
    # (slots for the look-ahead lie in both)
    own = limits_of(SCENARIO, CHAINS[-1], LoadArguments(max_num_seqs=96, max_num_batched_tokens=96))
    tokens = own.kv_tokens / own.max_requests - own.lookahead
    drafter, candidates = CHAINS[-1].drafter, CHAINS[-1].depth + 1
    # what choosing tokens takes when the server starts is more than the logits of its steps
    rows = own.max_requests * candidates
    started = profiled_bytes(SCENARIO.model, SCENARIO.runtime.engine, rows, own.max_requests, rows)
    room = usable_memory_bytes(SCENARIO.gpu) + float(activation_bytes(SCENARIO.model, rows, rows)) - started
    for more, fits in ((0, True), (own.block_tokens, False)):
        needed = step_memory_bytes(
            SCENARIO.model, drafter, own.max_requests, tokens - candidates + more, candidates
        )
        assert bool(needed <= room) is fits
    plain = limits_of(SCENARIO, None, LoadArguments(max_num_seqs=96))
    assert plain.kv_blocks > limits_of(SCENARIO, CHAINS[-1], LoadArguments(max_num_seqs=96)).kv_blocks
    assert table.requests_max == 96
    with pytest.raises(UsageError, match="leaves no room for a KV cache"):
        limits_of(Scenario(gpu="a40", model="llama-2-70b", runtime="cuda-graph"), None)


def test_drafters_that_are_scheduled_synchronously_wait_for_no_further_step():
    for drafter, ahead in (("eagle3", 1), ("ngram", 0)):
        scenario = Scenario(
            gpu="h100-sxm", model="llama-3.1-8b", runtime="vllm", drafter=drafter, acceptance=0.6,
            max_drafts=2,
        )  # fmt: skip
        options = chains(scenario)
        found = step_table(
            scenario, options, limits_of(scenario, options[-1], LoadArguments(max_num_seqs=4)), 64
        )
        assert (found.host.steps_ahead, found.for_drafts(0).host.steps_ahead) == (ahead, 1)


def test_prompts_by_hand():
    """1 us a token that all share, attention of 3 us a token and 0.5 us to its end, 10 us a step."""
    tokens = np.arange(2001.0)
    read, until = np.array([[1.0], [2000.0]]), np.array([[1.0, 2000.0]])
    own = PromptTable(
        linear_s=1e-6 * tokens, chunk_tokens=read[:, 0], chunk_ends=until[0], drafter_s=2e-6 * tokens,
        attention_s=1e-6 * (3.0 * read + 0.5 * until), drafter_attention_s=np.zeros((2, 2)),
        inactive_share=np.zeros(tokens.size), imbalance_s=np.zeros(tokens.size),
        terms=PromptTerms(share=0.5, extra_us=10.0),
    )  # fmt: skip
    for chunks in ([(300, 300)], [(300, 900)], [(300, 300), (200, 700)]):
        count = sum(size for size, _ in chunks)
        read_us = count + sum(3.0 * size + 0.5 * end for size, end in chunks)
        expected = 0.5 * (read_us + 2.0 * count) + 10.0
        for rows in (0, 64):
            assert own.added_s(rows, chunks, 1.0, 1e-6 * rows, 0.0) == pytest.approx(1e-6 * expected)
    # rows that fill a graph are saved: 50 us come off what is shared, beyond that with no share
    assert own.added_s(64, [(300, 900)], 1.0, 114e-6, 0.0) == pytest.approx(
        1e-6 * (0.5 * (1600.0 + 600.0) + 10.0)
    )
    assert own.added_s(64, [(300, 900)], 1.0, 404e-6, 0.0) == pytest.approx(
        1e-6 * (0.5 * 1950.0 - 40.0 + 10.0)
    )
    assert own.without_drafter().added_s(64, [(300, 900)], 1.0, 64e-6, 0.0) == pytest.approx(
        1e-6 * (0.5 * (300 + 900 + 450) + 10.0)
    )
    # experts that requests share: 20 of 64 us are saved, and 2 of them still where prompts wake nine tenths
    shared = replace(own, inactive_share=np.where(tokens > 0.0, 0.1, 1.0))
    assert shared.added_s(64, [(300, 900)], 1.0, 44e-6, 20e-6) == pytest.approx(
        1e-6 * (0.5 * (1650.0 + 600.0 + 18.0) + 10.0)
    )
    apart = replace(own, terms=own.terms._replace(are_apart=True), host=PromptHost(3e3))
    smooth = (0.5 * (1650.0 + 2.0 * 300)) ** HOST_OVERLAP + 3000.0**HOST_OVERLAP
    expected = smooth ** (1 / HOST_OVERLAP) + 10.0
    assert apart.added_s(64, [(300, 900)], 1.0, 64e-6, 0.0) == pytest.approx(1e-6 * expected)
    assert apart.without_drafter().host == GRAPHS
    assert (
        replace(own, host=PromptHost(3e3), plain_host=PromptHost(2e3)).without_drafter().host.always_us == 2e3
    )


@pytest.mark.parametrize("requests", [63, 65, 67])
def test_steps_that_carry_a_prompt_are_the_servers_however_they_would_be_padded(requests):
    # 4 tokens each: graphs hold 256 rows and 272, so that 260 are filled up by a twentieth
    drafts, limits = len(CHAINS), replace(LIMITS, max_requests=80)
    prompt = 800 - 4 * requests  # a number of rows in all at which both time the linear layers
    table = step_table(SCENARIO, CHAINS, limits, longest=2048)
    step_s = table.decoding_s(drafts, requests, 1000.0)
    carried_s = step_s + table.prompts_s(drafts, requests, [(prompt, prompt)], step_s)

    # one request more, which reads its prompt and has no attention in the step
    setting, traffic = SCENARIO.setting, Traffic(prompt_tokens=prompt, output_tokens=1e9)
    step_us = np.array([1e6 * step_s])
    row = (requests + 1.0, drafts + 1.0, drafts + 1.0, 1e9, float(prompt))
    cycle = request_cycle(
        setting, traffic, lambda running: (step_us, np.zeros(1)),
        Requests(*(np.array([value]) for value in row)), steps_alone(step_us),
    )  # fmt: skip
    one = mixed_step_law(setting, traffic, CHAINS[-1].drafter, cycle).steps(np.array([0]), np.ones(1))
    assert one.decoding[0] == pytest.approx(requests)
    assert carried_s == pytest.approx(1e-6 * float(one.time_us.mean()), rel=0.002)


@pytest.mark.parametrize("requests", [20, 110, 160, 200])
def test_a_server_that_looks_drafts_up_has_one_list_of_graphs_on_both_roads(requests):
    """Its requests verify 1 + match K tokens on average, its graphs hold K + 1 of each, 500 at most."""
    given = {"prompt_tokens": 40, "output_tokens": 250.0, "length_cv": 0.0, "gpu": "h100-sxm"}
    scenario = Scenario(model="llama-3.1-8b", drafter="ngram", runtime="vllm", **given)
    options, limits = chains(scenario, 4), replace(LIMITS, max_requests=requests)
    table = step_table(scenario, options, limits, longest=2048)
    seen = price(scenario, [requests], [scenario.length], options[-1:]).server
    law, matched = seen._law, float(seen._cycle.verified_tokens[-1])
    assert 1.0 < matched < 5.0
    assert float(np.ravel(law.host.most_rows)[-1]) == table.prompts.host.most_rows == 500.0
    decode_s = float(table.decode_linear_s[4, round(float(law.cycle.running[-1]))])
    assert law.full_decode_us[-1] == pytest.approx(1e6 * decode_s, rel=0.03)


@pytest.mark.parametrize("runtime", ["hf-eager", "cuda-graph", "vllm"])
@pytest.mark.parametrize("drafter", ["ngram", "suffix"])
def test_looking_drafts_up_is_a_share_of_the_step_whatever_launches_it(runtime, drafter):
    """Without an engine a look-up takes as long at every size."""
    scenario = Scenario(
        gpu="h100-sxm", model="llama-3.1-8b", runtime=runtime, drafter=drafter, acceptance="0.6,0.4"
    )
    found = step_table(scenario, chains(scenario), LIMITS, longest=1024)
    assert (found.drafting_share[0] == 0.0).all()
    assert ((found.drafting_share >= 0.0) & (found.drafting_share < 0.5)).all()
