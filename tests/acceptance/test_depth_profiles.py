"""Shipped profiles by depth: rates never rise, nothing beyond the published depth, relatives lend theirs."""

import numpy as np
import pytest
from depth_profiles import constant, left_out, smooth_rates, trained_depth

from medusa_sim.acceptance.profile import acceptance_names, load_acceptance
from medusa_sim.errors import CoverageError
from medusa_sim.plan.acceptance import acceptance_of
from medusa_sim.step.drafter import DRAFTERS, drafter_kind

CHAINS = [
    name
    for name in acceptance_names()
    if name.startswith(tuple(prefix for kind in DRAFTERS.values() for prefix in kind.profiles))
    and not name.startswith("medusa1-")
]


@pytest.mark.parametrize("name", CHAINS)
def test_a_further_draft_gives_less_and_none_is_invented(name):
    profile = load_acceptance(name)
    depth = profile.heads.heads
    tokens = profile.tokens_per_step(np.arange(1, depth + 2))
    gains = np.diff(tokens)
    assert (gains >= -1e-12).all()
    assert (np.diff(gains) <= 1e-9).all()
    assert gains[0] <= 1.0
    with pytest.raises(CoverageError, match="covers"):
        profile.tokens_per_step(depth + 2)
    low, high = profile.band(depth + 1)
    assert low < tokens[-1] < high


@pytest.mark.parametrize(
    ("drafter", "model", "profile"),
    [
        ("mtp", "deepseek-r1", "mtp-deepseek-r1"), ("mtp", "deepseek-v3.2", "mtp-deepseek-v3"),
        ("mtp", "glm-4.6", "mtp-glm-5.2"), ("mtp", "qwen3-next-80b-a3b", "mtp-qwen3.5-397b-a17b"),
        ("mtp", "minimax-m2", "mtp-deepseek-r1"), ("eagle3", "kimi-k2", "eagle3-kimi-k2.5"),
        ("eagle3", "gpt-oss-120b", "eagle3-gpt-oss-20b"), ("eagle3", "llama-3.3-70b", "eagle3-llama-3.1-8b"),
        ("eagle3", "opt-13b", "eagle3-llama-3.1-8b"), ("eagle", "llama-2-7b", "eagle1-vicuna-7b"),
        ("dflash", "qwen3-30b-a3b", "dflash-qwen3-8b"), ("medusa", "zephyr-7b", "medusa1-vicuna-7b"),
    ],
)  # fmt: skip
def test_the_nearest_model_of_a_family_lends_its_profile(drafter, model, profile):
    assert acceptance_of(None, drafter_kind(drafter), model_name=model).name == profile


def test_rates_fall_smoothly_and_a_mean_length_becomes_one():
    conditional = 0.9 - 0.08 * np.arange(6)  # a straight line is met, and a length that is left out on it
    lengths = 1.0 + np.cumsum(np.cumprod(conditional))
    assert smooth_rates(lengths) == pytest.approx(np.cumprod(conditional), abs=1e-6)
    assert left_out(lengths) == pytest.approx(0.0, abs=1e-6)
    assert smooth_rates(np.array([1.8])) == pytest.approx([0.8], abs=1e-6)
    noisy = smooth_rates(np.array([1.9, 2.6, 2.5, 2.7]))
    assert (np.diff(noisy) <= 1e-12).all()
    assert 1.0 + noisy.sum() == pytest.approx(2.65, abs=0.05)
    jump = smooth_rates(
        np.array([1.92, 2.58, 2.82, 2.99, 3.01])
    )  # 0.92, 0.72, 0.36, 0.71, 0.12 by themselves
    assert (np.diff(jump[1:] / jump[:-1]) < 0.0).all()
    assert trained_depth(np.array([1.8, 2.5, 3.77, 3.73, 3.47])) == 4
    assert trained_depth(np.array([1.8, 2.5, 2.4, 2.6])) == 4
    rates = constant(2.68, None, 5)
    assert np.ptp(rates) == 0.0
    assert 1.0 + np.cumprod(rates).sum() == pytest.approx(2.68)
    assert constant(3.2, 0.875, 7)[0] == 0.875
