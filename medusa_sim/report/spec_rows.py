"""Specifications as rows (key, value, unit, source, note): what the `specs` command shows.

Values are in full precision and SI units; whoever renders them rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from medusa_sim.specs.costs import STALE_DAYS, Power, Price
from medusa_sim.specs.engine import UNITS, Engine, StepLimit, Term
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.inheritance import fitted_kernels
from medusa_sim.specs.kernels import Kernel
from medusa_sim.specs.model import Model
from medusa_sim.specs.runtime import Runtime

_UNITS_BY_SUFFIX = (
    ("_flops_per_s", "FLOP/s"),
    ("_bytes_per_s", "bytes/s"),
    ("_bytes", "bytes"),
    ("_us", "us"),
    ("_watts", "W"),
)


class SpecRow(msgspec.Struct, frozen=True, kw_only=True):
    """One fact. `source` is never empty; `unit` is empty for words, counts and ratios."""

    key: str
    value: float | int | str | bool
    unit: str = ""
    source: str
    note: str = ""


def _unit(key: str) -> str:
    # peak_flops_per_s.fp16 carries its unit in the part before the dtype
    stems = key.split(".")
    return next(
        (unit for suffix, unit in _UNITS_BY_SUFFIX for stem in stems if f"_{stem}".endswith(suffix)), ""
    )


def _rows(
    values: Mapping[str, Any],
    source: str | Mapping[str, str],
    notes: Mapping[str, str] | None = None,
    units: Mapping[str, str] | None = None,
) -> list[SpecRow]:
    """Facts of one source, or of one each; the unit is that of the key's ending, where none is given."""
    return [
        SpecRow(
            key=key,
            value=value,
            unit=_unit(key) if units is None else units.get(key, ""),
            source=source if isinstance(source, str) else source[key],
            note=(notes or {}).get(key, ""),
        )
        for key, value in values.items()
    ]


def gpu_rows(gpu: Gpu) -> list[SpecRow]:
    """Datasheet numbers of a GPU, each with its own source."""
    sizes = ("sms", "l2_bytes", "memory_bytes", "bandwidth_bytes_per_s")
    links = ("link_bandwidth_bytes_per_s", "linked_gpus", "wide_link_bandwidth_bytes_per_s")
    values = {key: getattr(gpu, key) for key in (*sizes, *links) if key in sizes or getattr(gpu, key)}
    values |= {f"peak_flops_per_s.{dtype}": peak for dtype, peak in gpu.peak_flops_per_s.items()}
    values |= {f"paper_peak_flops_per_s.{dtype}": peak for dtype, peak in gpu.paper_peak_flops_per_s.items()}
    if gpu.power is None:
        return _rows(values, gpu.sources, gpu.notes)
    limit = {"power.limit_watts": gpu.power.limit_watts}
    return _rows(values | limit, gpu.sources, gpu.notes) + _power_rows(gpu.power)


def _power_rows(power: Power) -> list[SpecRow]:
    """Parameters of the watts with their half-width, and from which card they come."""
    fit = power.fit
    origin = f"scaled from {power.lender} by the power limit" if power.lender else ""
    note = "; ".join(part for part in (f"+-{fit.error:.0%} of the watts", origin) if part)
    values = {
        "power.fit.idle_watts": fit.idle_watts,
        "power.fit.joule_per_byte": fit.joule_per_byte,
        f"power.fit.joule_per_flop.{fit.dtype}": fit.joule_per_flop,
        "power.fit.sampling_watts": fit.sampling_watts,
        **{f"power.fit.{key}": getattr(fit, key) for key in ("rows", "fit_error", "heldout_error")},
    }
    units = dict(zip(values, ("W", "J/byte", "J/FLOP", "W"), strict=False))
    return _rows(values, fit.source, dict.fromkeys(values, note), units)


def kernel_rows(gpu: Gpu) -> list[SpecRow]:
    """Fitted kernel parameters of every set of a GPU, with rows, errors and what was inherited."""
    return [
        row
        for name, kernels in gpu.kernels.items()
        for place, kernel in fitted_kernels(kernels).items()
        for row in _kernel_rows(f"kernels.{name}.{place}", kernel)
    ]


def _kernel_rows(key: str, kernel: Kernel) -> Iterator[SpecRow]:
    fit = kernel.fit
    note = f"inherited from {fit.inherited_from}" if fit.inherited_from else ""
    yield SpecRow(key=f"{key}.fit.rows", value=fit.rows, source=fit.source, note=note)
    yield SpecRow(key=f"{key}.fit.fit_error", value=fit.fit_error, source=fit.source, note=note)
    yield SpecRow(key=f"{key}.fit.heldout_error", value=fit.heldout_error, source=fit.source, note=note)
    for parameter in kernel.__struct_fields__:
        value = getattr(kernel, parameter)
        if parameter != "fit":
            yield from _parameter_rows(f"{key}.{parameter}", value, fit.source, note)


def _parameter_rows(key: str, value: object, source: str, note: str) -> Iterator[SpecRow]:
    if isinstance(value, (bool, int, float, str)):
        yield SpecRow(key=key, value=value, unit=_unit(key), source=source, note=note)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from _parameter_rows(f"{key}.{name}", getattr(value, name), source, note)
    elif isinstance(value, (tuple, list)):
        for index, child in enumerate(value):
            yield from _parameter_rows(f"{key}[{index}]", child, source, note)
    elif isinstance(value, dict):
        for name, child in value.items():
            yield from _parameter_rows(f"{key}.{name}", child, source, note)


def _groups(model: Model) -> dict[str, int | str | bool]:
    """`groups[0].mixer.heads`, `groups[0].feed_forward.width`: the sizes of every group of layers."""
    sizes: dict[str, int | str | bool] = {}
    for index, group in enumerate(model.groups):
        sizes[f"groups[{index}].count"] = group.count
        for name, block in (("mixer", group.mixer), ("feed_forward", group.feed_forward)):
            if block is not None:
                given = msgspec.to_builtins(block).items()
                sizes |= {f"groups[{index}].{name}.{key}": value for key, value in given if value is not None}
    return sizes


_SIZES = (
    "max_seq_len", "norm", "positions", "norms_per_layer", "samples_top_k", "samples_top_p",
    "tied_embeddings", "dtype", "weight_dtype", "activation_dtype", "kv_dtype", "mtp_layers",
)  # fmt: skip


def model_rows(model: Model) -> list[SpecRow]:
    """Sizes and dtypes of a model, then what follows from them."""
    attention = {key: getattr(model.attention, key) for key in ("heads", "kv_heads", "head_dim")}
    given: dict[str, int | str | bool] = {
        "architecture": model.architecture,
        "layers": model.layers,
        "hidden": model.hidden,
        **attention,
        "vocab": model.vocab,
        **{key: getattr(model, key) for key in _SIZES},
        **_groups(model),
    }
    counts = {key: getattr(model, key) for key in ("parameter_count", "active_parameter_count")}
    sizes: dict[str, float] = {
        "weight_bytes": model.weight_bytes,
        "kv_bytes_per_token": model.kv_bytes_per_token,
        "kv_bytes_per_token_past_windows": model.late_kv_bytes_per_token,
        "state_bytes": model.state_bytes,
    }
    return [
        *_rows(given, model.source, {"architecture": "; ".join(model.notes)}, {}),
        *_rows(counts | sizes, "derived from the sizes above", units=dict.fromkeys(sizes, "bytes")),
    ]


def runtime_rows(runtime: Runtime) -> list[SpecRow]:
    """What a runtime fuses (by definition) and its times, each with its own source."""
    defined: dict[str, str | bool] = {
        "title": runtime.title,
        **{f"kernels.{dtype}": name for dtype, name in runtime.kernels.items()},
        **{key: getattr(runtime, key) for key in ("fused_qkv", "fused_gate_up", "attention", "head_rows")},
    }
    names = ("launch_us", "host_us_per_launch", "host_us_per_step")
    times = {key: getattr(runtime, key) for key in names}
    rows = _rows(defined, "definition of this runtime", units={})
    rows += _rows(times, runtime.sources, runtime.notes, dict.fromkeys(names, "us"))
    return rows if runtime.engine is None else rows + _engine_rows(runtime.engine)


def _engine_rows(engine: Engine) -> list[SpecRow]:
    """Terms of an engine with band, range and error in the note, then what it can run."""
    rows = [
        SpecRow(
            key=f"engine.{name}",
            value=term.value,
            unit=UNITS[name],
            source=term.source,
            note=_term_note(term),
        )
        for name, term in engine.terms.items()
    ]
    limits = "; ".join(_limit_text(limit) for limit in engine.step_limits)
    settings: dict[str, str | bool] = {
        "graph_sizes": ", ".join(map(str, engine.graph_sizes)),
        "graph_unit": engine.graph_unit,
        "prompts_apart": engine.prompts_apart,
        "fused_residual": engine.fused_residual,
        "chain_only": engine.chain_only,
        "drafters": ", ".join(engine.drafters),
        "step_limits": limits,
        "several_gpus": engine.several_gpus or "nothing measured",
    }
    sources = {"graph_sizes": engine.graph_source, "graph_unit": engine.graph_source}
    sources["step_limits"] = engine.limits_source
    if engine.free_memory_share:
        settings["free_memory_share"] = f"{engine.free_memory_share:g}"
        sources["free_memory_share"] = engine.memory_source
    return rows + [
        SpecRow(key=f"engine.{key}", value=value, source=sources.get(key, engine.settings_source))
        for key, value in settings.items()
    ]


def _limit_text(limit: StepLimit) -> str:
    """`8192 tokens and 1024 requests from 70 GiB but a100`."""
    where = f" from {limit.memory_gib:g} GiB" if limit.memory_gib else ""
    but = f" but {', '.join(limit.but)}" if limit.but else ""
    return f"{limit.tokens} tokens and {limit.requests} requests{where}{but}"


def _term_note(term: Term) -> str:
    error = None if term.heldout_error is None else f"held-out error {term.heldout_error:.1%}"
    parts = (
        f"+-{term.band:.0%}" if term.band else "",
        term.valid,
        error or "",
        f"inherited from {term.inherited_from}" if term.inherited_from else "",
        term.note,
    )
    return "; ".join(part for part in parts if part)


def price_rows(prices: Iterable[Price]) -> list[SpecRow]:
    """What an hour of each GPU costs by offer; the first of a GPU is the one that is used."""
    return [
        SpecRow(
            key=price.gpu,
            value=price.usd_per_gpu_hour,
            unit="$/GPU-hour",
            source=price.source,
            note="; ".join(
                part
                for part in (
                    f"{price.offer}, {price.date}",
                    price.note,
                    f"older than {STALE_DAYS} days" if price.age_days() > STALE_DAYS else "",
                )
                if part
            ),
        )
        for price in prices
    ]
