"""A real engine under open load beside the simulator: `python benchmarks/engine_load.py OUT`.

vLLM on this CPU serves the shipped pair (plain, and with a chain of its draft model) under Poisson arrivals at
three rates and a ramp of others. From the steps of all loads but one and from the acceptance of other prompts
`medusa_sim.load` predicts that one. So the scheduler, the queue and the acceptance by position are tested, and
not the price of a step, which `make validate-engine` scores.

Writes OUT/validation-engine-load.md and OUT/engine-load.json. Some five minutes of one core.
"""

from __future__ import annotations

import json
import statistics
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common.agreement import walked_draft
from common.pages import filled
from common.script import command_line
from common.study import table
from scipy.optimize import nnls
from validate_engine import ENGINE_PYTHON, require_engine, run_engine, shipped_pair, shipped_plan

from medusa_sim.acceptance.engine_counters import counts_of_listed, request_spread
from medusa_sim.arrays import FloatArray, Halves
from medusa_sim.lab.decoder.generate import generate
from medusa_sim.lab.decoder.generation import GenerationSettings
from medusa_sim.load.accepted import Accepted
from medusa_sim.load.lengths import Lengths
from medusa_sim.load.limits import SchedulerLimits
from medusa_sim.load.policies import Fixed
from medusa_sim.load.prompt_table import PromptTable
from medusa_sim.load.requests import Requests, checked_requests
from medusa_sim.load.server_host import ServerHost
from medusa_sim.load.serving_loop import run
from medusa_sim.load.sources import open_loop
from medusa_sim.load.step_table import StepTable
from medusa_sim.step.prompts import PromptTerms
from medusa_sim.units import US_PER_S
from medusa_sim.writing import write_text

DRAFTS = 3
BATCHES = (1, 2, 4, 8, 16, 32)
"""Between which a step's time is linear; as many requests run at most."""
PROMPT_TOKENS, MAX_TOKENS = 48, 256
OUTPUT_TOKENS = 64
LENGTHS = Lengths(prompt_tokens=PROMPT_TOKENS, output_tokens=OUTPUT_TOKENS, prompt_cv=0.0, output_cv=0.5)
SHARES = (0.35, 0.65, 0.85)
"""Rates, as shares of what plain decoding carries."""
REQUESTS = 150
RAMP, RAMP_REQUESTS, RAMP_SEED = (1 / OUTPUT_TOKENS, 0.8), 300, 1
"""Arrivals a step, from those that keep one request running to more than a full batch can take."""
PASSES, WARM_PASSES = 6, 1
"""Over all loads, of which the first is not kept: kernels see its shapes for the first time."""
BESIDE_EVERY = 8
"""Steps between two runs of the reference: it empties the cache that this small model lies in."""


def table_of(steps: FloatArray, drafts: int, rates: FloatArray) -> StepTable:
    """A table of the server with so many drafts, which runs no others, from steps that it took.

    steps: (steps, 3) requests that decode, tokens of prompts, seconds. Least squares, so that the steps add up
    to their sum, the slow ones too: of the batch, linear between BATCHES; of prompts alone; of prompts beside,
    by their tokens. Lengths are those that requests have when they are served.
    """
    batch, read, seconds = steps.T
    every, tokens = np.arange(max(BATCHES) + 1), np.arange(4096)
    places = np.array([np.interp(every, BATCHES, row) for row in np.eye(len(BATCHES))]).T
    places[0] = 0.0
    shape = [places[batch.astype(int)], (batch == 0)[:, None], (read > 0)[:, None], read[:, None]]
    *by_batch, alone, start, slope = nnls(np.hstack(shape), seconds)[0]
    step_s = np.empty((drafts + 1, every.size, 2))
    step_s[:] = (places @ by_batch)[:, None]
    step_s[:, 0] = alone
    nothing, no_prompts = np.zeros(step_s.shape[:2]), np.zeros(tokens.size)
    return StepTable(
        lengths=np.array([1.0, float(MAX_TOKENS)]),
        step_s=step_s,
        prompts=PromptTable(
            linear_s=np.where(tokens, start + slope * tokens, 0.0),
            chunk_tokens=np.array([1.0, 4096.0]),
            chunk_ends=np.array([1.0, 4096.0]),
            attention_s=np.zeros((2, 2)),
            drafter_s=no_prompts,
            drafter_attention_s=np.zeros((2, 2)),
            inactive_share=no_prompts,
            imbalance_s=no_prompts,
            terms=PromptTerms(are_apart=True),
        ),
        decode_linear_s=nothing,  # a pass of prompts alone shares no rows with the requests that decode
        sharing_s=nothing,
        halves=Halves(nothing, nothing),
        accepted=Accepted(rates[:drafts]),
        host=ServerHost(),
        plain_host=ServerHost(),
        drafting_share=nothing,
        idle_share=nothing[0],
    )


def held_out(rows: list[dict[str, Any]], load: str, drafts: int, rates: FloatArray) -> StepTable:
    """The table of a server from the steps of every other load; a run of the reference is a second."""
    names = {row["load"] for row in rows if row["row"] == "load"} - {load}
    steps = [row["steps"] for name in sorted(names) for row in counted(rows, name, drafts)]
    return table_of(np.concatenate(steps), drafts, rates)


def counted(rows: list[dict[str, Any]], load: str, drafts: int) -> list[dict[str, Any]]:
    """Of a load the passes that count: all that are not warming up, since neighbours disturb every load alike."""
    return [
        row
        for row in rows
        if row["row"] == "load"
        and (row["load"], row["drafts"]) == (load, drafts)
        and row["pass"] >= WARM_PASSES
    ]


def latencies(first: FloatArray, finish: FloatArray, asked: Requests) -> dict[str, float]:
    """Means in milliseconds, and tokens a second."""
    output = asked.output_tokens
    tpot = (finish - first) / np.maximum(output - 1, 1)
    return {
        "TTFT ms": 1e3 * float((first - asked.arrival_s).mean()),
        "TPOT ms": 1e3 * float(tpot.mean()),
        "p90 TPOT ms": 1e3 * float(np.quantile(tpot, 0.9)),
        "tokens/s": float(output.sum()) / float(finish.max()),
    }


def plan_of(work: Path, threads: int, passes: int, loads: dict[str, Requests]) -> dict[str, Any]:
    """A plan for `engine/run_vllm.py`: the ramp, and loads by their rate, in runs of the reference."""
    sent = [
        {"load": name, "in_steps": name == "ramp", "arrival": asked.arrival_s.tolist(),
         "output_tokens": asked.output_tokens.tolist()}
        for name, asked in {"ramp": ramp(), **loads}.items()
    ]  # fmt: skip
    return shipped_plan(
        work, threads, job="load", passes=passes, seconds=600.0, max_tokens=MAX_TOKENS, batches=list(BATCHES),
        beside_every=BESIDE_EVERY, prefix_caching=False, engines=[["plain", 0], ["draft", DRAFTS]], loads=sent,
    )  # fmt: skip


MOST = MAX_TOKENS - DRAFTS - 1


def ramp() -> Requests:
    """Arrivals from few to more than can be served, a second for a step."""
    return open_loop(RAMP, LENGTHS, count=RAMP_REQUESTS, most=MOST, seed=RAMP_SEED)


def loads(full_per_s: float) -> dict[str, Requests]:
    """Poisson arrivals of the same requests at each rate."""
    return {
        f"{share:.0%}": open_loop(share * full_per_s, LENGTHS, count=REQUESTS, most=MOST) for share in SHARES
    }


def main() -> None:
    """Time steps, predict, serve, compare."""
    parser = command_line(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--engine-python", type=Path, default=ENGINE_PYTHON)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    require_engine(given.engine_python)
    torch.set_num_threads(given.threads)
    work = given.folder / "work-load"
    work.mkdir(parents=True, exist_ok=True)
    target, draft, first_half, _ = shipped_pair(work, 64)
    settings = GenerationSettings(max_new_tokens=OUTPUT_TOKENS, stop_at_end_of_text=False)
    known = [s.prompt + s.token_ids for s in generate(target.model, first_half, settings).sequences]
    walked = walked_draft(draft.model, known, PROMPT_TOKENS, DRAFTS)
    accepted = np.array([count for text in walked for count in text])
    rates = np.array([(accepted >= i).mean() for i in range(1, DRAFTS + 1)])
    counts = [counts_of_listed([DRAFTS] * len(text), text, engine="decoder") for text in walked]
    spread = request_spread(counts) or 0.0

    def served(name: str, passes: int, asked: dict[str, Requests]) -> list[dict[str, Any]]:
        return run_engine(given.engine_python, work, name, plan_of(work, given.threads, passes, asked))

    table = held_out(served("ramp", WARM_PASSES + 1, {}), "", 0, rates)
    asked = loads(max(BATCHES) / (float(table.step_s[0, -1, 0]) * OUTPUT_TOKENS))
    found = served("load", PASSES, asked)
    rows = compared(found, asked, rates, spread)
    write_text(given.folder / "engine-load.json", json.dumps(rows, indent=1))
    text = page(rows, spread)
    write_text(given.folder / "validation-engine-load.md", text)
    print(text)


def compared(
    found: list[dict[str, Any]], asked: dict[str, Requests], rates: FloatArray, spread: float
) -> list[dict[str, Any]]:
    """Of each rate and server: what was measured, median of passes, and predicted; in seconds of this machine."""
    limits = SchedulerLimits(
        max_requests=max(BATCHES), token_budget=4000, block_tokens=32, kv_blocks=1 << 16, positions=MAX_TOKENS
    )
    unit_s = statistics.median(row["reference_us"] for row in counted(found, "ramp", 0)) / US_PER_S

    def in_seconds(first: FloatArray, finish: FloatArray, requests: Requests) -> dict[str, float]:
        own = checked_requests(unit_s * requests.arrival_s, requests.prompt_tokens, requests.output_tokens)
        return latencies(unit_s * first, unit_s * finish, own)

    rows = []
    for (name, requests), drafts in product(asked.items(), (0, DRAFTS)):
        runs, table = counted(found, name, drafts), held_out(found, name, drafts, rates)
        result = run(requests, table, limits, Fixed(drafts), spread=spread)
        seen = [in_seconds(np.array(row["first_token"]), np.array(row["finish"]), requests) for row in runs]
        rows.append({
            "rate_per_s": float(requests.rate_per_s) / unit_s,
            "method": runs[0]["method"],
            "measured": {key: statistics.median(one[key] for one in seen) for key in seen[0]},
            "predicted": in_seconds(result.first_token_s, result.finish_s, requests),
            "measured_accepted": sum(row["accepted"] for row in runs) / max(sum(row["drafting"] for row in runs), 1),
            "predicted_accepted": float(rates.sum()),
        })  # fmt: skip
    return rows


def page(rows: list[dict[str, Any]], spread: float) -> str:
    """Predicted beside measured."""
    names = list(rows[0]["measured"])
    errors = {name: [row["predicted"][name] / row["measured"][name] - 1.0 for row in rows] for name in names}
    lines = []
    for i, row in enumerate(rows):
        ours, theirs = row["predicted"], row["measured"]
        cells = (f"{ours[n]:.3g} / {theirs[n]:.3g} ({100 * errors[n][i]:+.0f} %)" for n in names)
        drafted = f"{row['predicted_accepted']:.2f} / {row['measured_accepted']:.2f}"
        accepted = drafted if row["method"] != "plain" else "-"
        lines.append((f"{row['rate_per_s']:.3g}", row["method"], *cells, accepted))
    told = ", ".join(f"{name} {100 * float(np.abs(found).mean()):.0f} %" for name, found in errors.items())
    return filled(
        "engine_load", requests=REQUESTS, prompt_tokens=PROMPT_TOKENS, output_tokens=OUTPUT_TOKENS,
        spread=spread, errors=told, rows=table(" | ".join(["requests/s", "method", *names, "accepted"]), 2, lines),
    )  # fmt: skip


if __name__ == "__main__":
    main()
