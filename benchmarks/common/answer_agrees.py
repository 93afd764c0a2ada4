"""Where an answer of `recommend` contradicts itself: schedule, rows, crossings, bands, words, settings."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import numpy as np

from medusa_sim.arrays import BoolArray
from medusa_sim.doubts.of_scenario import scenario_doubts
from medusa_sim.engines.runtime import runtime_aliases
from medusa_sim.errors import UsageError
from medusa_sim.export.engines import engine_settings
from medusa_sim.grid.axes import Grid
from medusa_sim.grid.quantities import values
from medusa_sim.outside.escaping import paragraph
from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.plan.verdict import LOSES, PAYS, odds_of
from medusa_sim.report.recommend.python import RecommendResult, recommendation_values
from medusa_sim.report.recommend.screen import recommend_screen
from medusa_sim.report.recommend.sentences import sentence
from medusa_sim.report.recommend.warnings import warnings
from medusa_sim.report.screen import WIDTH, screen_text
from medusa_sim.report.screen_blocks import screen_markdown
from medusa_sim.report.words.caveats import caveats
from medusa_sim.report.words.memory import shortfall_facts, shortfall_text

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "app"))
import notes  # the app's, which draws nothing


def failures(found: Recommendation) -> Iterator[str]:
    """What does not agree in an answer, a line each."""
    yield from disagreements(found)
    yield from _forms(found)


def disagreements(found: Recommendation) -> Iterator[str]:
    """What does not agree between schedule, rows, curve, crossings, decision, bands and exported settings."""
    parts = found.ranges[0]
    on = np.concatenate([[part.configuration > 0] * (part.last + 1 - part.first) for part in parts])
    yield from _verdicts(found, on)
    yield from _bands(found)
    yield from _exported(found, on)


def _verdicts(found: Recommendation, on: BoolArray) -> Iterator[str]:
    cells, (length,) = found.cells, found.question.seq_len
    best = np.where(cells.fits, cells.speedup, 0.0)[:, 0, 1:].max(axis=-1, initial=0.0)
    columns = values(cells.by_count, ("batch", "candidates", "fits_memory", "speedup"))
    several = np.broadcast_arrays(*columns.values())
    counts, fits, gains = several[1:]
    counted = np.where(fits.astype(bool) & (counts > 1), gains, 0.0)[:, 0].max(axis=-1)
    paid = [span for crossing in found.break_even_batches for span in crossing.spans]
    pays_somewhere = bool((best > 1.0).any())
    odds = odds_of(cells)[:, 0]
    for batch, speculates, gain, of_counts, known in zip(
        cells.surface.batch.tolist(),
        on.tolist(),
        best.tolist(),
        counted.tolist(),
        odds.tolist(),
        strict=True,
    ):
        said = {
            "the crossings": pays_somewhere and any(first <= batch <= last for first, last in paid),
            "the row at the batch": found.scheduled_row_at(batch, length).candidates > 1,
        }
        if known in (LOSES, PAYS):
            said["the best speedup"] = gain > 1.0
            said["the curve by count"] = of_counts > 1.0
        for name, is_on in said.items():
            if is_on != speculates:
                yield f"batch {batch}: the schedule says {speculates}, {name} {is_on} ({gain:.4f}x)"
    for row in found.schedule:
        if (row.candidates > 1) != (row.speedup_lowest > 1.0) and row.uncertain is None:
            yield f"batch {row.batch_min}..{row.batch_max}: {row.candidates} at {row.speedup_lowest:.4f}x"
    told = sentence(found)
    if found.enable != bool(on.any()) or found.enable != told.startswith("Enable"):
        yield f"enable {found.enable}, batches {on.tolist()}, decision {told[:60]!r}"


def _bands(found: Recommendation) -> Iterator[str]:
    surface = found.cells.surface
    for name, step in (("plain", surface.decode), ("verification", surface.verify)):
        ends = np.broadcast_arrays(step.low_us, step.time_us, step.high_us)
        if not (np.isfinite(ends).all() and (ends[0] <= ends[1]).all() and (ends[1] <= ends[2]).all()):
            yield f"{name} step outside its band"
    for row in found.schedule:
        numbers = (row.interval_low, row.speedup_lowest, row.speedup_highest, row.interval_high)
        if not all(map(math.isfinite, numbers)) or sorted(numbers) != list(numbers):
            yield f"batch {row.batch_min}..{row.batch_max}: {numbers} do not rise"
        if not row.speedup_lowest <= row.speedup <= row.speedup_highest:
            yield f"batch {row.batch_max}: {row.speedup} outside its row"


def _forms(found: Recommendation) -> Iterator[str]:
    """Every warning in every form that answers."""
    told = warnings(found)
    told_json = recommendation_values(found)
    json.dumps(told_json, allow_nan=False)
    grid = Grid.of((found.question.batch_min,), found.question.seq_len, (1, 2))
    listed = [line[:1].lower() + line[1:].removesuffix(".") for line in caveats([found.scenario], grid)]
    app = notes.warnings(found)
    screen = recommend_screen(found)
    forms = {
        "text": " ".join(screen_text(screen, WIDTH, WIDTH, verbose=True).split()),
        "Markdown": screen_markdown(screen),
        "JSON": told_json["warnings"],
        "HTML": unescape(RecommendResult(answer=found)._repr_html_()),
        "the app": app,
    }
    for line in told:
        if found.shortfall is not None and line == shortfall_text(found.shortfall):
            said = [fact.text for fact in shortfall_facts(found.shortfall)]  # as facts, in text
            yield from (f"text does not say: {text}" for text in said if text not in forms["text"])
            continue
        for name, form in forms.items():
            if line not in form and paragraph(line) not in form:
                yield f"{name} does not say: {line}"
    for line in scenario_doubts(found.scenario, found.largest_count):
        if line not in told:
            yield f"the answer does not say: {line}"
        if line[:1].lower() + line[1:] not in listed:
            yield f"the report does not say: {line}"
    if len(set(told)) < len(told):
        yield f"a warning twice: {told}"
    if told_json["enable"] != found.enable or told_json["reason"] != sentence(found):
        yield "JSON has another decision"


def _exported(found: Recommendation, on: BoolArray) -> Iterator[str]:
    """Settings draft where the answer does, or say where they lose."""
    runtime = found.scenario.runtime.name
    engine = next((name for name in runtime_aliases() if runtime.startswith(f"{name}-")), None)
    if engine is None:
        return
    try:
        settings = engine_settings(found, engine, draft_path="a/draft")
    except UsageError as refused:
        if "no chain pays" in str(refused) and found.chains and on.any():
            yield f"no settings although it is enabled: {refused}"
        return
    if found.chains and not on.any():
        yield f"settings although nothing pays: {settings.text}"
    if settings.plan is None:
        return
    plan, batches = settings.plan, found.cells.surface.batch
    off = {int(batch) for batch in batches[~on] if plan.drafts_at(int(batch))} & set(plan.grid.batch.tolist())
    said = {n for first, last in (*plan.loses, *plan.unsure) for n in range(first, last + 1)}
    if found.chains and not off <= said:
        yield f"settings draft at {sorted(off - said)} without a word"
    if plan.loses and not any("no faster than no speculation" in note for note in settings.notes):
        yield "settings lose without a note"
