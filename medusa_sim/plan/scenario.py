"""The one place where a set-up is put together: GPU, model, runtime, drafter, acceptance, latency.

Names, files or objects go in; what comes out is loaded, checked and the same for the command line, the app
and Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from medusa_sim.arrays import IntArray
from medusa_sim.errors import CoverageError, check_kind
from medusa_sim.plan.arguments import ARGUMENTS, WHOLE, Arguments, check, takes
from medusa_sim.plan.defaults import CANDIDATES_MAX
from medusa_sim.plan.doubts import doubts
from medusa_sim.plan.draft_options import DraftOption, draft_options
from medusa_sim.plan.resolved import Resolved
from medusa_sim.specs.runtime import Runtime
from medusa_sim.step.drafter.ngram import FreeDrafter
from medusa_sim.step.step import Setting

SEVERAL_GPUS_WIDEN = 1.5
"""Bands of an engine's terms on several GPUs, which nobody measured apart: as between versions."""


class Scenario(Resolved):
    """What is run where, before batch, length and count are chosen. Never changed once made.

    Its arguments are those of `plan.arguments.Arguments`, all by name.

    Raises SpecError, DataError or UsageError naming what is unknown or does not fit together.
    """

    @takes(Arguments)
    def __init__(self, **given: Any) -> None:
        check(given, ARGUMENTS, "scenario argument")
        super().__init__(Arguments(**given))
        self._options: dict[int, tuple[DraftOption, ...]] = {}

    @property
    def changed(self) -> dict[str, Any]:
        """The arguments that differ from the defaults; GPU, model and drafter always."""
        return self.arguments.changed

    def __repr__(self) -> str:
        """The arguments that are not the defaults."""
        told = ", ".join(f"{name}={value!r}" for name, value in self.changed.items())
        return f"Scenario({told})"

    def but(self, **changes: Any) -> Scenario:
        """The same scenario with some arguments changed. Raises UsageError for an unknown argument."""
        check(changes, ARGUMENTS, "scenario argument")
        return type(self)(**{**self.arguments.values, **changes})

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the scenario rests on that was not measured for it, a sentence each."""
        return doubts(self)

    @cached_property
    def setting(self) -> Setting:
        """What every step shares; plain decoding until an option's drafter is put in."""
        return Setting(
            latency=self.latency,
            model=self.model,
            runtime=self._launched,
            scope=self.scope,
            drafter=FreeDrafter(),
            method=self.drafting.method,
            depth=self.depth,
            match_rate=self.match_rate,
            parallel=self.parallel,
            overlap=self.overlap,
        )

    @property
    def _launched(self) -> Runtime:
        """The runtime, with wider bands where its engine was measured on one GPU alone."""
        engine = self.runtime.engine
        if engine is None or self.parallel.tp == 1:
            return self.runtime
        return replace(self.runtime, engine=engine.widen_bands(SEVERAL_GPUS_WIDEN))

    def options(self, candidates_max: int = CANDIDATES_MAX) -> tuple[DraftOption, ...]:
        """Every way of drafting that the profile describes, up to a count.

        Raises UsageError where the profile cannot describe the drafter.
        """
        check_kind("candidates_max", candidates_max, WHOLE.wanted, WHOLE.allowed)
        if candidates_max not in self._options:
            self._options[candidates_max] = draft_options(
                self.drafting, self.profile, candidates_max=candidates_max, chain_only=self.chain_only
            )
        return self._options[candidates_max]

    def covered(self, candidates: Sequence[int] | IntArray) -> IntArray:
        """Those of the counts that some way of drafting has, in their order; 1 is plain decoding.

        Raises CoverageError where counts above 1 were asked for and none is covered.
        """
        asked = np.asarray(candidates, dtype=np.int64)
        largest = int(max(asked.max(initial=2), 2))
        known = np.concatenate([[1], *(option.candidates for option in self.options(largest))])
        kept: IntArray = asked[np.isin(asked, known)]
        if (asked > 1).any() and not (kept > 1).any():
            raise CoverageError(
                f"acceptance {self.profile.name} with drafter {self.drafting.method} covers candidates "
                f"2..{self._largest()}, given {int(asked[asked > 1].min())} and more: lower --candidates; "
                f"{self.where_trees_run or 'or choose a profile measured further out'}"
            )
        return kept

    def _largest(self) -> int:
        return max(int(option.candidates[-1]) for option in self.options())
