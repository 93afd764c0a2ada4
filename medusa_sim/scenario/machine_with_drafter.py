"""A machine with its drafter: the acceptance of the drafts, and every way of drafting."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from medusa_sim.acceptance.profile import CURVE_HEADS, AcceptanceProfile
from medusa_sim.arrays import IntArray
from medusa_sim.errors import CoverageError, check_kind
from medusa_sim.file_types import FILES
from medusa_sim.scenario.acceptance import resolve
from medusa_sim.scenario.adjusted_acceptance import AdjustedAcceptance, adjust
from medusa_sim.scenario.declare import WHOLE
from medusa_sim.scenario.defaults import CANDIDATES_MAX
from medusa_sim.scenario.draft_options import Drafting, DraftOption, draft_options
from medusa_sim.scenario.machine import Machine, loaded_runtime
from medusa_sim.specs.model import Model
from medusa_sim.specs.models import load_model
from medusa_sim.specs.variants import with_dtypes
from medusa_sim.step.drafter.base import DrafterParts


class MachineWithDrafter(Machine):
    """What of a scenario does not depend on requests: `Scenario` adds these."""

    @cached_property
    def measured_acceptance(self) -> AcceptanceProfile:
        """Acceptance as measured, before a workload, lengths, a match rate or p-min change it."""
        asked = self.arguments
        return resolve(asked.acceptance, self.drafter_class, self.model.name, asked.data_dir)

    @cached_property
    def _adjusted(self) -> AdjustedAcceptance:
        return adjust(self.measured_acceptance, self.arguments, self.drafter_class, self.runtime)

    @property
    def match_rate(self) -> float:
        """Share of the steps that verify drafts."""
        return self._adjusted.match_rate

    @property
    def sure_shares(self) -> tuple[float, ...]:
        """Shares of drafts that are run, given those before, under p-min; empty without."""
        return self._adjusted.sure_shares

    @property
    def profile(self) -> AcceptanceProfile:
        """Acceptance over all steps, with all that is asked (`adjusted_acceptance.adjust`)."""
        return self._adjusted.profile

    @cached_property
    def drafting(self) -> Drafting:
        """The drafter, before its depth is chosen."""
        asked, heads = self.arguments, self.profile.heads
        draft, launched = asked.draft_model, asked.draft_runtime
        if draft is not None:
            draft = draft if isinstance(draft, Model) else load_model(draft)
            # a local engine's draft comes in a file like the target's, or in its own
            own_file = not self.runtime.local or draft.weight_dtype in FILES
            draft = with_dtypes(draft, asked.dtype, None if own_file else asked.weight_dtype)
        return Drafting(
            method=self.drafter_class.name,
            parts=DrafterParts(
                heads=asked.heads or (CURVE_HEADS if heads is None else heads.heads),
                draft=draft,
                draft_runtime=None if launched is None else loaded_runtime(launched, asked.data_dir),
                draft_vocab=asked.draft_vocab,
                modules=max(self.model.mtp_layers, 1),
            ),
            max_drafts=asked.max_drafts,
        )

    @property
    def depth(self) -> int:
        """The longest path of drafts that may be run; cache compaction is sized for it."""
        heads, parts = self.profile.heads, self.drafting.parts
        if heads is None:
            return parts.heads
        trained = [parts.heads] if self.drafter_class.unit == "head" else []
        return min(heads.heads, self.drafting.max_drafts, *trained)

    @property
    def guessed_from(self) -> int | None:
        """The first draft whose acceptance is a guess (T9); None where no such draft may be run."""
        measured = self.profile.measured_drafts
        return None if measured is None or self.depth <= measured else measured + 1

    @property
    def chain_only(self) -> bool:
        """Whether chains only are searched: as asked, else where trees cannot be verified."""
        if self.arguments.chain_only is not None:
            return self.arguments.chain_only
        # a curve of tree sizes knows no chains, and the paper's block no engine
        is_limited = self.runtime.chain_only or self.model.keeps_states
        return is_limited and self.profile.heads is not None and self.scope == "model"

    @property
    def has_trees(self) -> bool:
        """Whether trees are searched too."""
        heads = self.profile.heads
        return not self.chain_only and (heads is None or heads.ranks > 1)

    @property
    def where_trees_run(self) -> str:
        """The way to ask for trees where the runtime runs chains only; empty where it runs both."""
        heads = self.profile.heads
        if not (self.runtime.chain_only and self.chain_only) or heads is None or heads.ranks == 1:
            return ""
        return (
            f"{self.runtime.name} has no tree attention: take trees with --runtime cuda-graph (kernels "
            "alone) or --trees"
        )

    @cached_property
    def _options(self) -> dict[int, tuple[DraftOption, ...]]:
        """Ways of drafting that were asked for, by the largest count."""
        return {}

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
        """The counts that some way of drafting has, in the order given; 1 is plain decoding.

        Raises CoverageError where counts above 1 were asked for and none is covered.
        """
        asked = np.asarray(candidates, dtype=np.int64)
        largest = int(max(asked.max(initial=2), 2))
        known = np.concatenate([[1], *(option.candidates for option in self.options(largest))])
        kept: IntArray = asked[np.isin(asked, known)]
        if (asked > 1).any() and not (kept > 1).any():
            largest = max(int(option.candidates[-1]) for option in self.options())
            raise CoverageError(
                f"acceptance {self.profile.name} with drafter {self.drafting.method} covers candidates "
                f"2..{largest}, given {int(asked[asked > 1].min())} and more: lower --candidates; "
                f"{self.where_trees_run or 'or choose a profile measured further out'}"
            )
        return kept
