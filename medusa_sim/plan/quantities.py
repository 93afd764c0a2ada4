"""Every quantity of a configuration, declared once: name with its unit, title, how it is read and shown.

Columns of a sweep, rows by count, the best rows and their tables are choices of these names. Values are read
from a priced surface and broadcast with (B, S, 1 + C), plain decoding first.

What tokens cost, in money and in energy (docs/method.md, cost):
    (W1)  $ per million tokens = 1e6 GPUs price / (3600 tokens/s)
    (W4)  joule per token      = GPUs watts / (tokens/s)

price: dollars per GPU-hour. watts: of one GPU (`step/server.py`). tokens/s: of all GPUs together, emitted
tokens alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import BoolArray, FloatArray
from medusa_sim.latency.base import Bound, Source
from medusa_sim.operators.operator import Size
from medusa_sim.plan import FIXED_BASELINE_BATCH, FIXED_BASELINE_SEQ_LEN
from medusa_sim.plan.scenario import Scenario
from medusa_sim.plan.surface import Surface
from medusa_sim.specs.costs import Power
from medusa_sim.step.memory import drafter_bytes, memory_parts
from medusa_sim.step.step import decode_step, processed_tokens, verification_step
from medusa_sim.step.watts import served_joules, watts

if TYPE_CHECKING:
    import pyarrow as pa


_S_PER_HOUR = 3600.0
_MILLION = 1e6


def usd_per_million_tokens(
    usd_per_gpu_hour: float | None, gpus: int, tokens_per_s: FloatArray | float
) -> FloatArray:
    """(W1), shaped as the rate; nan without a price."""
    price = np.nan if usd_per_gpu_hour is None else usd_per_gpu_hour
    return np.asarray(_MILLION * gpus * price / _S_PER_HOUR / np.asarray(tokens_per_s))


def joule_per_token(watts: FloatArray | float, tokens_per_s: FloatArray | float) -> FloatArray:
    """(W4), shaped as the two broadcast; watts: of all GPUs together."""
    return np.asarray(np.asarray(watts) / np.asarray(tokens_per_s))


def step_watts(surface: Surface) -> FloatArray:
    """(B, S, 1 + C) mean watts of all GPUs while such steps follow one another, plain decoding first.

    With the scenario's traffic the prompts that ride on the steps and the filtering of logits are counted,
    without it neither. nan (a 0-d array) where the GPU's power is not known, and for scope `block`.
    """
    scenario = surface.scenario
    power = scenario.gpu.power
    if power is None or scenario.scope == "block":
        return np.full((), np.nan)
    steps = surface.in_flight
    tokens = steps.tokens_per_step
    time_us = steps.step_us if scenario.traffic is None else surface.served.token_us * tokens
    batch = surface.batch[:, None, None]
    return _all_watts(surface, power, batch, steps.counts, tokens, surface.joules, time_us)


def _all_watts(
    surface: Surface,
    power: Power,
    batch: Size,
    counts: Size,
    tokens: FloatArray,
    joules: FloatArray,
    time_us: FloatArray,
) -> FloatArray:
    """Watts of all GPUs in steps of so many joules and a server's share of time; all broadcast."""
    scenario = surface.scenario
    if scenario.traffic is not None:
        rows = np.asarray(batch, dtype=np.float64) * processed_tokens(surface.setting, counts)
        joules = joules + served_joules(
            scenario.gpu, power, surface.setting, batch, rows, tokens, scenario.traffic
        )
    return np.asarray(scenario.gpus * watts(power, joules, time_us))


def watts_at(surface: Surface, at: int, s: int, configuration: int) -> float | None:
    """Watts of all GPUs in one configuration of a search; None where the GPU's power is not known."""
    power = surface.scenario.gpu.power
    if power is None or surface.scenario.scope == "block":
        return None
    count, tokens = surface.candidates[configuration], surface.tokens_per_step[configuration]
    joules = np.asarray(surface.joules_at(at, s, configuration))
    time_us = surface.token_us[at, s, configuration] * tokens
    return float(_all_watts(surface, power, surface.batch[at], count, tokens, joules, time_us))


@dataclass(frozen=True, eq=False)
class Priced:
    """A surface, and what several quantities of it are computed from."""

    surface: Surface

    @property
    def scenario(self) -> Scenario:
        """What was priced."""
        return self.surface.scenario

    @cached_property
    def overhead(self) -> FloatArray:
        """Over the plain step that is divided by: at the same batch and length, or the one of the paper."""
        steps = self.surface.by_count
        if self.scenario.baseline == "same":
            return steps.overhead
        one = decode_step(self.scenario.setting, FIXED_BASELINE_BATCH, FIXED_BASELINE_SEQ_LEN)
        return steps.step_us / one.time_us

    @cached_property
    def speedup(self) -> FloatArray:
        """Over the same plain step."""
        steps = self.surface.by_count
        return steps.speedup if self.scenario.baseline == "same" else steps.tokens_per_step / self.overhead

    @cached_property
    def band(self) -> tuple[FloatArray, FloatArray]:
        """80 % interval of the speedup."""
        steps = self.surface.by_count
        return steps.band if self.scenario.baseline == "same" else steps.speedup_band(self.speedup)

    @cached_property
    def verify_only_us(self) -> FloatArray:
        """Of the forward pass that verifies, without drafting; of plain decoding the plain step."""
        surface, steps = self.surface, self.surface.by_count
        verified = steps.verify.time_us
        if surface.setting.match_rate != 1.0:  # of a step that finds drafts, not the mean of all steps
            axes = surface.batch[:, None, None], surface.seq_len[None, :, None], steps.counts
            verified = verification_step(replace(surface.setting, match_rate=1.0), *axes).time_us
        each = np.broadcast_to(verified, steps.shape).copy()
        each[..., :1] = steps.decode_us
        return each

    def of_server(self, read: Callable[[Surface], FloatArray]) -> FloatArray:
        """What only a server with requests has; nan (a 0-d array) without."""
        return np.full((), np.nan) if self.scenario.traffic is None else read(self.surface)

    @cached_property
    def watts(self) -> FloatArray:
        """Of all GPUs."""
        return step_watts(self.surface)

    @cached_property
    def memory(self) -> FloatArray:
        """Bytes of one GPU."""
        shard, steps = self.scenario.shard, self.surface.by_count
        beside = [drafter_bytes(shard, option.drafter) for option in steps.options]
        weights, kv, slots = (steps.by_option([added[i] for added in beside]) for i in range(3))
        batch, seq_len = self.surface.batch[:, None, None], self.surface.seq_len[None, :, None]
        return memory_parts(shard, weights, kv, slots, batch, seq_len, steps.counts).total

    @cached_property
    def fits(self) -> BoolArray:
        """Whether the GPU holds it."""
        return np.asarray(self.memory <= self.scenario.usable_memory_bytes)

    @cached_property
    def rate_that_fits(self) -> FloatArray:
        """Tokens a second; nan where it cannot be run, which costs nothing that could be compared."""
        rate = self.surface.tokens_per_s
        return rate if self.fits.all() else np.where(self.fits, rate, np.nan)


Unit = Literal["us", "per_s", "of", ""]


@dataclass(frozen=True, slots=True)
class Quantity:
    """One quantity."""

    name: str
    """Column and key, its unit at the end."""
    of: Callable[[Priced], Any]
    """Its values; text for what is the same of a whole scenario."""
    title: str = ""
    """Heading in tables for people; empty: not shown there."""
    unit: Unit = ""
    """How tables show it: `us` a time, `per_s` a rate, `of` a ratio, empty a number."""
    of_model: bool = False
    """Empty for `scope="block"`, which is one block and not a model."""
    labels: tuple[str, ...] = ()
    """Words that its values are codes of."""


OF_SCENARIO: dict[str, Callable[[Scenario], str | int]] = {
    "gpu": lambda of: of.gpu.name,
    "model": lambda of: of.model.name,
    "tp": lambda of: of.parallel.tp,
    "ep": lambda of: of.parallel.ep,
    "dp_attention": lambda of: of.parallel.dp_attention,
    "runtime": lambda of: of.runtime.name,
    "kernels": lambda of: of.kernels,
    "scope": lambda of: of.scope,
    "latency_model": lambda of: of.latency.name,
    "drafter": lambda of: of.drafting.method,
    "acceptance": lambda of: of.profile.name,
    "baseline": lambda of: of.baseline,
}
"""Quantities that are constant for a scenario."""


def scenario_values(scenario: Scenario, *names: str) -> dict[str, str | int]:
    """These of a scenario, by name, as every document has them."""
    return {name: OF_SCENARIO[name](scenario) for name in names}


def _in_every_row(of: Callable[[Scenario], str | int]) -> Callable[[Priced], Any]:
    """Text stays, a number is an array of one."""

    def read(at: Priced) -> Any:
        value = of(at.scenario)
        return value if isinstance(value, str) else np.asarray(value)

    return read


QUANTITIES = (
    *(Quantity(name, _in_every_row(of)) for name, of in OF_SCENARIO.items()),
    Quantity("batch", lambda at: at.surface.batch[:, None, None]),
    Quantity("seq_len", lambda at: at.surface.seq_len[None, :, None]),
    Quantity("candidates", lambda at: at.surface.by_count.counts),
    Quantity("drafts", lambda at: at.surface.by_count.drafts),
    Quantity("tokens_per_step", lambda at: at.surface.by_count.tokens_per_step, "tokens/step"),
    Quantity("decode_step_us", lambda at: at.surface.by_count.decode_us, "plain step", "us"),
    Quantity("verify_only_us", lambda at: at.verify_only_us),
    Quantity("verify_step_us", lambda at: at.surface.by_count.step_us, "verify step", "us"),
    Quantity("verify_low_us", lambda at: at.surface.by_count.low_us),
    Quantity("verify_high_us", lambda at: at.surface.by_count.high_us),
    Quantity("overhead", lambda at: at.overhead, "overhead", "of"),
    Quantity("speedup", lambda at: at.speedup),
    Quantity("speedup_low", lambda at: at.band[0]),
    Quantity("speedup_high", lambda at: at.band[1]),
    Quantity("server_speedup", lambda at: at.of_server(lambda of: of.server_speedup), of_model=True),
    Quantity(
        "server_speedup_low", lambda at: at.of_server(lambda of: of.server_speedup_band[0]), of_model=True
    ),
    Quantity(
        "server_speedup_high", lambda at: at.of_server(lambda of: of.server_speedup_band[1]), of_model=True
    ),
    Quantity("itl_us", lambda at: at.surface.served.itl_us, of_model=True),
    Quantity("tpot_us", lambda at: at.surface.served.tpot_us, of_model=True),
    Quantity("tokens_per_s", lambda at: at.surface.tokens_per_s, "tokens/s", "per_s", of_model=True),
    Quantity(
        "tokens_per_s_per_user",
        lambda at: at.surface.tokens_per_s_per_user,
        of_model=True,
    ),
    Quantity(
        "usd_per_million_tokens",
        lambda at: usd_per_million_tokens(at.scenario.usd_per_gpu_hour, at.scenario.gpus, at.rate_that_fits),
        "$/M tokens",
        of_model=True,
    ),
    Quantity("watts", lambda at: at.watts, of_model=True),
    Quantity(
        "joule_per_token",
        lambda at: joule_per_token(at.watts, at.rate_that_fits),
        "J/token",
        of_model=True,
    ),
    Quantity(
        "bound",
        lambda at: at.surface.by_count.bound,
        labels=tuple(code.name.lower() for code in Bound),
    ),
    Quantity(
        "source",
        lambda at: at.surface.by_count.source,
        labels=tuple(code.name.lower() for code in Source),
    ),
    Quantity("memory_bytes", lambda at: at.memory, of_model=True),
    Quantity("fits_memory", lambda at: at.fits, of_model=True),
)
"""In the order of a sweep's columns."""
BY_NAME = {quantity.name: quantity for quantity in QUANTITIES}


def values(surface: Surface, names: Iterable[str] = BY_NAME) -> dict[str, Any]:
    """Quantities by name: arrays that broadcast with (B, S, 1 + C), text where a scenario has one."""
    at = Priced(surface)
    block = surface.scenario.scope == "block"
    empty: npt.NDArray[np.float64] = np.full((), np.nan)
    return {name: empty if block and BY_NAME[name].of_model else BY_NAME[name].of(at) for name in names}


def gain_column(scenario: Scenario) -> str:
    """The column that chooses a count: the server's speedup where prompts are given, else the step's."""
    return "speedup" if scenario.traffic is None else "server_speedup"


COLUMNS = (
    "batch", "seq_len", "candidates", "drafts", "tokens_per_step", "decode_step_us", "verify_step_us",
    "overhead", "speedup", "step_speedup", "fits_memory",
)  # fmt: skip


def count_table(surface: Surface) -> pa.Table:
    """One row a length, batch and count, with the drafting that is best for that count there: COLUMNS.

    drafts: draft length (Medusa: heads run). One candidate is plain decoding. Names are those of a schedule's
    rows: speedup is the server's where there are requests, step_speedup the step's.
    """
    import pyarrow as pa

    shape, step, gain = surface.by_count.fits.shape, "speedup", gain_column(surface.scenario)
    read = values(surface, (*(name for name in COLUMNS if name != "step_speedup"), gain))
    columns = read | {"speedup": read[gain], "step_speedup": read[step]}
    return pa.table(
        {name: np.moveaxis(np.broadcast_to(columns[name], shape), 1, 0).ravel() for name in COLUMNS}
    )
