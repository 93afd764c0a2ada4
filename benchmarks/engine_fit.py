"""Fits the terms of engines to published measurements; writes the errors to docs/validation-engines.md.

    python benchmarks/engine_fit.py            # writes the page: errors by source, by model, worst cells, bands
    python benchmarks/engine_fit.py --terms    # the fitted terms beside those in runtimes.toml

Every term has a prior, which decides where the rows do not. Priors were set with the rows in sight, so that
leaving out the only source of a version is no clean hold-out.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import deepseek_rows
import numpy as np
import pandas as pd
from engine_rows import Banded, Kernels, banded, kernels_of, published_rows
from pages import write_section
from recorded import data_folder
from scipy.optimize import OptimizeResult
from scores import left_out, table
from terms import Fitted, determined, print_terms, priors, solved, stored, terms_table, with_values

from medusa_sim.arrays import BoolArray, FloatArray
from medusa_sim.specs.engine import Engine
from medusa_sim.specs.runtime import load_runtime, runtime_names

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
PAGE = f"""# Published measurements of engines

Written by `python benchmarks/engine_fit.py`: step times, inter-token latencies and speedups of serving engines that others
published, beside the engine runtimes of `medusa-sim specs`. The measurements are not part of this project. {{rows}} cells fit
{{terms}} terms, each with a prior, {{determined}} of which the cells decide (the trace of H (H + P)^-1, H the curvature of the cells and P that
of the priors); *left out* predicts a source (of {SERVED}: a model) from a fit to all the others, *priors alone* from none.

**What this shows and what not.** A version that one source alone measures falls back to its priors when that source is left out,
and the priors were set after looking at it: only plain decoding by model and sources that share a version are clean hold-outs.
Some twenty forms were tried on the three served models. Contexts of PR 32374 and of the plain specdecode-bench rows, and prompt
lengths of {SERVED}, are assumptions; tokens per step of EAGLE-3 in specdecode-bench are those of the data set's EAGLE field.

{{sources}}
Plain decoding through the server, a model left out at a time:

{{models}}
Sign of speedup - 1 on published throughput ratios: {{signs}} of {{ratios}}. Speedups of vLLM err by {{vllm}} % in the mean ({{vllm_cells}} cells).
Wrong signs where 3 % or more are measured:

{{wrong}}
What the 80 % intervals hold, around predictions by the stored terms and by a fit without the row's group (*left out*: what to
expect of another set-up), and their half-widths. In a speedup half of what kernels and terms add up to counts (`RATIO_SHARE` of step/compose.py):
the share at which intervals hold 80 % of what is left out (0.5 to 0.7 with one source left out of the choice).

{{coverage}}
The bands of drafting in SGLang 0.4 are as wide as its sources err when left out (12 and 19 %). Its wrong signs stand against their own source: its EAGLE-3 rows gain at the same batches with a dearer drafter. The tokens of a round
are not in that source, and those of another one (EAGLE in pull request 32374) are taken for them; no term of its engine mends both.
The one of vLLM is a gain of 3 % on an A100 in an engine of 2024.

DeepSeek-R1 as served on four and eight GPUs (InferenceX, time per token, mean error with bias and worst cell; tokens of a round follow
from mean times between chunks, as `python benchmarks/deepseek_rows.py` explains). Six terms are fitted to the other groups: the share of
fitted experts that engines' own take, by how much the kernels of TensorRT-LLM 1.1 are slower than those of later versions, what experts spread over
GPUs cost, a pass of the drafter, what SGLang's pass over accepted tokens
costs in no graph, and prompts launched kernel by kernel where it drafts. *Priors*: the same terms before any row was seen. Every set-up counts once a
version; *newest runs*: the last run of each alone, by the shipped terms.

{{deepseek}}
{{by_version}}

{{served_terms}}
SGLang's rounds are one group: left out, nothing tells of what it launches in no graph. They ran FlashInfer's latent attention, which the
engine does not take by itself; at 64 requests 10 % are missing. Rounds in nvfp4 with experts spread over GPUs stay 10 % fast, in
every version: what the busiest of them has more than the mean is not modelled (docs/log.md).

AMD cards have no kernels of their own: they take an H100's efficiencies (the MI355X a B200's) at 1.5 times the time, as plain steps of SGLang
0.5.12 on eight MI300X ask. Either traffic's factor predicts the other's rows within 5 %. SGLang 0.5.9 took 10 ms a step longer there, up to 1.7
times as long in all; the bands of its steps reach 1.4 to 1.5 times:

{{borrowed}}
Versions do not transfer: sources priced with the terms of another version, which is what a version without measurements gets:

{{transfer}}
Worst cells of the fit:

{{worst}}
What the cells decide of each term; the prior is the rest. Terms of which they decide less than a third are not fitted:
they are another version's or nothing (a pass of V0 and of SGLang 0.4, V0's host, drafting beside passes where scheduling is asynchronous):

{{known}}
Sources contradict each other: a pass of EAGLE-3 takes 1.0 ms in issue 20780 (weighted down to 0.1) and 0.69 ms in specdecode-bench;
the EAGLE-3 paper asks 1.25 to 1.35 times more step time of EAGLE than its larger head explains; its SGLang overheads stop growing
above 32 requests, where kernels do not. On the A100 prompts of 550 tokens are inferred from times to the first token, and an fp8 cache
was measured at one request alone; SpecBundle does not say how many GPUs share Qwen3-30B (two fit its plain rate). No measurement was
available of draft models, or of vLLM after mid 2026.
"""
WRONG_FROM = 0.03
SIGMA = {"itl": 0.03, "step": 0.03, "ratio": 0.05}


TERMS = (
    Fitted(("vllm-0.8", "vllm-v0"), "host_us_per_step", 1000, 300),
    Fitted(("vllm-0.10", "vllm-0.14"), "host_us_per_step", 600, 250),
    Fitted(("vllm-0.11",), "host_us_per_step", 450, 250),
    Fitted(("vllm-0.14",), "hidden_us_per_step", 550, 270),
    Fitted(("vllm-0.10", "vllm-0.14"), "host_us_per_request", 10, 5),
    Fitted(("vllm-0.11",), "filter_bytes_per_logit", 900, 350),
    Fitted(("vllm-0.10",), "length_spread_share", 0.08, 0.08),
    Fitted(("vllm-0.8",), "draft_us_per_step", 1200, 400),
    Fitted(("vllm-0.10",), "draft_us_per_step", 600, 300),
    Fitted(("vllm-0.8", "vllm-v0"), "draft_us_per_pass", 720, 200),
    Fitted(("vllm-0.10", "vllm-0.14", "sglang-0.4"), "draft_us_per_pass", 565, 150),
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
    set_to = {
        (name, fitted.term): value
        for fitted, value in zip(TERMS, values, strict=True)
        for name in fitted.runtimes
    }
    set_to |= {place: set_to[of] for place, of in SHARED.items()}
    found = {}
    for name in runtime_names():
        engine = load_runtime(name).engine
        if engine is None:
            continue
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


def heldout_errors(rows: Sequence[Kernels]) -> FloatArray:
    """Errors of each group, a model of ML.ENERGY or a source, predicted from a fit to all others."""

    def kept(mask: BoolArray) -> list[Kernels]:
        return [row for row, keep in zip(rows, mask, strict=True) if keep]

    groups = [row.row.group for row in rows]
    return left_out(groups, lambda keep: fit(kept(keep)), lambda values, own: errors(values, kept(own)))


def error_table(rows: Sequence[Kernels], fitted: FloatArray, heldout: FloatArray) -> str:
    """Mean and worst errors by source."""
    frame = pd.DataFrame({"source": [row.row.source for row in rows], "runtime": [row.row.runtime for row in rows],
                          "cell": [row.row.cell for row in rows], "fit": 100 * fitted, "out": 100 * heldout,
                          "priors": 100 * errors(PRIOR, rows)})  # fmt: skip
    lines = []
    for (source, runtime), part in frame.groupby(["source", "runtime"], sort=False):
        worst = part.iloc[int(part.fit.abs().argmax())]
        lines.append((str(source), str(runtime), str(len(part)), f"{part.fit.abs().mean():.1f}", f"{part.fit.mean():+.1f}",
                      f"{worst.fit:+.1f} ({worst.cell})", f"{part.out.abs().mean():.1f}", f"{part.priors.abs().mean():.1f}"))  # fmt: skip
    headers = "source | runtime | cells | fit, mean % | bias % | worst cell | left out % | priors alone %"
    return table(headers, 2, lines)


def page(rows: Sequence[Kernels]) -> str:
    """The section `engines` of docs/validation-engines.md."""
    values = fit(rows)
    fit_errors, out = errors(values, rows), heldout_errors(rows)
    known = _solved(rows)
    models = []
    for group in dict.fromkeys(row.row.group for row in rows if row.row.source == SERVED):
        own = np.array([row.row.group == group and row.row.source == SERVED for row in rows])
        percent = 100 * np.abs(out[own])
        models.append((group, str(own.sum()), f"{percent.mean():.1f}", f"{percent.max():.1f}"))
    every = banded(rows, errors(stored(TERMS), rows), out)
    found = [one for one in every if one.kind == "speedup"]
    deepseek, served = deepseek_rows.compared(data_folder())
    ratios = [one for one in found if one.row.kind == "ratio"]
    signs = sum((one.measured > 1) == (one.predicted > 1) for one in ratios)
    wrong = [
        (
            one.row.source,
            one.row.cell,
            f"{one.measured:.2f}",
            f"{one.predicted:.2f}",
            "{:.2f} to {:.2f}".format(*one.interval),
        )
        for one in found
        if (one.measured > 1) != (one.predicted > 1) and abs(one.measured - 1) >= WRONG_FROM
    ]
    vllm = [abs(one.predicted / one.measured - 1) for one in found if one.row.runtime.startswith("vllm")]
    worst = [
        (rows[i].row.source, rows[i].row.cell, f"{100 * fit_errors[i]:+.1f}")
        for i in np.argsort(-np.abs(fit_errors))[:12]
    ]
    return PAGE.format(
        rows=len(rows),
        terms=len(TERMS),
        sources=error_table(rows, fit_errors, out),
        models=table("model | cells | left out, mean % | worst %", 1, models),
        deepseek=deepseek_rows.table_of(deepseek),
        served_terms=terms_table(deepseek_rows.TERMS, served),
        by_version=deepseek_rows.summary(deepseek),
        borrowed=deepseek_rows.borrowed_table(data_folder()),
        worst=table("source | cell | error %", 2, worst),
        transfer=transfer_table(rows),
        coverage=coverage_table(every),
        signs=signs,
        ratios=len(ratios),
        determined=f"{determined(TERMS, known)[0].sum():.1f}",
        known=terms_table(TERMS, known),
        vllm=f"{100 * np.mean(vllm):.1f}",
        vllm_cells=len(vllm),
        wrong=table("source | cell | measured | predicted | 80 %", 2, wrong),
    )  # fmt: skip


def coverage_table(found: Sequence[Banded]) -> str:
    """Share of steps and speedups in their intervals, by kind, and of speedups by source."""

    def line(name: str, part: Sequence[Banded]) -> tuple[str, ...]:
        held, left = ([one.holds(left_out=out) for one in part] for out in (False, True))
        width = np.mean([one.halves for one in part])
        shares = (f"{100 * np.mean(each):.0f}" for each in (held, left))
        return name, str(len(part)), f"{100 * width:.1f}", *shares

    kinds = {"plain": "all plain steps", "round": "all rounds", "speedup": "all speedups"}
    lines = [line(name, [one for one in found if one.kind == kind]) for kind, name in kinds.items()]
    speedups = [one for one in found if one.kind == "speedup"]
    sources = dict.fromkeys(one.row.source for one in speedups)
    lines += [line(name, [one for one in speedups if one.row.source == name]) for name in sources]
    return table("what | cells | half-width, mean % | held % | left out, held %", 1, lines)


def transfer_table(rows: Sequence[Kernels]) -> str:
    """Sources priced with another version's drafting terms: what a version without measurements gets."""
    engines = engines_of(stored(TERMS))
    lines = []
    for source, other in TRANSFERS:
        own = [row for row in rows if row.row.source == source]
        percent = np.array([100 * (row.predicted(engines[other]) / row.row.measured - 1) for row in own])
        lines.append(
            (source, own[0].row.runtime, other, f"{np.abs(percent).mean():.0f}", f"{percent.mean():+.0f}")
        )
    return table("source | measured on | priced as | mean % | bias %", 3, lines)


def main() -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--terms", action="store_true", help="print fitted terms beside those stored")
    parser.add_argument("--print", action="store_true", help="print the page instead of writing it")
    asked = parser.parse_args()
    rows = [kernels_of(row) for row in published_rows(data_folder())]
    if asked.terms:
        print_terms(TERMS, fit(rows))
    elif asked.print:
        print(page(rows))
    else:
        write_section("validation-engines.md", "engines", page(rows))


if __name__ == "__main__":
    main()
