"""Exit codes of what a user can cause or mend."""

import pytest

from medusa_sim import errors
from medusa_sim.errors import MedusaSimError, _nearness, unknown_name

KINDS = [
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, MedusaSimError)
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_command_is_2_a_miss_3_and_anything_else_1(kind):
    assert kind.exit_code == {"UsageError": 2, "ThresholdError": 3}.get(kind.__name__, 1)


@pytest.mark.parametrize(
    ("typed", "name", "near"),
    [
        ("llama", "llama2", 2 * 5 / 11 + 0.5),  # ten of eleven letters, all that was typed begins it
        ("llama70", "llama", 2 * 5 / 12 + 0.5 * 5 / 7 + 0.25),  # the whole name begins what was typed
        ("xllama", "llama", 2 * 5 / 11),
        ("h100", "mixtral", 0.0),
    ],
)
def test_names_are_as_near_as_their_letters_and_what_both_begin_with(typed, name, near):
    assert _nearness(typed, name) == pytest.approx(near)


@pytest.mark.parametrize("order", [1, -1])
def test_the_nearest_of_several_names_is_told_first(order):
    told = unknown_name("model", "llama-4", ["qwen3-32b", "llama-3.1-8b", "llama-4-scout"][::order])
    assert told.index("llama-4-scout") < told.index("llama-3.1-8b")
