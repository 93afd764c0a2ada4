"""Longer requests have longer prompts where a surface grows them: each length as if it had been asked for."""

import numpy as np
import pytest

from medusa_sim import Scenario
from medusa_sim.grid.cells import price
from medusa_sim.grid.request_latency import request_latency
from medusa_sim.grid.surface import GrownPrompts
from medusa_sim.plan.break_even import break_even_context
from medusa_sim.plan.verdict import odds_of
from medusa_sim.step.prompt_kernels import prompt_attention_us

ASKED = {"gpu": "h100-sxm", "model": "llama-3.1-8b", "drafter": "eagle3", "acceptance": "0.75,0.6,0.5"}
PROMPT, OUTPUT = 896, 256
LENGTHS = np.array([130, 700, 1024, 4000])
READ = (
    lambda cells: cells.server.token_us,
    lambda cells: cells.server.tpot_us,
    lambda cells: cells.server.first_token_us,
    lambda cells: cells.server.halves[1],
    lambda cells: cells.server_steps.watts,
)


def served(prompt: int, **given: object) -> Scenario:
    return Scenario(**{**ASKED, "prompt_tokens": prompt, "output_tokens": OUTPUT, **given})


@pytest.mark.parametrize("runtime", ["vllm", "sglang", "tensorrt-llm"])
@pytest.mark.parametrize("cv", [0.0, 0.4])
def test_each_length_is_priced_as_requests_of_that_length(runtime, cv):
    scenario = served(PROMPT, runtime=runtime, length_cv=cv)
    together = price(scenario, [1, 64], LENGTHS, grown=GrownPrompts(OUTPUT / 2))
    for s, length in enumerate(LENGTHS.tolist()):
        asked = served(PROMPT + length - scenario.length, runtime=runtime, length_cv=cv)
        alone = price(asked, [1, 64], [length])
        for read in READ:
            found, wanted = (np.broadcast_to(read(cells), cells.shape) for cells in (together, alone))
            assert found[:, s] == pytest.approx(wanted[:, 0], rel=1e-9)
        assert (odds_of(together)[:, s] == odds_of(alone)[:, 0]).all()


def test_prompts_stay_the_traffics_unless_they_grow():
    scenario = served(PROMPT)
    cached, grown = (
        price(scenario, [64], [4000]),
        price(scenario, [64], [4000], grown=GrownPrompts(OUTPUT / 2)),
    )
    assert float(grown.server.token_us[0, 0, 0]) > 1.5 * float(cached.server.token_us[0, 0, 0])
    same = price(scenario, [64], [1024], grown=GrownPrompts(OUTPUT / 2))
    assert same.server.token_us == pytest.approx(price(scenario, [64], [1024]).server.token_us, rel=1e-12)


def test_a_prompt_attends_to_the_cached_prefix_before_it():
    """3,000 new tokens behind 27,000 cached ones, in a server and alone on the engine."""
    scenario = served(3000, length_cv=0.0)
    length, cached = scenario.length, 27_000
    short, long = (price(scenario, [1], [tokens]).server for tokens in (length, length + cached))
    plain = scenario.setting
    ends = [prompt_attention_us(plain, np.array([3000.0]), np.array([end])) for end in (3000.0, 30_000.0)]
    more_us = float((ends[1] - ends[0])[0])
    assert more_us > 0.5 * float(short.first_token_us[0, 0, 0])
    gained_us = float(long.first_token_us[0, 0, 0] - short.first_token_us[0, 0, 0])
    assert gained_us == pytest.approx(more_us, rel=0.1)  # and one step that is longer
    alone = [
        request_latency(
            scenario, None, 1, batch=1, prompt_tokens=3000, output_tokens=OUTPUT, cached_tokens=many
        )
        for many in (0, cached)
    ]
    assert alone[1].plain_first_token_us - alone[0].plain_first_token_us == pytest.approx(more_us, rel=0.1)
    assert alone[1].plain_decode_us > alone[0].plain_decode_us
    asked = [scenario.recommend(1, seq_len=tokens).answer for tokens in (length, length + cached)]
    told = [answer.request_latencies[0].cached_tokens for answer in asked]
    assert told == [0, cached]


def test_the_shortest_request_has_a_token_of_prompt():
    scenario = served(PROMPT)
    options = scenario.options(4)
    found = break_even_context(scenario, options, 8, 4096, grown=GrownPrompts(OUTPUT / 2))
    assert found.searched_from == OUTPUT // 2 + 1
    assert break_even_context(scenario, options, 8, 4096).searched_from == 16
