"""Quantities of cells: what every command may print of a step, its scenario and a server that runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import Band, FloatArray
from medusa_sim.grid.cells import Cells
from medusa_sim.grid.costs import joule_band, joules, usd, watts_band
from medusa_sim.grid.quantity import BY_NAME, Quantity, declare, listed
from medusa_sim.latency.operator_time import Bound, Source
from medusa_sim.scenario.defaults import FIXED_BASELINE_BATCH, FIXED_BASELINE_SEQ_LEN
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.step import decode_step
from medusa_sim.units import US_PER_MS


def baseline_us(cells: Cells) -> FloatArray:
    """The plain step that a sweep divides by: at the same batch and length, or the one of the paper."""
    if cells.scenario.baseline == "same":
        return cells.steps.decode_us
    return decode_step(cells.scenario.setting, FIXED_BASELINE_BATCH, FIXED_BASELINE_SEQ_LEN).time_us


def baseline_speedup(cells: Cells) -> FloatArray:
    """Tokens per step over the step's overhead against `baseline_us`."""
    return np.asarray(cells.tokens_per_step / (cells.steps.time_us / baseline_us(cells)))


def baseline_speedup_band(cells: Cells) -> Band:
    """Ends of `baseline_speedup`: the plain step is the paper's, or as certain as the step being sped up."""
    low, high = cells.bands.step_speedup.ratios()
    return Band(baseline_speedup(cells) * low, baseline_speedup(cells) * high)


def server_speedup(cells: Cells) -> FloatArray:
    """The speedup with traffic; nan (a 0-d array) without."""
    return np.full((), np.nan) if cells.scenario.traffic is None else cells.speedup


def server_speedup_band(cells: Cells) -> Band:
    """Ends of `server_speedup`."""
    nothing = np.full((), np.nan)
    return Band(nothing, nothing) if cells.scenario.traffic is None else cells.speedup_band


def with_band(read: Callable[[Cells], FloatArray], band: Callable[[Cells], Band]) -> dict[str, Any]:
    """Fields of a quantity with an 80 % interval. band: its ends, as ratios to the quantity."""
    return {"read": read, "low_high": lambda cells: Band(*(read(cells) * end for end in band(cells)))}


def time_band(cells: Cells) -> Band:
    """The band of what is proportional to the time per token."""
    return cells.bands.token_us.ratios()


def rate_band(cells: Cells) -> Band:
    """The band of what is proportional to the rate of tokens."""
    return cells.bands.token_us.of_inverse.ratios()


def first_token_band(cells: Cells) -> Band:
    """The band of the time to the first token."""
    return cells.bands.first_token.ratios()


OF_SCENARIO: dict[str, Callable[[Scenario], str | int]] = {
    "gpu": lambda scenario: scenario.gpu.name,
    "model": lambda scenario: scenario.model.name,
    "tp": lambda scenario: scenario.parallel.tp,
    "ep": lambda scenario: scenario.parallel.ep,
    "dp_attention": lambda scenario: scenario.parallel.dp_attention,
    "runtime": lambda scenario: scenario.runtime.name,
    "kernels": lambda scenario: scenario.kernels,
    "scope": lambda scenario: scenario.scope,
    "latency_model": lambda scenario: scenario.latency.name,
    "drafter": lambda scenario: scenario.drafting.method,
    "acceptance": lambda scenario: scenario.profile.name,
    "baseline": lambda scenario: scenario.baseline,
    "precision": lambda scenario: scenario.precision,
    "kv_precision": lambda scenario: scenario.model.kv_dtype or scenario.model.dtype,
    "engine": lambda scenario: scenario.engine_name,
}
"""Quantities that are constant for a scenario."""


def scenario_values(scenario: Scenario, *names: str) -> dict[str, str | int]:
    """These of a scenario, by name, as every document has them."""
    return {name: OF_SCENARIO[name](scenario) for name in names}


def _in_every_row(value_of: Callable[[Scenario], str | int]) -> Callable[[Cells], Any]:
    """Text stays, a number is an array of one."""

    def read(cells: Cells) -> Any:
        value = value_of(cells.scenario)
        return value if isinstance(value, str) else np.asarray(value)

    return read


_OVERHEAD = Quantity(
    name="overhead", read=lambda cells: cells.overhead, title="overhead", unit="ratio", better="less"
)

DECLARED = declare(
    *(Quantity(name=name, read=_in_every_row(value_of), title="drafter" if name == "drafter" else "")
      for name, value_of in OF_SCENARIO.items()),
    # where
    Quantity(name="batch", read=lambda cells: cells.batch, title="batch"),
    Quantity(name="seq_len", read=lambda cells: cells.seq_len, title="length"),
    Quantity(name="candidates", read=lambda cells: cells.candidates, title="candidates"),
    Quantity(name="drafts", read=lambda cells: cells.drafts, title="drafts"),
    Quantity(name="heads", title="heads"),
    # what a step gives
    Quantity(
        name="tokens_per_step", read=lambda cells: cells.tokens_per_step, title="tokens/step", unit="ratio",
        better="more", read_run=lambda run: 1.0 + run["accepted_drafts"],
    ),
    Quantity(
        name="speedup", read=lambda cells: cells.speedup, title="speedup", unit="times", better="more",
        low_high=lambda cells: cells.speedup_band,
    ),
    Quantity(name="interval", title="80 %"),
    Quantity(
        name="step_speedup", read=lambda cells: cells.step_speedup, title="step alone", unit="times",
        better="more",
    ),
    Quantity(
        name="server_speedup", read=server_speedup, better="more", low_high=server_speedup_band,
        model_only=True,
    ),
    Quantity(
        name="baseline_speedup", read=baseline_speedup, title="baseline speedup", unit="times", better="more",
        low_high=baseline_speedup_band,
    ),
    # what a step takes
    Quantity(
        name="decode_step_us", read=lambda cells: cells.steps.decode_us, title="plain step", unit="us",
        better="less",
    ),
    Quantity(name="verify_only_us", read=lambda cells: cells.steps.target_us, better="less"),
    Quantity(
        name="verify_step_us", read=lambda cells: cells.steps.time_us, title="step", unit="us", better="less",
    ),
    Quantity(name="verify_low_us", read=lambda cells: cells.bands.step_us.low),
    Quantity(name="verify_high_us", read=lambda cells: cells.bands.step_us.high),
    _OVERHEAD,
    replace(
        _OVERHEAD, name="baseline_overhead", title="baseline overhead",
        read=lambda cells: cells.steps.time_us / baseline_us(cells),
    ),
    Quantity(
        name="bound", read=lambda cells: cells.steps.bound, title="bound by",
        labels=tuple(code.name.lower() for code in Bound),
    ),
    Quantity(
        name="source", read=lambda cells: cells.steps.source,
        labels=tuple(code.name.lower() for code in Source),
    ),
    # what a request waits for
    Quantity(
        name="itl_us", better="less", model_only=True,
        **with_band(lambda cells: cells.server.itl_us, time_band),
    ),
    Quantity(
        name="tpot_us", better="less", model_only=True,
        **with_band(lambda cells: cells.server.tpot_us, time_band),
    ),
    Quantity(
        name="ttft_ms", better="less", model_only=True,
        **with_band(lambda cells: cells.server.first_token_us / US_PER_MS, first_token_band),
    ),
    Quantity(
        name="benchmark_ttft_ms", better="less", model_only=True,
        **with_band(lambda cells: cells.server.benchmark_first_token_us / US_PER_MS, first_token_band),
    ),
    Quantity(
        name="tokens_per_s_per_user", title="tokens/s/user", axis="tokens/s a user", unit="per_s",
        better="more", model_only=True, **with_band(lambda cells: cells.tokens_per_s_per_user, rate_band),
    ),
    # what a server gives
    Quantity(
        name="tokens_per_s", title="tokens/s", unit="per_s", better="more", model_only=True,
        **with_band(lambda cells: cells.tokens_per_s, rate_band),
    ),
    # what it costs
    Quantity(
        name="usd_per_million_tokens", title="$/M tokens", axis="dollars per million output tokens",
        phrase="${} a million tokens", better="less", model_only=True, **with_band(usd, time_band),
    ),
    Quantity(
        name="watts", title="W", model_only=True,
        **with_band(lambda cells: cells.server_steps.watts, watts_band),
    ),
    Quantity(
        name="joule_per_token", title="J/token", axis="joules per output token", phrase="{} J a token",
        better="less", model_only=True, **with_band(joules, joule_band),
    ),
    # what fits
    Quantity(name="memory_bytes", read=lambda cells: cells.memory.total, unit="bytes", model_only=True),
    Quantity(name="fits_memory", read=lambda cells: cells.fits, title="fits", model_only=True),
)  # fmt: skip
listed(*OF_SCENARIO)  # stand in the heads of documents


def _plain(quantity: Quantity) -> Quantity:
    """A quantity as plain decoding has it."""
    read = quantity.read
    title = f"plain {quantity.title}" if quantity.title else ""
    return replace(
        quantity, name=f"plain_{quantity.name}", title=title, low_high=None, read_run=None,
        read=None if read is None else lambda cells: cells.baseline.first(read(cells.baseline)),
    )  # fmt: skip


OF_PLAIN = ("tokens_per_s", "tokens_per_s_per_user", "usd_per_million_tokens", "watts", "joule_per_token")
"""Quantities that tables also show without speculation."""
listed(*(quantity.name for quantity in declare(*(_plain(BY_NAME[name]) for name in OF_PLAIN))))

SWEEP = listed(
    "gpu", "model", "tp", "ep", "dp_attention", "runtime", "kernels", "scope", "latency_model", "drafter",
    "acceptance", "baseline", "batch", "seq_len", "candidates", "drafts", "tokens_per_step",
    "decode_step_us", "verify_only_us", "verify_step_us", "verify_low_us", "verify_high_us", "overhead",
    "speedup", "speedup_low", "speedup_high", "step_speedup", "server_speedup", "baseline_overhead",
    "baseline_speedup", "itl_us", "tpot_us", "ttft_ms", "benchmark_ttft_ms", "tokens_per_s",
    "tokens_per_s_per_user", "usd_per_million_tokens", "watts", "joule_per_token", "bound", "source",
    "memory_bytes", "fits_memory",
)  # fmt: skip
"""Columns of a sweep."""
BY_COUNT = listed(
    "batch", "seq_len", "candidates", "drafts", "tokens_per_step", "decode_step_us", "verify_step_us",
    "overhead", "speedup", "step_speedup", "server_speedup", "fits_memory",
)  # fmt: skip
"""Columns of `recommend --by-count`."""


def values(cells: Cells, names: Iterable[str]) -> dict[str, Any]:
    """Quantities by name: arrays that broadcast with the cells, text where a scenario has one."""
    is_block = cells.scenario.scope == "block"
    empty: npt.NDArray[np.float64] = np.full((), np.nan)
    found = {}
    for name in names:
        quantity = BY_NAME[name]
        assert quantity.read is not None, name  # noqa: S101  # results of a run are not read from cells
        found[name] = empty if is_block and quantity.model_only else quantity.read(cells)
    return found
