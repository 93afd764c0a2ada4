"""Numbers of an engine and of what was measured near it, by hand."""

import msgspec
import pytest

from medusa_sim.engines.accuracy_groups import groups, together
from medusa_sim.engines.engine import Term
from medusa_sim.engines.place import version_numbers
from medusa_sim.engines.ranges import band_factor
from medusa_sim.engines.runtime import load_runtime


def test_an_engine_reads_prompts_without_what_steps_that_decode_told():
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
