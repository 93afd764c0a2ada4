"""Longer requests have longer prompts where a surface grows them: each length as if it had been asked for."""

import numpy as np
import pytest

from medusa_sim import Scenario
from medusa_sim.grid.cells import price
from medusa_sim.plan.break_even import break_even_context
from medusa_sim.plan.verdict import verdict_codes

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
    together = price(scenario, [1, 64], LENGTHS, grown_from=scenario.length)
    for s, length in enumerate(LENGTHS.tolist()):
        asked = served(PROMPT + length - scenario.length, runtime=runtime, length_cv=cv)
        alone = price(asked, [1, 64], [length])
        for read in READ:
            found, wanted = (np.broadcast_to(read(cells), cells.shape) for cells in (together, alone))
            assert found[:, s] == pytest.approx(wanted[:, 0], rel=1e-9)
        assert (verdict_codes(together)[:, s] == verdict_codes(alone)[:, 0]).all()


def test_prompts_stay_the_traffics_unless_they_grow():
    scenario = served(PROMPT)
    cached, grown = price(scenario, [64], [4000]), price(scenario, [64], [4000], grown_from=1024)
    assert float(grown.server.token_us[0, 0, 0]) > 1.5 * float(cached.server.token_us[0, 0, 0])
    same = price(scenario, [64], [1024], grown_from=1024)
    assert same.server.token_us == pytest.approx(price(scenario, [64], [1024]).server.token_us, rel=1e-12)


def test_the_shortest_request_has_a_token_of_prompt():
    scenario = served(PROMPT)
    options = scenario.options(4)
    found = break_even_context(scenario, options, 8, 4096, grown_from=scenario.length)
    assert found.searched_from == OUTPUT // 2 + 1
    assert break_even_context(scenario, options, 8, 4096).searched_from == 16
