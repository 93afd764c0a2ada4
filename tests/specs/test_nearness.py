"""How near a set-up lies to what was measured: the worst that is new, and bands that only open."""

import itertools

import pytest

import medusa_sim as ms
from medusa_sim.specs.nearness import KINDS, known_kinds, nearest_kind, nearness, served_groups

SERVED = [group.place for group in served_groups()]
HOME = next(place for place in SERVED if place.runtime == "vllm-0.15" and place.formats == ("fp8",))
CHANGES = {
    "version": {"runtime": "vllm-0.33"},
    "generation": {"gpu": "rtx-5090", "generation": "consumer-blackwell"},
    "model": {"sizes": "7 layers of 64"},
    "format": {"formats": ("int3",)},
    "engine": {"library": "another"},
}


def test_every_measured_group_is_measured_and_what_is_new_is_named_by_its_worst():
    for place in SERVED:
        assert nearness(place).kind == "measured", place
    for kind, changed in CHANGES.items():
        assert nearness(HOME._replace(**changed)).kind == kind
    for one, other in itertools.combinations(CHANGES, 2):
        both = HOME._replace(**CHANGES[one] | CHANGES[other])
        assert nearness(both).kind == max(one, other, key=KINDS.index), (one, other)
    others = [place for place in SERVED if place.gpu != HOME.gpu]
    assert nearest_kind(HOME, others)[0] in ("card", "generation", "model")


def test_what_lies_further_off_is_never_known_better():
    shares = [near.between_share for near in known_kinds().values()]
    assert shares == sorted(shares)
    for changed in CHANGES.values():
        place = HOME._replace(**changed)
        assert nearness(place._replace(runtime="vllm-0.33")).between_share >= nearness(place).between_share


@pytest.mark.parametrize(
    "changed", [{"runtime": "vllm-0.33"}, {"gpu": "b300"}, {"model": "qwen3-14b", "tp": 4}]
)
def test_the_band_of_a_step_opens_with_what_is_new(changed):
    asked = {"gpu": "h200-sxm", "model": "llama-3.1-70b", "dtype": "fp8", "tp": 4, "runtime": "vllm-0.15"}

    def share(**given) -> float:
        engine = ms.Scenario(**given, drafter="ngram", acceptance="0.5").setting.runtime.engine
        return engine.between_share.value

    assert share(**asked | changed) > share(**asked)
