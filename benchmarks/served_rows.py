r"""Plain decoding as servers were measured by others (serving/plain_serving): errors by engine, GPU, format.

    python benchmarks/served_rows.py             # mean error, bias, worst, what 80 % bands hold, their ends
    python benchmarks/served_rows.py --rows      # every cell as well

Rows: outputs of 500 tokens and more, a first token within 3 s, one replica. Requests are priced at the
lengths that a row names, as a user would ask (`medusa-sim sweep --runtime R --prompt-tokens P --output-
tokens N`). How a model was split is not always as a row says (`as_run`): experts that were spread were
exported with their groups multiplied into other numbers (`tp_size` 64 with `moe_ep_size` 8 is one server of
eight GPUs; `attention_dp_size` 64 with `batch_size` 4 is 256 requests), and before UNSAID_BEFORE results of
TensorRT-LLM name no groups at all, so that its recipes of that time tell (`common/recipes.py`). Left out: a
server whose prompts lay in its cache (vLLM 0.12 with an 8B: 8,000 tokens in 0.4 s at 48 requests).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from common.measured_pairs import pairs_of
from common.recipes import UNSAID_BEFORE, unsaid_split
from common.script import command_line
from common.study import measured, named_rows, table

from medusa_sim.lab.validate import served

GPUS = {"b200_sxm": "b200", "h200_sxm": "h200-sxm", "h100_sxm": "h100-sxm", "gb200": "gb200"}
MODELS = (
    "llama-3.1-70b", "llama-3.3-70b", "llama-3.1-8b", "gpt-oss-120b", "deepseek-v3", "deepseek-r1",
    "qwen3-32b",
)  # fmt: skip
SETUP = [
    "backend", "backend_version", "runtime", "system", "precision", "model_path", "isl", "osl", "gpus", "ep",
    "splits_attention",
]  # fmt: skip
GROUP = ["engine", "gpu", "weights", "model"]
LEAST_OUTPUT, LONGEST_WAIT_MS = 500, 3000.0
FUSED_FROM = "2026-01-01"
"""From that day on SGLang's rows of DeepSeek are 0.5.7's or later."""


def served_cells() -> pd.DataFrame:
    """The rows that are scored, `as_run`."""
    rows = pd.read_csv(measured("serving/plain_serving.csv"))
    scored = (rows.osl >= LEAST_OUTPUT) & (rows.ttft_mean_ms < LONGEST_WAIT_MS)
    cached = (rows.backend == "vllm") & rows.model_path.str.contains("Llama-3.1-8B")
    multiplied = rows.moe_ep_size.where(rows.moe_tp_size == rows.moe_ep_size, 1.0)
    of_one_server = rows.batch_size * rows.attention_dp_size.where(multiplied > 1.0, 1.0).fillna(1.0)
    kept = rows[scored & (of_one_server == rows.concurrency) & ~cached].reset_index(drop=True)
    return kept.join(as_run(kept))


def as_run(rows: pd.DataFrame) -> pd.DataFrame:
    """The runtime of every row, its GPUs, groups of experts, and whether attention is split over requests."""
    found = []
    for row in named_rows(rows):
        tp, ep, schedulers = int(row.tp_size), _count(row.moe_ep_size), _count(row.attention_dp_size)
        if ep > 1 and _count(row.moe_tp_size) == ep:
            tp, schedulers = max(1, tp // ep), max(1, schedulers // ep)
        gpus, splits, measured_on = tp * schedulers, schedulers > 1, str(row.measured)
        model = model_of(row.model_path)
        if row.backend == "trtllm" and measured_on < UNSAID_BEFORE:
            traffic = int(row.isl), int(row.osl)
            ep, splits = unsaid_split(model, GPUS[row.system], row.precision, gpus, traffic, row.concurrency)
        runtime = runtime_of(row.backend, str(row.backend_version), model, measured_on)
        found.append((runtime, gpus, min(ep, gpus), splits))
    return pd.DataFrame(found, columns=["runtime", "gpus", "ep", "splits_attention"], index=rows.index)


def _count(value: float) -> int:
    return int(value) if np.isfinite(value) and value > 0 else 1


def model_of(path: str) -> str:
    """The named model of a path on the hub."""
    return next(name for name in MODELS if name in path.lower())


def runtime_of(backend: str, version: str, model: str, measured_on: str) -> str:
    """The runtime of an engine and its version; where a row of DeepSeek names none, that of its day."""
    if backend == "vllm":
        return "vllm-0.11" if version.startswith(("0.11", "0.12")) else "vllm-0.15"
    is_unsaid = version == "nan" and model.startswith("deepseek")
    if backend == "sglang":
        return "sglang-0.5.5" if is_unsaid and measured_on < FUSED_FROM else "sglang-0.5"
    is_old = version.startswith(("1.0", "1.1")) or (is_unsaid and measured_on < UNSAID_BEFORE)
    return "tensorrt-llm-1.1" if is_old else "tensorrt-llm-1.2"


def set_up(row: Any) -> dict[str, Any]:
    """Arguments of the scenario of a row of `served_cells`."""
    model = model_of(row.model_path)
    arguments = {
        "gpu": GPUS[row.system],
        "model": model,
        "runtime": row.runtime,
        "tp": int(row.gpus),
        "ep": int(row.ep),
        "dp_attention": bool(row.splits_attention),
        "prompt_tokens": float(row.isl),
        "output_tokens": float(row.osl),
        "drafter": "ngram",
        "acceptance": "0.5",
    }
    if row.precision == "fp4" and not model.startswith("gpt-oss"):
        arguments |= {"dtype": "nvfp4"}
    elif row.precision == "fp8" and not model.startswith("deepseek"):
        arguments |= {"dtype": "fp8"}
    return arguments


def set_ups(rows: pd.DataFrame) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """Every set-up with its rows."""
    for _, own in rows.groupby(SETUP, dropna=False):
        yield set_up(own.iloc[0]), own


def scored(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with their set-ups, and what `lab/validate/served.py` finds of each."""
    runs = [
        own.assign(
            **{name: arguments.get(name) for name in served.SETUP}, prompt=own.isl, output=own.osl,
            engine=own.backend,
            requests=own.concurrency, drafts=0, acceptance_length=1.0, measured_ms=own.tpot_mean_ms,
        )
        for arguments, own in set_ups(rows)
    ]  # fmt: skip
    return served.compared(pd.concat(runs))


def pairs() -> pd.DataFrame:
    """Every cell as a pair (`common/measured_pairs.py`)."""
    cells = scored(served_cells())
    return pairs_of(
        cells.assign(
            version=cells.backend_version.fillna(""), gpu=cells.gpu, gpus=cells.tp,
            tokens=[f"{isl:g} + {osl:g}" for isl, osl in zip(cells.isl, cells.osl, strict=True)],
            engine=cells.engine.replace("trtllm", "tensorrt-llm"), dtype=cells.dtype.fillna(""),
            measured=cells.measured_ms, predicted=cells.predicted_ms, low=cells.low_ms, high=cells.high_ms,
            cell=cells.id,
        ),
        kind="served", what="time per token", fitted="yes", data="serving/plain_serving.csv",
    )  # fmt: skip


def group_table(cells: pd.DataFrame) -> str:
    """Errors by group, and what the bands hold."""
    lines = []
    for key, part in cells.groupby(GROUP):
        worst: Any = part.iloc[int(part.error.abs().argmax())]
        cell = f"(tp {worst.tp}, {worst.isl:.0f} + {worst.osl:.0f}, {worst.requests})"
        means = f"{100 * part.error.abs().mean():.1f}", f"{100 * part.error.mean():+.1f}"
        held = f"{100 * part.held.mean():.0f}"
        lines.append((*key, len(part), *means, f"{100 * worst.error:+.0f} {cell}", held))
    return table("engine | GPU | weights | model | cells | mean % | bias % | worst cell | held %", 4, lines)


def ends_table(cells: pd.DataFrame) -> str:
    """Cells beyond each end of their bands, by engine: on the slow one rests what `--sure 0.9` promises."""
    lines = [
        (engine, len(part), *(f"{100 * beyond.mean():.0f}" for beyond in (
            part.measured_ms > part.high_ms, part.measured_ms < part.low_ms,
        )))
        for engine, part in cells.groupby("engine")
    ]  # fmt: skip
    return table("engine | cells | slower than the slow end % | faster than the fast end %", 1, lines)


def main() -> None:
    """Print what was asked for."""
    parser = command_line(__doc__)
    parser.add_argument("--rows", action="store_true", help="print every cell as well")
    asked = parser.parse_args()
    cells = scored(served_cells())
    if asked.rows:
        print(cells.round(3).to_string())
    print(group_table(cells))
    print(ends_table(cells))
    cells["size"] = cells.error.abs()
    means = 100.0 * cells.groupby(GROUP)[["size", "held"]].mean()
    print(f"{len(cells)} cells: {100 * cells['size'].mean():.1f} %, bias {100 * cells.error.mean():+.1f} %")
    print(
        f"mean over {len(means)} groups: {means['size'].mean():.1f} %, bands hold {means.held.mean():.0f} %, "
        f"the least {means.held.min():.0f} %"
    )


if __name__ == "__main__":
    main()
