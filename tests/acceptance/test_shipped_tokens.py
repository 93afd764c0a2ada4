"""Tokens per step of every profile that ships, with bands, longer chains and trees, to eight digits."""

import numpy as np
import pytest
from tables import table

from medusa_sim.acceptance.deeper import FALLS
from medusa_sim.acceptance.profile import AcceptanceProfile, load_acceptance

TOKENS = table("acceptance_tokens")


def told(profile: AcceptanceProfile) -> dict[str, list[float]]:
    counts = np.array([each for each in (1, 2, 3, 4, 6, 8, 16, 64) if each <= profile.candidates_max])
    band = profile.band(counts)
    more = profile.with_ratio(1.1).tokens_per_step(counts)
    found = {"tokens": profile.tokens_per_step(counts), "low": band.low, "high": band.high, "more": more}
    if profile.heads is not None:
        further = profile.carried_on(FALLS["mtp" if profile.name.startswith("mtp") else "eagle"])
        deeper = np.arange(1, min(further.candidates_max, 12) + 1)
        found |= {"deeper": further.tokens_per_step(deeper), "deeper_high": further.band(deeper).high}
        tree = profile.tree(min(profile.candidates_max, 24))
        found["levels"] = tree.nodes_per_depth
    return {name: np.asarray(values, dtype=float).tolist() for name, values in found.items()}


@pytest.mark.parametrize("name", TOKENS)
def test_a_profile_gives_its_tokens(name):
    found = told(load_acceptance(name))
    assert set(found) == set(TOKENS[name])
    for what, expected in TOKENS[name].items():
        assert found[what] == pytest.approx(expected, rel=1e-7), what
