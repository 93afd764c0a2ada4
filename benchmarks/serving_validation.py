r"""A server under Poisson load, simulated, beside public measurements of vLLM 0.15.1.

    python benchmarks/serving_validation.py               # means with the shipped terms, models held out
    python benchmarks/serving_validation.py --rows        # every row as well
    python benchmarks/serving_validation.py --write       # `serving` of docs/validation-engines.md

Rows that the server could not carry are left out. Every row is what this prints:

    medusa-sim load --policy none --runtime vllm-0.15 --gpu G --tp T --model M --rate R --prompt-tokens P \
        --output-tokens N --length-cv 0 --prefix-hit-rate H --max-num-seqs S --max-num-batched-tokens B

Held out: three terms of the runtime are fitted to the rows of every other model, by what the measured steps
and first tokens leave beside the kernels at the measured number of requests, and the model that was left out
is simulated with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from common.measured_pairs import joined, pairs_of
from common.pages import filled, write_section
from common.script import command_line
from common.study import mean_bias_worst, measured_rows, named_rows, table
from common.terms import with_values
from scipy.optimize import nnls

from medusa_sim.engines.runtime import Runtime, load_runtime
from medusa_sim.load.answer import run_load
from medusa_sim.load.load_test import LoadTest, load_test
from medusa_sim.load.point import LoadPoint
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.units import KILO, US_PER_MS

RUNTIME = "vllm-0.15"
BLOCK = 16
QUANTITIES = (
    ("TPOT", "tpot_mean_ms", "tpot_mean_s"),
    ("E2E", "e2e_mean_ms", "e2e_mean_s"),
    ("p99 E2E", "e2e_p99_ms", "e2e_p99_s"),
    ("TTFT", "ttft_mean_ms", "ttft_mean_s"),
)
"""Name, column of the measurement, metric of the simulation."""
COLD = "p99 E2E, cold server"
"""The slowest hundredth at a server's first rate: it stalls for seconds in its first minutes."""
TERMS = ("host_us_per_step", "server_us", "server_us_per_request")
OTHERS = (
    ("BLIS", "8.5 to 10.3", "the 88 cells of this server that it was calibrated on"),
    ("AIConfigurator", "21.5", "the same cells"),
    ("BLIS", "11.8", "its own 38 runs (pull request 944), of which AIConfigurator ran 19 and Vidur 4"),
)
"""Other simulators: name, mean error of E2E as it was published (%), on what."""


def served_rows() -> pd.DataFrame:
    """The rows that the server could carry."""
    return measured_rows("vllm015_serving").query("overloaded == 0").reset_index(drop=True)


def test_of(line: Any, runtime: Runtime, **more: Any) -> LoadTest:
    """The load of one row."""
    return load_test(
        Scenario(gpu=line.gpu, model=line.model, tp=int(line.tp), runtime=runtime, dtype=line.dtype),
        policies=("none",),
        prompt_tokens=float(line.prompt_tokens),
        output_tokens=float(line.output_tokens),
        length_cv=0.0,
        prefix_hit_rate=(line.prompt_tokens - 1) // BLOCK * BLOCK / line.prompt_tokens,
        max_num_seqs=int(line.max_num_seqs),
        max_num_batched_tokens=int(line.max_num_batched_tokens),
        **more,
    )


def simulated(line: Any, runtime: Runtime) -> LoadPoint:
    """One row at its rate, with the seeds and requests that `medusa-sim load` runs."""
    return run_load(test_of(line, runtime), [float(line.rate_per_s)], search=False).points[0]


def compared(table: pd.DataFrame, runtime: Runtime) -> pd.DataFrame:
    """A row of every measurement: relative errors, simulated over measured - 1, and whether bands hold it."""
    found = []
    for line in named_rows(table):
        point = simulated(line, runtime)
        row = {"model": line.model, "tp": line.tp, "rate": line.rate_per_s, "stage": line.stage}
        for name, theirs, ours in QUANTITIES:
            seconds = getattr(line, theirs) / KILO
            row[name] = point.mean[ours] / seconds - 1.0
            row[f"{name} s"] = seconds
            if "p99" not in ours:
                row[f"{name} low"], row[f"{name} high"] = low, high = point.band(ours)
                row[f"{name} held"] = low <= seconds <= high
        found.append(row)
    return pd.DataFrame(found)


def pairs() -> pd.DataFrame:
    """Every mean of every row as a pair (`common/measured_pairs.py`), by the shipped terms."""
    lines = served_rows()
    rows = compared(lines, load_runtime(RUNTIME))
    return joined(
        pairs_of(
            pd.DataFrame({
                "measured": rows[f"{name} s"], "predicted": rows[f"{name} s"] * (1.0 + rows[name]),
                **({"low": rows[f"{name} low"], "high": rows[f"{name} high"]} if "p99" not in ours else {}),
                "model": rows.model, "gpus": rows.tp, "gpu": lines.gpu, "weights": lines.dtype,
                "tokens": lines.prompt_tokens.astype(str) + " + " + lines.output_tokens.astype(str),
                "cell": [f"{rate:g}/s" for rate in rows.rate],
                "what": [COLD if "p99" in ours and stage == 0 else name for stage in rows.stage],
            }),
            kind="load", engine="vllm", version="0.15.1", fitted="yes",
            data="engines/vllm015_serving.csv",
        )
        for name, _, ours in QUANTITIES
    )  # fmt: skip


def left_beside(table: pd.DataFrame, runtime: Runtime) -> pd.DataFrame:
    """What measured steps and first tokens leave beside the kernels, microseconds."""
    assert runtime.engine is not None
    bare = replace(runtime, engine=with_values(runtime.engine, dict.fromkeys(TERMS, 0.0)))
    found = []
    for line in named_rows(table):
        test = test_of(line, bare, requests=200, seeds=1)
        steps = test.table
        requests = line.rate_per_s * (line.e2e_mean_ms - line.ttft_mean_ms) / KILO
        whole = int(requests)
        length = line.prompt_tokens + line.output_tokens / 2.0
        below, above = (steps.decoding_s(0, max(b, 1), length) for b in (whole, whole + 1))
        own_us = US_PER_MS * KILO * (below + (above - below) * (requests - whole))
        new = test.limits(0)
        chunk = (int(line.prompt_tokens - new.found_tokens(int(line.prompt_tokens))), int(line.prompt_tokens))
        prompt_us = US_PER_MS * KILO * steps.prompts_s(0, max(whole, 1), [chunk])
        tpot_us = US_PER_MS * line.tpot_mean_ms
        first_us = US_PER_MS * line.ttft_mean_ms
        beside_step_us = tpot_us - own_us - line.rate_per_s * tpot_us / 1e6 * prompt_us
        beside_first_us = (
            first_us - 2.5 * tpot_us - prompt_us
        )  # half of the step it comes in, the next, its own
        found.append((line.model, requests, tpot_us, beside_step_us, first_us, beside_first_us))
    columns = ["model", "requests", "step_us", "beside_step_us", "first_us", "beside_first_us"]
    return pd.DataFrame(found, columns=columns)


def robust(columns: Sequence[np.ndarray], wanted: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Coefficients from 0 up with the least absolute relative error (reweighted least squares)."""
    design, right = np.stack(columns, axis=1) / scale[:, None], wanted / scale
    weight = np.ones(right.size)
    for _ in range(50):
        root = np.sqrt(weight)
        found, _ = nnls(design * root[:, None], right * root)
        weight = 1.0 / np.maximum(np.abs(design @ found - right), 1e-3)
    return np.asarray(found)


def fitted(beside: pd.DataFrame, runtime: Runtime) -> Runtime:
    """The runtime with its three terms fitted to these rows."""
    assert runtime.engine is not None
    ones = np.ones(len(beside))
    requests, scale = beside.requests.to_numpy(), beside.step_us.to_numpy()
    step = robust([ones], beside.beside_step_us.to_numpy(), scale)
    first = robust([ones, requests], beside.beside_first_us.to_numpy(), beside.first_us.to_numpy())
    step = step + runtime.engine.hidden_us_per_step.value  # what shows beside it was fitted
    terms = dict(zip(TERMS, (*step, *first), strict=True))
    return replace(runtime, engine=with_values(runtime.engine, terms))


def held_out(table: pd.DataFrame, runtime: Runtime) -> pd.DataFrame:
    """`compared`, each model with terms that were fitted to the others."""
    beside = left_beside(table, runtime)
    return pd.concat(
        compared(table[table.model == model], fitted(beside[beside.model != model], runtime))
        for model in dict.fromkeys(table.model)
    )


def summary(rows: pd.DataFrame) -> str:
    """Mean, bias and worst of every quantity, in per cent, and the share that its 80 % band holds."""
    parts = []
    for name, *_ in QUANTITIES:
        band = f", {100 * rows[f'{name} held'].mean():.0f} % in band" if f"{name} held" in rows else ""
        parts.append(f"{name} {mean_bias_worst(rows[name])[:-1]}{band})")
    return f"n {len(rows):3d}  " + "  ".join(parts)


def by_part(others: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """The rows by model, and by when a rate was run: each run of a server had one rate, then another."""
    parts = [(f"{model}, held out", part) for model, part in others.groupby("model", sort=False)]
    last = others.stage > 0
    return [*parts, ("first rate of a run", others[~last]), ("second rate of a run", others[last])]


def page(shipped: pd.DataFrame, others: pd.DataFrame) -> str:
    """The section `serving` of docs/validation-engines.md."""
    parts = [("every model, shipped terms", shipped), ("every model, held out", others)]
    parts += by_part(others)
    names = [name for name, *_ in QUANTITIES]
    lines = [(told, len(part), *(mean_bias_worst(part[name]) for name in names)) for told, part in parts]
    published = table("simulator | E2E, mean % | on", 1, OTHERS)
    every = table(" | ".join(["models", "runs", *names]), 1, lines)
    served = served_rows()
    slowest = (served.e2e_p99_ms / served.e2e_p90_ms).groupby(served.stage > 0).mean()
    return filled(
        "serving_validation", table=every, others=published, rows=len(others),
        cold=f"{slowest[False]:.2f}", warm=f"{slowest[True]:.2f}",
    )  # fmt: skip


def main() -> None:
    """Print the means, what others published, and every row where asked."""
    parser = command_line(__doc__, writes="`serving` of docs/validation-engines.md")
    parser.add_argument("--runtime", default=RUNTIME, help="[%(default)s]")
    parser.add_argument("--rows", action="store_true", help="print every row")
    asked = parser.parse_args()
    runtime, table = load_runtime(asked.runtime), served_rows()
    assert runtime.engine is not None
    shipped, others = compared(table, runtime), held_out(table, runtime)
    if asked.write:
        write_section("validation-engines.md", "serving", page(shipped, others))
    print("mean error % (bias; worst), simulated over measured")
    print(f"{'shipped terms':16s} {summary(shipped)}")
    print(f"{'models held out':16s} {summary(others)}")
    for name, part in by_part(others):
        print(f"  {name.removesuffix(', held out'):20s} {summary(part)}")
    every = fitted(left_beside(table, runtime), runtime)
    assert every.engine is not None
    for name in TERMS:
        values = [getattr(engine, name).value for engine in (runtime.engine, every.engine)]
        print(f"{name}: shipped {values[0]:.0f}, fitted to every row {values[1]:.0f}")
    print("\n".join(f"{who}: E2E {what} %, {where}" for who, what, where in OTHERS))
    if asked.rows:
        names = [name for name, *_ in QUANTITIES]
        print((100 * others.set_index(["model", "tp", "rate"])[names]).round(1).to_string())


if __name__ == "__main__":
    main()
