"""What a policy believes that steps cost: its engine's table, measured at one context, or the right one."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from medusa_sim.arrays import FloatArray
from medusa_sim.load.step_table import StepTable

VLLM_CONTEXT = 8192.0
"""Tokens of context at which vLLM profiles the steps of its adaptive verification
(`VLLM_ADAPTIVE_VERIFICATION_PROFILE_CONTEXT_LEN`; its page adaptive_verification.md)."""


@dataclass(frozen=True, eq=False)
class Costs:
    """Seconds of steps. context: committed tokens of a request when they were measured; None: as they are."""

    table: StepTable
    context: float | None = None
    _listed: dict[tuple[int, int], list[float]] = field(default_factory=dict, repr=False)

    @cached_property
    def measured(self) -> FloatArray:
        """(K, b) seconds at that context."""
        return self.table.at(0.0 if self.context is None else self.context)

    def place(self, length: float) -> int:
        """What of a length in the mean it depends on: the nearest of the table's, or nothing."""
        return self.table.nearest(length) if self.context is None else 0

    def of(self, requests: int, length: float) -> FloatArray:
        """(K,) seconds for so many requests, of so many committed tokens in the mean."""
        if self.context is None:
            return self.table.step_s[:, requests, self.place(length)]
        return self.measured[:, requests]

    def listed(self, requests: int, length: float) -> list[float]:
        """`of`, looked up from the second time on."""
        key = requests, self.place(length)
        found = self._listed.get(key)
        if found is None:
            found = self._listed[key] = self.of(requests, length).tolist()
        return found
