"""Times of real decoding and verification steps, for any model size and any acceptance.

Weights are random: a step's time does not depend on them. Acceptance is a pattern that is forced, so
that a measured step and a predicted one do the same work.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice

import torch
from torch import Tensor

from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.decoder.cache import KVCache
from medusa_sim.decoder.config import DecoderConfig
from medusa_sim.decoder.generate import Forward, eager_forward
from medusa_sim.decoder.heads import MedusaHeads, new_heads
from medusa_sim.decoder.medusa import MedusaDrafter
from medusa_sim.decoder.model import Llama
from medusa_sim.errors import UsageError

_WARMUP = 3


@dataclass(frozen=True, slots=True)
class StepTiming:
    """Wall times in microseconds of repeated steps: the median, and the 10th and 90th percentile."""

    median_us: float
    p10_us: float
    p90_us: float
    repeats: int


def random_weights(
    config: DecoderConfig, *, dtype: torch.dtype, device: torch.device | str, heads: int = 0, seed: int = 0
) -> tuple[Llama, MedusaHeads | None]:
    """A model, and heads if asked for, with uniform weights made on the device: billions in seconds."""
    torch.manual_seed(seed)
    with torch.device("meta"):
        model = Llama(config)
    model = model.to(dtype).to_empty(device=device)
    if config.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.02, 0.02)
    model.eval().requires_grad_(requires_grad=False)
    return model, new_heads(model.lm_head, count=heads).requires_grad_(False) if heads else None


def captured(work: Sequence[Callable[[], object]]) -> Callable[[], None]:
    """All calls as one CUDA graph, to be replayed."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in islice(work, _WARMUP):  # libraries set themselves up outside the capture
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in work:
            call()
    return partial(_replay, graph, tuple(work))


def _replay(graph: torch.cuda.CUDAGraph, work: Sequence[object]) -> None:
    """`work` is held, since it owns the operands that the graph reads."""
    del work
    graph.replay()


def measure_us(step: Callable[[], object], device: torch.device, *, repeats: int) -> StepTiming:
    """Wall time of `step`, synchronised with the device before and after every repeat."""
    times = []
    for i in range(_WARMUP + repeats):
        synchronise(device)
        started = time.perf_counter()
        step()
        synchronise(device)
        if i >= _WARMUP:
            times.append(1e6 * (time.perf_counter() - started))
    return timing_of(times)


def timing_of(times_us: Sequence[float]) -> StepTiming:
    """Median and percentiles of repeats."""
    if len(times_us) == 1:
        return StepTiming(times_us[0], times_us[0], times_us[0], 1)
    deciles = statistics.quantiles(times_us, n=10, method="inclusive")
    return StepTiming(statistics.median(times_us), deciles[0], deciles[-1], len(times_us))


@torch.inference_mode()
def decode_step_timing(
    model: Llama,
    *,
    batch: int,
    seq_len: int,
    repeats: int = 20,
    make_forward: Callable[[Llama, KVCache], Forward] = eager_forward,
) -> StepTiming:
    """One autoregressive step behind `seq_len` committed tokens: forward, LM head, argmax, commit."""
    return _tree_timing(model, None, CandidateTree.chain(0), (0,), batch, seq_len, repeats, make_forward)


@torch.inference_mode()
def verify_step_timing(
    model: Llama,
    heads: MedusaHeads | None,
    tree: CandidateTree,
    *,
    batch: int,
    seq_len: int,
    accepted: Sequence[int] = (1,),
    repeats: int = 20,
    make_forward: Callable[[Llama, KVCache], Forward] = eager_forward,
) -> StepTiming:
    """One Medusa step: heads, tree forward, LM head on all candidates, argmax, compaction.

    Step i accepts `accepted[i mod len]` draft tokens whatever the model says, along the first path
    that is long enough. Without heads the drafts are token 0. Raises UsageError for a pattern that
    the tree cannot accept.
    """
    return _tree_timing(model, heads, tree, accepted, batch, seq_len, repeats, make_forward)


def _tree_timing(
    model: Llama,
    heads: MedusaHeads | None,
    tree: CandidateTree,
    accepted: Sequence[int],
    batch: int,
    seq_len: int,
    repeats: int,
    make_forward: Callable[[Llama, KVCache], Forward],
) -> StepTiming:
    if not accepted or min(accepted) < 0 or max(accepted) > tree.depth:
        raise UsageError(f"accepted pattern {tuple(accepted)[:8]}: counts from 0 to {tree.depth} are allowed")
    counts = list(islice(cycle(accepted), _WARMUP + repeats))
    device = model.device
    cache = model.new_cache(batch=batch, capacity=seq_len + tree.candidates)
    cache.lengths += seq_len
    forward = make_forward(model, cache)
    drafter = MedusaDrafter(model, heads, tree) if heads is not None else None
    mask, depths = torch.from_numpy(tree.mask).to(device), torch.from_numpy(tree.depths).to(device)
    paths = [torch.tensor([path_to(tree, count)] * batch, device=device) for count in counts]
    tokens = torch.zeros(batch, tree.candidates, dtype=torch.long, device=device)
    hidden = torch.zeros(batch, model.config.hidden_size, dtype=model.dtype, device=device)
    index = iter(range(len(counts)))

    def step() -> Tensor:
        i = next(index)
        drafted = drafter.propose(tokens[:, 0], hidden, ()).tokens if drafter is not None else tokens
        best = model.logits(forward(drafted, mask, depths)).argmax(-1)
        cache.compact(paths[i], torch.full((batch,), paths[i].shape[1], device=device))
        cache.lengths.fill_(seq_len)  # every repeat at the same length
        return best

    return measure_us(step, device, repeats=repeats)


def path_to(tree: CandidateTree, accepted: int) -> list[int]:
    """The root and the nodes on the first path of `accepted` guesses."""
    node = next(i for i, depth in enumerate(tree.depths.tolist()) if depth == accepted)
    return [i for i, seen in enumerate(tree.mask[node].tolist()) if seen]


def synchronise(device: torch.device) -> None:
    """Wait until a CUDA device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
