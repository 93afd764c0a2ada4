"""A full server, simulated, beside published measurements: writes a section of docs/validation-engines.md.

    python benchmarks/load_validation.py            # the page
    python benchmarks/load_validation.py --print    # the same to the terminal

Rows of the ML.ENERGY benchmark (leaderboard 3.0, vLLM 0.11.1 through its server, H100): `max_num_seqs` caps
the batch and the queue is never empty. They are not part of this project ($MEDUSA_SIM_DATA).
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from engine_fit import engines_of, fit
from engine_rows import PROMPT_CV, PROMPTS, SERVED_MODELS, kernels_of, published_rows
from pages import write_section
from recorded import data_folder, named_rows, present
from scores import mean_bias_worst, table

from medusa_sim.errors import MedusaSimError
from medusa_sim.load.arrivals import Drawn, Lengths
from medusa_sim.load.metrics import Metrics
from medusa_sim.load.simulate import LoadTest, Server
from medusa_sim.plan.scenario import Scenario
from medusa_sim.specs.runtime import Runtime, load_runtime

RUNTIME = "vllm-0.11"
ROUNDS = 8
"""Requests that follow each other in every slot."""
QUANTITIES = (
    ("tokens/s", "output_tok_s", "tokens_per_s", 1.0),
    ("median ITL", "median_itl_ms", "itl_p50_s", 1e3),
    ("p90 ITL", "p90_itl_ms", "itl_p90_s", 1e3),
)
"""Name, column of the measurement, metric of the simulation, factor to the column's unit."""
MIXTURES = {
    "Qwen/Qwen3-30B-A3B-Instruct-2507": "qwen3-30b-a3b",
    "Qwen/Qwen3-235B-A22B-Instruct-2507": "qwen3-235b-a22b",
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "openai/gpt-oss-20b": "gpt-oss-20b",
}
LARGER = {
    "meta-llama/Llama-3.1-70B-Instruct": "llama-3.1-70b",
    "meta-llama/Llama-3.3-70B-Instruct": "llama-3.3-70b",
}
PAGE = """# A full server

Written by `python benchmarks/load_validation.py`: a server that is always full, simulated with `medusa_sim.load`, beside ML.ENERGY's
measurements of vLLM 0.11.1 on H100s (leaderboard 3.0, `max_num_seqs` caps the batch, the queue is never empty). The measurements are
not part of this project.

**What this shows and what not.** Terms of the engine come from a fit that leaves the model out (`benchmarks/engine_fit.py`), so each
row of a dense model on one GPU is held-out; the form of the terms was chosen with all of them in sight. Rows on several GPUs and of
mixtures of experts were in no fit of an engine: they take the terms of one GPU as they are. Assumed, since the file has them not:
prompts of 240 tokens in the mean (lm-arena-chat: turns with their conversation before them, `engine_rows.PROMPTS`) and 250 (gpqa) with
coefficients of variation of 2 and 0.8, log-normal outputs with the one that goes with the
fitted `length_spread_share` (its square is twice that), no prefix found in the cache. {rounds} requests follow each other in every
slot. Errors are simulated over measured.

{summary}
{rows}
{left}"""


def left_out_runtimes() -> dict[str, Runtime]:
    """The runtime by model, from a fit to everything but that model; `""`: from a fit to everything."""
    rows = [kernels_of(row) for row in published_rows(data_folder())]
    found = {}
    for model in ("", *SERVED_MODELS.values()):
        values = fit([row for row in rows if row.row.group != model])
        found[model] = replace(load_runtime(RUNTIME), engine=engines_of(values)[RUNTIME])
    return found


def output_cv(runtime: Runtime) -> float:
    """Spread of output lengths that goes with the engine's `length_spread_share`, fitted to the same server.

    Requests in flight are longer than half their mean output by half of cv^2 of it.
    """
    assert runtime.engine is not None
    return float(np.sqrt(2.0 * runtime.engine.length_spread_share.value))


def simulated(line: Any, model: str, runtime: Runtime) -> Metrics:
    """The metrics of one row of the file."""
    scenario = Scenario(
        gpu="h100-sxm",
        model=model,
        runtime=runtime,
        drafter="ngram",
        acceptance=0.1,
        dtype="bf16",
        tp=int(line.n_gpus),
        ep=int(line.ep) if int(line.ep) > 1 else 1,
    )
    most = int(line.max_num_seqs)
    test = LoadTest(
        scenario=scenario,
        source=Drawn(
            lengths=Lengths(
                prompt_tokens=PROMPTS[line.task],
                output_tokens=float(line.avg_output_len),
                prompt_cv=PROMPT_CV[line.task],
                output_cv=output_cv(runtime),
            ),
            count=(ROUNDS + 2) * most,
            users=2 * most,
        ),
        policies=("none",),
        server=Server(max_requests=most),
        seeds=1,
    )
    return test.point(test.served[0], None).mean


def compared() -> tuple[pd.DataFrame, list[str]]:
    """(a row of every measurement that can be simulated with relative errors, why others are left out)."""
    table = pd.read_csv(present(data_folder() / "engines" / "plain_decode_mlenergy.csv"))
    table = table[table.dtype == "bfloat16"].drop_duplicates(
        ["model", "task", "n_gpus", "ep", "max_num_seqs"]
    )
    runtimes = left_out_runtimes()
    found, left = [], []
    for line in named_rows(table):
        model = {**SERVED_MODELS, **LARGER, **MIXTURES}.get(line.model)
        kind = "dense, one GPU" if line.n_gpus == 1 else "dense, several GPUs"
        if line.model in MIXTURES:
            kind = "mixtures of experts"
        if model is None:
            left.append(f"{line.model}: no such model is shipped")
            continue
        try:
            metrics = simulated(line, model, runtimes.get(model, runtimes[""]))
        except MedusaSimError as error:
            left.append(f"{model} on {line.n_gpus} GPUs: {error}")
            continue
        found.append(
            {
                "kind": kind,
                "model": model,
                "task": line.task,
                "GPUs": line.n_gpus,
                "batch": line.avg_batch,
                "in flight": metrics["requests_decoding"],
                **{name: metrics[ours] * unit / getattr(line, theirs) - 1.0
                   for name, theirs, ours, unit in QUANTITIES},
            }
        )  # fmt: skip
    return pd.DataFrame(found), list(dict.fromkeys(left))


def page(rows: pd.DataFrame, left: list[str]) -> str:
    """The section `load` of docs/validation-engines.md."""
    names = [name for name, *_ in QUANTITIES]
    lines = [
        (str(kind), str(len(part)), *(mean_bias_worst(part[name]) for name in names))
        for kind, part in rows.groupby("kind", sort=False)
    ]
    summary = table(" | ".join(["rows", "n", *(f"{name}, mean % (bias; worst)" for name in names)]), 1, lines)
    each = [
        (
            row["model"],
            row["task"],
            str(row["GPUs"]),
            f"{row['batch']:.0f}",
            *(f"{100 * row[n]:+.1f}" for n in names),
        )
        for _, row in rows.iterrows()
    ]
    single = table(" | ".join(["model", "task", "GPUs", "batch", *(f"{name} %" for name in names)]), 2, each)
    told = "".join(f"- left out: {line}\n" for line in left)
    return PAGE.format(rounds=ROUNDS, summary=summary, rows=single, left=told)


def main() -> None:
    """Write or print the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--print", action="store_true", help="print the page instead of writing it")
    text = page(*compared())
    if parser.parse_args().print:
        print(text)
    else:
        write_section("validation-engines.md", "load", text)


if __name__ == "__main__":
    main()
