"""Answers to export, and readers of what was exported that are not ours."""

from __future__ import annotations

import json
import shlex

import numpy as np

from medusa_sim.acceptance.heads import HeadAccuracy
from medusa_sim.acceptance.profile import AcceptanceProfile
from medusa_sim.acceptance.shaped import ShapedAcceptance
from medusa_sim.export.chains import ChainPlan
from medusa_sim.export.settings import EngineSettings
from medusa_sim.plan.acceptance import constant_rate
from medusa_sim.plan.draft_options import Drafting, Method
from medusa_sim.plan.recommend import Question, Recommendation, recommend
from medusa_sim.plan.scenario import sweep_settings
from medusa_sim.specs.models import load_model

BASE = sweep_settings(("h100-sxm",), ("llama-3.1-8b",), latency="roofline", drafter="ngram")[0]
ACCURACY = np.array([[0.6, 0.12, 0.06, 0.03], [0.5, 0.12, 0.06, 0.03], [0.4, 0.12, 0.06, 0.03]])


def heads_profile() -> AcceptanceProfile:
    model = ShapedAcceptance("made", HeadAccuracy.checked(ACCURACY))
    return AcceptanceProfile("made", "head-topk", "made", "made for a test", model)


def answered(method: Method, profile: AcceptanceProfile | None = None, **question: object) -> Recommendation:
    drafting = Drafting(
        method=method, heads=3, draft=load_model("llama-3.2-1b") if method == "draft-model" else None
    )
    asked = Question(**{"batch_max": 300, "seq_len": (512,), **question})  # type: ignore[arg-type]
    return recommend(BASE.gpu, BASE.setting, drafting, profile or constant_rate(0.55), asked)


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
