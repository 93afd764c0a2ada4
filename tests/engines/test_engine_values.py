"""Numbers of an engine and of what was measured near it, by hand."""

import msgspec
import pytest

from medusa_sim.engines.accuracy_groups import groups, together
from medusa_sim.engines.engine import Term
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
