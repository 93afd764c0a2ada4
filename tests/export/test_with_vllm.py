"""Every exported vLLM setting, read by vLLM's own configuration code.

Needs an environment with vLLM: $MEDUSA_SIM_VLLM_PYTHON, or `.venv-vllm` in the project's folder.
"""

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest
from export_cases import answered, flags, heads_profile, plan_of

from medusa_sim.export.ab import ab_script
from medusa_sim.export.engines import engine_settings
from medusa_sim.scenario.acceptance import constant_rate

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path(os.environ.get("MEDUSA_SIM_VLLM_PYTHON", ROOT / ".venv-vllm" / "bin" / "python"))


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason="no environment with vLLM")
def test_vllm_takes_what_is_exported_and_drafts_what_was_planned():
    steep = answered("eagle3", constant_rate(0.85), seq_len=(64,), batch_max=512)
    answers = [
        steep, answered("eagle3", batch_max=64), answered("eagle", batch_max=64),
        answered("medusa", heads_profile(), batch_max=32), answered("draft-model", batch_max=8),
        answered("ngram", batch_max=32), answered("mtp", batch_max=8),
    ]  # fmt: skip
    plans, configs = [], []
    for answer in answers:
        settings = engine_settings(answer, "vllm", draft_path="d")
        plans.append(plan_of(settings))
        configs.append(json.loads(flags(settings.text)["--speculative-config"]))
    assert plans[0].dynamic
    words = shlex.split(ab_script(steep, engine_settings(steep, "vllm", draft_path="d")), comments=True)
    plans.append(plans[0])
    configs.append(json.loads(words[words.index("--speculative-config") + 1]))
    run = subprocess.run(
        [PYTHON, Path(__file__).with_name("vllm_accepts.py")], input=json.dumps(configs), capture_output=True,
        text=True, timeout=400, check=True,
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "")},
    )  # fmt: skip
    lines = [line.removeprefix("RESULT ") for line in run.stdout.splitlines() if line.startswith("RESULT ")]
    results = [json.loads(line) for line in lines]
    assert len(results) == len(configs)
    for config, plan, result in zip(configs, plans, results, strict=True):
        assert result["error"] == "", config
        assert result["method"] == config["method"]
        assert result["drafts"] == [plan.drafts_at(batch) for batch in range(1, len(result["drafts"]) + 1)]
