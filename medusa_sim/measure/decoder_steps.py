"""Decoding and verification steps of one model over a grid, timed in turns so that drifts hit all alike.

A cell is one (batch, candidates); one candidate is the plain decoding step. The cells of a batch take
turns, and the whole grid is passed over twice or more: how far the passes disagree is how well
anything can be predicted. On CUDA a whole step (heads, forward, LM head, argmax, compaction) is one graph.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.decoder.cache import KVCache
from medusa_sim.decoder.heads import MedusaHeads
from medusa_sim.decoder.medusa import MedusaDrafter
from medusa_sim.decoder.model import Llama
from medusa_sim.errors import UsageError
from medusa_sim.measure.step_timing import StepTiming, captured, path_to, synchronise, timing_of
from medusa_sim.units import US_PER_S

_IN_A_ROW = 3
"""Timed steps of one turn."""
_SETTLE_S = 0.2
"""Some 20 steps of a small model: the last-level cache keeps its K and V only after that many."""

Step = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Time of one step of a grid in one pass. depth: heads that draft, the longest path of the tree."""

    batch: int
    seq_len: int
    candidates: int
    depth: int
    repetition: int
    timing: StepTiming


@torch.inference_mode()
def step_grid(
    model: Llama,
    heads: MedusaHeads | None,
    trees: Mapping[int, CandidateTree],
    *,
    batches: Sequence[int],
    seq_len: int,
    accepted: int = 2,
    repeats: int = 10,
    passes: int = 2,
    graphs: bool | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[Cell]:
    """Cells of every pass, batch by batch, as they are done.

    trees: by number of candidates; the decoding step is always timed beside them. Each step accepts
    `accepted` draft tokens (or as many as its tree is deep). graphs: CUDA graphs; None: where on CUDA.
    Raises UsageError for a tree whose size is not its key, or for graphs on a CPU.
    """
    wrong = [count for count, tree in trees.items() if tree.candidates != count]
    if wrong:
        raise UsageError(f"the tree for {wrong[0]} candidates has {trees[wrong[0]].candidates}")
    on_cuda = model.device.type == "cuda"
    if graphs and not on_cuda:
        raise UsageError(f"CUDA graphs need a CUDA device, the model is on {model.device}")
    every = {1: CandidateTree.chain(0)} | dict(sorted(trees.items()))
    for repetition in range(passes):
        for batch in batches:
            cache = model.new_cache(batch=batch, capacity=seq_len + max(every))
            cache.lengths += seq_len
            steps = {count: full_step(model, heads, tree, cache, accepted) for count, tree in every.items()}
            if graphs or (graphs is None and on_cuda):
                steps = {count: captured([step]) for count, step in steps.items()}
            for count, timing in interleaved(steps, model.device, repeats=repeats, clock=clock).items():
                yield Cell(
                    batch=batch,
                    seq_len=seq_len,
                    candidates=count,
                    depth=every[count].depth,
                    repetition=repetition,
                    timing=timing,
                )


def full_step(
    model: Llama, heads: MedusaHeads | None, tree: CandidateTree, cache: KVCache, accepted: int
) -> Step:
    """One step as `generate` does it, of fixed shapes: draft, verify, choose, keep, and back to its length.

    Without heads the drafts are token 0. The root's own hidden state feeds the heads of the next step.
    """
    device, batch = model.device, cache.batch
    drafter = MedusaDrafter(model, heads, tree) if heads is not None and tree.depth else None
    mask, depths = torch.from_numpy(tree.mask).to(device), torch.from_numpy(tree.depths).to(device)
    seq_len = int(cache.lengths.max())
    path = torch.tensor([path_to(tree, min(accepted, tree.depth))] * batch, device=device)
    counts = torch.full((batch,), path.shape[1], device=device)
    roots = torch.zeros(batch, dtype=torch.long, device=device)
    tokens = torch.zeros(batch, tree.candidates, dtype=torch.long, device=device)
    hidden = torch.zeros(batch, model.config.hidden_size, dtype=model.dtype, device=device)

    def step() -> Tensor:
        drafted = drafter.propose(roots, hidden, ()).tokens if drafter is not None else tokens
        states = model(drafted, cache=cache, tree_mask=mask, depths=depths, kv_len=seq_len + tree.candidates)
        best = model.logits(states).argmax(-1)
        cache.compact(path, counts)
        cache.lengths.fill_(seq_len)
        return best

    return step


def interleaved(
    steps: Mapping[int, Step],
    device: torch.device,
    *,
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[int, StepTiming]:
    """Wall time of each step, synchronised with the device; the steps take turns.

    In its turn a step first runs untimed, once and for `_SETTLE_S`, and then a few times on the clock: in
    decoding a step follows its like, and after one of another size it takes several to have its operands
    back in the caches.
    """
    times: dict[int, list[float]] = {key: [] for key in steps}
    while any(len(found) < repeats for found in times.values()):
        for key, step in steps.items():
            began = clock()
            settled = False
            while not settled:
                step()
                synchronise(device)  # launches run ahead of a GPU
                settled = clock() - began >= _SETTLE_S
            for _ in range(_IN_A_ROW):
                synchronise(device)
                started = clock()
                step()
                synchronise(device)
                times[key].append(US_PER_S * (clock() - started))
    return {key: timing_of(values) for key, values in times.items()}
