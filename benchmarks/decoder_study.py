"""What a checkpoint's heads are worth on held-out text: measured and predicted tokens per step.

The same prompts are continued autoregressively (which gives the head accuracies on the target's own
text) and with Medusa (which gives the tokens per step). Marginal accuracies treat the heads as
independent; `joint_tokens_per_step` scores whole paths at every position, so that it knows how right
guesses come together, and differs from a run only in where steps start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from medusa_sim.acceptance.heads import (
    NORMAL_90TH,
    HeadAccuracy,
    expected_tokens_per_step,
    optimal_order,
    tokens_per_step_error,
)
from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.decoder.arguments import Acceptance
from medusa_sim.decoder.checkpoint import Checkpoint
from medusa_sim.decoder.draft import MedusaDrafter
from medusa_sim.decoder.generate import Generation, GenerationSettings, generate
from medusa_sim.decoder.heads import MedusaHeads
from medusa_sim.decoder.model import Llama
from medusa_sim.decoder.training.evaluate import (
    HeadCounts,
    head_counts,
    mean_tokens_per_step,
    repeated_ngram_share,
    text_counts,
    total_counts,
)

RANKS = 32
"""Ranks that are scored: more than any tree of 64 candidates uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One tree under one rule. Tokens per step: measured in a run; predicted from marginal accuracies;
    joint, which is scored at every position of the autoregressive text. `repeated_4grams` is the share
    of 4-grams of the emitted text that occurred before in it.
    """

    acceptance: str
    temperature: float
    candidates: int
    measured: float
    predicted: float
    joint: float
    steps: int
    repeated_4grams: float


def own_texts(
    model: Llama, prompts: Sequence[Sequence[int]], *, new_tokens: int, temperature: float, seed: int = 0
) -> list[Generation]:
    """Autoregressive continuations of the prompts, by the model itself."""
    settings = GenerationSettings(
        max_new_tokens=new_tokens, temperature=temperature, seed=seed, stop_at_end_of_text=False
    )
    return generate(model, prompts, settings).sequences


@torch.inference_mode()
def joint_tokens_per_step(
    model: Llama, heads: MedusaHeads, tree: CandidateTree, sequences: Sequence[Generation]
) -> float:
    """Mean of 1 + the accepted length, had a greedy step started at every position of these texts.

    Positions whose whole tree lies inside the text count.
    """
    total, positions = 0.0, 0
    depths, ranks = torch.from_numpy(tree.depths)[1:], torch.from_numpy(tree.ranks)[1:]
    mask = torch.from_numpy(tree.mask)[1:, 1:]
    for sequence in sequences:
        text = torch.tensor(sequence.prompt + sequence.token_ids)
        first = len(sequence.prompt) - 1
        count = text.numel() - first - 1 - tree.depth
        if count <= 0:
            continue
        hidden = model(text[None])[0, first : first + count]
        best = heads(hidden, model.lm_head).topk(max(tree.ranks_used, 1), dim=-1).indices
        drafted = best[depths - 1, :, ranks]  # (nodes, positions)
        labels = text[first + 1 + depths[:, None] + torch.arange(count)]
        fails = (drafted != labels).float()
        is_kept = mask.float() @ fails == 0.0
        total += float((1 + (is_kept * depths[:, None]).amax(0)).sum())
        positions += count
    return total / positions


def findings(
    target: Checkpoint,
    heads: MedusaHeads,
    prompts: Sequence[Sequence[int]],
    accuracy: HeadAccuracy,
    own: Sequence[Generation],
    *,
    sizes: Sequence[int],
    acceptance: Acceptance,
    temperature: float,
    seed: int = 0,
) -> list[Finding]:
    """Runs the best tree of every size on the prompts. `accuracy`, `own`: the heads' on which text."""
    new_tokens = len(own[0].token_ids)
    order = optimal_order(accuracy, max(sizes))
    found = []
    for size in sizes:
        tree = order.tree(size)
        settings = GenerationSettings(
            max_new_tokens=new_tokens,
            temperature=temperature,
            acceptance=acceptance,
            seed=seed,
            stop_at_end_of_text=False,
        )
        run = generate(target.model, prompts, settings, MedusaDrafter(target.model, heads, tree))
        shares = [repeated_ngram_share(s.token_ids) for s in run.sequences]
        found.append(
            Finding(
                acceptance=settings.rule,
                temperature=temperature,
                candidates=tree.candidates,
                measured=mean_tokens_per_step(run.sequences),
                predicted=expected_tokens_per_step(tree, accuracy),
                joint=joint_tokens_per_step(target.model, heads, tree, own) if size > 1 else 1.0,
                steps=sum(s.steps for s in run.sequences),
                repeated_4grams=sum(shares) / len(shares),
            )
        )
    return found


def accuracy_on_given_text(
    target: Checkpoint, heads: MedusaHeads, texts: Sequence[Sequence[int]], *, prompt_tokens: int
) -> HeadAccuracy:
    """Teacher-forced: agreement with the text itself behind its first `prompt_tokens` tokens."""
    return text_counts(target.model, heads, texts, first=prompt_tokens - 1, ranks=RANKS).accuracy()


def counts_of_texts(
    model: Llama, heads: MedusaHeads, sequences: Sequence[Generation], *, ranks: int
) -> list[HeadCounts]:
    """Counts on what the target itself emitted, text by text."""
    return [
        head_counts(model, heads, s.prompt + s.token_ids, first=len(s.prompt) - 1, ranks=ranks)
        for s in sequences
    ]


def design_effect(each: Sequence[HeadCounts], sizes: Sequence[int]) -> float:
    """Variance of the tokens per step over texts, over the variance that independent labels would have.

    Labels of one text go together: a text that repeats itself is one observation, not a hundred. The
    jackknife over texts, for the best tree of each size; the mean ratio, at least 1.
    """
    total = total_counts(each)
    accuracy = total.accuracy()
    order = optimal_order(accuracy, max(sizes))
    ratios = []
    for size in sizes:
        tree = order.tree(size)
        without = np.array(
            [
                expected_tokens_per_step(
                    tree, HeadCounts(total.hits - one.hits, total.labels - one.labels).accuracy()
                )
                for one in each
            ]
        )
        over_texts = (len(each) - 1) * float(without.var())
        over_labels = (tokens_per_step_error(tree, accuracy) / NORMAL_90TH) ** 2
        ratios.append(over_texts / over_labels)
    return max(1.0, float(np.mean(ratios)))
