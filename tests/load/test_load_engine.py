"""The scheduler against closed forms, and what must hold for any requests, policy and limits."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from load_tables import constant_table, limits, requests

from medusa_sim.errors import UsageError
from medusa_sim.load.lengths import Lengths
from medusa_sim.load.limits import SchedulerLimits
from medusa_sim.load.policies import (
    Adaptive,
    Budget,
    BySize,
    Fixed,
    Policy,
    State,
    schedule_for,
)
from medusa_sim.load.requests import Requests
from medusa_sim.load.run_result import RunResult
from medusa_sim.load.serving_loop import ServingLoop, run
from medusa_sim.load.sources import closed_loop, open_loop
from medusa_sim.scenario.defaults import LENGTH_CV

STEP_S = 0.01


def latencies(result: RunResult) -> np.ndarray:
    return result.finish_s - result.arrival_s


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_one_slot_with_constant_steps_is_an_md1_queue(load):
    # a request of one prompt token and 20 output tokens takes 20 steps, the first of which reads the prompt
    tokens, count = 20, 12_000
    service_s = tokens * STEP_S
    arriving = open_loop(
        load / service_s,
        Lengths(prompt_tokens=1, output_tokens=tokens, prompt_cv=0, output_cv=0),
        count=count,
    )
    found = run(arriving, constant_table(STEP_S), limits(max_requests=1), Fixed(0))
    waited = latencies(found) - service_s
    # request by request: Lindley's recursion
    expected = np.zeros(count)
    for i, gap in enumerate(np.diff(arriving.arrival_s)):
        expected[i + 1] = max(expected[i] + service_s - gap, 0.0)
    np.testing.assert_allclose(waited, expected, atol=1e-6)
    # on average: rho S / 2 (1 - rho), as far as 12,000 correlated waits tell it
    assert waited.mean() == pytest.approx(load * service_s / (2.0 * (1.0 - load)), rel=0.1)


def test_two_arrivals_are_served_one_after_the_other_to_the_step():
    arriving = requests([0.0, 0.003], prompt=[4, 4], output=[3, 2])
    one = run(arriving, constant_table(STEP_S), limits(max_requests=1), Fixed(0))
    assert one.first_token_s.tolist() == pytest.approx([0.01, 0.04])
    assert one.finish_s.tolist() == pytest.approx([0.03, 0.05])
    both = run(arriving, constant_table(STEP_S), limits(max_requests=2), Fixed(0))
    assert both.first_token_s.tolist() == pytest.approx([0.01, 0.02])  # admitted at the next step
    assert both.finish_s.tolist() == pytest.approx([0.03, 0.03])
    assert both.whole.gap_mean_s == pytest.approx(STEP_S)


def test_steps_that_carry_prompts_lie_apart_while_any_request_decodes():
    arriving = requests([0.0, 0.003, 0.021, 0.9], prompt=[4, 4, 4, 4], output=[30, 2, 2, 1])
    every, apart = (
        run(arriving, constant_table(STEP_S), limits(max_requests=4, prompt_interval=interval), Fixed(0))
        for interval in (1, 5)
    )
    assert every.first_token_s.tolist() == pytest.approx([0.01, 0.02, 0.04, 0.91])
    # the first step, the sixth with both that came meanwhile, and at once where nothing decodes
    assert apart.first_token_s.tolist() == pytest.approx([0.01, 0.06, 0.06, 0.91])
    assert apart.finish_s[0] == pytest.approx(every.finish_s[0])


def test_a_request_that_comes_during_a_step_runs_in_the_one_after_the_next():
    # where the engine schedules ahead
    table = constant_table(STEP_S, steps_ahead=1, client_s=0.002, sending_s=0.001)
    arriving = requests([0.0, 0.015, 0.5], prompt=[4, 4, 4], output=[6, 2, 1])
    found = run(arriving, table, limits(max_requests=4), Fixed(0))
    # reaches the queue at 0.017, in the step that ends at 0.022: runs from 0.032 to 0.042; one sends with it
    assert found.first_token_s[:2].tolist() == pytest.approx([0.012, 0.043])
    assert found.first_token_s[2] == pytest.approx(0.5 + 0.002 + STEP_S)  # nothing was in flight
    one_by_one = requests(np.arange(0, 3, 0.0073).tolist(), prompt=[4] * 411, output=[8] * 411)
    ahead, beside = (
        run(one_by_one, constant_table(STEP_S, steps_ahead=steps), limits(max_requests=64), Fixed(0))
        for steps in (1, 0)
    )
    waited = (ahead.first_token_s - beside.first_token_s)[1:]
    assert waited == pytest.approx(STEP_S, abs=1e-9)


def test_prompts_are_read_in_chunks_within_the_budget():
    arriving = requests([0.0], prompt=[100], output=[1])
    found = run(arriving, constant_table(STEP_S), limits(max_requests=8, token_budget=32), Fixed(0))
    assert found.whole.steps == 4
    assert found.whole.prompt_tokens == 100
    hit = run(
        arriving,
        constant_table(STEP_S),
        limits(max_requests=8, token_budget=32, prefix_hit_rate=0.5),
        Fixed(0),
    )
    assert hit.whole.prompt_tokens == 50


def test_prompts_that_are_read_whole_wait_for_a_step_with_room_for_all_of_them():
    """Three prompts of 20 tokens in steps of 32: one a step, in chunks two steps; 100 fit in no step."""
    arriving = requests([0.0, 0.0, 0.0], prompt=[20, 20, 20], output=[1, 1, 1])

    def ends(asked: Requests, *, whole: bool) -> list[float]:
        within = limits(max_requests=8, token_budget=32, whole_prompts=whole)
        found = run(asked, constant_table(STEP_S), within, Fixed(0))
        return np.rint(found.finish_s / STEP_S).tolist()

    assert ends(arriving, whole=True) == [1.0, 2.0, 3.0]
    assert ends(arriving, whole=False) == [1.0, 2.0, 2.0]
    longer = requests([0.0], prompt=[100], output=[1])
    assert ends(longer, whole=True) == ends(longer, whole=False) == [4.0]
    # where several are longer than a step the server has chunks enabled, and cuts the others as well
    several = requests([0.0, 0.0, 0.0], prompt=[20, 20, 40], output=[1, 1, 1])
    assert ends(several, whole=True) == ends(several, whole=False)


def test_a_full_closed_loop_emits_what_the_table_says_as_often_as_its_seed():
    table = constant_table(STEP_S, rates=(0.8, 0.5, 0.3))
    users = 16
    asked = closed_loop(
        users, Lengths(prompt_tokens=1, output_tokens=4000, prompt_cv=0, output_cv=0), count=users
    )
    for drafts in (0, 1, 3):
        found = run(asked, table, limits(max_requests=users), Fixed(drafts))
        rate = found.whole.emitted / found.end_s
        # requests end at different steps, so the last steps are not full
        full = users * table.accepted.tokens_per_step[drafts] / STEP_S
        assert rate == pytest.approx(full, rel=0.03)
        if drafts:
            accepted = found.whole.accepted / found.whole.speculated
            assert accepted == pytest.approx(sum((0.8, 0.5, 0.3)[:drafts]), rel=0.02)
    asked = open_loop(20.0, Lengths(), count=300, seed=3)
    table = constant_table(STEP_S, rates=(0.7, 0.4))
    first, again, other = (run(asked, table, limits(), Fixed(2), seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.finish_s, again.finish_s)
    assert (first.finish_s != other.finish_s).any()


def test_requests_that_differ_keep_the_mean_that_throughput_follows_and_widen_latencies():
    profile = np.array([0.8, 0.6, 0.4])
    table = constant_table(STEP_S, rates=tuple(profile))
    asked = closed_loop(16, Lengths(prompt_tokens=1, output_tokens=400, prompt_cv=0, output_cv=0), count=640)
    alike, unlike = (
        run(asked, table, limits(max_requests=16), Fixed(3), spread=spread) for spread in (0.0, 1.0)
    )
    assert unlike.whole.accepted / unlike.whole.speculated == pytest.approx(profile.sum(), rel=0.02)
    alike_per_s, unlike_per_s = (each.whole.emitted / each.end_s for each in (alike, unlike))
    assert unlike_per_s == pytest.approx(alike_per_s, rel=0.04)
    slow, fast = (np.quantile(result.finish_s - result.first_token_s, 0.95) for result in (unlike, alike))
    assert slow > 1.3 * fast
    again = run(asked, table, limits(max_requests=16), Fixed(3), spread=1.0)
    np.testing.assert_array_equal(again.finish_s, unlike.finish_s)


class Unsure(Policy):
    """A policy that chooses anything allowed, by the state alone."""

    name = "unsure"

    def drafts(self, state: State) -> int:
        return (state.requests + state.steps) % 3


class Checked(ServingLoop):
    """Checks the engine's own limits, and sums that are kept in step, with every step."""

    def _step(self) -> None:
        super()._step()
        limits, batch, cache, scheduler = self.limits, self.batch, self.cache, self.scheduler
        running = batch.requests
        assert cache.blocks_needed(-1) <= limits.kv_blocks  # committed tokens, after one step or many
        assert len(running) + len(scheduler.reading) <= limits.max_requests
        assert batch.tokens == sum(request.cached for request in running)
        assert batch.shared == sum(request.shared for request in running)
        in_flight = [*running, *scheduler.reading, *scheduler.unadmitted]
        assert min((request.left for request in in_flight), default=1) > 0
        assert not running or batch.steps_to_an_end > 0
        served = sum(1.0 - request.left / request.output_tokens for request in in_flight)
        assert batch.served == pytest.approx(self.finished + served)
        assert cache.reserved == sum(request.blocks for request in scheduler.reading)
        for drafts in (0, 2):
            assert cache.blocks_needed(drafts) <= cache.most_blocks(drafts)

    def _equal_steps(self, drafts: int, length: float) -> int:
        steps = super()._equal_steps(drafts, length)
        assert steps >= 1
        assert steps <= self.policy.steps_left
        return steps


POLICIES = {
    "none": lambda table: Fixed(0),
    "fixed": lambda table: Fixed(2),
    "schedule": lambda table: BySize(((1, 2), (4, 1), (8, 0))),
    "computed": lambda table: schedule_for(table, 64),
    "adaptive": lambda table: Adaptive(tiers=(1, 2)),
    "budget": Budget.from_table,
    "unsure": lambda table: Unsure(),
}


@settings(max_examples=60)
@given(
    seed=st.integers(0, 1000), count=st.integers(1, 60), rate=st.floats(0.5, 500.0),
    burstiness=st.floats(0.1, 4.0), most=st.integers(1, 12), budget=st.integers(12, 80), whole=st.booleans(),
    blocks=st.integers(10, 40), ahead=st.booleans(), shared=st.booleans(), windowed=st.booleans(),
    hit=st.sampled_from([0.0, 0.5]), policy=st.sampled_from(sorted(POLICIES)),
    users=st.one_of(st.none(), st.integers(1, 20)),
)  # fmt: skip
def test_every_request_is_served_once_within_the_limits(
    seed, count, rate, burstiness, most, budget, whole, blocks, ahead, shared, windowed, hit, policy, users
):
    lengths = Lengths(prompt_tokens=40, output_tokens=30, prompt_cv=1.0, output_cv=1.0)
    table = constant_table(STEP_S, rates=(0.7, 0.4), requests_max=12, steps_ahead=int(ahead))
    held = np.minimum(np.arange(4096.0), 1.5 + 0.5 * np.arange(4096.0)) if windowed else None
    within = limits(max_requests=most, token_budget=budget, kv_blocks=blocks, prefix_hit_rate=hit,
                    whole_prompts=whole, shares_prefix=shared, lookahead=2 * int(ahead),
                    held=held)  # fmt: skip
    longest = within.longest_request(table.drafts_max)
    if shared:
        longest = (longest - 16) * 2 // 3  # beside the shared text
    asked: Requests = (
        open_loop(rate, lengths, count=count, burstiness=burstiness, seed=seed, most=longest)
        if users is None
        else closed_loop(users, lengths, count=count, seed=seed, most=longest, think_s=0.01)
    )
    chosen: Policy = POLICIES[policy](table)
    try:
        engine = Checked(asked, table, within, chosen, seed, spread=0.0)
    except UsageError:
        assume(not (shared and windowed))  # the most that any request shares, beside the longest: refused
        raise
    found = engine.run()
    assert found.whole.emitted == asked.output_tokens.sum()
    assert np.isfinite(found.finish_s).all()
    assert (found.first_token_s > found.arrival_s).all()
    assert (found.finish_s >= found.first_token_s).all()
    # preempted prompts are computed again, never less than once; hits are not computed
    found_tokens = np.minimum(np.rint(hit * asked.prompt_tokens), asked.prompt_tokens - 1)
    once = asked.prompt_tokens.sum() - found_tokens.sum()
    assert found.whole.prompt_tokens >= once
    if not found.preemptions:
        assert found.whole.prompt_tokens == pytest.approx(once, abs=count)
    assert found.kv_blocks_most <= within.kv_blocks
    # every token but the first of each request ends a gap or came with others of its step
    assert found.whole.gaps.sum() <= found.whole.emitted - count
    # Little's law: requests in the system = rate x time in it
    assert found.in_system_s == pytest.approx(latencies(found).sum(), rel=1e-9)
    assert found.whole.busy_s <= found.end_s * (1 + 1e-9)
    if users is None:
        line = found.timeline
        width = found.end_s / max(line.time_s.size - 0.5, 0.5)
        assert line.tokens_per_s.min() >= 0.0
        assert width > 0.0


def test_the_timeline_adds_up():
    asked = open_loop(30.0, Lengths(), count=500)
    found = run(asked, constant_table(STEP_S), limits(), Fixed(0))
    line = found.timeline
    width = np.full(line.time_s.size, 2.0 * line.time_s[0])
    width[-1] = found.end_s - (line.time_s.size - 1) * width[0]
    assert (line.tokens_per_s * width).sum() == pytest.approx(found.whole.emitted)
    assert (line.prompt_tokens_per_s * width).sum() == pytest.approx(asked.prompt_tokens.sum())


def test_a_card_that_is_too_small_preempts_and_a_request_that_never_fits_is_refused():
    asked = open_loop(
        1000.0, Lengths(prompt_tokens=20, output_tokens=100, prompt_cv=0, output_cv=0), count=40
    )
    found = run(asked, constant_table(STEP_S), limits(kv_blocks=16, max_requests=32), Fixed(0))
    assert found.preemptions > 0
    assert found.whole.emitted == asked.output_tokens.sum()
    roomy = run(asked, constant_table(STEP_S), limits(max_requests=32), Fixed(0))
    assert roomy.preemptions == 0
    assert roomy.end_s < found.end_s
    with pytest.raises(UsageError, match="does not fit into 160 tokens"):
        run(
            requests([0.0], prompt=[150], output=[100]),
            constant_table(STEP_S),
            limits(kv_blocks=10),
            Fixed(0),
        )


def test_the_budget_is_cut_for_drafts_of_many_requests():
    table = constant_table(STEP_S, rates=(0.9, 0.9, 0.9))
    asked = closed_loop(8, Lengths(prompt_tokens=2, output_tokens=50, prompt_cv=0, output_cv=0), count=32)
    found = run(asked, table, limits(max_requests=8, token_budget=20), Fixed(3))
    assert found.whole.emitted == asked.output_tokens.sum()
    drafted = np.flatnonzero(found.whole.steps_s.sum(axis=1))
    assert 3 in drafted  # few requests
    assert found.whole.steps_s[3, 8] == 0.0  # eight requests leave room for one draft each


def test_arrivals_have_the_rate_and_the_burstiness_and_are_scaled_in_time_alone():
    for burstiness in (0.25, 1.0, 4.0):
        asked = open_loop(7.0, Lengths(), count=20_000, burstiness=burstiness, seed=1)
        gaps = np.diff(asked.arrival_s)
        assert gaps.mean() == pytest.approx(1 / 7.0, rel=0.05)
        assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.05)
    ramp = open_loop((2.0, 10.0), Lengths(), count=20_000)
    half = np.searchsorted(ramp.arrival_s, ramp.arrival_s[-1] / 2)
    # a rate from 2 to 10 brings 4 of 12 parts in its first half
    assert half / ramp.count == pytest.approx(1 / 3, abs=0.02)
    assert ramp.rate_per_s == pytest.approx(6.0)
    asked = open_loop(2.0, Lengths(), count=500)
    faster = asked.at_rate(8.0)
    assert faster.rate_per_s == pytest.approx(8.0)
    np.testing.assert_array_equal(faster.prompt_tokens, asked.prompt_tokens)
    with pytest.raises(UsageError, match="rate 0"):
        asked.at_rate(0.0)


def test_lengths_have_their_means_and_limits_say_what_is_wrong():
    prompt, output, _ = Lengths(prompt_tokens=300, output_tokens=120).drawn(50_000, seed=0)
    assert prompt.mean() == pytest.approx(300, rel=0.02)
    assert output.mean() == pytest.approx(120, rel=0.02)
    assert prompt.std() / prompt.mean() == pytest.approx(LENGTH_CV, rel=0.05)
    varied, _, _ = Lengths(prompt_tokens=300, prompt_cv=1.0).drawn(50_000, seed=0)
    assert varied.mean() == pytest.approx(300, rel=0.015)
    assert varied.std() / varied.mean() == pytest.approx(1.0, rel=0.05)
    short, rest, cut = Lengths(prompt_tokens=300, output_tokens=120).drawn(50_000, seed=0, most=512)
    assert (short + rest).max() <= 512
    assert cut == (prompt + output > 512).sum() > 0
    assert rest.min() >= 1
    with pytest.raises(UsageError, match="on average do not fit: model and KV cache hold 256"):
        Lengths(prompt_tokens=300, output_tokens=120).drawn(10, seed=0, most=256)
    for arguments, told in (
        ({"token_budget": 4, "max_requests": 8}, "below max-num-seqs 8"),
        ({"prefix_hit_rate": 1.0}, "prefix hit rate 1"),
    ):
        with pytest.raises(UsageError, match=told):
            SchedulerLimits(kv_blocks=10, positions=100, **arguments)


def independent_preemptions(
    arrival_s: list[float], prompt: list[int], output: list[int], *, drafts: int, slots: int, blocks: int
) -> int:
    """How often requests lose their cache: step by step, every draft accepted, one chunk a prompt."""
    queue: list[list[int]] = []  # tokens in the cache, tokens to emit
    waiting: list[list[int]] = []
    now, come, lost, done = 0.0, 0, 0, 0

    def held(tokens: int) -> int:
        return -(-(tokens + drafts + 1 + slots) // 16)

    while done < len(prompt):
        while come < len(prompt) and arrival_s[come] <= now:
            waiting.append([prompt[come], output[come]])
            come += 1
        if not queue and not waiting:
            now = arrival_s[come]
            continue
        before = lost
        while sum(held(tokens) for tokens, _ in queue) > blocks:
            tokens, left = queue.pop()
            waiting.insert(0, [tokens + 1, left])  # its last token is read with the others
            lost += 1
        read = []
        used = sum(held(tokens) for tokens, _ in queue)
        while lost == before and waiting and used + held(waiting[0][0]) <= blocks:
            read.append(waiting.pop(0))
            used += held(read[-1][0])
        now += STEP_S
        for request in queue:
            gained = min(drafts + 1, request[1])
            request[0] += gained
            request[1] -= gained
        for request in read:
            request[1] -= 1
        queue += read
        done += sum(not left for _, left in queue)
        queue = [request for request in queue if request[1]]
    return lost


@pytest.mark.parametrize("slots", [0, 3])
def test_preemptions_are_those_of_an_independent_count(slots):
    asked = open_loop(12.0, Lengths(prompt_tokens=120, output_tokens=200), count=400, most=1500)
    table = constant_table(STEP_S, rates=(1.0, 1.0, 1.0))
    found = run(asked, table, limits(kv_blocks=120, lookahead=slots, token_budget=1 << 13), Fixed(3))
    expected = independent_preemptions(
        asked.arrival_s.tolist(), asked.prompt_tokens.tolist(), asked.output_tokens.tolist(), drafts=3,
        slots=slots, blocks=120,
    )  # fmt: skip
    assert expected > 50
    assert found.preemptions == pytest.approx(expected, rel=0.02)
