"""Memory that is used and that is missing, in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, SupportsFloat

from medusa_sim.report.screen import Fact
from medusa_sim.units import GIGA

if TYPE_CHECKING:
    from medusa_sim.plan.shortfall import Shortfall


_LEAST_GB = 0.01
"""A smaller part of memory is shown as less than this."""


def shortfall_text(lacking: Shortfall) -> str:
    """GB needed and what takes them, GB usable, and changes that would fit."""
    missing = missing_text(lacking, f" ({memory_text(lacking.parts)})")
    would = would_fit(lacking)
    if not would:
        return f"{missing} No single change that was tried would fit it."
    return f"{missing} What would do, each alone: {'; '.join(would)}."


def missing_text(lacking: Shortfall, what_for: str = "") -> str:
    """GB needed and GB usable. what_for: in brackets, after the GB needed."""
    return (
        f"Does not fit: batch {lacking.batch} of length {lacking.seq_len:,} needs "
        f"{lacking.needed_bytes / GIGA:,.1f} GB on each GPU without speculation{what_for}; "
        f"{lacking.usable_bytes / GIGA:,.1f} GB are usable."
    )


def would_fit(lacking: Shortfall) -> list[str]:
    """Changes that would each make it fit: `--tp 2 (42.7 of 75.9 GB)`."""
    return [
        f"{change.option} ({change.needed_bytes / GIGA:,.1f} of {change.usable_bytes / GIGA:,.1f} GB)"
        for change in lacking.changes
    ]


def shortfall_facts(lacking: Shortfall) -> Iterator[Fact]:
    """Memory that is needed where a scenario does not fit, and changes that would fit."""
    at = f"batch {lacking.batch} of length {lacking.seq_len:,}"
    for change in would_fit(lacking) or ["no single change that was tried"]:
        yield Fact("Would fit", change)
    yield Fact("Memory use", f"{memory_text(lacking.parts)} for {at}", detail=True)


def memory_text(parts: Iterable[SupportsFloat]) -> str:
    """`weights 13.5, KV cache 0.5, activations 0.1 GB`: `MemoryParts` of one GPU; those of 0 are left out.

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
