r"""Speeds with speculation that engines' and vendors' own pages published: errors, signs, bands.

    python benchmarks/published.py            # errors by engine, drafter and quantity; four seconds
    python benchmarks/published.py --rows     # every row as well

Nothing was fitted to these rows: they say what a stranger's set-up gets. What a source leaves open is assumed
here, once for all rows: lengths in LENGTHS, the drafts and tokens of a round in DRAFTS and the profile that
ships, counts of trees as their code draws them. An assumed number of tokens a round widens a speedup's
interval by ASSUMED, one that is given by GIVEN.
"""

from __future__ import annotations

import argparse
import math
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from measured_pairs import format_of, pairs_of
from study import mean_bias_worst, measured_rows, named_rows, table

import medusa_sim as ms
from medusa_sim.errors import MedusaSimError
from medusa_sim.step.compose import overhead_halves
from medusa_sim.step.drafter.layer import Eagle, Eagle3, Mtp
from medusa_sim.step.step import decode_step, speculative_step

GIVEN, ASSUMED = 0.04, 0.15
"""80 % half-width of tokens a round, as they were given or as they are assumed."""
ENGINES = {"gpt-fast": "cuda-graph", "hf-eager": "hf-eager"}
"""Engines without versions, by the runtime that runs what they run."""
VERSIONS = (
    (r"0\.4\.x era|\b0\.4\.\d", "sglang-0.4"),
    (r"main 2025-03", "sglang-0.4"),
    (r"\bV0\b", "vllm-v0"),
    (r"main 2026|^2026", "sglang-0.5"),
)
"""Words of `version` that are no number, and what they mean; the first that fits."""
FORMATS: dict[str, dict[str, str | None]] = {
    "fp8": {"dtype": "fp8"},
    "fp16": {"dtype": "fp16"},
    "int4 weights": {"weight_dtype": "int4"},
    "int8 weights": {"weight_dtype": "int8"},
    "nvfp4": {"weight_dtype": "nvfp4"},
}
"""`precision` -> formats, where they are not the model's own."""
LENGTHS = (
    (r"1000/1000|1024/1024", (512, 512)),
    (r"1052/258", (1052, 258)),
    (r"342/281", (342, 281)),
    (r"250/220", (250, 220)),
    (r"5/200", (5, 200)),
    (r"ShareGPT", (250, 220)),
    (r"", (150, 350)),
)
"""`context` -> tokens of a prompt and an output; random lengths are half of the largest on average."""
DRAFTERS = {"sps": "draft-model", "pld": "ngram", "eagle2": "eagle"}
DRAFT_MODELS = {"vicuna-7b": "llama-68m", "llama-3.3-70b": "llama-3.2-1b", "llama-2-70b": "llama-2-7b"}
DRAFTS = {"best": 3, "10?": 10, "5?": 5, "6 tokens": 5, "11 tokens": 10}
TREES = {
    "2 steps topk4 4 tokens": (2, 4, 4),
    "tree, not given": (5, 8, 32),
    "tree 5-8-64": (5, 8, 64),
    "tree 8-?-?": (8, 8, 32),
    "tree 5-?-?": (5, 8, 32),
    "26 tokens": (5, 4, 26),
    "60 tokens": (6, 10, 60),
}
"""Levels, nodes that a pass reads, verified tokens."""
NGRAM_MATCH = 0.75
"""Share of the steps in which prompt look-up finds drafts on Spec-Bench: assumed."""


@dataclass(frozen=True, kw_only=True)
class Scored:
    """A row priced: milliseconds of plain steps and rounds, the speedup with its 80 % interval."""

    plain_ms: float
    round_ms: float
    speedup: float
    low: float
    high: float


def runtime_of(line: Any) -> str:
    """The runtime of a row by its engine's version."""
    if line.engine in ENGINES:
        return ENGINES[line.engine]
    version = str(line.version)
    for words, runtime in VERSIONS:
        if runtime.startswith(line.engine) and re.search(words, version):
            return runtime
    found = re.search(r"\d+\.\d+(\.\d+)?", version)
    return f"{line.engine}-{found[0]}" if found else str(line.engine)


def lengths_of(line: Any) -> tuple[int, int]:
    """Tokens of a prompt and of an output."""
    return next(lengths for words, lengths in LENGTHS if re.search(words, str(line.context)))


def tokens_of(line: Any) -> tuple[float | None, float]:
    """(tokens of a round, None where a profile says them; their half-width)."""
    if not math.isnan(line.acceptance_length):
        return float(line.acceptance_length), GIVEN
    found = re.search(r"\d+\.\d+", str(line.al_source))
    return (float(found[0]) if found else None), ASSUMED


def scenario_of(line: Any, **more: Any) -> ms.Scenario:
    """The set-up of a row."""
    drafter = DRAFTERS.get(line.drafter, line.drafter)
    given: dict[str, Any] = {
        "gpu": line.gpu, "model": line.model, "runtime": runtime_of(line), "tp": int(line.n_gpus),
        "drafter": "eagle3" if drafter == "none" else drafter,
        **FORMATS.get(line.precision, {}), **more,
    }  # fmt: skip
    if given["drafter"] == "draft-model":
        given["draft_model"] = DRAFT_MODELS[line.model]
        if line.engine == "hf-eager":
            given["draft_runtime"] = "hf-eager"
    if line.engine == "gpt-fast" and "weight_dtype" not in given:
        given["dtype"] = line.precision
    return ms.Scenario(**given)


def chain(line: Any) -> Scored:
    """A row of chains or of plain decoding, through the server."""
    tokens, width = tokens_of(line)
    prompt, output = lengths_of(line)
    drafts = 0 if line.drafter == "none" else int(DRAFTS.get(line.drafts, line.drafts))
    more: dict[str, Any] = {"prompt_tokens": prompt, "output_tokens": output}
    if not drafts:
        more["acceptance"] = "0.7"
    elif tokens is not None:
        more["acceptance"] = f"{min(tokens, drafts + 0.999):g}@{drafts}"
    if line.drafter == "pld":
        more["match_rate"] = NGRAM_MATCH
    scenario = scenario_of(line, **more)
    counts = [1, drafts + 1] if drafts else [1]
    found = scenario.sweep([int(line.batch)], prompt + output // 2, counts)
    plain, last = found.iloc[0], found.iloc[-1]
    tau = float(last.tokens_per_step)
    halves = (math.log(last.speedup / last.speedup_low), math.log(last.speedup_high / last.speedup))
    low, high = (float(np.hypot(half, width)) for half in halves)
    ratio = float(plain.tpot_us / last.tpot_us)
    return Scored(
        plain_ms=float(plain.tpot_us) / 1e3,
        round_ms=float(last.tpot_us) * tau / 1e3,
        speedup=ratio,
        low=ratio * math.exp(-low),
        high=ratio * math.exp(high),
    )


def tree(line: Any) -> Scored:
    """A row of a tree, whose step is priced alone."""
    tokens, width = tokens_of(line)
    assert tokens is not None
    prompt, output = lengths_of(line)
    scenario = scenario_of(line, acceptance="0.7", chain_only=False)
    depth, nodes, counts = TREES.get(line.drafts, (4, 1, 64))
    kinds: dict[str, Any] = {"eagle": Eagle, "eagle2": Eagle, "eagle3": Eagle3, "mtp": Mtp}
    if line.drafter == "medusa":
        drafter = scenario.options(counts)[-1].drafter
    else:
        drafter = kinds[line.drafter](depth=depth, width=nodes)
    setting = replace(
        scenario.setting, drafter=drafter, served_drafter=DRAFTERS.get(line.drafter, line.drafter)
    )
    batch, length = np.asarray(float(line.batch)), np.asarray(float(prompt + output // 2))
    plain = decode_step(setting, batch, length).cost
    step = speculative_step(setting, batch, length, np.asarray(counts)).cost
    low, high = (float(np.hypot(half, width)) for half in overhead_halves(step, plain).of_inverse)
    speedup = tokens * float(plain.time_us / step.time_us)
    return Scored(
        plain_ms=float(plain.time_us) / 1e3,
        round_ms=float(step.time_us) / 1e3,
        speedup=speedup,
        low=speedup * math.exp(-low),
        high=speedup * math.exp(high),
    )


def milliseconds(line: Any, rate: float, tokens: float) -> float:
    """A step's milliseconds from a rate of all requests; of each where the unit says so."""
    return 1e3 * float(line.batch) * tokens / rate


def compared() -> pd.DataFrame:
    """A line of every row and quantity: measured, predicted, error, and of speedups whether they hold."""
    found = []
    for line in named_rows(measured_rows("published_2026")):
        is_tree = line.drafts in TREES or line.drafter == "medusa"
        try:
            scored = tree(line) if is_tree else chain(line)
        except MedusaSimError as error:
            print(f"{line.id}: refused: {error}")
            continue
        tokens, _ = tokens_of(line)
        tells_rate = "tok/s" in str(line.unit)
        place = {"id": line.id, "engine": line.engine, "runtime": runtime_of(line), "drafter": line.drafter}
        place |= {
            "gpu": line.gpu,
            "model": line.model,
            "precision": line.precision,
            "gpus": int(line.n_gpus),
        }
        place |= {"requests": line.batch}
        if tells_rate and not math.isnan(line.plain) and "open loop" not in line.unit:
            measured = milliseconds(line, line.plain, 1.0)
            found.append({**place, "what": "plain", "measured": measured, "predicted": scored.plain_ms})
        round_ms = line.round_ms
        if math.isnan(round_ms) and tells_rate and not math.isnan(line.spec) and tokens is not None:
            round_ms = milliseconds(line, line.spec, tokens)
        if not math.isnan(round_ms) and not math.isnan(line.acceptance_length):
            found.append({**place, "what": "round", "measured": round_ms, "predicted": scored.round_ms})
        if not math.isnan(line.speedup):
            held = scored.low <= line.speedup <= scored.high
            found.append({
                **place, "what": "speedup", "measured": line.speedup, "predicted": scored.speedup,
                "held": held, "sign": (line.speedup > 1.0) == (scored.speedup > 1.0),
                "low": scored.low, "high": scored.high, "given": line.al_source == "given",
            })  # fmt: skip
    rows = pd.DataFrame(found)
    rows["error"] = rows.predicted / rows.measured - 1.0
    return rows


KINDS = {"plain": ("step", "plain step"), "round": ("round", "round"), "speedup": ("speedup", "speedup")}
"""What a line is -> kind of a pair, and what it is."""


def pairs() -> pd.DataFrame:
    """Every line as a pair (`measured_pairs.py`)."""
    rows = compared()
    formats = [
        str(form.get("weight_dtype") or form.get("dtype") or format_of(model))
        for form, model in zip(
            rows.precision.map(lambda name: FORMATS.get(name, {})), rows.model, strict=True
        )
    ]
    return pairs_of(
        rows.assign(
            kind=[KINDS[what][0] for what in rows.what], what=[KINDS[what][1] for what in rows.what],
            engine=rows.engine, version=rows.runtime.str.rpartition("-")[2], weights=formats, cell=rows.id,
        ),
        fitted="no", data="engines/published_2026.csv",
    )  # fmt: skip


def summary(rows: pd.DataFrame) -> str:
    """Errors by quantity, engine and drafter."""
    parts: list[tuple[Any, pd.DataFrame]] = [
        ((what, "all", ""), part) for what, part in rows.groupby("what", sort=False)
    ]
    parts += rows.groupby(["what", "engine", "drafter"], sort=True)
    lines = []
    for place, part in parts:
        is_speedup = place[0] == "speedup"
        held = f"{100 * part.held.astype(float).mean():.0f}" if is_speedup else ""
        signs = f"{int(part.sign.sum())} of {len(part)}" if is_speedup else ""
        lines.append((*place, len(part), mean_bias_worst(part.error), held, signs))
    return table("what | engine | drafter | cells | mean % (bias; worst) | held % | sign", 3, lines)


def main() -> None:
    """Print the table, and where asked every row."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", action="store_true", help="print every row")
    asked = parser.parse_args()
    rows = compared()
    print(summary(rows))
    if asked.rows:
        shown = rows.assign(error=(100 * rows.error).round(1)).round(3)
        print(
            shown.drop(
                columns=["engine", "drafter", "given", "gpu", "model", "precision", "gpus", "requests"]
            ).to_string()
        )


if __name__ == "__main__":
    main()
