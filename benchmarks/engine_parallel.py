"""Inter-token latency of models on several GPUs, and of mixtures of experts, beside a served engine.

    python benchmarks/engine_parallel.py            # errors by model and number of GPUs; two seconds

Nothing is fitted to these rows: kernels, experts and collectives come from their own measurements, what the
engine adds from dense models on one GPU. Expert parallelism over all GPUs stands as the file says; prompts
are assumed (`engine_rows.TYPICAL_PROMPTS`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from common.engine_rows import SERVED_MODELS, TYPICAL_PROMPTS
from common.script import command_line
from common.study import measured_rows, named_rows, table

from medusa_sim.grid.axes import Grid
from medusa_sim.grid.sweep import sweep
from medusa_sim.scenario.scenario import Scenario

MODELS = {
    **SERVED_MODELS,
    "meta-llama/Llama-3.1-70B-Instruct": "llama-3.1-70b",
    "Qwen/Qwen3-30B-A3B-Instruct-2507": "qwen3-30b-a3b",
}
LARGEST_BATCH = 600
"""Beyond it a server queues requests, which no row tells apart from its steps."""


def served() -> pd.DataFrame:
    """Every row of more than one GPU or with experts beside what `sweep --candidates 1` predicts: `error`."""
    rows = measured_rows("plain_decode_mlenergy")
    rows["experts"] = rows.architecture == "MoE"
    rows = rows[((rows.n_gpus > 1) | rows.experts) & (rows.avg_batch < LARGEST_BATCH)]
    predicted_us = np.array([_predicted_us(line) for line in named_rows(rows)])
    return rows.assign(name=rows.model.map(MODELS), error=predicted_us / (1e3 * rows.median_itl_ms) - 1.0)


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
    parts: list[tuple[Any, pd.DataFrame]] = list(rows.groupby(["name", "n_gpus"], sort=False))
    parts += [(("experts" if kind else "dense", "all"), own) for kind, own in rows.groupby("experts")]
    found = []
    for key, own in parts:
        worst = own.iloc[int(own.error.abs().argmax())]
        errors = f"{own.error.abs().mean():.1%}", f"{own.error.mean():+.1%}"
        found.append((*key, len(own), *errors, f"{worst.error:+.1%} at {worst.avg_batch:.0f}"))
    return table("model | GPUs | rows | mean error | bias | worst, batch", 1, found)


if __name__ == "__main__":
    command_line(__doc__).parse_args()
    print(scores(served()))
