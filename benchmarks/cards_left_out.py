"""Each measured card as if nobody had measured it: its plain steps with kernels borrowed from another card.

    python benchmarks/cards_left_out.py            # beside its own kernels: error, and what its bands hold
    python benchmarks/cards_left_out.py --served   # beside its served steps as well, which no term saw

A card keeps its data sheet and loses every kernel; all are borrowed from one relative, as a card's file says
it (`specs/inheritance.py`). Beside its own kernels engines' terms are the same in both. For served steps they
come from a fit without the card's cells (`hierarchy.py`), and the band from what is then new about it.
"""

from __future__ import annotations

import argparse
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tomlkit
from hierarchy import Fit, parts_of
from served_rows import GROUP, served_cells, set_ups
from study import ROOT, mean_bias_worst, table

import medusa_sim as ms
from medusa_sim.errors import MedusaSimError
from medusa_sim.specs.inheritance import BORROWED
from medusa_sim.specs.nearness import between, known_kinds, nearest_kind
from medusa_sim.step.step import decode_step

LENDERS = {
    "h100-sxm": ("h200-sxm", "a100-80gb-pcie"),
    "h200-sxm": ("h100-sxm", "h100-sxm"),
    "b200": ("h200-sxm", "h100-sxm"),
    "l40s": ("a100-80gb-sxm", "a40"),
    "a100-80gb-sxm": ("h100-sxm", "h100-sxm"),
    "rtx-pro-6000": ("l40s", "a40"),
}
"""Card -> who lends it kernels, and who norms and rope."""
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


def borrowing(card: str) -> str:
    """The file of a card that has nothing of its own but its data sheet."""
    lender, smooth = LENDERS[card]
    own, lent = (
        tomllib.loads((ROOT / f"hardware/{name}.toml").read_text(encoding="utf-8")) for name in (card, lender)
    )
    kernels: dict[str, Any] = {}
    for name, sections in lent["kernels"].items():
        named: dict[str, Any] = {each: lender for each in sections if each in BORROWED and each != "gemm"}
        forms = [
            form for form in sections.get("gemm", {}) if form in ("bf16", "fp16", "fp8", "fp8_block", "nvfp4")
        ]
        if forms:
            gemm = {form: f"{lender}:{name}:{form}" for form in forms}
            named["gemm"] = gemm | {half: gemm.get(half, gemm[forms[0]]) for half in HALVES}
        if name == "sglang":
            named["elementwise"] = f"{smooth}:torch"
        if named:
            kernels[name] = {"inherit": {"reason": "as if nobody had measured the card", **named}}
    kernels["torch"] = {
        "inherit": {
            "reason": "as if nobody had measured the card",
            "gemm": dict.fromkeys(HALVES, f"{lender}:sglang:bf16"),
            "attention": f"{lender}:sglang",
            "elementwise": f"{smooth}:torch",
        }
    }
    return tomlkit.dumps(own | {"kernels": kernels})


def steps(card: str, folder: Path) -> Iterator[pd.DataFrame]:
    """A line of every plain step: by its own kernels, by borrowed ones, and whether their band holds it.

    by_kernels: whether that of borrowed kernels alone does, without what a set-up lies beside others, which
    is of engines and no part of this difference.
    """
    batch, length = np.array(BATCHES)[:, None], np.array(LENGTHS)
    for asked in SET_UPS:
        for runtime in RUNTIMES:
            borrowed: tuple[dict[str, Any], ...] = ({}, {"data_dir": str(folder)})
            given = asked | {"gpu": card, "runtime": runtime, "drafter": "ngram", "acceptance": "0.5"}
            try:
                own, lent = (
                    decode_step(ms.Scenario(**given, **more).setting, batch, length).cost for more in borrowed
                )
            except MedusaSimError as refused:
                print(f"{card}, {asked}, {runtime}: {refused}")
                continue
            bands = {"held": lent, "by_kernels": replace(lent, between_us=np.zeros(()))}
            inside = {
                name: ((each.low_us <= own.time_us) & (own.time_us <= each.high_us)).ravel()
                for name, each in bands.items()
            }
            error = (lent.time_us / own.time_us - 1.0).ravel()
            yield pd.DataFrame({"card": card, "error": error, **inside})


def priced(pairs: Iterable[tuple[dict[str, Any], pd.DataFrame]]) -> pd.DataFrame:
    """Parts of every cell whose kernels the lender has (nvfp4 is Blackwell's alone)."""
    found = [pd.DataFrame()]
    for pair in pairs:
        try:
            found.append(parts_of([pair]))
        except MedusaSimError as error:
            print(f"left out, {len(pair[1])} cells: {error}")
    return pd.concat(found, ignore_index=True)


def served_table(folders: dict[str, Path]) -> str:
    """Served steps of each card, by borrowed kernels and terms that saw nothing of the card."""
    rows, known = served_cells(), known_kinds()
    cells = parts_of(set_ups(rows))
    lines = []
    for card, folder in folders.items():
        pairs = ((named | {"data_dir": str(folder)}, part) for named, part in set_ups(rows))
        own = priced(pair for pair in pairs if pair[0]["gpu"] == card)
        if own.empty:
            continue
        others = cells[cells.gpu != card]
        both = pd.concat([others, own], ignore_index=True)
        seen = np.arange(len(both)) < len(others)
        fit = Fit(both)
        values, left, rest = fit.solve(seen).x, both[~seen], set(others.place)
        errors, experts = fit.errors(values)[~seen], fit.experts_of_step(values)[~seen]
        near = [known[nearest_kind(place, rest)[0]] for place in left.place]
        whole, of_experts = (
            np.array(each) for each in zip(*((n.between_share, n.experts_share) for n in near), strict=True)
        )
        share = between(whole, of_experts, experts)
        short = -np.log1p(errors)
        inside = (short <= np.hypot(left.slower, share)) & (short >= -np.hypot(left.faster, share))
        held = pd.Series(inside, index=left.index)
        by_group = held.groupby(left[GROUP].agg(", ".join, axis=1)).mean()
        lines.append((card, len(errors), mean_bias_worst(errors), f"{100 * by_group.mean():.0f}",
                      f"{100 * by_group.min():.0f} ({by_group.idxmin()})"))  # fmt: skip
    return table("card | served steps | mean % (bias; worst) | held %, mean over groups | least", 1, lines)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--served", action="store_true", help="beside served steps as well")
    asked = parser.parse_args()
    found, folders = list[pd.DataFrame](), dict[str, Path]()
    with tempfile.TemporaryDirectory() as name:
        for card in LENDERS:
            folder = folders[card] = Path(name) / card
            (folder / "hardware").mkdir(parents=True)
            (folder / "hardware" / f"{card}.toml").write_text(borrowing(card), encoding="utf-8")
            found += steps(card, folder)
        served = served_table(folders) if asked.served else ""
    cells = pd.concat(found, ignore_index=True)
    lines = [
        (
            card,
            LENDERS[str(card)][0],
            len(part),
            mean_bias_worst(part.error),
            f"{100 * part.held.mean():.0f}",
            f"{100 * part.by_kernels.mean():.0f}",
        )
        for card, part in cells.groupby("card", sort=False)
    ]
    print(table("card | lender | steps | mean % (bias; worst) | held % | by kernels %", 2, lines))
    print(served)


if __name__ == "__main__":
    main()
