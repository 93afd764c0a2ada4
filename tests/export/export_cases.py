"""Answers to export, and readers of what was exported that are not ours."""

import json
import shlex
from dataclasses import replace

import numpy as np

from medusa_sim.acceptance.heads import HeadAccuracy
from medusa_sim.acceptance.profile import AcceptanceProfile
from medusa_sim.acceptance.shaped import ShapedAcceptance
from medusa_sim.export.chains import ChainPlan
from medusa_sim.export.settings import EngineSettings
from medusa_sim.models.named import load_model
from medusa_sim.plan.recommend import recommend
from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.scenario.acceptance import constant_rate
from medusa_sim.scenario.question import Question
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.drafter import drafter_class

BASE = Scenario(
    gpu="h100-sxm", model="llama-3.1-8b", runtime="cuda-graph", latency="roofline", drafter="ngram",
    acceptance=0.5,
)  # fmt: skip
ACCURACY = np.array([[0.6, 0.12, 0.06, 0.03], [0.5, 0.12, 0.06, 0.03], [0.4, 0.12, 0.06, 0.03]])


def heads_profile() -> AcceptanceProfile:
    model = ShapedAcceptance("made", HeadAccuracy.checked(ACCURACY))
    return AcceptanceProfile("made", "head-topk", "made", "made for a test", model)


def answered(
    method: str, profile: AcceptanceProfile | None = None, *, chain_only: bool = False, **question: object
) -> Recommendation:
    target = load_model("llama-3.1-8b")
    scenario = BASE.but(
        drafter=method,
        model=replace(target, mtp_layers=1) if method == "mtp" else target,
        heads=3 if method == "medusa" else None,
        draft_model="llama-3.2-1b" if drafter_class(method).takes_draft_model else None,
        acceptance=profile or constant_rate(0.55),
        chain_only=chain_only,
    )
    asked = Question(**{"batch_max": 300, "seq_len": (512,), **question})
    return recommend(scenario, asked)


def flags(text: str) -> dict[str, str]:
    """The last line's words in pairs; a flag without a value counts as on."""
    words = shlex.split(text.splitlines()[-1])
    found: dict[str, str] = {}
    for word, after in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--"):
            found[word] = "on" if after.startswith("--") else after
    return found


def simple_yaml(text: str) -> dict[str, object]:
    """Nested mappings of scalars by indentation: all that the TensorRT-LLM file uses."""
    root: dict[str, object] = {}
    stack: list[tuple[int, dict[str, object]]] = [(-1, root)]
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        indent = len(line) - len(line.lstrip())
        key, _, value = line.strip().partition(":")
        while stack[-1][0] >= indent:
            stack.pop()
        parent = stack[-1][1]
        if value.strip():
            parent[key] = json.loads(value) if value.strip()[0] in '"0123456789tf' else value.strip()
        else:
            child: dict[str, object] = {}
            parent[key] = child
            stack.append((indent, child))
    return root


def speculative(text: str) -> dict[str, object]:
    config = simple_yaml(text)["speculative_config"]
    assert isinstance(config, dict)
    return config


def plan_of(settings: EngineSettings) -> ChainPlan:
    assert settings.plan is not None
    return settings.plan
