"""Answers that no server gives, counted over some 200 set-ups: artefacts of laws and of terms, not of GPUs.

    python benchmarks/scan.py                     # all, five minutes; one line a finding at the end
    python benchmarks/scan.py --sample 12         # every so many-th, for a quick look
    python benchmarks/scan.py --each              # with a line for each set-up

Each set-up serves requests of 512 + 256 tokens, 1 to 512 at once, plain and with one to three drafts.
Counted: batches at which speculation pays that lie in several ranges; one request more that lowers the
throughput of plain decoding by over 3 %; a prompt 2 % longer that moves a speedup by over 3 %; a draft
accepted more often that lowers throughput; a band that narrows beyond the largest batch that the engine was
measured with.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pandas as pd
from common.script import command_line

from medusa_sim.api import Scenario
from medusa_sim.errors import MedusaSimError
from medusa_sim.grid.axes import Grid
from medusa_sim.grid.cells import Cells, price
from medusa_sim.grid.sweep import grid_options
from medusa_sim.plan.verdict import KnownOdds, drafting_spans, odds_of, stretches

CARDS = ("a100-80gb-sxm", "h100-sxm", "h200-sxm", "b200", "l40s", "mi300x")
MODELS = (
    "llama-3.1-8b", "qwen3-32b", "llama-3.3-70b", "qwen3-30b-a3b", "gpt-oss-120b", "nemotron-3-nano-30b-a3b",
    "gemma-3-27b",
)  # fmt: skip
ENGINES = ("vllm", "sglang", "tensorrt-llm")
FORMATS = ("bf16", "fp8")
GPUS = (1, 2, 4, 8)
PROMPT, OUTPUT, LENGTH, MOST = 512.0, 256.0, 640, 512
COUNTS = (1, 2, 3, 4)
DRAFTER, TOKENS = "eagle3", "2.48@3"
LESS, MORE = 0.85, 0.86
_Each = TypeVar("_Each")


@dataclass(frozen=True, slots=True)
class SetUp:
    """One server."""

    gpu: str
    model: str
    runtime: str
    dtype: str
    tp: int

    def scenario(self, prompt: float = PROMPT, acceptance: str | float = TOKENS) -> Scenario:
        """With EAGLE-3 drafts. Raises MedusaSimError where it does not run."""
        dtype = None if self.model.startswith("gpt-oss") else self.dtype  # experts in 4 bits
        return Scenario(
            gpu=self.gpu, model=self.model, runtime=self.runtime, tp=self.tp, dtype=dtype, drafter=DRAFTER,
            acceptance=acceptance, prompt_tokens=prompt, output_tokens=OUTPUT,
        )  # fmt: skip

    def __str__(self) -> str:
        return f"{self.tp} x {self.gpu} {self.model} {self.dtype} {self.runtime}"


def set_ups(sample: int = 1) -> Iterator[SetUp]:
    """Every one that runs and has room for 64 requests, on as few GPUs as hold them.

    sample: every so many-th combination of GPU, model, engine and format alone.
    """
    every = itertools.product(CARDS, MODELS, ENGINES, FORMATS)
    for gpu, model, runtime, dtype in itertools.islice(every, 0, None, sample):
        if dtype == "fp8" and (gpu.startswith("a100") or model.startswith("gpt-oss")):
            continue
        for tp in GPUS:
            each = SetUp(gpu, model, runtime, dtype, tp)
            try:
                fits = bool(by_count_of(each.scenario(), [64], [1, 4]).fits.all())
            except MedusaSimError:
                continue
            if fits:
                yield each
                break


def by_count_of(
    scenario: Scenario, batch: Sequence[int] = range(1, MOST + 1), counts: Sequence[int] = COUNTS
) -> Cells:
    """Every batch and number of drafts."""
    grid = Grid.of(batch, [LENGTH], counts)
    return price(scenario, grid.batch, grid.seq_len, grid_options(scenario, grid)).by_count


def ranges(pays: np.ndarray) -> int:
    """How many runs of True."""
    return int(pays[0]) + int((np.diff(pays.astype(np.int8)) == 1).sum())


def scanned(each: SetUp) -> dict[str, float]:
    """What one set-up shows; counts of batches or edges, and the worst of each."""
    cells = by_count_of(each.scenario())
    fits = cells.fits[:, 0]
    last = int(fits.all(axis=1).sum())
    gain, rate = cells.speedup[:last, 0], cells.tokens_per_s[:last, 0]
    best = gain[:, 1:].max(axis=1)
    odds = KnownOdds(cells.surface.batch[:last], odds_of(cells)[:last, 0])
    low, high = (ends[:last, 0] for ends in cells.speedup_band)
    falls = np.diff(rate[:, 0]) / rate[:-1, 0]
    longer = by_count_of(each.scenario(prompt=1.02 * PROMPT))
    moved = longer.speedup[:last, 0] / gain - 1.0
    less, more = (by_count_of(each.scenario(acceptance=rate)).tokens_per_s[:last, 0] for rate in (LESS, MORE))
    worse = (more / less - 1.0)[:, 1:]
    half = np.log(high[:, 1:] / low[:, 1:])
    edges = cells.surface.batch_edges  # the first is the most that the engine was measured with
    is_beyond = edges.size > 0 and last > edges[0]
    beyond = half[edges[0] :] / half[edges[0] - 1] - 1.0 if is_beyond else np.zeros((1, 1))
    return {
        "batches": last,
        "ranges": len(drafting_spans(odds, stretches(odds))),
        "gaining": ranges(best > 1.0),
        "falls": float((falls < -0.03).sum()),
        "worst fall": float(falls.min(initial=0.0)),
        "at": float(1 + falls.argmin()),
        "moved": float((np.abs(moved) > 0.03).sum()),
        "worst move": float(np.abs(moved).max()),
        "worse": float((worse < -1e-3).sum()),
        "worst loss": float(worse.min()),
        "narrows": float(beyond.min()),
    }


COUNTED: tuple[tuple[str, Callable[[pd.DataFrame], pd.Series[bool]], str, str], ...] = (
    ("several paying ranges", lambda t: t.ranges > 1, "ranges", "max"),
    ("several runs of speedups above 1, within their doubt", lambda t: t.gaining > 1, "gaining", "max"),
    ("plain throughput falls by over 3 % for one request more", lambda t: t.falls > 0, "worst fall", "min"),
    ("2 % more prompt moves a speedup by over 3 %", lambda t: t.moved > 0, "worst move", "max"),
    ("more acceptance lowers throughput", lambda t: t.worse > 0, "worst loss", "min"),
    ("band narrows beyond the largest measured batch", lambda t: t.narrows < -0.005, "narrows", "min"),
)


def every_row(
    every: Sequence[_Each], shown: Callable[[_Each], dict[str, float]], *, each_too: bool
) -> pd.DataFrame:
    """What each set-up shows, with progress; each_too: printed as well."""
    began, rows = time.monotonic(), []
    for index, each in enumerate(every):
        rows.append(shown(each))
        left = (time.monotonic() - began) / (index + 1) * (len(every) - index - 1)
        print(
            f"\r{index + 1} of {len(every)} set-ups, {left:.0f} s left ", end="", file=sys.stderr, flush=True
        )
    print(file=sys.stderr)
    table = pd.DataFrame(rows, index=[str(each) for each in every])
    if each_too:
        print(table.to_string(float_format=lambda value: f"{value:.3g}"))
    return table


def main() -> None:
    """Scan; a line a finding: how many set-ups show it, the worst of them."""
    options = command_line(__doc__)
    options.add_argument("--sample", type=int, default=1, metavar="N", help="every N-th set-up alone")
    options.add_argument("--each", action="store_true", help="a line for each set-up")
    asked = options.parse_args()
    table = every_row(list(set_ups(asked.sample)), scanned, each_too=asked.each)
    print(f"{len(table)} set-ups, one to {MOST} requests of {PROMPT:g} + {OUTPUT:g} tokens")
    for name, shows, worst, way in COUNTED:
        where = getattr(table[worst], f"idx{way}")()
        print(f"{int(shows(table).sum()):4}  {name} (worst {table[worst][where]:.3g}: {where})")


if __name__ == "__main__":
    main()
