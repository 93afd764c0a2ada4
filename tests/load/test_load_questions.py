"""Questions of a load test: what is refused, what a policy is called, how requests are shared out."""

from types import SimpleNamespace

import numpy as np
import pytest
from load_tables import limits
from one_line import one_line

from medusa_sim.errors import MedusaSimError, UsageError
from medusa_sim.load.answer import run_load
from medusa_sim.load.load_test import load_test
from medusa_sim.load.policies import Adaptive, BySize, State
from medusa_sim.load.policy_names import policy_of
from medusa_sim.load.saturation import requests_held, saturation
from medusa_sim.load.trial import SEARCH_REQUESTS, search_requests
from medusa_sim.report.load.screen import runs_text
from medusa_sim.report.load.sentences import answer_text
from medusa_sim.report.load.warnings import warnings
from medusa_sim.scenario.scenario import Scenario

SCENARIO = Scenario(gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3", max_drafts=3)
SMALL = {"requests": 300, "seeds": 2, "max_num_seqs": 64}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"policies": ("fast",)}, "policy 'fast': give one of none, K"),
        ({"policies": ("9",)}, "drafts 9 tokens and the acceptance describes 3"),
        ({"policies": ("schedule=8:3",)}, "entries rise from 1"),
        ({"policies": ("schedule=1-3",)}, "entries are REQUESTS:DRAFTS"),
        ({"policies": ()}, "policies are empty"),
        ({"policies": (3,)}, "policy 3: a name is needed"),
        ({"policies": (Adaptive,)}, "derived from medusa_sim.load.policies.Policy"),
        ({"policies": ("priority",)}, "not simulated"),
        ({"policies": ("enable_adaptive_verification",)}, "logits, which are not drawn"),
        ({"prefix": "mine"}, "prefix 'mine'"),
        ({"policies": ("adaptive=2",)}, "policy 'adaptive=2': give one of"),
        ({"policies": ("none", "schedule=1:9")}, "drafts 9 tokens and the acceptance describes 3"),
        ({"seeds": 0}, "seeds 0"),
        ({"requests": 0}, "requests 0"),
        ({"burstiness": 0.0}, "burstiness 0"),
        ({"tpot_ms": -1.0}, "tpot ms -1"),
        ({"share": 1.5}, "share 1.5"),
        ({"prompt_tokens": 0.0}, "prompt tokens 0"),
        ({"prompt_tokens": 200_000.0}, "on average do not fit"),
        ({"length_cv": 99.0}, "length cv 99"),
        ({"users": 0}, "users 0"),
        ({"max_num_seqs": 512, "max_num_batched_tokens": 100}, "below max-num-seqs"),
        ({"trace": "none.csv"}, "no such file"),
        ({"trace": "none.csv", "users": 3}, "give one of them"),
    ],
)
def test_bad_questions_are_one_line(arguments, told):
    with one_line(MedusaSimError, match=told):
        run_load(load_test(SCENARIO, **arguments), [1.0] if "users" not in arguments else None, search=False)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf"), 5e-324, 1e7])
def test_a_rate_that_is_none_is_one_line(rate):
    test = load_test(SCENARIO, policies=("none",), **SMALL)
    with pytest.raises(UsageError, match="from 1e-06 to 1e\\+06 requests a second"):
        run_load(test, [rate], search=False)
    with pytest.raises(UsageError, match="target rate"):
        run_load(test, [1.0], target_rate=rate)


def test_requests_that_come_at_once_have_no_rate(tmp_path):
    trace = tmp_path / "burst.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n" + "7,100,20\n" * 40, encoding="utf-8")
    test = load_test(SCENARIO, policies=("none", "3"), trace=trace, max_num_seqs=16, tpot_ms=12.0)
    found = run_load(test)
    assert [each.searched for each in found.carried] == [False, False]
    assert np.isnan(found.points[0].arrivals_per_s)
    assert found.points[0].mean["requests"] == 40
    assert "saturates at" in answer_text(found)
    with pytest.raises(UsageError, match="all 40 come at once"):
        run_load(test, [2.0], search=False)


def test_blanks_around_a_policys_name_count_for_nothing_and_k_takes_a_number():
    test = load_test(SCENARIO, policies=(" schedule", "speculative-adaptive ", " 3"), **SMALL)
    assert test.policies == ("schedule", "adaptive", "K=3")
    with pytest.raises(UsageError, match="policy 'K=none': give one of"):
        policy_of("K=none", test.table, 100.0)


def test_every_name_of_a_policy_runs():
    test = load_test(
        SCENARIO, policies=("none", "K=2", "schedule", "adaptive", "budget", "schedule=1:3,4:1"), **SMALL
    )
    for server in test.servers:
        state = State(now_s=0.0, requests=3, unadmitted=0, mean_length=400.0, kv_share=0.1, drafts=0,
                      accepted=None, steps=0)  # fmt: skip
        assert 0 <= server.policy().drafts(state) <= 3
    assert policy_of("schedule=1:3,4:1", test.table, 100.0).drafts(state) == 3


def test_a_search_shares_its_requests_among_the_seeds_and_says_so():
    test = load_test(SCENARIO, policies=("none",), requests=1000, seeds=3)
    assert search_requests(test) == SEARCH_REQUESTS // 3
    assert f"first {SEARCH_REQUESTS // 3} of each" in runs_text(test)
    assert search_requests(load_test(SCENARIO, policies=("none",), requests=1000, seeds=50)) == 500
    assert "search" not in runs_text(load_test(SCENARIO, policies=("none",), requests=300))


def test_progress_ends_at_its_total_and_never_before():
    told: list[tuple[int, int]] = []
    test = load_test(SCENARIO, policies=("none", "3"), tpot_ms=12.0, **SMALL)
    run_load(test, advance=lambda done, total: told.append((done, total)))
    assert told[-1][0] == told[-1][1]
    assert all(done < total for done, total in told if done < told[-1][0])


def test_the_profile_says_how_far_requests_differ(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(
        'kind = "position"\nschema = 1\ntitle = "t"\nsource = "s"\nagreement = "target"\n'
        'rates = "conditional"\nrequest_spread = 0.7\n[[positions]]\nrate = 0.8\n[[positions]]\nrate = 0.7\n',
        encoding="utf-8",
    )
    scenario = Scenario(gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3", acceptance=str(path))
    assert load_test(scenario).spread == 0.7
    assert load_test(SCENARIO).spread == 0.0


def test_a_policy_runs_once_whatever_it_was_called():
    asked = ("3", "none", "K=3", "k=3", "none", " 3 ", "speculative-adaptive", "adaptive")
    test = load_test(SCENARIO, policies=asked)
    assert [server.name for server in test.servers] == ["K=3", "none", "adaptive"]
    for own in (BySize(((1, 2),), name="none"), Adaptive(name="K=3")):
        with pytest.raises(UsageError, match=own.name):
            load_test(SCENARIO, policies=("none", "3", own))


def test_requests_that_were_cut_to_what_fits_are_shown():
    scenario = Scenario(model="vicuna-7b", gpu="h100-sxm")
    for prompt, output in ((1700, 300), (400, 100)):
        test = load_test(
            scenario, policies=("none",), requests=40, seeds=1, prompt_tokens=prompt, output_tokens=output
        )
        told = [line for line in warnings(run_load(test, (1.0,), search=False)) if " cut to " in line]
        most = scenario.model.max_seq_len
        long = int((test.sample.prompt_tokens + test.sample.output_tokens == most).sum())
        mean = [f"{each.mean():,.0f}" for each in (test.sample.prompt_tokens, test.sample.output_tokens)]
        expected = [f"{long} of 40 requests", f"the {most} tokens", f"{mean[0]} in, {mean[1]} out"]
        assert len(told) == (long > 0) == (prompt > 400)
        assert all(part in line for line in told for part in expected)


def test_cancelled_requests_end_before_their_outputs_do():
    some, every = (load_test(SCENARIO, requests=2000, cancelled=share) for share in (0.25, 1.0))
    whole = load_test(SCENARIO, requests=2000).requests(5.0, 0)[0]
    left, _ = some.requests(5.0, 0)
    np.testing.assert_array_equal(left.arrival_s, whole.arrival_s)
    shorter = left.output_tokens < whole.output_tokens
    assert shorter.mean() == pytest.approx(0.25, abs=0.03)
    ended = every.requests(5.0, 0)[0].output_tokens / whole.output_tokens
    assert ended.mean() == pytest.approx(0.5, abs=0.03)
    assert (
        saturation(some, some.servers[0]).requests_per_s
        > saturation(load_test(SCENARIO, requests=2000), some.servers[0]).requests_per_s
    )
    with pytest.raises(UsageError, match="cancelled"):
        load_test(SCENARIO, cancelled=1.5)


def test_a_trace_with_sessions_saturates_where_more_requests_a_second_are_not_served_faster(tmp_path):
    """The first of each session finds nothing in the cache, also where the server is always full."""
    rows = [f"{i},3000,60,{i % 40}" for i in range(80)]
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens,session", *rows]), encoding="utf-8")
    test = load_test(
        SCENARIO, policies=("none",), trace=path, prefix="session", prefix_hit_rate=0.9, max_num_seqs=8
    )
    (server,) = test.servers
    served = test.point(server, 1000.0).mean["requests_per_s"]
    # filling and emptying 8 places takes some of a run of 80 requests
    assert saturation(test, server).requests_per_s == pytest.approx(served, rel=0.1)


def test_what_requests_share_is_held_once():
    """Half of 8 blocks of prompt in 10 of a request: 97 of 101 blocks hold 97 // 6 of them."""
    most = limits(kv_blocks=101, prefix_hit_rate=0.5, shares_prefix=True)
    sample = SimpleNamespace(prompt_tokens=np.array([100, 156]))
    test = SimpleNamespace(mean_length=158.8, sample=sample)
    assert requests_held(test, SimpleNamespace(limits=most)) == 16  # type: ignore[arg-type]


def test_contexts_reach_as_far_as_a_cache_that_holds_a_shared_text_once():
    """16 requests of which 0.9 of every prompt lies in the cache, once or of each."""
    asked = {"policies": ("3",), "requests": 32, "seeds": 1, "prompt_tokens": 9000, "length_cv": 0.0}
    longest = []
    for prefix in ("session", "system"):
        answer = run_load(
            load_test(SCENARIO, **asked, users=16, prefix=prefix, prefix_hit_rate=0.9), search=False
        )
        longest.append(answer.context[1].searched_to)
    assert longest[1] > 2 * longest[0]
