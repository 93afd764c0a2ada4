"""Decoding and verification steps of models with random weights over a grid, for `validate decoder`.

A cell is one (batch, candidates); one candidate is the plain decoding step. A step's time does not depend on
the weights, and every step accepts as many draft tokens, so that a measured and a predicted one do the same
work. The cells of a batch take turns, so that drifts hit all alike, and the whole grid is passed over twice
or more: how far the passes disagree is how well anything can be predicted. The step is the one that
`generate` runs, acceptance on the host included; on CUDA its forward is a graph (`decode --step cuda-graph`).
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.errors import UsageError
from medusa_sim.lab.decoder.accept import Verdict, accept_greedy
from medusa_sim.lab.decoder.cache import KVCache
from medusa_sim.lab.decoder.candidates import Draft
from medusa_sim.lab.decoder.config import DecoderConfig, config_from_hf, read_config
from medusa_sim.lab.decoder.drafter import NoDrafter
from medusa_sim.lab.decoder.fixed_shapes import graphed_forward
from medusa_sim.lab.decoder.generate import BatchDecoder, eager_forward
from medusa_sim.lab.decoder.generation import Generation
from medusa_sim.lab.decoder.heads import MedusaHeads, new_heads
from medusa_sim.lab.decoder.medusa_drafter import MedusaDrafter
from medusa_sim.lab.decoder.model import Llama
from medusa_sim.lab.decoder.packed import pack
from medusa_sim.lab.decoder.step import Forward
from medusa_sim.lab.measure import hardware
from medusa_sim.lab.measure.arguments import Device, StepGrid
from medusa_sim.lab.measure.bench import synchronise
from medusa_sim.lab.measure.cells import StepMeta, StepRow, cell_name, write_config, write_steps
from medusa_sim.lab.measure.clocks import raise_clocks, watch_clocks
from medusa_sim.lab.measure.environment import environment
from medusa_sim.lab.measure.kernels import DTYPES, attention_kernels
from medusa_sim.lab.measure.spread import Timing, timing_of
from medusa_sim.specs.measurement import Environment
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


def measure_decoder_steps(
    folder: Path, asked: Device, grid: StepGrid, device: torch.device, dtype: str, tell: Tell = lambda _: None
) -> StepMeta:
    """Measure the steps of every model and write them to `folder`; whole passes outlast an interrupt.

    asked: models as names, or a config.json or its folder. tell: takes a line on every cell and model. Raises
    UsageError, SpecError, OutputError.
    """
    raise_clocks(device)
    seen = environment(device, asked.name)
    rates = hardware.rates(device, seen, (dtype,))
    meta = steps_meta(grid, seen, rates.copy_bytes_per_s, packed=asked.packed)
    rows: list[StepRow] = []
    for given in asked.models:
        subject = random_subject(
            given, dtype, grid, device, splits_attention=asked.splits_attention, packed=asked.packed
        )
        config, label = subject.model.config, subject.name
        write_config(folder, label, config.to_hf())
        meta.attention[label] = subject.attention
        with watch_clocks(device) as clocks:
            try:
                for cell in step_grid(subject):
                    rows.append(cell)
                    tell(f"{cell_name(cell)}: {cell.time_us:.0f} us")
            except KeyboardInterrupt:
                if whole := whole_passes(rows, len(grid.batches) * len(subject.trees)):
                    write_steps(folder, meta, whole)
                raise
        meta.environment.run_clocks_mhz.update(clocks.summary)
        write_steps(folder, meta, rows)
        plain_us = min(row.time_us for row in rows if row.model == label and row.candidates == 1)
        read = config.parameter_count * DTYPES[dtype].itemsize / plain_us * US_PER_S
        tell(
            f"{label}: the fastest decoding step reads weights at {read / GIGA:.1f} GB/s, "
            f"{read / meta.copy_bytes_per_s:.0%} of the copy bandwidth"
        )
    return meta


def whole_passes(rows: Sequence[StepRow], cells: int) -> list[StepRow]:
    """Rows without the passes over a grid of so many cells that some model lacks: a table has all or none."""
    counts = Counter((row.model, row.repetition) for row in rows)
    models = {row.model for row in rows}
    return [row for row in rows if all(counts[model, row.repetition] == cells for model in models)]


def steps_meta(grid: StepGrid, seen: Environment, copy_bytes_per_s: float, *, packed: bool) -> StepMeta:
    """How steps were measured; `eager` whatever the forward is: the host's share of a step is in its time."""
    return StepMeta(
        schema=1,
        title=f"Steps of the decoder with random weights on {seen.device}",
        launched="eager",
        packed=packed,
        acceptance=grid.acceptance,
        accepted_draft_tokens=ACCEPTED,
        copy_bytes_per_s=copy_bytes_per_s,
        environment=seen,
    )


@dataclass(frozen=True, slots=True)
class Subject:
    """A model whose steps are timed, at the sizes of a grid.

    trees: by number of candidates (1: plain decoding), with the tokens per step that each should give. Raises
    UsageError for a tree whose size is not its key.
    """

    name: str
    dtype: str
    model: Llama
    heads: MedusaHeads
    trees: Mapping[int, tuple[CandidateTree, float]]
    grid: StepGrid

    def __post_init__(self) -> None:
        """Check the trees."""
        wrong = [count for count, (tree, _) in self.trees.items() if tree.candidates != count]
        if wrong:
            raise UsageError(f"the tree for {wrong[0]} candidates has {self.trees[wrong[0]][0].candidates}")

    @property
    def attention(self) -> dict[str, str]:
        """Torch's kernels of a plain step and of a tree."""
        model = self.model
        sizes = (model.config.num_attention_heads, model.config.num_key_value_heads, model.config.head_dim)
        return attention_kernels(model.device, model.dtype, *sizes, splits=model.splits_attention)

    def steps(self, batch: int, *, graphs: bool = False) -> dict[int, Step]:
        """Steps of one batch by candidates, on one cache of random keys and values behind `seq_len` tokens.

        Products of zeros are quicker. Raises UsageError for graphs off CUDA.
        """
        model, length = self.model, self.grid.seq_len
        cache = model.new_cache(batch=batch, capacity=length + max(self.trees))
        cache.keys.normal_()
        cache.values.normal_()
        cache.lengths += length
        made, forward = {}, graphed_forward if graphs else eager_forward
        for count, (tree, _) in self.trees.items():  # a graph scans the slots of its cache
            own = cache.narrowed(length + count) if graphs else cache
            made[count] = full_step(model, self.heads, tree, own, ACCEPTED, forward(model, own))
        return made

    def row(self, batch: int, candidates: int, repetition: int, timing: Timing) -> StepRow:
        """The record of one step in one pass."""
        tree, tokens = self.trees[candidates]
        return StepRow(
            model=self.name,
            dtype=self.dtype,
            batch=batch,
            seq_len=self.grid.seq_len,
            candidates=candidates,
            depth=tree.depth,
            repetition=repetition,
            tokens_per_step=tokens,
            **dataclasses.asdict(timing),
        )


def random_subject(
    given: str,
    dtype: str,
    grid: StepGrid,
    device: torch.device,
    *,
    splits_attention: bool = False,
    packed: bool = False,
) -> Subject:
    """A named model, or a config.json or its folder, with random weights and the grid's trees.

    Raises UsageError, SpecError.
    """
    name, config = decoder_config(given)
    trees = {1: (CandidateTree.chain(0), 1.0), **dict(sorted(grid.trees().items()))}
    deepest = max(tree.depth for tree, _ in trees.values())
    model, heads = random_weights(config, dtype=DTYPES[dtype], device=device, heads=deepest)
    model.splits_attention = splits_attention
    if packed:
        pack(model, heads)
    return Subject(name, dtype, model, heads, trees, grid)


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
    config: DecoderConfig, *, dtype: torch.dtype, device: torch.device | str, heads: int
) -> tuple[Llama, MedusaHeads]:
    """A model and its heads with uniform weights made on the device: billions in seconds."""
    torch.manual_seed(0)
    with torch.device("meta"):
        model = Llama(config)
    model = model.to(dtype).to_empty(device=device)
    if config.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.02, 0.02)
    model.eval().requires_grad_(requires_grad=False)
    drafting = new_heads(model.lm_head, count=heads).requires_grad_(False)
    for parameter in drafting.parameters():
        parameter.uniform_(-0.02, 0.02)
    return model, drafting


@torch.inference_mode()
def step_grid(
    subject: Subject, *, graphs: bool | None = None, clock: Callable[[], float] = time.perf_counter
) -> Iterator[StepRow]:
    """Cells of every pass, batch by batch, as they are done.

    Each step accepts ACCEPTED draft tokens (or as many as its tree is deep). graphs: CUDA graphs; None: where
    on CUDA. Raises UsageError for graphs on a CPU.
    """
    device, grid = subject.model.device, subject.grid
    on_cuda = device.type == "cuda"
    for repetition in range(grid.passes):
        for batch in grid.batches:
            steps = subject.steps(batch, graphs=on_cuda if graphs is None else graphs)
            timings = time_in_turns(steps, device, repeats=grid.repeats, clock=clock)
            steps = {}  # cache and graphs of this batch make room for those of the next
            if on_cuda:
                torch.cuda.empty_cache()
            for count, timing in timings.items():
                yield subject.row(batch, count, repetition, timing)


def full_step(
    model: Llama, heads: MedusaHeads, tree: CandidateTree, cache: KVCache, accepted: int, forward: Forward
) -> Step:
    """The step that `generate` runs, with every sequence brought back to its length.

    Weights are random, so what the rule would accept is worked out and set aside: `accepted` draft tokens are
    kept, or as many as the tree is deep.
    """
    path = path_to(tree, min(accepted, tree.depth))

    def judge(draft: Draft, logits: Tensor) -> Verdict:
        verdict = accept_greedy(draft, logits)
        return Verdict([path[1:]] * cache.batch, [[token] * len(path) for token in verdict.next_tokens])

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
