"""Inter-token latency of models on several GPUs, and of mixtures of experts, beside a served engine.

    python benchmarks/engine_parallel.py

Nothing is fitted to these rows: kernels, experts and collectives come from their own measurements, what the
engine adds from dense models on one GPU. The rows are not part of this project (CONTRIBUTING.md): they lie in
$MEDUSA_SIM_DATA or ../shared/data. Expert parallelism over all GPUs stands as the file says; prompts are
assumed (`engine_rows.TYPICAL_PROMPTS`).
"""

from __future__ import annotations

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


def served(folder: Path) -> pd.DataFrame:
    """Every row of more than one GPU or with experts beside what `sweep --candidates 1` predicts: `error`."""
    table = pd.read_csv(present(folder / "engines" / "plain_decode_mlenergy.csv"))
    experts = table.architecture == "MoE"
    table = table[((table.n_gpus > 1) | experts) & (table.avg_batch < LARGEST_BATCH)]
    predicted_us = np.array([_predicted_us(line) for line in named_rows(table)])
    return table.assign(
        name=table.model.map(MODELS), experts=experts, error=predicted_us / (1e3 * table.median_itl_ms) - 1.0
    )


def _predicted_us(line: Any) -> float:
    prompt, output = TYPICAL_PROMPTS[line.task], round(line.avg_output_len)
    scenario = Scenario(
        gpu="h100-sxm", model=MODELS[line.model], runtime="vllm-0.11", drafter="ngram", acceptance="0.5",
        tp=int(line.n_gpus), ep=int(line.ep), prompt_tokens=prompt, output_tokens=output,
    )  # fmt: skip
    (rows,) = sweep([scenario], Grid.of([round(line.avg_batch)], [round(prompt + output / 2)], [1]))
    return float(rows.numbers["itl_us"][0])


def scores(rows: pd.DataFrame) -> str:
    """Mean error, bias and worst row of each model and number of GPUs, of dense models and of experts."""
    of_model = {
        (str(name), str(gpus)): own for (name, gpus), own in rows.groupby(["name", "n_gpus"], sort=False)
    }
    of_kind = {("experts" if kind else "dense", "all"): own for kind, own in rows.groupby("experts")}
    found = []
    for key, own in (of_model | of_kind).items():
        worst = own.iloc[int(own.error.abs().argmax())]
        found.append(
            (*key, str(len(own)), f"{own.error.abs().mean():.1%}", f"{own.error.mean():+.1%}",
             f"{worst.error:+.1%} at {worst.avg_batch:.0f}")
        )  # fmt: skip
    return table("model | GPUs | rows | mean error | bias | worst, batch", 1, found)


if __name__ == "__main__":
    print(scores(served(data_folder())))
