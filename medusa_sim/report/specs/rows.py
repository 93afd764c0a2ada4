"""Specifications as rows (key, value, unit, source, note): what the `specs` command shows.

Values are in full precision and SI units; they are rounded where they are rendered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from medusa_sim.data import DataDir
from medusa_sim.engines.engine import UNITS, Engine, StepLimit
from medusa_sim.engines.runtime import Runtime
from medusa_sim.engines.term import Term
from medusa_sim.gpus.gpu import Gpu, load_gpu
from medusa_sim.gpus.inheritance import fitted_kernels
from medusa_sim.gpus.power import Power
from medusa_sim.gpus.prices import STALE_DAYS, Price
from medusa_sim.models.model import Model
from medusa_sim.report.words.numbers import percent

_UNITS = (
    ("_flops_per_s", "FLOP/s"), ("_bytes_per_s", "bytes/s"), ("_bytes", "bytes"), ("_us", "us"),
    ("_watts", "W"), ("_joule_per_byte", "J/byte"), ("_joule_per_cache_byte", "J/byte"),
    ("_joule_per_flop", "J/FLOP"),
)  # fmt: skip
"""By the ending of a key, or of its part before a dtype (`peak_flops_per_s.fp16`)."""
_FIT = ("rows", "fit_error", "heldout_error")
_SIZES = (
    "max_seq_len", "norm", "positions", "norms_per_layer", "samples_top_k", "samples_top_p",
    "tied_embeddings", "dtype", "weight_dtype", "activation_dtype", "kv_dtype", "mtp_layers",
)  # fmt: skip


class SpecRow(msgspec.Struct, frozen=True, kw_only=True):
    """One fact. `source` is never empty; `unit` is empty for words, counts and ratios."""

    key: str
    value: float | int | str | bool
    unit: str = ""
    source: str
    note: str = ""


def facts_of(
    values: Mapping[str, Any],
    source: str | Mapping[str, str],
    note: str | Mapping[str, str] = "",
    unit: str | None = None,
) -> list[SpecRow]:
    """Facts of one source, or of one each, and so the notes; unit: None by the key's ending."""

    def unit_of(key: str) -> str:
        ends = (shown for ending, shown in _UNITS for stem in key.split(".") if f"_{stem}".endswith(ending))
        return next(ends, "") if unit is None else unit

    return [
        SpecRow(
            key=key,
            value=value,
            unit=unit_of(key),
            source=source if isinstance(source, str) else source[key],
            note=note if isinstance(note, str) else note.get(key, ""),
        )
        for key, value in values.items()
    ]


def _flat(key: str, value: object) -> Iterator[tuple[str, Any]]:
    """Keys and values of all numbers and words in structs, lists and tables; None is left out."""
    if isinstance(value, (bool, int, float, str)):
        yield key, value
    elif isinstance(value, msgspec.Struct):
        yield from _flat(key, msgspec.structs.asdict(value))
    elif isinstance(value, Mapping):
        for name, child in value.items():
            yield from _flat(f"{key}.{name}", child)
    elif isinstance(value, (tuple, list)):
        for index, child in enumerate(value):
            yield from _flat(f"{key}[{index}]", child)


def gpu_rows(gpu: Gpu) -> list[SpecRow]:
    """Datasheet numbers of a GPU, each with its own source."""
    sizes = ("sms", "l2_bytes", "memory_bytes", "bandwidth_bytes_per_s")
    links = ("link_bandwidth_bytes_per_s", "linked_gpus", "wide_link_bandwidth_bytes_per_s")
    values = {key: getattr(gpu, key) for key in (*sizes, *links) if key in sizes or getattr(gpu, key)}
    values |= _flat("peak_flops_per_s", gpu.peak_flops_per_s)
    values |= _flat("paper_peak_flops_per_s", gpu.paper_peak_flops_per_s)
    if gpu.local is not None:
        numbers = {
            key: getattr(gpu.local, key)
            for key in ("vector_ops_per_s", "bandwidth_share", "board_watts", "gpu_memory_share")
        }
        values |= {f"local.{key}": number.value for key, number in numbers.items() if number is not None}
    if gpu.power is None:
        return facts_of(values, gpu.sources, gpu.notes)
    values["power.limit_watts"] = gpu.power.limit_watts
    return facts_of(values, gpu.sources, gpu.notes) + _power_rows(gpu.power)


def _power_rows(power: Power) -> list[SpecRow]:
    """Parameters of the watts with their half-width, and from which GPU they come."""
    fit = power.fit
    origin = f"; scaled from {power.lender} by the power limit" if power.lender else ""
    names = (
        "idle_watts",
        "joule_per_byte",
        "joule_per_cache_byte",
        "joule_per_flop",
        "sampling_watts",
        *_FIT,
    )
    ends = {"joule_per_flop": f".{fit.dtype}"}
    values = {f"power.fit.{name}{ends.get(name, '')}": getattr(fit, name) for name in names}
    return facts_of(values, fit.source, f"±{percent(fit.error, 0)} of the watts{origin}")


def kernel_rows(gpu: Gpu) -> list[SpecRow]:
    """Fitted kernel parameters of every set of a GPU, with rows, errors and what was inherited."""
    rows = []
    for name, kernels in gpu.kernels.items():
        for place, kernel in fitted_kernels(kernels).items():
            fit, parameters = kernel.fit, msgspec.structs.asdict(kernel)
            del parameters["fit"]
            values = {"fit": {field: getattr(fit, field) for field in _FIT}, **parameters}
            note = f"inherited from {fit.inherited_from}" if fit.inherited_from else ""
            rows += facts_of(dict(_flat(f"kernels.{name}.{place}", values)), fit.source, note)
    return rows


def model_rows(model: Model) -> list[SpecRow]:
    """Sizes and dtypes of a model, of every group of its layers, then the numbers that follow from them."""
    groups = [
        {
            "count": group.count,
            "mixer": group.mixers if len(group.mixers) > 1 else next(iter(group.mixers), None),
            "feed_forward": group.feed_forward,
        }
        for group in model.groups
    ]
    given = {
        **{key: getattr(model, key) for key in ("architecture", "layers", "hidden")},
        **{key: getattr(model.attention, key) for key in ("heads", "kv_heads", "head_dim")},
        "vocab": model.vocab,
        **{key: getattr(model, key) for key in _SIZES},
        **dict(_flat("groups", msgspec.to_builtins(groups))),
    }
    derived = "derived from the sizes above"
    counts = {key: getattr(model, key) for key in ("parameter_count", "active_parameter_count")}
    sizes = {
        "weight_bytes": model.weight_bytes,
        "kv_bytes_per_token": model.kv_bytes_per_token,
        "kv_bytes_per_token_past_windows": model.late_kv_bytes_per_token,
        "state_bytes": model.state_bytes,
    }
    return [
        *facts_of(given, model.source, {"architecture": "; ".join(model.notes)}, ""),
        *facts_of(counts, derived),
        *facts_of(sizes, derived, unit="bytes"),
    ]


def runtime_rows(runtime: Runtime) -> list[SpecRow]:
    """Fusions of a runtime (by definition) and its times, each with its own source."""
    defined = {
        "title": runtime.title,
        **dict(_flat("kernels", runtime.kernels)),
        **{key: getattr(runtime, key) for key in ("fused_qkv", "fused_gate_up", "attention", "head_rows")},
    }
    names = ("launch_us", "host_us_per_launch", "host_us_per_step")
    times = {key: getattr(runtime, key) for key in names}
    if runtime.versions is not None:
        defined["versions"] = " to ".join(dict.fromkeys(runtime.versions))
    rows = facts_of(defined, "definition of this runtime", unit="")
    rows += facts_of(times, runtime.sources, runtime.notes, "us")
    return rows if runtime.engine is None else rows + _engine_rows(runtime.engine)


def _engine_rows(engine: Engine) -> list[SpecRow]:
    """Terms of an engine with band, range and error in the note, then what it can run."""
    rows = []
    for name, term in engine.terms.items():
        rows += facts_of({f"engine.{name}": term.value}, term.source, _term_note(term), UNITS[name])
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
        "measured": engine.measured.text or "nothing",
    }
    if engine.drafting_requests:
        settings["drafting_requests"] = f"{engine.drafting_requests} with a drafter"
    if engine.plain_graph_sizes:
        settings["plain_graph_sizes"] = ", ".join(map(str, engine.plain_graph_sizes))
    sources = dict.fromkeys(("graph_sizes", "plain_graph_sizes", "graph_unit"), engine.graph_source)
    sources |= dict.fromkeys(("step_limits", "drafting_requests"), engine.limits_source)
    if engine.free_memory_share:
        settings["free_memory_share"] = f"{engine.free_memory_share:g}"
        sources["free_memory_share"] = engine.memory_source
    for key, value in settings.items():
        rows += facts_of({f"engine.{key}": value}, sources.get(key, engine.settings_source))
    return rows


def _limit_text(limit: StepLimit) -> str:
    """`8192 tokens and 1024 requests, graphs to 256 (512 by four GPUs), from 70 GiB but a100`."""
    where = f" from {limit.memory_gib:g} GiB" if limit.memory_gib else ""
    but = f" but {', '.join(limit.but)}" if limit.but else ""
    by_four = f" ({limit.captured_by_four} by four GPUs)" if limit.captured_by_four else ""
    graphs = f", graphs to {limit.captured}{by_four}," if limit.captured else ""
    return f"{limit.tokens} tokens and {limit.requests} requests{graphs}{where}{but}".removesuffix(",")


def _term_note(term: Term) -> str:
    return _joined(
        f"±{percent(term.band, 0)}" if term.band else "",
        term.measured.text if term.measured is not None and not term.measured.assumed else "",
        term.valid,
        *(f"{other.value:g} as {other.rule}" for other in term.elsewhere),
        *(deviation.text for deviation in term.deviations),
        "" if term.heldout_error is None else f"held-out error {percent(term.heldout_error)}",
        f"inherited from {term.inherited_from}" if term.inherited_from else "",
        term.note,
    )


def _joined(*parts: str) -> str:
    return "; ".join(filter(None, parts))


def price_rows(prices: Iterable[Price]) -> list[SpecRow]:
    """Price of an hour of each GPU, by offer; the first offer of a GPU is used."""
    rows = []
    for price in prices:
        stale = f"older than {STALE_DAYS} days" if price.age_days() > STALE_DAYS else ""
        note = _joined(f"{price.offer}, {price.date}", price.note, stale)
        rows += facts_of({price.gpu: price.usd_per_gpu_hour}, price.source, note, "$/GPU-hour")
    return rows


def spec_rows(kind: str, name: str, data_dir: DataDir = None, *, kernels: bool = False) -> list[SpecRow]:
    """Every number of a `gpu`, `model`, `runtime`, `acceptance` profile, or of the table of prices.

    kernels: fitted ones of a GPU too. Raises SpecError or DataError from loading.
    """
    match kind:
        case "gpu":
            gpu = load_gpu(name, data_dir)
            return gpu_rows(gpu) + (kernel_rows(gpu) if kernels else [])
        case "model":
            from medusa_sim.models.named import load_model

            return model_rows(load_model(name))
        case "runtime":
            from medusa_sim.engines.runtime import load_runtime

            return runtime_rows(load_runtime(name, data_dir))
        case "price":
            from medusa_sim.gpus.prices import prices

            return price_rows(prices(data_dir))
        case _:
            return _acceptance_rows(name, data_dir)


def _modelled(profile: str) -> str:
    """The model that a profile's name ends with, or why it cannot be asked; empty where it names none."""
    from medusa_sim.models.hf_families import unmodelled
    from medusa_sim.models.named import model_names
    from medusa_sim.step.drafter import drafters

    prefixes = [prefix for kind in drafters().values() for prefix in kind.profiles]
    model = profile.removeprefix(next(filter(profile.startswith, prefixes), ""))
    models = [name for name in model_names() if model.startswith(name)]
    if models:
        return max(models, key=len)
    return "" if (what := unmodelled(model)) is None else f"none; not modelled: {what}"


def _acceptance_rows(name: str, data_dir: DataDir) -> list[SpecRow]:
    """Tokens per step at powers of two, with the profile's source."""
    from medusa_sim.acceptance.profile import load_acceptance

    profile = load_acceptance(name, data_dir)
    counts = [1 << power for power in range(profile.candidates_max.bit_length())]
    tokens = profile.tokens_per_step(counts)
    facts: dict[str, float | int | str] = {
        "kind": profile.kind,
        "title": profile.title,
        "model": _modelled(name),
        "candidates_max": profile.candidates_max,
    }
    facts |= {f"tokens_per_step.{count}": float(value) for count, value in zip(counts, tokens, strict=True)}
    return facts_of(facts, profile.source)
