"""Decoding and verification steps of models with random weights over a grid, for `validate --decoder`.

A cell is one (batch, candidates); one candidate is the plain decoding step. A step's time does not depend on
the weights, and every step accepts as many draft tokens, so that a measured and a predicted one do the same
work. The cells of a batch take turns, so that drifts hit all alike, and the whole grid is passed over twice
or more: how far the passes disagree is how well anything can be predicted. On CUDA a whole step (heads,
forward, LM head, argmax, compaction) is one graph.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from medusa_sim.acceptance.heads import expected_tokens_per_step
from medusa_sim.acceptance.optimise import optimal_order
from medusa_sim.acceptance.profile import load_acceptance
from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.decoder.cache import KVCache
from medusa_sim.decoder.config import DecoderConfig, config_from_hf, read_config
from medusa_sim.decoder.heads import MedusaHeads, new_heads
from medusa_sim.decoder.medusa import MedusaDrafter
from medusa_sim.decoder.model import Llama
from medusa_sim.errors import UsageError
from medusa_sim.measure import hardware
from medusa_sim.measure.attention_kernel import attention_kernels
from medusa_sim.measure.cells import StepMeta, StepRow, cell_name, write_config, write_steps
from medusa_sim.measure.clocks import raise_clocks, watched
from medusa_sim.measure.environment import environment
from medusa_sim.measure.graphs import capture_calls, device_us, synchronise
from medusa_sim.measure.kernels import DTYPES
from medusa_sim.measure.spread import Timing, timing_of
from medusa_sim.specs.models import load_model
from medusa_sim.units import GIGA, US_PER_S

ACCEPTED = 2
"""Draft tokens that every step accepts, or as many as its tree is deep."""
_IN_A_ROW = 3
"""Timed steps of one turn."""
_SETTLE_S = {"cpu": 0.2, "cuda": 0.02}
"""Some 20 steps of a small model on a CPU: its last-level cache keeps K and V only after that many."""

Step = Callable[[], object]
Tell = Callable[[str], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGrid:
    """What is measured of every model. acceptance: a profile of heads, which decides each size's tree;
    splits_attention: of `Llama`.
    """

    batches: Sequence[int]
    candidates: Sequence[int]
    seq_len: int
    acceptance: str
    repeats: int = 10
    passes: int = 2
    splits_attention: bool = False

    def trees(self) -> dict[int, tuple[CandidateTree, float]]:
        """The best tree of each size above 1 and the tokens per step that it is expected to give.

        Raises UsageError for a profile without heads, or where there is no such size.
        """
        heads = load_acceptance(self.acceptance).heads
        counts = [count for count in self.candidates if count > 1]
        if heads is None:
            raise UsageError(f"acceptance profile {self.acceptance} has no head accuracies; choose another")
        if not counts:
            raise UsageError("candidates: at least one count above 1 is needed beside plain decoding")
        order = optimal_order(heads, max(counts))
        trees = {count: order.tree(count) for count in counts}
        return {count: (tree, expected_tokens_per_step(tree, heads)) for count, tree in trees.items()}


def measure_decoder_steps(
    folder: Path,
    models: Sequence[str],
    grid: StepGrid,
    *,
    device: torch.device,
    dtype: str,
    name: str | None = None,
    tell: Tell = lambda _: None,
) -> StepMeta:
    """Measure the steps of every model and write them to `folder`; models that are done outlast an interrupt.

    models: names, or a config.json or its folder. name: of the device. tell: takes a line on every cell and
    model. Raises UsageError, SpecError, OutputError.
    """
    chosen = grid.trees()
    raise_clocks(device)
    seen = environment(device, name)
    meta = StepMeta(
        schema=1,
        title=f"Steps of the decoder with random weights on {seen.device}",
        launched="cuda-graph" if device.type == "cuda" else "eager",
        acceptance=grid.acceptance,
        accepted_draft_tokens=ACCEPTED,
        copy_bytes_per_s=hardware.rates(device, seen, (dtype,)).copy_bytes_per_s,
        environment=seen,
    )
    trees = {count: tree for count, (tree, _) in chosen.items()}
    tokens = {count: expected for count, (_, expected) in chosen.items()}
    deepest = max(tree.depth for tree in trees.values())
    rows: list[StepRow] = []
    for given in models:
        label, config = decoder_config(given)
        write_config(folder, label, config.to_hf())
        model, heads = random_weights(config, dtype=DTYPES[dtype], device=device, heads=deepest)
        model.splits_attention = grid.splits_attention
        meta.attention[label] = attention_kernels(
            device,
            DTYPES[dtype],
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            splits=grid.splits_attention,
        )
        cells = step_grid(
            model,
            heads,
            trees,
            name=label,
            dtype=dtype,
            batches=grid.batches,
            seq_len=grid.seq_len,
            tokens_per_step=tokens,
            repeats=grid.repeats,
            passes=grid.passes,
        )
        with watched(device) as clocks:
            for cell in cells:
                rows.append(cell)
                tell(f"{cell_name(cell)}: {cell.time_us:.0f} us")
        meta.environment.run_clocks_mhz.update(clocks.summary)
        write_steps(folder, meta, rows)
        plain_us = min(row.time_us for row in rows if row.model == label and row.candidates == 1)
        read = config.parameter_count * DTYPES[dtype].itemsize / plain_us * US_PER_S
        tell(
            f"{label}: the fastest decoding step reads weights at {read / GIGA:.1f} GB/s, "
            f"{read / meta.copy_bytes_per_s:.0%} of the copy bandwidth"
        )
    return meta


def decoder_config(name_or_path: str) -> tuple[str, DecoderConfig]:
    """A label and the sizes of a named model, or of a config.json or its folder."""
    path = Path(name_or_path)
    folder = path.parent if path.name == "config.json" else path
    if folder.is_dir() and (folder / "config.json").is_file():
        return folder.resolve().name, read_config(folder)
    model = load_model(name_or_path)
    values = {
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": model.vocab,
        "hidden_size": model.hidden,
        "intermediate_size": model.mlp.width,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.attention.heads,
        "num_key_value_heads": model.attention.kv_heads,
        "head_dim": model.attention.head_dim,
        "max_position_embeddings": model.max_seq_len,
    }
    return model.name, config_from_hf(values, name_or_path)


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
    if not heads:
        return model, None
    drafting = new_heads(model.lm_head, count=heads).requires_grad_(False)
    for parameter in drafting.parameters():
        parameter.uniform_(-0.02, 0.02)
    return model, drafting


@torch.inference_mode()
def step_grid(
    model: Llama,
    heads: MedusaHeads | None,
    trees: Mapping[int, CandidateTree],
    *,
    name: str,
    dtype: str,
    batches: Sequence[int],
    seq_len: int,
    tokens_per_step: Mapping[int, float],
    accepted: int = ACCEPTED,
    repeats: int = 10,
    passes: int = 2,
    graphs: bool | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[StepRow]:
    """Cells of every pass, batch by batch, as they are done.

    trees: by number of candidates; the decoding step is always timed beside them. name, dtype,
    tokens_per_step (by candidates): as the rows record them. Each step accepts `accepted` draft tokens (or as
    many as its tree is deep). graphs: CUDA graphs; None: where on CUDA.
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
            steps = steps_of(model, heads, every, batch=batch, seq_len=seq_len, accepted=accepted)
            if graphs or (graphs is None and on_cuda):
                pool = torch.cuda.graph_pool_handle()
                steps = {
                    count: capture_calls([step], model.device, pool=pool) for count, step in steps.items()
                }
            timings = interleaved(steps, model.device, repeats=repeats, clock=clock)
            steps = {}  # cache and graphs of this batch make room for those of the next
            if on_cuda:
                torch.cuda.empty_cache()
            for count, timing in timings.items():
                yield StepRow(
                    model=name,
                    dtype=dtype,
                    batch=batch,
                    seq_len=seq_len,
                    candidates=count,
                    depth=every[count].depth,
                    repetition=repetition,
                    time_us=timing.time_us,
                    p10_us=timing.p10_us,
                    p90_us=timing.p90_us,
                    repeats=timing.repeats,
                    tokens_per_step=tokens_per_step.get(count, 1.0),
                )


def steps_of(
    model: Llama,
    heads: MedusaHeads | None,
    trees: Mapping[int, CandidateTree],
    *,
    batch: int,
    seq_len: int,
    accepted: int = ACCEPTED,
) -> dict[int, Step]:
    """Steps of one batch by candidates, on one cache of random keys and values behind `seq_len` tokens."""
    cache = model.new_cache(batch=batch, capacity=seq_len + max(trees))
    cache.keys.normal_()
    cache.values.normal_()
    cache.lengths += seq_len
    return {count: full_step(model, heads, tree, cache, accepted) for count, tree in trees.items()}


def full_step(
    model: Llama, heads: MedusaHeads | None, tree: CandidateTree, cache: KVCache, accepted: int
) -> Step:
    """One step as `generate` does it, of fixed shapes: draft, verify, choose, keep, and back to its length.

    Without heads the drafts are any tokens. The root's own hidden state feeds the heads of the next step.
    Tokens and hidden state are random, as the cache should be: products of zeros are quicker.
    """
    device, batch = model.device, cache.batch
    drafter = MedusaDrafter(model, heads, tree) if heads is not None and tree.depth else None
    mask, depths = torch.from_numpy(tree.mask).to(device), torch.from_numpy(tree.depths).to(device)
    seq_len = int(cache.lengths.max())
    path = torch.tensor([path_to(tree, min(accepted, tree.depth))] * batch, device=device)
    counts = torch.full((batch,), path.shape[1], device=device)
    tokens, hidden = random_inputs(model, tree, batch)
    roots = tokens[:, 0].contiguous()
    behind = {"tree_mask": mask, "depths": depths, "kv_len": seq_len + tree.candidates, "filled": True}

    def step() -> Tensor:
        drafted = drafter.propose(roots, hidden, ()).tokens if drafter is not None else tokens
        states = model(drafted, cache=cache, **behind)
        best = model.logits(states).argmax(-1)
        cache.compact(path, counts)
        cache.lengths.fill_(seq_len)
        return best

    return step


def random_inputs(model: Llama, tree: CandidateTree, batch: int) -> tuple[Tensor, Tensor]:
    """Tokens of a tree (batch, candidates) and a hidden state (batch, hidden), the same at each call."""
    device = model.device
    generator = torch.Generator(device=device).manual_seed(0)
    tokens = torch.randint(
        0, model.config.vocab_size, (batch, tree.candidates), generator=generator, device=device
    )
    size = model.config.hidden_size
    return tokens, torch.randn(batch, size, generator=generator, dtype=model.dtype, device=device)


def path_to(tree: CandidateTree, accepted: int) -> list[int]:
    """The root and the nodes on the first path of `accepted` guesses."""
    node = next(i for i, depth in enumerate(tree.depths.tolist()) if depth == accepted)
    return [i for i, seen in enumerate(tree.mask[node].tolist()) if seen]


def interleaved(
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
    while any(len(found) < repeats for found in times.values()):
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
    """Microseconds of one step: between two events on CUDA, else by the clock."""
    if device.type == "cuda":
        return device_us(step, device)
    started = clock()
    step()
    return US_PER_S * (clock() - started)
