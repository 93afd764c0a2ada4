"""Overhead outside kernels: of plain steps, and of those that draft, choose and compact as well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """Of a plain and of a speculative step, us."""

    plain_us: float = 0.0
    speculative_us: float = 0.0

    def step_us(self, candidates: int) -> float:
        """What a step takes outside its kernels."""
        return self.plain_us if candidates == 1 else self.speculative_us


def fitted_gaps(missing_us: Sequence[float]) -> Gaps:
    """Gaps that leave no error at the cells they are fitted to, and 0 where kernels alone take longer.

    missing_us: what kernels lack there of a plain step, and of a speculative one where one was measured.
    """
    plain, *speculative = (max(0.0, us) for us in missing_us)
    return Gaps(plain_us=plain, speculative_us=speculative[0] if speculative else plain)
