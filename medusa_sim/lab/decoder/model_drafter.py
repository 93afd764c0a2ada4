"""Drafting by a smaller model.

`TreeDrafter` serves speculative decoding, SpecInfer, SpecTr and RSD-C: they differ in the tree's branching
and in whether siblings are drawn independently or without replacement. RSD-S (`BeamDrafter`) chooses the
tree itself, by stochastic beam search. At temperature 0 every method takes the most likely children.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.errors import UsageError
from medusa_sim.lab.decoder.candidates import Draft, RejectionRule, TreeShape, draft_of
from medusa_sim.lab.decoder.distributions import Draws, distribution, padded_top
from medusa_sim.lab.decoder.drafter import Drafter
from medusa_sim.lab.decoder.generate import prefill
from medusa_sim.lab.decoder.generation import Generation
from medusa_sim.lab.decoder.model import Llama


class ModelDrafter(Drafter):
    """Drafts with a smaller model at a temperature, whose own cache is always in step with the target's.

    The last level of a tree is drafted but never run. If it is accepted, its token is missing from
    the draft's cache and goes in with the next root.
    """

    _tokens: Tensor
    """(batch, n) of the last trees."""

    def __init__(self, model: Llama, nodes: int, temperature: float) -> None:
        self.model, self.nodes, self.temperature = model, nodes, temperature

    def begin(self, prompts: Sequence[Sequence[int]], capacity: int, draws: Sequence[Draws]) -> None:
        """Runs the prompts through the draft model."""
        self.draws = draws
        self.cache = self.model.new_cache(batch=len(prompts), capacity=capacity + 1)
        prefill(self.model, self.cache, prompts)
        self.missing = [0] * len(prompts)
        self.missing_tokens = torch.zeros(len(prompts), dtype=torch.long, device=self.cache.lengths.device)
        self.fed = 1

    def root_logits(self, roots: Tensor) -> Tensor:
        """Logits (batch, 1, vocab) after the roots (batch,), which become node 0."""
        tokens = roots[:, None]
        missing = torch.tensor(self.missing, device=roots.device)
        if any(self.missing):
            is_missing = missing.bool()
            first = torch.where(is_missing, self.missing_tokens, roots)
            # Where nothing is missing the second token is padding: node 1 overwrites its row.
            second = torch.where(is_missing, roots, torch.zeros_like(roots))
            tokens = torch.stack((first, second), dim=1)
        hidden = self.model(tokens, cache=self.cache)
        rows = torch.arange(roots.shape[0], device=roots.device)
        at_root = hidden[rows, missing]
        self.cache.grow(self.missing)
        self.missing = [0] * len(self.missing)
        self.fed = 1
        return self.model.logits(at_root)[:, None]

    def level_logits(self, tokens: Tensor, mask: Tensor, depths: Tensor) -> Tensor:
        """Logits (batch, m, vocab) of the next level's nodes (batch, m), which follow those fed before."""
        hidden = self.model(tokens, cache=self.cache, tree_mask=mask, depths=depths)
        self.fed += tokens.shape[1]
        return self.model.logits(hidden)

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        """Keeps the accepted rows that the draft model's cache has (see `KVCache.keep`)."""
        kept = [[node for node in path if node < self.fed] for path in paths]
        self.cache.keep(kept)
        lost = [path[len(has)] if len(path) > len(has) else 0 for path, has in zip(paths, kept, strict=True)]
        self.missing = [int(node > 0) for node in lost]
        places = torch.tensor(lost, device=self._tokens.device)[:, None]
        self.missing_tokens = torch.gather(self._tokens, 1, places)[:, 0]


class TreeDrafter(ModelDrafter):
    """`branching[d]` children for every node at depth d.

    The rejection rule says how they are drawn. `recursive`: without replacement (Gumbel top-k, RSD-C). With
    replacement otherwise: [1, 1, ..] by `multi-round` is speculative decoding, any branching SpecInfer,
    [k, 1, 1, ..] by `k-seq` SpecTr.
    """

    def __init__(
        self, model: Llama, branching: Sequence[int], *, temperature: float, rejection_rule: RejectionRule
    ) -> None:
        self.tree = CandidateTree.cartesian(branching)
        if not branching:
            raise UsageError("a draft tree needs at least one level, for example 4 or 2-2-1")
        super().__init__(model, self.tree.candidates, temperature)
        self.branching, self.rejection_rule = tuple(branching), rejection_rule
        self.parents = torch.from_numpy(self.tree.parents).to(model.device)
        self.depths = torch.from_numpy(self.tree.depths).to(model.device)
        self.mask = torch.from_numpy(self.tree.mask).to(model.device)

    def propose(self, roots: Tensor, hidden: Tensor, sequences: Sequence[Generation]) -> Draft:
        """Draws the tree level by level."""
        levels = [roots[:, None]]
        used = [torch.ones_like(levels[0], dtype=torch.bool)]
        distributions = []
        logits = self.root_logits(roots)
        for depth, count in enumerate(self.branching):
            if depth:
                start = self.fed
                end = start + levels[-1].shape[1]
                logits = self.level_logits(levels[-1], self.mask[start:end, :end], self.depths[:end])
            drawn_from = distribution(logits, self.temperature) if self.temperature else None
            children = self._children(logits, drawn_from, count)  # (batch, m, count)
            is_used = (children >= 0) & used[-1][..., None]
            levels.append(children.clamp(min=0).flatten(1))
            used.append(is_used.flatten(1))
            distributions.append(drawn_from)
        tokens, is_used = torch.cat(levels, 1), torch.cat(used, 1)
        self._tokens = tokens
        parents = torch.where(is_used, self.parents, torch.full_like(self.parents, -1))
        return Draft(
            tokens=tokens,
            trees=[TreeShape(each) for each in parents.tolist()],
            depths=self.depths,
            mask=self.mask,
            distributions=_distributions_by_parent(distributions, self.nodes),
            rejection_rule=self.rejection_rule,
        )

    def _children(self, logits: Tensor, drawn_from: Tensor | None, count: int) -> Tensor:
        if drawn_from is None:
            return padded_top(logits, count)[1]
        drawn = [
            draw.tokens_without_replacement(rows, count)
            if self.rejection_rule == "recursive"
            else draw.tokens_with_replacement(rows, count)
            for draw, rows in zip(self.draws, drawn_from, strict=True)
        ]
        return torch.stack(drawn).to(logits.device)


def _distributions_by_parent(distributions: Sequence[Tensor | None], nodes: int) -> Tensor | None:
    """(batch, nodes, vocab): each node's distribution for its children; leaves have none and get zeros."""
    drawn = [each for each in distributions if each is not None]
    if not drawn:
        return None
    joined = torch.cat(drawn, dim=1)
    leaves = joined.new_zeros(joined.shape[0], nodes - joined.shape[1], joined.shape[2])
    return torch.cat((joined, leaves), dim=1)


class BeamDrafter(ModelDrafter):
    """RSD-S: stochastic beam search of `width` beams and `depth` levels (RSD paper, section 3.2.2).

    The perturbed log probabilities only choose the tree and the order of siblings; acceptance uses
    each parent's own distribution.
    """

    def __init__(self, model: Llama, *, width: int, depth: int, temperature: float) -> None:
        if width < 1 or depth < 1:
            raise UsageError(f"beam {width}x{depth}: width and depth must be at least 1")
        super().__init__(model, 1 + width * depth, temperature)
        self.width, self.depth = width, depth

    def propose(self, roots: Tensor, hidden: Tensor, sequences: Sequence[Generation]) -> Draft:
        """Grows the beams level by level."""
        batch, device = roots.shape[0], roots.device
        tokens, parents = roots[:, None], torch.full_like(roots[:, None], -1)
        log_p = torch.zeros(batch, 1, dtype=torch.float64)
        keys = torch.zeros(batch, 1, dtype=torch.float64)
        distributions: list[Tensor | None] = []
        logits = self.root_logits(roots)
        for level in range(self.depth):
            first = tokens.shape[1] - keys.shape[1]
            if level:
                draft = draft_of(tokens, parents)
                logits = self.level_logits(tokens[:, first:], draft.mask[:, first:], draft.depths)
            # At temperature 0 this is plain beam search on the draft's own distribution.
            drawn_from = distribution(logits, self.temperature or 1.0)
            distributions.append(drawn_from if self.temperature else None)
            reach = log_p[..., None] + drawn_from.log()
            perturbed = self._perturbed(reach, keys) if self.temperature else reach
            perturbed = perturbed.masked_fill(keys.isneginf()[..., None], -torch.inf).flatten(1)
            keys, chosen = padded_top(perturbed, self.width)
            chosen = chosen.clamp(min=0)  # of dead beams
            beam, token = chosen // drawn_from.shape[-1], chosen % drawn_from.shape[-1]
            alive = keys.isfinite()
            log_p = torch.gather(reach.flatten(1), 1, chosen)
            parents = torch.cat((parents, torch.where(alive, first + beam, -1).to(device)), 1)
            tokens = torch.cat((tokens, token.to(device)), 1)
        self._tokens = tokens
        return draft_of(tokens, parents, _distributions_by_parent(distributions, self.nodes))

    def _perturbed(self, reach: Tensor, keys: Tensor) -> Tensor:
        """Gumbel keys of all children, their maximum per beam being the beam's own key.

        reach: (batch, beams, vocab) log probabilities of the children; keys: (batch, beams).
        Kool et al. 2019 (stochastic beams), eq. 23, in the stable form of their appendix B.3.
        """
        noise = torch.stack([draw.gumbel(rows.shape) for draw, rows in zip(self.draws, reach, strict=True)])
        raw = reach + noise
        top = raw.amax(-1, keepdim=True)
        gap = torch.log1p(-torch.exp(raw - top).clamp(max=1.0))
        v = keys[..., None] - raw + gap
        shifted = keys[..., None] - v.clamp(min=0.0) - torch.log1p(torch.exp(-v.abs()))
        return torch.where(raw.isfinite(), shifted, torch.full_like(shifted, -torch.inf))
