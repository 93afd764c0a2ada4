"""`medusa-sim acceptance`: what profiles say, predictions from a few observations, profiles from tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from medusa_sim.cli import examples, say
from medusa_sim.cli import options as take
from medusa_sim.cli.output import Output
from medusa_sim.cli.values import ACCEPTANCE, CANDIDATES, DRAFTER, grid
from medusa_sim.errors import DataError, UsageError
from medusa_sim.reading.tables import numbered_csv_table

if TYPE_CHECKING:
    import pandas as pd

    from medusa_sim.lab.block_efficiency.shape import DraftShape

_MET = 0.005
"""Relative difference from a measured number that its usual two decimals leave."""
_WRITTEN = click.option(
    "-o", "--output", "path", type=take.FILE, required=True, help="Profile to write (TOML)."
)


@click.group(
    epilog=examples(
        "medusa-sim acceptance predict --observations measured.csv --targets wanted.csv",
        "medusa-sim acceptance show medusa1-vicuna-7b --candidates 2,8,16,32,64",
        "medusa-sim acceptance fit --head-accuracy heads.csv --source 'our eval, 2026-11' -o ours.toml",
        "medusa-sim acceptance from-engine http://127.0.0.1:8000/metrics --wait 60 -o ours.toml",
    )
)
def acceptance() -> None:
    """Tokens per step: profiles, other shapes predicted from a few measured ones, your own measurements."""


@take.command(
    "medusa-sim acceptance predict --observations sd.csv --targets all.csv --format csv", into=acceptance
)
@click.option(
    "--observations",
    type=take.FILE,
    required=True,
    help="CSV decoder,spec,block_efficiency of one target, draft and task; a few SD rows suffice.",
)
@click.option(
    "--targets",
    type=take.FILE,
    required=True,
    help="CSV decoder,spec of what to predict; a block_efficiency column is compared.",
)
@take.output
def predict(*, observations: Path, targets: Path, output: Output) -> None:
    """Block efficiency of longer chains, SpecTr, RSD-C and RSD-S from a few measured chains.

    Decoders: SD, SpecTr, RSD-C, RSD-S. Specs: 4 is a chain of 4 drafts, 2-2-1 are branching factors, 5x4
    are 5 paths (or a beam of 5) of 4 drafts. What was measured is given as it was, and no draft of a chain
    adds more than the one before it. low and high bound 80 %, within what measured chains leave possible. A
    measured tree among the observations, the wider the better, tells how softly the two models part and
    narrows the band of other trees.
    """
    from medusa_sim.lab.block_efficiency.prediction import has_tree, predicted_efficiencies, prediction_band
    from medusa_sim.report.words.numbers import percent

    seen = _rows(observations, ("decoder", "spec", "block_efficiency"))
    wanted = _rows(targets, ("decoder", "spec"))
    shapes = _shapes(wanted)
    observed = list(zip(_shapes(seen), seen["block_efficiency"], strict=True))
    predicted = predicted_efficiencies(observed, shapes)
    wanted["predicted_block_efficiency"] = predicted
    with_tree = has_tree(shape for shape, _ in observed)
    wanted["low"], wanted["high"] = prediction_band(shapes, predicted, observed, with_tree=with_tree)
    if "block_efficiency" in wanted:
        wanted["error"] = predicted / wanted["block_efficiency"] - 1.0
        error = wanted["error"].abs()
        say(f"mean error {percent(error.mean(), 2)}, worst {percent(error.max(), 2)} over {len(wanted)} rows")
    output.rows(wanted, "acceptance-predict")


def _shapes(frame: pd.DataFrame) -> list[DraftShape]:
    """What the rows draft. Raises DataError for an unknown decoder or a malformed spec."""
    from medusa_sim.lab.block_efficiency.shape import parsed_shape

    return [parsed_shape(*row) for row in zip(frame["decoder"], frame["spec"], strict=True)]


def _rows(path: Path, needed: tuple[str, ...]) -> pd.DataFrame:
    """Rows of a CSV file; text for decoder and spec, numbers for block_efficiency. Raises DataError."""
    import pandas as pd

    frame = numbered_csv_table(path, needed, text=("decoder", "spec"))
    for name in ("decoder", "spec"):
        if (empty := frame[name].isna()).any():
            raise DataError(f"{path} line {empty.idxmax()}: {name} is empty")
        frame[name] = frame[name].str.strip()
    if "block_efficiency" in frame:
        numbers = pd.to_numeric(frame["block_efficiency"], errors="coerce")
        wrong = ~(numbers.ge(1.0) & numbers.lt(float("inf")))
        if wrong.any():
            given = str(frame["block_efficiency"][wrong].iloc[0])[:20]
            raise DataError(
                f"{path} line {wrong.idxmax()}: block_efficiency {given!r} is not a number from 1 on"
            )
        frame["block_efficiency"] = numbers.astype(float)
    return frame


@take.command(
    "medusa-sim acceptance show medusa1-vicuna-7b --candidates 1..64",
    "medusa-sim acceptance show 2.48@3 --drafter eagle3 --candidates 1..7",
    into=acceptance,
)
@click.argument("profile", type=ACCEPTANCE)
@click.option(
    "--candidates",
    default="1,2,4,8,16,32,64",
    show_default=True,
    type=grid(CANDIDATES),
    help="Root included.",
)
@click.option(
    "--drafter",
    type=DRAFTER,
    help="Extend a chain to more drafts than were measured, as answers with this drafter do.",
)
@take.output
@take.data_dir
def show(
    *, profile: str, candidates: tuple[int, ...], drafter: str | None, output: Output, data_dir: Path | None
) -> None:
    """Tokens per step of an acceptance by candidates, with its 80 % band and the heads that are used.

    PROFILE: in any form that --acceptance takes.
    """
    import numpy as np
    import pyarrow as pa

    from medusa_sim.acceptance.deeper import DEEPEST
    from medusa_sim.acceptance.heads import heads_worth_running
    from medusa_sim.scenario.acceptance import doubtful_shares, resolve_word
    from medusa_sim.scenario.adjusted_acceptance import with_further_drafts
    from medusa_sim.step.drafter import drafter_class

    loaded = (
        resolve_word(profile, data_dir)
        if drafter is None
        else with_further_drafts(resolve_word(profile, data_dir), drafter_class(drafter))
    )
    within = np.asarray([count for count in candidates if count <= loaded.candidates_max])
    more = f"covers 1..{loaded.candidates_max} candidates"
    heads = loaded.heads
    if drafter is None and heads is not None and heads.ranks == 1 and heads.depth < DEEPEST:
        more += (
            ": --drafter NAME guesses a few more drafts of it, `acceptance from-engine` reads a longer run "
            "of yours, `acceptance predict` other chains and trees of a draft model"
        )
    if within.size == 0:
        raise UsageError(f"acceptance {loaded.name} {more}")
    notes, doubt = [], doubtful_shares(profile)
    if within.size < len(candidates):
        within = np.union1d(within, [loaded.candidates_max])
        notes.append(f"{loaded.name} {more}; larger ones left out")
    if (measured := loaded.measured_drafts) is not None:
        notes.append(
            f"{loaded.name} was measured for {measured} drafts; further ones are a guess, with wider bands"
        )
    low, high = loaded.band(within)
    columns = {
        "candidates": within,
        "tokens_per_step": loaded.tokens_per_step(within),
        "tokens_per_step_low": low,
        "tokens_per_step_high": high,
    }
    if heads is not None:
        trees = [loaded.tree(int(count)) for count in within]
        columns["depth"] = np.asarray([tree.depth if tree is not None else 0 for tree in trees])
        columns["heads_worth_running"] = np.asarray(
            [heads_worth_running(heads, int(count)) if count > 1 else 0 for count in within]
        )
    if output.form in ("table", "md") and not output.is_wide:
        from medusa_sim.report.acceptance_screen import acceptance_screen

        output.screen(acceptance_screen(loaded, columns, notes, doubt))
        return
    for line in (*notes, *([doubt] if doubt else []), f"{loaded.title}; source: {loaded.source}"):
        say(line)
    output.rows(pa.table(columns), "acceptance", profile=loaded.name, source=loaded.source)


@take.command(
    "medusa-sim acceptance fit --head-accuracy heads.csv --source 'our eval' -o ours.toml",
    "medusa-sim acceptance fit --head-accuracy heads.csv --source 'our eval' --tree tree.json "
    "--tokens-per-step 2.71 -o ours.toml",
    into=acceptance,
)
@click.option("--head-accuracy", type=take.FILE, required=True, help="CSV of accuracies per head and rank.")
@click.option("--of", "of_model", help="Rows of this model, where the file has a model column.")
@click.option("--title", help="What was measured [the file's name].")
@click.option("--source", required=True, help="Where the numbers come from; every profile says so.")
@click.option(
    "--agreement",
    default="target",
    show_default=True,
    type=click.Choice(("target", "teacher-forced")),
    help="Right is what the target emits in its own text, or the next token of a given text.",
)
@click.option("--tree", "tree_file", type=take.FILE, help="A tree that was run.")
@click.option("--tokens-per-step", type=click.FLOAT, help="What it gave; fits the correlation of the heads.")
@_WRITTEN
def fit(
    *,
    head_accuracy: Path,
    of_model: str | None,
    title: str | None,
    source: str,
    agreement: Any,
    tree_file: Path | None,
    tokens_per_step: float | None,
    path: Path,
) -> None:
    """A profile (TOML) of your own heads, with the correlation that one measured tree implies."""
    from medusa_sim.acceptance.correlation import fitted_correlation
    from medusa_sim.acceptance.head_table import read_accuracies
    from medusa_sim.acceptance.heads import expected_tokens_per_step
    from medusa_sim.acceptance.profile_file import SCHEMA, HeadRow, HeadTopkFile, encoded_profile
    from medusa_sim.acceptance.tree_file import read_tree
    from medusa_sim.report.words.numbers import percent
    from medusa_sim.writing import check_writable, write_text

    if (tree_file is None) != (tokens_per_step is None):
        raise UsageError("--tree and --tokens-per-step describe one measurement: give both or neither")
    if path.suffix != ".toml":
        raise UsageError(f"{path}: a profile is a .toml file")
    check_writable(path)
    heads = read_accuracies(head_accuracy, of_model)
    correlation = 0.0
    if tree_file is not None and tokens_per_step is not None:
        read = read_tree(tree_file)
        if not 1.0 <= tokens_per_step <= read.depth + 1:
            raise UsageError(f"--tokens-per-step {tokens_per_step:g}: this tree emits 1 to {read.depth + 1}")
        heads_run = heads.with_zeros(read.ranks_used)
        correlation = fitted_correlation([(heads_run, read, tokens_per_step)])
        predicted = expected_tokens_per_step(read, heads_run.with_correlation(correlation))
        error = predicted / tokens_per_step - 1.0
        if abs(error) > _MET:
            say(
                f"note: no correlation of these heads gives {tokens_per_step:g} tokens a step with this "
                f"tree; the nearest gives {predicted:.2f} ({percent(error, 0, signed=True)})"
            )
    counts = [0] * heads.depth if heads.labels is None else [int(count) for count in heads.labels]
    accuracies = zip(heads.accuracy.tolist(), counts, strict=True)
    rows = [HeadRow(accuracy=accuracy, labels=count) for accuracy, count in accuracies]
    profile = HeadTopkFile(
        schema=SCHEMA,
        title=title or head_accuracy.stem,
        source=source,
        agreement=agreement,
        heads=rows,
        correlation=correlation,
    )
    write_text(path, encoded_profile(profile))
    say(f"wrote {path} ({heads.depth} heads, {heads.ranks} ranks, correlation {correlation:.3f})")


@take.command(
    "medusa-sim acceptance from-engine after.txt --before before.txt -o ours.toml",
    "medusa-sim acceptance from-engine http://127.0.0.1:8000/metrics --wait 60 -o ours.toml",
    "medusa-sim acceptance from-engine profile_export.jsonl --of llama-3.1-8b -o ours.toml",
    name="from-engine",
    into=acceptance,
)
@click.argument("sources", nargs=-1, required=True, metavar="FILE|URL...")
@take.record("counters", take.Counters)
@click.option("--of", "of_model", help="Counts of this model, where there are several.")
@click.option(
    "--lookup",
    is_flag=True,
    help="Drafts are looked up in the text (n-gram, suffix): count steps that found none too.",
)
@click.option("--title", help="What was measured [engine and model].")
@click.option("--source", help="Where the numbers come from [the files' names].")
@_WRITTEN
def from_engine(
    *,
    sources: tuple[str, ...],
    counters: take.Counters,
    of_model: str | None,
    lookup: bool,
    title: str | None,
    source: str | None,
    path: Path,
) -> None:
    """A profile (TOML) by position from what a serving engine counted.

    Read are /metrics pages of vLLM (a file, two with --before, or a URL), JSON or JSON lines with the
    acceptance histograms of vLLM, SGLang, TensorRT-LLM and AIPerf, results of `vllm bench serve`, and logs of
    llama.cpp and vLLM. Where the number of drafts varied, every step counts at the positions that it tried.
    """
    from medusa_sim.acceptance.engine_counters import (
        combined,
        over_every_step,
        position_profile,
        profile_text,
    )
    from medusa_sim.acceptance.profile import load_acceptance
    from medusa_sim.acceptance.profile_file import encoded_profile
    from medusa_sim.scenario.acceptance import both_kinds
    from medusa_sim.writing import check_writable, write_text

    if path.suffix != ".toml":
        raise UsageError(f"{path}: a profile is a .toml file")
    if take.is_given("before") and len(sources) != 1:
        raise UsageError("--before belongs to one page after it; give one FILE")
    check_writable(path)
    counts = combined([part for given in sources for part in counters.read(given)], of_model)
    names = ", ".join(given if "://" in given else Path(given).name for given in sources)
    what = title or " ".join(filter(None, (counts.engine, counts.model, "acceptance by position")))
    match_rate = None
    if lookup:
        counts, match_rate = over_every_step(counts)
    profile = position_profile(
        counts,
        title=what,
        source=source or f"counters of {counts.engine}: {names}",
        match_rate=match_rate,
    )
    write_text(path, encoded_profile(profile))
    for note in counts.notes:
        say(f"note: {note}")
    if text := profile_text(profile):
        say(text)
    say(
        f"wrote {path} ({counts.steps} steps; drafts accepted in {both_kinds(load_acceptance(path))}; "
        f"{counts.tokens_per_step:.2f} tokens a step with {len(profile.positions)} drafts)"
    )
