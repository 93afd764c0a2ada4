"""Time per token with other values of an engine's terms: as surfaces have it, and with twice of a term."""

import msgspec
import numpy as np
import pytest

from medusa_sim import Scenario
from medusa_sim.doubts.term_shares import changed_share, doubled, token_us, usual_option
from medusa_sim.grid.cells import price

CHAIN = {"gpu": "h100-sxm", "model": "llama-3.1-8b", "drafter": "eagle3", "acceptance": "0.7,0.5,0.35"}
SERVED = {"prompt_tokens": 512, "output_tokens": 256}


@pytest.mark.parametrize("traffic", [{}, SERVED])
@pytest.mark.parametrize("more", [
    {"runtime": "vllm"}, {"runtime": "sglang"}, {"runtime": "vllm", "drafter": "ngram", "acceptance": "0.5"},
    {"runtime": "tensorrt-llm", "gpu": "b200", "model": "deepseek-r1", "drafter": "mtp", "tp": 8},
])  # fmt: skip
def test_a_token_takes_what_a_surface_says(more, traffic):
    scenario = Scenario(**CHAIN | more | traffic)
    option, batch = usual_option(scenario), np.array([3.0, 64.0])
    cells = price(scenario, [3, 64], [scenario.length], [option])
    (seen,) = cells.server_steps.steps.surface.in_flight_len.tolist()
    told_us = np.broadcast_to(cells.server.token_us, cells.shape)[:, 0]
    places = {1: None, option.depth + 1: option}
    assert set(places) <= set(cells.configurations.candidates.tolist())
    for candidates, way in places.items():
        (place,) = np.flatnonzero(cells.configurations.candidates == candidates)
        assert token_us(scenario, {}, batch, seen, way) == pytest.approx(told_us[:, place], rel=1e-9)


def test_twice_of_a_term_adds_it_once_more():
    """Ten us of the host a request beside 16 others: 160 us of a step, of 2.55 tokens with three drafts."""
    scenario, batch = Scenario(**CHAIN, runtime="vllm-0.11"), np.array([16.0])
    engine, option = scenario.setting.runtime.engine, usual_option(scenario)
    once = {"host_us_per_request": msgspec.structs.replace(engine.host_us_per_request, value=10.0)}
    for way, tokens in ((None, 1.0), (option, 2.55)):
        once_us, twice_us = (token_us(scenario, terms, batch, 640, way) for terms in (once, doubled(once)))
        assert twice_us - once_us == pytest.approx(160.0 / tokens, rel=1e-6)
        assert changed_share(once_us, twice_us) == pytest.approx(160.0 / tokens / once_us)
        assert changed_share(twice_us, once_us) == pytest.approx(160.0 / tokens / twice_us)


@pytest.mark.parametrize(("share", "twice"), [(0.5, 1 / 3), (0.8, 2 / 3), (1.0, 1.0)])
def test_twice_of_a_share_takes_twice_as_much_longer(share, twice):
    """At half its speed a kernel takes twice its own time, at a third three times."""
    engine = Scenario(**CHAIN).setting.runtime.engine
    term = msgspec.structs.replace(engine.experts_share, value=share)
    assert doubled({"experts_share": term})["experts_share"].value == pytest.approx(twice)


def test_three_drafts_stand_for_all_and_chains_before_trees():
    assert usual_option(Scenario(**CHAIN)).depth == 3
    longer = usual_option(Scenario(**CHAIN | {"acceptance": "0.7,0.5,0.35,0.2,0.1"}))
    assert (longer.depth, longer.chain) == (3, True)
    assert usual_option(Scenario(**CHAIN, max_drafts=2)).depth == 2
