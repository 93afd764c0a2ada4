"""Ways of drafting to choose from: what each costs to draft and how many tokens it gives.

A `DraftOption` is a drafter with every candidate count that makes sense for it. Medusa heads: for each
number of heads run, the optimal tree of every size. Chain drafters: for each depth d a chain of d + 1
candidates, since each further draft costs a pass. Layer and model drafters whose profile knows several
ranks: for each depth and width (nodes of a level that have children, and children of each) the optimal trees.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from medusa_sim.acceptance.heads import (
    HeadAccuracy,
    best_chain,
    chain_tokens_per_step,
    optimal_order,
    token_errors,
)
from medusa_sim.acceptance.profile import CURVE_HEADS, AcceptanceProfile
from medusa_sim.acceptance.shaped import ShapedAcceptance
from medusa_sim.acceptance.tree import CandidateTree, Path, TreeOrder
from medusa_sim.arrays import Band, FloatArray, Halves, IntArray
from medusa_sim.engines.runtime import Runtime, load_runtime
from medusa_sim.errors import UsageError
from medusa_sim.file_types import FILES
from medusa_sim.models.model import Model
from medusa_sim.models.named import load_model
from medusa_sim.models.variants import with_dtypes
from medusa_sim.scenario.arguments import Arguments
from medusa_sim.scenario.defaults import CANDIDATES_MAX, LONGEST_DRAFT, MAX_DRAFTS
from medusa_sim.serving.request_steps import chain_chances, chances_of_mean
from medusa_sim.step.drafter import drafter_class
from medusa_sim.step.drafter.base import Drafter, DrafterParts

WIDTHS = (1, 2, 4, 8)
"""Children kept a level that are tried for layer and model drafters (SGLang's eagle-topk)."""


_LEAST = 1e-12
"""Least accuracy of a draft, so that factors stay finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """A drafter, before its depth is chosen.

    method: name of a registered drafter. parts: what it is made of. max_drafts: longest draft.
    """

    method: str = "medusa"
    parts: DrafterParts = field(default_factory=DrafterParts)
    max_drafts: int = MAX_DRAFTS

    def __post_init__(self) -> None:
        if not 1 <= self.max_drafts <= LONGEST_DRAFT:
            raise UsageError(
                f"draft length {self.max_drafts}: whole numbers from 1 to {LONGEST_DRAFT} are allowed"
            )
        if not 1 <= self.parts.heads <= LONGEST_DRAFT:
            raise UsageError(f"heads {self.parts.heads}: whole numbers from 1 to {LONGEST_DRAFT} are allowed")
        self.drafter_class.check_parts(self.parts)

    @property
    def drafter_class(self) -> type[Drafter]:
        """The registered drafter."""
        return drafter_class(self.method)

    def lengths(self, longest: int) -> tuple[int, ...]:
        """Draft lengths that it can run, up to `longest`."""
        return self.drafter_class.lengths(self.parts, longest)

    def drafter(self, depth: int, width: int = 1) -> Drafter:
        """The drafter for draft length `depth`, `width` children a level."""
        return self.drafter_class.sized(self.parts, depth, width)


def drafting_asked(
    asked: Arguments, drafter: type[Drafter], profile: AcceptanceProfile, target: Model, runtime: Runtime
) -> Drafting:
    """The drafter of a scenario. profile: its acceptance, which says how many heads there are.

    A draft model has the formats asked for, but a local engine's file has its own.
    """
    draft, launched, heads = asked.draft_model, asked.draft_runtime, profile.heads
    if draft is not None:
        draft = draft if isinstance(draft, Model) else load_model(draft)
        own_file = not runtime.local or draft.weight_dtype in FILES
        draft = with_dtypes(draft, asked.dtype, None if own_file else asked.weight_dtype)
    if isinstance(launched, str):
        launched = load_runtime(launched, asked.data_dir)
    return Drafting(
        method=drafter.name,
        parts=DrafterParts(
            heads=asked.heads or (CURVE_HEADS if heads is None else heads.depth),
            draft=draft,
            draft_runtime=launched,
            draft_vocab=asked.draft_vocab,
            modules=max(target.mtp_layers, 1),
        ),
        max_drafts=asked.max_drafts,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class DraftOption:
    """One drafter with its candidate counts.

    depth: draft length (Medusa: heads run); width: children kept a level. candidates: counts from 2
    up, root included; tokens_per_step: of each. order: nodes in the order in which a growing tree takes
    them, None where the profile is a curve that knows no shapes. chain: no level has two nodes.
    """

    drafter: Drafter
    depth: int
    width: int
    chain: bool
    candidates: IntArray
    tokens_per_step: FloatArray
    profile: AcceptanceProfile
    heads: HeadAccuracy | None = None
    order: TreeOrder | None = None

    @cached_property
    def emission_chances(self) -> FloatArray:
        """(counts, X) probabilities that a step emits at least 1, 2, ... X tokens, of each count."""
        return self.emission_chances_if(self.candidates, 1.0)

    def emission_chances_if(self, candidates: IntArray | int, factor: FloatArray | float) -> FloatArray:
        """(..., X) the same of counts if every accuracy were `factor` times what it is; they broadcast.

        The drafts of a level are accepted one at most, so that the factor of a head stops where its ranks
        are right together in every step. Another scheme or workload accepts more or less on all levels alike.
        A curve knows no levels, and stands for a chain; there the accepted drafts scale.
        """
        counts, factors = np.asarray(candidates), np.asarray(factor, dtype=np.float64)
        if self.order is None or self.heads is None:
            longest = np.minimum(counts, self.depth + 1.0)
            accepted = self.tokens_per_step[np.searchsorted(self.candidates, counts)] - 1.0
            return chain_chances(np.minimum(1.0 + factors * accepted, longest), longest)
        levels = self._gains_of_levels[counts - 1] * np.minimum(
            factors[..., None], self._most_factors
        ).cumprod(axis=-1)
        measured = np.concatenate([np.ones((*levels.shape[:-1], 1)), levels], axis=-1)
        if self.profile.ratio == 1.0:
            return measured
        return chances_of_mean(self.profile.adjusted(measured.sum(axis=-1), counts), measured)

    def tree(self, candidates: int) -> CandidateTree | None:
        """The tree of that many candidates; None where shapes are unknown."""
        return None if self.order is None else self.order.tree(candidates)

    def is_chain(self, candidates: int) -> bool:
        """Whether the tree of that many candidates has one path."""
        tree = self.tree(candidates)
        return self.chain or (tree is not None and tree.depth == candidates - 1)

    def paths(self, candidates: int) -> tuple[Path, ...] | None:
        """Paths of the tree of that many candidates, root implied; None where shapes are unknown."""
        tree = self.tree(candidates)
        return None if tree is None else tree.paths

    def tokens(self, candidates: int) -> float:
        """Tokens per step at one of the counts."""
        return float(self.tokens_per_step[np.searchsorted(self.candidates, candidates)])

    @cached_property
    def token_band(self) -> Band:
        """The 80 % interval of the tokens per step, of each count.

        Sample sizes, the profile's own model error and the guess of drafts that it was not measured on; never
        above one token a candidate, nor above the depth and the target's own token.
        """
        counts = self.candidates
        if self.order is None or self.heads is None:
            return self.profile.band(counts)
        model = self.profile.model
        assert isinstance(model, ShapedAcceptance)  # noqa: S101  # it has heads
        errors = token_errors(self.order.paths, self.order.gains, self.heads)
        value, drafts = self.order.tokens_per_step[counts - 1], np.minimum(counts - 1, self.depth)
        low, high = model.band_of(value, errors[counts - 1], drafts)
        return Band(self.profile.adjusted(low, counts), self.profile.adjusted(high, counts))

    @cached_property
    def token_halves(self) -> Halves:
        """Half-widths of the tokens per step."""
        return Halves.within(self.token_band.low, self.tokens_per_step, self.token_band.high)

    def drafts(self, candidates: int) -> int:
        """Draft length that the tree of that many candidates uses; heads beyond it need not run."""
        tree = self.tree(candidates)
        return self.depth if tree is None else max(tree.depth, 1)

    def scaled_tokens(self, candidates: int, factor: float) -> float:
        """Tokens per step of a count if every accuracy were `factor` times what it is."""
        return float(self.emission_chances_if(candidates, factor).sum())

    def most_factor(self, candidates: int) -> float:
        """The factor on every accuracy beyond which no draft of a count is accepted more often."""
        if self.order is None or self.heads is None:
            longest = min(candidates, self.depth + 1.0)
            return (longest - 1.0) / max(self.tokens(candidates) - 1.0, _LEAST)
        return float(self._most_factors.max())

    @cached_property
    def _most_factors(self) -> FloatArray:
        """(heads,) the factor at which a head's total probability reaches 1."""
        assert self.heads is not None  # noqa: S101  # a curve knows none, and scales otherwise
        return np.asarray(1.0 / np.maximum(self.heads.conditional().sum(axis=1), _LEAST))

    @cached_property
    def _gains_of_levels(self) -> FloatArray:
        """(nodes + 1, heads) tokens that each level of a tree of 0, 1, ... nodes adds."""
        assert self.order is not None  # noqa: S101  # likewise
        paths, gains = self.order.paths, self.order.gains
        by_level = np.zeros((len(paths) + 1, self._most_factors.size))
        by_level[np.arange(1, len(paths) + 1), [len(path) - 1 for path in paths]] = gains
        return np.asarray(by_level.cumsum(axis=0))

    def only(self, candidates: IntArray) -> DraftOption | None:
        """The option with the listed counts only; None if it has none of them."""
        kept = np.isin(self.candidates, candidates)
        if not kept.any():
            return None
        return replace(self, candidates=self.candidates[kept], tokens_per_step=self.tokens_per_step[kept])


def draft_options(
    drafting: Drafting,
    profile: AcceptanceProfile,
    *,
    candidates_max: int = CANDIDATES_MAX,
    chain_only: bool = False,
) -> tuple[DraftOption, ...]:
    """Every way of drafting that the profile describes, trees first, then chains.

    Raises UsageError where the profile cannot describe the drafter: a curve of tree sizes says nothing
    of chains or of drafters that pay for each draft.
    """
    if candidates_max < 2:
        raise UsageError(f"candidates up to {candidates_max}: at least 2 are needed to speculate")
    heads = profile.heads
    if heads is None:
        return (_curve_option(drafting, profile, candidates_max, chain_only=chain_only),)
    trained = [drafting.parts.heads] if drafting.drafter_class.unit == "head" else []
    depth_max = min(heads.depth, drafting.max_drafts, *trained)
    options = []
    if not chain_only and heads.ranks > 1:
        for depth in drafting.lengths(depth_max):
            options += _tree_options(drafting, profile, heads.first(depth), candidates_max)
    for depth in drafting.lengths(min(depth_max, candidates_max - 1)):
        first = heads.first(depth)
        gains = np.diff(chain_tokens_per_step(first))
        options.append(
            _shaped_option(drafting, profile, first, 1, TreeOrder(best_chain(first, depth).paths, gains))
        )
    return tuple(options)


def _curve_option(
    drafting: Drafting, profile: AcceptanceProfile, candidates_max: int, *, chain_only: bool
) -> DraftOption:
    if chain_only:
        raise UsageError(
            f"acceptance {profile.name} is a curve of tree sizes and knows no chains; give accuracies per "
            "head and rank, or per position, with --acceptance FILE"
        )
    if drafting.drafter_class.pays_per_draft:
        raise UsageError(
            f"acceptance {profile.name} is a curve of tree sizes; drafter {drafting.method} pays for each "
            "draft in a row and needs a rate per position: --acceptance FILE, or one rate such as 0.7"
        )
    counts = np.arange(2, min(candidates_max, profile.candidates_max) + 1)
    return DraftOption(
        drafter=drafting.drafter(drafting.parts.heads),
        depth=drafting.parts.heads,
        width=0,
        chain=False,
        candidates=counts,
        tokens_per_step=profile.tokens_per_step(counts),
        profile=profile,
    )


def _tree_options(
    drafting: Drafting, profile: AcceptanceProfile, heads: HeadAccuracy, candidates_max: int
) -> list[DraftOption]:
    """Medusa heads and n-grams: one option a depth. Drafters that run by level: one for each width too."""
    if not drafting.drafter_class.has_levels:
        return [_shaped_option(drafting, profile, heads, 0, optimal_order(heads, candidates_max))]
    options = []
    for width in (w for w in WIDTHS[1:] if w <= heads.ranks):
        narrow = replace(heads, accuracy=heads.accuracy[:, :width])
        order = optimal_order(narrow, candidates_max, width)
        options.append(_shaped_option(drafting, profile, narrow, width, order))
    return options


def _shaped_option(
    drafting: Drafting, profile: AcceptanceProfile, heads: HeadAccuracy, width: int, order: TreeOrder
) -> DraftOption:
    """Trees of every size in an order; width 1: only the chain of all its nodes."""
    counts = np.arange(2, order.candidates_max + 1)[-1 if width == 1 else 0 :]
    return DraftOption(
        drafter=drafting.drafter(heads.depth, max(width, 1)),
        depth=heads.depth,
        width=width,
        chain=width == 1,
        candidates=counts,
        tokens_per_step=profile.adjusted(order.tokens_per_step[counts - 1], counts),
        profile=profile,
        heads=heads,
        order=order,
    )
