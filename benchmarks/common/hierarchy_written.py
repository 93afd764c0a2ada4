"""What `hierarchy.py --write` writes: terms into runtimes.toml, groups and widths into nearness.toml."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, get_args

import numpy as np
import pandas as pd
from deepseek_rows import OLDER
from serving_validation import RUNTIME as SERVER

import medusa_sim as ms
from common.engine_rows import published_rows
from common.hierarchy_cells import place_of
from common.hierarchy_fit import Fit, Found, covariance
from common.hierarchy_terms import EFFECTS, GROUPED, HOST, MANY, OWN_HOST, SHARES, Effect
from common.script import ROOT
from common.study import measured_rows, named_rows
from common.terms import inline, with_term_line
from medusa_sim.engines.case import Form
from medusa_sim.engines.place import Kind, Place
from medusa_sim.engines.served_groups import NEARNESS_FILE, Spread
from medusa_sim.writing import write_text

Tables = list[dict[str, Any]]
"""Deviations as they stand in a file."""
RUNTIMES: dict[str, tuple[tuple[str, str], ...]] = {
    "vllm": (
        ("vllm-0.11", ""),
        ("vllm-0.14", "layer_us"),
        ("vllm-0.15", "host_us_per_step host_us_per_request"),
        ("vllm-0.24", "host_us_per_step host_us_per_request"),
    ),
    "sglang": (("sglang-0.5", ""), ("sglang-0.5.5", "linear_share kernels_share prompt_share")),
    "trtllm": (
        ("tensorrt-llm-1.2", ""),
        ("tensorrt-llm-1.1", "linear_share kernels_share prompt_share experts_us_per_layer"),
    ),
}
"""Where terms of an engine are written; in runtimes that have more of them their own alone."""
SOURCE = (
    "served steps of Llama-3.1, Qwen3-32B, gpt-oss-120b, DeepSeek-V3 on H100, H200, B200, GB200 (rows by "
    "which aiconfigurator grades itself, InferenceX and NVIDIA, 2025-08 to 2026-04), all fitted together"
)
FIELDS: dict[str, Callable[[str], dict[str, Any]]] = {
    "generation": lambda name: {"generations": [name]},
    "form": lambda name: {"forms": [name]},
    "weights": lambda name: {"formats": [name]},
    "experts_in": lambda name: {"formats": [name]},
    "layers_of": lambda name: {"forms": ["mixture", "latent", "sparse", "hybrid"], "formats": [name]},
    "gpus": lambda _: {"gpus": [MANY, 1024]},
}
"""Fields of a deviation that say where it holds, by the column of cells that tells the place."""
SEVERAL = {"gpus": [2, 1024]}
LEAST, LEAST_PLUS = 0.005, 0.05
"""Relative deviations below the first are not written, nor times per layer below the second."""


def written_terms(fit: Fit, found: Found, engine: str) -> dict[str, tuple[float, float, Tables, Tables]]:
    """Term -> (value of the engine: a factor or so much more, band, deviations, those of old versions)."""
    left_open, terms = covariance(found), {}
    for effect in EFFECTS:
        least = 0.02 * min(prior for _, prior in effect.levels)
        deviations: Tables = []
        old: Tables = []
        of_all: list[int] = []
        variance, size = 0.0, 0.0
        for place, (other, keys, name) in enumerate(fit.names):
            value, levels = found.x[place], dict(zip(keys, name, strict=True))
            if other is not effect or levels.get("engine", engine) != engine:
                continue
            size = max(size, abs(value))
            if not {*levels} - {"engine", "every"}:
                of_all.append(place)
                continue
            variance = max(variance, left_open[place, place])
            if abs(value) < (least if effect.plus else LEAST):
                continue
            own: dict[str, Any] = {"plus" if effect.plus else "times": _shown(effect, value)}
            if model := fit.only_model(place):
                own["only"] = model
            for is_old, where in _places(fit, effect, levels, value):
                (old if is_old else deviations).append(where | own)
        own_value = found.x[of_all].sum()
        spread = max(variance, left_open[np.ix_(of_all, of_all)].sum()) ** 0.5
        base = (own_value if abs(own_value) > least else 0.0) if effect.plus else float(np.exp(own_value))
        band = 1.28 * spread / max(abs(base), size, 1e-9) if effect.plus else 1.28 * spread
        terms[effect.term] = base, min(band, 1.0), deviations, old
    return terms


def _shown(effect: Effect, value: float) -> float:
    """A deviation in the digits that are written: so much more, or a factor."""
    return float(f"{value:.3g}") if effect.plus else float(f"{np.exp(value):.4g}")


def _places(
    fit: Fit, effect: Effect, levels: dict[str, str], value: float
) -> Iterator[tuple[bool, dict[str, Any]]]:
    """(whether of old versions alone, where it holds) of a deviation; levels: its place, by column."""
    if "experts_by" in levels:
        for each in GROUPED:
            told = levels.get("experts_in", each.experts_in)
            if told != (each.experts_in or told):
                continue
            splits = {} if each.splits is None else {"splits": each.splits}
            formats = FIELDS["experts_in"](told) if told else {}
            yield each.is_old or "version" in levels, {"generations": [each.generation], **formats, **splits}
        return
    where: dict[str, Any] = {}
    for column, name in levels.items():
        where |= FIELDS[column](name) if column in FIELDS else {}
    if effect.of_seen and value > 0.0:
        here = (fit.cells[list(levels)] == pd.Series(levels)).all(axis=1)
        where["forms"] = sorted(set(fit.cells.form[here]))
    yield "version" in levels, where


def measured_range(cells: pd.DataFrame) -> dict[str, Any]:
    """Where the cells of an engine were measured, as a term says it."""
    forms = [form for form in get_args(Form) if form in set(cells.form)]
    most = cells.groupby("form").requests.max().astype(int)
    fewer = [[form, int(most[form])] for form in forms if most[form] < most.max()]
    return {
        "forms": forms,
        "gpus": [int(cells.tp.min()), int(cells.tp.max())],
        "generations": sorted(set(cells.generation)),
        "requests": int(most.max()),
        **({"fewer": fewer} if fewer else {}),
    }


def write(fit: Fit, found: Found) -> None:
    """The terms into runtimes.toml."""
    path = ROOT / "medusa_sim/engines/runtimes.toml"
    text, models = path.read_text(encoding="utf-8"), set(fit.cells.model)
    known = tomllib.loads(text)
    for engine, places in RUNTIMES.items():
        terms = written_terms(fit, found, engine)
        measured = measured_range(fit.cells[fit.cells.engine == engine])
        for runtime, only in places:
            for effect in EFFECTS:
                if effect.term not in only.split() if only else effect.term == "kernels_share":
                    continue
                value, band, deviations, old = terms[effect.term]
                before = known[runtime]["engine"].get(effect.term)
                deviations = [*deviations, *deviations_of_others(before, models)]
                deviations += old if runtime in OLDER else []
                term = _term(engine, effect, value, band, deviations, before, measured)
                if term is not None:
                    text = with_term_line(text, runtime, f"{effect.term} = {inline(term)}")
    write_text(path, text)


def deviations_of_others(term: dict[str, Any] | None, models: set[str]) -> Tables:
    """Deviations of a term in the file that models told which the fit does not hold."""
    return [each for each in (term or {}).get("deviations", []) if each.get("only", "") not in {"", *models}]


def _term(
    engine: str,
    effect: Effect,
    value: float,
    band: float,
    deviations: Tables,
    before: dict[str, Any] | None,
    measured: dict[str, Any],
) -> dict[str, Any] | None:
    """A term as the file has it; None where it has none and needs none. before: what it has."""
    if "host" in effect.term:
        if engine in OWN_HOST:  # fitted by other rows: what deviates from it alone is new
            return None if before is None else {**before, "deviations": deviations}
        value += HOST[engine][effect.term]
    if effect.term == "layer_us":  # nothing on one GPU
        deviations = [SEVERAL | each for each in deviations]
        if value > LEAST_PLUS:
            deviations.insert(0, SEVERAL | {"plus": float(f"{value:.3g}")})
        value = 0.0
    if before is None and not deviations and abs(value - float(effect.term in SHARES)) < LEAST_PLUS:
        return None
    where = {"measured": measured}
    if before is not None and "elsewhere" in before:
        where = {name: before[name] for name in ("measured", "elsewhere")}
    return {
        "value": float(f"{value:.4g}"),
        "band": float(f"{band:.2g}"),
        "source": SOURCE,
        **where,
        **({"deviations": deviations} if deviations else {}),
    }


def fitted_elsewhere() -> Iterator[tuple[Place, str, int]]:
    """Place, model and cells of the rows to which engines' other terms were fitted."""
    places = [(each.gpu, each.model, each.runtime, each.tp, each.formats) for each in published_rows()]
    places += [
        (line.gpu, line.model, SERVER, int(line.tp), (line.dtype, None, None))
        for line in named_rows(measured_rows("vllm015_serving"))
    ]
    for (gpu, model, runtime, tp, formats), cells in Counter(places).items():
        named: dict[str, Any] = dict(zip(("dtype", "weight_dtype", "kv_dtype"), formats, strict=True))
        yield (
            place_of(ms.Scenario(gpu=gpu, model=model, runtime=runtime, tp=tp, drafter="ngram", **named)),
            model,
            cells,
        )


def write_nearness(fit: Fit, kinds: dict[Kind, dict[str, Any]], spreads: dict[str, Spread]) -> None:
    """Groups of cells, what is known by kind and how far engines spread into nearness.toml."""
    served = Counter(zip(fit.cells.place, fit.cells.model, strict=True))
    for place, model, cells in fitted_elsewhere():
        served[place, model] += cells
    lines = [
        "# Written by `python benchmarks/hierarchy.py --write`; `nearness.py` explains it.",
        f'source = "{SOURCE}"',
        f"tokens = {fit.cells.tokens.max()}",
    ]
    for library, spread in spreads.items():
        lines += ["", f"[engines.{library}]", f"steps = {spread.steps}", f"experts = {spread.experts}"]
    for kind, own in kinds.items():
        lines += ["", f"[kinds.{kind}]", *(f"{name} = {value}" for name, value in own.items())]
    for (place, model), cells in sorted(served.items()):
        named = place._asdict() | {"model": model, "cells": cells}
        lines += ["", "[[served]]", *(f"{name} = {inline(value)}" for name, value in named.items())]
    write_text(NEARNESS_FILE, "\n".join(lines) + "\n")
