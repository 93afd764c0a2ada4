"""One catalogue: a quantity is declared once, has one title, and stands in the rows of every command."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import medusa_sim as ms
from medusa_sim.grid import quantities
from medusa_sim.grid import sweep as tables
from medusa_sim.grid.cells import price
from medusa_sim.grid.costs import watts_band
from medusa_sim.grid.quantities import values
from medusa_sim.grid.quantity import BY_NAME, Quantity, both_ends
from medusa_sim.load import quantities as of_runs
from medusa_sim.plan import quantities as of_plans
from medusa_sim.setups import quantities as of_setups

ROOMS = {"grid": (quantities, tables), "plan": (of_plans,), "load": (of_runs,), "setups": (of_setups,)}
DECLARED = [quantity for module, *_ in ROOMS.values() for quantity in module.DECLARED]
ROOT = Path(__file__).resolve().parents[2]
WHERE = {"gpu": "h100-sxm", "model": "llama-3.1-8b", "drafter": "eagle3"}
NEW = Quantity(
    name="tokens_per_step_and_draft", title="tokens/step/draft", better="more",
    read=lambda cells: cells.tokens_per_step / np.maximum(cells.drafts, 1),
    read_run=lambda run: 1.0 + run["accepted_drafts"],
)  # fmt: skip


def test_every_quantity_of_cells_is_listed_wherever_it_is_declared():
    code = "import medusa_sim.grid.quantities as _\nfrom medusa_sim.grid.quantity import with_unlisted\n"
    code += "assert not with_unlisted(()), with_unlisted(())"  # whatever else a command imports
    subprocess.run([sys.executable, "-c", code], check=True)


def test_names_and_titles_are_declared_once():
    names = [quantity.name for quantity in DECLARED]
    assert len(names) == len(set(names))
    headings: dict[str, set[str]] = {}
    for quantity in DECLARED:
        if quantity.title:
            headings.setdefault(quantity.title, set()).add(quantity.name.removeprefix("baseline_"))
    assert all(len(owners) == 1 for owners in headings.values()), headings


def test_no_module_types_a_title_again():
    """Words that are a name as well (`batch`, `speedup`) are keys; the others stand in one place."""
    headings = {text for each in BY_NAME.values() for text in (each.title, each.axis, each.phrase)}
    headings = {text for text in headings if not text.isidentifier()} - {"", "set-up", "80 %"}
    again = {}
    for folder in ("medusa_sim/plan", "medusa_sim/setups", "medusa_sim/report", "medusa_sim/load", "app"):
        for path in (ROOT / folder).rglob("*.py"):
            if path.name != "quantities.py":
                texts = (
                    node.value
                    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
                    if isinstance(node, ast.Constant)
                )
                found = headings & {text for text in texts if isinstance(text, str)}
                again |= {str(path.relative_to(ROOT)): found} if found else {}
    assert not again


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_lists_what_it_declares_itself(room):
    """So that rows of a command do not depend on which other rooms were imported."""
    lists = [
        value for module in ROOMS[room] for value in vars(module).values() if isinstance(value, tuple | dict)
    ]
    lists = [[*each, *(each.values() if isinstance(each, dict) else ())] for each in lists]
    named = {name for each in lists for name in each if isinstance(name, str)}
    read = {each.name for each in ROOMS[room][0].DECLARED if each.read is not None}
    assert read <= named


@pytest.fixture
def new(monkeypatch):
    monkeypatch.setitem(BY_NAME, NEW.name, NEW)
    return NEW


def test_a_new_quantity_stands_in_every_command(new, tmp_path):
    rows = ms.sweep(**WHERE, batch=[1, 8])
    assert (rows[new.name] == rows.tokens_per_step / np.maximum(rows.drafts, 1)).all()
    found = ms.recommend(batch=range(1, 9), **WHERE)
    first = found.schedule.iloc[0]
    assert first[new.name] == pytest.approx(first.tokens_per_step / first.drafts)
    assert json.loads(json.dumps(found.to_dict()["schedule"][0]))[new.name] == first[new.name]
    assert new.name in found.by_count
    assert getattr(found.at(1), new.name) == first[new.name]
    step = ms.Scenario(**WHERE).step(8, candidates=3)
    assert getattr(step, new.name) == pytest.approx(step.tokens_per_step / step.drafts)
    compared = ms.compare("llama-3.1-8b", gpus="h100-sxm", counts=1, engines="vllm", drafters="eagle3")
    assert compared.table[new.name].notna().all()
    load = ms.Scenario(**WHERE).simulate(["2"], rates=[1.0], requests=20, seeds=1, search=False)
    assert load.frame[new.name].iloc[0] > 1.0


@pytest.mark.parametrize(
    "line",
    [
        "sweep --gpu h100-sxm --model llama-3.1-8b --drafter eagle3 --batch 1,8",
        "recommend --gpu h100-sxm --model llama-3.1-8b --drafter eagle3 --batch 1..8",
        "compare --gpu h100-sxm --gpus 1 --model llama-3.1-8b --engine vllm --drafter eagle3",
        "load --gpu h100-sxm --model llama-3.1-8b --drafter eagle3 --policy 2 --rate 1 --requests 20 "
        "--seeds 1 --no-search",
    ],
)
def test_a_new_quantity_stands_in_every_table(new, line):
    from shlex import split

    from click.testing import CliRunner

    from medusa_sim.cli import cli

    result = CliRunner().invoke(cli, split(line), prog_name="medusa-sim")
    assert result.exit_code == 0, result.output
    assert new.title in result.stdout


@pytest.mark.parametrize("traffic", [{}, {"prompt_tokens": 1024, "output_tokens": 256}])
@pytest.mark.parametrize("gpu", ["h100-sxm", "b200"])
def test_every_interval_holds_its_value(gpu, traffic):
    scenario = ms.Scenario(**WHERE | {"gpu": gpu}, **traffic, tp=2)
    cells = price(scenario, [1, 16, 300], [scenario.length])
    for quantity in DECLARED:
        if quantity.low_high is not None:
            found = values(cells, [quantity.name, *both_ends(quantity.name)])
            value, low, high = (np.broadcast_to(each, cells.shape) for each in found.values())
            known = np.isfinite(value)
            assert (low[known] <= value[known]).all(), quantity.name
            assert (value[known] <= high[known]).all(), quantity.name
    limit = scenario.gpus * scenario.gpu.power.limit_watts
    assert (cells.server_steps.watts * watts_band(cells)[1] <= limit * (1.0 + 1e-9)).all()


def test_a_recommendation_tells_the_ends_of_what_it_promises():
    row = ms.recommend(batch=8, **WHERE, prompt_tokens=1024, output_tokens=256).to_dict()["schedule"][0]
    for name in ("itl_us", "tpot_us", "ttft_ms", "usd_per_million_tokens", "watts", "joule_per_token"):
        assert row[f"{name}_low"] < row[name] < row[f"{name}_high"], name
