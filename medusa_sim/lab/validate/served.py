"""Measured servers beside predictions: a CSV of runs, each with the set-up that it ran on.

Columns are those of a run as every reader takes them (`engine_runs/bench.py`: concurrency, prompt, output,
tpot_ms or itl_ms, drafts, acceptance_length) and of the set-up, named as the arguments of a scenario are:
gpu, model and runtime in every row, the others of SETUP where they differ from the default. Other columns
(source, note, ...) are kept. Each run is priced as `medusa-sim sweep` prices requests of its lengths.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.data import DataDir
from medusa_sim.doubts.standing import standing
from medusa_sim.engine_runs.bench import read_bench
from medusa_sim.engine_runs.bench_row import BenchRow
from medusa_sim.engines.accuracy_groups import weights_of
from medusa_sim.errors import DataError, MedusaSimError, shown
from medusa_sim.grid.cells import price
from medusa_sim.grid.configurations import at_counts
from medusa_sim.reading.files import named
from medusa_sim.reading.tables import numbered_csv_table
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.units import US_PER_MS

if TYPE_CHECKING:
    import pandas as pd

NEEDED = ("gpu", "model", "runtime")
SETUP = (*NEEDED, "weight_dtype", "dtype", "kv_dtype", "tp", "ep", "dp_attention", "drafter")
"""Columns of a set-up. ep: experts are split over so many GPUs. drafter: of a run with drafts."""
_WHOLE, _TRUE, _FALSE = ("tp", "ep"), ("true", "yes", "1", "1.0"), ("false", "no", "0", "0.0", "")
NOBODY = {"drafter": "ngram", "acceptance": "0.5"}
"""What a scenario of plain decoding is made with: nothing of it is priced."""
RUN = ("concurrency", "prompt", "output")
_SLACK = 1e-6
"""Tokens a step that are lost in writing a mean."""


def read_served(path: Path) -> pd.DataFrame:
    """The runs: columns of SETUP and RUN, drafts, acceptance_length, measured_ms (a token), and their others.

    Raises DataError naming file, line and column.
    """
    frame = numbered_csv_table(path, (*NEEDED, *RUN), text=SETUP)
    runs = read_bench(path)
    for name in SETUP:
        frame[name] = [
            _setup(name, value, f"{named(path)} line {line}")
            for line, value in zip(frame.index, frame.get(name, [None] * len(frame)), strict=True)
        ]
    for name in (*RUN, "drafts", "acceptance_length"):
        frame[name] = [getattr(run, name) for run in runs]
    frame["measured_ms"] = [_token_us(run) / US_PER_MS for run in runs]
    return frame.reset_index(drop=True)


def _token_us(run: BenchRow) -> float:
    return run.tpot_us if run.tpot_us is not None else run.step_us / run.acceptance_length


def _setup(name: str, value: Any, where: str) -> Any:
    """A cell of a set-up; None where it is empty. Raises DataError."""
    text = str(value).strip() if isinstance(value, str) else ""
    if name == "dp_attention":
        if text.lower() not in (*_TRUE, *_FALSE):
            raise DataError(f"{where}: dp_attention {shown(text)}; true or false is needed")
        return text.lower() in _TRUE
    if not text:
        if name in NEEDED:
            raise DataError(f"{where}: {name} is empty; every run names its {', '.join(NEEDED)}")
        return None
    if name not in _WHOLE:
        return text
    if not text.removesuffix(".0").isdecimal() or not 1 <= int(text.removesuffix(".0")) <= 1024:
        raise DataError(f"{where}: {name} {shown(text)}; a whole number from 1 to 1024 is needed")
    return int(text.removesuffix(".0"))


def scenario_of(run: Mapping[str, Any], data_dir: DataDir = None) -> Scenario:
    """The set-up of a run, with its requests."""
    given = {name: run[name] for name in SETUP if run.get(name) not in (None, False)}
    if drafts := _whole_drafts(run):
        length = min(float(run["acceptance_length"]), drafts + 1.0)
        given |= {"acceptance": f"{length:g}@{drafts}", "max_drafts": drafts, "chain_only": True}
    else:
        given |= NOBODY
    return Scenario(
        **given, prompt_tokens=float(run["prompt"]), output_tokens=float(run["output"]), data_dir=data_dir
    )


def _whole_drafts(run: Mapping[str, Any]) -> int:
    """Drafts a step: their mean, rounded, and no fewer than its accepted ones."""
    drafts = run.get("drafts", 0)
    return max(round(drafts), math.ceil(run["acceptance_length"] - 1.0 - _SLACK)) if drafts else 0


def compared(runs: pd.DataFrame, data_dir: DataDir = None) -> pd.DataFrame:
    """The runs with predicted_ms, low_ms and high_ms (80 %), error and held, and the class of their set-up.

    runs: as `read_served` gives them. error: predicted / measured - 1. class: what is new about the set-up
    beside the nearest one that was measured (`engines/nearness.py`), with expected_error, the mean error of
    such set-ups, and nearest, which it is. A set-up that cannot be priced has its reason in `refused`.
    """
    import pandas as pd

    parts = []
    keys = [*SETUP, "prompt", "output", "drafts", "acceptance_length"]
    for _, own in runs.groupby(keys, dropna=False, sort=False):
        (row,) = own.head(1).to_dict("records")  # as types of Python
        one: Any = {name: None if pd.isna(value) else value for name, value in row.items()}
        try:
            scenario = scenario_of(one, data_dir)
            parts.append(own.assign(**_priced(scenario, own.concurrency.to_numpy(), _whole_drafts(one) + 1)))
        except MedusaSimError as error:
            parts.append(own.assign(refused=str(error)))
    found = pd.concat(parts).sort_index()
    if "predicted_ms" in found:
        found["error"] = found.predicted_ms / found.measured_ms - 1.0
        found["held"] = (found.low_ms <= found.measured_ms) & (found.measured_ms <= found.high_ms)
    return found


def token_ms(scenario: Scenario, requests: Any, candidates: int) -> FloatArray:
    """(3, runs) milliseconds per token of the scenario's requests, with the ends of their 80 % band.

    requests: in flight, of each run. candidates: tokens that a step verifies, 1 without drafts.
    """
    batch = np.maximum(np.rint(requests), 1).astype(np.int64)
    sizes = np.unique(batch)
    options = at_counts(scenario.options(candidates), np.asarray([candidates])) if candidates > 1 else ()
    cells = price(scenario, sizes, [scenario.length], options).by_count
    ends = (cells.server.tpot_us * end / US_PER_MS for end in (np.ones(()), *cells.bands.token_us.ratios()))
    at = np.searchsorted(sizes, batch)
    return np.stack([np.broadcast_to(values, cells.shape)[at, 0, -1] for values in ends])


def _priced(scenario: Scenario, requests: Any, candidates: int) -> dict[str, Any]:
    """Milliseconds per token with their band, by run, and where the set-up stands."""
    near = standing(scenario)
    names = ("predicted_ms", "low_ms", "high_ms")
    return {
        **dict(zip(names, token_ms(scenario, requests, candidates), strict=True)),
        "class": near.kind, "expected_error": near.expected, "nearest": near.nearest,
        "weights": weights_of(scenario.model), "refused": "",
    }  # fmt: skip
