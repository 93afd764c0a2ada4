"""A step seen through a server: directions that any traffic must keep, and draws beside the law."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from scipy import stats
from servers import CHAT, LATENCY, full, plain, served, setting

from medusa_sim.engines.runtime import Runtime, load_runtime
from medusa_sim.engines.term import Term
from medusa_sim.grid.cells import price
from medusa_sim.models.named import load_model
from medusa_sim.models.parallel import Parallel
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.serving.chance import binomial
from medusa_sim.serving.request_cycle import server_us
from medusa_sim.serving.running import Requests, in_queue
from medusa_sim.serving.server import FullServer, Server
from medusa_sim.serving.traffic import Traffic, served_length, step_limits
from medusa_sim.step.drafter import drafters
from medusa_sim.step.graphs import padded_tokens
from medusa_sim.step.prompt_kernels import linear_us, logits_us, prompt_attention_us
from medusa_sim.step.prompts import prompt_host, prompt_terms
from medusa_sim.step.sampling import sampled
from medusa_sim.step.setting import Setting
from medusa_sim.step.step import decode_step


@pytest.mark.parametrize("runtime", ["cuda-graph", "hf-eager", "vllm-0.11"])
def test_without_traffic_a_server_is_its_step(runtime):
    step, seen = plain(setting(runtime), 16, None)
    assert float(seen.itl_us) == float(seen.tpot_us) == float(seen.token_us) == float(step)


@given(draws=st.integers(1, 2000), share=st.floats(0.0, 1.0))
def test_numbers_of_hits_have_the_mean_and_spread_of_their_law(draws, share):
    counts, weights, place = binomial(np.array([float(draws)]), np.array([share]))
    assert not place.any()
    mean = float(counts @ weights)
    assert weights.sum() == pytest.approx(1.0, abs=1e-5)
    assert mean == pytest.approx(draws * share, rel=1e-4, abs=1e-4)
    spread = float(((counts - mean) ** 2) @ weights)
    assert spread == pytest.approx(draws * share * (1.0 - share), rel=2e-2, abs=1e-3)


def test_times_are_those_of_steps_that_are_drawn():
    # requests that decode, read and are away are drawn one by one, each step priced by its own rows
    of, batch, draws = setting(), 48, 4000
    server = full(of, batch, CHAT)
    random = np.random.default_rng(7)
    step_us, _ = plain(of, batch, None)
    length = served_length(of, 512, CHAT)
    whole = decode_step(of, np.asarray(batch), np.asarray(length))
    added = float(sampled(of, batch, 1, 1.0).time_us)
    sigma = np.sqrt(np.log1p(CHAT.prompt_cv**2))
    away = float(server._cycle.returning.away_steps[0])
    decodes = CHAT.output_tokens - 1.0
    share = 1.0 / (decodes + 1.0 + away)
    begin = random.binomial(batch, share, draws)
    gone = random.binomial(batch - begin, away / (decodes + away))
    read = np.array(
        [random.lognormal(np.log(CHAT.prompt_tokens) - sigma**2 / 2, sigma, n).sum() for n in begin]
    )
    rows = np.maximum(batch - begin - gone, 1) + read
    own = linear_us(of, np.rint(rows)) - linear_us(of, np.asarray([48.0]))  # 48 is a captured size
    attention_us = float(whole.parts_us["attention"])
    one = float(prompt_attention_us(of, CHAT.prompt_tokens, CHAT.prompt_tokens))
    idle = (begin + gone) / batch * attention_us
    # a step without prompts is padded; an engine's own kernels take a share of what prompts add
    share_read, beside_us, _ = prompt_terms(of)
    unpadded = np.where(begin > 0, np.where(own > 0.0, share_read * own, own), 0.0)
    attended = share_read * one * (1 + CHAT.prompt_cv**2 * 0.1) * begin
    drawn = float(whole.time_us) + added + unpadded - idle + attended + beside_us * (begin > 0)
    expected = float(drawn.mean()) / (share * CHAT.output_tokens)
    assert float(server.token_us) == pytest.approx(expected, rel=0.01)
    assert float(step_us) < float(server.tpot_us) < float(server.token_us) * 1.02


@settings(max_examples=20)
@given(batch=st.integers(1, 256), prompt=st.floats(16, 4096), output=st.floats(32, 4096))
def test_a_server_never_makes_a_token_faster(batch, prompt, output):
    of = setting()
    given = Traffic(prompt_tokens=prompt, output_tokens=output, prompt_cv=0.4)
    step, seen = plain(of, batch, given)
    assert float(seen.itl_us) >= 0.97 * float(step)  # requests that are away are not attended to
    assert float(seen.token_us) >= 0.97 * float(step)
    assert float(seen.quantile_us(0.9)) >= float(seen.itl_us)
    longer = plain(of, batch, replace(given, prompt_tokens=2 * prompt))[1]
    assert float(longer.token_us) >= float(seen.token_us) * (1 - 1e-3)


def test_one_request_reads_then_decodes():
    # nothing rides: its time is that of its steps, its prompt and the way to the server
    of = setting()
    step, _ = plain(of, 1, CHAT)
    server = full(of, 1, CHAT)
    step_us = float(step) + float(sampled(of, 1, 1, 1.0).time_us)
    assert float(server.tpot_us) == pytest.approx(step_us, rel=1e-6)
    assert float(server.itl_us) == pytest.approx(step_us, rel=1e-6)
    request_us = float(server.token_us) * CHAT.output_tokens
    decoding_us = (CHAT.output_tokens - 1.0) * step_us
    assert request_us - decoding_us == pytest.approx(float(server.first_token_us), rel=1e-6)


@pytest.mark.parametrize("runtime", ["vllm", "sglang", "tensorrt-llm"])
@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-30b-a3b"])
def test_a_request_more_or_a_token_more_of_prompts_moves_little(runtime, model):
    # no tile, padding or integer number of prompts of a mean: what changes by a little changes little
    of, batch = setting(runtime, model), np.arange(1, 257)
    rate = batch / full(of, batch, CHAT).token_us
    fall = np.diff(rate) / rate[:-1]
    assert fall.min() > -0.04
    longer = batch / full(of, batch, replace(CHAT, prompt_tokens=1.02 * CHAT.prompt_tokens)).token_us
    assert np.abs(longer / rate - 1.0).max() < 0.03


@settings(max_examples=20)
@given(
    batch=st.integers(1, 512),
    tokens=st.floats(1.0, 3.9),  # and 1.02 times as many: at most the four that are verified
    runtime=st.sampled_from(["vllm", "sglang", "tensorrt-llm"]),
)
def test_more_tokens_a_step_are_never_slower(batch, tokens, runtime):
    of = setting(runtime)
    step = decode_step(of, np.asarray(batch), np.asarray(640)).time_us
    few, more = (
        served(of, step, batch, 4, np.asarray(each), CHAT).token_us for each in (tokens, 1.02 * tokens)
    )
    assert float(more) < float(few)


def test_prompts_that_fill_the_budget_queue_and_the_rest_waits():
    # 16,384 tokens of prompt for 16 of output: reading is all that the server does, within its budget
    of, batch = setting(), np.array([1, 8, 64, 256])
    long = Traffic(prompt_tokens=16_384.0, output_tokens=16.0, prompt_cv=0.4)
    server = full(of, batch, long)
    budget = step_limits(of.runtime, LATENCY.gpu)[1]
    rate = batch / server.token_us / long.output_tokens  # requests a microsecond
    alone = linear_us(of, np.asarray([float(budget)]))[0] / budget
    assert (rate * long.prompt_tokens * alone < 1.05).all()
    assert rate[-1] / rate[1] < 1.1
    assert float(server.first_token_us[-1]) > 10 * float(server.first_token_us[0])


def test_prompts_of_a_server_that_drafts_are_launched_one_by_one():
    # SGLang with EAGLE: the graphs of prompts hold no hidden states; look-ups need none
    of = setting("sglang-0.5", served_drafter="eagle3")
    engine = of.runtime.engine
    assert engine is not None
    free = engine.with_terms({"prompt_us_per_launch": Term(value=0.0, source="a test")})
    graphs = replace(of, runtime=replace(of.runtime, engine=free))
    step, short = np.asarray(9_000.0), Traffic(prompt_tokens=16.0, output_tokens=256.0)

    def request_us(of: Setting, traffic: Traffic, count: int) -> float:
        seen = served(of, step, 1, count, np.asarray(2.0), traffic)
        return float(seen.token_us) * traffic.output_tokens

    launching_us = prompt_host(of, 4.0).always_us
    assert launching_us > 0.0
    assert prompt_host(setting(), 4.0).always_us == prompt_host(of, 1.0).always_us == 0.0
    for name, kind in drafters().items():
        each_us = prompt_host(replace(of, served_drafter=name), 4.0).always_us
        assert each_us == (0.0 if kind.looks_up else launching_us)
    slower_us = request_us(of, short, 4) - request_us(graphs, short, 4)
    assert 0.5 * launching_us < slower_us < launching_us  # its kernels run meanwhile
    # plain decoding has graphs of prompts; the kernels of long ones hide their launches
    assert request_us(of, short, 1) == request_us(graphs, short, 1)
    long = replace(short, prompt_tokens=16_384.0)
    assert request_us(of, long, 4) < 1.05 * request_us(graphs, long, 4)


def test_passes_of_prompts_of_deepseek_in_sglang_wait_for_their_launches():
    """On a Hopper, without a drafter: at least what 63 us a kernel come to; long prompts hide it."""

    def of(**changed: Any) -> Setting:
        asked: dict[str, Any] = {"model": "deepseek-v3", "gpu": "h200-sxm", "tp": 8} | changed
        return Scenario(runtime="sglang-0.5", drafter="ngram", acceptance="0.5", **asked).setting

    assert prompt_host(of(), 1.0).always_us == pytest.approx(63.0 * (976 - 3 * 58))  # shared experts fused
    for other in ({"gpu": "b200"}, {"model": "qwen3-32b"}):
        assert prompt_host(of(**other), 1.0).always_us == 0.0
    engine = of().runtime.engine
    assert engine is not None
    free = engine.with_terms({"prefill_us_per_launch": Term(value=0.0, source="a test")})
    ahead = replace(of(), runtime=replace(of().runtime, engine=free))
    for tokens, most_us, least_us in ((16.0, 61_488.0, 30_000.0), (8_000.0, 2_000.0, 0.0)):
        traffic = Traffic(prompt_tokens=tokens, output_tokens=256.0)
        waits_us, hides_us = (
            float(served(each, np.asarray(9_000.0), 1, 1, np.ones(()), traffic).first_token_us)
            for each in (of(), ahead)
        )
        assert least_us < waits_us - hides_us < most_us


@pytest.mark.parametrize("tp", [2, 8])
def test_prompts_of_dense_models_in_vllm_on_blackwell_wait_for_their_launches(tp):
    """By the recipe that was measured: 65 us a kernel on several GPUs, as DeepSeek's in other engines."""

    def scenario(tp: int = tp, **changed: Any) -> Scenario:
        asked: dict[str, Any] = {"model": "llama-3.1-70b", "gpu": "b200", "dtype": "fp8"} | changed
        return Scenario(runtime="vllm-0.15", drafter="ngram", acceptance="0.5", tp=tp, **asked)

    launching_us = prompt_host(scenario().setting, 1.0).always_us
    alone = prompt_host(scenario(tp=1).setting, 1.0).always_us / 25.0
    collectives = launching_us / 65.0 - alone
    assert alone >= 80 * 9
    assert 2 * 80 <= collectives <= 2 * 80 + 2
    for other in ({"gpu": "h200-sxm"}, {"model": "gpt-oss-120b", "dtype": None}):
        assert prompt_host(scenario(**other).setting, 1.0).always_us == 0.0
    for tokens, least in ((16.0, 0.6), (32_768.0, 0.0)):
        traffic = Traffic(prompt_tokens=tokens, output_tokens=256.0)
        engine = scenario().setting.runtime.engine
        assert engine is not None
        free = engine.with_terms({"prompt_us_per_launch": Term(value=0.0, source="a test")})
        of = scenario().setting
        ahead = replace(of, runtime=replace(of.runtime, engine=free))
        waits_us, hides_us = (
            float(served(each, np.asarray(9_000.0), 1, 1, np.ones(()), traffic).first_token_us)
            for each in (of, ahead)
        )
        assert least * launching_us <= waits_us - hides_us < launching_us


def test_steps_of_tensorrt_llm_that_carry_prompts_are_launched_one_by_one():
    # its graphs hold generation alone: the whole step is launched, whatever drafts
    of = setting("tensorrt-llm")
    launching_us = prompt_host(of, 4.0).always_us
    assert prompt_host(replace(of, served_drafter="ngram"), 1.0).always_us == launching_us > 0.0
    eight = replace(of, model=load_model("deepseek-r1"), parallel=Parallel(tp=8, dp_attention=True))
    step, traffic = np.asarray(1e4), Traffic(prompt_tokens=16.0, output_tokens=256.0)
    seen = served(eight, step, 64, 1, np.ones(()), traffic)
    assert isinstance(seen, FullServer)
    # prompts of eight GPUs wait for each other
    assert seen._law.begun_prompts(np.zeros(1, dtype=np.int64)).number[:3].tolist() == [0.0, 8.0, 16.0]


def test_filters_cost_by_vocabulary_and_request_and_only_in_a_server():
    def added_us(of: Setting, batch: int) -> float:
        return float(sampled(of, batch, 1, 1.0).time_us)

    assert 0.0 < added_us(setting(), 1) < added_us(setting(), 64)
    # a model whose generation_config names a top-k as well pays a fifth more a logit
    qwen, llama = (added_us(of, 64) / of.model.vocab for of in (setting(model="qwen3-8b"), setting()))
    assert qwen == pytest.approx(1.2 * llama)


def test_what_stands_beside_the_step_has_a_band():
    of = setting("sglang-0.5", served_drafter="eagle3")
    seen = served(of, np.full(2, 9_000.0), 64, np.array([1, 4]), np.array([1.0, 2.5]), CHAT)
    sampling, prompts, launching = seen.halves
    assert (prompts > 0.0).all()
    assert launching[0] == 0.0 < launching[1]
    assert (sampling >= 0.0).all()
    assert ((seen.step_share > 0.0) & (seen.step_share < 1.0)).all()


@pytest.mark.parametrize(
    ("runtime", "model", "prompt", "output", "tokens", "name"),
    [
        ("vllm", "qwen3-0.6b", 1500, 16, 1, "eager_us_per_layer"),
        ("sglang", "llama-3.1-8b", 900, 200, 4, "prompt_us_per_launch"),
        ("tensorrt-llm", "qwen3-30b-a3b", 9000, 200, 4, "prompt_us_per_launch"),
    ],
)
def test_the_host_of_prompts_errs_by_its_band_times_what_a_token_feels_of_it(
    runtime, model, prompt, output, tokens, name
):
    """Its half-width is that of the term by the derivative of the time per token, over all steps."""
    scenario = Scenario(
        gpu="h100-sxm", model=model, drafter="eagle3", acceptance=0.7, runtime=runtime, prompt_tokens=prompt,
        output_tokens=output,
    )  # fmt: skip
    of, batch = scenario.setting, np.array([1, 16, 64])
    term = getattr(of.runtime.engine, name)

    def seen(times: float) -> Server:
        engine = of.runtime.engine.with_terms({name: structs.replace(term, value=times * term.value)})
        slower = replace(of, runtime=replace(of.runtime, engine=engine))
        return served(slower, np.full(3, 5e3), batch, tokens, np.full(3, tokens / 1.6), scenario.traffic)

    felt = np.log(seen(1.001).token_us / seen(0.999).token_us) / np.log(1.001 / 0.999)
    assert seen(1.0).halves[2] == pytest.approx(term.band * felt, rel=1e-3)
    assert (felt > 0.005).all()


def test_a_grid_without_a_batch_has_no_times():
    none = np.empty((0, 1))
    seen = served(setting(), none, none, np.array([1, 4]), np.array([1.0, 2.5]), CHAT)
    for values in (seen.token_us, seen.tpot_us, seen.itl_us, seen.quantile_us(0.9)):
        assert values.shape == (0, 2)


def at_once(name: str) -> Runtime:
    """An engine that is at its clients in no time, so that nobody comes back together with others."""
    runtime = load_runtime(name)
    return replace(runtime, engine=structs.replace(runtime.engine, server_us=Term(value=0.0, source="")))


@pytest.mark.parametrize("runtime", ["vllm-0.11", "sglang-0.5"])
@pytest.mark.parametrize(("batch", "prompt", "output"), [(1, 700, 201), (64, 6000, 101)])
def test_a_server_is_the_sum_over_how_many_prompts_begin(runtime, batch, prompt, output):
    """(N7) to (N11) and (N17), number by number, of prompts and outputs that are all alike.

    In SGLang prompts have passes of their own: these take nothing of a step's budget and nobody decodes in
    them. Who begins decodes in the step behind its pass, of which it sees what is left.
    """
    of, traffic = setting(at_once(runtime)), Traffic(prompt_tokens=prompt, output_tokens=output)
    step_us, attention_us = 9_000.0, 1_000.0
    seen = served(of, np.asarray(step_us), batch, 1, np.ones(()), traffic, attention_us=attention_us)
    assert isinstance(seen, FullServer)
    step_us += float(sampled(of, batch, 1, 1.0).time_us)
    engine = of.runtime.engine
    share, beside_us, apart = prompt_terms(of)
    decodes, others = output - 1.0, min(batch - 1.0, 1.0)
    way_us = server_us(of)
    away = float(seen._cycle.returning.away_steps[0])
    most, budget = step_limits(of.runtime, LATENCY.gpu)
    assert batch <= most
    pi, queued, room, running = 1 / max(decodes + away, 1.0), 0.0, budget, float(batch)
    if not apart:
        asked = Requests(*(np.full(1, float(value)) for value in (batch, 1, 1, decodes, prompt)))
        found = in_queue(asked, away_steps=np.full(1, away), budget=np.full(1, float(budget)), prompt_cv=0.0)
        running, room, _, read, queued = (float(each[0]) for each in found)
        pi = 1 / (decodes + away + read)
        assert running == pytest.approx(batch, rel=0.01)
    stays = decodes / (decodes + away)
    padded = float(padded_tokens(engine, np.array([batch]), 1)[0])
    rows = [max(batch - gone, 1) for gone in range(batch + 1)]
    fewer = linear_us(of, np.array([float(padded_tokens(engine, np.array([each]), 1)[0]) for each in rows]))
    held_us = float(linear_us(of, np.array([padded]))[0])
    away_us = float(stats.binom(batch, 1 - stays).pmf(range(batch + 1)) @ fewer) - held_us
    one_us = float(prompt_attention_us(of, np.array([float(prompt)]), np.array([float(prompt)]))[0])

    def carrying_us(begin: int, read: float) -> float:
        """A step on which so many begin, and read so many tokens of prompts."""
        decoding = (batch if apart else batch - begin) * stays
        own_us = step_us - (batch - decoding) * attention_us / batch
        if read == 0.0:
            return own_us + away_us
        reads_us = one_us * read / prompt
        if apart:
            return (
                own_us
                + away_us
                + share * (reads_us + float(linear_us(of, np.array([read]))[0]) + logits_us(of))
                + beside_us
            )
        shared = float(linear_us(of, np.array([(batch - begin) * stays + read]))[0]) - held_us
        return own_us + share * reads_us + (share if shared > 0.0 else 1.0) * shared + beside_us

    chance = stats.binom(batch, pi).pmf
    whole_us = decoding_us = waiting_us = riding_us = 0.0
    empty_us = carrying_us(0, 0.0)
    goes_on = (decodes - apart) / (decodes - apart + away)
    for begin in range(batch + 1):
        further, rest = divmod(begin * prompt, room)
        last_us = carrying_us(begin, rest)
        full_us = further * carrying_us(begin, room) if further else 0.0
        mean_us = last_us + full_us - further * empty_us  # these stand in place of steps that carry nothing
        whole_us += chance(begin) * mean_us
        waiting_us += chance(begin) * (batch - begin) * mean_us
        decoding_us += chance(begin) * ((batch - begin) * goes_on * mean_us + apart * begin * empty_us)
        # one is read after the other, and where they have passes of their own decodes behind the last of them
        filled_us = (carrying_us(begin, room) if further else 0.0) - apart * empty_us
        passes_us = last_us - empty_us + further * filled_us
        for turn in range(1, begin + 1):
            full = min(turn * prompt // room, further)
            read_us = full * filled_us + (last_us - apart * empty_us if full == further else filled_us)
            riding_us += chance(begin) * read_us
            decoding_us += chance(begin) * apart * (passes_us - read_us)
    alone_us = (1 - others) * way_us
    assert float(seen.token_us) == pytest.approx((whole_us * (1 / pi + queued) + alone_us) / output, rel=3e-3)
    decode = batch * (goes_on * (1 - pi) + apart * pi)
    assert float(seen.tpot_us) == pytest.approx(decoding_us / decode, rel=3e-3)
    waits_us = alone_us + (away + queued) * waiting_us / (batch * (1 - pi))
    first_us = waits_us + riding_us / (batch * pi)
    assert float(seen.first_token_us) == pytest.approx(first_us, rel=3e-3)


@pytest.mark.parametrize("runtime", ["vllm-0.11", "sglang-0.5"])
def test_a_cell_of_a_grid_is_what_it_is_alone(runtime):
    of, long = setting(runtime), Traffic(prompt_tokens=6000, output_tokens=100, prompt_cv=0.4)
    batch, step_us = np.array([1, 16, 256]), np.full(3, 9_000.0)  # of 8 tokens each
    together = served(of, step_us, batch, 8, np.full(3, 2.0), long)
    for place, size in enumerate(batch.tolist()):
        alone = served(of, step_us[:1], size, 8, np.full(1, 2.0), long)
        for name in ("token_us", "tpot_us", "itl_us", "first_token_us"):
            assert getattr(together, name)[place] == pytest.approx(getattr(alone, name)[0], rel=1e-3), name


@pytest.mark.parametrize("runtime", ["cuda-graph", "vllm", "vllm-0.10", "sglang", "tensorrt-llm"])
@pytest.mark.parametrize(("verified", "tokens"), [(1, 1.0), (4, 2.6)])
def test_no_more_requests_are_in_flight_than_there_are(runtime, verified, tokens):
    """Little's law: the rate of requests times the time of one is b at most.

    One percent is left to queues, whose means are those of independent arrivals; the last token's way to the
    client is in no time of a request and keeps a small loop below b.
    """
    of, batch = setting(runtime), np.array([1.0, 2.0, 8.0, 64.0, 256.0])
    step_us = np.full(batch.size, 9_000.0) + 20.0 * batch
    for prompt, output in ((4, 2), (1000, 2), (1000, 8), (8000, 10), (896, 256), (8000, 1000), (20, 300)):
        traffic = Traffic(prompt_tokens=prompt, output_tokens=output)
        seen = served(of, step_us, batch, verified, np.full(batch.size, tokens), traffic)
        request_us = seen.first_token_us + (output - 1.0) * seen.tpot_us
        in_flight = request_us / (output * seen.token_us)
        assert in_flight.max() < 1.01, (prompt, output)
        assert in_flight[0] == pytest.approx(1.0, abs=0.01), (prompt, output)
        assert in_flight.min() > 0.93, (prompt, output)


@pytest.mark.parametrize(("model", "runtime", "drafter", "prompt"), [
    ("llama-3.1-8b", "hf-eager", "ngram", 4000), ("llama-3-70b", "vllm-0.24", "eagle3", 20),
    ("deepseek-v3.2", "vllm-0.33", "mtp", 1),
])  # fmt: skip
def test_requests_of_one_token_are_their_prompts(model, runtime, drafter, prompt):
    """None decodes: no draft is verified, no expert shared, and nothing is divided by those who do."""
    scenario = Scenario(
        gpu="b200", model=model, runtime=runtime, drafter=drafter, acceptance="2.4@3",
        prompt_tokens=prompt, output_tokens=1,
    )  # fmt: skip
    with np.errstate(all="raise", under="ignore"):
        cells = price(scenario, [1, 3], [scenario.length], scenario.options()).by_count
        served, shape = cells.server, (*cells.surface.shape, cells.configurations.counts.size)
        times_us = (served.tpot_us, served.token_us, served.first_token_us)
        tpot_us, token_us, first_us = (np.broadcast_to(values, shape) for values in times_us)
        speedup = cells.speedup
    assert np.isnan(tpot_us).all()
    assert ((speedup > 0.2) & (speedup <= 1.0)).all()
    assert (first_us[1] > first_us[0]).all()
    assert (token_us[1] < 3.0 * token_us[0]).all()


def test_no_prompt_is_shorter_than_a_token():
    """Some of a log-normal around one token would be; sparse attention counts doublings from one."""
    scenario = Scenario(
        gpu="mi300x", tp=8, model="glm-5", runtime="vllm-0.24", drafter="mtp", acceptance=0.6,
        weight_dtype="int4", prompt_tokens=1, output_tokens=50,
    )  # fmt: skip
    with np.errstate(all="raise", under="ignore"):
        cells = price(scenario, [300], [scenario.length], scenario.options())
        assert np.isfinite(cells.server.token_us).all()
