"""Every set-up priced at steady batches -> one table, its frontier, the set-up for the target and its reason.

A row is a set-up, a drafter and a batch of one copy of the model, with the draft length that is best there.
Its rates are those of `plan.sweep` for the same scenario, batch and count (`plan.surface`); what a rate or a
number of users adds is how many copies carry it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray, IntArray
from medusa_sim.errors import CoverageError, MedusaSimError, UsageError, unknown_name
from medusa_sim.latency.base import LatencyModel
from medusa_sim.plan.draft_options import DraftOption
from medusa_sim.plan.quantities import joule_per_token, step_watts, usd_per_million_tokens
from medusa_sim.plan.scenario import Scenario
from medusa_sim.plan.surface import Surface, all_priced, at_counts, unpriced
from medusa_sim.setups.frontier import on_frontier
from medusa_sim.setups.question import COLUMN, LOWER_IS_BETTER, Measure, Question
from medusa_sim.setups.setup import PLAIN, Choices, SetUp, model_of, own_precision, setups
from medusa_sim.specs.engine import Engine
from medusa_sim.specs.formats import FORMATS
from medusa_sim.specs.gpu import Gpu, load_gpu
from medusa_sim.specs.model import Model
from medusa_sim.specs.models import ModelName
from medusa_sim.specs.runtime import load_runtime
from medusa_sim.step.drafter import drafter_kind
from medusa_sim.step.server import first_token_us
from medusa_sim.units import GIGA, US_PER_MS, US_PER_S

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "gpu", "gpus", "tp", "ep", "dp_attention", "precision", "engine", "drafter", "drafts", "batch",
    "tokens_per_s_per_gpu", "tokens_per_s_per_user", "usd_per_million_tokens", "on_frontier", "chosen",
    "replicas", "kv_precision", "tokens_per_s_per_gpu_low", "tokens_per_s_per_gpu_high",
    "tokens_per_s_per_user_low", "tokens_per_s_per_user_high", "usd_per_million_tokens_low",
    "usd_per_million_tokens_high", "tpot_ms", "ttft_ms", "e2e_ms", "joule_per_token", "tokens_per_s_per_mw",
    "meets_limits",
)  # fmt: skip
"""Columns of the table; rates are of output tokens, and of all copies where they count GPUs or dollars."""
FP8 = "fp8"
"""The cache that every engine here has beside the published one."""
SET_UP = (
    "gpu", "tp", "ep", "dp_attention", "precision", "kv_precision", "engine", "drafter"
)  # fmt: skip
"""Columns that name what is launched; a drafter with several draft lengths is one set-up."""
TIMES = ("tpot_ms", "ttft_ms", "e2e_ms")
"""Columns that limits are held against."""
LIMITS = (*TIMES, "tokens_per_s_per_user")
"""What `Comparison.for_target` may change."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A set-up that cannot run, or with one drafter cannot, and why."""

    setup: str
    reason: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """The answer. table: every row, columns COLUMNS. scenarios: what a row was priced with, by SET_UP."""

    model: Model
    question: Question
    measure: Measure
    table: pd.DataFrame
    refused: tuple[Refused, ...]
    scenarios: dict[tuple[Any, ...], Scenario] = field(repr=False)

    def for_target(self, measure: Measure | None = None, **limits: float | None) -> Comparison:
        """The same set-ups under other limits (those of `Question`), by another measure; nothing is priced.

        Raises UsageError for a limit that makes no sense, or a name that is none.
        """
        if unknown := [name for name in limits if name not in LIMITS]:
            raise UsageError(unknown_name("limit", unknown[0], LIMITS))
        chosen_measure = measure or self.measure
        asked = replace(self.question, **limits, **({} if measure is None else {"measure": measure}))  # type: ignore[arg-type]  # limits alone
        table = self.table.copy()
        worth = _worth(table[COLUMN[chosen_measure]].to_numpy(), chosen_measure)
        speed = table.tokens_per_s_per_user.to_numpy()
        table["meets_limits"] = _within(asked, *(table[name].to_numpy() for name in TIMES))
        table["on_frontier"] = on_frontier(speed, worth)
        table["chosen"] = False
        places = np.flatnonzero(table.meets_limits.to_numpy() & np.isfinite(worth))
        if places.size:
            table.loc[int(places[np.lexsort((-speed[places], -worth[places]))[0]]), "chosen"] = True
        return replace(self, question=asked, measure=chosen_measure, table=table[list(COLUMNS)])

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """What must not be overlooked of any set-up, each line once."""
        return tuple(dict.fromkeys(line for item in self.scenarios.values() for line in item.warnings))

    @staticmethod
    def key(row: Any) -> tuple[Any, ...]:
        """What names the set-up of a row (a mapping or a row of the table): its SET_UP."""
        return tuple(row[name] for name in SET_UP)

    @property
    def column(self) -> str:
        """What is to be saved, or made large."""
        return COLUMN[self.measure]

    @cached_property
    def frontier(self) -> pd.DataFrame:
        """Rows that nothing beats, the fastest stream first."""
        found = self.table[self.table.on_frontier]
        return found.sort_values("tokens_per_s_per_user", ascending=False, ignore_index=True)

    @cached_property
    def best(self) -> pd.DataFrame:
        """The best row of each set-up within the limits, the best set-up first."""
        allowed = self.table[self.table.meets_limits & self.table[self.column].notna()]
        order = allowed.sort_values(
            [self.column, "tokens_per_s_per_user"], ascending=[self.measure in LOWER_IS_BETTER, False]
        )
        return order.drop_duplicates(list(SET_UP), ignore_index=True)

    @cached_property
    def chosen(self) -> dict[str, Any] | None:
        """The best row within the limits; None where no set-up keeps them."""
        return _record(self.best)

    @cached_property
    def chosen_plain(self) -> dict[str, Any] | None:
        """The best row within the limits that does not speculate; None where none keeps them."""
        return _record(self.best[self.best.drafter == PLAIN])

    @cached_property
    def runners_up(self) -> pd.DataFrame:
        """Other set-ups whose interval reaches the chosen one's value, the best first."""
        best = self.best
        if self.chosen is None:
            return best
        if self.measure == "cost":
            near = best.usd_per_million_tokens_low <= self.chosen["usd_per_million_tokens_high"]
        else:
            # joules per token follow tokens per second, so that their bands are alike
            share = best.tokens_per_s_per_gpu_high / best.tokens_per_s_per_gpu
            worth = _worth(best[self.column].to_numpy(), self.measure)
            near = worth * share >= worth[0] * (
                best.tokens_per_s_per_gpu_low.iloc[0] / best.tokens_per_s_per_gpu.iloc[0]
            )
        found: pd.DataFrame = best[near].iloc[1:].reset_index(drop=True)
        return found

    def scenario(self, row: Any) -> Scenario:
        """The scenario that priced a row (a mapping or a row of the table)."""
        return self.scenarios[self.key(row)]


def compare(
    model: ModelName,
    question: Question | None = None,
    choices: Choices | None = None,
    *,
    prices: float | Mapping[str, float] | None = None,
    advance: Callable[[int, int], None] | None = None,
    **scenario: Any,
) -> Comparison:
    """Price every set-up that `choices` allows and answer the question.

    prices: dollars per GPU-hour of every card, or by card (others as listed). advance: told (set-ups priced,
    of so many). scenario: further arguments of every `Scenario` (acceptance, draft_model,
    latency, data_dir, ...). Raises SpecError or UsageError for what no set-up could
    make good (an unknown model, card, engine or drafter), UsageError where every set-up was refused.
    """
    import pandas as pd

    asked, allowed = question or Question(), choices or Choices()
    target = model_of(model)
    drafters = allowed.drafters or default_drafters(target, scenario)
    for name in drafters:
        if name != PLAIN:
            drafter_kind(name)
    for name in allowed.engines or ():
        load_runtime(name, scenario.get("data_dir"))
    for name in allowed.gpus or ():
        load_gpu(name, scenario.get("data_dir"))
    todo = list(setups(target, allowed, drafters, scenario.get("data_dir")))
    rows: list[dict[str, Any]] = []
    refused: dict[Refused, None] = {}
    scenarios: dict[tuple[Any, ...], Scenario] = {}
    gpu: Gpu | None = None
    latencies: dict[Any, LatencyModel] = {}  # kernels of a card are timed once for all its set-ups
    for done, setup in enumerate(todo):
        if gpu is None or setup.gpu != gpu.name:
            latencies.clear()
            gpu = load_gpu(setup.gpu, scenario.get("data_dir"))
        usd = prices.get(setup.gpu) if isinstance(prices, Mapping) else prices
        for found in _with_narrow_cache(setup, gpu, target, asked, {**scenario, "price": usd}, latencies):
            if isinstance(found, Refused):
                refused[found] = None
            else:
                rows.append(found.rows)
                scenarios[found.key] = found.scenario
        if advance is not None:
            advance(done + 1, len(todo))
    if not rows:
        first = next(iter(refused))
        raise UsageError(
            f"none of {len(todo)} set-ups of {target.name} can run; {first.setup}: {first.reason}"
        )
    columns = {name: np.concatenate([part[name] for part in rows]) for name in rows[0]}
    table = pd.DataFrame(columns)
    with_price = table.usd_per_million_tokens.notna()
    # cards that nobody named may lack a price: they are left out of the choice, which says so
    by_cost = with_price.any() if allowed.gpus is None else with_price.all()
    priced_all = Comparison(
        model=target,
        question=asked,
        measure=asked.measure or ("cost" if by_cost else "throughput"),
        table=table,
        refused=tuple(refused),
        scenarios=scenarios,
    )
    return priced_all.for_target()


def default_drafters(model: Model, scenario: dict[str, Any]) -> tuple[str, ...]:
    """Plain decoding and every drafter whose acceptance was measured on this model, else EAGLE-3 or MTP."""
    from medusa_sim.acceptance.profile import acceptance_names
    from medusa_sim.step.drafter import DRAFTERS

    known = acceptance_names(scenario.get("data_dir"))
    own = [
        name for name, kind in DRAFTERS.items()
        if any(f"{prefix}{model.name}" in known for prefix in kind.profiles)
    ]  # fmt: skip
    return (PLAIN, *(own or ["mtp" if model.mtp_layers else "eagle3"]))


@dataclass(frozen=True, slots=True)
class _Priced:
    """Rows of one set-up with one drafter, as columns."""

    key: tuple[Any, ...]
    scenario: Scenario
    rows: dict[str, Any]


def _with_narrow_cache(
    setup: SetUp,
    gpu: Gpu,
    model: Model,
    asked: Question,
    given: dict[str, Any],
    latencies: dict[Any, LatencyModel],
) -> Iterator[_Priced | Refused]:
    """`_priced`; the batches that the published cache does not hold in fp8, where the card computes in it.

    No KV precision was asked for then (`SetUp.narrows_cache`).
    """
    held = 0
    for found in _priced(setup, gpu, model, asked, given, latencies):
        if isinstance(found, _Priced):
            held = max(held, int(found.rows["batch"].max()))
        yield found
    beyond = tuple(batch for batch in asked.batches if batch > held)
    if held and beyond and setup.narrows_cache and model.kv_dtype != FP8 and not gpu.lacks(FP8):
        narrow, larger = replace(setup, kv_precision=FP8), replace(asked, batches=beyond)
        for found in _priced(narrow, gpu, model, larger, given, latencies):
            if isinstance(found, _Priced):  # what does not fit so either is no news
                yield found


def _priced(
    setup: SetUp,
    gpu: Gpu,
    model: Model,
    asked: Question,
    given: dict[str, Any],
    latencies: dict[Any, LatencyModel],
) -> Iterator[_Priced | Refused]:
    """A set-up with each of its drafters, priced or refused; refused once where all are, for one reason.

    Plain decoding is read off any drafter's surface.
    """
    needed = FORMATS[setup.precision].dtype
    if setup.precision != own_precision(model) and gpu.lacks(needed):
        listed = ", ".join(gpu.peak_flops_per_s)
        yield Refused(
            f"{setup.gpu}, {setup.precision}", f"the card has no {needed} arithmetic, only {listed}"
        )
        return
    kernels = (setup.gpu, setup.engine, setup.precision)
    surface: Surface | None = None
    found: list[_Priced | Refused] = []
    for drafter in sorted(setup.drafters, key=lambda name: name == PLAIN):
        try:
            if drafter != PLAIN or surface is None:
                known = {"latency": latencies[kernels]} if kernels in latencies else {}
                surface = _surface(setup, model, drafter, asked, {**given, **known}, surface)
                latencies[kernels] = surface.setting.latency
            found.append(_rows(surface, setup, drafter, asked))
        except _NoRoomError as error:  # nor with another drafter
            yield Refused(setup.told, str(error))
            return
        except MedusaSimError as error:
            found.append(Refused(f"{setup.told}, {drafter}", str(error)))
    reasons = {item.reason if isinstance(item, Refused) else None for item in found}
    if len(reasons) == 1 and (reason := reasons.pop()) is not None:
        yield Refused(setup.told, reason)
    else:
        yield from found


def _surface(
    setup: SetUp, model: Model, drafter: str, asked: Question, given: dict[str, Any], other: Surface | None
) -> Surface:
    """A set-up with a drafter at every batch and draft length; with none, plain decoding alone.

    other: of the same cards with another drafter. What memory refuses is not priced.
    """
    if drafter == PLAIN or not drafter_kind(drafter).takes_draft_model:
        given = {name: value for name, value in given.items() if not name.startswith("draft_")}
    scenario = Scenario(
        model=model,
        drafter=_any_drafter(setup.engine, given) if drafter == PLAIN else drafter,
        prompt_tokens=asked.prompt_tokens,
        output_tokens=asked.output_tokens,
        **{"chain_only": True, **setup.arguments(model), **given},
    )
    options: Sequence[DraftOption] = ()
    if drafter != PLAIN:
        options = at_counts(scenario.options(max(asked.drafts) + 1), np.asarray(asked.drafts) + 1)
        if not options:
            raise CoverageError(f"acceptance {scenario.profile.name} describes none of these draft lengths")
    surface = unpriced(scenario, asked.batches, [asked.seq_len], options, in_flight=True)
    if min(asked.batches) > surface.max_batch_of(None, np.ones(1, dtype=np.int64))[0, 0]:
        size, room = scenario.shard.weight_bytes / GIGA, scenario.gpu.memory_bytes / GIGA
        told = f"{size:.0f} GB of weights a card leave no room for a request in {room:.0f} GB"
        raise _NoRoomError(told)
    if other is not None:
        surface.take_steps(other)
    return all_priced(surface)


class _NoRoomError(CoverageError):
    """Not even the smallest batch fits, without a drafter."""


def _any_drafter(engine: str, given: dict[str, Any]) -> str:
    """A drafter that an engine runs and that needs nothing, for a scenario that does not speculate."""
    terms: Engine | None = load_runtime(engine, given.get("data_dir")).engine
    return "ngram" if terms is None or "ngram" in terms.drafters else terms.drafters[0]


def _rows(surface: Surface, setup: SetUp, drafter: str, asked: Question) -> _Priced:
    """Rows of every batch that fits. Raises CoverageError where none does."""
    scenario, found = surface.scenario, surface.in_flight
    rates, fits = surface.tokens_per_s[:, 0], np.broadcast_to(found.fits, surface.served.tpot_us.shape)[:, 0]
    first, last = (0, 1) if drafter == PLAIN else (1, rates.shape[-1])
    allowed = np.where(fits, rates, -np.inf)[:, first:last]
    places = first + np.argmax(allowed, axis=-1)
    kept = np.flatnonzero(fits[np.arange(places.size), places])
    if not kept.size:
        raise CoverageError("the drafter and its drafts leave no room for a request")

    def at(values: FloatArray) -> FloatArray:
        whole = np.broadcast_to(values, surface.served.tpot_us.shape)
        return np.asarray(whole[kept, 0, places[kept]])

    batch = surface.batch[kept]
    rate, tpot_us = at(surface.tokens_per_s), at(surface.served.tpot_us)
    low_us, high_us = (at(end) for end in surface.tpot_band_us)
    copies = _copies(asked, batch, rate)
    carried = rate if asked.rate is None else np.full(rate.shape, asked.rate * asked.output_tokens) / copies
    usd = usd_per_million_tokens(scenario.usd_per_gpu_hour, scenario.gpus, carried)
    joules = joule_per_token(at(step_watts(surface)), rate)
    ttft_us = at(first_token_us(surface.setting, found.step_us, surface.served))
    e2e_us = ttft_us + (asked.output_tokens - 1.0) * tpot_us
    per_gpu = rate / scenario.gpus
    key = (
        setup.gpu, setup.tp, setup.ep, setup.dp_attention, setup.precision,
        scenario.model.kv_dtype or scenario.model.dtype, setup.engine, drafter,
    )  # fmt: skip
    columns = {
        **{name: np.full(batch.shape, value) for name, value in zip(SET_UP, key, strict=True)},
        "gpus": copies * scenario.gpus,
        "replicas": copies,
        "drafts": at(np.broadcast_to(found.drafts, found.tokens_per_step.shape)).astype(np.int64),
        "batch": batch,
        "tokens_per_s_per_gpu": per_gpu,
        "tokens_per_s_per_gpu_low": per_gpu * tpot_us / high_us,
        "tokens_per_s_per_gpu_high": per_gpu * tpot_us / low_us,
        "tokens_per_s_per_user": US_PER_S / tpot_us,
        "tokens_per_s_per_user_low": US_PER_S / high_us,
        "tokens_per_s_per_user_high": US_PER_S / low_us,
        "tpot_ms": tpot_us / US_PER_MS,
        "ttft_ms": ttft_us / US_PER_MS,
        "e2e_ms": e2e_us / US_PER_MS,
        "usd_per_million_tokens": usd,
        "usd_per_million_tokens_low": usd * low_us / tpot_us,
        "usd_per_million_tokens_high": usd * high_us / tpot_us,
        "joule_per_token": joules,
        "tokens_per_s_per_mw": 1e6 / joules,
    }
    return _Priced(key, scenario, columns)


def _copies(asked: Question, batch: IntArray, rate: FloatArray) -> IntArray:
    """Copies of the model that carry the traffic, each at this batch."""
    if asked.users is not None:
        return np.ceil(asked.users / batch).astype(np.int64)
    if asked.rate is not None:
        return np.ceil(asked.rate * asked.output_tokens / rate).astype(np.int64)
    return np.ones(batch.shape, dtype=np.int64)


def _within(asked: Question, tpot_ms: FloatArray, ttft_ms: FloatArray, e2e_ms: FloatArray) -> BoolArray:
    kept = tpot_ms * US_PER_MS <= asked.slowest_tpot_us
    for limit, time_ms in ((asked.ttft_ms, ttft_ms), (asked.e2e_ms, e2e_ms)):
        if limit is not None:
            kept = kept & (time_ms <= limit)
    return np.asarray(kept, dtype=np.bool_)


def _worth(values: FloatArray, measure: Measure) -> FloatArray:
    return -values if measure in LOWER_IS_BETTER else values


def _record(rows: pd.DataFrame) -> dict[str, Any] | None:
    return None if rows.empty else dict(rows.iloc[0])
