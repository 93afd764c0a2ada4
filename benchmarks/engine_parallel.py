"""Inter-token latency of models on several GPUs, and of mixtures of experts, beside a served engine.

    python benchmarks/engine_parallel.py

Nothing is fitted to these rows: kernels, experts and collectives come from their own measurements, what the
engine adds from dense models on one GPU. The rows are not part of this project (CONTRIBUTING.md): they lie in
$MEDUSA_SIM_DATA or ../shared/data. Expert parallelism over all GPUs stands as the file says; prompts are
assumed (`engine_rows.TYPICAL_PROMPTS`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from engine_rows import SERVED_MODELS, TYPICAL_PROMPTS
from recorded import data_folder, named_rows, present
from scores import table

from medusa_sim.plan.scenario import Scenario
from medusa_sim.plan.sweep import sweep
from medusa_sim.step.workload import Grid

MODELS = {
    **SERVED_MODELS,
    "meta-llama/Llama-3.1-70B-Instruct": "llama-3.1-70b",
    "Qwen/Qwen3-30B-A3B-Instruct-2507": "qwen3-30b-a3b",
}
LARGEST_BATCH = 600
"""Beyond it a server queues requests, which no row tells apart from its steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One row: microseconds, measured and predicted. experts: whether the model is a mixture of experts."""

    model: str
    gpus: int
    batch: float
    experts: bool
    measured_us: float
    predicted_us: float

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.predicted_us / self.measured_us - 1.0


def served(folder: Path) -> list[Served]:
    """Every row of more than one GPU or with experts, predicted as `sweep --candidates 1` does."""
    table = pd.read_csv(present(folder / "engines" / "plain_decode_mlenergy.csv"))
    experts = table.architecture == "MoE"
    table = table[((table.n_gpus > 1) | experts) & (table.avg_batch < LARGEST_BATCH)]
    return [_row(line) for line in named_rows(table)]


def _row(line: Any) -> Served:
    name, gpus, ep = MODELS[line.model], int(line.n_gpus), int(line.ep)
    prompt, output = TYPICAL_PROMPTS[line.task], round(line.avg_output_len)
    batch = round(line.avg_batch)
    scenario = Scenario(
        gpu="h100-sxm", model=name, runtime="vllm-0.11", drafter="ngram", acceptance="0.5", tp=gpus, ep=ep,
        prompt_tokens=prompt, output_tokens=output,
    )  # fmt: skip
    (rows,) = sweep([scenario], Grid.of([batch], [round(prompt + output / 2)], [1]))
    return Served(
        model=name,
        gpus=gpus,
        batch=batch,
        experts=scenario.model.experts is not None,
        measured_us=1e3 * line.median_itl_ms,
        predicted_us=float(rows.numbers["itl_us"][0]),
    )


def scores(rows: list[Served]) -> str:
    """Mean error, bias and worst row of each model and number of GPUs."""
    found = []
    for name, gpus in dict.fromkeys((row.model, row.gpus) for row in rows):
        own = [row for row in rows if (row.model, row.gpus) == (name, gpus)]
        errors = np.asarray([row.error for row in own])
        worst = own[int(np.abs(errors).argmax())]
        found.append(
            (name, str(gpus), str(len(own)), f"{np.abs(errors).mean():.1%}", f"{errors.mean():+.1%}",
             f"{worst.error:+.1%} at {worst.batch:.0f}")
        )  # fmt: skip
    return table("model | GPUs | rows | mean error | bias | worst, batch", 1, found)


if __name__ == "__main__":
    print(scores(served(data_folder())))
