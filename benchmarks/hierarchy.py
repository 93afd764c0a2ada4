r"""One fit of what engines add to kernels over every served row: engines, cards and formats together.

    python benchmarks/hierarchy.py            # terms with their spread, errors, groups held out
    python benchmarks/hierarchy.py --write    # the terms into medusa_sim/specs/runtimes.toml

A step of a server is a sum of its parts; a term is a factor on one of them (what an engine's own kernels
take of those that were fitted) or a time beside them. A term of a set-up is the sum of what its levels say:
the format of weights in every engine, the engine, the engine on a generation of cards, ... Each is drawn to
nothing with the spread of its level, so that what one engine shows for a format counts in another as far as
they were seen to be alike. Where a term was fitted elsewhere (vLLM's dense models in 16 bits on Hopper)
nothing deviates: levels describe what differs from there. What is left out is predicted from all the rest,
whole cards, formats and models at a time. Mean times to the first token of the same rows say what prompts
cost (N17, N19): they are fitted along, with a wide error, where lengths are drawn.

Lengths: InferenceX draws them from 80 to 100 % of those named, nine tenths in the mean.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from deepseek_rows import GPUS as DEEPSEEK_GPUS
from deepseek_rows import OLDER, newest
from deepseek_rows import SETUP as DEEPSEEK_SETUP
from engine_rows import published_rows
from first_tokens import as_served, by_recipe, is_steady, waited_steps
from msgspec.structs import replace as with_fields
from scipy.optimize import brentq
from served_rows import served_cells, set_ups
from serving_validation import RUNTIME as SERVER
from study import PROMISED, ROOT, measured_rows, named_rows, table

import medusa_sim as ms
from medusa_sim.arrays import BoolArray, FloatArray
from medusa_sim.specs.engine_facts import weight_formats
from medusa_sim.specs.nearness import (
    KINDS,
    NEARNESS_FILE,
    Kind,
    Place,
    Spread,
    between,
    nearest,
    spread_of,
)
from medusa_sim.specs.ranges import form_of
from medusa_sim.specs.runtime import Runtime, load_runtime
from medusa_sim.step.step import decode_step
from medusa_sim.units import FORMATS, US_PER_MS
from medusa_sim.writing import write_text

STATED_SHARE = 0.9
INFERENCEX = 1024
"""Its lengths are multiples of this; NVIDIA's own rows of two dense models are too, with lengths as named."""
NVIDIA = ("llama-3.1-8b", "qwen3-32b")
SIGMA, FIRST_SIGMA, ROBUST, LARGEST = 0.04, 0.2, 2.0, 30.0
"""Error of a cell and of its first token, errors (in these) from which one counts less, cells that a group
counts as at most."""
A_LAYER_US = 10.0
"""Of the host in steps with prompts, by which it is told what a microsecond of it adds."""
MANY = 8
"""GPUs from which small layers split over all of them run other kernels than on a few."""
REFERENCE = ("bf16", "hopper", "dense", "new", "few", "fused")
"""Where terms were fitted by other rows: nothing deviates there."""
OWN_HOST = ("vllm",)
"""Engines whose host was fitted by other rows."""
HOST = {
    "sglang": {"host_us_per_step": 134.0, "host_us_per_request": 5.0},
    "trtllm": {"host_us_per_step": 200.0, "host_us_per_request": 5.0},
}
"""What the host of the others is drawn to: published rounds of SGLang; a guess."""


@dataclass(frozen=True)
class Effect:
    """A term: the part of a step that it is a factor on or (plus) is charged for; levels with spreads.

    but: engines in which it was fitted elsewhere. of_first: of first tokens alone. of_seen: what a
    card adds is written for the forms of models that showed it (vLLM's recipe for Llama-70B on a B200 has
    graphs of decoding alone; those of other models have the default's).
    """

    term: str
    part: str
    levels: tuple[tuple[tuple[str, ...], float], ...]
    plus: bool = False
    but: tuple[str, ...] = ()
    of_first: bool = False
    of_seen: bool = False


EFFECTS = (
    Effect(
        "linear_share",
        "linear",
        (
            (("weights",), 0.025),
            (("card", "weights"), 0.08),
            (("engine", "weights"), 0.05),
            (("engine", "card", "weights"), 0.04),
            (("engine", "version", "weights"), 0.08),
        ),
    ),
    Effect(
        "attention_share",
        "attention",
        (
            (("engine",), 0.05),
            (("engine", "card"), 0.05),
            (("engine", "form"), 0.075),
            (("engine", "card", "form"), 0.075),
        ),
        but=OWN_HOST,
    ),
    Effect(
        "experts_share",
        "experts",
        (
            (("experts_in",), 0.1),
            (("card", "experts_in"), 0.2),
            (("engine", "experts_in"), 0.1),
            (("engine", "card", "experts_in"), 0.12),
            (("engine", "gpus", "experts_in"), 0.1),
        ),
    ),
    Effect(
        "exchange_share",
        "exchange",
        ((("engine",), 0.1), (("engine", "card"), 0.1), (("engine", "gpus"), 0.1)),
    ),
    Effect(
        "prompt_share",
        "prompt",
        (
            (("engine",), 0.05),
            (("engine", "card"), 0.075),
            (("layers_of",), 0.3),
            (("engine", "version"), 0.1),
        ),
    ),
    Effect("kernels_share", "kernels", ((("engine", "version", "form"), 0.1),)),
    Effect(
        "host_us_per_step",
        "steps",
        ((("engine",), 100.0), (("engine", "card"), 150.0), (("engine", "form"), 100.0)),
        plus=True,
        but=OWN_HOST,
    ),
    Effect(
        "host_us_per_request",
        "requests",
        ((("engine",), 1.5), (("engine", "card"), 1.5)),
        plus=True,
        but=OWN_HOST,
    ),
    Effect(
        "prompt_us_per_layer",
        "prompt_layers",
        ((("engine",), 35.0), (("engine", "card"), 55.0)),
        plus=True,
        of_seen=True,
    ),
    Effect(
        "load_test_us",
        "tests",
        (
            (("every",), 50_000.0),
            (("form",), 50_000.0),
            (("engine",), 20_000.0),
            (("engine", "card"), 8_000.0),
        ),
        plus=True,
        of_first=True,
    ),
    Effect("layer_us", "layers_shared", ((("engine",), 2.0), (("engine", "card"), 2.0)), plus=True),
    Effect(
        "experts_us_per_layer",
        "expert_layers",
        (
            (("engine", "experts_by"), 20.0),
            (("engine", "experts_by", "experts_in"), 20.0),
            (("engine", "version", "experts_by", "experts_in"), 40.0),
        ),
        plus=True,
    ),
    Effect(
        "expert_parallel_us_per_layer",
        "spread_layers",
        ((("engine", "experts_in"), 20.0),),
        plus=True,
    ),
)


class Grouped(NamedTuple):
    """Where TensorRT-LLM groups the products of experts: a card and a format of experts.

    splits: whether attention is split over requests. is_old: before 1.2 alone. None: either, or any.
    """

    card: str
    experts_in: str | None
    splits: bool | None
    is_old: bool


GROUPED = (
    Grouped("hopper", "mxfp4", None, is_old=False),  # TRITON, of gpt-oss
    Grouped("blackwell", "fp8_block", splits=False, is_old=True),  # DEEPGEMM; recipes of InferenceX
    Grouped("blackwell", None, splits=True, is_old=False),  # CUTLASS, DEEPGEMM
)
"""No two hold for one set-up."""
SHARES = (
    "kernels_share",
    "experts_share",
    "linear_share",
    "attention_share",
    "exchange_share",
    "prompt_share",
)
PARTS = ("linear", "attention", "experts", "exchange", "prompt")
HELD_OUT = (
    ("a card", ("engine", "gpu")),
    ("a card in every engine", ("gpu",)),
    ("a format", ("engine", "weights")),
    ("card and format", ("engine", "gpu", "weights")),
    ("a model", ("family",)),
    ("an engine", ("engine",)),
    ("a version", ("engine", "version")),
    ("card and model", ("engine", "gpu", "family")),
)
GROUP = ["engine", "gpu", "weights", "model"]
LEAST_HELD, MOST_HELD, LARGE_GROUP, WIDER = 0.6, 0.85, 20, 0.002
NIGHTS = 0.018
"""80 % half-width of one cell that was measured again on another night (standard deviation 1.4 %)."""
STEPS = 60
SMALL = 5
"""Cells from which a group is counted among those whose bands are to hold."""


def bare(name: str, **values: float) -> Runtime:
    """A runtime without the terms that are fitted here, or with these values of some."""
    runtime = load_runtime(name)
    assert runtime.engine is not None
    terms, host = runtime.engine.terms, HOST.get(runtime.library, {})
    changed = {}
    for effect in EFFECTS:
        given = terms[effect.term]
        kept = host.get(effect.term, given.value if "host" in effect.term else 0.0)
        value = values.get(effect.term, 1.0 if effect.term in SHARES else kept)
        changed[effect.term] = with_fields(given, value=value, deviations=(), elsewhere=())
    return replace(runtime, engine=runtime.engine.with_terms(changed))


def deepseek_set_ups() -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """Set-ups of DeepSeek-R1 without drafts (engines/inferencex_deepseek_r1) with rows of every version."""
    rows = newest(versions=True).query("speculation == 'none'")
    rows = rows.assign(
        tpot_mean_ms=rows.median_tpot_ms, backend=rows.engine.replace("tensorrt-llm", "trtllm")
    )
    rows["backend_version"] = np.where(rows.runtime == OLDER[0], "1.1", "")
    for _, own in rows.groupby([*DEEPSEEK_SETUP, "runtime"]):
        line: Any = own.iloc[0]
        yield (
            {
                "gpu": DEEPSEEK_GPUS[line.gpu],
                "model": "deepseek-r1",
                "runtime": RUNTIME.get(line.runtime, line.runtime),
                "tp": int(line.tp),
                "ep": int(line.ep),
                "dp_attention": bool(line.dp_attention),
                "prompt_tokens": float(line.prompt_tokens),
                "output_tokens": float(line.output_tokens),
                "drafter": "ngram",
                "acceptance": "0.5",
                "weight_dtype": "nvfp4" if line.weights == "fp4" else None,
            },
            own,
        )


RUNTIME = {"tensorrt-llm": "tensorrt-llm-1.2", "sglang": "sglang-0.5"}


def experts_by(engine: str, card: str, version: str, experts_in: str, *, splits: bool) -> str:
    """Whether a layer of experts runs as the kernel that times it, or (grouped) with launches that it lacks.

    TensorRT-LLM groups the experts' products where no kernel of its own was fitted (GROUPED). On Blackwell it
    has one kernel (TRTLLM) otherwise; on Hopper its CUTLASS kernels were measured whole.
    """
    is_grouped = any(
        card == each.card
        and experts_in == (each.experts_in or experts_in)
        and each.splits in (None, splits)
        and (version == "old" or not each.is_old)
        for each in GROUPED
    )
    return "grouped" if engine == "trtllm" and is_grouped else "fused"


def parts_of(set_ups: Iterable[tuple[dict[str, Any], pd.DataFrame]]) -> pd.DataFrame:
    """Every cell with the parts of its time, microseconds, and what levels it belongs to."""
    found: list[dict[str, Any]] = []
    for named, own in by_recipe(set_ups):
        name, model = named["runtime"], named["model"]
        is_drawn = int(named["prompt_tokens"]) % INFERENCEX == 0 and model not in NVIDIA
        share = STATED_SHARE if is_drawn else 1.0
        arguments = named | {key: share * named[key] for key in ("prompt_tokens", "output_tokens")}
        is_test = model not in NVIDIA and "ttft_mean_ms" in own
        runtimes = (
            as_served(bare(name, **changed), own.iloc[0], named) if is_test else bare(name, **changed)
            for changed in ({}, {"prompt_share": 2.0}, {"prompt_us_per_layer": A_LAYER_US})
        )
        scenario, *changed = (ms.Scenario(**arguments | {"runtime": runtime}) for runtime in runtimes)
        batch = np.array(sorted({int(count) for count in own.concurrency}))
        swept, slower, waiting = (
            each.sweep(batch=batch.tolist(), candidates=[1]) for each in (scenario, *changed)
        )
        first_us, first_slower_us, first_waiting_us = (
            US_PER_MS * rows.benchmark_ttft_ms.to_numpy() for rows in (swept, slower, waiting)
        )
        prompt_layers = (waiting.tpot_us - swept.tpot_us).to_numpy() / A_LAYER_US
        step = decode_step(scenario.setting, batch, np.asarray(scenario.length))
        parts = {part: np.zeros(batch.size) for part in PARTS}
        for part, time_us in step.parts_us.items():
            place = "linear" if part in ("qkv", "o_proj", "mlp") else part
            if place in parts:
                parts[place] = parts[place] + time_us
        parts["prompt"] = (swept.tpot_us - swept.decode_step_us).to_numpy()
        rest = swept.tpot_us.to_numpy() - sum(parts.values())
        of, form = scenario.model, form_of(scenario.model)
        formats = weight_formats(of)
        expert_layers = of.layers if of.experts is not None else 0
        cost = dataclasses.replace(step.cost, setup_half_us=np.zeros(()))
        early = np.broadcast_to(np.log(cost.time_us / cost.low_us), batch.shape)
        late = np.broadcast_to(np.log(cost.high_us / cost.time_us), batch.shape)
        experts_in = formats[0] if of.experts is None else FORMATS[of.experts.form or of.form].weight_dtype
        version = "old" if name == "tensorrt-llm-1.1" else "new"
        for line in named_rows(own):
            at = int(np.searchsorted(batch, line.concurrency))
            found.append(
                {
                    "engine": line.backend,
                    "gpu": arguments["gpu"],
                    "card": scenario.gpu.architecture,
                    "weights": formats[0],
                    "experts_in": experts_in,
                    "layers_of": "dense" if of.experts is None else experts_in,
                    "form": form,
                    "version": version,
                    "model": model,
                    "family": model.replace("-r1", "-v3"),
                    "experts_by": experts_by(
                        line.backend,
                        scenario.gpu.architecture,
                        version,
                        experts_in,
                        splits=scenario.parallel.dp_attention,
                    ),
                    "every": "all",
                    "gpus": "many" if arguments["tp"] >= MANY else "few",
                    "runtime": name,
                    "tokens": round(named["prompt_tokens"] + named["output_tokens"] / 2.0),
                    "place": place_of(scenario)._replace(runtime=name),
                    "faster": early[at],
                    "slower": late[at],
                    "tp": arguments["tp"],
                    "ep": arguments["ep"],
                    "requests_at": int(line.concurrency),
                    "measured": US_PER_MS * line.tpot_mean_ms,
                    "first_measured": US_PER_MS * line.ttft_mean_ms
                    if is_test and is_steady(line, arguments)
                    else np.nan,
                    "first_prompts": first_slower_us[at] - first_us[at],
                    "first_layers": (first_waiting_us[at] - first_us[at]) / A_LAYER_US,
                    "first_steps": (2.0 * first_us[at] - first_slower_us[at]) / swept.tpot_us[at]
                    + waited_steps(line, arguments),
                    "tests": 1.0,
                    "rest": rest[at],
                    **{part: values[at] for part, values in parts.items()},
                    "kernels": 1.0,
                    "steps": 1.0,
                    "requests": np.ceil(line.concurrency / scenario.parallel.schedulers),
                    "prompt_layers": prompt_layers[at],
                    "layers_shared": float((arguments["tp"] > 1) * of.layers),
                    "expert_layers": float(expert_layers),
                    "spread_layers": float((arguments["ep"] > 1) * expert_layers),
                }
            )
    return pd.DataFrame(found)


Name = tuple[str, ...]


class Found(NamedTuple):
    """x: values. jac: slopes of the residuals there."""

    x: FloatArray
    jac: FloatArray


def least_squares_above(
    residuals: Callable[[FloatArray], tuple[FloatArray, FloatArray]], start: FloatArray, low: FloatArray
) -> Found:
    """Gauss-Newton with bounds from below, by residuals with their slopes; a hundred values in 0.1 s.

    Values at their bound that would fall stay there; steps are damped until they lower the sum of squares.
    """
    values, damping = np.maximum(start, low), 1e-6
    own, jacobian = residuals(values)
    for _ in range(STEPS):
        downhill = jacobian.T @ own
        free = ~((values <= low) & (downhill > 0.0))
        curvature = jacobian[:, free].T @ jacobian[:, free]
        while damping < 1e6:
            damped = curvature + damping * np.diag(np.diag(curvature))
            further = values.copy()
            further[free] -= np.linalg.solve(damped, downhill[free])
            further = np.maximum(further, low)
            then, further_jacobian = residuals(further)
            if then @ then <= own @ own:
                break
            damping *= 10.0
        gained = own @ own - then @ then
        values, own, jacobian, damping = further, then, further_jacobian, max(damping / 10.0, 1e-9)
        if gained < 1e-7 * (own @ own):
            break
    return Found(values, jacobian)


class Fit:
    """All effects with their levels over some cells."""

    def __init__(self, cells: pd.DataFrame) -> None:
        self.cells = cells
        self.names: list[tuple[Effect, tuple[str, ...], Name]] = []
        spreads: list[float] = []
        places: list[Any] = []
        self.columns: dict[str, slice] = {}
        for effect in EFFECTS:
            first = len(spreads)
            for keys, spread in effect.levels:
                values = cells[list(keys)].agg("|".join, axis=1)
                active = cells[effect.part].to_numpy() != 0.0
                known: dict[str, int] = {}
                for value in sorted(set(values[active])):
                    name = tuple(value.split("|"))
                    if self._deviates(effect, keys, name):
                        known[value] = len(spreads)
                        self.names.append((effect, keys, name))
                        spreads.append(spread)
                places.append(values.map(known).fillna(-1).astype(int).to_numpy())
            self.columns[effect.term] = slice(first, len(spreads))
        self.spreads = np.array(spreads)
        self.levels = np.zeros((len(cells), len(spreads)))
        for place in places:
            has = np.nonzero(place >= 0)[0]
            self.levels[has, place[has]] = 1.0
        self.low = np.array([0.0 if self._is_positive(*each) else -np.inf for each in self.names])

    @staticmethod
    def _deviates(effect: Effect, keys: tuple[str, ...], name: Name) -> bool:
        if keys == ("engine",):
            return name[0] not in effect.but
        asked = [key for key in keys if key != "engine"]
        return not any(value in REFERENCE for key, value in zip(keys, name, strict=True) if key in asked)

    @staticmethod
    def _is_positive(effect: Effect, keys: tuple[str, ...], name: Name) -> bool:
        """Times that cannot be negative: only a generation of cards may take from what an engine has."""
        del name
        return effect.plus and "host" not in effect.term and "card" not in keys

    def only_model(self, place: int) -> str:
        """The model whose cells alone tell a value; empty where models of several shapes do."""
        effect = self.names[place][0]
        told = (self.levels[:, place] > 0.0) & (self.cells[effect.part].to_numpy() != 0.0)
        cells = self.cells[told]
        return str(cells.model.mode()[0]) if len({each.sizes for each in cells.place}) == 1 else ""

    def of(self, term: str, values: FloatArray) -> FloatArray:
        """What all levels of a term say of every cell."""
        own = self.columns[term]
        return np.asarray(self.levels[:, own] @ values[own])

    def predicted(self, values: FloatArray) -> FloatArray:
        """Microseconds per token of every cell."""
        return self._with_slopes(values)[0]

    def _with_slopes(self, values: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(microseconds per token of every cell, their derivatives by every value: cells x values)."""
        time, slopes = self.cells.rest.to_numpy(), dict[str, FloatArray]()
        beside = np.zeros(time.size)
        effects = [effect for effect in EFFECTS if not effect.of_first]
        of = {effect.term: self.of(effect.term, values) for effect in effects}
        spread = np.exp(of["linear_share"] / 2.0)  # half of what prompts add is linear layers
        for effect in effects:
            part, value = self.cells[effect.part].to_numpy(dtype=np.float64), of[effect.term]
            if effect.plus:
                counts = part if "host" in effect.term else np.where(value >= 0.0, part, 0.0)
                beside, slopes[effect.term] = beside + counts * value, counts
            elif effect.part != "kernels":
                slopes[effect.term] = np.exp(value) * part * (spread if effect.part == "prompt" else 1.0)
                time = time + slopes[effect.term]
        slopes["linear_share"] = slopes["linear_share"] + slopes["prompt_share"] / 2.0
        slower = np.exp(of["kernels_share"])
        slopes["kernels_share"] = time
        shares = {effect.term for effect in effects if not effect.plus}
        jacobian = np.zeros(self.levels.shape)
        for term in of:
            slope, own = slopes[term] * (slower if term in shares else 1.0), self.columns[term]
            jacobian[:, own] = slope[:, None] * self.levels[:, own]
        return np.asarray(time * slower + beside), jacobian

    def first(self, values: FloatArray, step_us: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(microseconds to the first token of every cell, their derivatives by every value).

        step_us: what the steps take that a prompt waits for; nothing is derived by them.
        """
        cells, jacobian = self.cells, np.zeros(self.levels.shape)
        share = self.of("prompt_share", values) + self.of("linear_share", values) / 2.0
        prompts_us = cells.first_prompts.to_numpy() * np.exp(share)
        time_us = cells.first_steps.to_numpy() * step_us + prompts_us
        slopes = {"prompt_share": prompts_us, "linear_share": prompts_us / 2.0}
        for term, part in (("prompt_us_per_layer", "first_layers"), ("load_test_us", "tests")):
            added_us, counts = self.of(term, values), cells[part].to_numpy()
            time_us = time_us + counts * np.maximum(added_us, 0.0)
            slopes[term] = counts * (added_us >= 0.0)
        for term, slope in slopes.items():
            own = self.columns[term]
            jacobian[:, own] = slope[:, None] * self.levels[:, own]
        return np.asarray(time_us), jacobian

    def solve(self, keep: BoolArray) -> Found:
        """Least squares of robust log errors with what draws levels to nothing."""
        cells = self.cells
        size = cells.groupby(["engine", "gpu", "weights", "family"]).rest.transform("size").to_numpy()
        measured, first_measured = cells.measured.to_numpy(), cells.first_measured.to_numpy()
        seen = keep & np.isfinite(first_measured)
        weight = np.sqrt(np.minimum(1.0, LARGEST / np.concatenate([size[keep], size[seen]])))

        def residuals(values: FloatArray) -> tuple[FloatArray, FloatArray]:
            errors, slopes = [], []
            for time, jacobian, found, here, sigma in (
                (*self._with_slopes(values), measured, keep, SIGMA),
                (*self.first(values, measured), first_measured, seen, FIRST_SIGMA),
            ):
                kept = np.maximum(time[here], 1.0)
                errors.append(np.log(kept / found[here]) / sigma)
                slopes.append(jacobian[here] / kept[:, None] / sigma)
            own, jacobian = np.concatenate(errors), np.concatenate(slopes)
            inside = 1.0 + np.abs(own) / ROBUST**2
            by_own = weight * (inside**-0.5 - 0.5 * np.abs(own) / ROBUST**2 * inside**-1.5)
            return (
                np.concatenate([weight * own * inside**-0.5, values / self.spreads]),
                np.concatenate([by_own[:, None] * jacobian, np.diag(1.0 / self.spreads)]),
            )

        return least_squares_above(residuals, np.zeros(self.spreads.size), self.low)

    def errors(self, values: FloatArray) -> FloatArray:
        """Relative errors of every cell."""
        return np.asarray(self.predicted(values) / self.cells.measured.to_numpy() - 1.0)

    def first_errors(self, values: FloatArray) -> FloatArray:
        """The same of times to the first token; NaN where none is fitted."""
        time_us, _ = self.first(values, self.predicted(values))
        return np.asarray(time_us / self.cells.first_measured.to_numpy() - 1.0)

    def experts_of_step(self, values: FloatArray) -> FloatArray:
        """Which part of the step of every cell layers of experts take, without what prompts add to it."""
        cells, of = self.cells, {term: self.of(term, values) for term in self.columns}
        slower = np.exp(of["kernels_share"])
        experts = slower * cells.experts * np.exp(of["experts_share"])
        for term, part in (
            ("experts_us_per_layer", "expert_layers"), ("expert_parallel_us_per_layer", "spread_layers"),
        ):  # fmt: skip
            experts = experts + np.maximum(of[term], 0.0) * cells[part]
        prompts = slower * cells.prompt * np.exp(of["prompt_share"] + of["linear_share"] / 2.0)
        return np.asarray(experts / (self.predicted(values) - prompts))


class LeftOut(NamedTuple):
    """Of every cell by a fit without its group: relative errors, those of first tokens, experts' part."""

    errors: FloatArray
    firsts: FloatArray
    experts: FloatArray

    @classmethod
    def of(cls, fit: Fit, values: FloatArray) -> LeftOut:
        """By these values."""
        return cls(fit.errors(values), fit.first_errors(values), fit.experts_of_step(values))


def held_out(fit: Fit) -> dict[str, LeftOut]:
    """What each way of grouping says of every cell."""
    outs = {}
    for title, keys in HELD_OUT:
        groups = fit.cells[list(keys)].agg("|".join, axis=1).to_numpy()
        outs[title] = LeftOut(*np.zeros((3, groups.size)))
        for group in dict.fromkeys(groups.tolist()):
            own = groups == group
            values = fit.solve(~own).x  # not from the whole fit's values: it would stay where those bend
            for every, found in zip(outs[title], LeftOut.of(fit, values), strict=True):
                every[own] = found[own]
    return outs


def errors_by_kind(fit: Fit, outs: dict[str, LeftOut]) -> pd.DataFrame:
    """A line of every cell and way of holding out: what was new about it for the fit, and its error.

    outs: by way; the fit to all is the way of no keys. The kind is that by which a set-up's band is
    chosen (`specs/nearness.py`), from the groups that the fit saw. faster, slower: of the band of kernels and
    terms. spread, experts_spread: of the cell's engine (`spreads_of`).
    """
    cells, found = fit.cells, []
    group = cells[GROUP].agg(", ".join, axis=1)
    for title, out in outs.items():
        keys = dict(HELD_OUT).get(title, ())
        held = cells[list(keys)].agg("|".join, axis=1) if keys else pd.Series("", index=cells.index)
        near: Any = pd.Series(None, index=cells.index, dtype=object)
        for own in set(held):
            rest = sorted(set(cells.place[held != own] if keys else cells.place))
            at = {place: nearest(place, rest) for place in set(cells.place[held == own])}
            near[held == own] = cells.place[held == own].map(at.__getitem__)
        found.append(
            pd.DataFrame(
                {
                    "way": title,
                    "group": group,
                    "library": [place.library for place in cells.place],
                    "kind": [each.kind for each in near],
                    "is_other_version": [each.is_other_version for each in near],
                    "short": -np.log1p(out.errors),
                    "experts": out.experts,
                    "faster": cells.faster,
                    "slower": cells.slower,
                }
            )
        )
    lines = pd.concat(found, ignore_index=True)
    engines, spreads = zip(lines.library, lines.kind, strict=True), spreads_of(lines)
    of_cell = [spread_of(library, kind, spreads) for library, kind in engines]
    return lines.assign(
        spread=[each.steps for each in of_cell], experts_spread=[each.experts for each in of_cell]
    )


def spreads_of(lines: pd.DataFrame) -> dict[str, Spread]:
    """Engine -> how far groups left out of it lie from their fit, beside the (geometric) mean engine.

    By mean errors of groups of SMALL cells or more, of the engine's own where something else of it was seen.
    Experts of an engine with mixtures of one network alone (R1 is V3's) are known no better than the mean's.
    """
    out = lines[~lines.kind.isin(["measured", "engine"])].assign(short=lines.short.abs())
    groups = out.groupby(["library", "way", "group"]).short.agg(["mean", "size"])
    errors = groups[groups["size"] >= SMALL]["mean"].groupby("library").mean()
    relative = (errors / np.exp(np.log(errors).mean())).round(2)
    mixtures = lines[lines.experts > 0.0]
    networks = mixtures.group.str.split(", ").str[-1].str.replace("-r1", "-v3")
    known = networks.groupby(mixtures.library).nunique()
    return {
        str(library): Spread(steps=value, experts=value if known.get(library, 0) > 1 else max(value, 1.0))
        for library, value in relative.items()
    }


Half: TypeAlias = float | FloatArray


def held(lines: pd.DataFrame, share: Half) -> pd.Series:
    """Which cells lie in bands that hold so much more, in quadrature."""
    return (lines.short <= np.hypot(lines.slower, share)) & (lines.short >= -np.hypot(lines.faster, share))


def by_group(lines: pd.DataFrame, share: Half) -> pd.Series:
    """Share of the cells of each group and way that their bands hold; small groups left out."""
    places = [lines.way, lines.group]
    means = held(lines, share).groupby(places).mean()
    return means[lines.groupby(places).size() >= SMALL]


def large_below(lines: pd.DataFrame, share: Half) -> bool:
    """Whether any group of LARGE_GROUP cells or more holds less than LEAST_HELD."""
    groups = by_group(lines, share)
    sizes = lines.groupby(["way", "group"]).size()[groups.index]
    return bool((groups[sizes >= LARGE_GROUP] < LEAST_HELD).any())


def band_of(lines: pd.DataFrame, whole: float, of_experts: float, of_version: float = 0.0) -> FloatArray:
    """By how much bands of cells are wider (`Nearness.widening`). of_version: the least of another one."""
    of_step, experts = lines.spread.to_numpy(), lines.experts_spread.to_numpy()
    at_least = np.maximum(whole * of_step, of_version * lines.is_other_version.to_numpy())
    return between(at_least, of_experts * experts, lines.experts.to_numpy())


def needed(lines: pd.DataFrame, half: Callable[[float], Half], least: float) -> float:
    """The least share from which bands of such half-widths hold PROMISED in the mean over groups.

    More where no large group then holds less than LEAST_HELD, and all in the mean no more than MOST_HELD.
    """

    def mean(share: float) -> float:
        return float(by_group(lines, half(share)).mean())

    if not len(by_group(lines, half(least))):
        return least
    enough = least
    if mean(least) < PROMISED:
        enough = float(brentq(lambda share: mean(share) - PROMISED, least, 2.0, xtol=1e-4))
    enough = further = float(np.ceil(1e3 * enough) / 1e3)
    while large_below(lines, half(further)) and mean(further + WIDER) <= MOST_HELD:
        further = round(further + WIDER, 3)
    return enough if large_below(lines, half(further)) else further


def kinds_of(lines: pd.DataFrame) -> dict[Kind, dict[str, Any]]:
    """What `specs/nearness.toml` says of each kind: none narrower than one before it, a version's apart.

    Steps of dense models tell what all steps differ by, at least a server's own nights (NIGHTS); mixtures
    what layers of experts differ by besides. Versions are of mixtures alone: of whole steps. What one engine
    alone shows is not another's: such a kind has what the next one has.
    """
    found: dict[Kind, dict[str, Any]] = {}
    least, of_experts, of_version = NIGHTS, 0.0, 0.0
    for kind in KINDS:
        own = lines[lines.kind == kind]
        dense, mixed = own[own.experts == 0.0], own[own.experts > 0.0]
        if kind == "version":
            of_version = needed(own, partial(band_of, own, of_experts=0.0), NIGHTS)
            found[kind] = {"between_share": of_version, "experts_share": 0.0}
            continue
        least = needed(dense, partial(band_of, dense, of_experts=0.0), least)
        of_experts = needed(mixed, partial(band_of, mixed, least), of_experts)
        found[kind] = {"between_share": least, "experts_share": of_experts}
    for kind, following in reversed(
        list(pairwise(kind for kind in KINDS if kind not in ("measured", "version")))
    ):
        own = lines[lines.kind == kind]
        for share, part in (("between_share", own.experts == 0.0), ("experts_share", own.experts > 0.0)):
            if len({group.partition(",")[0] for group in own.group[part]}) < 2:
                found[kind][share] = found[following][share]
    for kind, known in found.items():
        own = lines[lines.kind == kind]
        shares = known["between_share"], known["experts_share"], of_version
        groups = by_group(own, band_of(own, *shares))
        known |= {
            "error": round(float(np.expm1(own.short.abs()).mean()), 3) if len(own) else 0.0,
            "cells": len(own),
            "groups": len(groups),
            "held": round(float(groups.mean()), 2) if len(groups) else 0.0,
        }
    return found


def kinds_table(lines: pd.DataFrame, kinds: dict[Kind, dict[str, Any]]) -> str:
    """What was new, how far steps erred, what their bands hold."""
    rows = []
    for kind, own in kinds.items():
        cells = lines[lines.kind == kind]
        shares = own["between_share"], own["experts_share"]
        groups = by_group(cells, band_of(cells, *shares, kinds["version"]["between_share"]))
        least: Any = None if groups.empty else groups.idxmin()
        words = "" if least is None else f"{groups.min():.0%} ({least[1]})"
        below = f"{(groups < LEAST_HELD).sum()} of {len(groups)}"
        rows.append((kind, own["cells"], own["error"], *shares, own["held"], below, words))
    return table("new | cells | error | between | of experts | held | groups below 60 % | least", 1, rows)


def ends_table(lines: pd.DataFrame, kinds: dict[Kind, dict[str, Any]]) -> str:
    """Cells left out that took longer than the slow end of their band, by engine: `--sure 0.9` rests on it.

    In the mean over groups, those that were not left out apart.
    """
    share = np.zeros(len(lines))
    for kind, own in kinds.items():
        new = (lines.kind == kind).to_numpy()
        shares = own["between_share"], own["experts_share"], kinds["version"]["between_share"]
        share[new] = band_of(lines[new], *shares)
    late = lines.short > np.hypot(lines.slower, share)
    beyond = lines.assign(beyond=late, is_out=lines.kind != "measured")
    means = beyond.groupby(["is_out", "way", "group"]).beyond.mean().reset_index()
    means["engine"] = means.group.str.partition(",")[0]
    found = means.pivot_table(index="engine", columns="is_out", values="beyond")
    rows = [
        (engine, *(f"{value:.0%}" for value in row))
        for engine, row in zip(found.index, found.to_numpy(), strict=True)
    ]
    return table("engine | slower than the slow end: seen | left out", 1, rows)


def covariance(found: Found) -> FloatArray:
    """What cells and spreads leave open of the values."""
    return np.asarray(np.linalg.pinv(found.jac.T @ found.jac))


def error_table(fit: Fit, found: Found, outs: dict[str, FloatArray], *, of_first: bool = False) -> str:
    """Mean errors by group: without the fit, with it, and held out. of_first: those of first tokens."""
    errors = fit.first_errors if of_first else fit.errors
    columns = {"before": errors(np.zeros(fit.spreads.size)), "fit": errors(found.x), **outs}
    cells = fit.cells.assign(**{name: 100.0 * np.abs(values) for name, values in columns.items()})
    if of_first:
        cells = cells[np.isfinite(cells.first_measured)]
    means = cells.groupby(GROUP)[list(columns)].mean()
    counts = cells.groupby(GROUP).size()
    lines = [
        (*key, counts[key], *(f"{value:.1f}" for value in row))
        for key, row in zip(means.index, means.to_numpy(), strict=True)
    ]
    lines.append(("all cells", "", "", "", len(cells), *(f"{cells[name].mean():.1f}" for name in columns)))
    lines += [
        (f"{title} over groups", "", "", "", len(means), *(f"{value:.1f}" for value in values))
        for title, values in (("mean", means.mean()), ("median", means.median()))
    ]
    return table(f"engine | card | weights | model | cells | {' | '.join(columns)}", 4, lines)


def terms_table(fit: Fit, found: Found) -> str:
    """Every level's value."""
    spread = np.sqrt(np.diag(covariance(found)))
    lines = []
    for (effect, keys, name), value, left, prior in zip(fit.names, found.x, spread, fit.spreads, strict=True):
        shown = f"{value:+.3g}" if effect.plus else f"x {np.exp(value):.3f}"
        lines.append((effect.term, " x ".join(keys), ", ".join(name), shown, f"{left:.2g}", f"{prior:g}"))
    return table("term | level | of | value | +- | spread", 3, lines)


RUNTIMES: dict[str, tuple[tuple[str, str], ...]] = {
    "vllm": (
        ("vllm-0.11", ""),
        ("vllm-0.14", "layer_us"),
        ("vllm-0.15", "host_us_per_step host_us_per_request"),
        ("vllm-0.24", "host_us_per_step host_us_per_request"),
    ),
    "sglang": (("sglang-0.5", ""),),
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
    "card": 'cards = ["{}"]',
    "form": 'forms = ["{}"]',
    "weights": 'formats = ["{}"]',
    "experts_in": 'formats = ["{}"]',
    "layers_of": 'forms = ["mixture", "latent", "sparse", "hybrid"], formats = ["{}"]',
    "gpus": f"gpus = [{MANY}, 1024]",
}
MEASURED = 'measured = { gpus = [1, 8], cards = ["hopper", "blackwell"], requests = 256 }'
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
                there = [FIELDS["card"].format(each.card)]
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


def write(fit: Fit, found: Found) -> None:
    """The terms into runtimes.toml."""
    path = ROOT / "medusa_sim/specs/runtimes.toml"
    text = path.read_text(encoding="utf-8")
    for engine, places in RUNTIMES.items():
        terms = written_terms(fit, found, engine)
        for runtime, only in places:
            for effect in EFFECTS:
                if only and effect.term not in only.split():
                    continue
                if not only and effect.term == "kernels_share":
                    continue
                text = _with_term(
                    text, runtime, effect, *terms[effect.term], is_old=runtime == "tensorrt-llm-1.1"
                )
    write_text(path, text)


def place_of(scenario: ms.Scenario) -> Place:
    """Where the steps of a scenario would be measured."""
    runtime, case = scenario.runtime, scenario.case
    return Place(runtime.library, runtime.name, case.gpu, case.card, case.formats, case.sizes)


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


def _with_term(
    text: str,
    runtime: str,
    effect: Effect,
    value: float,
    band: float,
    deviations: list[str],
    old: list[str],
    *,
    is_old: bool,
) -> str:
    start = text.index(f'["{runtime}".engine]\n')
    end = text.find("\n[", start + 1)
    end = len(text) if end < 0 else end + 1
    block = text[start:end]
    line = re.search(rf"(?m)^{effect.term} = \{{ value = ([0-9.]+)(.*)\n", block)
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
        new = f"{effect.term} = {{ value = {line[1]}{rest.removesuffix(' }')}, {listed} }}\n"
    else:
        if effect.term == "layer_us":
            deviations = [f"{{ gpus = [2, 1024], plus = {value:.3g} }}"] * int(value > LEAST_PLUS) + [
                each.replace("{ ", "{ gpus = [2, 1024], ", 1) for each in deviations
            ]
            listed, value = f"deviations = [{', '.join(deviations)}]", 0.0
        elsewhere = "" if line is None else "".join(re.findall(KEPT, line[2]))
        where = elsewhere or MEASURED
        if line is None and not deviations and abs(value - float(effect.term in SHARES)) < LEAST_PLUS:
            return text
        ending = f", {listed}" if deviations else ""
        new = (
            f'{effect.term} = {{ value = {value:.4g}, band = {band:.2g}, source = "{SOURCE}", '
            f"{where.removeprefix(', ')}{ending} }}\n"
        )
    block = block.replace(line[0], new) if line is not None else block.rstrip("\n") + "\n" + new + "\n"
    return text[:start] + block + text[end:]


def main() -> None:
    """Fit, hold out, print; write where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the terms into runtimes.toml")
    parser.add_argument("--fit", action="store_true", help="without holding groups out")
    asked = parser.parse_args()
    fit = Fit(parts_of(chain(set_ups(served_cells()), deepseek_set_ups())))
    found = fit.solve(np.ones(len(fit.cells), dtype=bool))
    outs = {} if asked.fit else held_out(fit)
    print(error_table(fit, found, {title: out.errors for title, out in outs.items()}))
    print("First tokens:\n")
    print(error_table(fit, found, {title: out.firsts for title, out in outs.items()}, of_first=True))
    lines = errors_by_kind(fit, {"fit": LeftOut.of(fit, found.x), **outs})
    kinds = kinds_of(lines)
    print(kinds_table(lines, kinds))
    print(ends_table(lines, kinds))
    print(terms_table(fit, found))
    if asked.write:
        write(fit, found)
        write_nearness(fit, kinds, spreads_of(lines))


if __name__ == "__main__":
    main()
