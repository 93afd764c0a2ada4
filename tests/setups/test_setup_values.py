"""Numbers of a comparison by hand: who is sent where, what copies carry, how sure a speed is."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from left_out import numbers_left_out

from medusa_sim import data
from medusa_sim.api import compare
from medusa_sim.errors import UsageError
from medusa_sim.load.arguments import LoadArguments
from medusa_sim.load.requests import Requests
from medusa_sim.load.sources import Drawn
from medusa_sim.models.named import load_model
from medusa_sim.scenario.defaults import LOAD_SHARE
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.setups import loaded, measured
from medusa_sim.setups.comparison import Comparison, on_frontier, sureness
from medusa_sim.setups.loaded import MOST_FLEETS, Routed, routed, second_level, under_load
from medusa_sim.setups.measured import PricedFigure
from medusa_sim.setups.pricing import surface_of
from medusa_sim.setups.question import SetupChoices, SetupQuestion
from medusa_sim.setups.search import _gaps
from medusa_sim.setups.served_figures import _WORDS, SERVED, Figure, by_nearness, differences
from medusa_sim.setups.setup import SET_UP, name_of, setups

# Requests of one token each that stay 1 s + 1 s.
STREAM = Drawn(LoadArguments(prompt_tokens=10, output_tokens=1, length_cv=0, requests=6))


def routes(router: Any, arrival_s: list[float], output: list[int], copies: int = 2) -> list[int]:
    sent = Routed(stream=STREAM, copies=copies, router=router, first_s=1.0, token_s=1.0)
    count = len(arrival_s)
    whole = Requests(
        arrival_s=np.array(arrival_s), prompt_tokens=np.full(count, 10), output_tokens=np.array(output)
    )
    return sent.places(whole).tolist()


def test_a_figure_of_ones_own_card_is_near_ones_own_card(tmp_path):
    for folder in ("hardware", "profiles"):
        (tmp_path / folder).mkdir()
    card = data.find("hardware", "h100-sxm.toml").read_text(encoding="utf-8")
    (tmp_path / "hardware" / "ours.toml").write_text(card.replace('"h100-sxm"', '"ours"', 1))
    shipped = data.find("profiles", SERVED).read_text(encoding="utf-8")
    (tmp_path / "profiles" / SERVED).write_text(shipped.replace('"h100-sxm"', '"ours"'))
    of = Scenario(gpu="ours", model="llama-3.1-8b", runtime="vllm", drafter="ngram", data_dir=tmp_path)
    assert by_nearness(of)[0].set_up["gpu"] == "ours"


def test_a_request_goes_to_the_copy_with_the_fewest_outstanding():
    """Each stays 1 s and 1 s a token: the first, of nine tokens, until 10 s, the second until 3 s."""
    assert routes("least-load", [0.0, 1.0, 2.0, 4.0, 5.0], [9, 1, 1, 1, 1]) == [0, 1, 0, 1, 0]
    # at 2.0 both hold one: the third in turn is copy 0; at 4.0 copy 1 is empty; at 5.0 both hold one again
    assert routes("least-load", [0.0, 2.0], [1, 1]) == [0, 1]  # of two empty ones the next in turn
    assert routes("least-load", [0.0, 0.5, 2.0, 2.5], [9, 1, 9, 1]) == [0, 1, 0, 1]
    assert routes("least-load", [0.0, 0.5, 2.6, 2.7], [9, 1, 9, 1]) == [0, 1, 1, 1]
    # of copies that are equally empty the next in turn: of three, the first is busy until 10 s
    assert routes("least-load", [0.0, 0.0, 0.0, 5.0], [9, 1, 1, 1], copies=3) == [0, 1, 2, 1]
    assert routes("round-robin", [0.0, 1.0, 2.0, 4.0, 5.0], [9, 1, 1, 1, 1]) == [0, 1, 0, 1, 0]
    assert routes("round-robin", [0.0] * 5, [1] * 5, copies=3) == [0, 1, 2, 0, 1]
    assert routes("least-load", [0.0] * 3, [1] * 3, copies=1) == [0, 0, 0]


def test_copies_together_get_every_request_once_at_the_rate_of_all():
    sent = Routed(stream=STREAM, copies=3, router="round-robin", first_s=1.0, token_s=1.0)
    parts = [sent.requests(2.0, seed, 100) for seed in range(3)]
    whole = STREAM.requests(6.0, 0, 100)  # three copies at 2 a second
    assert sorted(np.concatenate([part.arrival_s for part in parts])) == whole.arrival_s.tolist()
    assert [part.count for part in parts] == [2, 2, 2]
    assert sum(part.warm for part in parts) == whole.warm


@pytest.mark.parametrize(("copies", "shared", "seeds"), [(1, 1, 1), (3, 3, 3), (9, 9, 4), (40, 16, 4)])
def test_of_many_copies_sixteen_share_a_stream_and_four_are_simulated(copies, shared, seeds):
    """Each is as long outstanding as a steady request: 500 ms and 20 ms a token."""
    from medusa_sim import Scenario
    from medusa_sim.load.load_test import load_test

    test = load_test(
        Scenario(gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3", acceptance=0.7), policies=["none"],
        requests=50, seeds=1,
    )  # fmt: skip
    found = routed(test, copies, "least-load", {"ttft_ms": 500.0, "tpot_ms": 20.0})
    assert isinstance(found.source, Routed)
    assert (found.source.copies, found.seeds) == (shared, seeds)
    assert found.source.stream.asked.requests == 50 * shared
    assert (found.source.first_s, found.source.token_s) == (0.5, 0.02)


def test_a_speed_is_as_sure_as_the_normal_law_of_its_interval():
    """80 % lie between low and high: a tenth below low, a tenth above high; half way to an end 74 %."""
    asked = SetupQuestion(tokens_per_s_per_user=100.0)
    halves = np.exp(0.2 * np.array([0.0, 1.0, -1.0, 0.5, -0.5]))
    speed = 100.0 * halves
    found = sureness(asked, speed, speed * np.exp(-0.2), speed * np.exp(0.2))
    assert found == pytest.approx([0.5, 0.9, 0.1, 0.7392, 0.2608], abs=1e-3)  # Phi(1.2816 / 2) = 0.739
    # each side is as wide as the interval is there: ahead of what is asked the lower, behind it the upper
    lower, upper = (
        sureness(asked, np.array([value]), np.array([value * np.exp(-0.2)]), np.array([value * np.exp(0.4)]))
        for value in (100.0 * np.exp(0.2), 100.0 * np.exp(-0.2))
    )
    assert [*lower, *upper] == pytest.approx([0.9, 0.2608], abs=1e-3)
    assert sureness(SetupQuestion(), speed, speed, speed).tolist() == [1.0] * 5


def test_the_stricter_limit_of_a_token_is_meant():
    assert SetupQuestion(tpot_ms=20.0).slowest_tpot_us == 20_000.0
    assert SetupQuestion(tokens_per_s_per_user=100.0).slowest_tpot_us == 10_000.0
    assert SetupQuestion(tpot_ms=20.0, tokens_per_s_per_user=100.0).slowest_tpot_us == 10_000.0
    assert SetupQuestion(tpot_ms=5.0, tokens_per_s_per_user=100.0).slowest_tpot_us == 5_000.0


def test_users_are_shared_out_evenly_among_the_copies_that_hold_them():
    """100 users at most 64 a copy take two copies of 50; at most 30 four of 25, at most 8 thirteen of 8."""
    assert SetupQuestion(users=100, batches=(8, 30, 64, 200)).tried == (8, 25, 50, 100)


def row(**more: Any) -> dict[str, Any]:
    """One row of a table: a GPU of its own, 16 requests, 1,000 tokens/s of one GPU for $2 a million."""
    given = {
        "gpu": "a", "tp": 1, "ep": 1, "dp_attention": False, "precision": "bf16", "kv_precision": "bf16",
        "engine": "vllm", "drafter": "none", "batch": 16, "replicas": 1, "tokens_per_s_per_gpu": 1000.0,
        "tokens_per_s_per_gpu_low": 900.0, "tokens_per_s_per_gpu_high": 1100.0, "joule_per_token": 1.0,
        "joule_per_token_low": 0.7, "joule_per_token_high": 1.3,
        "usd_per_million_tokens": 2.0, "usd_per_million_tokens_low": 1.8, "usd_per_million_tokens_high": 2.2,
        "tokens_per_s_per_user": 60.0, "meets_limits": True, "on_frontier": True,
    }  # fmt: skip
    return {**given, **more}


def comparison(rows: list[dict[str, Any]], measure: Any = "cost", **asked: Any) -> Comparison:
    return Comparison(
        model=SimpleNamespace(name="made"), question=SetupQuestion(**asked), measure=measure,
        table=pd.DataFrame(rows), refused=(), scenarios={},
    )  # fmt: skip  # type: ignore[arg-type]


def test_a_copy_holds_the_largest_batch_within_the_limits_and_a_rate_fills_a_share_of_all():
    """Two copies of two GPUs at 1,500 tokens/s each carry 6,000; 4 requests of 300 tokens need 1,200."""
    rows = [
        row(batch=16, tp=2, replicas=2), row(batch=8, tp=2, tokens_per_s_per_gpu=600.0),
        row(batch=32, tp=2, tokens_per_s_per_gpu=1500.0), row(batch=64, tp=2, tokens_per_s_per_gpu=1800.0,
                                                             meets_limits=False),
        row(gpu="b", batch=256, tp=2, tokens_per_s_per_gpu=5000.0),
    ]  # fmt: skip
    rated = comparison(rows, rate=4.0, output_tokens=300)
    assert rated.most_requests(rows[0]) == 32  # of its own set-up, within the limits
    assert rated.most_requests(rows[3]) == 64  # never fewer than the row's own
    assert rated.busy(rows[0]) == pytest.approx(4.0 * 300 / (1500.0 * 2 * 2))
    users = comparison(rows, users=4)
    assert (users.most_requests(rows[0]), users.busy(rows[0])) == (16, None)


def test_runners_up_are_those_whose_interval_reaches_the_chosen():
    """By cost low ends to the chosen's high one; by throughput high ends to its low one."""
    rows = [
        row(), row(gpu="b", usd_per_million_tokens=2.4, usd_per_million_tokens_low=2.19),
        row(gpu="c", usd_per_million_tokens=2.5, usd_per_million_tokens_low=2.21),
        row(gpu="d", usd_per_million_tokens=2.4, usd_per_million_tokens_low=2.1, meets_limits=False),
    ]  # fmt: skip
    assert comparison(rows).runners_up.gpu.tolist() == ["b"]
    assert comparison(rows).chosen["gpu"] == "a"
    fast = [
        row(), row(gpu="b", tokens_per_s_per_gpu=830.0, tokens_per_s_per_gpu_high=901.0),
        row(gpu="c", tokens_per_s_per_gpu=830.0, tokens_per_s_per_gpu_high=899.0),
    ]  # fmt: skip
    assert comparison(fast, "throughput").runners_up.gpu.tolist() == ["b"]
    joules = [
        row(), row(gpu="b", joule_per_token=1.5, joule_per_token_low=1.29),
        row(gpu="c", joule_per_token=1.5, joule_per_token_low=1.31),
    ]  # fmt: skip
    assert comparison(joules, "energy").chosen["gpu"] == "a"
    assert comparison(joules, "energy").runners_up.gpu.tolist() == ["b"]


def test_between_equal_costs_the_faster_stream_is_chosen():
    rows = [row(tokens_per_s_per_user=50.0), row(gpu="b", tokens_per_s_per_user=70.0)]
    assert comparison(rows).best.gpu.tolist() == ["b", "a"]
    assert comparison(rows).frontier.gpu.tolist() == ["b", "a"]


def test_at_most_six_fleets_are_simulated_the_best_first():
    rows = [row(gpu=f"card {place}", usd_per_million_tokens=9.0 - place) for place in range(8)]
    rows.append(row(gpu="card 7", batch=4, usd_per_million_tokens=8.5))  # one row of a set-up
    found = [each["gpu"] for each in second_level(comparison(rows))]
    assert found == [f"card {place}" for place in (7, 6, 5, 4, 3, 2)]
    assert len(found) == MOST_FLEETS


def gaps(measure: Any, **values: list[Any]) -> list[tuple[str, tuple[int, int]]]:
    """Which set-ups have a gap looked into, and its first and last batch."""
    count = len(values["gpu"])
    rows = [row(**{name: value[place] for name, value in values.items()}) for place in range(count)]
    answer = comparison(rows, measure)
    return [(key[0], (batches[0], batches[-1])) for key, batches in _gaps(answer, answer.table)]


def test_a_set_up_is_looked_into_where_its_next_batch_would_win():
    """$3 at 8 requests may be 3 x 8/12 = $2 at 12, the next that was tried; the best so far is $2.1."""
    asked = {"gpu": ["a", "b"], "batch": [8, 64]}
    cost = "usd_per_million_tokens"
    assert gaps("cost", **asked, **{cost: [3.0, 2.1]}) == [("b", (65, 79)), ("a", (9, 11))]
    assert gaps("cost", **asked, **{cost: [3.2, 2.1]}) == [("b", (65, 79))]  # 3.2 x 8/12 = 2.13
    rate = "tokens_per_s_per_gpu"
    assert gaps("throughput", **asked, **{rate: [1000.0, 1400.0]}) == [("b", (65, 79)), ("a", (9, 11))]
    assert gaps("throughput", **asked, **{rate: [900.0, 1400.0]}) == [("b", (65, 79))]
    # the next batch was priced, and misses the limits: its own value is what may be hoped for
    priced = {"gpu": ["a", "a", "b"], "batch": [8, 12, 512], "meets_limits": [True, False, True]}
    assert gaps("cost", **priced, **{cost: [3.0, 2.0, 2.1]}) == [("a", (9, 11))]
    assert gaps("cost", **priced, **{cost: [3.0, 2.2, 2.1]}) == []
    assert gaps("cost", gpu=["a"], batch=[1], **{cost: [3.0]}) == []  # nothing lies between 1 and 2
    assert gaps("cost", gpu=["a"], batch=[8], meets_limits=[False], **{cost: [3.0]}) == []


def test_the_six_most_hopeful_gaps_are_looked_into():
    cards = [f"card {place}" for place in range(8)]
    found = gaps("cost", gpu=cards, batch=[8] * 8, usd_per_million_tokens=[2.0 + 0.1 * k for k in range(8)])
    assert [card for card, _ in found] == cards[:6]
    found = gaps("throughput", gpu=cards, batch=[8] * 8, tokens_per_s_per_gpu=[900.0 + k for k in range(8)])
    assert [card for card, _ in found] == cards[:1:-1]


def test_a_figure_beside_its_prediction():
    """Predicted 110 tokens/s a user where 100 were measured: 10 % too fast, so that it costs 10 % more."""
    figure = Figure(
        model="made", set_up={}, drafts=0, batch=1, prompt_tokens=1.0, output_tokens=1.0,
        tokens_per_s_per_user=100.0, source="made",
    )  # fmt: skip
    values = {"tokens_per_s_per_user": 110.0, "tokens_per_s_per_gpu": 55.0, "usd_per_million_tokens": 2.0}
    found = PricedFigure(figure=figure, row=values, near=True)
    assert found.error == pytest.approx(0.1)
    assert found.value("tokens_per_s_per_gpu") == pytest.approx(50.0)
    assert found.value("usd_per_million_tokens") == pytest.approx(2.2)
    assert np.isnan(found.value("joule_per_token"))


def test_a_set_up_is_named_by_all_its_gpus_and_what_is_split():
    plain = {name: row()[name] for name in SET_UP} | {"gpus": 1}
    assert name_of(plain) == "1 x a, bf16, vllm"
    spread = {**plain, "gpus": 8, "tp": 4, "ep": 4, "dp_attention": True, "kv_precision": "fp8"}
    assert name_of(spread) == "8 x a, TP 4, EP 4, data-parallel attention, bf16, KV in fp8, vllm"


def tried(model: str, **given: Any) -> set[tuple[int, int, bool]]:
    """(GPUs, groups of experts, data-parallel attention) of the set-ups of a GPU and an engine."""
    choices = SetupChoices(gpus=("h200-sxm",), engines=("sglang",), weight_dtypes=("fp8",), **given)
    return {(each.tp, each.ep, each.dp_attention) for each in setups(load_model(model), choices, ("none",))}


def test_experts_are_spread_or_not_and_latent_attention_is_split_both_ways():
    """Data-parallel attention goes with experts that are spread over all GPUs."""
    both = {(1, 1, False), (4, 1, False), (4, 4, False)}
    assert tried("deepseek-r1", counts=(1, 4)) == both | {(4, 4, True)}
    assert tried("qwen3-30b-a3b", counts=(1, 4)) == both
    assert tried("qwen3-30b-a3b", counts=(2,)) == {(2, 1, False), (2, 2, False)}
    assert tried("deepseek-r1", counts=(2,)) == {(2, 1, False), (2, 2, False), (2, 2, True)}
    assert tried("deepseek-r1", counts=(2,), dp_attention=True) == {(2, 1, True), (2, 2, True)}
    assert tried("llama-3.1-8b", counts=(1, 4)) == {(1, 1, False), (4, 1, False)}
    assert tried("deepseek-r1", counts=(1, 4), dp_attention=False) == both
    assert tried("deepseek-r1", counts=(1, 4), dp_attention=True) == {
        (1, 1, False), (4, 1, True), (4, 4, True),
    }  # fmt: skip
    assert tried("deepseek-r1", counts=(4,), eps=(2,)) == {(4, 2, False)}


def test_a_rate_is_at_most_a_million_requests_a_second_and_a_number_a_billion():
    assert SetupQuestion(rate=10**6).rate == 10**6
    assert SetupQuestion(users=10**9, prompt_tokens=10**9, ttft_ms=10**9).users == 10**9
    for given in ({"rate": 10**6 + 1}, {"users": 10**9 + 1}, {"prompt_tokens": 1e9 + 1}, {"sure": 0.995}):
        with pytest.raises(UsageError):
            SetupQuestion(**given)


def test_what_is_tried_where_nothing_is_chosen():
    assert {tp for tp, _, _ in tried("llama-3.1-8b")} == {1, 2, 4, 8}
    usual = SetupQuestion()
    assert (usual.batches[0], usual.batches[-1], usual.drafts) == (1, 512, (1, 2, 3, 5))
    assert all(1 < more / fewer <= 2 for fewer, more in pairwise(usual.batches))
    assert (usual.sure, SetupQuestion(sure=0.8).sure) == (0.7, 0.8)
    model = load_model("llama-3.1-8b")
    every = {each.gpu for each in setups(model, SetupChoices(counts=(1,), engines=("vllm",)), ("none",))}
    assert {"h100-sxm", "b200", "mi300x"} <= every
    assert not [name for name in every if name.startswith(("rtx-", "cpu-", "gb10"))]


def figure(
    speed: float, prompt: float = 600.0, output: float = 300.0, runtime: str = "", **named: Any
) -> Figure:
    set_up = {
        name: value for name, value in row(**named).items() if name in SET_UP and name != "kv_precision"
    }
    return Figure(
        model="made", set_up=set_up, drafts=0, batch=4, prompt_tokens=prompt, output_tokens=output,
        tokens_per_s_per_user=speed, source="made", runtime=runtime,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("figures", "speed", "near"),
    [  # asked are 600 + 300 tokens, chosen is GPU a without drafts
        ([figure(1.0, 700), figure(2.0, 620), figure(3.0, 500)], 2.0, True),  # the nearest lengths
        ([figure(1.0, 600, 420), figure(2.0, 800)], 2.0, True),  # 4/3 of the prompt, 1.4 of the output
        ([figure(1.0, 901), figure(2.0, 899, gpu="b")], 2.0, True),  # more than 1.5 cannot be drawn
        ([figure(1.0, 901), figure(2.0, 950)], 1.0, False),
        ([figure(1.0, gpu="b"), figure(2.0, 890)], 2.0, True),  # the chosen GPU goes before lengths
        ([figure(1.0, drafter="eagle3"), figure(2.0, 890)], 2.0, True),  # and so does its drafter
        ([figure(1.0, runtime="vllm-0.14"), figure(2.0, 890)], 2.0, True),  # another version is drawn nowhere
        ([figure(1.0, gpu="c")], None, None),  # a set-up that was not compared
    ],
)  # fmt: skip
def test_the_nearest_figure_can_be_drawn_and_is_of_the_chosen_card(monkeypatch, figures, speed, near):
    rows = [row(), row(gpu="b", usd_per_million_tokens=3.0)]
    rows.append(row(drafter="eagle3", usd_per_million_tokens=3.0))
    answer = comparison(rows, prompt_tokens=600, output_tokens=300)
    made = SimpleNamespace(arguments=SimpleNamespace(data_dir=None), but=lambda **_: made)
    answer.scenarios.update({tuple(each[name] for name in SET_UP): made for each in rows})
    monkeypatch.setattr(measured, "figures", lambda data_dir: figures)
    monkeypatch.setattr(measured, "_curve", lambda *_: {"tokens_per_s_per_user": [4.0]})
    found = measured.nearest(answer)
    assert (found and found.figure.tokens_per_s_per_user, found and found.near) == (speed, near)


def test_a_rows_gpus_are_those_of_all_its_copies():
    """Of 20 users five copies of two GPUs hold four each; three that could hold eight have seven."""
    found = compare(
        "llama-3.1-8b", gpus="h100-sxm", counts=2, engines="vllm", drafters="none", weight_dtypes="bf16",
        batches=(4, 8), users=20,
    ).table  # fmt: skip
    split = found[found.tp == 2].set_index("batch")
    assert split.replicas.to_dict() == {4: 5, 7: 3}
    assert split.gpus.to_dict() == {4: 10, 7: 6}


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({}, ()), ({"drafter": "mtp"}, ("drafter",)), ({"drafter": "none"}, ()), ({"tp": 4}, ("tp",)),
        ({"tp": 4, "drafter": "mtp"}, ("tp", "drafter")), ({"gpu": "h200-sxm"}, ("gpu",)),
    ],
)  # fmt: skip
def test_a_figure_differs_by_what_its_set_up_has_otherwise(more, told):
    """A plain run stands beside every drafter."""
    scenario = Scenario(
        gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3", acceptance="0.7", runtime="vllm", tp=2
    )
    set_up = {
        "gpu": "h100-sxm", "tp": 2, "ep": 1, "dp_attention": False, "precision": "bf16", "engine": "vllm",
        "drafter": scenario.drafting.method,
    }  # fmt: skip
    figure = SimpleNamespace(model="llama-3.1-8b", set_up=set_up | more)
    assert differences(figure, scenario) == tuple(_WORDS[name] for name in _WORDS if name in told)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    ("speed", "worth", "kept"),
    [
        ([60.0, 60.0, 50.0], [2.0, 3.0, 4.0], [False, True, True]),  # as fast: what is worth more
        ([60.0, 70.0, 50.0], [3.0, 3.0, 2.0], [False, True, False]),  # worth as much: what is faster
        ([60.0, np.nan, 50.0, 40.0], [3.0, 9.0, np.nan, 4.0], [True, False, False, True]),
    ],
)
def test_on_the_frontier_is_what_no_other_row_beats(order, speed, worth, kept):
    found = on_frontier(np.array(speed[::order]), np.array(worth[::order]))
    assert found.tolist() == kept[::order]


def test_of_equal_rows_the_first_is_on_the_frontier():
    assert on_frontier(np.array([5.0, 5.0]), np.array([1.0, 1.0])).tolist() == [True, False]


@pytest.mark.parametrize(("drafts", "plain", "counts"), [
    ((2, 5), False, [1, 3, 6]), ((5, 2), False, [1, 3, 6]), ((1,), False, [1, 2]), ((1, 3), True, [1]),
])  # fmt: skip
def test_a_set_up_verifies_a_token_more_than_its_drafts(drafts, plain, counts):
    scenario = Scenario(gpu="h100-sxm", model="llama-3.1-8b", runtime="vllm", drafter="ngram", acceptance=0.6)
    surface = surface_of(scenario, SetupQuestion(drafts=drafts, batches=(4, 16)), plain=plain)
    assert sorted(surface.configurations.candidates.tolist()) == counts
    assert surface.batch.tolist() == [4, 16]


def simulated(
    monkeypatch: pytest.MonkeyPatch, shares: dict[int, float], **asked: Any
) -> tuple[Any, list[Any]]:
    """(the fleet of a row of two copies of two GPUs, what each try was asked): `shares` keep the limits."""
    tries: list[Any] = []

    def run(scenario: Any, **given: Any) -> Any:
        copies = [2, 3, 4, 6][len(tries)]
        tries.append(given)
        mean = {"tokens_per_s": 1000.0, "goodput_share": shares.get(copies, 0.0)}

        def points(rates: list[float | None]) -> list[Any]:
            given["rates"] = rates
            return [SimpleNamespace(mean=mean)]

        return SimpleNamespace(points=points)

    monkeypatch.setattr(loaded, "load_test", run)
    monkeypatch.setattr(loaded, "routed", lambda test, copies, router, row: test)
    answer = comparison([row(tp=2, replicas=2, drafts=3, drafter="eagle3")], **asked)
    made = SimpleNamespace(but=lambda **_: made, usd_per_gpu_hour=3.6, price=None)
    chosen = row(tp=2, replicas=2, drafts=3, drafter="eagle3")
    answer.scenarios[Comparison.key(chosen)] = made  # type: ignore[assignment]
    return under_load(answer, chosen), tries


def test_copies_are_added_until_enough_requests_keep_the_limits(monkeypatch):
    """Of two copies 1, 1.1, 1.25, 1.5, 2 and 3 times as many: 2, 3, 4, 6; four at 1,000 tokens/s each."""
    fleet, tries = simulated(
        monkeypatch, {2: 0.5, 3: LOAD_SHARE - 1e-6, 4: LOAD_SHARE, 6: 1.0}, users=101, tpot_ms=20.0
    )
    assert (fleet.replicas, fleet.gpus, fleet.share, fleet.keeps) == (4, 8, LOAD_SHARE, True)
    assert [each["users"] for each in tries] == [51, 34, 26]  # 101 over 2, 3 and 4 copies, rounded up
    assert [each["rates"] for each in tries] == [[None]] * 3
    assert {each["tpot_ms"] for each in tries} == {20.0}
    assert tries[0]["policies"] == ["3"]
    # $3.60 an hour a GPU: eight cost $0.008 a second, in which 4,000 tokens are made
    assert fleet.usd_per_million_tokens == pytest.approx(2.0)


def test_the_most_copies_are_shown_where_none_are_enough_and_a_rate_is_shared(monkeypatch):
    fleet, tries = simulated(monkeypatch, {}, rate=12.0)
    assert (fleet.replicas, fleet.keeps) == (6, False)
    assert [each["rates"] for each in tries] == [[6.0], [4.0], [3.0], [2.0]]
    assert {(each["users"], each["tpot_ms"]) for each in tries} == {(None, None)}


def test_a_request_takes_its_first_token_and_the_others_and_a_rate_is_paid_by_what_it_carries():
    """40 requests a second of 200 tokens are 8,000 tokens/s, whatever the copies could do."""
    asked = {"model": "llama-3.1-8b", "gpus": "h100-sxm", "counts": 1, "engines": "vllm", "drafters": "none"}
    table = compare(**asked, prompt_tokens=500, output_tokens=200, rate=40.0, price=3.6).table
    for row in table.to_dict("records"):
        assert row["e2e_ms"] == pytest.approx(row["ttft_ms"] + 199 * row["tpot_ms"])
        usd_per_s = 3.6 / 3600 * row["gpus"]
        assert row["usd_per_million_tokens"] == pytest.approx(usd_per_s / 8_000 * 1e6)


def test_the_error_of_the_nearest_figure_is_its_prediction_over_it_less_one():
    figure = SimpleNamespace(batch=8, tokens_per_s_per_user=50.0)
    near = measured.NearestFigure(
        figure=figure,  # type: ignore[arg-type]
        differs=(),
        tokens_per_s_per_user=60.0,
    )
    assert near.error == pytest.approx(0.2)


def test_what_is_left_out_is_nothing_but_for_these():
    """Factors and counts are one, sizes those that most have."""
    assert numbers_left_out("setups") == {
        "SetupQuestion.prompt_tokens": 896.0,
        "SetupQuestion.output_tokens": 256.0,
        "SetupQuestion.sure": 0.7,
    }
