r"""DeepSeek-R1 as served on four and eight GPUs (InferenceX), plain and with MTP: terms, errors, held out.

    python benchmarks/deepseek_rows.py            # errors, each engine, GPU and format held out
    python benchmarks/deepseek_rows.py --rows     # every row as well

Rows: the newest run of every set-up and version. Lengths are nine tenths of those stated, as random ones
around them are.

How many tokens a round emits is no column, but follows from means: requests that stream every tenth step
(TensorRT-LLM) or at every tenth token (SGLang, where a round meets it once in ten rounds) wait ten rounds
between two chunks on average, so that tau = mean ITL / mean TPOT / 10 but for the last, shorter chunk. Of
plain rows the same ratio is 1. Rows without means take the tau of rows of the same lengths and drafts;
medians are no help, since they lie between the modes. Drafts are those of the
recipes (benchmarks/single_node of github.com/SemiAnalysisAI/InferenceX): TensorRT-LLM 3, with data-parallel
attention 1; SGLang 2. They have graphs for steps with prompts at some numbers of requests
(`common/recipes.py`), and name the kernels of experts: fp8 ran DeepGEMM's wherever experts were spread
over GPUs, nvfp4 TensorRT-LLM's own, with data-parallel attention CUTLASS's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from common.measured_pairs import pairs_of
from common.recipes import UNSAID_BEFORE, graphs_hold_prompts, unsaid_split, with_graphed_prompts
from common.script import command_line
from common.study import left_out, mean_bias_worst, measured_rows, named_rows, table
from common.terms import Fitted, engine_of, print_terms, priors, solved, stored, terms_table, with_values
from scipy.optimize import OptimizeResult

import medusa_sim as ms
from medusa_sim.acceptance.heads import rates_of_mean
from medusa_sim.arrays import BoolArray, FloatArray
from medusa_sim.engines.runtime import Runtime, load_runtime
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.lab.validate import served

GPUS = {"b200": "b200", "h200": "h200-sxm"}
"""GPUs of the rows that have kernels here."""
BORROWING = {"mi300x": "mi300x"}
"""Those that borrow theirs: their rows fit how many times as long kernels take there (`Fit.slower`)."""
SETUP = [
    "gpu", "engine", "weights", "speculation", "tp", "ep", "dp_attention", "prompt_tokens", "output_tokens",
]  # fmt: skip
ENGINES = ("tensorrt-llm", "sglang")
OLDER = {"tensorrt-llm-1.1": ("tensorrt-llm", "2026-01-29"), "sglang-0.5.5": ("sglang", "2026-01-01")}
"""Versions with terms of their own, their engine, and the first runs of a later one (images 1.2 and 1.3 of
TensorRT-LLM; SGLang of 2026)."""
RUNTIMES = (*ENGINES, *OLDER)
ROUNDS = {"none": "plain", "mtp": "MTP"}
ROUNDS_A_CHUNK = 10.0
STATED_SHARE = 0.9
_PASS_US = (0.0, 300.0, 600.0, 900.0, 1500.0)
TERMS = (
    Fitted(("tensorrt-llm",), "draft_us_per_pass", 349.0, 200.0, _PASS_US, True),
    Fitted(("tensorrt-llm-1.1",), "draft_us_per_pass", 470.0, 200.0, _PASS_US, True),
    Fitted(("tensorrt-llm",), "prompt_us_per_launch", 70.0, 20.0, (0.0, 15.0, 30.0, 60.0, 100.0)),
    Fitted(("sglang",), "plan_us_per_pass", 4000.0, 4000.0, (0.0, 8000.0), True),
    Fitted(("sglang",), "prompt_us_per_launch", 60.0, 60.0, (0.0, 60.0, 90.0, 120.0, 160.0), True),
)
PRIOR, _ = priors(TERMS)
SIGMA = 0.08
LARGEST_WEIGHT = 8.0
"""Cells that a group counts as at most."""
BORROWING_SINCE = "2026-05-01"
"""SGLang 0.5.12; runs before it are of 0.5.9 (`BORROWING_BEFORE`)."""
BORROWING_BEFORE = "sglang-0.5.7"


def runtimes_of(values: FloatArray) -> dict[str, Runtime]:
    """The engines with these values of TERMS."""
    found = {}
    for name in RUNTIMES:
        names = (name, OLDER[name][0]) if name in OLDER else (name,)
        own = {
            each.term: value
            for each, value in zip(TERMS, values, strict=True)
            if not set(names).isdisjoint(each.runtimes)
        }
        found[name] = replace(launched(name), engine=with_values(engine_of(name), own))
    return found


def launched(name: str) -> Runtime:
    """A runtime as the recipes start it: SGLang with FlashInfer's latent attention on the H200."""
    runtime = load_runtime(name)
    return replace(runtime, backend="FLASHINFER_MLA") if runtime.library == "sglang" else runtime


def newest(cards: Iterable[str] = GPUS, *, versions: bool = False) -> pd.DataFrame:
    """The newest run of every set-up and concurrency on these GPUs, with its group and its runtime.

    versions: of each version, not of the newest alone.
    """
    rows = measured_rows("inferencex_deepseek_r1")
    rows = rows[rows.gpu.isin(list(cards))].reset_index(drop=True)
    for line in named_rows(rows[(rows.engine == "tensorrt-llm") & (rows.date < UNSAID_BEFORE)]):
        traffic = int(line.prompt_tokens), int(line.output_tokens)
        asked = "deepseek", GPUS[line.gpu], line.weights, int(line.tp), traffic, float(line.concurrency)
        rows.loc[line.Index, ["ep", "dp_attention"]] = unsaid_split(*asked)
    rows["runtime"] = rows.engine
    for version, (engine, later) in OLDER.items():
        rows.loc[(rows.engine == engine) & (rows.date < later), "runtime"] = version
    rows["graphed"] = [_is_graphed(line) for line in named_rows(rows)]
    cell = [*SETUP, "concurrency", *["runtime"] * versions]
    rows = rows.sort_values("date").groupby(cell, as_index=False).last()
    rows["shared"] = np.where(rows.dp_attention, "ep, dp attention", np.where(rows.ep > 1, "ep", "tp"))
    rows["group"] = rows.engine + ", " + rows.gpu + ", " + rows.weights + ", " + rows.shared
    return rows


def _is_graphed(line: Any) -> bool:
    """Whether the server of a row had graphs for steps that carry prompts."""
    return line.runtime == "tensorrt-llm" and graphs_hold_prompts(
        line.weights, (int(line.prompt_tokens), int(line.output_tokens)), line.concurrency,
        drafts=line.speculation != "none", is_spread=line.ep > 1, splits=bool(line.dp_attention),
    )  # fmt: skip


def drafts_of(engine: str, dp_attention: bool) -> int:
    """Drafts of a round by the recipes."""
    if engine == "sglang":
        return 2
    return 1 if dp_attention else 3


def tokens_per_round(rows: pd.DataFrame) -> FloatArray:
    """Tokens that a round of every row emits; 1 without drafts."""
    drafts = [drafts_of(str(line.engine), bool(line.dp_attention)) for line in named_rows(rows)]
    gaps = STATED_SHARE * rows.output_tokens / (rows.mean_itl_ms / rows.mean_tpot_ms)
    # the last chunk holds what is left of ten rounds: half of them, where chunks are alike
    shorter = np.where(rows.engine == "sglang", 0.25, 0.5)
    own = STATED_SHARE * rows.output_tokens / (gaps - shorter) / ROUNDS_A_CHUNK
    drafted = rows.speculation != "none"
    alike = [rows.engine, rows.prompt_tokens, rows.output_tokens, pd.Series(drafts, index=rows.index)]
    lent = own.where(drafted).groupby(alike).transform("mean")
    return np.asarray(own.fillna(lent).where(drafted, 1.0))


def _swept(line: Any, requests: list[int], runtimes: Mapping[str, Runtime], tokens: float) -> FloatArray:
    """(3, requests) milliseconds per token of a set-up, with the ends of their 80 % band."""
    prompt, output = STATED_SHARE * line.prompt_tokens, STATED_SHARE * line.output_tokens
    drafts = 0 if line.speculation == "none" else drafts_of(line.engine, bool(line.dp_attention))
    rates = f"{rates_of_mean(tokens, drafts)[0]:.9f}" if drafts else "0.8"
    runtime = runtimes[line.runtime]
    if line.graphed and runtime.engine is not None:
        runtime = replace(runtime, engine=with_graphed_prompts(runtime.engine))
    scenario = ms.Scenario(
        gpu=(GPUS | BORROWING)[line.gpu], model="deepseek-r1", runtime=runtime, drafter="mtp",
        acceptance=rates, tp=int(line.tp), ep=int(line.ep),
        dp_attention=bool(line.dp_attention), weight_dtype="nvfp4" if line.weights == "fp4" else None,
        prompt_tokens=prompt, output_tokens=output,
    )  # fmt: skip
    return served.token_ms(scenario, requests, drafts + 1)


def predicted(rows: pd.DataFrame, runtimes: Mapping[str, Runtime]) -> FloatArray:
    """Milliseconds per token of every row."""
    return np.asarray(banded(rows, runtimes)[0])


def banded(rows: pd.DataFrame, runtimes: Mapping[str, Runtime]) -> FloatArray:
    """(3, rows) milliseconds per token of every row, with the ends of their 80 % band."""
    if rows.tokens.isna().any():
        raise ValueError("rows without tokens per round cannot be priced; take them from all rows")
    found = np.empty((3, len(rows)))
    places = pd.Series(np.arange(len(rows)), index=rows.index)
    for _, part in rows.groupby([*SETUP, "runtime", "graphed", "tokens"]):
        line: Any = part.iloc[0]
        own = _swept(line, part.concurrency.tolist(), runtimes, float(line.tokens))
        found[:, places[part.index].to_numpy()] = own
    return found


def pairs() -> pd.DataFrame:
    """The newest run of every set-up and version as a pair (`common/measured_pairs.py`)."""
    rows = newest(versions=True)
    rows["tokens"] = np.round(tokens_per_round(rows), 6)
    time_ms, low, high = banded(rows, {name: launched(name) for name in RUNTIMES})
    drafts = rows.speculation != "none"
    return pairs_of(
        pd.DataFrame({
            "what": np.where(drafts, "time per token with MTP", "time per token"), "engine": rows.engine,
            "version": rows.image.str.extract(r":v?(\d+\.\d+\.\d+)", expand=False).fillna(""),
            "gpu": rows.gpu.map(GPUS), "weights": rows.weights.map({"fp8": "fp8_block", "fp4": "nvfp4"}),
            "gpus": rows.tp, "requests": rows.concurrency,
            "measured": rows.median_tpot_ms, "predicted": time_ms,
            "tokens": rows.prompt_tokens.astype(str) + " + " + rows.output_tokens.astype(str),
            "low": low, "high": high, "cell": rows.group,
        }),
        kind="served", model="deepseek-r1", fitted="yes", data="engines/inferencex_deepseek_r1.csv",
    )  # fmt: skip


class Priced:
    """Times of rows as sums of what each term adds, tabulated once so that many fits are cheap."""

    def __init__(self, rows: pd.DataFrame) -> None:
        """Tabulate every term over its GRID, the others as stored."""
        self.rows = rows
        kept = stored(TERMS)
        self._base = predicted(rows, runtimes_of(kept))
        self._added = []
        for place, fitted in enumerate(TERMS):
            named = rows.engine if set(OLDER).isdisjoint(fitted.runtimes) else rows.runtime
            own = named.isin(fitted.runtimes).to_numpy()
            if fitted.of_rounds:
                own = own & (rows.speculation == "mtp").to_numpy()
            times = np.zeros((len(fitted.grid), len(rows)))
            for point, value in enumerate(fitted.grid):
                values = kept.copy()
                values[place] = value
                times[point, own] = predicted(rows[own], runtimes_of(values)) - self._base[own]
            self._added.append(times)

    def times(self, values: FloatArray) -> FloatArray:
        """Milliseconds per token of every row at these values of TERMS."""
        time = self._base.copy()
        for fitted, value, added in zip(TERMS, values, self._added, strict=True):
            grid = np.asarray(fitted.grid)
            place = int(np.clip(np.searchsorted(grid, value) - 1, 0, grid.size - 2))
            weight = (value - grid[place]) / (grid[place + 1] - grid[place])
            time += (1.0 - weight) * added[place] + weight * added[place + 1]
        return time

    def errors(self, values: FloatArray) -> FloatArray:
        """Relative errors of the time per token."""
        return np.asarray(self.times(values) / self.rows.median_tpot_ms.to_numpy() - 1.0)

    def fit(self, given: BoolArray) -> OptimizeResult:
        """TERMS by these rows: least squares of log errors with priors; large groups weigh less."""
        groups = self.rows.group[given]
        size = np.maximum(groups.map(groups.value_counts()).to_numpy(), LARGEST_WEIGHT) / LARGEST_WEIGHT

        def residuals(values: FloatArray) -> FloatArray:
            return np.asarray(np.log1p(self.errors(values)[given]) / np.sqrt(size) / SIGMA)

        return solved(TERMS, residuals)


def compared() -> tuple[pd.DataFrame, OptimizeResult]:
    """(rows with errors by the stored terms, by priors, by a fit without their group; a fit to all)."""
    rows = newest(versions=True)
    rows["tokens"] = np.round(tokens_per_round(rows), 6)
    priced = Priced(rows)
    shipped = {name: launched(name) for name in RUNTIMES}
    rows["error"] = predicted(rows, shipped) / rows.median_tpot_ms - 1.0
    rows["priors"] = priced.errors(PRIOR)
    rows["left_out"] = left_out(rows.group, priced.fit, lambda found, own: priced.errors(found.x)[own])
    return rows, priced.fit(np.ones(len(rows), dtype=bool))


def table_of(found: pd.DataFrame) -> str:
    """Errors by group, plain and with MTP."""
    lines = []
    for (group, speculation), part in found.groupby(["group", "speculation"], sort=False):
        errors = (mean_bias_worst(part[name]) for name in ("error", "left_out", "priors"))
        last = part.groupby([*SETUP, "concurrency"]).runtime.transform("last") == part.runtime
        newest_run = f"{100 * part.error[last].abs().mean():.1f} of {last.sum()}"
        lines.append((group, ROUNDS[str(speculation)], len(part), *errors, newest_run))
    words = "engine, GPU, weights, shared by | rounds"
    return table(f"{words} | cells | shipped % | left out % | priors % | newest runs %", 2, lines)


def summary(found: pd.DataFrame) -> str:
    """Means of plain cells and of those with MTP, runs of the newest versions and older ones apart."""
    lines = []
    older = found.runtime.isin(list(OLDER))
    for (speculation, old), part in found.groupby(["speculation", older], sort=False):
        runs = "of older versions" if old else "of the newest versions"
        names = {"error": "shipped", "left_out": "left out", "priors": "priors"}
        means = ", ".join(f"{word} {100 * part[name].abs().mean():.1f} %" for name, word in names.items())
        lines.append(f"- {ROUNDS[str(speculation)]}, {len(part)} cells {runs}: {means}")
    return "\n".join(lines)


def borrowed_table() -> str:
    """GPUs that borrow their kernels: errors, and how much longer these take by each traffic."""
    rows = newest(BORROWING)
    rows = rows[rows.speculation == "none"].assign(tokens=1.0)
    runtimes = {name: launched(name) for name in (*ENGINES, BORROWING_BEFORE)}
    rows["own"] = rows.date >= BORROWING_SINCE
    rows["runtime"] = rows.runtime.where(rows.own, BORROWING_BEFORE)
    rows["error"] = predicted(rows, runtimes) / rows.median_tpot_ms - 1.0
    lines = []
    for (card, prompt, output, own), part in rows.groupby(["gpu", "prompt_tokens", "output_tokens", "own"]):
        inherited = load_gpu(BORROWING[str(card)]).kernels["sglang"].moe.values()
        stored_slower = max(kernel.fit.slower for kernel in inherited)
        asked = stored_slower * float(np.exp(-np.log1p(part.error).mean()))
        name = f"{card}, {prompt} + {output} tokens" + ("" if own else ", SGLang 0.5.9")
        factors = f"{stored_slower:g}", f"{asked:.2f}"
        lines.append((name, len(part), mean_bias_worst(part.error), *factors))
    return table("GPU, traffic | cells | shipped % | slower | slower by these cells", 1, lines)


def main() -> None:
    """Print errors, terms and, where asked, every row."""
    parser = command_line(__doc__)
    parser.add_argument("--rows", action="store_true", help="print every row")
    asked = parser.parse_args()
    found, fitted = compared()
    print(table_of(found))
    print(summary(found))
    print_terms(TERMS, fitted.x)
    print(f"\n{terms_table(TERMS, fitted)}")
    print(f"\n{borrowed_table()}")
    if asked.rows:
        names = "group speculation tokens tp prompt_tokens output_tokens concurrency date"
        percent = (100 * found[["error", "left_out"]]).round(1)
        print(found[names.split()].join(percent).to_string())


if __name__ == "__main__":
    main()
