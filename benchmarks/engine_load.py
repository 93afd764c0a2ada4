"""A real engine under open load beside the simulator: `python benchmarks/engine_load.py OUT`.

vLLM on this CPU serves the shipped pair (plain, and with a chain of its draft model) under Poisson arrivals at
three rates. First its steps are timed by batch, and its steps that read prompts; from these and from the
acceptance of other prompts `medusa_sim.load` predicts the runs that follow. So the scheduler, the queue and the
acceptance by position are tested, and not the price of a step, which `make validate-engine` scores.

Writes OUT/validation-engine-load.md and OUT/engine-load.json. Some ten minutes of one core.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent / "engine"))
from agreement import walked_draft
from validate_engine import CHECKPOINT, DRAFT, NGRAM, ROOT, run_engine, shipped_prompts, write_model

from medusa_sim.acceptance.engine_counters import counts_of_listed, request_spread
from medusa_sim.decoder.checkpoint import load_checkpoint
from medusa_sim.decoder.generate import GenerationSettings, generate
from medusa_sim.load.arrivals import Lengths, open_loop
from medusa_sim.load.limits import Limits
from medusa_sim.load.policies import Fixed
from medusa_sim.load.requests import Requests, checked_requests
from medusa_sim.load.scheduler import run
from medusa_sim.load.step_table import StepTable
from medusa_sim.writing import write_text

DRAFTS = 3
BATCHES = (1, 2, 4, 8, 16, 32)
BESIDE = 8
PROMPTS_AT_ONCE, PROMPTS_BESIDE = (1, 2, 4), (0, BESIDE)
PROMPT_TOKENS, MAX_TOKENS = 48, 256
OUTPUT_TOKENS = 64
GROWN_TOKENS = 24
"""Of a request before steps are timed, so that it is then as long as those that are served in the mean."""
SHARES = (0.35, 0.65, 0.85)
"""Rates, as shares of what plain decoding carries."""
REQUESTS = 150
PASSES, LOAD_PASSES, WARM_PASSES = 8, 4, 1
"""Over the cells; over the loads, of which the first is not kept: kernels see its shapes for the first time."""
BESIDE_EVERY = 8
"""Steps between two runs of the reference, timed or serving: it empties the cache that this small model lies in."""
US = 1e-6


def at_speed(rows: list[dict[str, Any]], reference_us: float) -> list[dict[str, Any]]:
    """One row a cell, as it would be where the reference takes so long: of its passes the median.

    Of a pass the mean: a load adds its steps up, the slow ones too.
    """
    ratios: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        if row["row"] in ("step", "prompt"):
            cell = (row["row"], row["drafts"], row["batch"], row.get("tokens", 0))
            ratios.setdefault(cell, []).append(row["mean_us"] / row["reference_us"])
    return [
        {"row": kind, "drafts": drafts, "batch": batch, "tokens": tokens,
         "time_us": statistics.median(found) * reference_us}
        for (kind, drafts, batch, tokens), found in ratios.items()
    ]  # fmt: skip


def table_of(cells: list[dict[str, Any]], drafts: int, rates: np.ndarray) -> StepTable:
    """A table of measured steps of the server with so many drafts, which runs no others; between batches linear.

    A step that reads prompts takes longer than the same step without by a line through those that were timed
    beside BESIDE requests; one of prompts alone by the same, and what is left of it. Lengths are those that
    requests have when they are served.
    """
    every, tokens = np.arange(1, max(BATCHES) + 1), np.arange(4096)
    own = [row for row in cells if row["drafts"] == drafts]
    steps_us = dict(sorted((row["batch"], row["time_us"]) for row in own if row["row"] == "step"))
    read = {place: {row["tokens"]: row["time_us"] for row in own if row["row"] == "prompt" and row["batch"] == place}
            for place in PROMPTS_BESIDE}  # fmt: skip
    alone_us, beside_us = read[0], {count: us - steps_us[BESIDE] for count, us in read[BESIDE].items()}
    slope, base = np.polyfit(list(beside_us), list(beside_us.values()), 1)
    linear_us = np.where(tokens, max(base, 0.0) + max(slope, 0.0) * tokens, 0.0)
    step_us = np.empty((drafts + 1, every.size + 1, 2))
    step_us[:, 1:] = np.interp(every, list(steps_us), list(steps_us.values()))[:, None]
    step_us[:, 0] = max(np.mean([us - linear_us[count] for count, us in alone_us.items()]), 0.0)
    return StepTable(
        lengths=np.array([1.0, float(MAX_TOKENS)]),
        step_s=US * step_us,
        linear_s=US * linear_us,
        chunk_tokens=np.array([1.0, 4096.0]),
        chunk_ends=np.array([1.0, 4096.0]),
        attention_s=np.zeros((2, 2)),
        drafter_prompt_s=np.zeros(tokens.size),
        rates=rates[:drafts],
        drafting_share=np.zeros((drafts + 1, every.size + 1)),
        idle_share=np.zeros(every.size + 1),
        prompts_apart=True,
    )


def latencies(first: np.ndarray, finish: np.ndarray, asked: Requests) -> dict[str, float]:
    """Means in milliseconds, and tokens a second."""
    output = asked.output_tokens
    tpot = (finish - first) / np.maximum(output - 1, 1)
    return {
        "TTFT ms": 1e3 * float((first - asked.arrival_s).mean()),
        "TPOT ms": 1e3 * float(tpot.mean()),
        "p90 TPOT ms": 1e3 * float(np.quantile(tpot, 0.9)),
        "tokens/s": float(output.sum()) / float(finish.max()),
    }


def plan_of(work: Path, given: argparse.Namespace, **job: Any) -> dict[str, Any]:
    """A plan for `engine/run_vllm.py`."""
    return {
        "target": str(work / "target"),
        "draft": str(work / "draft"),
        "dtype": "float32",
        "threads": given.threads,
        "seconds": 600.0,
        "max_tokens": MAX_TOKENS,
        "kv_bytes": 256 << 20,
        "batches": list(BATCHES),
        "ngram": NGRAM,
        "prompt_tokens": PROMPT_TOKENS,
        "beside_every": BESIDE_EVERY,
        "prefix_caching": False,
        "engines": [["plain", 0], ["draft", DRAFTS]],
        "prompts": str(work / "prompts.json"),
        **job,
    }


def cell_sizes(vocab: int) -> dict[str, Any]:
    """What is timed before: steps by batch, steps that read prompts."""
    return {
        "vocab": vocab,
        "passes": PASSES,
        "steps": 8,
        "grown_tokens": GROWN_TOKENS,
        "prompts_at_once": list(PROMPTS_AT_ONCE),
        "prompts_beside": list(PROMPTS_BESIDE),
    }


def loads(full_per_s: float) -> list[Requests]:
    """Poisson arrivals of the same requests at each rate."""
    lengths = Lengths(prompt_tokens=PROMPT_TOKENS, output_tokens=OUTPUT_TOKENS, prompt_cv=0.0, output_cv=0.5)
    return [
        open_loop(share * full_per_s, lengths, count=REQUESTS, most=MAX_TOKENS - DRAFTS - 1)
        for share in SHARES
    ]


def main() -> None:
    """Time steps, predict, serve, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--engine-python", type=Path, default=ROOT / ".venv-vllm" / "bin" / "python")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    work = given.folder / "work-load"
    work.mkdir(parents=True, exist_ok=True)
    target = load_checkpoint(ROOT / "profiles" / "checkpoints" / CHECKPOINT)
    draft = load_checkpoint(ROOT / "profiles" / "checkpoints" / DRAFT)
    for name, model in (("target", target.model), ("draft", draft.model)):
        write_model(work / name, model, torch.float32)
    first_half, second_half = shipped_prompts(64)
    (work / "prompts.json").write_text(json.dumps(second_half), encoding="utf-8")
    settings = GenerationSettings(max_new_tokens=OUTPUT_TOKENS, stop_at_end_of_text=False)
    known = [s.prompt + s.token_ids for s in generate(target.model, first_half, settings).sequences]
    walked = walked_draft(draft.model, known, PROMPT_TOKENS, DRAFTS)
    accepted = np.array([count for text in walked for count in text])
    rates = np.array([(accepted >= i).mean() for i in range(1, DRAFTS + 1)])
    spread = request_spread(
        [counts_of_listed([DRAFTS] * len(text), text, engine="decoder") for text in walked]
    )
    vocab = target.model.config.vocab_size
    cells = run_engine(given.engine_python, work, "cells", plan_of(
        work, given, job="cells", **cell_sizes(vocab)))  # fmt: skip
    reference_us = statistics.median(row["reference_us"] for row in cells if "reference_us" in row)
    tables = {drafts: table_of(at_speed(cells, reference_us), drafts, rates) for drafts in (0, DRAFTS)}
    full = max(BATCHES) / (float(tables[0].step_s[0, -1, 0]) * OUTPUT_TOKENS)
    asked = loads(full)
    served = run_engine(given.engine_python, work, "load", plan_of(
        work, given, job="load", passes=LOAD_PASSES, reference_us=reference_us, loads=[
            {"rate_per_s": each.rate_per_s, "arrival_s": each.arrival_s.tolist(), "output_tokens": each.output_tokens.tolist()}
            for each in asked]))  # fmt: skip
    limits = Limits(
        max_requests=max(BATCHES), token_budget=4000, block_tokens=32, kv_blocks=1 << 16, positions=MAX_TOKENS
    )
    rows = []
    for each in asked:
        for drafts in (0, DRAFTS):
            runs = [row for row in served if row["row"] == "load" and row["pass"] >= WARM_PASSES
                    and row["drafts"] == drafts and abs(row["rate_per_s"] - each.rate_per_s) < 1e-9]  # fmt: skip
            requests = checked_requests(each.arrival_s, each.prompt_tokens, each.output_tokens)
            record = run(requests, tables[drafts], limits, Fixed(drafts), spread=spread or 0.0)
            seen = [
                latencies(np.array(row["first_token_s"]), np.array(row["finish_s"]), requests) for row in runs
            ]
            rows.append({"rate_per_s": each.rate_per_s, "method": runs[0]["method"],
                         "measured": {name: statistics.median(one[name] for one in seen) for name in seen[0]},
                         "predicted": latencies(record.first_token_s, record.finish_s, requests),
                         "measured_accepted": sum(row["accepted"] for row in runs) / max(sum(row["drafting"] for row in runs), 1),
                         "predicted_accepted": float(rates.sum())})  # fmt: skip
    write_text(given.folder / "engine-load.json", json.dumps(rows, indent=1))
    text = page(rows, spread or 0.0)
    write_text(given.folder / "validation-engine-load.md", text)
    print(text)


def page(rows: list[dict[str, Any]], spread: float) -> str:
    """Predicted beside measured."""
    names = list(rows[0]["measured"])
    lines = [
        "## Open load",
        "",
        f"The shipped pair in vLLM, Poisson arrivals of {REQUESTS} requests, {PROMPT_TOKENS} prompt and {OUTPUT_TOKENS} output "
        "tokens in the mean. Steps were timed before, by batch; latencies are predicted from them and measured, in this order. "
        f"Acceptance, and how requests differ in it (a deviation of {spread:.2f} on the logit), are of other prompts.",
        "",
        "| requests/s | method | " + " | ".join(names) + " | accepted |",
        "| ---: | --- | " + " | ".join("---:" for _ in names) + " | ---: |",
    ]
    errors: dict[str, list[float]] = {name: [] for name in names}
    for row in rows:
        cells = []
        for name in names:
            ours, theirs = row["predicted"][name], row["measured"][name]
            errors[name].append(ours / theirs - 1.0)
            cells.append(f"{ours:.3g} / {theirs:.3g} ({100 * errors[name][-1]:+.0f} %)")
        drafted = (
            f"{row['predicted_accepted']:.2f} / {row['measured_accepted']:.2f}"
            if row["method"] != "plain"
            else "-"
        )
        lines.append(
            f"| {row['rate_per_s']:.3g} | {row['method']} | " + " | ".join(cells) + f" | {drafted} |"
        )
    told = ", ".join(f"{name} {100 * float(np.abs(found).mean()):.0f} %" for name, found in errors.items())
    return "\n".join([*lines, "", f"Mean errors: {told}.", ""])


if __name__ == "__main__":
    main()
