"""Errors of llama.cpp's and MLX's predicted speeds on measured rows, and on devices that were left out.

    python benchmarks/local_speed.py            # the tables
    python benchmarks/local_speed.py --write    # into docs/local.md

Rows: times of forward passes of 1 to 16 tokens, plain speeds, and runs with drafts, collected from public
benchmarks of 2024 to 2026 (`local/`). Kernels that were replaced since are left out.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from measured_pairs import joined, pairs_of
from study import ROOT, measured, table

from medusa_sim.api import Scenario as ApiScenario
from medusa_sim.arrays import FloatArray
from medusa_sim.errors import MedusaSimError
from medusa_sim.file_types import named_file
from medusa_sim.latency.local import LocalLatency
from medusa_sim.scenario.own_rows import (
    SPREAD,
    OwnRow,
    corrected,
    least_squares,
    pass_times,
    passes,
    replace_law,
    scaled,
)
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.specs.gpu import gpu_name, load_gpu
from medusa_sim.specs.local import Law, law_of
from medusa_sim.specs.model import Model
from medusa_sim.specs.models import load_model
from medusa_sim.specs.runtime import Runtime, load_runtime
from medusa_sim.specs.variants import with_dtypes
from medusa_sim.step.compose import drafting_cost, overhead_halves
from medusa_sim.step.drafter import drafter_kind
from medusa_sim.step.step import StepTime, decode_step, verification_step, work_time
from medusa_sim.step.workload import verify
from medusa_sim.writing import write_text

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
FORMS = {"Q2_K_M": "q2_k", "MXFP4 MoE": "mxfp4_moe", "BF16": "f16", "4-bit": "4bit"}
REPLACED = (
    "superseded", "old master", "master before PR", "before fix", "master: mat-mat", "b2110",
    "mat-vec for bs", "not the selected", "MMQ forced", "density gate",
)  # fmt: skip
"""Words of rows whose kernels are not the ones that run today."""
OTHER_SETTINGS = ("hipBLASLt=1", "-b 256")
START, END = "<!-- local: python benchmarks/local_speed.py --write -->", "<!-- /local -->"
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
    return next(
        (own for begins, own in MODELS.items() if name.startswith(begins) or f"/{begins}" in name), None
    )


def form_of(quant: str, model: str) -> str:
    """The file type of a row."""
    found = re.search(r"UD-Q\d_K_XL", model)
    name = found[0] if found else FORMS.get(quant, quant)
    for word, letter in (("Small", "S"), ("Medium", "M"), ("Large", "L")):
        name = name.replace(f" - {word}", f"_{letter}")
    return named_file(name.split(" ")[0])


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


def curves() -> Iterator[Curve]:
    """Every measured curve whose device, model and type are known."""
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


def predicted(curve: Curve, law: Law | None = None) -> FloatArray:
    """T(q) / T(1) of a curve, by its device's law or another."""
    plain_us, *times = [float(step.time_us) for step in steps_of(curve, law)]
    return np.asarray(times) / plain_us


def predicted_band(curve: Curve, law: Law | None = None) -> tuple[FloatArray, FloatArray]:
    """(low, high) 80 % of the same."""
    plain, *several = steps_of(curve, law)
    ratios = predicted(curve, law)
    slower, faster = np.array([overhead_halves(step.cost, plain.cost) for step in several], dtype=float).T
    return ratios * np.exp(-faster), ratios * np.exp(slower)


def steps_of(curve: Curve, law: Law | None = None) -> list[StepTime]:
    """Passes of one token and of a curve's counts."""
    latency, model, runtime = own(curve.gpu, curve.runtime, curve.model, curve.form)
    latency = latency if law is None else replace_law(latency, law)
    rows = [
        OwnRow(columns=m, depth=curve.depth, time_us=1.0, is_batch=curve.is_batch)
        for m in (1, *curve.columns)
    ]
    return list(passes(latency, model, runtime, rows))


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
def others_law(name: str, runtime: str, gpu: str) -> Law:
    """A device's law with its four factors fitted to the curves of other devices of the law alone."""
    law = law_of(load_runtime(runtime).local, gpu, load_gpu(gpu).local)
    others = [curve for curve in curves() if curve.gpu != gpu and law_name(curve) == name]

    def residuals(factors: FloatArray) -> FloatArray:
        fitted = scaled(law, *np.exp(factors))
        left = [np.log(predicted(each, fitted) / each.ratios) / np.sqrt(len(each.columns)) for each in others]
        return np.concatenate([np.concatenate(left) / ROW_ERROR, factors / np.asarray(SPREAD)])

    return scaled(law, *np.exp(least_squares(residuals, np.zeros(len(SPREAD))))) if others else law


def left_out(curve: Curve) -> FloatArray:
    """Errors of T(q) / T(1) by the law of the other devices."""
    return predicted(curve, others_law(law_name(curve), curve.runtime, curve.gpu)) / curve.ratios - 1.0


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
        found.own.extend(predicted(curve) / curve.ratios - 1.0)
        found.left_out.extend(left_out(curve))
        low, high = predicted_band(curve, others_law(law_name(curve), curve.runtime, curve.gpu))
        found.held.extend(((low <= curve.ratios) & (curve.ratios <= high)).tolist())
        for columns, error in errors_with_rows(curve):
            (found.between if columns < max(ASKED) else found.beyond).append(error)
        found.jumps.append(jump(curve.columns, predicted(curve)) == jump(curve.columns, curve.ratios))
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
    rows = [OwnRow(columns=m, depth=curve.depth, time_us=times[m]) for m in ASKED]
    others = [OwnRow(columns=m, depth=curve.depth, time_us=us) for m, us in times.items() if m not in ASKED]
    found = pass_times(corrected(latency, model, runtime, rows), model, runtime, others)
    return [(row.columns, float(us / row.time_us - 1.0)) for us, row in zip(found, others, strict=True)]


def percent(errors: object) -> str:
    """Median and mean of absolute errors."""
    size = 100.0 * np.abs(np.asarray(errors, dtype=float))
    return f"{np.median(size):.1f} / {size.mean():.1f}" if size.size else "-"


class Speed(NamedTuple):
    """Tokens a second of plain decoding, predicted with its 80 % band and measured."""

    runtime: str
    gpu: str
    model: str
    form: str
    predicted: float
    low: float
    high: float
    measured: float


def plain_speeds() -> Iterator[Speed]:
    """Speeds whose device, model and file type are known."""
    rows: Any = pd.read_csv(measured("local/decode.csv")).fillna({"date": ""})
    rows = rows[
        rows["engine"].isin(["llama.cpp", "Rapid-MLX"])
        & rows["test"].str.fullmatch(r"tg(32|64|128|256|512|1024)|tg bucket \w+")
    ]
    for key, group in rows.groupby(["device", "backend", "model", "quant", "depth"]):
        device, backend, model, quant, depth = key
        name = known(str(model))
        if name is None or "AMDVLK" in str(backend):
            continue
        gpu, runtime, form = gpu_name(str(device)), runtime_of(str(backend)), form_of(str(quant), str(model))
        try:
            latency, shape, engine = own(gpu, runtime, name, form)
        except MedusaSimError:
            continue
        newest = group[group["date"] == max(group["date"])]
        made, threads = float(newest["n"].iloc[0]), re.match(r"(\d+) threads", str(newest["note"].iloc[0]))
        if threads:  # of a CPU, which has as much bandwidth and less arithmetic then
            share = int(threads[1]) / latency.gpu.sms
            latency = LocalLatency(latency.gpu, latency.law.backend, latency.law, share)
        row = OwnRow(columns=1, depth=max(1.0, float(depth) + 0.5 * made), time_us=1.0)
        (step,) = passes(latency, shape, engine, [row])
        speed, low, high = (float(1e6 / us) for us in (step.time_us, step.high_us, step.low_us))
        yield Speed(runtime, gpu, name, form, speed, low, high, float(newest["value"].median()))


def plain_table() -> str:
    """Plain tokens a second by runtime."""
    by: dict[str, dict[str, list[float]]] = {}
    for each in plain_speeds():
        by.setdefault(each.runtime, {}).setdefault(each.gpu, []).append(each.predicted / each.measured - 1.0)
    shown = [
        (runtime, len(gpus), sum(map(len, gpus.values())), percent(np.concatenate(list(gpus.values()))),
         percent([np.mean(errors) for errors in gpus.values()]), percent(without_each(gpus)))
        for runtime, gpus in by.items()
    ]  # fmt: skip
    return table("runtime | devices | rows | error | of a device's mean | of a device left out", 1, shown)


def without_each(gpus: dict[str, list[float]]) -> list[float]:
    """Mean error of each device where the law is as fast as all other devices ask; none of one alone."""
    means = {gpu: float(np.mean(np.log1p(errors))) for gpu, errors in gpus.items()}
    others = {gpu: [mean for other, mean in means.items() if other != gpu] for gpu in means}
    return [float(np.expm1(means[gpu] - np.mean(rest))) for gpu, rest in others.items() if rest]


def speedups() -> Iterator[tuple[str, str, str, str, int, float, float]]:
    """(device, runtime, model, file type, drafts, predicted and measured) speedups with own heads."""
    rows: Any = pd.read_csv(measured("local/spec_runs.csv"))
    rows = rows[(rows["engine"] == "llama.cpp") & (rows["method"] == "draft-mtp") & rows["speedup"].notna()]
    rows = rows.assign(rate=pd.to_numeric(rows["acceptance"], errors="coerce"))
    rows = rows.assign(drafts=pd.to_numeric(rows["n_max"], errors="coerce"))
    for row in rows[rows["rate"].notna() & rows["drafts"].notna()].itertuples():
        name = known(str(row.target))
        if name is None:
            continue
        gpu, runtime = gpu_name(str(row.device)), runtime_of(str(row.backend))
        form, drafts = form_of(str(row.target_quant), str(row.target)), int(row.drafts)
        try:
            relative = round_of(gpu, runtime, name, form, drafts)
        except MedusaSimError:
            continue
        yield (
            gpu,
            runtime,
            name,
            form,
            drafts,
            (1.0 + drafts * float(row.rate)) / relative,
            float(row.speedup),
        )


def runs_table() -> str:
    """Speedups of runs with the model's own head, at the acceptance that they report."""
    by: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for gpu, runtime, name, form, drafts, gain, told in speedups():
        by.setdefault((gpu, runtime, name, form, str(drafts)), []).append((gain, told))
    shown = [
        (*key, len(pairs), f"{np.mean([m for _, m in pairs]):.2f}", percent([p / m - 1.0 for p, m in pairs]),
         f"{sum((p > 1.0) == (m > 1.0) for p, m in pairs)} of {len(pairs)}")
        for key, pairs in by.items()
    ]  # fmt: skip
    return table("device | runtime | model | file | drafts | runs | speedup | error | sign", 4, shown)


def pairs() -> pd.DataFrame:
    """Passes of several tokens, plain speeds and speedups as pairs (`measured_pairs.py`)."""
    passes = [
        {"engine": curve.runtime, "card": curve.gpu, "model": curve.model, "weights": curve.form,
         "measured": ratio, "predicted": own_ratio, "requests": m if curve.is_batch else 1,
         "cell": f"{m} tokens", "low": low, "high": high, "left_out": outside}
        for curve in curves()
        for m, ratio, own_ratio, low, high, outside in zip(
            curve.columns, curve.ratios, predicted(curve), *predicted_band(curve), left_out(curve),
            strict=True,
        )
    ]  # fmt: skip
    speeds = [
        {"engine": each.runtime, "card": each.gpu, "model": each.model, "weights": each.form,
         "measured": each.measured, "predicted": each.predicted, "low": each.low, "high": each.high}
        for each in plain_speeds()
    ]  # fmt: skip
    gains = [
        {"engine": runtime, "card": gpu, "model": name, "weights": form, "measured": told, "predicted": gain,
         "cell": f"{drafts} drafts"}
        for gpu, runtime, name, form, drafts, gain, told in speedups()
    ]  # fmt: skip
    same = {"kind": "local", "fitted": "yes"}
    return joined([
        pairs_of(pd.DataFrame(passes), what="pass of q tokens over one", data="local/tq.csv", **same),
        pairs_of(pd.DataFrame(speeds), what="plain tokens/s", data="local/decode.csv", **same),
        pairs_of(pd.DataFrame(gains), what="speedup", data="local/spec_runs.csv", **same),
    ])  # fmt: skip


@cache
def round_of(gpu: str, runtime: str, model: str, form: str, drafts: int, depth: int = 300) -> float:
    """A round of so many drafts of the model's own head, in plain steps."""
    at = Scenario(
        gpu=gpu, runtime=runtime, model=model, weight_dtype=form, drafter="mtp", acceptance=0.7,
        max_drafts=drafts,
    )  # fmt: skip
    setting = at.setting
    drafter = drafter_kind("mtp").of(at.drafting.parts, drafts)
    works = drafter.work(at.shard, verify(1, depth, drafts + 1), setting.runtime)
    drafted = sum(float(work_time(setting.latency, work).time_us) for work in works)
    cost = drafting_cost(setting.runtime, 1, looks_up=False)
    beside = 0.0 if cost is None else float(cost.exposed_us)
    verified = float(verification_step(setting, 1, depth, drafts + 1).time_us)
    return (verified + drafted + beside) / float(decode_step(setting, 1, depth).time_us)


def rounds_table() -> str:
    """Whole rounds of one to six drafts, in plain steps."""
    rows: Any = pd.read_csv(measured("local/round_cost.csv"))
    shown, gains = [], []
    for row in rows.itertuples():
        own_round = round_of(
            gpu_name(str(row.device)), "llama.cpp-cuda", "qwen3.5-27b", "ud-q4_k_xl", int(row.n_max)
        )
        gains.append((row.tokens_per_round / own_round, row.tokens_per_round / row.round_rel))
        shown.append(
            (
                row.n_max,
                f"{own_round:.2f}",
                f"{row.round_rel:.2f}",
                f"{100 * (own_round / row.round_rel - 1):+.0f} %",
            )
        )
    best = [int(np.argmax([pair[i] for pair in gains])) + 1 for i in (0, 1)]
    text = table("drafts | predicted | measured | error", 0, shown)
    return f"{text}\n\nBest number of drafts: predicted {best[0]}, measured {best[1]}."


def sweeps_table() -> str:
    """Best number of drafts and best p-min of one machine, and what the predicted ones give up."""
    rows: Any = pd.read_csv(measured("local/spec_runs.csv"), dtype=str)
    rows = rows[(rows["device"] == SWEPT) & (rows["prompt"] == "Overall")]
    by = {(int(row.n_max), float(row.p_min)): float(row.spec_tps) for row in rows.itertuples()}
    found = {(drafts, p_min): gain_of(gpu_name(SWEPT), drafts, p_min) for drafts, p_min in by}
    asked = {
        "drafts, p-min 0": [at for at in by if at[1] == 0.0],
        "p-min, 5 drafts": [at for at in by if at[0] == 5],
        "drafts, p-min 0.3": [at for at in by if at[1] == 0.3],
    }
    shown = []
    for name, places in asked.items():
        own, true = (max(places, key=of.__getitem__) for of in (found, by))
        of = 1 if name.startswith("p-min") else 0
        shown.append((name, f"{own[of]:g}", f"{true[of]:g}", f"{100 * (1 - by[own] / by[true]):.1f}"))
    return table("sweep | predicted | measured | speed given up, %", 1, shown)


SWEPT, SWEPT_RATE = "RTX PRO 6000 Max-Q", 0.803
"""The rate of a draft where 54.3 % of five are accepted."""


def gain_of(gpu: str, drafts: int, p_min: float) -> float:
    """Speedup of so many drafts of the model's own head at the swept machine's acceptance."""
    at = ApiScenario(
        gpu=gpu, runtime="llama.cpp-cuda", model="qwen3.5-27b", weight_dtype="ud-q4_k_xl", drafter="mtp",
        acceptance=SWEPT_RATE, max_drafts=drafts, p_min=p_min,
    )  # fmt: skip
    return float(at.sweep(1, 300, [drafts + 1]).iloc[0]["speedup"])


def page() -> str:
    """All tables."""
    return "\n\n".join(
        [
            "Time of q tokens over that of one (q = 2 to 16), median / mean of the absolute error in per "
            "cent. *Left out*: the law's four factors (bandwidth, arithmetic, what is fixed, tiles) are "
            "those of the other devices of its class; how types compare was chosen with all rows in sight. "
            "*Held*: rows in the 80 % band of a device left out. "
            "*Four rows*: 1, 2, 4 and 8 tokens of the machine's own; errors between them, and at 16 beyond "
            "them, where other kernels run (the command that is printed asks for 16, too). "
            "*Jumps*: curves whose largest step is where it was measured.",
            verification_table(),
            "Plain tokens a second:",
            plain_table(),
            "Speedups with the model's own head, at the acceptance that each run reports:",
            runs_table(),
            "Rounds of Qwen3.8-27B (UD-Q4_K_XL) with its own head on an RTX 5090, in plain steps:",
            rounds_table(),
            "Best settings of Qwen3.8-27B with its own head on an RTX PRO 6000 Max-Q, at one rate:",
            sweeps_table(),
        ]
    )


def main() -> None:
    """Print the tables, or write them into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="into docs/local.md")
    text = page()
    if not parser.parse_args().write:
        print(text)
        return
    path = ROOT / "docs" / "local.md"
    whole = path.read_text(encoding="utf-8")
    head, tail = whole[: whole.index(START)], whole[whole.index(END) :]
    write_text(path, f"{head}{START}\n\n{text}\n\n{tail}")


if __name__ == "__main__":
    main()
