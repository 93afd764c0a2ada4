"""What a reader of a sweep must know before trusting it.

Among it what tokens cost, never without the price's date, and what memory holds or lacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from medusa_sim.doubts.doubts import doubts
from medusa_sim.doubts.terms import beyond_measured
from medusa_sim.grid.quantities import BY_NAME
from medusa_sim.report.screen import Fact
from medusa_sim.report.text import capitalised, percent, significant
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.specs.costs import GIVEN
from medusa_sim.step.memory import MemoryParts
from medusa_sim.step.workload import Grid
from medusa_sim.units import GIGA

if TYPE_CHECKING:
    from medusa_sim.plan.shortfall import Shortfall


def caveats(settings: Sequence[Scenario], grid: Grid) -> Iterator[str]:
    """One sentence each, those that apply to these settings and this grid."""
    yield (
        "Every time is a prediction. The 80 % interval joins the scatter of kernel times on shapes that the "
        "fit had not seen with the uncertainty of the acceptance profile; it does not cover another engine, "
        "another clock or another driver."
    )
    for item in settings:
        yield from map(as_sentence, doubts(item))
        yield from _latency_caveats(item)
    profiles = {item.profile.name: item.profile for item in settings}
    for profile in profiles.values():
        yield (
            f"Tokens per step come from `{profile.name}` ({profile.source}), whatever the GPU and model: "
            "measure your own model's acceptance before relying on the speedup. Step times do not depend "
            "on it."
        )
    if any(item.scope == "block" for item in settings):
        yield (
            "Scope `block` is the Medusa paper's simplified block: no norms, output projection, LM head or "
            "drafter."
        )
    if any(item.baseline == "fixed" for item in settings):
        yield (
            "Baseline `fixed` divides every step by one decode step at batch 1 and length 1024, as the "
            "paper's plots do; it is no throughput ratio."
        )
    requests = int(grid.batch.min()), int(grid.batch.max())
    for item in settings:
        yield from map(as_sentence, beyond_measured(item, int(grid.seq_len.max()), requests))


def as_sentence(line: str) -> str:
    """A warning as a sentence of its own."""
    return f"{capitalised(line)}."


def more_may_pay(scenario: Scenario) -> str:
    """That the best count is the last one whose acceptance is known."""
    return f"the best count is the largest that acceptance {scenario.profile.name} describes: more may pay"


def guessed_text(scenario: Scenario, drafts: int) -> str:
    """` (guessed beyond 3 drafts)` behind the tokens of more drafts; empty where all were measured."""
    first = scenario.guessed_from
    if first is None or drafts < first:
        return ""
    return f" (guessed beyond {'1 draft' if first == 2 else f'{first - 1} drafts'})"


def _latency_caveats(item: Scenario) -> Iterator[str]:
    name = item.latency.name
    if name == "roofline":
        yield (
            f"`{item.gpu.name}`: the roofline is a floor; it falls 31 to 45 % short of measured linear "
            "layers (docs/method.md)."
        )
    if name != "calibrated":
        return
    gemm = item.kernel_fits.linear
    if gemm is not None:
        yield (
            f"Linear layers of `{item.gpu.name}` ({item.kernels}): mean error {percent(gemm.fit_error)} on "
            f"the {gemm.rows} rows of the fit, {percent(gemm.heldout_error)} on held-out shapes."
        )
    if item.backend is not None:
        yield (
            f"Verification attends with {item.backend.name} ({item.backend.source}); few rows of it with 2 "
            "to 128 queries are public: its time is put together from decode and prefill kernels where "
            "keys are split, and follows rows of an RTX 3090 where they are not."
        )


_LEAST_GB = 0.01
"""Below it the size of a part of memory is not told."""


COST_COLUMNS = (
    "usd_per_million_tokens", "plain_usd_per_million_tokens", "joule_per_token", "plain_joule_per_token",
)  # fmt: skip
"""Quantities of `Costs`."""


class Costs(NamedTuple):
    """What tokens cost in one place, with speculation and without; nan where it is not known."""

    where: str
    usd_per_million: float
    plain_usd_per_million: float
    joule: float
    plain_joule: float


def cost_facts(scenario: Scenario, costs: Sequence[Costs]) -> Iterator[Fact]:
    """What tokens cost at the first and the last place, in money and in energy where these are known."""
    if scenario.scope == "block" or not costs:
        return
    ends = [costs[0], costs[-1]] if costs[0].where != costs[-1].where else [costs[0]]
    if scenario.price is not None:
        usd = [(cost.where, cost.usd_per_million, cost.plain_usd_per_million) for cost in ends]
        yield Fact("Cost", _beside_plain("usd_per_million_tokens", usd, "$"))
        yield Fact("Price", scenario.price.text())
    power = scenario.gpu.power
    if power is not None:
        joule = [(cost.where, cost.joule, cost.plain_joule) for cost in ends]
        origin = f", scaled from {power.lender} by the power limit" if power.lender else ""
        yield Fact(
            "Energy", f"{_beside_plain('joule_per_token', joule)}; +-{100.0 * power.fit.error:.0f} %{origin}"
        )


def _beside_plain(name: str, ends: Sequence[tuple[str, float, float]], sign: str = "") -> str:
    """`$0.213 a million tokens at batch 44 (plain $0.302), $0.167 at batch 256 (plain $0.173)`."""
    texts = []
    for place, (where, value, plain) in enumerate(ends):
        number = significant(value, 3)
        shown = f"{sign}{number}" if place else BY_NAME[name].phrase.format(number)
        texts.append(f"{shown} at {where} (plain {sign}{significant(plain, 3)})")
    return ", ".join(texts)


def price_lines(scenarios: Sequence[Scenario]) -> list[str]:
    """What the prices of rows rest on, a line each; nothing for prices that came with the question."""
    prices = dict.fromkeys(item.price for item in scenarios if item.scope == "model")
    return [
        f"usd_per_million_tokens: at {price.text()}; --price gives another"
        for price in prices
        if price is not None and price.offer != GIVEN
    ]


def shortfall_text(short: Shortfall) -> str:
    """How many GB are needed and there, and what would do."""
    missing = missing_text(short).replace(", and", f" ({memory_text(short.parts)}), and")
    would = would_fit(short)
    if not would:
        return f"{missing} No one change that is known would do."
    return f"{missing} What would do, each alone: {'; '.join(would)}."


def missing_text(short: Shortfall) -> str:
    """How many GB are needed and there."""
    return (
        f"Does not fit: batch {short.batch} of length {short.seq_len} needs "
        f"{short.needed_bytes / GIGA:,.1f} GB on each GPU without speculation, and "
        f"{short.usable_bytes / GIGA:,.1f} GB can be used."
    )


def would_fit(short: Shortfall) -> list[str]:
    """Changes of which each alone would do: `--tp 2 (42.7 of 75.9 GB)`."""
    return [
        f"{change.option} ({change.needed_bytes / GIGA:,.1f} of {change.usable_bytes / GIGA:,.1f} GB)"
        for change in short.changes
    ]


def shortfall_facts(short: Shortfall) -> Iterator[Fact]:
    """What is needed where it does not fit, and what would do."""
    at = f"batch {short.batch} of length {short.seq_len}"
    yield Fact("Would fit", " or ".join(would_fit(short)) or "nothing that is known, if one thing is changed")
    yield Fact("Memory use", f"{memory_text(short.parts)} for {at}", detail=True)


def memory_text(parts: MemoryParts) -> str:
    """`weights 13.5, KV cache 0.5, activations 0.1 GB`: of one GPU, what is nothing left out.

    A tenth from 1 GB on, a hundredth below: figures of a sum, which nobody reads finer.
    """
    named = zip(("weights", "drafter", "KV cache", "activations"), parts, strict=True)
    sizes = {name: float(value) / GIGA for name, value in named if float(value) > 0.0}
    texts = [
        f"{name} {size:,.1f}"
        if size >= 1.0
        else f"{name} {size:.2f}"
        if size >= _LEAST_GB
        else f"{name} < {_LEAST_GB}"
        for name, size in sizes.items()
    ]
    return f"{', '.join(texts)} GB"
