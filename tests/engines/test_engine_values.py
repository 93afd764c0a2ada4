"""Numbers of an engine and of what was measured near it, by hand."""

from dataclasses import replace

import msgspec
import pytest
from left_out import numbers_left_out

from medusa_sim.engines.accuracy_groups import groups, together
from medusa_sim.engines.case import Case
from medusa_sim.engines.engine import UNITS, Engine, StepLimit, Term
from medusa_sim.engines.engine_table import _DEFAULTS, _guessed
from medusa_sim.engines.place import version_numbers
from medusa_sim.engines.ranges import Deviation, MeasuredRange, band_factor
from medusa_sim.engines.runtime import Runtime, load_runtime
from medusa_sim.gpus.gpu import load_gpu


def test_an_engine_reads_prompts_without_what_steps_that_decode_shown():
    """Shares are one and times of layers none; what prompts have of their own stays."""
    told = ("linear_share", "attention_share", "experts_share", "exchange_share", "experts_us_per_layer")
    kept = ("prompt_share", "host_us_per_step")
    engine = load_runtime("tensorrt-llm").engine
    engine = engine.with_terms({name: Term(value=1.7, source="a test") for name in (*told, *kept)})
    reading = engine.reading.terms
    assert [reading[name].value for name in told] == [1.0, 1.0, 1.0, 1.0, 0.0]
    assert [reading[name].value for name in kept] == [1.7, 1.7]


@pytest.mark.parametrize(("other", "fitted"), [("yes", "yes"), ("no", "in part")])
def test_groups_that_a_table_shows_as_one_are_joined_by_their_rows(other, fitted):
    """Errors of 2 and 5 % of ten and twenty rows are 4 %."""
    one = msgspec.structs.replace(
        groups()[0], rows=10, error=2.0, bias=-2.0, worst=-9.0, held=None, fitted="yes", source="a", data="x"
    )
    two = msgspec.structs.replace(
        one, rows=20, error=5.0, bias=1.0, worst=8.0, fitted=other, source="b", data="x"
    )
    (joined,) = together([one, two])
    assert (joined.rows, joined.error, joined.bias, joined.worst) == (30, 4.0, 0.0, -9.0)
    assert (joined.held, joined.fitted, joined.source, joined.data) == (None, fitted, "a; b", "x")


@pytest.mark.parametrize(
    ("outside", "times"),
    [((), 1.0), (("forms",), 1.5), (("generations",), 1.25), (("gpus", "backends"), 1.0 + 0.5**0.5)],
)
def test_a_band_is_wider_by_each_range_that_a_set_up_is_outside_of(outside, times):
    """Parts of 0.5 and 0.25 add in quadrature."""
    assert band_factor(outside) == pytest.approx(times)


@pytest.mark.parametrize(
    ("runtime", "version"),
    [("vllm", (0, 0, 0)), ("vllm-0.15", (0, 15, 0)), ("sglang-0.5.9", (0, 5, 9)), ("vllm-v0", (0, 0, 0))],
)
def test_a_version_has_three_numbers(runtime, version):
    assert version_numbers(runtime) == version


def test_a_limit_holds_from_its_memory_on_and_captures_up_to_its_sizes():
    """80 GiB and more; graphs of 256 requests, and of 512 where four GPUs share a model."""
    limit = StepLimit(tokens=1, requests=1, memory_gib=80.0, but=("h20",), captured=256, captured_by_four=512)
    memory = 80.0 * 2**30
    cards = ("h100", memory), ("h100", memory - 1.0), ("h100", 1.5 * memory), ("h20", memory)
    assert [limit.holds_for(*card) for card in cards] == [True, False, True, False]
    asked = (256, 1), (257, 1), (257, 3), (512, 4), (513, 4)
    assert [limit.captures(*each) for each in asked] == [True, False, False, True, False]
    assert StepLimit(tokens=1, requests=1).captures(10**6, 4)


def test_what_a_file_leaves_out_adds_nothing():
    term = Term(value=3.0, source="a test")
    assert (term.band, term.half_width) == (0.0, 0.0)
    assert {name: _DEFAULTS[name] for name in ("prompt_wait_steps", "free_memory_share")} == {
        "prompt_wait_steps": 0, "free_memory_share": 0.0,
    }  # fmt: skip
    fields = {name: each.default for name, each in Runtime.__dataclass_fields__.items()}
    added = [fields[f"host_us_per_{name}"] for name in ("drafted_step", "lookup", "level", "model_level")]
    assert (added, fields["kernels_half_share"]) == ([0.0] * 4, 1.0)


def test_a_guess_for_an_engine_that_nobody_measured_has_both_half_widths():
    """3 of 10 us for the guess and 8 of 20 us for what it replaces: 11 of 10 us."""
    guess = Term(value=10.0, band=0.3, source="a test", measured=MeasuredRange(assumed=True))
    known = Term(value=20.0, band=0.4, source="a test", measured=MeasuredRange(requests=64))
    told = _guessed(guess, known)
    assert told.band == pytest.approx(1.1)
    assert told.measured == MeasuredRange(requests=64, assumed=True)


def made_up(**terms: Term) -> Engine:
    """An engine of which nothing but these terms was measured."""
    none = {name: Term(value=0.0, source="a test") for name in UNITS}
    return load_runtime("vllm").engine.with_terms({**none, **terms})


def measured_at(requests: int, *forms: str) -> Term:
    return Term(value=1.0, source="a test", measured=MeasuredRange(forms=forms, requests=requests))


def test_requests_that_an_engine_was_measured_with_are_those_of_its_times():
    """Not of its shares or its load generator; of a form that nobody measured the fewest of all."""
    engine = made_up(
        host_us_per_step=measured_at(64, "dense"),
        host_us_per_request=measured_at(32, "dense", "mixture"),
        linear_share=measured_at(999, "dense"),
    )
    forms = "dense", "mixture", "latent"
    assert [engine.at(Case(form=form)).measured_requests for form in forms] == [64, 32, 32]
    assert made_up().measured_requests == 0


def test_what_an_engine_does_on_some_gpus_it_does_on_no_others():
    engine = msgspec.structs.replace(
        made_up(), fuses_shared=("hopper",), sends_tokens=("h200-sxm",), synchronous_drafters=("ngram",)
    )
    here, there = engine.at(Case(gpu="h200-sxm")), engine.at(Case(generation="ampere", gpu="a100-sxm"))
    assert (here.fuses_shared, here.sends_tokens) == (("hopper",), ("h200-sxm",))
    assert (there.fuses_shared, there.sends_tokens) == ((), ())
    waits = engine.with_terms({"hidden_us_per_step": Term(value=700.0, source="a test")})
    hidden = [waits.drafting(name).hidden_us_per_step.value for name in ("ngram", "eagle3")]
    assert hidden == [0.0, 700.0]


@pytest.mark.parametrize(
    ("where", "text"),
    [
        (Deviation(formats=("fp8",), times=0.88), "x 0.88 for fp8"),
        (Deviation(generations=("ada",), plus=-4.0), "-4 for ada"),
        (Deviation(gpus=(2, 8), times=2.0, plus=1.5), "x 2 +1.5 for 2 to 8 GPUs"),
        (MeasuredRange(gpus=(1, 1), rows=9), "one GPU; up to 9 rows"),
        (MeasuredRange(gpus=(1, 2)), "1 to 2 GPUs"),
        (MeasuredRange(gpus=(2, 2)), "2 GPUs"),
    ],
)
def test_a_range_says_its_numbers_and_leaves_out_what_changes_nothing(where, text):
    assert where.text == text


@pytest.mark.parametrize(
    ("launch_us", "host_us", "is_step"), [(0.0, 0.0, False), (0.05, 0.0, True), (0.0, 0.05, True)]
)
def test_kernels_that_nothing_launches_are_no_step_and_have_no_widening(launch_us, host_us, is_step):
    bare = replace(load_runtime("kernel"), launch_us=launch_us, host_us_per_launch=host_us)
    assert bool(bare.at(Case(gpu="h100-sxm")).widenings) == is_step


def test_what_is_left_out_is_nothing_but_for_these():
    """Factors and counts are one, sizes those that most have."""
    assert numbers_left_out("engines") == {
        "Case.gpus": 1,
        "Deviation.times": 1.0,
        "Fp8Cache.byte_ratio": 1.0,
        "Runtime.kernels_half_share": 1.0,
        "Spread.steps": 1.0,
        "Spread.experts": 1.0,
    }


def test_kernels_alone_are_what_is_left_without_the_host_and_drafting():
    """Shares of kernels stay, and the sizes of a load generator go with the host."""
    ones = made_up(**{name: Term(value=1.0, source="a test") for name in UNITS})
    alone = {name: term.value for name, term in ones.kernels_alone.terms.items()}
    beside = (
        "host_us_per_step",
        "draft_us_per_pass",
        "lookup_us_per_request",
        "prompt_us_per_launch",
        "layer_us",
    )
    kept = "linear_share", "attention_share", "experts_share", "filter_us"
    assert [alone[name] for name in (*beside, *kept)] == [0.0] * 5 + [1.0] * 4


def test_whole_steps_run_a_cards_own_choice_of_kernels_but_for_those_of_the_paper():
    runtime = replace(load_runtime("vllm"), kernels={"bf16": "sglang", "fp16": "paper", "fp8": "torch"})
    gpu = replace(load_gpu("h100-sxm"), step_kernels={"bf16": "cutlass", "fp16": "cutlass"})
    assert [runtime.step_kernels(gpu, dtype) for dtype in ("bf16", "fp16", "fp8")] == [
        "cutlass",
        "paper",
        "torch",
    ]
