"""Numbers of prompts by hand: kernels, logits, experts and linear layers, of a target and its drafter."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from on_roofline import LLAMA, setting

from medusa_sim.engines.runtime import load_runtime
from medusa_sim.engines.term import Term
from medusa_sim.models.named import load_model
from medusa_sim.models.parallel import Parallel
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.drafter.draft_model import DraftModel
from medusa_sim.step.drafter.layer import Eagle3, Mtp
from medusa_sim.step.expert_union import CHAIN
from medusa_sim.step.host import overlapped_us
from medusa_sim.step.last_logits import last_logits
from medusa_sim.step.launch import Launch
from medusa_sim.step.network import LOGIT_OPERATORS, model_launches
from medusa_sim.step.pass_cost import device_us
from medusa_sim.step.pass_work import PassWork
from medusa_sim.step.prompt_kernels import (
    decode_kernels,
    drafter_attention_us,
    drafter_linear_us,
    expert_sharing_us,
    imbalance_us,
    inactive_share,
    linear_us,
    logits_us,
    prompt_attention_us,
    timed_rows,
)
from medusa_sim.step.prompts import GRAPHS, prompt_host, prompt_terms, read_us
from medusa_sim.step.step import (
    decode_step,
    prefill_step,
    verification_work,
)
from medusa_sim.step.verified import Verified
from medusa_sim.step.workload import decode, prefill


@pytest.mark.parametrize("layers", [2, 32])
def test_a_pass_for_its_last_token_alone_runs_the_last_mlp_and_the_head_for_one_row(layers):
    launches = model_launches(LLAMA.resized(layers=layers), prefill(1, 100), load_runtime("llama.cpp-cuda"))

    def rows(of: tuple[Launch, ...], *names: str) -> float:
        return sum(each.count * float(each.operator.m) for each in of if each.operator.name in names)

    several = last_logits(launches, 16)
    assert (rows(several, "lm_head"), rows(several, "down_proj")) == (16, 100 * (layers - 1) + 16)
    last = last_logits(launches, 1)
    for name in ("down_proj", "up_proj", "gate_proj", "gate_up_proj"):
        if whole := rows(launches, name):
            assert rows(last, name) == pytest.approx(whole * (100 * layers - 99) / (100 * layers)), name
    assert rows(last, "lm_head") == 1
    others = ("qkv_proj", "q_proj", "k_proj", "v_proj", "o_proj")
    assert rows(last, *others) == rows(launches, *others) > 0


def test_prompts_take_an_engines_share_of_kernels_and_its_host_by_layer():
    assert prompt_terms(setting()) == (1.0, 0.0, False)
    assert prompt_host(setting(), 1.0) == GRAPHS
    served = setting("vllm-0.11")
    engine = served.runtime.engine
    assert prompt_terms(served) == (engine.prompt_share.value, 32 * engine.prompt_us_per_layer.value, False)
    # beyond the largest captured size the host launches every layer
    host_us = 32 * engine.eager_us_per_layer.value
    assert prompt_host(served, 1.0) == (0.0, host_us, 512.0, engine.eager_us_per_layer.band)
    found = [float(prompt_host(served, 3.0).launches_us(96.0, rows)) for rows in (498.0, 499.0)]
    assert found == [0.0, host_us]  # graphs of three tokens a request end at 498 rows
    assert float(prompt_host(served, 1.0).launches_us(513.0, 600.0)) == 0.0  # without prompts in none, either


def test_a_prompt_alone_takes_an_engines_share_of_kernels_its_host_and_time_beside():
    """|g kernels, host|_3 + what is beside; 65 us and 20 a launch in TensorRT-LLM are of its rows."""
    served = setting("tensorrt-llm")
    engine, bare = served.runtime.engine, {"prompt_share": 1.0, "prompt_us_per_layer": 0.0}
    terms = bare | {"prompt_us_per_launch": 0.0, "prefill_us_per_launch": 0.0}
    none = engine.with_terms({name: Term(value=value, source="none") for name, value in terms.items()})
    kernels = prefill_step(replace(served, runtime=replace(served.runtime, engine=none)), 1, 512)
    found, host_us = prefill_step(served, 1, 512), float(prompt_host(served, 1.0).always_us)
    assert host_us > 0.0
    assert 0.5 < engine.prompt_share.value < 1.0
    whole = overlapped_us(engine.prompt_share.value * kernels.device_us, max(host_us, kernels.host_us))
    beside_us = kernels.cost.exposed_us + 32 * engine.prompt_us_per_layer.value
    assert float(found.time_us) == pytest.approx(float(whole + beside_us))
    assert sum(found.parts_us.values()) == pytest.approx(found.device_us - found.gaps_us)


def test_a_drafter_of_the_targets_own_size_reads_prompts_as_the_target_does():
    of, tokens = setting(), np.array([100.0, 3000.0])
    assert (drafter_linear_us(of, None, tokens) == 0.0).all()
    assert (drafter_attention_us(of, None, tokens, tokens) == 0.0).all()
    own = DraftModel(draft=LLAMA, depth=3)
    attention_us = drafter_attention_us(of, own, tokens, tokens)
    assert attention_us == pytest.approx(prompt_attention_us(of, tokens, tokens))
    whole_us = drafter_linear_us(of, own, tokens) + attention_us
    assert whole_us == pytest.approx(prefill_step(of, 1, tokens).device_us)


@pytest.mark.parametrize(
    ("model", "split", "drafter"),
    [
        ("deepseek-v3", True, Mtp(depth=1)),
        ("deepseek-v3", False, Mtp(depth=1)),
        ("llama-3.1-70b", False, Eagle3(depth=2)),
    ],
)
def test_a_drafter_reads_eight_prompts_as_eight_squares_on_the_gpus_that_attend_to_them(
    model, split, drafter
):
    """Their rows together, each square alone: as one pass over the eight takes, not one over 8 x 4,096."""
    of = Scenario(gpu="h200-sxm", model=model, tp=8, dp_attention=split).setting
    squares = 1.0 if split else 8.0  # of one GPU, or of all that share each
    found = drafter_linear_us(of, drafter, np.array(8.0 * 4096.0))
    found = found + squares * drafter_attention_us(of, drafter, 4096.0, 4096.0)
    works = drafter.prompt_work(of.shard, prefill(8, 4096), of.runtime)
    # waves of eight prompts are fuller than those of one, and one GPU's logits are of one row
    assert float(found) == pytest.approx(sum(float(device_us(of.latency, work)) for work in works), rel=0.02)
    one_long = drafter.prompt_work(of.shard, prefill(1, 8 * 4096), of.runtime)
    assert sum(float(device_us(of.latency, work)) for work in one_long) > (6.0 if split else 1.05) * float(
        found
    )


@pytest.mark.parametrize("tp", [1, 8])
def test_tokens_of_prompts_take_as_long_with_half_the_vocabulary(tp):
    """A token is chosen after the last one alone, so the others have no logits to compute or to gather."""
    of, tokens = Scenario(gpu="h100-sxm", model="llama-3.1-8b", tp=tp).setting, np.array([64.0, 4096.0])
    halved = replace(of, model=of.model.resized(vocab=of.model.vocab // 2))
    assert linear_us(halved, tokens) == pytest.approx(linear_us(of, tokens))
    assert decode_step(halved, 64, 1024).device_us < decode_step(of, 64, 1024).device_us


@pytest.mark.parametrize("model", ["qwen3-30b-a3b", "gpt-oss-120b"])
def test_prompts_wake_the_experts_that_a_requests_tokens_share(model):
    """(X1) of both: S tokens of prompts beside 16 requests of 4, which choose as 16 x 4^beta tokens would."""
    of = Scenario(gpu="h100-sxm", model=model, runtime="vllm").setting
    b, c, read = np.array(16.0), np.array(4.0), np.array([16.0, 64.0, 512.0, 4096.0])

    def shared_us(work: PassWork) -> np.ndarray:
        kept = (launch for launch in work.launches if not launch.attends and launch.part != "accept")
        kept = tuple(launch for launch in kept if launch.operator.name not in LOGIT_OPERATORS)
        return device_us(of.latency, replace(work, launches=kept, runtime=of.prompt_runtime))

    step, alone_us = verification_work(of, 16, 512, 4), linear_us(of, b * c)
    own_us, saved_us = decode_kernels(of, b, c, partial(linear_us, of))
    assert own_us == pytest.approx(shared_us(step))
    assert 0.02 * alone_us < saved_us < 0.2 * alone_us
    both = replace(decode(16.0 * 4.0**CHAIN.beta + read, 1), padded_rows=b * c + read)
    joined = replace(step, workload=both, launches=model_launches(of.shard, both, of.runtime))
    found_us = linear_us(of, b * c + read) - inactive_share(of, read) * saved_us
    # what an expert takes is as if it did not depend on how many rows there are
    assert found_us == pytest.approx(shared_us(joined), rel=0.02)
    dense = setting()
    assert float(expert_sharing_us(dense, b, c, b * c, b * c)) == float(inactive_share(dense, b)) == 0.0


def test_kernels_of_a_step_are_averaged_over_whether_drafts_are_found():
    """(N5) of one request, as its step is: three times in ten it verifies four tokens, else one."""
    always = Scenario(gpu="h100-sxm", model="qwen3-30b-a3b", runtime="cuda-graph").setting
    sometimes, linear_at = replace(always, verified=Verified(match_rate=0.3)), partial(linear_us, always)
    plain, found = (decode_kernels(always, np.array(1.0), tokens, linear_at) for tokens in (1.0, 4.0))
    mean = decode_kernels(sometimes, np.array(1.0), 4.0, linear_at)
    assert mean.linear_us == pytest.approx(0.7 * plain.linear_us + 0.3 * found.linear_us)
    assert mean.sharing_us == pytest.approx(0.7 * plain.sharing_us + 0.3 * found.sharing_us)


def test_linear_layers_are_timed_at_rows_that_lie_further_apart_the_more_there_are():
    few = [1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 28]
    edges = [*range(32, 1025, 32), *range(1088, 2049, 64), *range(2176, 8193, 128), *range(8704, 32_769, 512)]
    expected = [*few, *(row for edge in (*edges, 36_864, 40_960) for row in (edge, edge + 1))]
    assert timed_rows(40_000.0).tolist() == expected[:-1]
    assert timed_rows(1.0).tolist() == [1]
    assert timed_rows(1025.0).tolist() == expected[: 11 + 64]


@pytest.mark.parametrize(
    ("gpu", "model", "runtime", "dtype"),
    [
        ("h100-sxm", "llama-3.1-8b", "sglang", "fp8"),
        ("a100-80gb-sxm", "qwen3-8b", "vllm", None),
        ("h200-sxm", "gpt-oss-120b", "vllm", None),
    ],
)
def test_linear_layers_are_linear_between_the_rows_that_are_timed(gpu, model, runtime, dtype):
    """Edges of tiles are among them: with every 16th row 513 took 38 % less than it does."""
    of = Scenario(gpu=gpu, model=model, runtime=runtime, dtype=dtype).setting
    rows, timed = np.arange(1.0, 1025.0), timed_rows(1024.0)
    assert np.interp(rows, timed, linear_us(of, timed)) == pytest.approx(linear_us(of, rows), rel=0.035)


@pytest.mark.parametrize(
    ("gpus", "prompts", "expected_us"),
    [
        (1, 3, 900 + 50),
        (4, 1, 900 + 50 + 120),  # one GPU has all
        (4, 2, 900 / 2 + 50 + 120 / 3),  # one has a half: (4 / 2 - 1) / 3 of the way from even to all
        (4, 8, 900 / 4 + 50),
    ],
)
def test_the_busiest_gpu_attends_to_an_even_share_of_prompts_and_one_at_least(gpus, prompts, expected_us):
    found_us = read_us(gpus, prompts, attention_us=900.0, drafter_us=50.0, imbalance_us=120.0)
    assert float(found_us) == pytest.approx(expected_us)


def test_the_first_token_of_a_prompt_costs_one_row_of_the_head_and_of_its_logits():
    """Weights, a row in and a row of logits out in 16 bits; and these twice more to choose."""
    vocab, hidden = 128_256, 4096
    moved_bytes = 2 * (vocab * hidden + hidden + vocab) + 4 * vocab
    assert logits_us(setting("kernel")) == pytest.approx(moved_bytes / 3.35e12 * 1e6)


def test_one_gpu_with_all_prompts_projects_eight_times_the_rows_of_an_even_share():
    """Projections of 32 + 2 x 4 heads and back, 48 layers; norms and rotations add a fifth to a third."""
    of = setting("sglang", model=load_model("qwen3-30b-a3b"), parallel=Parallel(tp=8, dp_attention=True))
    tokens = np.array([16_384.0, 32_768.0])
    flops = 2 * tokens * 48 * 2048 * 128 * (40 + 32)
    projected_us = 7 / 8 * flops / 9.895e14 * 1e6
    found_us = imbalance_us(of, tokens)
    assert (found_us > 1.2 * projected_us).all()
    assert (found_us < 1.33 * projected_us).all()
    assert imbalance_us(setting(), tokens).tolist() == [0.0, 0.0]
