"""What a policy believes that steps cost: its engine's table, measured at one context, or the right one."""

from __future__ import annotations

from dataclasses import dataclass
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

    @cached_property
    def measured(self) -> FloatArray:
        """(K, b) seconds at that context."""
        return self.table.at(0.0 if self.context is None else self.context)

    def of(self, requests: int, length: float) -> FloatArray:
        """(K,) seconds for so many requests, of so many committed tokens in the mean."""
        if self.context is None:
            return self.table.step_s[:, requests, self.table.nearest(length)]
        return self.measured[:, requests]
