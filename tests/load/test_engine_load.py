"""What the engine lab's open load is predicted from: steps as they were timed, at the speed of the run."""

import argparse
import ast
import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import validate_engine
from engine_load import (
    BATCHES,
    DRAFTS,
    PROMPTS_BESIDE,
    at_speed,
    cell_sizes,
    latencies,
    page,
    plan_of,
    table_of,
)
from load_tables import limits, requests

from medusa_sim.load.policies import Fixed
from medusa_sim.load.scheduler import run

RATES = np.array([0.5, 0.3, 0.1])


def cells(slowness: float = 1.0) -> list[dict[str, Any]]:
    """Steps of 4 ms and 0.1 ms a request, half as long again with drafts; prompts of 48 tokens and more.

    A token of them takes 20 us, and they 0.3 ms beside others, 4 alone.
    """
    found: list[dict[str, Any]] = [{"row": "start"}]
    for drafts, factor in ((0, 1.0), (DRAFTS, 1.5)):
        common = {"drafts": drafts, "reference_us": 100.0 * slowness}
        for batch in BATCHES:
            time_us = slowness * factor * (4000 + 100 * batch)
            found.append({"row": "step", "batch": batch, "mean_us": time_us, **common})
        for tokens, batch in product((48, 96, 192), PROMPTS_BESIDE):
            time_us = slowness * (20 * tokens + (300 + factor * (4000 + 100 * batch) if batch else 4000))
            found.append({"row": "prompt", "batch": batch, "tokens": tokens, "mean_us": time_us, **common})
    return found


def test_the_table_is_what_was_timed_at_the_speed_of_the_run():
    disturbed = [{**row, "mean_us": 3 * row["mean_us"]} for row in cells() if "mean_us" in row]
    for slowness in (1.0, 1.7):  # a machine that was slow while its steps were timed
        timed = at_speed(cells(slowness) + disturbed + cells(), 100.0)
        plain, drafting = (table_of(timed, drafts, RATES) for drafts in (0, DRAFTS))
        assert plain.drafts_max == 0
        assert plain.decoding_s(0, 8, 60.0) == pytest.approx(4.8e-3)
        assert drafting.decoding_s(DRAFTS, 3, 60.0) == pytest.approx(1.5 * 4.3e-3)
        for table in (plain, drafting):
            assert table.decoding_s(0, 0, 0.0) + table.prompts_s(0, 0, [(96, 96)]) == pytest.approx(5.92e-3)
            assert table.prompts_s(16, 8, [(48, 48), (48, 48)]) == pytest.approx(2.22e-3)


def test_the_page_shows_predicted_beside_measured():
    table = table_of(at_speed(cells(), 100.0), 0, RATES)
    asked = requests([0.0, 0.01, 0.5], [48, 48, 48], [10, 20, 5])
    record = run(asked, table, limits(max_requests=32, token_budget=4000), Fixed(0))
    found = latencies(record.first_token_s, record.finish_s, asked)
    row = {"rate_per_s": 4.0, "method": "plain", "measured": found, "predicted": found,
           "measured_accepted": 0.0, "predicted_accepted": 0.9}  # fmt: skip
    assert "(+0 %)" in page([row], 0.7)
    assert "Mean errors: TTFT ms 0 %" in page([row], 0.7)


def test_plans_hold_what_the_engines_side_reads(tmp_path):
    """That side runs in another environment, an hour later in the worst case."""
    given = argparse.Namespace(threads=1, passes=2, batches=[1, 2], drafts=[1])
    models = Path(validate_engine.__file__).parent / "models"
    steps = validate_engine.steps_plan(given, models, validate_engine.TARGETS[0], 60.0)
    cells = plan_of(tmp_path, given, job="cells", **cell_sizes(vocab=256))
    load = plan_of(tmp_path, given, job="load", loads=[], reference_us=100.0)
    for plan, functions in (
        (steps, ("step_rows",)),
        (cells, ("step_rows", "prompt_rows")),
        (load, ("load_rows",)),
    ):
        assert read_by(functions) <= set(plan)


def read_by(functions: tuple[str, ...]) -> set[str]:
    """Keys of the plan that functions of the engine's side take."""
    source = (Path(validate_engine.__file__).parent / "engine" / "vllm_rows.py").read_text(encoding="utf-8")
    found = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name in functions
    ]
    assert len(found) == len(functions)
    return set(re.findall(r"plan\['(\w+)'\]", "".join(ast.unparse(node) for node in found)))
