"""How far rounds lie from engines' terms where no round of such GPUs or models was measured.

    python benchmarks/round_bands.py            # sources by what was left out, and what bands hold
    python benchmarks/round_bands.py --write    # `far_gain_share` into medusa_sim/engines/runtimes.toml

A source is left out whole; then all rounds of a generation of GPUs, of a form of model, of a vendor (WAYS,
from the nearest to the farthest). Its cells are beside predictions that saw none of these: fits without them
(`engine_fit.py`), priors (`deepseek_rows.py`), published rows and ratios of mixtures, which no fit saw.
Beside the bands of terms and kernels sources of one way differ by s:

    error of a cell ~ N(0, band^2 + s^2)        each source counts once, however many cells it has
    log s rises from way to way by |N(0, t)|    t from 0.05 to 2, flat in its logarithm

t is told by all ways but the last, which has few sources: these move s from what the way before it leaves,
and t not at all. A share is the half-width that holds 80 % of a further source, over all s that are left.
Where a source is near, its version's `gain_share` counts (`engine_bands.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

import deepseek_rows
import engine_fit
import moe_speculation
import numpy as np
import pandas as pd
import published
from common.engine_rows import Kernels, banded, published_rows
from common.script import ROOT, command_line
from common.study import PROMISED, left_out, named_rows, table
from common.terms import bare, inline, stored, with_term_line
from scipy.optimize import brentq
from scipy.stats import norm

from medusa_sim.arrays import BoolArray, FloatArray
from medusa_sim.engines.case import form_of
from medusa_sim.engines.engine import unversioned
from medusa_sim.engines.runtime import Runtime, load_runtime
from medusa_sim.gpus.carried import OTHER_VENDOR
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.models.named import load_model
from medusa_sim.step.drafter import lookups
from medusa_sim.writing import write_text

WAYS = ("source", "generation", "form", "vendor")
PAPERS = (("SGLang eagle", "EAGLE-3"), ("vLLM A100", "EAGLE-3"), ("specdecode-bench", "specdecode-bench"),
          ("SpecBundle", "SpecBundle"), ("A100 ", "A100 study"), ("MoESD", "MoESD"))  # fmt: skip
"""How rows of one publication begin where it has several sources, and its name."""
FITTED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "vllm": (("dense",), ("hopper", "ampere")),
    "sglang": (("dense", "latent"), ("hopper",)),
    "tensorrt-llm": (("latent",), ("blackwell",)),
}
"""Forms of models and generations of GPUs whose rounds told an engine's terms of drafting."""
TO_80 = float(norm.ppf((1.0 + PROMISED) / 2.0))
SPREADS = np.exp(np.linspace(np.log(0.005), np.log(3.0), 121))
RISES = np.exp(np.linspace(np.log(0.05), np.log(2.0), 21))
FIRST = {"vllm": "vllm-0.10", "sglang": "sglang-0.4", "tensorrt-llm": "tensorrt-llm-1.2"}
"""The version that others of its engine inherit from."""
SOURCE = "what rounds of other sources miss by that were left out together (benchmarks/round_bands.py)"
COLUMNS = ["way", "paper", "source", "low", "high", "short"]
Shares: TypeAlias = dict[str, float]


# Cells: half-widths of bands without what is told here, and the logarithm of measured over predicted rounds.


def every_cell() -> pd.DataFrame:
    """A line of every cell and way that it was left out."""
    parts = [dense_cells(), latent_cells(), mixture_cells(), published_cells()]
    return pd.concat(parts, ignore_index=True)[COLUMNS]


def paper_of(source: str) -> str:
    """What published a source."""
    return next((paper for begins, paper in PAPERS if source.startswith(begins)), source)


def dense_cells() -> pd.DataFrame:
    """Rounds and ratios of the rows that `engine_fit` sees, without their paper, then their generation."""
    rows = [Kernels(row) for row in published_rows()]
    every = np.array(rows, dtype=object)

    def without(groups: list[str]) -> FloatArray:
        return left_out(
            groups,
            lambda keep: engine_fit.fit(list(every[keep])),
            lambda found, own: engine_fit.errors(found, list(every[own])),
        )

    cards = [(unversioned(each.row.runtime), load_gpu(each.row.gpu).architecture) for each in rows]
    several = {engine for engine, _ in cards if len({card for name, card in cards if name == engine}) > 1}
    outs = {
        "source": without([paper_of(each.row.source) for each in rows]),
        "generation": without([" ".join(card) for card in cards]),
    }
    for each in rows:
        each.setting = replace(each.setting, runtime=bare(each.setting.runtime))
    shipped, found = engine_fit.errors(stored(engine_fit.TERMS), rows), []
    for way, out in outs.items():
        cells = banded(rows, shipped, out)
        is_told = (cells.kind == "round") | ((cells.kind == "speedup") & (cells.row_kind == "ratio"))
        cells = cells[is_told & ~cells.drafter.isin(lookups())]
        dense = np.array([form_of(load_model(name)) == "dense" for name in cells.model])
        if way == "source":
            found.append(as_rounds(cells[~dense], "form"))
        else:
            dense &= cells.runtime.map(unversioned).isin(several).to_numpy()
        found.append(as_rounds(cells[dense], way))
    return pd.concat(found)


def as_rounds(cells: pd.DataFrame, way: str) -> pd.DataFrame:
    """Cells of `engine_rows.banded` as rounds: a speedup that is too small has a round that is too long."""
    gain = cells.kind == "speedup"
    return pd.DataFrame(
        {
            "way": way,
            "paper": cells.source.map(paper_of),
            "source": cells.source,
            "low": np.where(gain, cells.high, cells.low),
            "high": np.where(gain, cells.low, cells.high),
            "short": np.where(gain, -cells.short_out, cells.short_out),
        }
    )


def latent_cells() -> pd.DataFrame:
    """DeepSeek's rounds as served, by what was known before any of them was seen."""
    rows = deepseek_rows.newest(versions=True)
    rows["tokens"] = np.round(deepseek_rows.tokens_per_round(rows), 6)
    rows = rows[rows.speculation != "none"]
    before = deepseek_rows.runtimes_of(deepseek_rows.PRIOR)
    time_ms, low, high = deepseek_rows.banded(rows, {name: bare(runtime) for name, runtime in before.items()})
    measured = rows.median_tpot_ms.to_numpy()
    return pd.DataFrame(
        {
            "way": "form",
            "paper": "InferenceX " + rows.engine,
            "source": "InferenceX " + rows.engine + " " + rows.weights,
            "low": np.log(time_ms / low),
            "high": np.log(high / time_ms),
            "short": np.log(measured / time_ms),
        }
    )


def mixture_cells() -> pd.DataFrame:
    """Ratios of mixtures that sources published."""
    cells = moe_speculation.cells()
    cells = cells[~cells.looks_up]
    return cells.assign(way="form", paper=cells.source.map(paper_of), short=cells.short_out)


def published_cells() -> pd.DataFrame:
    """Rounds and speedups on engines' and vendors' own pages; terms were set by none of them."""
    rows = published.compared(launched)
    is_told = (rows.what == "round") & rows.counts | (rows.what == "speedup") & ~rows.set_by
    rows = rows[is_told & rows.engine.isin(list(FITTED))]
    gain, short = rows.what == "speedup", np.log(rows.measured / rows.predicted)
    low, high = np.log(rows.predicted / rows.low), np.log(rows.high / rows.predicted)
    cells = pd.DataFrame(
        {
            "way": [way_of(line.engine, line.gpu, line.model) for line in named_rows(rows)],
            "paper": rows.url,
            "source": rows.id,
            "low": np.where(gain, high, low),
            "high": np.where(gain, low, high),
            "short": np.where(gain, -short, short),
        }
    )
    return pd.concat([cells, cookbook_cells()])


def cookbook_cells() -> pd.DataFrame:
    """Rounds of lone requests in SGLang's cookbook: of more, half of what is measured are prompts."""
    rows = published.cookbook(launched)
    rows = rows[(rows.skipped == "") & (rows.drafts > 0) & (rows.requests == 1)]
    models = [published.COOKBOOK_MODELS[line.model, line.weights]["model"] for line in named_rows(rows)]
    cards = [published.COOKBOOK_GPUS[line.gpu] for line in named_rows(rows)]
    return pd.DataFrame(
        {
            "way": [way_of("sglang", gpu, name) for gpu, name in zip(cards, models, strict=True)],
            "paper": "cookbook " + rows.model,
            "source": "cookbook " + rows.model,
            "low": np.log(rows.predicted / rows.low),
            "high": np.log(rows.high / rows.predicted),
            "short": -np.log1p(rows.error),
        }
    )


def launched(name: str) -> Runtime:
    """A runtime whose bands have nothing that is told here."""
    runtime = load_runtime(name)
    return runtime if runtime.engine is None else bare(runtime)


def way_of(engine: str, gpu: str, model: str) -> str:
    """By what a round that no fit saw differs most from those that told its engine's terms."""
    forms, generations = FITTED[engine]
    generation = load_gpu(gpu).architecture
    if generation == OTHER_VENDOR:
        return "vendor"
    if form_of(load_model(model)) not in forms:
        return "form"
    return "source" if generation in generations else "generation"


# Spreads.


def told_by(cells: pd.DataFrame) -> FloatArray:
    """(spreads,) logarithm of how likely the cells of one way are by each of SPREADS."""
    total = np.zeros(SPREADS.size)
    for _, own in cells.groupby("paper"):
        half = np.where(own.short > 0.0, own.high, own.low) / TO_80
        deviation = np.hypot(half[:, None], SPREADS)
        total += np.mean(norm.logpdf(own.short.to_numpy()[:, None], scale=deviation), axis=0)
    return total


def rising(t: float) -> FloatArray:
    """(from, to) chance of the next way's spread by that of this one."""
    steps = np.log(SPREADS) - np.log(SPREADS)[:, None]
    chance = np.where(steps >= 0.0, np.exp(-0.5 * (steps / t) ** 2), 0.0)
    return np.asarray(chance / chance.sum(axis=1, keepdims=True))


def spreads_of(cells: pd.DataFrame) -> dict[str, FloatArray]:
    """Way -> (spreads,) chance of each of SPREADS.

    Of the last way its own cells tell that of it alone, neither t nor the spreads of ways before it.
    """
    likely = {way: told_by(cells[cells.way == way]) for way in WAYS}
    chance = {way: np.exp(log - log.max()) for way, log in likely.items()}
    every: dict[str, FloatArray] = {way: np.zeros(SPREADS.size) for way in WAYS}
    for t in RISES:
        rise, forth = rising(float(t)), np.full(SPREADS.size, 1.0 / SPREADS.size)
        seen, weight = [], 1.0
        for place, way in enumerate(WAYS[:-1]):
            forth = (forth @ rise if place else forth) * chance[way]
            weight *= forth.sum()
            forth = forth / forth.sum()
            seen.append(forth)
        last = (forth @ rise) * chance[WAYS[-1]]
        every[WAYS[-1]] += weight * last / last.sum()
        back = np.ones(SPREADS.size)
        for way, own in reversed(list(zip(WAYS[:-1], seen, strict=True))):
            every[way] += weight * own * back / (own * back).sum()
            back = rise @ (chance[way] * back)
    return {way: found / found.sum() for way, found in every.items()}


def shares_of(cells: pd.DataFrame) -> Shares:
    """Way -> 80 % half-width of a further source, never less than of a nearer way."""
    found: Shares = {}
    for way, chance in spreads_of(cells).items():

        def missing(half: float, chance: FloatArray = chance) -> float:
            return float(chance @ (2.0 * norm.cdf(half / SPREADS) - 1.0)) - PROMISED

        found[way] = max([round(float(brentq(missing, 1e-4, 20.0)), 3), *found.values()])
    return found


def held(cells: pd.DataFrame, share: float) -> BoolArray:
    """Which cells lie in bands that hold so much more, in quadrature."""
    low, high = np.hypot(cells.low, share), np.hypot(cells.high, share)
    return np.asarray((-low <= cells.short) & (cells.short <= high))


def out_table(cells: pd.DataFrame, shares: Shares) -> str:
    """Sources by way: what they miss by, what bands hold, and what by shares that did not see them."""
    lines = []
    for way, share in shares.items():
        for name, own in cells[cells.way == way].groupby("paper"):
            paper = str(name)
            without = shares_of(cells[cells.paper != paper])[way]
            holds = (f"{held(own, each).mean():.0%}" for each in (0.0, share, without))
            shown = paper.rpartition("github.com/")[2].removeprefix("https://")[:60]
            band = own[["low", "high"]].to_numpy().mean()
            sizes = f"{own.short.mean():+.3f}", f"{own.short.std(ddof=0):.3f}", f"{band:.3f}"
            lines.append((way, shown, len(own), *sizes, *holds, f"{without:.3f}"))
    words = "left out | publication | cells | bias | scatter | band | held without % | held %"
    return table(f"{words} | by others' share % | others' share", 2, lines)


def write(shares: Shares) -> None:
    """The shares into runtimes.toml."""
    path = ROOT / "medusa_sim/engines/runtimes.toml"
    text = path.read_text(encoding="utf-8")
    wheres = {
        "vendor": {
            "rule": "GPUs of a vendor that rounds hardly tell",
            "outside": ["generations"],
            "generations": [OTHER_VENDOR],
        },
        "form": {"rule": "a form of model without measured rounds", "outside": ["forms"]},
        "generation": {"rule": "a generation of GPUs without measured rounds", "outside": ["generations"]},
    }
    elsewhere = [{"value": shares[way], "source": SOURCE, **where} for way, where in wheres.items()]
    for engine, (forms, generations) in FITTED.items():
        measured = {"forms": forms, "generations": generations}
        term = {"value": 0, "source": SOURCE, "measured": measured, "elsewhere": elsewhere}
        text = with_term_line(text, FIRST[engine], f"far_gain_share = {inline(term)}")
    write_text(path, text.rstrip("\n") + "\n")


def main() -> None:
    """Print sources, shares and what they hold; write where asked."""
    asked = command_line(__doc__, writes="the shares into runtimes.toml").parse_args()
    cells = every_cell()
    shares = shares_of(cells)
    print(out_table(cells, shares))
    lines = []
    for way, share in shares.items():
        own = cells[cells.way == way]
        holds = [held(part, share).mean() for _, part in own.groupby("paper")]
        lines.append((way, len(holds), f"{share:.3f}", f"{np.mean(holds):.0%}"))
    print(table("left out | publications | share | held in their mean", 1, lines))
    if asked.write:
        write(shares)


if __name__ == "__main__":
    main()
