"""80 % bands of one cell, by hand: the step's share of a token's time, and what a server adds."""

from math import exp, hypot, log, sqrt

import numpy as np
import pytest

from medusa_sim.grid.cells import Cells, price
from medusa_sim.grid.configurations import Configurations
from medusa_sim.grid.single_step import _undescribed
from medusa_sim.load.step_table import chains
from medusa_sim.plan.verdict import LOSES, odds_of
from medusa_sim.scenario.defaults import (
    DEFAULT_SEQ_LEN,
    LOAD_OUTPUT_TOKENS,
    LOAD_PROMPT_TOKENS,
    request_length,
)
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.serving.request_steps import chances_of_mean

SERVED = Scenario(
    gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle", acceptance=0.7, runtime="vllm", prompt_tokens=2048,
    output_tokens=256,
)  # fmt: skip


@pytest.fixture(scope="module")
def cells() -> Cells:
    return price(SERVED, [16], [SERVED.length], SERVED.options(5)).by_count


def at(values, count: int) -> float:
    return float(np.broadcast_to(values, (1, 1, 5))[0, 0, count - 1])


@pytest.mark.parametrize("count", [2, 4, 5])
def test_a_servers_speedup_is_as_sure_as_its_steps_and_what_both_servers_pay_alike(cells, count):
    bands, share = cells.bands.in_flight, at(cells.server.step_share, count)
    # one error moves both servers: what is left is the difference of its shares
    others = sum((at(half, count) - at(half, 1)) ** 2 for half in cells.server.halves)
    overhead = bands.overhead.of_inverse
    for end, sign in ((0, -1), (1, 1)):
        gain = hypot(at(overhead[end], count), at(cells.bands.request_tokens[end], count))
        half = sqrt(log(1 + share * (exp(-sign * gain) - 1)) ** 2 + others)
        assert at(cells.speedup_band[end], count) == pytest.approx(
            at(cells.speedup, count) * exp(sign * half)
        )


@pytest.mark.parametrize("count", [1, 3, 5])
def test_a_tokens_time_is_as_sure_as_steps_tokens_and_server(cells, count):
    bands, seen = cells.bands.in_flight, cells.server
    (low_us, high_us), steps = bands.step_us, bands.steps
    fewer, more = (at(half, count) for half in cells.bands.request_tokens)
    share, us = at(seen.step_share, count), at(steps.time_us, count)
    beside = sum(at(half, count) ** 2 for half in seen.halves)
    beside += (1 - share**2) * (at(steps.cost.setup_half_us, count) / us) ** 2
    faster = sqrt(share**2 * (log(us / at(low_us, count)) ** 2 + more**2) + beside)
    slower = sqrt(share**2 * (log(at(high_us, count) / us) ** 2 + fewer**2) + beside)
    found = [at(end, count) for end in cells.bands.token_us.ratios()]
    assert found == pytest.approx([exp(-faster), exp(slower)])


@pytest.mark.parametrize("count", [2, 4])
def test_few_tokens_are_as_sure_as_the_whole_steps_that_they_take(count):
    """Of two tokens the second takes one step, whatever it accepts; of many each step emits its mean."""
    given = {
        "gpu": "h100-sxm",
        "model": "llama-3.1-8b",
        "runtime": "vllm",
        "prompt_tokens": 2048,
        "output_tokens": 9,
    }
    measured = Scenario(**given, drafter="eagle3", acceptance="eagle3-llama-3.1-8b", length_cv=0.0)
    option = chains(measured)[count - 2]

    def halves(output: int) -> list[float]:
        scenario = measured.but(output_tokens=output)
        cells = price(scenario, [16], [scenario.length], [option])
        return [float(half[0, 0, -1]) for half in cells.bands.request_tokens]

    of_step = [float(half[-1]) for half in option.token_halves]
    assert min(of_step) > 0.02
    assert halves(1) == halves(2) == [0.0, 0.0]
    assert halves(4000) == pytest.approx(of_step, rel=2e-3)
    # of two further tokens: one step, and another where the first accepts none
    chances = option.emission_chances[-1]
    for half, ratio, sign in zip(halves(3), (exp(-of_step[0]), exp(of_step[1])), (1, -1), strict=True):
        accepted = chances_of_mean(np.asarray(chances.sum() * ratio), chances)[1]
        assert half == pytest.approx(sign * log((2.0 - accepted) / (2.0 - chances[1])))


def test_plain_decoding_gains_nothing_for_certain(cells):
    assert at(cells.speedup, 1) == at(cells.speedup_band[0], 1) == at(cells.speedup_band[1], 1) == 1.0
    assert at(cells.speedup_band[0], 2) < at(cells.speedup, 2) < at(cells.speedup_band[1], 2)
    assert odds_of(price(SERVED, [1, 2], [512], ())).tolist() == [[LOSES], [LOSES]]


def test_a_request_of_a_load_is_as_long_as_a_step_half_way_through_its_output():
    assert LOAD_PROMPT_TOKENS + LOAD_OUTPUT_TOKENS / 2 == DEFAULT_SEQ_LEN
    assert request_length(LOAD_PROMPT_TOKENS, LOAD_OUTPUT_TOKENS) == DEFAULT_SEQ_LEN
    assert request_length(0.0, 1.0) == 1


def test_a_tree_of_unknown_shape_is_as_wide_as_its_depth_needs():
    scenario = Scenario(acceptance="paper-fig21")
    for candidates in (2, 5, 6, 12, 64):
        option = _undescribed(scenario, candidates)
        depth = min(candidates - 1, scenario.depth)
        assert option.depth == depth
        assert option.width == next(width for width in range(1, 99) if width * depth >= candidates - 1)


def test_configurations_are_plain_decoding_and_the_counts_of_each_option(cells):
    several = Configurations(SERVED.options(4))
    counts = [[int(count) for count in option.candidates] for option in several.options]
    assert several.option.tolist() == [-1] + [i for i, each in enumerate(counts) for _ in each]
    assert several.candidates.tolist() == [1] + [count for each in counts for count in each]
    assert several.tokens_per_step[0] == 1.0
