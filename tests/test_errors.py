"""Exit codes of what a user can cause or mend."""

import pytest

from medusa_sim import errors
from medusa_sim.errors import MOST_MEANT, MedusaSimError, _nearness, names_meant, unknown_name

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
def test_the_nearest_of_several_names_is_shown_first(order):
    told = unknown_name("model", "llama-4", ["qwen3-32b", "llama-3.1-8b", "llama-4-scout"][::order])
    assert told.index("llama-4-scout") < told.index("llama-3.1-8b")


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    ("given", "names", "meant"),
    [
        ("H100", ["h100-sxm", "a100", "h100-pcie"], ["h100-pcie", "h100-sxm"]),  # begin with it
        ("Llama 3.1 8B", ["llama-3.1-8b-it", "llama-3.1-8b"], ["llama-3.1-8b"]),  # but for marks
        ("Ollama", ["vllm", "llama.cpp-b1"], ["llama.cpp-b1"]),  # is called so elsewhere
        ("SXM", ["v100", "h100-sxm", "a100-sxm"], ["a100-sxm", "h100-sxm"]),  # a part between marks
        ("mixtrl-8x7b", ["mixtral-8x22b", "mistral-7b", "mixtral-8x7b"], ["mixtral-8x7b"]),  # 1.18 for 1.06
        # 1.14 and 1.10: a family, whose names lie within 0.1, and not 0.74
        ("mixtrl-8x", ["mixtral-8x22b", "mistral-7b", "mixtral-8x7b"], ["mixtral-8x22b", "mixtral-8x7b"]),
        ("gtp", ["gpt", "gpu", "tpu"], ["gpt", "gpu"]),  # as near
        ("abcxyz", ["abcd", "zyx"], ["abcd"]),  # six of ten letters and the same first three
        ("zzz", ["h100"], []),
        ("", ["h100"], []),
    ],
)
def test_names_that_may_be_meant(given, names, meant, order):
    assert names_meant(given, names[::order]) == meant


def test_no_more_names_are_meant_than_are_read():
    assert names_meant("a", [f"a-{number}" for number in range(20)]) == [
        f"a-{number}" for number in sorted(range(20), key=str)[:MOST_MEANT]
    ]
