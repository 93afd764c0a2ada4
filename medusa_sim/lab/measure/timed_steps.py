"""One step of the decoder that does the same work each time, and steps timed in turns."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.lab.decoder.accept import Accepted, accept_greedy
from medusa_sim.lab.decoder.cache import KVCache
from medusa_sim.lab.decoder.candidates import Draft
from medusa_sim.lab.decoder.drafter import NoDrafter
from medusa_sim.lab.decoder.fixed_shapes import Forward
from medusa_sim.lab.decoder.generate import BatchDecoder
from medusa_sim.lab.decoder.generation import Generation
from medusa_sim.lab.decoder.heads import MedusaHeads
from medusa_sim.lab.decoder.medusa_drafter import MedusaDrafter
from medusa_sim.lab.decoder.model import Llama
from medusa_sim.lab.measure.bench import synchronise
from medusa_sim.lab.measure.spread import Timing, timing_of
from medusa_sim.units import US_PER_S

Step = Callable[[], object]
_IN_A_ROW = 3
"""Timed steps of one turn."""
_SETTLE_S = {"cpu": 0.2, "cuda": 0.02}
"""Some 20 steps of a small model on a CPU: its last-level cache keeps K and V only after that many."""


def full_step(
    model: Llama, heads: MedusaHeads, tree: CandidateTree, cache: KVCache, accepted: int, forward: Forward
) -> Step:
    """The step that `generate` runs, with every sequence brought back to its length.

    Weights are random, so what the rule would accept is worked out and set aside: `accepted` draft tokens are
    kept, or as many as the tree is deep.
    """
    path = path_to(tree, min(accepted, tree.depth))

    def judge(draft: Draft, logits: Tensor) -> list[Accepted]:
        found = accept_greedy(draft, logits)
        return [Accepted(path[1:], each.text[-1:] * len(path)) for each in found]

    generator = torch.Generator(device=model.device).manual_seed(0)
    size = (cache.batch, model.config.hidden_size)
    decoding = BatchDecoder(
        model=model,
        cache=cache,
        drafter=MedusaDrafter(model, heads, tree) if tree.depth else NoDrafter(),
        forward=forward,
        judge=judge,
        sequences=[Generation(prompt=[], token_ids=[0]) for _ in range(cache.batch)],
        roots=torch.zeros(cache.batch, dtype=torch.long, device=model.device),
        hidden=torch.randn(size, generator=generator, dtype=model.dtype, device=model.device),
        ends=(),
        max_new_tokens=sys.maxsize,
    )

    def step() -> None:
        kept = decoding.step()
        cache.grow([-len(nodes) for nodes in kept])

    return step


def path_to(tree: CandidateTree, accepted: int) -> list[int]:
    """The root and the nodes on the first path of `accepted` guesses."""
    node = next(i for i, depth in enumerate(tree.depths.tolist()) if depth == accepted)
    return [i for i, seen in enumerate(tree.mask[node].tolist()) if seen]


def time_in_turns(
    steps: Mapping[int, Step],
    device: torch.device,
    *,
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[int, Timing]:
    """Time of each step by itself; the steps take turns.

    In its turn a step first runs untimed, once and for `_SETTLE_S`, and then a few times on the clock: in
    decoding a step follows its like, and after one of another size it takes several to have its operands
    back in the caches.
    """
    times: dict[int, list[float]] = {key: [] for key in steps}
    while any(len(timed) < repeats for timed in times.values()):
        for key, step in steps.items():
            began = clock()
            settled = False
            while not settled:
                step()
                synchronise(device)  # launches run ahead of a GPU
                settled = clock() - began >= _SETTLE_S[device.type]
            times[key] += [step_us(step, device, clock) for _ in range(_IN_A_ROW)]
    return {key: timing_of(values) for key, values in times.items()}


def step_us(step: Step, device: torch.device, clock: Callable[[], float]) -> float:
    """Microseconds of one step, with what the host does in it."""
    started = clock()
    step()
    synchronise(device)
    return US_PER_S * (clock() - started)
