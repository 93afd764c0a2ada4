"""Specifications as rows (key, value, unit, source, note): what the `specs` command shows.

Values are in full precision and SI units; whoever renders them rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

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


def gpu_rows(gpu: Gpu) -> list[SpecRow]:
    """Datasheet numbers of a GPU, each with its own source."""
    plain = {
        "sms": gpu.sms,
        "l2_bytes": gpu.l2_bytes,
        "memory_bytes": gpu.memory_bytes,
        "bandwidth_bytes_per_s": gpu.bandwidth_bytes_per_s,
        **{
            key: value
            for key in ("link_bandwidth_bytes_per_s", "linked_gpus", "wide_link_bandwidth_bytes_per_s")
            if (value := getattr(gpu, key))
        },
    }
    peaks = {f"peak_flops_per_s.{dtype}": peak for dtype, peak in gpu.peak_flops_per_s.items()}
    paper = {f"paper_peak_flops_per_s.{dtype}": peak for dtype, peak in gpu.paper_peak_flops_per_s.items()}
    power = {} if gpu.power is None else {"power.limit_watts": gpu.power.limit_watts}
    rows = [
        SpecRow(key=key, value=value, unit=_unit(key), source=gpu.sources[key], note=gpu.notes.get(key, ""))
        for key, value in {**plain, **peaks, **paper, **power}.items()
    ]
    return rows if gpu.power is None else rows + _power_rows(gpu.power)


def _power_rows(power: Power) -> list[SpecRow]:
    """Parameters of the watts with their half-width, and from which card they come."""
    fit = power.fit
    origin = f"scaled from {power.lender} by the power limit" if power.lender else ""
    note = "; ".join(part for part in (f"+-{fit.error:.0%} of the watts", origin) if part)
    values = {
        "idle_watts": (fit.idle_watts, "W"),
        "joule_per_byte": (fit.joule_per_byte, "J/byte"),
        f"joule_per_flop.{fit.dtype}": (fit.joule_per_flop, "J/FLOP"),
        "sampling_watts": (fit.sampling_watts, "W"),
        "rows": (fit.rows, ""),
        "fit_error": (fit.fit_error, ""),
        "heldout_error": (fit.heldout_error, ""),
    }
    return [
        SpecRow(key=f"power.fit.{key}", value=value, unit=unit, source=fit.source, note=note)
        for key, (value, unit) in values.items()
    ]


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


def model_rows(model: Model) -> list[SpecRow]:
    """Sizes and dtypes of a model, then what follows from them."""
    given: dict[str, int | str | bool] = {
        "architecture": model.architecture,
        "layers": model.layers,
        "hidden": model.hidden,
        "heads": model.attention.heads,
        "kv_heads": model.attention.kv_heads,
        "head_dim": model.attention.head_dim,
        "vocab": model.vocab,
        "max_seq_len": model.max_seq_len,
        "norm": model.norm,
        "positions": model.positions,
        "norms_per_layer": model.norms_per_layer,
        "samples_top_k": model.samples_top_k,
        "samples_top_p": model.samples_top_p,
        "tied_embeddings": model.tied_embeddings,
        "dtype": model.dtype,
        "weight_dtype": model.weight_dtype,
        "activation_dtype": model.activation_dtype,
        "kv_dtype": model.kv_dtype,
        "mtp_layers": model.mtp_layers,
        **_groups(model),
    }
    derived: dict[str, float] = {
        "parameter_count": model.parameter_count,
        "active_parameter_count": model.active_parameter_count,
        "weight_bytes": model.weight_bytes,
        "kv_bytes_per_token": model.kv_bytes_per_token,
        "kv_bytes_per_token_past_windows": model.late_kv_bytes_per_token,
        "state_bytes": model.state_bytes,
    }
    note = "; ".join(model.notes)
    rows = [
        SpecRow(key=key, value=value, source=model.source, note=note if key == "architecture" else "")
        for key, value in given.items()
    ]
    rows += [
        SpecRow(
            key=key,
            value=value,
            unit="bytes" if "bytes" in key else "",
            source="derived from the sizes above",
        )
        for key, value in derived.items()
    ]
    return rows


def runtime_rows(runtime: Runtime) -> list[SpecRow]:
    """What a runtime fuses (by definition) and its times, each with its own source."""
    defined: dict[str, str | bool] = {
        "title": runtime.title,
        **{f"kernels.{dtype}": name for dtype, name in runtime.kernels.items()},
        "fused_qkv": runtime.fused_qkv,
        "fused_gate_up": runtime.fused_gate_up,
        "attention": runtime.attention,
        "head_rows": runtime.head_rows,
    }
    times = {
        "launch_us": runtime.launch_us,
        "host_us_per_launch": runtime.host_us_per_launch,
        "host_us_per_step": runtime.host_us_per_step,
    }
    rows = [
        SpecRow(key=key, value=value, source="definition of this runtime") for key, value in defined.items()
    ]
    rows += [
        SpecRow(key=key, value=value, unit="us", source=runtime.sources[key], note=runtime.notes.get(key, ""))
        for key, value in times.items()
    ]
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
