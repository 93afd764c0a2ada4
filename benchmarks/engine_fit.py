"""Fits the terms of engines to published measurements; the errors stand in docs/validation-engines.md.

    python benchmarks/engine_fit.py            # errors by source, by model, worst, bands
    python benchmarks/engine_fit.py --write    # the same into the page
    python benchmarks/engine_fit.py --terms    # the fitted terms beside those in runtimes.toml

Every term has a prior, which decides where the rows do not. Priors were set with the rows in sight, so that
leaving out the only source of a version is no clean hold-out.
"""

from __future__ import annotations

from collections.abc import Sequence

import deepseek_rows
import numpy as np
import pandas as pd
from common.engine_rows import Kernels, banded, published_rows
from common.measured_pairs import PAIR_OF_STEP, joined, pairs_of
from common.pages import filled, write_section
from common.script import command_line
from common.study import left_out, named_rows, table
from common.terms import Fitted, determined, print_terms, priors, solved, stored, terms_table, with_values
from scipy.optimize import OptimizeResult

from medusa_sim.arrays import FloatArray
from medusa_sim.engines.engine import Engine
from medusa_sim.engines.runtime import load_runtime, runtime_names

SERVED = "ML.ENERGY"
TRANSFERS = (
    ("SGLang eagle", "vllm-0.10"),
    ("SGLang eagle3", "vllm-0.10"),
    ("SGLang eagle3", "vllm-0.8"),
    ("vLLM A100 eagle", "vllm-0.8"),
    ("vLLM A100 eagle3", "vllm-0.10"),
    ("PR 16937", "vllm-0.10"),
    ("PR 32374", "vllm-0.10"),
    ("specdecode-bench eagle3", "vllm-0.8"),
    ("specdecode-bench eagle3", "vllm-0.14"),
    ("specdecode-bench ngram", "vllm-0.14"),
)
WRONG_FROM = 0.03
SIGMA = {"itl": 0.03, "step": 0.03, "ratio": 0.05}
TERMS = (
    Fitted(("vllm-0.8", "vllm-v0"), "host_us_per_step", 1000, 300),
    Fitted(("vllm-0.10", "vllm-0.14"), "host_us_per_step", 600, 250),
    Fitted(("vllm-0.11",), "host_us_per_step", 450, 250),
    Fitted(("vllm-0.14",), "hidden_us_per_step", 550, 270),
    Fitted(("vllm-0.10", "vllm-0.14"), "host_us_per_request", 10, 5),
    Fitted(("vllm-0.11",), "filter_bytes_per_logit", 900, 350),
    Fitted(("vllm-0.8",), "draft_us_per_step", 1200, 400),
    Fitted(("vllm-0.10",), "draft_us_per_step", 600, 300),
    Fitted(("vllm-0.8", "vllm-v0"), "draft_us_per_pass", 720, 200),
    Fitted(("vllm-0.10", "vllm-0.14"), "draft_us_per_pass", 565, 150),
    Fitted(("sglang-0.4",), "draft_us_per_pass", 565, 150),
    Fitted(("vllm-0.10",), "draft_us_per_request", 18, 8),
    Fitted(("vllm-0.14", "vllm-0.24"), "draft_us_per_request", 18, 8),
    Fitted(("vllm-0.8",), "draft_us_per_request", 60, 40),
    Fitted(("sglang-0.4",), "draft_us_per_step", 1200, 500),
    Fitted(("sglang-0.4",), "draft_us_per_request", 60, 40),
    Fitted(("sglang-0.5",), "draft_us_per_step", 500, 300),
    Fitted(("sglang-0.5",), "tree_us_per_step", 500, 400),
    Fitted(("vllm-0.24",), "hidden_us_per_step", 500, 200),
    Fitted(("vllm-0.24",), "draft_us_per_pass", 400, 150),
    Fitted(("vllm-v0",), "host_us_per_request", 40, 30),
    Fitted(("vllm-v0",), "draft_us_per_step", 4000, 1500),
    Fitted(("vllm-v0",), "draft_us_per_request", 250, 100),
    Fitted(("vllm-0.10",), "lookup_us_per_request", 5, 5),
)
SHARED = {("vllm-0.10", "filter_bytes_per_logit"): ("vllm-0.11", "filter_bytes_per_logit"),
          ("sglang-0.4", "host_us_per_request"): ("vllm-0.10", "host_us_per_request")}  # fmt: skip
"""Terms that no row tells apart from another: they take its value."""
PRIOR, _ = priors(TERMS)


def engines_of(values: FloatArray) -> dict[str, Engine]:
    """Engines with fitted values, what they inherit from each other included."""
    set_to: dict[tuple[str | None, str], float] = {
        (name, fitted.term): value
        for fitted, value in zip(TERMS, values, strict=True)
        for name in fitted.runtimes
    }
    set_to |= {place: set_to[other] for place, other in SHARED.items()}
    found = {}
    for name in runtime_names():
        if (engine := load_runtime(name).engine) is not None:
            values_of = {
                key: set_to.get((name, key), set_to.get((term.inherited_from, key)))
                for key, term in engine.terms.items()
            }
            known = {key: value for key, value in values_of.items() if value is not None}
            found[name] = with_values(engine, known)
    return found


def predicted(values: FloatArray, rows: Sequence[Kernels]) -> FloatArray:
    """Predictions of rows, in their unit."""
    engines = engines_of(values)
    return np.array([row.predicted(engines[row.row.runtime]) for row in rows])


def fit(rows: Sequence[Kernels]) -> FloatArray:
    """Values of TERMS."""
    return np.asarray(_solved(rows).x)


def _solved(rows: Sequence[Kernels]) -> OptimizeResult:
    """Least squares of log errors with the priors, groups of many cells weighted down."""
    groups = pd.Series([row.row.group for row in rows])
    size = groups.map(groups.value_counts()).to_numpy()
    sigma = np.array([SIGMA[row.row.kind] for row in rows])
    weight = np.sqrt(8 / np.maximum(size, 8)) / sigma * np.array([row.row.weight for row in rows])
    measured = np.array([row.row.measured for row in rows])

    def residuals(values: FloatArray) -> FloatArray:
        return np.asarray(np.log(np.maximum(predicted(values, rows), 1e-9) / measured) * weight)

    return solved(TERMS, residuals)


def errors(values: FloatArray, rows: Sequence[Kernels]) -> FloatArray:
    """Relative errors."""
    return np.asarray(predicted(values, rows) / np.array([row.row.measured for row in rows]) - 1.0)


DATA = {
    "ML.ENERGY": "engines/plain_decode_mlenergy.csv",
    "PR ": "engines/issues_and_blogs.csv",
    "issue ": "engines/issues_and_blogs.csv",
    "specdecode-bench plain": "engines/specdecode_bench_tokens_per_s.csv",
    "specdecode-bench": "engines/specdecode_bench_speedups.csv",
    "SGLang eagle": "acceptance/batch_speedups_eagle.csv",
    "vLLM A100 eagle": "acceptance/batch_speedups_eagle.csv",
    "A100 ": "engines/vllm024_a100_eagle3.csv",
    "SpecBundle": "engines/specbundle_eagle3.csv",
    "nightly": "engines/plain_decode_misc.csv",
}
"""How a source begins -> its file of rows."""


def data_of(source: str) -> str:
    """The file of a source's rows."""
    return next(data for begins, data in DATA.items() if source.startswith(begins))


def pairs() -> pd.DataFrame:
    """Every step, round and speedup of the rows as a pair (`common/measured_pairs.py`), by stored terms."""
    rows = [Kernels(row) for row in published_rows()]
    found = banded(rows, errors(stored(TERMS), rows), np.full(len(rows), np.nan))
    names = found.runtime.str.rpartition("-")
    return joined(
        pairs_of(
            own.assign(
                engine=names[0], version=names[2].str.removeprefix("v"), gpu=own.gpu,
                gpus=own.tp, requests=own.batch,
                half_width=(own.low + own.high) / 2.0, data=own.source.map(data_of),
                cell=own.source + " " + own.cell,
            ).drop(columns=["low", "high"]),
            kind=kind, what=what, fitted="yes",
        )
        for step, own in found.groupby("kind", sort=False) for kind, what in [PAIR_OF_STEP[str(step)]]
    )  # fmt: skip


def page(rows: Sequence[Kernels]) -> str:
    """The section `engines` of docs/validation-engines.md."""
    known, every = _solved(rows), np.array(rows, dtype=object)
    out = left_out(
        [row.row.group for row in rows],
        lambda keep: fit(list(every[keep])),
        lambda values, own: errors(values, list(every[own])),
    )
    names = ["source", "runtime", "group", "cell"]
    cells = pd.DataFrame([[getattr(each.row, name) for name in names] for each in rows], columns=names)
    cells["fit"], cells["out"] = 100 * errors(known.x, rows), 100 * out
    cells["priors"] = 100 * errors(PRIOR, rows)
    by_model = cells[cells.source == SERVED].groupby("group", sort=False).out
    found = banded(rows, errors(stored(TERMS), rows), out)
    speedups = found[found.kind == "speedup"]
    wrong = speedups[(speedups.measured > 1) != (speedups.predicted > 1)]
    ratios = speedups.row_kind == "ratio"
    vllm = speedups[speedups.runtime.str.startswith("vllm")]
    deepseek, _ = deepseek_rows.compared()
    return filled(
        "engine_fit",
        rows=len(rows),
        terms=len(TERMS),
        sources=error_table(cells),
        models=table("model | cells | left out, mean % | worst %", 1, [
            (group, len(own), f"{own.abs().mean():.1f}", f"{own.abs().max():.1f}") for group, own in by_model
        ]),
        deepseek=deepseek_rows.table_of(deepseek),
        by_version=deepseek_rows.summary(deepseek),
        borrowed=deepseek_rows.borrowed_table(),
        transfer=transfer_table(rows),
        coverage=coverage_table(found),
        signs=ratios.sum() - wrong.row_kind.eq("ratio").sum(),
        ratios=ratios.sum(),
        determined=f"{determined(TERMS, known)[0].sum():.1f}",
        vllm=f"{100 * abs(vllm.predicted / vllm.measured - 1).mean():.1f}",
        vllm_cells=len(vllm),
        wrong=table("source | cell | measured | predicted | 80 %", 2, [
            (row.source, row.cell, f"{row.measured:.2f}", f"{row.predicted:.2f}",
             f"{row.predicted * np.exp(-row.low):.2f} to {row.predicted * np.exp(row.high):.2f}")
            for row in named_rows(wrong[(wrong.measured - 1).abs() >= WRONG_FROM])
        ]),
    )  # fmt: skip


def error_table(cells: pd.DataFrame) -> str:
    """Mean and worst errors by source."""
    lines = []
    for key, part in cells.groupby(["source", "runtime"], sort=False):
        worst = part.iloc[int(part.fit.abs().argmax())]
        sizes = part[["fit", "out", "priors"]].abs().mean()
        fitted = f"{sizes.fit:.1f}", f"{part.fit.mean():+.1f}", f"{worst.fit:+.1f} ({worst.cell})"
        lines.append((*key, len(part), *fitted, f"{sizes.out:.1f}", f"{sizes.priors:.1f}"))
    headers = "source | runtime | cells | fit, mean % | bias % | worst cell | left out % | priors alone %"
    return table(headers, 2, lines)


def coverage_table(found: pd.DataFrame) -> str:
    """Share of steps and speedups in their intervals, by kind, and of speedups by source."""
    kinds = {"plain": "all plain steps", "round": "all rounds", "speedup": "all speedups"}
    parts = [(name, found[found.kind == kind]) for kind, name in kinds.items()]
    parts += [(str(name), own) for name, own in parts[-1][1].groupby("source", sort=False)]
    return table("what | cells | half-width, mean % | held % | left out, held %", 1, [
        (name, len(part), f"{100 * part[['low', 'high']].to_numpy().mean():.1f}",
         *(f"{100 * part[each].mean():.0f}" for each in ("held", "held_out"))) for name, part in parts
    ])  # fmt: skip


def transfer_table(rows: Sequence[Kernels]) -> str:
    """Sources priced with another version's drafting terms: what a version without measurements gets."""
    engines = engines_of(stored(TERMS))
    lines = []
    for source, other in TRANSFERS:
        own = [row for row in rows if row.row.source == source]
        percent = np.array([100 * (row.predicted(engines[other]) / row.row.measured - 1) for row in own])
        sizes = f"{np.abs(percent).mean():.0f}", f"{percent.mean():+.0f}"
        lines.append((source, own[0].row.runtime, other, *sizes))
    return table("source | measured on | priced as | mean % | bias %", 3, lines)


def main() -> None:
    """Print what was asked for."""
    parser = command_line(__doc__, writes="`engines` of docs/validation-engines.md")
    parser.add_argument(
        "--terms", action="store_true", help="print fitted terms beside those stored and priors"
    )
    asked = parser.parse_args()
    rows = [Kernels(row) for row in published_rows()]
    if asked.terms:
        found = _solved(rows)
        print_terms(TERMS, found.x)
        print(f"\n{terms_table(TERMS, found)}")
        return
    text = page(rows)
    print(text)
    if asked.write:
        write_section("validation-engines.md", "engines", text)


if __name__ == "__main__":
    main()
