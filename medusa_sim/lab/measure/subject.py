"""A model with random weights whose steps are timed: its trees, its cache, its heads."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.errors import UsageError
from medusa_sim.lab.decoder.cache import KVCache
from medusa_sim.lab.decoder.checkpoint import DTYPES
from medusa_sim.lab.decoder.config import DecoderConfig, config_from_hf, read_config
from medusa_sim.lab.decoder.fixed_shapes import graphed_forward
from medusa_sim.lab.decoder.generate import eager_forward
from medusa_sim.lab.decoder.heads import MedusaHeads, new_heads
from medusa_sim.lab.decoder.model import Llama
from medusa_sim.lab.decoder.packed import pack
from medusa_sim.lab.measure.arguments import StepGrid
from medusa_sim.lab.measure.cells import StepRow
from medusa_sim.lab.measure.kernels import attention_kernels
from medusa_sim.lab.measure.spread import Timing
from medusa_sim.lab.measure.timed_steps import Step, full_step
from medusa_sim.models.named import load_model

ACCEPTED = 2
"""Draft tokens that every step accepts, or as many as its tree is deep."""


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
        return attention_kernels(model.device, model.dtype, *sizes)

    def steps(self, batch: int, *, graphs: bool = False) -> dict[int, Step]:
        """Steps of one batch by candidates, on one cache of random keys and values after `seq_len` tokens.

        Products of zeros are quicker. Raises UsageError for graphs off CUDA.
        """
        model, length = self.model, self.grid.seq_len
        cache = model.new_cache(batch=batch, capacity=length + max(self.trees))
        cache.keys.normal_()
        cache.values.normal_()
        cache.lengths += length
        made, forward = {}, graphed_forward if graphs else eager_forward
        for count, (tree, _) in self.trees.items():  # a graph scans the slots of its cache
            own = cache
            if graphs:
                keys, values = (store.narrow(3, 0, length + count) for store in (cache.keys, cache.values))
                own = KVCache(keys, values, cache.lengths.clone())
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
    packed: bool = False,
) -> Subject:
    """A named model, or a config.json or its folder, with random weights and the grid's trees.

    Raises UsageError, SpecError.
    """
    name, config = decoder_config(given)
    trees = {1: (CandidateTree.chain(0), 1.0), **dict(sorted(grid.trees().items()))}
    deepest = max(tree.depth for tree, _ in trees.values())
    model, heads = random_weights(config, dtype=DTYPES[dtype], device=device, heads=deepest)
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
