"""Settings that are written for every engine and drafter that it runs, on a roofline, word for word."""

from functools import cache

import pytest
from export_cases import answered, heads_profile
from tables import table

from medusa_sim.export.engines import engine_settings
from medusa_sim.export.settings import EngineSettings
from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.scenario.acceptance import constant_rate

WRITTEN = table("written_settings")


@cache
def answer(method: str) -> Recommendation:
    profile = heads_profile() if method == "medusa" else constant_rate(0.7)
    return answered(method, profile, batch_max=700)


def settings_of(case: str) -> EngineSettings:
    method, engine = case.split(" ")
    return engine_settings(answer(method), engine, draft_path="own/draft")


def planned(found: EngineSettings) -> dict[str, object]:
    plan = found.plan
    if plan is None:
        return {}
    return {
        "drafts": plan.drafts,
        "tiers": [[each.batch_min, each.batch_max, each.drafts] for each in plan.tiers],
        "best": [[each.batch_min, each.batch_max, each.drafts] for each in plan.best_schedule],
        "gain": plan.gain,
        "loses": [list(each) for each in plan.loses],
        "unsure": [list(each) for each in plan.unsure],
    }


@pytest.mark.parametrize("case", WRITTEN)
def test_settings_are_those_of_the_plan(case):
    found = settings_of(case)
    assert found.text.strip() == WRITTEN[case]["text"].strip()
    plan = dict(WRITTEN[case].get("plan", {}))
    told = planned(found)
    assert told.pop("gain", None) == pytest.approx(plan.pop("gain", None), rel=1e-6)
    assert told == plan
