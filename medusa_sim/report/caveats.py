"""What a reader of a sweep must know before trusting it.

Among it what tokens cost, never without the price's date, and what memory holds or lacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from medusa_sim.acceptance.profile import AcceptanceProfile
from medusa_sim.plan.doubts import doubts
from medusa_sim.plan.scenario import Scenario
from medusa_sim.plan.terms import beyond_measured
from medusa_sim.report.text import capitalised, percent, significant
from medusa_sim.specs.costs import GIVEN
from medusa_sim.step.memory import MemoryParts
from medusa_sim.step.workload import Grid
from medusa_sim.units import GIGA

if TYPE_CHECKING:
    from medusa_sim.plan.capacity import Shortfall


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


def acceptance_basis(profile: AcceptanceProfile) -> list[str]:
    """What a profile counts where that is not what a running system accepts."""
    if profile.agreement != "teacher-forced":
        return []
    return [
        f"Acceptance {profile.name} is agreement with a text (teacher-forced), not what a running system "
        "accepts: measure it on the model's own output."
    ]


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


def cost_sentences(scenario: Scenario, costs: Sequence[Costs]) -> list[str]:
    """What tokens cost at the first and the last place, a line for money and one for energy where known."""
    if scenario.scope == "block" or not costs:
        return []
    ends = [costs[0], costs[-1]] if costs[0].where != costs[-1].where else [costs[0]]
    lines = []
    if scenario.price is not None:
        usd = ", ".join(
            f"${significant(cost.usd_per_million, 3)} per million tokens at {cost.where} "
            f"({significant(cost.plain_usd_per_million, 3)} without speculation)"
            for cost in ends
        )
        lines.append(f"Cost: {usd}, at {scenario.price.text()}.")
    power = scenario.gpu.power
    if power is not None:
        joule = ", ".join(
            f"{significant(cost.joule, 3)} J per token at {cost.where} "
            f"({significant(cost.plain_joule, 3)} without speculation)"
            for cost in ends
        )
        origin = f", scaled from {power.lender} by the power limit" if power.lender else ""
        lines.append(f"Energy: {joule}, +-{power.fit.error:.0%}{origin}.")
    return lines


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
    missing = (
        f"Does not fit: {short.needed_bytes / GIGA:,.1f} GB are needed on each GPU at batch {short.batch}, "
        f"length {short.seq_len} without speculation ({memory_text(short.parts)}), "
        f"{short.usable_bytes / GIGA:,.1f} GB can be used."
    )
    would = [
        f"{change.option} ({change.needed_bytes / GIGA:,.1f} of {change.usable_bytes / GIGA:,.1f} GB)"
        for change in short.changes
    ]
    if not would:
        return f"{missing} No one change that is known would do."
    return f"{missing} What would do, each alone: {'; '.join(would)}."


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
