"""Settings that are written for every engine and drafter that it runs, on a roofline, word for word."""

import json
from functools import cache
from typing import Any

import engine_rules as rules
import pytest
from export_cases import answered, flags, heads_profile, speculative
from tables import table

from medusa_sim.errors import UsageError
from medusa_sim.export import exports
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


def check(engine: str, settings: EngineSettings) -> None:
    """Refuses what the engine would refuse at start. Raises ValueError."""
    text = settings.text
    if engine == "vllm":
        rules.vllm(json.loads(flags(text)["--speculative-config"]))
    elif engine == "sglang":
        file = text.partition("<<'EOF'\n")[2].partition("\nEOF")[0]
        rules.sglang(flags(text), json.loads(file) if file else None)
    elif engine == "tensorrt-llm":
        config: dict[str, Any] = speculative(text)
        if (schedule := config.get("draft_len_schedule")) is not None:
            config["draft_len_schedule"] = {int(batch): int(drafts) for batch, drafts in schedule.items()}
        rules.tensorrt(config, settings.version)


@pytest.mark.parametrize("case", WRITTEN)
def test_settings_are_those_of_the_plan(case):
    found = settings_of(case)
    check(found.engine, found)
    assert found.text.strip() == WRITTEN[case]["text"].strip()
    plan = dict(WRITTEN[case].get("plan", {}))
    told = planned(found)
    assert told.pop("gain", None) == pytest.approx(plan.pop("gain", None), rel=1e-6)
    assert told == plan


@cache
def steep(method: str) -> Recommendation:
    """Many drafts at few requests, none at many; EAGLE-3's are trees."""
    profile = heads_profile() if method in ("medusa", "eagle3") else constant_rate(0.85)
    return answered(method, profile, seq_len=(64,), batch_max=128)


@pytest.mark.parametrize("engine", [engine for engine in exports() if engine != "llama-cpp"])
def test_no_engine_refuses_what_is_written(engine):
    written = 0
    for method in exports()[engine].methods:
        for version in exports()[engine].versions.known:
            try:
                settings = engine_settings(steep(method), engine, version=version, draft_path="own/draft")
            except UsageError:  # the version has no such method
                continue
            check(engine, settings)
            written += 1
    assert written >= len(exports()[engine].methods)
