"""What the engine lab's open load is predicted from: the steps of the other loads."""

import argparse
import ast
import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import validate_engine
from engine_load import (
    BATCHES,
    DRAFTS,
    LENGTHS,
    WARM_PASSES,
    compared,
    counted,
    held_out,
    page,
    plan_of,
    ramp,
    table_of,
)
from load_tables import limits

from medusa_sim.load.policies import Fixed
from medusa_sim.load.requests import Requests
from medusa_sim.load.serving_loop import run
from medusa_sim.load.sources import open_loop

RATES = np.array([0.5, 0.3, 0.1])


def seconds(batch: int, tokens: int, drafts: int) -> float:
    """Of a step: 4 ms and 0.1 a request, half as long again with drafts; 0.3 ms and 20 us a prompt token."""
    decoding = (1.5 if drafts else 1.0) * (4e-3 + 1e-4 * batch) if batch else 5e-3
    return decoding + (3e-4 + 2e-5 * tokens if tokens else 0.0)


def steps(drafts: int) -> np.ndarray:
    """Steps of every batch, with and without prompts."""
    found = [
        (batch, tokens) for batch in range(max(BATCHES) + 1) for tokens in (0, 48, 96, 192) if batch or tokens
    ]
    return np.array([(batch, tokens, seconds(batch, tokens, drafts)) for batch, tokens in found])


def rows(asked: Requests) -> list[dict[str, Any]]:
    """What the engine's side writes of a machine that keeps to these times, but in the pass that warms up."""
    found: list[dict[str, Any]] = [{"row": "start"}]
    for number, drafts in product(range(3), (0, DRAFTS)):
        table = table_of(steps(drafts), drafts, RATES)
        result = run(asked, table, limits(max_requests=max(BATCHES), token_budget=4000), Fixed(drafts))
        factor = 1.7 if number < WARM_PASSES else 1.0
        common = {"row": "load", "pass": number, "drafts": drafts, "method": "draft" if drafts else "plain",
                  "reference_us": 1e6, "steps": (steps(drafts) * [1, 1, factor]).tolist(),
                  "accepted": 9, "drafting": 10}  # fmt: skip
        found.append({"load": "ramp", **common})
        found.append({"load": "65%", **common, "first_token": (factor * result.first_token_s).tolist(),
                      "finish": (factor * result.finish_s).tolist()})  # fmt: skip
    return found


def test_a_table_is_the_steps_that_were_taken():
    for drafts in (0, DRAFTS):
        table = table_of(steps(drafts), drafts, RATES)
        assert table.drafts_max == drafts
        for batch in (1, 3, 8, 32):
            assert table.decoding_s(drafts, batch, 60.0) == pytest.approx(seconds(batch, 0, drafts))
        assert table.prompts_s(drafts, 8, [(48, 48), (48, 48)]) == pytest.approx(2.22e-3)
        alone = table.decoding_s(0, 0, 0.0) + table.prompts_s(0, 0, [(96, 96)])
        assert alone == pytest.approx(seconds(0, 96, drafts))


def test_a_load_is_predicted_from_the_others_and_a_pass_that_warms_up_does_not_count():
    asked = open_loop(80.0, LENGTHS, count=60, most=200)
    found = rows(asked)
    assert len(counted(found, "ramp", 0)) == 2
    assert held_out(found, "65%", 0, RATES).decoding_s(0, 8, 60.0) == pytest.approx(4.8e-3)
    made = compared(found, {"65%": asked}, RATES, 0.0)
    assert [row["method"] for row in made] == ["plain", "draft"]
    for row in made:
        assert row["predicted"] == pytest.approx(row["measured"])
    assert "Mean errors: TTFT ms 0 %" in page(made, 0.7)


def test_the_ramp_runs_every_batch():
    """A second for a step, with drafts too, where requests end sooner."""
    every = np.array([(batch, tokens, 1.0) for batch, tokens, _ in steps(0)])
    for drafts in (0, DRAFTS):
        result = run(
            ramp(),
            table_of(every, drafts, RATES / 2),  # 0.45 accepted, as the shipped pair
            limits(max_requests=max(BATCHES), token_budget=4000),
            Fixed(drafts),
        )
        times = np.concatenate([result.first_token_s, result.finish_s])
        running = np.cumsum(np.repeat([1, -1], result.finish_s.size)[np.argsort(times, kind="stable")])
        assert set(range(1, max(BATCHES) + 1)) <= set(running.tolist())


def test_plans_hold_what_the_engines_side_reads(tmp_path):
    """That side runs in another environment, an hour later in the worst case."""
    given = argparse.Namespace(threads=1, passes=2, batches=[1, 2], drafts=[1])
    models = Path(validate_engine.__file__).parent / "models"
    planned = validate_engine.steps_plan(given, models, validate_engine.TARGETS[0], 60.0)
    load = plan_of(tmp_path, 1, 2, {"65%": ramp()})
    for plan, function in ((planned, "step_rows"), (load, "load_rows")):
        assert read_by(function, "plan") <= set(plan)
    assert read_by("load_rows", "run") <= set(load["loads"][0])


def read_by(function: str, table: str) -> set[str]:
    """Keys of a table that a function of the engine's side takes."""
    source = (Path(validate_engine.__file__).parent / "engine" / "vllm_rows.py").read_text(encoding="utf-8")
    (found,) = (
        node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == function
    )
    return set(re.findall(table + r"\['(\w+)'\]", ast.unparse(found)))
