"""Is the set-up that `compare` chooses the one that was measured best? DeepSeek-R1 as InferenceX served it.

    python benchmarks/compare_validation.py

Prints what the choice gives up beside the best measured cell, over every GPU and for each alone, how sure it
was, the errors of time per token and tokens/s a GPU, and every choice.

Every measured cell (GPU, engine, format, split, speculation, concurrency) is predicted by `ms.compare`, by
the version of the engine that ran it, with graphs for prompts where its recipe asked for them
(`common/recipes.py`). For each traffic, ten speeds between the slowest and the fastest measured stream are
targets: the cell that is predicted to give most tokens/s a GPU among those predicted to keep the target with
SURE is chosen, and what it measured is held against the best measured cell that keeps it. Of choices that
give up more than MUCH it says what was predicted and measured of the cell passed over.

Few concurrencies were measured, a user may run any: *between* lets every measured set-up run all numbers of
requests that `compare` tries, up to NEAR times fewer and more than measured ones: what it would measure there
is the prediction with the error of the measured ones, linear in the logarithm of the requests.

What any prediction gives up on such a grid is told beside: *as measured* takes what was measured for the
prediction and keeps the bands, and neighbours on the measured frontier lie some tens of per cent apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from common.script import command_line
from common.study import named_rows
from deepseek_rows import GPUS, RUNTIMES, STATED_SHARE, drafts_of, newest, tokens_per_round
from deepseek_rows import predicted as time_per_token

import medusa_sim as ms
from medusa_sim.arrays import FloatArray
from medusa_sim.engines.runtime import load_runtime, runtime_aliases
from medusa_sim.errors import UsageError
from medusa_sim.setups.comparison import on_frontier, sureness
from medusa_sim.setups.question import BATCHES, DRAFTS, SURE, SetupQuestion
from medusa_sim.writing import write_text

TARGETS, MUCH = 10, 0.2
NEAR = 2.0
CELL = ["gpu", "engine", "weights", "speculation", "tp", "ep", "dp_attention", "concurrency"]
GRAPHED = """inherits = "{0}"
title = "{0}, whose graphs hold steps with prompts"
versions = ["{1}", "{1}"]
[engine]
prompt_us_per_launch = {{ value = 0, source = "the recipe has graphs for them" }}
"""
"""A user's runtime of the same name, by name and version."""
TRAFFIC = ["prompt_tokens", "output_tokens"]


def measured() -> pd.DataFrame:
    """The newest run of every cell, with `speed` (tokens/s a user) and `rate` (output tokens/s a GPU)."""
    rows = newest()
    return rows.assign(speed=1e3 / rows.median_tpot_ms, rate=rows.output_tput_per_gpu)


def as_told(rows: pd.DataFrame) -> pd.DataFrame:
    """The cells with `predicted_speed` and `predicted_rate` where a round emits what the rows show.

    What is left is the error of times alone; drafts are those of the recipes (`deepseek_rows`).
    """
    runtimes = {name: load_runtime(name) for name in RUNTIMES}
    rows = rows.assign(tokens=np.round(tokens_per_round(rows), 6))
    speed = 1e3 / time_per_token(rows, runtimes)
    ends = {f"predicted_speed_{end}": speed for end in ("low", "high")}  # no interval: the middle decides
    return rows.assign(predicted_speed=speed, predicted_rate=rows.concurrency * speed / rows.tp, **ends)


def predicted(rows: pd.DataFrame, *, recipes: bool = False, between: bool = False) -> pd.DataFrame:
    """The cells with `predicted_speed` and `predicted_rate`, as a user asks; refused ones are left out.

    recipes: with as many drafts as were served, which the rows do not say, in place of the best number;
    between: with all numbers of requests that are near measured ones.
    """
    parts = []
    setup = [*CELL[:3], *CELL[4:7], "runtime", "graphed", *TRAFFIC]
    for _, part in rows.groupby(setup):
        named: Any = part.iloc[0]
        prompt, output = (STATED_SHARE * named[name] for name in TRAFFIC)
        served = (drafts_of(named["engine"], bool(named["dp_attention"])),)
        engine = runtime_aliases().get(named["runtime"], named["runtime"])
        near = part.concurrency.min() / NEAR, part.concurrency.max() * NEAR
        tried = {size for size in BATCHES if between and near[0] <= size <= near[1]}
        try:
            found = ms.compare(
                "deepseek-r1", gpus=GPUS[named["gpu"]], engines=engine, counts=named["tp"],
                eps=named["ep"], dp_attention=bool(named["dp_attention"]), drafters=("none", "mtp"),
                weight_dtypes="nvfp4" if named["weights"] == "fp4" else "fp8_block",
                batches=sorted(tried.union(part.concurrency)), prompt_tokens=prompt, output_tokens=output,
                drafts=served if recipes else DRAFTS,
                data_dir=own_runtimes(engine).name if named["graphed"] else None,
            ).table  # fmt: skip
        except UsageError as error:
            print(error)
            continue
        found = found.rename(columns={"drafter": "speculation", "batch": "concurrency"})
        names = {f"tokens_per_s_per_user{end}": f"predicted_speed{end}" for end in ("", "_low", "_high")}
        names["tokens_per_s_per_gpu"] = "predicted_rate"
        columns = ["speculation", "concurrency", "drafts", *names]
        priced = found[columns].rename(columns=names)
        if between:
            methods = part.groupby("speculation")
            parts += [filled(own, priced[priced.speculation == method]) for method, own in methods]
        else:
            parts.append(part.merge(priced, on=["speculation", "concurrency"]))
    return pd.concat(parts, ignore_index=True)


@cache
def own_runtimes(name: str) -> TemporaryDirectory[str]:
    """A data folder in which this engine has graphs for steps that carry prompts."""
    folder = TemporaryDirectory(prefix="graphed-")
    runtimes = Path(folder.name) / "profiles/runtimes"
    runtimes.mkdir(parents=True)
    write_text(runtimes / f"{name}.toml", GRAPHED.format(name, name.rpartition("-")[2]))
    return folder


def filled(known: pd.DataFrame, priced: pd.DataFrame) -> pd.DataFrame:
    """Cells of one set-up at every number of requests near measured ones, with what would be measured there.

    known: the measured cells; priced: predictions, those of the measured ones among them.
    """
    both = priced.merge(known[["concurrency", "speed", "rate"]], on="concurrency").sort_values("concurrency")
    requests, seen = np.log(priced.concurrency.to_numpy()), np.log(both.concurrency.to_numpy())
    named: dict[str, Any] = {str(name): known[name].iloc[0] for name in known if name not in priced}
    for name in ("speed", "rate"):
        error = np.log((both[name] / both[f"predicted_{name}"]).to_numpy())
        named[name] = priced[f"predicted_{name}"].to_numpy() * np.exp(np.interp(requests, seen, error))
    is_near = np.abs(requests[:, None] - seen).min(axis=1) <= np.log(NEAR) + 1e-9
    return pd.DataFrame(priced.assign(**named)[is_near])


def choices(rows: pd.DataFrame, sure: float) -> pd.DataFrame:
    """A row a target: what was chosen, what it measured, the best, what is given up and missed.

    sure: the certainty with which a cell must be predicted to keep the target.
    """
    speed, rate, own_rate = (rows[name].to_numpy() for name in ("speed", "rate", "predicted_rate"))
    own_speed, low, high = (rows[f"predicted_speed{end}"].to_numpy() for end in ("", "_low", "_high"))
    names = [told(row) for row in named_rows(rows)]
    found = []
    for target in np.geomspace(speed.min(), speed.max(), TARGETS + 2)[1:-1]:
        asked = SetupQuestion(tokens_per_s_per_user=float(target), sure=sure)
        certainty = sureness(asked, own_speed, low, high)
        keeps = certainty >= asked.sure
        chosen = int(np.argmax(np.where(keeps, own_rate, 0.0) if keeps.any() else own_speed))
        best = int(np.argmax(np.where(speed >= target, rate, 0.0)))
        given_up, missed = 1.0 - rate[chosen] / rate[best], 1.0 - speed[chosen] / target
        names_of = names[chosen], names[best]
        passed_over = speed[best], own_speed[best], certainty[best]
        found.append((target, certainty[chosen], *names_of, given_up, missed, *passed_over))
    columns = "target certainty chosen best given_up missed best_speed best_predicted best_certainty"
    table = pd.DataFrame(found, columns=columns.split())
    return table.assign(given_up=table.given_up.clip(lower=0.0), missed=table.missed.clip(lower=0.0))


def as_measured(rows: pd.DataFrame) -> pd.DataFrame:
    """The cells as if each had been predicted as it was measured, with the bands that they have."""
    right = rows.speed / rows.predicted_speed
    ends = {f"predicted_speed_{end}": rows[f"predicted_speed_{end}"] * right for end in ("low", "high")}
    return rows.assign(predicted_speed=rows.speed, predicted_rate=rows.rate, **ends)


def frontier_steps(rows: pd.DataFrame) -> FloatArray:
    """What each step along the measured frontier to the next faster cell gives up of tokens/s a GPU."""
    speed, rate = rows.speed.to_numpy(), rows.rate.to_numpy()
    kept = on_frontier(speed, rate)
    along = rate[kept][np.argsort(speed[kept])]
    return np.asarray(1.0 - along[1:] / along[:-1])


def least_given_up(rows: pd.DataFrame) -> Iterator[str]:
    """What choices give up on this grid that rest on no error at all."""
    table = scores(as_measured(rows))[1]
    steps = np.concatenate([frontier_steps(part) for _, part in rows.groupby(TRAFFIC)])
    yield (
        f"as measured, with these bands: given up {table.given_up.mean():.1%}, {table.given_up.max():.0%} at "
        f"most; a step along the measured frontier gives up {np.median(steps):.0%} in the median, "
        f"{steps.max():.0%} at most"
    )


def frontier_error(rows: pd.DataFrame) -> float:
    """Mean distance of the predicted frontier from the points of the measured one.

    Along the line on which speed and rate change by the same factor, as an error of the time per token
    moves a point: by what factor both can be had, at the ratio that the measured point has.
    """
    speed, rate = rows.speed.to_numpy(), rows.rate.to_numpy()
    kept = on_frontier(speed, rate)
    own_speed, own_rate = rows.predicted_speed.to_numpy(), rows.predicted_rate.to_numpy()
    both = np.minimum(own_speed / speed[kept, None], own_rate / rate[kept, None])
    return float(np.mean(np.abs(both.max(axis=1) - 1.0)))


def told(row: Any) -> str:
    """A cell in a few words."""
    dp = " dp" if row.dp_attention else ""
    return f"{row.gpu} {row.weights} {row.speculation} tp{row.tp} ep{row.ep}{dp} c{row.concurrency}"


def by_certainty(rows: pd.DataFrame) -> Iterator[str]:
    """What other certainties than the default would have given."""
    for sure in sorted({0.5, 0.6, SURE, 0.8, 0.9}):
        found = pd.concat([choices(part, sure) for _, part in rows.groupby(TRAFFIC)])
        yield (
            f"{sure:.0%} certainty asked: given up {found.given_up.mean():.1%} "
            f"({found.given_up.max():.0%} at most), missed by more than 10 % "
            f"{(found.missed > 0.1).sum()}, at all {(found.missed > 0.0).sum()} of {len(found)}; "
            f"said {found.certainty.mean():.0%}, kept {(found.missed == 0.0).mean():.0%}"
        )


def scores(rows: pd.DataFrame) -> tuple[list[str], pd.DataFrame]:
    """Lines of scores and every choice."""
    lines, every = [], []
    for (prompt, output), part in rows.groupby(TRAFFIC):
        table = choices(part, SURE).assign(traffic=f"{prompt}/{output}")
        every.append(table)
        lines.append(
            f"{prompt}/{output}: {len(part)} cells, given up {table.given_up.mean():.1%} on average, "
            f"{table.given_up.max():.1%} at most; target missed by {table.missed.max():.1%} at most; "
            f"frontier off by {frontier_error(part):.1%}"
        )
    whole = pd.concat(every)
    lines.append(
        f"all: given up {whole.given_up.mean():.1%}, {whole.given_up.max():.0%} at most; missed by more than "
        f"10 %: {(whole.missed > 0.1).sum()} of {len(whole)}"
    )
    return [*lines, *passed_over(whole)], whole


def passed_over(table: pd.DataFrame) -> Iterator[str]:
    """The choices that give up more than MUCH: the best measured cell, and why it was not chosen."""
    for line in named_rows(table[table.given_up > MUCH]):
        off = line.best_predicted / line.best_speed - 1.0
        yield (
            f"{line.given_up:.0%} given up at {line.target:.0f} tokens/s a user: {line.best} measured "
            f"{line.best_speed:.1f}, predicted {line.best_predicted:.1f} ({off:+.0%}), "
            f"{line.best_certainty:.0%} sure; {line.chosen} is {line.certainty:.0%} sure"
        )


def main() -> None:
    """Print scores of all cells and of each GPU and format alone, and every choice."""
    command_line(__doc__).parse_args()
    rows = measured()
    for how, found in (
        ("shipped acceptance", predicted(rows)),
        ("shipped acceptance, drafts of the recipes", predicted(rows, recipes=True)),
        ("tokens of the rows, drafts of the recipes", as_told(rows)),
    ):
        print(f"\n{how}, {len(found)} of {len(rows)} cells")
        parts = {"every GPU": found, "plain decoding": found[found.speculation == "none"]}
        parts["runs of the newest versions"] = found[found.runtime == found.engine]
        for (gpu, weights), part in found.groupby(["gpu", "weights"]):
            parts[f"{gpu} {weights} alone"] = part
        for name, part in parts.items():
            print(f"{name}:", *scores(part)[0], *by_certainty(part), sep="\n  ")
        times, rates = found.speed / found.predicted_speed, found.predicted_rate / found.rate
        print(f"time per token {abs(times - 1.0).mean():.1%}, tokens/s a GPU {abs(rates - 1.0).mean():.1%}")
        print(*least_given_up(found), sep="\n")
        print(scores(found)[1].to_string(index=False, float_format="{:.3f}".format))
    found = predicted(rows, between=True)
    print(f"\nshipped acceptance, between measured numbers of requests, {len(found)} cells")
    print("every GPU:", *scores(found)[0], *by_certainty(found), *least_given_up(found), sep="\n  ")


if __name__ == "__main__":
    main()
