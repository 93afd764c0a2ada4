"""Each measured GPU as if nobody had measured it: its plain steps with kernels borrowed from another GPU.

    python benchmarks/gpus_left_out.py [GPU ...]    # beside its own kernels: error, and what its bands hold
    python benchmarks/gpus_left_out.py --served     # beside its served steps as well, which no term saw

A GPU keeps its data sheet and loses every kernel; all are borrowed from one relative, as a GPU's file says
it (`gpus/inheritance.py`). Beside its own kernels engines' terms are the same in both. For served steps they
come from a fit without the GPU's cells (`hierarchy.py`), and the band from what is then new about it.

What borrowed kernels of one kind are off by together (`inheritance.TOGETHER`) follows from all pairs of
RELATIVES: the part of single rows' bands with which bands of steps hold 80 % on average over pairs,
of the same architecture and of another one. Held out: what a GPU's bands hold by the part of pairs that it
is no part of.
"""

from __future__ import annotations

import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import tomlkit
from common.hierarchy_cells import parts_of
from common.hierarchy_fit import Fit
from common.script import ROOT, command_line
from common.study import PROMISED, mean_bias_worst, table
from served_rows import GROUP, served_cells, set_ups

import medusa_sim as ms
from medusa_sim.arrays import BoolArray, FloatArray
from medusa_sim.engines.nearness import widenings_beside
from medusa_sim.engines.widening import least_half_width
from medusa_sim.errors import MedusaSimError
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.gpus.inheritance import BORROWED, TOGETHER, TOGETHER_ALIKE
from medusa_sim.step.compose import step_us
from medusa_sim.step.pass_times import PassTimes
from medusa_sim.step.step import decode_step


class Relatives(NamedTuple):
    """Who could lend a GPU its kernels, the one that its file would name first.

    norms: who lends norms and rope, which few GPUs were measured with.
    """

    lenders: tuple[str, ...]
    norms: str


RELATIVES = {
    "h100-sxm": Relatives(("h200-sxm", "l40s"), norms="a100-80gb-pcie"),
    "h200-sxm": Relatives(("h100-sxm", "l40s"), norms="h100-sxm"),
    "b200": Relatives(("h200-sxm", "h100-sxm", "l40s"), norms="h100-sxm"),
    "gb200": Relatives(("b200", "h200-sxm", "h100-sxm", "l40s"), norms="h100-sxm"),
    "l40s": Relatives(("a100-80gb-sxm", "h100-sxm", "h200-sxm"), norms="a40"),
    "a100-80gb-sxm": Relatives(("h100-sxm", "h200-sxm", "l40s"), norms="h100-sxm"),
    "rtx-pro-6000": Relatives(("l40s", "h100-sxm", "h200-sxm"), norms="a40"),
}
"""An A100's kernels lend to no GPU newer than an L40S: none shipped borrows them, since their attention is
FlashAttention 2."""
REASON = "as if nobody had measured the GPU"
PARTS = np.arange(0.01, 1.0, 0.01)
SET_UPS: tuple[dict[str, Any], ...] = (
    {"model": "llama-3.1-8b"},
    {"model": "llama-3.1-8b", "dtype": "fp8"},
    {"model": "qwen3-14b", "tp": 2},
    {"model": "qwen3-32b", "tp": 4},
    {"model": "qwen3-30b-a3b", "tp": 2},
)
RUNTIMES = ("vllm-0.15", "sglang-0.5")
BATCHES, LENGTHS = (1, 8, 32, 128, 256), (1024, 8192)
HALVES = ("bf16", "fp16")


def borrowing(gpu: str, lender: str) -> str:
    """The file of a GPU that has nothing of its own but its data sheet.

    What its lender borrows itself comes from there: attention of a B200 from an H200.
    """
    norms = f"{RELATIVES[gpu].norms}:torch"
    own, lent = (
        tomllib.loads((ROOT / f"hardware/{name}.toml").read_text(encoding="utf-8")) for name in (gpu, lender)
    )
    kernels: dict[str, Any] = {}
    attention = f"{lender}:sglang"
    for name, sections in lent["kernels"].items():
        named: dict[str, Any] = {each: lender for each in sections if each in BORROWED and each != "gemm"}
        forms = [
            form for form in sections.get("gemm", {}) if form in ("bf16", "fp16", "fp8", "fp8_block", "nvfp4")
        ]
        if forms:
            gemm = {form: f"{lender}:{name}:{form}" for form in forms}
            named["gemm"] = gemm | {half: gemm.get(half, gemm[forms[0]]) for half in HALVES}
        if name == "sglang":
            named["elementwise"] = norms
            attention = named.setdefault("attention", sections.get("inherit", {}).get("attention", attention))
        if named:
            kernels[name] = {"inherit": {"reason": REASON, **named}}
    kernels["torch"] = {
        "inherit": {
            "reason": REASON,
            "gemm": dict.fromkeys(HALVES, f"{lender}:sglang:bf16"),
            "attention": attention if ":" in attention else f"{attention}:sglang",
            "elementwise": norms,
        }
    }
    return tomlkit.dumps(own | {"kernels": kernels})


def inside_kernels(step: PassTimes, measured_us: FloatArray, share: float) -> BoolArray:
    """Which steps lie in the band of kernels alone, with so much of what borrowed ones are off by together.

    What engines add has a band of its own, and is the same in both.
    """
    band = step.passes[0].band
    alone, whole = band._replace(shared={}).squares, band.squares
    below, above = (few + share**2 * (every - few) for few, every in zip(alone, whole, strict=True))
    cost = step.cost
    fast_us, slow_us = (
        step_us(np.maximum(cost.device_us + half_us, 0.0), cost.host_us, cost.exposed_us)
        for half_us in (-np.sqrt(below), np.sqrt(above))
    )
    return np.asarray((fast_us <= measured_us) & (measured_us <= slow_us)).ravel()


def steps(gpu: str, lender: str, folder: Path) -> Iterator[pd.DataFrame]:
    """A line of every plain step: by its own kernels, by borrowed ones, and whether their band holds it.

    held: by the band of borrowed kernels alone; with_engines: by that of the whole step, which has more for
    what engines add, the same in both, and for how near the set-up lies to others. needed: the least of PARTS
    whose band would hold.
    """
    batch, length = np.array(BATCHES)[:, None], np.array(LENGTHS)
    is_alike = load_gpu(gpu).architecture == load_gpu(lender).architecture
    shipped = TOGETHER_ALIKE if is_alike else TOGETHER
    for asked in SET_UPS:
        for runtime in RUNTIMES:
            borrowed: tuple[dict[str, Any], ...] = ({}, {"data_dir": str(folder)})
            given = asked | {"gpu": gpu, "runtime": runtime, "drafter": "ngram", "acceptance": "0.5"}
            try:
                own, step = (
                    decode_step(ms.Scenario(**given, **more).setting, batch, length) for more in borrowed
                )
            except MedusaSimError as refused:
                print(f"{gpu}, {asked}, {runtime}: {refused}")
                continue
            own_us, lent = own.time_us, step.cost
            inside = np.array([inside_kernels(step, own_us, part / shipped) for part in PARTS])
            yield pd.DataFrame(
                {
                    "gpu": gpu,
                    "lender": lender,
                    "is_alike": is_alike,
                    "error": (lent.time_us / own_us - 1.0).ravel(),
                    "half": np.log(lent.high_us / lent.time_us).ravel(),
                    "held": inside_kernels(step, own_us, 1.0),
                    "with_engines": ((lent.low_us <= own_us) & (own_us <= lent.high_us)).ravel(),
                    "needed": np.where(inside.any(axis=0), PARTS[inside.argmax(axis=0)], np.inf),
                }
            )


def part_of(cells: pd.DataFrame) -> float:
    """The least part with which the bands of steps hold PROMISED on average over pairs."""
    for part in PARTS:
        if (cells.needed <= part).groupby([cells.gpu, cells.lender]).mean().mean() >= PROMISED:
            return float(part)
    return float("inf")


def parts_table(cells: pd.DataFrame) -> str:
    """What pairs ask for, and what each GPU's bands hold by the part of pairs without it."""
    lines = []
    for is_alike, own in cells.groupby("is_alike"):
        name = "alike" if is_alike else "another"
        pairs = (own.needed <= part_of(own)).groupby(own.gpu + " from " + own.lender).mean()
        lines.append((name, "all", f"{part_of(own):.2f}", len(pairs), f"{100 * pairs.mean():.0f}",
                      f"{100 * pairs.min():.0f} ({pairs.idxmin()})"))  # fmt: skip
        for gpu, left in own.groupby("gpu", sort=False):
            others = own[(own.gpu != gpu) & (own.lender != gpu)]
            if others.empty:
                continue
            part = part_of(others)
            pairs = (left.needed <= part).groupby(left.lender).mean()
            lines.append((name, f"without {gpu}", f"{part:.2f}", len(pairs), f"{100 * pairs.mean():.0f}",
                          f"{100 * pairs.min():.0f} (from {pairs.idxmin()})"))  # fmt: skip
    return table("architecture | pairs | part | of | held % | least", 2, lines)


def priced(pairs: Iterable[tuple[dict[str, Any], pd.DataFrame]]) -> pd.DataFrame:
    """Parts of every cell whose kernels the lender has (nvfp4 is Blackwell's alone)."""
    found, left = [pd.DataFrame()], Counter[str]()
    for pair in pairs:
        try:
            found.append(parts_of([pair]))
        except MedusaSimError as error:
            left[str(error)] += len(pair[1])
    for why, cells in left.items():
        print(f"left out, {cells} cells: {why}")
    return pd.concat(found, ignore_index=True)


def served_table(folders: dict[str, Path]) -> str:
    """Served steps of each GPU, by borrowed kernels and terms that saw nothing of the GPU."""
    rows = served_cells()
    cells = parts_of(set_ups(rows))
    lines = []
    for gpu, folder in folders.items():
        pairs = ((named | {"data_dir": str(folder)}, part) for named, part in set_ups(rows))
        own = priced(pair for pair in pairs if pair[0]["gpu"] == gpu)
        if own.empty:
            continue
        others = cells[cells.gpu != gpu]
        both = pd.concat([others, own], ignore_index=True)
        seen = np.arange(len(both)) < len(others)
        fit = Fit(both)
        values, left, rest = fit.solve(seen).x, both[~seen], sorted(set(others.place))
        errors, experts = fit.errors(values)[~seen], fit.experts_of_step(values)[~seen]
        share = np.array(
            [
                least_half_width(widenings_beside(place, rest), 1.0, part)
                for place, part in zip(left.place, experts, strict=True)
            ]
        )
        short = -np.log1p(errors)
        inside = (short <= np.hypot(left.slower, share)) & (short >= -np.hypot(left.faster, share))
        held = pd.Series(inside, index=left.index)
        by_group = held.groupby(left[GROUP].agg(", ".join, axis=1)).mean()
        lines.append((gpu, len(errors), mean_bias_worst(errors), f"{100 * by_group.mean():.0f}",
                      f"{100 * by_group.min():.0f} ({by_group.idxmin()})"))  # fmt: skip
    return table("GPU | served steps | mean % (bias; worst) | held %, mean over groups | least", 1, lines)


def main() -> None:
    """Print the tables."""
    parser = command_line(__doc__)
    parser.add_argument("gpus", nargs="*", metavar="GPU", help="those alone; without any, all of RELATIVES")
    parser.add_argument("--served", action="store_true", help="beside served steps as well")
    asked = parser.parse_args()
    if unknown := sorted(set(asked.gpus) - RELATIVES.keys()):
        parser.error(f"{', '.join(unknown)}: no GPU that can be left out (allowed: {', '.join(RELATIVES)})")
    found, folders = list[pd.DataFrame](), dict[str, Path]()
    with tempfile.TemporaryDirectory() as name:
        for gpu in asked.gpus or RELATIVES:
            for lender in RELATIVES[gpu].lenders:
                folder = Path(name) / f"{gpu} {lender}"
                folders.setdefault(gpu, folder)
                (folder / "hardware").mkdir(parents=True)
                text = borrowing(gpu, lender)
                (folder / "hardware" / f"{gpu}.toml").write_text(text, encoding="utf-8")
                found += steps(gpu, lender, folder)
        served = served_table(folders) if asked.served else ""
    cells = pd.concat(found, ignore_index=True)
    lines = [
        (
            gpu,
            lender,
            len(part),
            mean_bias_worst(part.error),
            *(f"{100 * part[name].mean():.0f}" for name in ("half", "held", "with_engines")),
        )
        for gpu, ((lender, *_), _) in RELATIVES.items()
        if len(part := cells[(cells.gpu == gpu) & (cells.lender == lender)])
    ]
    words = "GPU | lender | steps | mean % (bias; worst) | half-width % | held % | with engines' %"
    print(table(words, 2, lines))
    print(parts_table(cells))
    print(served)


if __name__ == "__main__":
    main()
