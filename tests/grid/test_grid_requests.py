"""Requests, trees and indices of a grid by hand."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import medusa_sim.load.quantities
import medusa_sim.plan.quantities
import medusa_sim.setups.quantities  # noqa: F401  # these rooms declare quantities of cells, too
from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.errors import UsageError
from medusa_sim.grid.axes import Grid
from medusa_sim.grid.cells import price
from medusa_sim.grid.configurations import Configurations
from medusa_sim.grid.quantities import values
from medusa_sim.grid.request_latency import RequestLatency, _mean, request_latency
from medusa_sim.grid.surface import surface_at
from medusa_sim.grid.sweep import sweep
from medusa_sim.plan.tree_answer import best_tree, tree_answer
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.drafting import drafting_times
from medusa_sim.step.memory import memory_parts
from medusa_sim.step.step import decode_step, prefill_step, verification_step

DENSE = {"gpu": "h100-sxm", "model": "llama-3.1-8b", "drafter": "eagle3", "acceptance": "0.7,0.5,0.3"}
SERVED = Scenario(**DENSE, runtime="vllm", tp=2, price=1.8, prompt_tokens=2000, output_tokens=200)
TREES = Scenario(runtime="cuda-graph", latency="roofline")


def test_what_fits_is_asked_at_the_lengths_in_flight():
    """Outputs of 4,096 tokens with a cv of 1 are 2,048 longer in flight: as many fit as of such requests."""
    scenario = SERVED.but(output_tokens=4096, length_cv=1.0)
    surface = surface_at(scenario, [1, 64, 256], [3000])
    alone = surface_at(SERVED.but(prompt_tokens=None, output_tokens=None), [1], [3000 + 2048])
    assert surface.max_batch.tolist() == alone.max_batch.tolist()
    assert surface.in_flight.max_batch.tolist() == alone.max_batch.tolist()
    at_once = surface_at(scenario, [1, 64, 256], [3000], in_flight=True)
    assert at_once.max_batch.tolist() == alone.max_batch.tolist()
    assert at_once.idle_share == pytest.approx(surface.in_flight.idle_share)
    busy, longer = (price(of, [64], [length]).by_count for of, length in (
        (scenario, 3000), (SERVED.but(prompt_tokens=None, output_tokens=None), 5048),
    ))  # fmt: skip
    assert busy.memory.kv_cache.tolist() == longer.memory.kv_cache.tolist()


@pytest.mark.parametrize("cv", [0.1, 0.25, 0.4])
def test_requests_in_flight_have_their_mean_length_to_a_fraction_of_a_token(cv):
    """Outputs of 200 tokens with a cv of 0.4 are 16 longer in flight, with 0.25 6.25 longer."""
    scenario = SERVED.but(length_cv=cv)
    length = 2100 + 200 * cv**2 / 2.0
    served = price(scenario, [16], [2100]).server_steps.steps
    assert served.surface.seq_len.tolist() == pytest.approx([length])
    alone = price(
        SERVED.but(prompt_tokens=None, output_tokens=None), [16], [int(length), length, int(length) + 1]
    )
    assert served.time_us[0, 0] == pytest.approx(alone.steps.time_us[0, 1], rel=1e-12)
    assert (np.diff(alone.steps.time_us[0], axis=0) >= 0.0).all()


# Requests.


def cells(plain_us: float, step_us: float, tokens: float) -> Any:
    """The same at all contexts of a batch of four."""
    plain, own, per_step = (np.full((1, 1, 1), value) for value in (plain_us, step_us, tokens))
    surface, every = SimpleNamespace(batch=np.array([4])), np.array([[1.0, 0.5, 0.5]])
    return SimpleNamespace(
        steps=SimpleNamespace(time_us=own, decode_us=plain), tokens_per_step=per_step, surface=surface,
        configurations=SimpleNamespace(emission_chances=every), configuration_at=lambda b, s, k: 0,
    )  # fmt: skip


def test_a_request_is_its_prompt_and_its_steps_but_one():
    """100 tokens behind a prompt of 5 ms: 99 steps of 10 ms, or (99 + 3 / 4) / 2 of 12 ms.

    One token or three a step, equally often: E[x^2] = 5, tau = 2, 3 / 4 of a token beyond the end.
    """
    one = RequestLatency(cells=cells(10_000.0, 12_000.0, 2.0), prompt_tokens=500, output_tokens=100)
    one.__dict__["plain_first_token_us"], one.__dict__["first_token_us"] = 5_000.0, 6_000.0
    assert one.batch == 4
    assert (one.plain_per_token_us, one.per_token_us) == (10_000.0, pytest.approx(6_000.0 * 99.75 / 99))
    assert one.plain_total_us == 5_000.0 + 99 * 10_000.0
    assert one.total_us == pytest.approx(6_000.0 + 99.75 * 6_000.0)
    assert one.request_speedup == pytest.approx(995 / 604.5)
    assert one.decode_speedup == pytest.approx(990 / 598.5)
    two = RequestLatency(cells=cells(10_000.0, 12_000.0, 2.0), prompt_tokens=500, output_tokens=2)
    assert (two.plain_per_token_us, two.per_token_us) == (10_000.0, 12_000.0)


def test_steps_along_a_request_are_averaged_by_the_trapezoid_rule():
    """Of a line its middle; of a step at the end half of one part in 32."""
    assert _mean(np.linspace(10.0, 20.0, 33).reshape(1, 33, 1)) == pytest.approx(15.0)
    assert _mean(np.array([0.0] * 32 + [32.0]).reshape(1, 33, 1)) == pytest.approx(0.5)
    assert _mean(np.full((1, 1, 1), 7.0)) == pytest.approx(7.0)


def test_a_request_with_drafts_reads_its_prompt_twice():
    """The layer of EAGLE-3 reads the prompt beside the model: a little more than the model alone."""
    scenario = Scenario(**DENSE, runtime="cuda-graph")
    option = next(each for each in scenario.options(4) if each.chain and each.depth == 3)
    found = request_latency(scenario, option, 4, batch=2, prompt_tokens=1000, output_tokens=100)
    assert found.plain_first_token_us == pytest.approx(float(prefill_step(scenario.setting, 2, 1000).time_us))
    assert 1.01 < found.first_token_us / found.plain_first_token_us < 1.1
    assert (found.candidates, found.depth) == (4, 3)
    assert found.tokens_per_step == pytest.approx(1 + 0.7 + 0.5 + 0.3)
    ends = price(scenario, [2], [1000, 1100], [option.only(np.array([4]))]).steps.time_us[0, :, -1]
    steps = (99 + (0.7 + 2 * 0.5 + 3 * 0.3) / 2.5) / 2.5
    assert ends[0] < found.decode_us / steps < ends[1]
    for sizes in ((0, 1, 1), (1, 0, 1), (1, 1, 0)):
        with pytest.raises(UsageError, match="from 1"):
            request_latency(scenario, None, 1, batch=sizes[0], prompt_tokens=sizes[1], output_tokens=sizes[2])


def test_a_plain_request_is_read_by_the_graphs_of_a_server_without_a_drafter():
    """SGLang captures prompts where no drafter is loaded: a tenth and more of a short one."""
    scenario = Scenario(**DENSE, runtime="sglang-0.5")
    plain, drafting = (
        float(prefill_step(scenario.setting, 1, 100, candidates=candidates).time_us) for candidates in (1, 4)
    )
    assert drafting > 1.1 * plain
    found = request_latency(scenario, None, 1, batch=1, prompt_tokens=100, output_tokens=10)
    assert found.first_token_us == found.plain_first_token_us == pytest.approx(plain)


# Trees.


def test_a_tree_by_hand_emits_its_nodes_probabilities():
    """A chain of the first head's and the second's best guesses, and of two guesses of the first head."""
    heads = TREES.profile.heads.conditional()
    chain, wide = CandidateTree.chain(2), CandidateTree.cartesian([2])
    first, second = heads[0, 0], heads[0, 1]
    found = tree_answer(TREES, chain, 1, 64)
    assert found.probability.tolist() == pytest.approx([1.0, first, first * heads[1, 0]], rel=0.05)
    assert found.tokens_per_step == pytest.approx(float(found.probability.sum()))
    assert found.least == float(found.probability[-1])
    assert found.share_of_best == found.tokens_per_step / found.best_tokens_per_step <= 1.0
    found = tree_answer(TREES, wide, 1, 64)
    assert found.probability.tolist() == pytest.approx([1.0, first, second])
    assert best_tree(TREES, 3, 1, 64).candidates == 3


def test_a_table_has_the_counts_that_were_asked_for_in_their_order():
    (table,) = sweep([TREES], Grid.of([1, 2], [64], [4, 1, 2]))
    assert (
        table.numbers["candidates"].tolist() == [4, 1, 2] * 2
        or table.numbers["candidates"].tolist() == [1, 2, 4] * 2
    )
    assert table.rows == 6
    (whole,) = sweep([TREES], Grid.of([1, 2], [64], [1, 2, 3, 4]))
    by_count = dict(zip(whole.numbers["candidates"][:4], whole.numbers["verify_step_us"][:4], strict=True))
    assert table.numbers["verify_step_us"][:3].tolist() == pytest.approx(
        [by_count[count] for count in table.numbers["candidates"][:3]]
    )
    assert table.lists(["batch", "bound"], 2)["batch"] == [1, 1]


def test_parts_of_a_cell_are_those_of_verification_and_of_its_drafter():
    cells = price(SERVED, [4, 16], [SERVED.length]).by_count
    setting = cells.surface.setting
    parts = cells.steps.parts_us
    for place in range(1, cells.shape[-1]):
        drafts = int(cells.configuration_at(0, 0, place))
        option = cells.configurations.options[int(cells.configurations.option[drafts])]
        count = int(cells.configurations.counts[drafts])
        own = replace(setting, drafter=option.drafter)
        verified = verification_step(own, 4, SERVED.length, count).parts_us
        drafted = sum(
            float(sum(step.parts_us.values())) for step in drafting_times(own, 4, SERVED.length, count)
        )
        for part in ("qkv", "attention", "mlp", "lm_head"):
            assert parts[part][0, 0, place] == pytest.approx(float(verified[part])), part
        assert parts["drafter"][0, 0, place] == pytest.approx(drafted)
        assert parts["drafter"][0, 0, place] > 0.0
    plain = decode_step(setting, 4, SERVED.length).parts_us
    assert parts["drafter"][0, 0, 0] == 0.0
    assert parts["attention"][0, 0, 0] == pytest.approx(float(plain["attention"]))
    assert "exchange" in parts
    assert "exchange" not in price(TREES, [1], [512]).by_count.steps.parts_us


def test_as_many_requests_fit_as_there_is_room_beside_weights():
    """Each holds its cache and its activations; what is left of the next one is no request."""
    cells = price(SERVED, [1], [SERVED.length]).by_count
    of, shard = cells.configurations, SERVED.shard
    length = np.array([SERVED.length])
    one, three = (
        memory_parts(shard, of.drafter_memory(shard), batch, length, of.candidates).total for batch in (1, 3)
    )
    each = (three - one) / 2
    beside = SERVED.usable_memory_bytes - (one - each)
    assert of.max_batch(SERVED, length, np.zeros(1))[0].tolist() == (beside // each).astype(int).tolist()
    assert (beside % each > 0.0).all()


def test_counts_of_trees_are_those_of_their_option_and_of_chains_all_chains():
    def option(chain: bool, *candidates: int) -> Any:
        return SimpleNamespace(candidates=np.array(candidates), chain=chain, width=1)

    of = Configurations((option(True, 3), option(False, 4, 8), option(True, 2)))  # type: ignore[arg-type]
    assert of.sizes_of(1).tolist() == of.sizes_of(4).tolist() == [4, 1]  # two candidates, then three
    assert of.sizes_of(2).tolist() == of.sizes_of(3).tolist() == [2, 3]


def test_what_was_not_asked_has_no_time():
    """Steps without prompts have no first token; of outputs of one token none follows another."""
    scenario = Scenario(**DENSE, runtime="vllm")
    waits = ["ttft_ms", "benchmark_ttft_ms"]
    for found in values(price(scenario, [8], [512]).by_count, waits).values():
        assert np.isnan(found).all()
    one = price(scenario.but(prompt_tokens=100, output_tokens=1), [1, 8], [100]).by_count
    for name, found in values(one, ["itl_us", "tpot_us", "tokens_per_s_per_user", *waits]).items():
        assert np.isfinite(found).all() == name.endswith("ttft_ms"), name
    assert np.isfinite(one.tokens_per_s).all()
    single = request_latency(scenario, None, 1, batch=1, prompt_tokens=100, output_tokens=1)
    assert np.isnan(single.per_token_us)
    assert single.total_us == single.first_token_us
