"""What `hierarchy.py --write` writes: terms into runtimes.toml, groups and widths into nearness.toml."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
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
from common.terms import engine_table, with_term_line
from medusa_sim.engines.case import Form
from medusa_sim.engines.place import Kind, Place
from medusa_sim.engines.served_groups import NEARNESS_FILE, Spread
from medusa_sim.writing import write_text

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
FIELDS = {
    "generation": 'generations = ["{}"]',
    "form": 'forms = ["{}"]',
    "weights": 'formats = ["{}"]',
    "experts_in": 'formats = ["{}"]',
    "layers_of": 'forms = ["mixture", "latent", "sparse", "hybrid"], formats = ["{}"]',
    "gpus": f"gpus = [{MANY}, 1024]",
}
KEPT = r", measured = \{.*?\}, elsewhere = \[\{.*?\}\]"
LEAST, LEAST_PLUS = 0.005, 0.05
"""Relative deviations below the first are not written, nor times per layer below the second."""


def written_terms(
    fit: Fit, found: Found, engine: str
) -> dict[str, tuple[float, float, list[str], list[str]]]:
    """Term -> (value of the engine: a factor or so much more, band, deviations, those of old versions)."""
    left_open, terms = covariance(found), {}
    for effect in EFFECTS:
        deviations, old, of_all = list[str](), list[str](), list[int]()
        variance, size = 0.0, 0.0
        for place, (of, keys, name) in enumerate(fit.names):
            value, at = found.x[place], dict(zip(keys, name, strict=True))
            if of is not effect or at.get("engine", engine) != engine:
                continue
            size = max(size, abs(value))
            if not {*at} - {"engine", "every"}:
                of_all.append(place)
                continue
            variance = max(variance, left_open[place, place])
            shown = float(f"{value:.3g}") if effect.plus else float(f"{np.exp(value):.4g}")
            if abs(value) < (0.02 * min(prior for _, prior in effect.levels) if effect.plus else LEAST):
                continue
            where = [FIELDS[key].format(each) for key, each in at.items() if key in FIELDS]
            fields = [f"plus = {shown:g}" if effect.plus else f"times = {shown:g}"]
            if effect.of_seen and value > 0.0:
                here = (fit.cells[list(at)] == pd.Series(at)).all(axis=1)
                where.append(f"forms = {sorted(set(fit.cells.form[here]))}".replace("'", '"'))
            if model := fit.only_model(place):
                fields.append(f'only = "{model}"')
            if "experts_by" not in at:
                (old if "version" in at else deviations).append(f"{{ {', '.join([*where, *fields])} }}")
                continue
            for each in GROUPED:
                told = at.get("experts_in", each.experts_in)
                if told != (each.experts_in or told):
                    continue
                there = [FIELDS["generation"].format(each.generation)]
                there += [FIELDS["experts_in"].format(told)] if told else []
                there += [f"splits = {str(each.splits).lower()}"] if each.splits is not None else []
                lines = old if each.is_old or "version" in at else deviations
                lines.append(f"{{ {', '.join([*there, *fields])} }}")
        own = found.x[of_all].sum()
        spread = max(variance, left_open[np.ix_(of_all, of_all)].sum()) ** 0.5
        least = 0.02 * min(prior for _, prior in effect.levels)
        base = (own if abs(own) > least else 0.0) if effect.plus else float(np.exp(own))
        band = 1.28 * spread / max(abs(base), size, 1e-9) if effect.plus else 1.28 * spread
        terms[effect.term] = base, min(band, 1.0), deviations, old
    return terms


def measured_range(cells: pd.DataFrame) -> str:
    """Where the cells of an engine were measured, as a term says it."""
    forms = [form for form in get_args(Form) if form in set(cells.form)]
    gpus, generations = [int(cells.tp.min()), int(cells.tp.max())], sorted(set(cells.generation))
    most = cells.groupby("form").requests.max().astype(int)
    fewer = [[form, int(most[form])] for form in forms if most[form] < most.max()]
    fields = f"forms = {forms}, gpus = {gpus}, generations = {generations}, requests = {most.max()}"
    fields += f", fewer = {fewer}" if fewer else ""
    return f"measured = {{ {fields} }}".replace("'", '"')


def write(fit: Fit, found: Found) -> None:
    """The terms into runtimes.toml."""
    path = ROOT / "medusa_sim/engines/runtimes.toml"
    text, models = path.read_text(encoding="utf-8"), set(fit.cells.model)
    for engine, places in RUNTIMES.items():
        terms = written_terms(fit, found, engine)
        measured = measured_range(fit.cells[fit.cells.engine == engine])
        for runtime, only in places:
            for effect in EFFECTS:
                if only and effect.term not in only.split():
                    continue
                if not only and effect.term == "kernels_share":
                    continue
                value, band, deviations, old = terms[effect.term]
                deviations = [*deviations, *deviations_of_others(text, runtime, effect.term, models)]
                told = value, band, deviations, old, measured
                text = _with_term(text, runtime, effect, *told, is_old=runtime in OLDER)
    write_text(path, text)


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
        named = place._asdict() | {"model": model}
        lines += ["", "[[served]]"]
        for name, value in named.items():
            shown = str(list(value)) if isinstance(value, tuple) else repr(value)
            lines.append(f"{name} = {shown}".replace("'", '"'))
        lines.append(f"cells = {cells}")
    write_text(NEARNESS_FILE, "\n".join(lines) + "\n")


def deviations_of_others(text: str, runtime: str, term: str, models: set[str]) -> list[str]:
    """Deviations in the file that models told which the fit does not hold."""
    line = re.search(rf"(?m)^{term} = .*$", engine_table(text, runtime))
    told = re.finditer(r'\{[^{}]*only = "([^"]*)"[^{}]*\}', line[0] if line else "")
    return [each[0] for each in told if each[1] not in models]


def _with_term(
    text: str,
    runtime: str,
    effect: Effect,
    value: float,
    band: float,
    deviations: list[str],
    old: list[str],
    measured: str,
    *,
    is_old: bool,
) -> str:
    line = re.search(rf"(?m)^{effect.term} = \{{ value = ([0-9.]+)(.*)$", engine_table(text, runtime))
    engine = next(engine for engine, places in RUNTIMES.items() if any(runtime == of for of, _ in places))
    if "host" in effect.term and engine not in OWN_HOST:
        value = value + HOST[engine][effect.term]
    if is_old:
        deviations = [*deviations, *old]
    listed = f"deviations = [{', '.join(deviations)}]"
    if "host" in effect.term and engine in OWN_HOST:
        if line is None:
            return text
        rest = re.sub(r", deviations = \[.*?\](?= \}$)", "", line[2])
        new = f"{effect.term} = {{ value = {line[1]}{rest.removesuffix(' }')}, {listed} }}"
    else:
        if effect.term == "layer_us":
            deviations = [f"{{ gpus = [2, 1024], plus = {value:.3g} }}"] * int(value > LEAST_PLUS) + [
                each if "gpus = " in each else each.replace("{ ", "{ gpus = [2, 1024], ", 1)
                for each in deviations  # those that the file keeps say so already
            ]
            listed, value = f"deviations = [{', '.join(deviations)}]", 0.0
        elsewhere = "" if line is None else "".join(re.findall(KEPT, line[2]))
        where = elsewhere or measured
        if line is None and not deviations and abs(value - float(effect.term in SHARES)) < LEAST_PLUS:
            return text
        ending = f", {listed}" if deviations else ""
        new = (
            f'{effect.term} = {{ value = {value:.4g}, band = {band:.2g}, source = "{SOURCE}", '
            f"{where.removeprefix(', ')}{ending} }}"
        )
    return with_term_line(text, runtime, new)
