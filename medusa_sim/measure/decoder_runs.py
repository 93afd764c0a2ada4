"""Whole generations on a grid of batches and tree sizes: tokens per step and wall clock of the real thing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from medusa_sim.acceptance.heads import HeadAccuracy
from medusa_sim.acceptance.optimise import optimal_order
from medusa_sim.decoder.checkpoint import Checkpoint
from medusa_sim.decoder.generate import GenerationSettings, generate
from medusa_sim.decoder.heads import MedusaHeads
from medusa_sim.decoder.medusa import MedusaDrafter
from medusa_sim.decoder.training.evaluate import mean_tokens_per_step
from medusa_sim.errors import UsageError
from medusa_sim.units import US_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCell:
    """Greedy generations of every prompt in batches. candidates 1 is plain decoding.

    seq_len: mean committed tokens of a step. steps: those that the batches ran, prefill apart; step_us: wall
    time over them. tokens_per_step: of a sequence while it runs, so that
    tokens_per_step x batch / step_us is the throughput of batches that are kept full.
    """

    batch: int
    candidates: int
    depth: int
    seq_len: int
    repetition: int
    steps: int
    step_us: float
    tokens_per_step: float


def run_grid(
    target: Checkpoint,
    heads: MedusaHeads,
    prompts: Sequence[Sequence[int]],
    accuracy: HeadAccuracy,
    *,
    batches: Sequence[int],
    candidates: Sequence[int],
    new_tokens: int,
    passes: int = 2,
) -> Iterator[RunCell]:
    """Cells of every pass, batch by batch; plain decoding is run beside the given counts.

    accuracy: of the heads, which decides the tree of each size. Raises UsageError where a batch does not
    divide the prompts.
    """
    uneven = [batch for batch in batches if len(prompts) % batch]
    if uneven:
        raise UsageError(f"{len(prompts)} prompts do not make whole batches of {uneven[0]}")
    order = optimal_order(accuracy, max(candidates))
    trees = {1: None} | {count: order.tree(count) for count in sorted(candidates) if count > 1}
    settings = GenerationSettings(max_new_tokens=new_tokens, stop_at_end_of_text=False)
    for repetition in range(passes):
        for batch in batches:
            for count, tree in trees.items():
                drafter = None if tree is None else MedusaDrafter(target.model, heads, tree)
                generate(target.model, prompts[:batch], replace(settings, max_new_tokens=4), drafter)
                runs = [
                    generate(target.model, prompts[i : i + batch], settings, drafter)
                    for i in range(0, len(prompts), batch)
                ]
                steps = sum(max(sequence.steps for sequence in run.sequences) for run in runs)
                yield RunCell(
                    batch=batch,
                    candidates=count,
                    depth=0 if tree is None else tree.depth,
                    seq_len=len(prompts[0]) + new_tokens // 2,
                    repetition=repetition,
                    steps=steps,
                    step_us=US_PER_S * sum(run.decode_s for run in runs) / steps,
                    tokens_per_step=mean_tokens_per_step([s for run in runs for s in run.sequences]),
                )
