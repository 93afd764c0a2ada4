"""What the parts of an answer give by hand: batches tried, what is slower with more, what would fit."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from left_out import numbers_left_out

from medusa_sim.errors import UsageError
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.gpus.gpu_names import gpu_names
from medusa_sim.grid.cells import Cells, price
from medusa_sim.grid.surface import GrownPrompts
from medusa_sim.plan import alternatives, coarse_search, recommendation
from medusa_sim.plan.break_even import longest_context
from medusa_sim.plan.capacity import batches_tried, capacities
from medusa_sim.plan.coarse_search import CoarseSearch, coarse_searches
from medusa_sim.plan.recommend import _with_traffic, recommend
from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.plan.schedule import gains_by_batch, ranges_over, scheduled_counts
from medusa_sim.plan.shortfall import _Asked, _kinds_of_changes, shortfall
from medusa_sim.plan.surprises import activated_experts, slower_with_more
from medusa_sim.plan.sweep_answer import _drafting_share
from medusa_sim.plan.verdict import verdict_of
from medusa_sim.report.recommend.python import recommendation_values
from medusa_sim.scenario.question import Question
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.expert_union import INDEPENDENT
from medusa_sim.step.step import decode_step, drafting_times

SMALL = Scenario(
    gpu="rtx-4090", model="llama-3.1-8b", drafter="eagle3", acceptance="0.7,0.5,0.3", latency="roofline"
)
LONG = 4000
"""Tokens of which an RTX 4090 holds few requests beside the model, so that every batch can be tried."""


def test_every_batch_is_tried_to_64_and_every_twentieth_beyond():
    """From 64 to 128 in steps of a twentieth: ln 2 / ln 1.05 = 14.2, so 15 steps."""
    assert batches_tried(0).tolist() == []
    assert batches_tried(3).tolist() == [1, 2, 3]
    assert batches_tried(64).tolist() == list(range(1, 65))
    beyond = batches_tried(128)
    assert beyond[:64].tolist() == list(range(1, 65))
    assert beyond[64:].tolist() == [round(64 * 2 ** (step / 15)) for step in range(1, 16)]


def test_break_even_is_looked_for_at_every_batch_to_64_and_every_fiftieth_beyond(monkeypatch):
    """To 1,024 in steps of 2 %: ln 16 / ln 1.0201 = 139.3, so 140; each length to what fits with drafts."""
    priced: list[list[int]] = []
    rooms = np.array([[5000, 3000, 2000], [900, 701, 300], [40, 0, 0]])
    monkeypatch.setattr(
        coarse_search,
        "surface_at",
        lambda _, batch, *given: SimpleNamespace(max_batch=rooms, with_batch_edges=batch),
    )
    monkeypatch.setattr(coarse_search.Cells, "every", lambda batch: priced.append(batch.tolist()))
    lengths = np.array([64, 512, 4096])
    whole, some, none = coarse_searches(SMALL, (), lengths)
    assert whole.batches[:64].tolist() == list(range(1, 65))
    assert whole.batches.tolist()[63:] == sorted({round(64 * 16 ** (k / 140)) for k in range(141)} | {701})
    assert some.batches.tolist() == [batch for batch in whole.batches.tolist() if batch <= 701]
    assert none.batches.tolist() == []
    assert [each.largest for each in (whole, some, none)] == [1024, 701, 0]
    # what is searched anyway is not priced here, and a search beyond 1,024 goes to its own end
    priced.clear()
    first, *_ = coarse_searches(SMALL, (), lengths, np.array([1, 2, 2000]), [np.array([2, 3, 1999])] * 3)
    assert (first.largest, first.batches[0], 2000 in first.batches) == (2000, 3, False)
    assert set(priced[0]) == {*first.batches.tolist(), 1999}


def look_at(cells: Cells) -> CoarseSearch:
    batch = cells.surface.batch
    return CoarseSearch(batches=batch, cells=cells, s=0, largest=int(batch[-1]))


@pytest.mark.parametrize("limit_ms", [None, 8.5, 12.0, 1.0])
@pytest.mark.parametrize(
    "traffic", [{}, {"prompt_tokens": 2000, "output_tokens": 200}], ids=["step", "server"]
)
def test_the_best_operating_point_is_that_of_every_batch_and_count(limit_ms, traffic):
    scenario = SMALL.but(**traffic)
    options = scenario.options(8)
    every = price(scenario, range(1, 17), [LONG], options)
    limit_us = None if limit_ms is None else 1e3 * limit_ms
    (found,) = capacities([look_at(every)], every, limit_us)
    assert found.max_batch_without == int(every.surface.max_batch[0, 0]) < 16
    allowed = every.fits[:, 0] & (every.server.tpot_us[:, 0] <= (limit_us or np.inf))
    rate = np.where(allowed, every.tokens_per_s[:, 0], -np.inf)
    for best, of in ((found.without_speculation, rate[:, :1]), (found.with_speculation, rate[:, 1:])):
        if of.max() == -np.inf:
            assert best is None
        else:
            assert best.tokens_per_s == pytest.approx(of.max())
            assert best.batch == 1 + int(of.max(axis=1).argmax())
    with np.errstate(invalid="ignore"):  # inf over inf where nothing is in time
        gain = rate[:, 1:].max() / rate[:, 0].max()
    assert found.gain == (pytest.approx(gain) if 0.0 < gain < np.inf else None)
    best = found.with_speculation
    assert found.max_batch_with == (0 if best is None else best.max_batch)


def test_the_best_point_is_found_around_the_batches_that_were_looked_at():
    """Looked at were 4 and 12 of the batches that fit; the best lies within four of the better one."""
    scenario = SMALL.but(gpu="h100-sxm", prompt_tokens=4000, output_tokens=400)
    options = scenario.options(4)
    looked = price(scenario, [4, 12], [LONG], options)
    every = price(scenario, range(1, 17), [LONG], options)
    (found,) = capacities([look_at(looked)], looked)
    assert every.fits[:, 0].all()
    assert found.without_speculation.batch == 1 + int(every.tokens_per_s[:, 0, 0].argmax()) == 16
    assert found.with_speculation.tokens_per_s == pytest.approx(every.tokens_per_s[:, 0, 1:].max())


def rates(*by_batch: list[float], fits: bool = True, scope: str = "model") -> Any:
    """Cells of plain decoding alone: rates by batch and length."""
    rate = np.array(by_batch)[..., None]
    by_count = SimpleNamespace(tokens_per_s=rate, fits=np.full(rate.shape, fits))
    surface = SimpleNamespace(batch=np.arange(1, len(rate) + 1))
    return SimpleNamespace(scenario=SimpleNamespace(scope=scope), surface=surface, by_count=by_count)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        ((1.05, 1.2), (1.5, 1.5), "pays"),
        ((1.0, 1.2), (1.5, 1.5), "uncertain"),
        ((0.5, 0.5), (1.0, 0.9), "loses"),
    ],
)
def test_a_gain_is_certain_above_one_throughout(low, high, verdict):
    assert verdict_of(np.array(low), np.array(high)) == verdict


@pytest.mark.parametrize(("topk", "found"), [(8, None), (2, (1, 2))])
def test_experts_that_drafts_activate_are_shown_where_there_are_any(topk, found):
    """Of eight experts a token takes two or all; a draft costs 4 of 10 us either way."""
    decode = SimpleNamespace(time_us=np.full((2, 1, 1), 10.0), parts_us={"experts": np.full((2, 1, 1), 1.0)})
    model = SimpleNamespace(experts=SimpleNamespace(experts=8, topk=topk))
    surface = SimpleNamespace(
        setting=SimpleNamespace(model=model, overlap=INDEPENDENT), batch=np.array([1, 2]), seq_len=[512],
        configurations=SimpleNamespace(counts=np.array([1, 2])), decode=decode, shape=(2, 1),
        verify=SimpleNamespace(parts_us={"experts": np.full((2, 1, 2), 5.0)}),
    )  # fmt: skip
    told = activated_experts(SimpleNamespace(surface=surface))  # type: ignore[arg-type]
    assert (told and (told.first, told.last)) == found
    assert told is None or told.cost == pytest.approx(0.4)


def test_a_limit_of_a_token_needs_a_token_after_the_first():
    asked = Question(batch_max=1, max_latency_ms=20.0)
    _with_traffic(SMALL.but(prompt_tokens=100.0, output_tokens=1.05), asked)
    with pytest.raises(UsageError, match="outputs of 1"):
        _with_traffic(SMALL.but(prompt_tokens=100.0, output_tokens=1.0), asked)


def test_what_is_slower_with_a_request_more_is_shown_from_three_percent():
    """100 to 96 tokens/s is 4 % less, 120 to 100 is 17 %; the largest fall leads."""
    found = slower_with_more(rates([100.0], [96.0], [120.0], [100.0]))
    assert [batch for batch, _ in found] == [3, 1]
    assert [change for _, change in found] == pytest.approx([-1.0 / 6.0, -0.04])
    assert slower_with_more(rates([100.0], [97.1])) == ()
    ((batch, change),) = slower_with_more(rates([100.0], [96.9]))
    assert (batch, change) == (1, pytest.approx(-0.031))
    # of several lengths the one that falls most
    assert slower_with_more(rates([100.0, 100.0], [101.0, 90.0])) == ((1, pytest.approx(-0.1)),)
    assert slower_with_more(rates([100.0], [50.0], fits=False)) == ()
    assert slower_with_more(rates([100.0], [50.0], scope="block")) == ()
    assert slower_with_more(rates([100.0])) == ()


def fits(scenario: Scenario, batch: int, length: int) -> bool:
    return shortfall(scenario, batch, length) is None


def test_a_change_that_would_fit_is_the_least_that_does():
    """The largest batch or context, the fewest GPUs, the smallest GPU."""
    options = [change.option.split() for change in shortfall(SMALL, 40, 8000).changes]
    assert [words[0] for words in options] == ["--batch", "--tp", "--gpu"]
    (_, batch), (_, gpus), (_, card) = options
    assert [fits(SMALL, int(batch) + more, 8000) for more in (0, 1)] == [True, False]
    assert [fits(SMALL.but(tp=int(gpus) // less), 40, 8000) for less in (1, 2)] == [True, False]
    assert fits(SMALL.but(gpu=card), 40, 8000)
    between = [load_gpu(name) for name in gpu_names()]
    room = SMALL.gpu.memory_bytes, load_gpu(card).memory_bytes
    assert not any(
        fits(SMALL.but(gpu=gpu), 40, 8000) for gpu in between if room[0] < gpu.memory_bytes < room[1]
    )
    (*_, (option, length)) = [change.option.split() for change in shortfall(SMALL, 2, 120_000).changes]
    assert option == "--seq"
    assert [fits(SMALL, 2, int(length) + more) for more in (0, 1)] == [True, False]
    # a format of half the bytes does at 60,000 tokens, and at none where the cache alone is too large
    assert shortfall(SMALL, 1, 60_000).changes[0].option == "--weight-dtype fp8"


@pytest.mark.parametrize(
    ("runtime", "gpu", "length", "file"),
    [("llama.cpp", "rtx-4090", 70_000, "Q8_0"), ("mlx", "m1", 4096, "8bit")],
)
def test_an_engine_of_files_is_told_a_type_of_file(runtime, gpu, length, file):
    local = Scenario(gpu=gpu, model="llama-3.1-8b", runtime=runtime, drafter="ngram", acceptance=0.5)
    options = [change.option for change in shortfall(local, 1, length).changes]
    assert f"--weight-dtype {file}" in options
    assert not any("fp8" in option for option in options if "weight" in option)


def test_several_of_another_card_are_the_fewest_and_smallest_that_do():
    """Where one of a GPU does, several of it are no change that is told."""
    large = SMALL.but(model="llama-3.1-70b")
    for gpu in ("rtx-4090", "a40", "h100-sxm"):
        asked = large.but(gpu=gpu)
        for change in (
            each
            for kind in _kinds_of_changes(_Asked(asked, 1, 1024))
            for each in islice(filter(None, kind), 1)
        ):
            words = change.option.split()
            if words[::2] != ["--gpu", "--tp"]:
                continue
            card, tp = words[1], int(words[3])
            assert not fits(asked.but(gpu=card), 1, 1024), change.option
            room = asked.gpu.memory_bytes, load_gpu(card).memory_bytes
            smaller = [name for name in gpu_names() if room[0] < load_gpu(name).memory_bytes < room[1]]
            assert not any(fits(asked.but(gpu=name, tp=tp), 1, 1024) for name in smaller), change.option
            break
        else:
            raise AssertionError(gpu)


def test_a_shortfall_is_weights_cache_and_activations():
    """8.03 billion weights of 16 bits; 131,072 bytes a token of K and V, 8 heads of 128 in 32 layers."""
    found = shortfall(SMALL, 40, 8000)
    assert float(found.parts.weights) == pytest.approx(16.06e9, rel=1e-3)
    assert float(found.parts.kv_cache) == pytest.approx(40 * 8001 * 131_072, rel=1e-3)
    assert found.needed_bytes == pytest.approx(float(found.parts.weights + found.parts.kv_cache), rel=0.02)


def test_the_longest_context_is_the_last_that_fits():
    """One token more does not: 16 bits of K and V of 8 heads of 128 in 32 layers are 131,072 bytes each."""
    split = Scenario(gpu="h200-sxm", model="deepseek-r1", runtime="sglang", drafter="mtp", tp=8, ep=8,
                     dp_attention=True, weight_dtype="fp8_block", max_drafts=2)  # fmt: skip
    for scenario, batches in ((SMALL, (1, 4)), (split, (1, 8, 9))):
        options = scenario.options(4)
        lengths = [longest_context(scenario, options, batch) for batch in batches]
        for batch, length in zip(batches, lengths, strict=True):
            fits = price(scenario, [batch], [length, length + 1], options).fits[0, :, 1:].any(axis=-1)
            assert fits.tolist() == [True, False]
    assert lengths[0] == lengths[1] > 1.9 * lengths[2]  # two requests on one of eight GPUs
    large = SMALL.but(model="llama-3.1-70b")  # 141 GB of weights in 24 GB
    assert longest_context(large, large.options(4), 1) == 0


def test_a_text_of_all_requests_is_held_once_at_every_context():
    """Four requests whose prompts, all but 128 tokens, have three quarters in common."""
    options, each = SMALL.options(4), GrownPrompts(128.0, 0.75)
    alone, once = (longest_context(SMALL, options, 4, of) for of in (each, each._replace(held_once=True)))
    assert alone == longest_context(SMALL, options, 4)
    fits = price(SMALL, [4], [once, once + 1], options, grown=each._replace(held_once=True)).fits
    assert fits[0, :, 1:].any(axis=-1).tolist() == [True, False]
    # 4 alone = 4 (once - 0.75 (once - 128)) + 0.75 (once - 128), but for a token or two
    assert 4 * alone == pytest.approx(1.75 * once + 2.25 * 128, abs=8)


def test_gains_batch_by_batch_are_those_of_the_schedule():
    answer = recommend(SMALL, Question(batch_min=3, batch_max=12, seq_len=(LONG,)))
    rows, counts = gains_by_batch(answer.rows_at(LONG)), scheduled_counts(answer.rows_at(LONG))
    assert [row["batch"] for row in rows] == list(range(3, 13)) == list(counts)
    held = int(answer.cells.surface.max_batch[0, 0])
    assert 3 < held < 12
    for row in rows:
        one = answer.scheduled_row_at(int(row["batch"]), LONG)
        assert row["candidates"] == one.candidates == counts[int(row["batch"])]
        assert row["drafts"] == one.drafts == row["candidates"] - 1  # a chain
        assert row["speedup"] == pytest.approx(one.speedup)
        assert (row["speedup_low"], row["speedup_high"]) == pytest.approx((one.speedup_low, one.speedup_high))
        assert row["fits_memory"] == (row["batch"] <= held) or row["candidates"] > 1
        assert row["no_room_to_draft"] == (row["candidates"] == 1 and one.verdict == "pays")
    assert any(row["no_room_to_draft"] for row in rows)
    assert any(row["candidates"] > 1 for row in rows)


def chain_tokens(factor: float) -> float:
    """Of three drafts, each accepted after those before with 0.7, 0.5 / 0.7 and 0.3 / 0.5 times a factor."""
    return float(1 + np.cumprod(factor * np.array([0.7, 0.5 / 0.7, 0.3 / 0.5])).sum())


def test_a_row_says_what_other_acceptance_gives_and_what_it_needs():
    """A step that takes r plain ones breaks even at r tokens; 2.5 tokens become 2.254 and 2.766."""
    scenario = SMALL.but(runtime="cuda-graph", max_drafts=3)
    answer = recommend(scenario, Question(batch_min=4, batch_max=4, seq_len=(1024,)))
    row = answer.scheduled_row_at(4, 1024)
    assert (row.drafts, row.candidates, row.verdict) == (3, 4, "pays")
    ratio = row.overhead
    assert row.speedup == pytest.approx(2.5 / ratio)
    assert chain_tokens(1.0) == pytest.approx(2.5)
    assert row.speedup_acceptance_minus_10_percent == pytest.approx(chain_tokens(0.9) / ratio)
    assert row.speedup_acceptance_plus_10_percent == pytest.approx(chain_tokens(1.1) / ratio)
    assert row.required_tokens_per_step == pytest.approx(ratio)
    assert chain_tokens(row.required_acceptance_factor) == pytest.approx(ratio, rel=1e-6)


@pytest.mark.parametrize(("kv", "tried"), [(None, True), ("fp8", False)])
def test_a_narrow_cache_is_a_way_out_where_the_cache_is_wide(kv, tried):
    found = list(_kinds_of_changes(_Asked(SMALL.but(kv_dtype=kv), 6, 10_000)))
    options = [each.option for kind in found for each in kind if each is not None]
    assert ("--kv-dtype fp8" in options) == tried


def test_a_block_alone_has_no_share_of_drafting():
    whole = Scenario(model="vicuna-7b", gpu="a100-80gb-pcie", runtime="cuda-graph")
    assert 0.0 < _drafting_share(price(whole, [1], [1024]).by_count) < 1.0
    assert _drafting_share(price(whole.but(scope="block"), [1], [1024]).by_count) == 0.0
    assert _drafting_share(price(whole, [1], [1024], []).by_count) == 0.0  # plain decoding alone


def test_drafting_is_shown_of_the_shortest_draft():
    """One draft of the layer over a plain step of one request; two take longer."""
    scenario = SMALL.but(runtime="cuda-graph")
    cells = price(scenario, [1], [1024]).by_count
    plain_us = float(decode_step(scenario.setting, 1, 1024).time_us)
    one, two = (
        sum(float(each.time_us) for each in drafting_times(setting, 1, 1024, option.depth + 1))
        for option in scenario.options()[:2]
        for setting in [replace(scenario.setting, drafter=option.drafter)]
    )
    assert _drafting_share(cells) == pytest.approx(one / plain_us, rel=1e-6)
    assert two > 1.2 * one


def test_what_is_free_at_every_length_is_the_least_of_them():
    told = recommendation_values(recommend(SMALL, Question(batch_min=1, batch_max=2, seq_len=(64, LONG))))
    every = [(row["batch"], row["seq_len"], row["candidates"]) for row in told["free_candidates"]]
    assert [row[:2] for row in every] == [(1, 64), (2, 64), (1, LONG), (2, LONG)]
    assert [*told["free_candidates_by_batch"]] == ["1", "2"]
    for batch, free in told["free_candidates_by_batch"].items():
        assert free == min(count for at, _, count in every if str(at) == batch)


def test_a_model_of_810_gb_takes_sixteen_cards_of_80():
    """101 GB each on eight."""
    large = Scenario(gpu="h100-sxm", model="llama-3.1-405b", drafter="ngram", acceptance=0.5)
    assert "--tp 16" in [change.option for change in shortfall(large, 1, 64).changes]


@pytest.mark.parametrize(
    ("request_", "nearest", "cached"), [((500, 20), 0, 2), ((1300, 20), 1, 738), ((9000, 20), 1, 0)]
)
def test_a_request_is_timed_at_the_nearest_length_of_the_smallest_and_largest_batch_that_fits(
    monkeypatch, request_, nearest, cached
):
    """Lengths of 512 and 2,048; of batches 1, 4 and 16 the last has no room.

    What is longer than the request half way through its output is a cached prefix: 512 - (500 + 20 / 2).
    """
    monkeypatch.setattr(recommendation, "configuration_at", lambda ranges, place: ranges[place])
    monkeypatch.setattr(
        recommendation, "request_latency", lambda scenario, option, count, **sizes: (option, count, sizes)
    )
    fits = np.ones((3, 2, 2), np.bool_)
    fits[2] = False
    lengths = np.array([512, 2048])
    surface = SimpleNamespace(seq_len=lengths, asked_len=lengths, batch=np.array([1, 4, 16]))
    cells = SimpleNamespace(
        surface=surface, fits=fits,
        configurations=SimpleNamespace(option_of=str, candidates=np.arange(0, 60, 10)),
    )  # fmt: skip
    answer = SimpleNamespace(
        question=SimpleNamespace(request=request_), cells=cells, scenario=None, ranges=[(0, 1, 2), (3, 4, 5)]
    )
    answer._request_latency = partial(Recommendation._request_latency, answer)
    requests_of, first = Recommendation.request_latencies.func, 3 * nearest
    sizes = {"prompt_tokens": request_[0], "output_tokens": request_[1], "cached_tokens": cached}
    assert requests_of(answer) == (
        (f"{first}", 10 * first, {"batch": 1, **sizes}),
        (f"{first + 1}", 10 * (first + 1), {"batch": 4, **sizes}),
    )
    assert requests_of(SimpleNamespace(question=SimpleNamespace(request=None))) == ()


@pytest.mark.parametrize(
    ("candidates", "meets", "pays"), [(1, None, False), (2, None, True), (2, True, True), (2, False, False)]
)
def test_speculation_is_worth_it_where_a_row_that_keeps_the_limit_drafts(candidates, meets, pays):
    row = SimpleNamespace(candidates=candidates, meets_latency=meets)

    def enable(objective, best=None, plain=None):
        asked = SimpleNamespace(objective=objective)
        answer = SimpleNamespace(question=asked, schedule=[row], best_with=best, best_without=plain)
        return Recommendation.enable.fget(answer)

    assert enable("latency") is pays
    best, plain = SimpleNamespace(tokens_per_s=2.0), SimpleNamespace(tokens_per_s=2.0 if meets else 1.0)
    assert enable("throughput", best, plain) is not bool(meets)
    assert enable("throughput", best)
    assert not enable("throughput")


def test_a_cliff_is_shown_from_the_rows_count_up(monkeypatch):
    """A step of twice the time after 3 and after 7 counts; with five counts none is out of line."""
    steps = np.repeat([10.0, 20.0, 40.0], [3, 4, 5])
    for counts, candidates, cliff in (
        (12, 1, 3),
        (12, 3, 3),
        (12, 4, 7),
        (12, 8, None),
        (5, 1, None),
        (6, 1, 3),
    ):
        found = (np.arange(1, counts + 1), steps[:counts])
        monkeypatch.setattr(alternatives, "_steps_by_count", lambda row, found=found: found)
        assert alternatives.cliff_after(SimpleNamespace(candidates=candidates)) == cliff


def shared_ranges(
    first: list[list[float]], last: list[list[float]], *, gain: float = 0.0, limit_us: float | None = None,
    late: Sequence[tuple[int, int]] = (), no_room: Sequence[tuple[int, int]] = (), half: float = 0.0,
    drafting: tuple[str, str] = ("1111", "1111"),
) -> list[tuple[int, int, int]]:  # fmt: skip
    """(first place, last, configuration) over the first and the last of three lengths of these speedups.

    Configurations 0, 7 and 5; a step takes 10 us, 30 where it is `late` at the last length.
    """
    other = [[1.0, 9.0, 9.0]] * len(first)  # at the length between, which is not asked about
    speedup = np.array([first, other, last]).transpose(1, 0, 2)
    fits, tpot_us = np.ones(speedup.shape, dtype=bool), np.full(speedup.shape, 10.0)
    for b, k in no_room:
        fits[b, 0, k] = False
    for b, k in late:
        tpot_us[b, 2, k] = 30.0
    halves = np.full(speedup.shape, half) * np.array([0.0, 1.0, 2.0])
    contenders = SimpleNamespace(
        speedup=speedup, fits=fits, speedup_band=SimpleNamespace(half=halves), spread=lambda values: values,
        fits_in_time=lambda limit_us: fits & (tpot_us <= (limit_us or np.inf)),
        index=np.array([[[0, 7, 5]]]),
    )  # fmt: skip
    cells = SimpleNamespace(contenders=contenders, surface=SimpleNamespace(batch=np.arange(len(first))))
    question = SimpleNamespace(max_latency_us=limit_us, switching_gain=gain)
    where = [np.array([letter == "1" for letter in each[: len(first)]]) for each in drafting]
    break_evens = [
        SimpleNamespace(is_drafting=lambda batch, drafts=drafts: drafts)
        for drafts in (where[0], np.zeros(len(first), dtype=bool), where[1])
    ]
    found = ranges_over([0, 2], cells, question, break_evens)  # type: ignore[arg-type]
    return [(each.first, each.last, each.configuration) for each in found]


FIRST = [[1.0, 1.4, 1.2], [1.0, 1.4, 1.6], [1.0, 0.9, 0.8], [1.0, 1.1, 0.8]]
LAST = [[1.0, 1.2, 1.2], [1.0, 1.0, 1.3], [1.0, 1.3, 0.9], [1.0, 0.8, 0.9]]
"""Geometric means: 1.30 and 1.20, 1.18 and 1.44, 1.08 and 0.85, 0.94 and 0.85."""


def test_lengths_share_the_configuration_of_the_largest_geometric_mean():
    own = {"drafting": ("1100", "1111")}  # where they disagree, the mean decides
    assert shared_ranges(FIRST, LAST, **own) == [(0, 0, 7), (1, 1, 5), (2, 2, 7), (3, 3, 0)]
    # at the last both say so, and the mean gains somewhere
    assert shared_ranges(FIRST, LAST, drafting=("1101", "1111"))[-1] == (2, 3, 7)
    assert shared_ranges(FIRST[2:], LAST[2:], drafting=("00", "00")) == [(0, 1, 0)]
    nowhere = [[1.0, 0.9, 0.9]] * 2
    assert shared_ranges(nowhere, nowhere) == [(0, 1, 0)]  # the mean gains at no batch
    # what has no room at one of the lengths runs at neither
    assert shared_ranges(FIRST, LAST, no_room=[(1, 2)], **own) == [(0, 2, 7), (3, 3, 0)]


def test_a_limit_of_latency_is_kept_at_every_length_where_anything_keeps_it():
    own: dict[str, Any] = {"drafting": ("1100", "1111")}
    slow = [(0, 1)]
    assert shared_ranges(FIRST, LAST, late=slow, limit_us=20.0, **own)[0] == (0, 1, 5)
    assert shared_ranges(FIRST, LAST, late=slow, limit_us=30.0, **own)[0] == (0, 0, 7)
    assert shared_ranges(FIRST, LAST, late=slow, **own)[0] == (0, 0, 7)
    # where nothing keeps it the fastest runs, in a range of its own
    alike = [[1.0, 1.5, 1.2]] * 2
    assert shared_ranges(alike, alike, limit_us=20.0) == [(0, 1, 7)]
    every = [(1, 0), (1, 1), (1, 2)]
    assert shared_ranges(alike, alike, limit_us=20.0, late=every) == [(0, 0, 7), (1, 1, 7)]
    # as batches at which plain decoding has no room
    assert shared_ranges(alike, alike, no_room=[(1, 0)]) == [(0, 0, 7), (1, 1, 7)]


def test_a_configuration_stays_within_a_switch_or_the_doubt_about_two():
    """5 gains 2 % over 7 at the second batch; half-widths of h and 2 h leave a doubt of h sqrt(3)."""
    speedup = [[1.0, 1.5, 1.2], [1.0, 1.5, 1.53]]
    assert shared_ranges(speedup, speedup) == [(0, 0, 7), (1, 1, 5)]
    assert shared_ranges(speedup, speedup, gain=0.021) == [(0, 1, 7)]
    assert shared_ranges(speedup, speedup, half=0.0112) == [(0, 0, 7), (1, 1, 5)]
    assert shared_ranges(speedup, speedup, half=0.0116) == [(0, 1, 7)]


def test_what_is_left_out_is_nothing_but_for_these():
    """Factors and counts are one, sizes those that most have."""
    assert numbers_left_out("plan") == {
        "EngineCheck.tokens_per_step": 1.0,
        "EngineCheck.tokens_low": 1.0,
        "EngineCheck.tokens_high": 1.0,
    }
