r"""A server under Poisson load, simulated, beside public measurements of vLLM 0.15.1.

    python benchmarks/serving_validation.py               # a line a row, means by experiment

Rows of `engines/vllm015_serving.csv` ($MEDUSA_SIM_DATA), which are not part of this project; rows that the
server could not carry are left out. Every row is what this prints:

    medusa-sim load --policy none --runtime vllm-0.15 --gpu G --tp T --model M --rate R --prompt-tokens P \
        --output-tokens N --length-cv 0 --prefix-hit-rate H --max-num-seqs S --max-num-batched-tokens B
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import pandas as pd
from recorded import data_folder, named_rows

from medusa_sim.load.metrics import Metrics
from medusa_sim.load.question import answered, load_test
from medusa_sim.plan.scenario import Scenario
from medusa_sim.specs.runtime import Runtime, load_runtime

RUNTIME = "vllm-0.15"
BLOCK = 16
QUANTITIES = (
    ("TPOT", "tpot_mean_ms", "tpot_mean_s"),
    ("E2E", "e2e_mean_ms", "e2e_mean_s"),
    ("p99 E2E", "e2e_p99_ms", "e2e_p99_s"),
    ("TTFT", "ttft_mean_ms", "ttft_mean_s"),
)
"""Name, column of the measurement, metric of the simulation."""


def served_rows() -> pd.DataFrame:
    """The rows that the server could carry."""
    table = pd.read_csv(data_folder() / "engines" / "vllm015_serving.csv")
    return table[table.overloaded == 0].reset_index(drop=True)


def simulated(line: Any, runtime: Runtime | str = RUNTIME, **more: Any) -> Metrics:
    """The metrics of one row, over the seeds that `medusa-sim load` runs."""
    scenario = Scenario(gpu=line.gpu, model=line.model, tp=int(line.tp), runtime=runtime, dtype=line.dtype)
    test = load_test(
        scenario,
        policies=("none",),
        prompt_tokens=float(line.prompt_tokens),
        output_tokens=float(line.output_tokens),
        length_cv=0.0,
        prefix_hit_rate=(line.prompt_tokens - 1) // BLOCK * BLOCK / line.prompt_tokens,
        max_num_seqs=int(line.max_num_seqs),
        max_num_batched_tokens=int(line.max_num_batched_tokens),
        **more,
    )
    return answered(test, [float(line.rate_per_s)], search=False).points[0].mean


def compared(table: pd.DataFrame, runtime: Runtime | str = RUNTIME, **more: Any) -> pd.DataFrame:
    """A row of every measurement with relative errors, simulated over measured - 1."""
    found = []
    for line in named_rows(table):
        metrics = simulated(line, runtime, **more)
        errors = {
            name: 1e3 * metrics[ours] / getattr(line, theirs) - 1.0 for name, theirs, ours in QUANTITIES
        }
        found.append({"experiment": line.experiment, "model": line.model, "tp": line.tp, "gpu": line.gpu,
                      "rate": line.rate_per_s, **errors})  # fmt: skip
    return pd.DataFrame(found)


def main() -> None:
    """Print every row and the means."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runtime", default=RUNTIME)
    asked = parser.parse_args()
    table = served_rows()
    rows = compared(table, load_runtime(asked.runtime), requests=1000, seeds=1)
    names = [name for name, *_ in QUANTITIES]
    print((100 * rows.set_index(["model", "tp", "rate"])[names]).round(1).to_string())
    for kind, part in (("all", rows), *rows.groupby("model")):
        e = 100 * part[names]
        print(
            f"{kind:16s} n {len(part):3d}  "
            + "  ".join(f"{n} {np.abs(e[n]).mean():5.1f} ({e[n].mean():+.1f})" for n in names)
        )


if __name__ == "__main__":
    main()
