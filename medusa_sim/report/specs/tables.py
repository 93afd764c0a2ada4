"""Specifications as tables for people, and how near a set-up is to measured ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from medusa_sim.data import DataDir
from medusa_sim.doubts.standing import Standing, near_groups
from medusa_sim.engines.accuracy_groups import LEAST_ROWS, together
from medusa_sim.gpus.gpu import Gpu, load_gpu
from medusa_sim.gpus.inheritance import fitted_kernels
from medusa_sim.gpus.kernels import KernelSet
from medusa_sim.gpus.local import is_unopened, laws_of, runtimes_of
from medusa_sim.report.screen import Fact, Screen
from medusa_sim.report.specs.rows import SpecRow
from medusa_sim.report.table import TextTable, cell_text
from medusa_sim.report.words.basis import basis
from medusa_sim.report.words.numbers import NOTHING, number_of, percent, significant, with_prefix
from medusa_sim.report.words.standing import groups_table, standing_sentence
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.units import GIGA, TERA

_PREFIXED = {"FLOP/s": "FLOP/s", "bytes/s": "B/s", "bytes": "B"}
_LONG_VALUE = 24
"""Characters from which a value is words and may run over several lines."""
_ASKED = {
    "gpu": "GPU {}", "model": "model {}", "runtime": "runtime {}", "acceptance": "acceptance profile {}",
    "price": "prices of GPUs",
}  # fmt: skip
"""Title of a screen about one entry."""
_LISTED = {
    "gpu": "GPUs", "model": "Models", "runtime": "Runtimes", "acceptance": "Profiles", "price": "Prices"
}  # fmt: skip


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
        return cell_text(row.key, row.value) + (f" {row.unit}" if row.unit else "")
    return with_prefix(float(row.value), _PREFIXED[row.unit], digits=4)


def detail_table(entry: SpecEntry) -> TextTable:
    """One line for each fact: value, source, remark. A source that repeats is written once."""
    rows = []
    for row, before in zip(entry.rows, (None, *entry.rows), strict=False):
        source = '"' if before is not None and row.source == before.source else row.source
        rows.append((row.key, shown_value(row), source + (f" ({row.note})" if row.note else "")))
    keys, values, given = zip(*rows, strict=True)
    is_long = any(len(value) > _LONG_VALUE for value in values)
    words = ("key", "value", "source") if is_long else ("key", "source")
    return TextTable.by_column({"key": keys, "value": values, "source": given}, words=words)


def entry_sentence(entry: SpecEntry) -> str:
    """How much is known of it: of a GPU its speed and memory; how many facts, from how many sources."""
    sources = {row.source for row in entry.rows}
    counts = f"{number_of('facts', len(entry.rows))} from {number_of('sources', len(sources))}"
    shown = {row.key: shown_value(row) for row in entry.rows}
    named = {
        "peak_flops_per_s.bf16": "in bf16", "bandwidth_bytes_per_s": "from memory", "memory_bytes": "of it"
    }  # fmt: skip
    speeds = [f"{shown[key]} {what}" for key, what in named.items() if key in shown]
    return f"{'; '.join([*([', '.join(speeds)] if speeds else []), counts])}."


def entry_screen(entry: SpecEntry) -> Screen:
    """Every number of one entry."""
    return Screen(
        asked=_ASKED[entry.kind].format(entry.name),
        answer=(entry_sentence(entry),),
        tables=(detail_table(entry),),
    )


def names_screen(entries: Sequence[SpecEntry]) -> Screen:
    """The names of everything, by kind."""
    names: dict[str, list[str]] = {}
    for entry in entries:
        # the one table of prices is listed by its GPUs
        names_of_it = dict.fromkeys(row.key for row in entry.rows) if entry.kind == "price" else (entry.name,)
        names.setdefault(_LISTED[entry.kind], []).extend(names_of_it)
    count = ", ".join(
        f"{len(listed)} {label if label == 'GPUs' else label.lower()}"
        for label, listed in names.items()
        if label != "Prices"
    )
    return Screen(
        asked="what is known, by name",
        answer=(f"{count}.",),
        facts=(
            *(Fact(label, ", ".join(listed)) for label, listed in names.items()),
            Fact(
                "Next",
                "NAME (or `prices`) shows numbers with their sources; --kind gpu or --verbose the main ones",
            ),
        ),
    )


def overview_tables(entries: Sequence[SpecEntry], data_dir: DataDir) -> list[TextTable]:
    """One table for each kind that has entries."""
    by_kind: dict[str, list[SpecEntry]] = {kind: [] for kind in _LISTED}
    for entry in entries:
        by_kind[entry.kind].append(entry)
    models, runtimes, profiles = (by_kind[kind] for kind in ("model", "runtime", "acceptance"))
    prices = [row for entry in by_kind["price"] for row in entry.rows]
    words = ("model", "weight_dtype", "experts", "name", "title", "gpu", "offer, date")
    tables = (
        *_gpu_tables([load_gpu(entry.name, data_dir) for entry in by_kind["gpu"]]),
        TextTable.by_column(
            {
                "model": [entry.name for entry in models],
                **_facts(models, "layers", "hidden", "heads", "kv_heads", "vocab", "weight_dtype"),
                "experts": [_experts(entry) for entry in models],
                "10^9 weights": [_billions(entry, "parameter_count") for entry in models],
                "active": [_billions(entry, "active_parameter_count") for entry in models],
                "KV a token": [_bytes(entry, "kv_bytes_per_token") for entry in models],
                "state": [_bytes(entry, "state_bytes") for entry in models],
            },
            words=words,
            expendable=("vocab", "heads", "state", "kv_heads", "hidden"),
            title="models",
        ),
        TextTable.by_column(
            {"name": [entry.name for entry in runtimes], **_facts(runtimes, "title")},
            words=words,
            title="runtimes",
        ),
        TextTable.by_column(
            {
                "name": [entry.name for entry in profiles],
                **_facts(profiles, "model", "candidates_max", "title"),
            },
            words=words,
            title="acceptance profiles",
        ),
        TextTable.by_column(
            {
                "gpu": [row.key for row in prices],
                "$ per GPU-hour": [f"{row.value:g}" for row in prices],
                "offer, date": [row.note for row in prices],
            },
            words=words,
            title="prices",
        ),
    )
    return [table for table in tables if table.rows]


def _facts(entries: Sequence[SpecEntry], *keys: str) -> dict[str, list[str]]:
    """Columns of facts by their keys."""
    return {key: [str(entry.value(key)) for entry in entries] for key in keys}


def _gpu_tables(gpus: Sequence[Gpu]) -> Iterator[TextTable]:
    """GPUs of servers, then each group of those that llama.cpp and MLX run on."""
    servers = [gpu for gpu in gpus if gpu.kernels]
    yield TextTable.by_column(
        {
            "gpu": [gpu.name for gpu in servers],
            "SMs": [str(gpu.sms) for gpu in servers],
            "memory": [with_prefix(gpu.memory_bytes, "B") for gpu in servers],
            "bandwidth": [with_prefix(gpu.bandwidth_bytes_per_s, "B/s") for gpu in servers],
            "fp16 TFLOP/s": [_peak(gpu, "fp16") for gpu in servers],
            "fp8 TFLOP/s": [_peak(gpu, "fp8") for gpu in servers],
            "fitted kernels": [_fitted_sets(gpu) for gpu in servers],
        },
        words=("gpu", "fitted kernels"),
        title="GPUs",
    )
    by_group: dict[str, list[Gpu]] = {}
    for gpu in gpus:
        if not gpu.kernels and gpu.local is not None:
            by_group.setdefault(gpu.local.group, []).append(gpu)
    for group, members in by_group.items():
        yield TextTable.by_column(
            {
                "device": [gpu.name for gpu in members],
                "memory": [with_prefix(gpu.memory_bytes, "B") for gpu in members],
                "bandwidth": [with_prefix(gpu.bandwidth_bytes_per_s, "B/s") for gpu in members],
                "fp16 TFLOP/s": [_peak(gpu, "fp16") for gpu in members],
                "figures": [
                    "not looked up" if is_unopened(gpu.sources) else "computed, measured" for gpu in members
                ],
                "passes within": [percent(min(law.band for law in laws_of(gpu.local)), 0) for gpu in members],
                "runtimes": [", ".join(runtimes_of(gpu.local)) for gpu in members],
            },
            words=("device", "figures", "runtimes"),
            title=f"{group}: llama.cpp and MLX",
        )


def _peak(gpu: Gpu, dtype: str) -> str:
    return significant(gpu.peak_flops_per_s.get(dtype, math.nan) / TERA, 4)


def _fitted_sets(gpu: Gpu) -> str:
    """Kernel sets with a fit of this GPU's own; other GPUs lend the rest."""
    return ", ".join(name for name, kernels in gpu.kernels.items() if _is_fitted(kernels)) or "borrowed"


def _is_fitted(kernels: KernelSet) -> bool:
    """Whether any kernel of a set was fitted on this GPU."""
    return any(not kernel.fit.inherited_from for kernel in fitted_kernels(kernels).values())


def _experts(entry: SpecEntry) -> str:
    """`8 of 256`: how many of its routed experts a token takes, and their dtype where it is another."""
    place = next((row.key for row in entry.rows if row.key.endswith(".feed_forward.experts")), None)
    if place is None:
        return NOTHING
    part = place.removesuffix("experts")
    stored = entry.value(f"{part}form")
    return f"{entry.value(f'{part}topk')} of {entry.value(place)}" + (f", {stored}" if stored else "")


def _billions(entry: SpecEntry, key: str) -> str:
    return f"{float(entry.value(key) or 0.0) / GIGA:.2f}"


def _bytes(entry: SpecEntry, key: str) -> str:
    value = float(entry.value(key) or 0.0)
    return with_prefix(value, "B") if value else NOTHING


def coverage_screen(scenario: Scenario, found: Standing) -> Screen:
    """The class of a set-up and the error to expect, where its kernels are from, the nearest groups."""
    kernels = next(part.text for part in basis(scenario, plain=True) if part.part == "Kernels")
    near = near_groups(scenario)
    title = f"what was measured nearest to it, in groups of {LEAST_ROWS} rows and more"
    lacking = (
        f"no group of {LEAST_ROWS} rows and more is near it; `medusa-sim specs --kind coverage --gpu "
        f"{scenario.gpu.name}` has those of the GPU"
    )
    return Screen(
        asked="",
        answer=(standing_sentence(scenario, found),),
        tables=(groups_table(together(near), title),) if near else (),
        facts=(Fact("Kernels", kernels), *([] if near else [Fact("Errors", lacking)])),
    )
