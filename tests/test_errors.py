"""Exit codes of what a user can cause or mend."""

import pytest

from medusa_sim import errors
from medusa_sim.errors import MedusaSimError

KINDS = [
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, MedusaSimError)
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_command_is_2_a_miss_3_and_anything_else_1(kind):
    assert kind.exit_code == {"UsageError": 2, "ThresholdError": 3}.get(kind.__name__, 1)
