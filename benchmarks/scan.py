"""Answers that no server gives, counted over some 200 set-ups: artefacts of laws and of terms, not of GPUs.

    python benchmarks/scan.py                     # all, five minutes; one line a finding at the end
    python benchmarks/scan.py --sample 12         # every so many-th, for a quick look
    python benchmarks/scan.py --each              # with a line for each set-up
    python benchmarks/scan.py --random 200        # drawn from all GPUs, models, engines, drafters

Each set-up serves requests of 512 + 256 tokens, 1 to 512 at once, plain and with one to three drafts.
Counted: batches at which speculation pays that lie in several ranges; one request more that lowers the
throughput of plain decoding by over 3 %; a prompt 2 % longer that moves a speedup by over 3 %; a draft
accepted more often that lowers throughput; a band that narrows beyond the largest batch that the engine was
measured with.
Random ones are seen at some twenty batches and six lengths: verdicts that come again after they went, along
either, and watts beyond what a GPU draws at least and at most, or that fall with more requests.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from common.script import command_line

from medusa_sim.api import Scenario
from medusa_sim.engines.runtime import runtime_names
from medusa_sim.errors import MedusaSimError
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.gpus.gpu_names import gpu_names
from medusa_sim.grid.axes import Grid
from medusa_sim.grid.cells import Cells, price
from medusa_sim.grid.sweep import grid_options
from medusa_sim.models.named import load_model, model_names
from medusa_sim.plan.verdict import LOSES, NO_GAIN, PAYS, drafting_spans, stretches, verdict_codes

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
METHODS = ("eagle3", "eagle", "mtp", "draft-model", "ngram", "suffix", "dflash")
DTYPES = (None, "bf16", "fp8", "nvfp4")
FEW_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512)
LENGTHS = (256, 1024, 2048, 4096, 8192, 32768)
SMALL = 2e9
"""Bytes of weights below which a model is not drawn."""

_Each = TypeVar("_Each")


@dataclass(frozen=True, slots=True)
class SetUp:
    """One server."""

    gpu: str
    model: str
    runtime: str
    dtype: str | None
    tp: int
    drafter: str = DRAFTER

    def scenario(self, prompt: float = PROMPT, acceptance: str | float = TOKENS) -> Scenario:
        """With EAGLE-3 drafts. Raises MedusaSimError where it does not run."""
        dtype = None if self.model.startswith("gpt-oss") else self.dtype  # experts in 4 bits
        return self._scenario(dtype=dtype, acceptance=acceptance, prompt_tokens=prompt, output_tokens=OUTPUT)

    def alone(self) -> Scenario:
        """Its steps alone, without traffic. Raises MedusaSimError where it does not run."""
        return self._scenario(dtype=self.dtype, acceptance=TOKENS)

    def _scenario(self, **more: Any) -> Scenario:
        return Scenario(
            gpu=self.gpu, model=self.model, runtime=self.runtime, tp=self.tp, drafter=self.drafter, **more
        )

    def __str__(self) -> str:
        drafts = "" if self.drafter == DRAFTER else f" {self.drafter}"
        return f"{self.tp} x {self.gpu} {self.model} {self.dtype} {self.runtime}{drafts}"


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


def drawn(count: int, seed: int) -> Iterator[SetUp]:
    """So many random set-ups that run and hold 8 requests of the second length."""
    rng, found = np.random.default_rng(seed), 0
    gpus = [name for name in gpu_names() if load_gpu(name).architecture != "cpu"]
    models = [name for name in model_names() if load_model(name).weight_bytes > SMALL]
    engines = [name for name in runtime_names() if name.startswith(ENGINES)]
    while found < count:
        gpu, model, engine, drafter = (str(rng.choice(names)) for names in (gpus, models, engines, METHODS))
        each = SetUp(gpu, model, engine, DTYPES[rng.integers(len(DTYPES))], int(rng.choice(GPUS)), drafter)
        try:
            cells = price(each.alone(), [8], LENGTHS[1:2]).by_count
            fits = cells.fits.all() and np.isfinite(cells.speedup).all()
        except MedusaSimError:
            continue
        if fits:
            found += 1
            yield each


def again(codes: np.ndarray) -> int:
    """Certain verdicts that come again after another one, along the first axis; the most of a column."""
    most = 0
    for column in codes.T:
        certain = [code for code in column.tolist() if code in (LOSES, PAYS)]
        runs = [code for code, _ in itertools.groupby(certain)]
        most = max(most, len(runs) - len(set(runs)))
    return most


def seen(each: SetUp) -> dict[str, float]:
    """What a random set-up shows over FEW_BATCHES and LENGTHS."""
    cells = price(each.alone(), FEW_BATCHES, LENGTHS).by_count
    fits = np.asarray(np.broadcast_to(cells.fits, cells.shape).all(axis=2))
    codes = np.where(fits, verdict_codes(cells), NO_GAIN)
    rate = np.where(fits, cells.tokens_per_s[:, :, 0], np.nan)
    falls = rate[1:] / rate[:-1] - 1.0
    worst = {
        "again": again(codes),
        "again by length": again(codes.T),
        "worst fall": np.nanmin(falls, initial=0.0),
    }
    power = cells.scenario.gpu.power
    if power is not None:
        each_watts = np.where(fits[..., None], cells.server_steps.watts, np.nan) / cells.scenario.gpus
        falling = each_watts[1:, :, 0] / each_watts[:-1, :, 0] - 1.0
        worst |= {
            "beyond": max(
                np.nanmax(each_watts) / power.limit_watts, power.fit.idle_watts / np.nanmin(each_watts)
            ),
            "worst watts": np.nanmin(falling, initial=0.0),
        }
    low, high = cells.speedup_band
    return {name: float(value) for name, value in worst.items()} | {
        "upside down": float(((low > cells.speedup * 1.0001) | (high < cells.speedup * 0.9999)).any())
    }


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
    batches, codes = cells.surface.batch[:last], verdict_codes(cells)[:last, 0]
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
        "ranges": len(drafting_spans(batches, codes, stretches(batches, codes))),
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


COUNTED_OF_RANDOM: tuple[tuple[str, Callable[[pd.DataFrame], pd.Series[bool]], str, str], ...] = (
    ("certain verdicts that come again with more requests", lambda t: t["again"] > 0, "again", "max"),
    ("with longer requests", lambda t: t["again by length"] > 0, "again by length", "max"),
    ("plain throughput lower at the next batch by over 3 %", lambda t: t["worst fall"] < -0.03, "worst fall",
     "min"),
    ("watts beyond what a card draws", lambda t: t.beyond > 1.001, "beyond", "max"),
    ("watts lower at the next batch by over 5 %", lambda t: t["worst watts"] < -0.05, "worst watts", "min"),
    ("bands that leave their value out", lambda t: t["upside down"] > 0, "upside down", "max"),
)  # fmt: skip


def tell(
    table: pd.DataFrame, counted: Sequence[tuple[str, Callable[..., pd.Series[bool]], str, str]]
) -> None:
    """A line a finding: how many set-ups show it, the worst of them."""
    for name, of, worst, way in counted:
        where = getattr(table[worst], f"idx{way}")()
        print(f"{int(of(table).sum()):4}  {name} (worst {table[worst][where]:.3g}: {where})")


def every_row(
    every: Sequence[_Each], of: Callable[[_Each], dict[str, float]], *, each_too: bool
) -> pd.DataFrame:
    """What each set-up shows, with progress; each_too: printed as well."""
    began, rows = time.monotonic(), []
    for index, each in enumerate(every):
        rows.append(of(each))
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
    """Scan, and tell."""
    options = command_line(__doc__)
    options.add_argument("--sample", type=int, default=1, metavar="N", help="every N-th set-up alone")
    options.add_argument("--each", action="store_true", help="a line for each set-up")
    options.add_argument("--random", type=int, default=0, metavar="N", help="random set-ups instead")
    options.add_argument("--seed", type=int, default=1, help="of the draws")
    asked = options.parse_args()
    if asked.random:
        every = list(drawn(asked.random, asked.seed))
        print(f"{len(every)} random set-ups, steps at {len(FEW_BATCHES)} batches and {len(LENGTHS)} lengths")
        tell(every_row(every, seen, each_too=asked.each), COUNTED_OF_RANDOM)
        return
    every = list(set_ups(asked.sample))
    table = every_row(every, scanned, each_too=asked.each)
    print(f"{len(table)} set-ups, one to {MOST} requests of {PROMPT:g} + {OUTPUT:g} tokens")
    tell(table, COUNTED)


if __name__ == "__main__":
    main()
