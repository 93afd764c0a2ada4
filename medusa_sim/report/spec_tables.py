"""Specifications as tables for people."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from medusa_sim.data import DataDir
from medusa_sim.report.spec_rows import SpecRow
from medusa_sim.report.text import NOTHING, TextTable, cell, significant, with_prefix
from medusa_sim.specs.gpu import Gpu, load_gpu
from medusa_sim.specs.inheritance import fitted_kernels
from medusa_sim.specs.kernels import KernelSet
from medusa_sim.units import GIGA, TERA

_PREFIXED = {"FLOP/s": "FLOP/s", "bytes/s": "B/s", "bytes": "B"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecEntry:
    """A GPU, model, runtime or acceptance profile with its facts, or the table of prices."""

    kind: str
    name: str
    rows: tuple[SpecRow, ...]

    def value(self, key: str) -> float | int | str | bool | None:
        """The fact of that key, or None."""
        return next((row.value for row in self.rows if row.key == key), None)


def shown_value(row: SpecRow) -> str:
    """A value with its unit, rounded where it has a decimal prefix."""
    if isinstance(row.value, bool | str) or row.unit not in _PREFIXED:
        return cell(row.key, row.value) + (f" {row.unit}" if row.unit else "")
    return with_prefix(float(row.value), _PREFIXED[row.unit], digits=4)


_LONG_VALUE = 24
"""Characters from which a value is words and may run over several lines."""


def detail_table(entry: SpecEntry) -> TextTable:
    """One line for each fact: value, source, remark. A source that repeats is written once."""
    rows = []
    before = ""
    for row in entry.rows:
        source = '"' if row.source == before else row.source
        before = row.source
        rows.append((row.key, shown_value(row), source + (f" ({row.note})" if row.note else "")))
    return TextTable(
        headers=("key", "value", "source"),
        rows=tuple(rows),
        right=(False, all(len(value) <= _LONG_VALUE for _, value, _ in rows), False),
        title=f"{entry.kind} {entry.name}",
    )


def overview_tables(entries: Sequence[SpecEntry], data_dir: DataDir) -> list[TextTable]:
    """One table for each kind that has entries."""
    by_kind = {
        kind: [entry for entry in entries if entry.kind == kind]
        for kind in ("gpu", "model", "runtime", "acceptance", "price")
    }
    tables = {
        "gpu": _gpu_table(by_kind["gpu"], data_dir),
        "model": _model_table(by_kind["model"]),
        "runtime": _simple_table("runtimes", by_kind["runtime"], ("title",)),
        "acceptance": _simple_table(
            "acceptance profiles", by_kind["acceptance"], ("model", "candidates_max", "title")
        ),
        "price": _price_table(by_kind["price"]),
    }
    return [table for kind, table in tables.items() if by_kind[kind]]


def _gpu_table(entries: Sequence[SpecEntry], data_dir: DataDir) -> TextTable:
    def peak(dtype: str) -> Callable[[Gpu], str]:
        return lambda gpu: significant(gpu.peak_flops_per_s.get(dtype, math.nan) / TERA, 4)

    columns: dict[str, Callable[[Gpu], str]] = {
        "gpu": lambda gpu: gpu.name,
        "SMs": lambda gpu: str(gpu.sms),
        "memory": lambda gpu: with_prefix(gpu.memory_bytes, "B"),
        "bandwidth": lambda gpu: with_prefix(gpu.bandwidth_bytes_per_s, "B/s"),
        "fp16 TFLOP/s": peak("fp16"),
        "fp8 TFLOP/s": peak("fp8"),
        "kernel sets": _kernel_sets,
    }
    gpus = (load_gpu(entry.name, data_dir) for entry in entries)
    return TextTable.by_row(gpus, columns, words=("gpu", "kernel sets"), title="GPUs")


def _kernel_sets(gpu: Gpu) -> str:
    """`torch (fitted), sglang (from h100-sxm)`."""
    return ", ".join(f"{name} ({_origin(kernels)})" for name, kernels in gpu.kernels.items()) or NOTHING


def _origin(kernels: KernelSet) -> str:
    fits = [kernel.fit for kernel in fitted_kernels(kernels).values()]
    lenders = sorted({fit.inherited_from.split(":")[0] for fit in fits if fit.inherited_from})
    fitted = any(not fit.inherited_from for fit in fits)
    if not fits:
        return "empty"
    return " + ".join([*(["fitted"] if fitted else []), *(f"from {lender}" for lender in lenders)])


def _model_table(entries: Sequence[SpecEntry]) -> TextTable:
    def billions(key: str) -> Callable[[SpecEntry], str]:
        return lambda entry: f"{float(entry.value(key) or 0.0) / GIGA:.2f}"

    columns: dict[str, Callable[[SpecEntry], str]] = {
        "model": lambda entry: entry.name,
        **{key: _fact(key) for key in ("layers", "hidden", "heads", "kv_heads", "vocab", "weight_dtype")},
        "experts": _experts,
        "parameters/10^9": billions("parameter_count"),
        "active/10^9": billions("active_parameter_count"),
        "KV a token": lambda entry: _bytes(entry, "kv_bytes_per_token"),
        "state": lambda entry: _bytes(entry, "state_bytes"),
    }
    return TextTable.by_row(entries, columns, words=("model", "weight_dtype", "experts"), title="models")


def _price_table(entries: Sequence[SpecEntry]) -> TextTable:
    columns: dict[str, Callable[[SpecRow], str]] = {
        "gpu": lambda row: row.key,
        "$ per GPU-hour": lambda row: f"{row.value:g}",
        "offer, date": lambda row: row.note,
    }
    rows = (row for entry in entries for row in entry.rows)
    return TextTable.by_row(rows, columns, words=("gpu", "offer, date"), title="prices")


def _fact(key: str) -> Callable[[SpecEntry], str]:
    return lambda entry: str(entry.value(key))


def _experts(entry: SpecEntry) -> str:
    """`8 of 256`: how many of its routed experts a token takes, and their dtype where it is another."""
    place = next((row.key for row in entry.rows if row.key.endswith(".feed_forward.experts")), None)
    if place is None:
        return NOTHING
    part = place.removesuffix("experts")
    stored = entry.value(f"{part}form")
    return f"{entry.value(f'{part}topk')} of {entry.value(place)}" + (f", {stored}" if stored else "")


def _bytes(entry: SpecEntry, key: str) -> str:
    value = float(entry.value(key) or 0.0)
    return with_prefix(value, "B") if value else NOTHING


def _simple_table(title: str, entries: Sequence[SpecEntry], keys: tuple[str, ...]) -> TextTable:
    columns = {"name": lambda entry: entry.name, **{key: _fact(key) for key in keys}}
    words = [name for name in columns if name != "candidates_max"]
    return TextTable.by_row(entries, columns, words=words, title=title)


def spec_rows(kind: str, name: str, data_dir: DataDir = None, *, kernels: bool = False) -> list[SpecRow]:
    """Every number of a `gpu`, `model`, `runtime`, `acceptance` profile, or of the table of prices.

    kernels: fitted ones of a GPU too.

    Raises SpecError or DataError from loading.
    """
    from medusa_sim.report import spec_rows as rows

    match kind:
        case "gpu":
            gpu = load_gpu(name, data_dir)
            return rows.gpu_rows(gpu) + (rows.kernel_rows(gpu) if kernels else [])
        case "model":
            from medusa_sim.specs.models import load_model

            return rows.model_rows(load_model(name))
        case "runtime":
            from medusa_sim.specs.runtime import load_runtime

            return rows.runtime_rows(load_runtime(name, data_dir))
        case "price":
            from medusa_sim.specs.costs import prices

            return rows.price_rows(prices(data_dir))
        case _:
            return _acceptance_rows(name, data_dir)


def _modelled(profile: str) -> str:
    """The model that a profile's name ends with, or why it cannot be asked; empty where it names none."""
    from medusa_sim.specs.hf_families import unmodelled
    from medusa_sim.specs.models import model_names
    from medusa_sim.step.drafter import DRAFTERS

    prefixes = [prefix for kind in DRAFTERS.values() for prefix in kind.profiles]
    model = profile.removeprefix(next(filter(profile.startswith, prefixes), ""))
    known = [name for name in model_names() if model.startswith(name)]
    if known:
        return max(known, key=len)
    return "" if (what := unmodelled(model)) is None else f"none; not modelled: {what}"


def _acceptance_rows(name: str, data_dir: DataDir) -> list[SpecRow]:
    """Tokens per step at powers of two, with the profile's source."""
    from medusa_sim.acceptance.profile import load_acceptance

    profile = load_acceptance(name, data_dir)
    counts = [1 << power for power in range(profile.candidates_max.bit_length())]
    tokens = profile.tokens_per_step(counts)
    return [
        SpecRow(key="kind", value=profile.kind, source=profile.source),
        SpecRow(key="title", value=profile.title, source=profile.source),
        SpecRow(key="model", value=_modelled(name), source=profile.source),
        SpecRow(key="candidates_max", value=profile.candidates_max, source=profile.source),
        *(
            SpecRow(key=f"tokens_per_step.{count}", value=float(value), source=profile.source)
            for count, value in zip(counts, tokens, strict=True)
        ),
    ]
