"""Drafting by a smaller model.

One drafter serves speculative decoding, SpecInfer, SpecTr and RSD-C: they differ in the tree's
branching and in whether siblings are drawn independently or without replacement. RSD-S chooses the
tree itself, by stochastic beam search. At temperature 0 every method takes the most likely children.

Drafters without a model of their own: Medusa heads over a fixed candidate tree, and prompt lookup.

The heads are those of the Medusa paper (sections 2.1.1 and 2.1.2); prompt lookup finds the text in itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.arrays import IntArray
from medusa_sim.errors import UsageError
from medusa_sim.lab.decoder.accept import Draft, Draws, Rule, TreeShape, draft_of, law, padded_top
from medusa_sim.lab.decoder.arguments import Match
from medusa_sim.lab.decoder.generate import Drafter, Generation, prefill
from medusa_sim.lab.decoder.heads import MedusaHeads
from medusa_sim.lab.decoder.model import Llama


class MedusaDrafter(Drafter):
    """Node (r_0, ..., r_k) of the tree carries rank r_k of head k at the root's hidden state."""

    def __init__(self, model: Llama, heads: MedusaHeads, tree: CandidateTree) -> None:
        check_tree(tree, heads=heads.count, vocab=model.config.vocab_size)
        self.model, self.heads, self.tree, self.nodes = model, heads, tree, tree.candidates
        device = model.device
        self.shape = TreeShape(tree.parents.tolist())
        self.depths = torch.from_numpy(tree.depths).to(device)
        self.mask = torch.from_numpy(tree.mask).to(device)
        # Where a node's token lies among (heads x ranks) guesses.
        self._guess = (self.depths[1:] - 1) * tree.ranks_used + torch.from_numpy(tree.ranks).to(device)[1:]

    def propose(self, roots: Tensor, hidden: Tensor, sequences: Sequence[Generation]) -> Draft:
        """The tree filled with the heads' best guesses."""
        tokens = roots.unsqueeze(1)
        if self.nodes > 1:
            logits = self.heads(hidden, self.model.lm_head, self.tree.depth)  # (heads, batch, vocab)
            best = logits.topk(self.tree.ranks_used, dim=-1).indices.transpose(0, 1).flatten(1)
            tokens = torch.cat((tokens, best.index_select(1, self._guess)), dim=1)
        return Draft(tokens=tokens, parents=self.shape, depths=self.depths, mask=self.mask)


def check_tree(tree: CandidateTree, *, heads: int, vocab: int) -> None:
    """Raises UsageError for a tree deeper than there are heads or wider than the vocabulary."""
    if tree.depth > heads:
        raise UsageError(
            f"the tree is {tree.depth} deep, the checkpoint has {heads} Medusa heads; "
            f"use a tree of depth {heads} or less (medusa-sim tree) or another checkpoint"
        )
    if tree.ranks_used > vocab:
        raise UsageError(f"the tree uses rank {tree.ranks_used - 1}, the vocabulary has {vocab} tokens")


class NgramDrafter(Drafter):
    """What followed an earlier copy of the text's last n tokens, longest n first.

    `match`: which copy. The earliest (as transformers has it) has the longer continuation, the latest
    may be cut off by the end of the text.
    """

    def __init__(self, *, length: int, ngram_max: int = 3, match: Match = "earliest") -> None:
        if length < 1 or ngram_max < 1:
            raise UsageError(f"n-gram length {length} and size {ngram_max} must be at least 1")
        if match not in get_args(Match):
            raise UsageError(f"match {match!r}: earliest or latest is needed")
        self.length, self.ngram_max, self.match = length, ngram_max, match
        self.tree, self.nodes = CandidateTree.chain(length), length + 1
        self._texts: list[IntArray] = []
        self._lengths: list[int] = []

    def begin(self, prompts: Sequence[Sequence[int]], capacity: int, draws: Sequence[Draws]) -> None:
        """Copies the prompts into arrays that the texts grow in."""
        self._texts = [np.zeros(capacity, dtype=np.int64) for _ in prompts]
        for text, prompt in zip(self._texts, prompts, strict=True):
            text[: len(prompt)] = prompt
        self._lengths = [len(prompt) for prompt in prompts]

    def propose(self, roots: Tensor, hidden: Tensor, sequences: Sequence[Generation]) -> Draft:
        """A chain per sequence; unused nodes where nothing was found."""
        matches = [
            continuation(self._text(b, sequence), self.length, self.ngram_max, self.match)
            for b, sequence in enumerate(sequences)
        ]
        for sequence, drafts in zip(sequences, matches, strict=True):
            sequence.found_lengths.append(len(drafts))
        device = roots.device
        drafted = torch.tensor([f + [0] * (self.length - len(f)) for f in matches], device=device)
        lengths = torch.tensor([len(f) for f in matches], device=device)
        order = torch.arange(self.length + 1, device=device)
        parents = torch.where(order <= lengths[:, None], order - 1, torch.full_like(order, -1))
        mask = torch.from_numpy(self.tree.mask).to(device)
        return Draft(tokens=torch.cat((roots[:, None], drafted), 1), parents=parents, depths=order, mask=mask)

    def _text(self, b: int, sequence: Generation) -> IntArray:
        """Prompt and new tokens of a sequence, those copied that came since the last step."""
        known = self._lengths[b] - len(sequence.prompt)
        new = sequence.token_ids[known:]
        text, length = self._texts[b], self._lengths[b]
        text[length : length + len(new)] = new
        self._lengths[b] += len(new)
        return text[: self._lengths[b]]


def continuation(
    text: Sequence[int] | IntArray, length: int, ngram_max: int, match: Match = "earliest"
) -> list[int]:
    """Up to `length` tokens that followed an earlier copy of the last n tokens, largest n first."""
    tokens = np.asarray(text, dtype=np.int64)
    for size in range(min(ngram_max, len(tokens) - 1), 0, -1):
        last = len(tokens) - size  # where the pattern itself starts
        is_copy = tokens[:last] == tokens[last]
        for i in range(1, size):
            is_copy &= tokens[i : last + i] == tokens[last + i]
        first = int(is_copy.argmax()) if match == "earliest" else last - 1 - int(is_copy[::-1].argmax())
        if is_copy[first]:
            return [int(token) for token in tokens[first + size : first + size + length]]
    return []


class CachedDraft:
    """A draft model with its own cache, always in step with the target's.

    The last level of a tree is drafted but never run. If it is accepted, its token is missing from
    the draft's cache and goes in with the next root.
    """

    def __init__(self, model: Llama) -> None:
        self.model = model

    def begin(self, prompts: Sequence[Sequence[int]], capacity: int) -> None:
        """Runs the prompts."""
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
        hidden = self.model(tokens, cache=self.cache, tree_mask=mask, depths=depths, offset=self.fed)
        self.fed += tokens.shape[1]
        return self.model.logits(hidden)

    def commit(self, tokens: Tensor, paths: Sequence[Sequence[int]]) -> None:
        """Keeps the accepted rows it has; tokens: (batch, n) of the tree, paths: see `KVCache.keep`."""
        kept = [[node for node in path if node < self.fed] for path in paths]
        self.cache.keep(kept)
        lost = [path[len(has)] if len(path) > len(has) else 0 for path, has in zip(paths, kept, strict=True)]
        self.missing = [int(node > 0) for node in lost]
        self.missing_tokens = torch.gather(tokens, 1, torch.tensor(lost, device=tokens.device)[:, None])[:, 0]


class ModelDrafter(Drafter):
    """Drafts with a smaller model at a temperature, whose cache follows the accepted text."""

    _tokens: Tensor
    """(batch, n) of the last trees."""

    def __init__(self, model: Llama, nodes: int, temperature: float) -> None:
        self.draft_model, self.nodes, self.temperature = CachedDraft(model), nodes, temperature

    def begin(self, prompts: Sequence[Sequence[int]], capacity: int, draws: Sequence[Draws]) -> None:
        """Runs the prompts through the draft model."""
        self.draws = draws
        self.draft_model.begin(prompts, capacity)

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        """Brings the draft model's cache up to the accepted text."""
        self.draft_model.commit(self._tokens, paths)


class TreeDrafter(ModelDrafter):
    """`branching[d]` children for every node at depth d.

    with `independent` drawn with replacement, else without (Gumbel top-k, RSD-C). [1, 1, ..] is
    speculative decoding, [k, 1, 1, ..] with rule `k-seq` SpecTr, any branching with `multi-round` SpecInfer.
    """

    def __init__(
        self, model: Llama, branching: Sequence[int], *, temperature: float, independent: bool, rule: Rule
    ) -> None:
        self.tree = CandidateTree.cartesian(branching)
        if not branching:
            raise UsageError("a draft tree needs at least one level, for example 4 or 2-2-1")
        super().__init__(model, self.tree.candidates, temperature)
        self.branching, self.independent, self.rule = tuple(branching), independent, rule
        self.parents = torch.from_numpy(self.tree.parents).to(model.device)
        self.depths = torch.from_numpy(self.tree.depths).to(model.device)
        self.mask = torch.from_numpy(self.tree.mask).to(model.device)

    def propose(self, roots: Tensor, hidden: Tensor, sequences: Sequence[Generation]) -> Draft:
        """Draws the tree level by level."""
        levels = [roots[:, None]]
        used = [torch.ones_like(levels[0], dtype=torch.bool)]
        laws = []
        logits = self.draft_model.root_logits(roots)
        for depth, count in enumerate(self.branching):
            if depth:
                start = self.draft_model.fed
                end = start + levels[-1].shape[1]
                logits = self.draft_model.level_logits(
                    levels[-1], self.mask[start:end, :end], self.depths[:end]
                )
            drawn_from = law(logits, self.temperature) if self.temperature else None
            children = self._children(logits, drawn_from, count)  # (batch, m, count)
            is_used = (children >= 0) & used[-1][..., None]
            levels.append(children.clamp(min=0).flatten(1))
            used.append(is_used.flatten(1))
            laws.append(drawn_from)
        tokens, is_used = torch.cat(levels, 1), torch.cat(used, 1)
        self._tokens = tokens
        parents = torch.where(is_used, self.parents, torch.full_like(self.parents, -1))
        return Draft(
            tokens=tokens,
            parents=parents,
            depths=self.depths,
            mask=self.mask,
            laws=_laws_by_parent(laws, self.nodes),
            rule=self.rule,
        )

    def _children(self, logits: Tensor, drawn_from: Tensor | None, count: int) -> Tensor:
        if drawn_from is None:
            return padded_top(logits, count)[1]
        drawn = [
            draw.tokens_with_replacement(rows, count)
            if self.independent
            else draw.tokens_without_replacement(rows, count)
            for draw, rows in zip(self.draws, drawn_from, strict=True)
        ]
        return torch.stack(drawn).to(logits.device)


def _laws_by_parent(laws: Sequence[Tensor | None], nodes: int) -> Tensor | None:
    """(batch, nodes, vocab): each node's law for its children; leaves have none and get zeros."""
    drawn = [law_of for law_of in laws if law_of is not None]
    if not drawn:
        return None
    joined = torch.cat(drawn, dim=1)
    leaves = joined.new_zeros(joined.shape[0], nodes - joined.shape[1], joined.shape[2])
    return torch.cat((joined, leaves), dim=1)


class BeamDrafter(ModelDrafter):
    """RSD-S: stochastic beam search of `width` beams and `depth` levels (RSD paper, section 3.2.2).

    The perturbed log probabilities only choose the tree and the order of siblings; acceptance uses
    each parent's own law.
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
        laws: list[Tensor | None] = []
        logits = self.draft_model.root_logits(roots)
        for level in range(self.depth):
            first = tokens.shape[1] - keys.shape[1]
            if level:
                draft = draft_of(tokens, parents)
                logits = self.draft_model.level_logits(tokens[:, first:], draft.mask[:, first:], draft.depths)
            # At temperature 0 this is plain beam search on the draft's own law.
            drawn_from = law(logits, self.temperature or 1.0)
            laws.append(drawn_from if self.temperature else None)
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
        return draft_of(tokens, parents, _laws_by_parent(laws, self.nodes))

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
