"""Measured times of forward passes of llama.cpp by tokens, beside the law of their device and of others.

A curve is T(q) / T(1) of a file on a device (`local/tq.csv`). A law is judged with the device in sight, by
what the other devices of its class say, and with four rows of the machine's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from common.study import measured, table
from medusa_sim.arrays import BoolArray, FloatArray
from medusa_sim.engines.runtime import Runtime, load_runtime
from medusa_sim.errors import MedusaSimError
from medusa_sim.file_types import named_file
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.gpus.gpu_names import gpu_name
from medusa_sim.gpus.local import LocalLaw, local_law
from medusa_sim.latency.local import LocalLatency
from medusa_sim.models.model import Model
from medusa_sim.models.named import load_model
from medusa_sim.models.variants import with_dtypes
from medusa_sim.scenario.local_correction import SPREAD, corrected, pass_times, passes, replace_law, scaled
from medusa_sim.scenario.local_rows import LocalRow
from medusa_sim.step.compose import overhead_halves
from medusa_sim.step.pass_times import PassTimes

MODELS = {
    "Qwen2.5-Coder-7B": "qwen2.5-7b", "qwen2 7B": "qwen2.5-7b", "qwen2 32B": "qwen2.5-32b",
    "qwen2 14B": "qwen2.5-14b", "qwen2 1.5B": "qwen2.5-1.5b", "gemma-3-4b": "gemma-3-4b",
    "gemma3 4B": "gemma-3-4b", "Qwen3.6-27B": "qwen3.5-27b", "Qwen3.8-27B": "qwen3.5-27b",
    "Qwen3.6-35B-A3B": "qwen3.5-35b-a3b", "Qwen3-30B-A3B": "qwen3-30b-a3b", "qwen3moe 30B": "qwen3-30b-a3b",
    "Llama-3.1-8B": "llama-3.1-8b", "Llama-3-8B": "llama-3-8b", "llama 8B": "llama-3-8b",
    "Llama-3-70B": "llama-3-70b", "llama-2-7b": "llama-2-7b", "llama 7B": "llama-2-7b",
    "llama 13B": "llama-2-13b", "Llama-3.2-3B": "llama-3.2-3b",
    "Mistral-Small-3.1-24B": "mistral-small-24b", "qwen3 0.6B": "qwen3-0.6b", "gpt-oss-20b": "gpt-oss-20b",
    "gpt-oss 20B": "gpt-oss-20b", "gpt-oss-120b": "gpt-oss-120b", "gpt-oss 120B": "gpt-oss-120b",
}  # fmt: skip
"""How names of models in the rows begin -> models of the same sizes."""
UNSEEN_MODELS = {
    "Llama-4-Scout": "llama-4-scout", "GLM-4.5-Air": "glm-4.5-air", "Qwen3-235B-A22B": "qwen3-235b-a22b",
    "gemma-4-26B-A4B": "gemma-4-26b-a4b", "gemma4 26B-A4B": "gemma-4-26b-a4b", "gemma-4-31B": "gemma-4-31b",
    "Llama 3.2:3b": "llama-3.2-3b", "DeepSeek R1 14b": "qwen2.5-14b", "Llama 3.1:70b": "llama-3.1-70b",
}  # fmt: skip
"""The same of models at whose plain speeds nobody looked when a constant was chosen."""
FORMS = {"Q2_K_M": "q2_k", "BF16": "f16"}
"""Types that the rows call by another's name, or that are read as another."""
REPLACED = (
    "superseded", "old master", "master before PR", "before fix", "master: mat-mat", "b2110",
    "mat-vec for bs", "not the selected", "MMQ forced", "density gate",
)  # fmt: skip
"""Words of rows whose kernels are not the ones that run today."""
OTHER_SETTINGS = ("hipBLASLt=1", "-b 256")
COLUMNS = 16
ROW_ERROR = 0.1
"""Of a curve of another device, where factors are taken from it."""


class Curve(NamedTuple):
    """Times of a file on a device by columns; plain_us: None where only ratios are known."""

    gpu: str
    runtime: str
    model: str
    form: str
    columns: tuple[int, ...]
    ratios: FloatArray
    plain_us: float | None
    depth: float
    is_batch: bool


def known(name: str) -> str | None:
    """The model of a row."""
    names = MODELS | UNSEEN_MODELS
    return next((names[begins] for begins in names if _is_of(name, begins)), None)


def is_unseen(name: str) -> bool:
    """Whether the model of a row is one of UNSEEN_MODELS."""
    return not any(_is_of(name, begins) for begins in MODELS)


def _is_of(name: str, begins: str) -> bool:
    return name.startswith(begins) or f"/{begins}" in name


def form_of(quant: str, model: str) -> str:
    """The file type of a row."""
    found = re.search(r"UD-Q\d_K_XL", model)
    name = found[0] if found else FORMS.get(quant, quant)
    return named_file(re.sub(r" (- [\d.]+ bpw|or .*)$", "", name))


def runtime_of(backend: str) -> str:
    """The runtime of a row."""
    word = backend.lower().split(" ")[0]
    return "mlx" if word == "mlx" else f"llama.cpp-{word}"


@cache
def own(gpu: str, runtime: str, model: str, form: str) -> tuple[LocalLatency, Model, Runtime]:
    """What predicts a curve. Raises MedusaSimError where a device or a type is not known."""
    engine = load_runtime(runtime)
    latency = LocalLatency(load_gpu(gpu), engine.local)
    return latency, with_dtypes(load_model(model), None, form), engine


@cache
def curves() -> tuple[Curve, ...]:
    """Every measured curve whose device, model and type are known."""
    return tuple(_read())


def _read() -> Iterator[Curve]:
    rows: Any = pd.read_csv(measured("local/tq.csv")).fillna(
        {"variant": "", "note": "", "depth": "0", "date": ""}
    )
    rows = rows[(rows["engine"] == "llama.cpp") & rows["T_rel"].notna() & (rows["q"] <= COLUMNS)]
    dated = rows["date"].astype(str)
    is_old = rows["active_B"].notna() & (dated < "2026-03")  # experts: other kernels since January 2026
    rows = rows[~is_old]
    keys = ["device", "backend", "version", "model", "quant", "test", "depth", "variant"]
    for key, group in rows.groupby(keys, sort=False):
        device, backend, version, model, quant, test, depth, variant = map(str, key)
        told = f"{version} {variant} {' '.join(group['note'])}"
        name = known(model)
        if name is None or any(word in told for word in (*REPLACED, *OTHER_SETTINGS)):
            continue
        if not set(range(2, COLUMNS + 1)) & set(group["q"].astype(int)):
            continue
        plain = group.loc[group["q"] == 1, "T_ms"]
        several = group[group["q"] > 1].sort_values("q")
        try:
            own(gpu_name(device), runtime_of(backend), name, form_of(quant, model))
        except MedusaSimError:
            continue
        yield Curve(
            gpu=gpu_name(device), runtime=runtime_of(backend), model=name, form=form_of(quant, model),
            columns=tuple(several["q"].astype(int)), ratios=several["T_rel"].to_numpy(float),
            plain_us=None if plain.empty or not np.isfinite(plain.iloc[0]) else 1e3 * float(plain.iloc[0]),
            depth=1.0 if "-" in depth else max(1.0, float(depth)), is_batch="batched" in test,
        )  # fmt: skip


class Ratios(NamedTuple):
    """T(q) / T(1) of a curve as a law predicts it, with the ends of its 80 % band."""

    value: FloatArray
    low: FloatArray
    high: FloatArray

    def errors(self, curve: Curve) -> FloatArray:
        """Relative to what was measured."""
        return self.value / curve.ratios - 1.0

    def held(self, curve: Curve) -> BoolArray:
        """Whether the band holds what was measured."""
        return np.asarray((self.low <= curve.ratios) & (curve.ratios <= self.high))


def predicted(curve: Curve, law: LocalLaw | None = None) -> Ratios:
    """A curve by its device's law or another."""
    plain, *several = _steps(curve, law)
    ratios = np.concatenate([step.time_us / plain.time_us for step in several])
    down, up = np.concatenate([overhead_halves(step.cost, plain.cost) for step in several], axis=1)
    return Ratios(ratios, ratios * np.exp(-down), ratios * np.exp(up))


def _steps(curve: Curve, law: LocalLaw | None) -> list[PassTimes]:
    """Passes of one token and of a curve's counts."""
    latency, model, runtime = own(curve.gpu, curve.runtime, curve.model, curve.form)
    latency = latency if law is None else replace_law(latency, law)
    rows = [
        LocalRow(columns=m, depth=curve.depth, time_us=1.0, is_batch=curve.is_batch)
        for m in (1, *curve.columns)
    ]
    return [step for row in rows for _, step in passes(latency, model, runtime, [row])]


def jump(columns: tuple[int, ...], ratios: FloatArray) -> int | None:
    """Where a curve rises most from one measured count to the next; None where no step is a quarter."""
    every = np.concatenate([[1.0], ratios])
    steps = np.diff(np.log(every)) / np.diff(np.log([1, *columns]))
    at = int(np.argmax(np.diff(np.log(every))))
    return columns[at] if np.diff(np.log(every))[at] > np.log(1.25) and steps[at] > 1.0 else None


def law_name(curve: Curve) -> str:
    """Of the law that its device follows."""
    return own(curve.gpu, curve.runtime, curve.model, curve.form)[0].law.name


@cache
def others_law(name: str, runtime: str, gpu: str) -> LocalLaw:
    """A device's law with its four factors fitted to the curves of other devices of the law alone."""
    law = local_law(load_runtime(runtime).local, gpu, load_gpu(gpu).local)
    others = [curve for curve in curves() if curve.gpu != gpu and law_name(curve) == name]

    def residuals(factors: FloatArray) -> FloatArray:
        fitted = scaled(law, *np.exp(factors))
        left = [
            np.log(predicted(each, fitted).value / each.ratios) / np.sqrt(len(each.columns))
            for each in others
        ]
        return np.concatenate([np.concatenate(left) / ROW_ERROR, factors / np.asarray(SPREAD)])

    return scaled(law, *np.exp(least_squares(residuals, np.zeros(len(SPREAD))).x)) if others else law


def left_out(curve: Curve) -> Ratios:
    """A curve by the law of the other devices."""
    return predicted(curve, others_law(law_name(curve), curve.runtime, curve.gpu))


class DeviceErrors(NamedTuple):
    """Relative errors of T(q) on one device's curves.

    own: with the device in sight. left_out: without it. held: whether the 80 % band without it holds what was
    measured. between, beyond: with four rows of its own, at counts between them and above them. jumps:
    whether a curve's largest step is where it was measured.
    """

    own: list[float]
    left_out: list[float]
    held: list[bool]
    between: list[float]
    beyond: list[float]
    jumps: list[bool]

    def cells(self) -> tuple[str, ...]:
        """Of a row of the table."""
        held = f"{100.0 * np.mean(self.held):.0f} %"
        of_rows = (percent(self.between), percent(self.beyond))
        jumps = f"{sum(self.jumps)} of {len(self.jumps)}"
        return percent(self.own), percent(self.left_out), held, *of_rows, jumps


def verification_table() -> str:
    """T(q) / T(1) by law and device, with the device in sight and left out, and with four rows of its own."""
    by_device: dict[tuple[str, str], list[Curve]] = {}
    for curve in sorted(curves(), key=law_name):
        by_device.setdefault((law_name(curve), curve.gpu), []).append(curve)
    found = [errors_of(group) for group in by_device.values()]
    every = DeviceErrors(*(list(chain.from_iterable(parts)) for parts in zip(*found, strict=True)))
    rows = [
        (*names, len(errors.jumps), *errors.cells())
        for names, errors in (*zip(by_device, found, strict=True), (("all", ""), every))
    ]
    head = "law | device | curves | error | left out | held | between four rows | beyond them | jumps"
    return table(head, 2, rows)


def errors_of(group: list[Curve]) -> DeviceErrors:
    """Errors of the curves of one device."""
    found = DeviceErrors([], [], [], [], [], [])
    for curve in group:
        own_ratios, without = predicted(curve), left_out(curve)
        found.own.extend(own_ratios.errors(curve))
        found.left_out.extend(without.errors(curve))
        found.held.extend(without.held(curve))
        for columns, error in errors_with_rows(curve):
            (found.between if columns < max(ASKED) else found.beyond).append(error)
        found.jumps.append(jump(curve.columns, own_ratios.value) == jump(curve.columns, curve.ratios))
    return found


ASKED = (1, 2, 4, 8)
"""Tokens of the four rows of a machine's own."""


def errors_with_rows(curve: Curve) -> list[tuple[int, float]]:
    """(columns, error) of T(q) at counts that were not among four rows of the machine's own."""
    if curve.plain_us is None or curve.is_batch or not set(ASKED[1:]) <= set(curve.columns):
        return []
    latency, model, runtime = own(curve.gpu, curve.runtime, curve.model, curve.form)
    times = dict(
        zip((1, *curve.columns), curve.plain_us * np.concatenate([[1.0], curve.ratios]), strict=True)
    )
    rows = [LocalRow(columns=m, depth=curve.depth, time_us=times[m]) for m in ASKED]
    others = [LocalRow(columns=m, depth=curve.depth, time_us=us) for m, us in times.items() if m not in ASKED]
    found = pass_times(corrected(latency, model, runtime, rows), model, runtime, others)
    return [(row.columns, float(us / row.time_us - 1.0)) for us, row in zip(found, others, strict=True)]


def percent(errors: object) -> str:
    """Median and mean of absolute errors."""
    size = 100.0 * np.abs(np.asarray(errors, dtype=float))
    return f"{np.median(size):.1f} / {size.mean():.1f}" if size.size else "-"
