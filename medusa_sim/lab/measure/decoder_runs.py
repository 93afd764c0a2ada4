"""Whole generations on a grid of batches and tree sizes: tokens per step and wall clock of the real thing.

Greedy, on held-out prompts other than those that gave the head accuracies of the checkpoint's profile
(`benchmarks/decoder.py` takes every second window, this the others).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from medusa_sim.acceptance.heads import HeadAccuracy, optimal_order
from medusa_sim.acceptance.profile import load_acceptance
from medusa_sim.errors import UsageError
from medusa_sim.lab.decoder.checkpoint import DTYPES, Checkpoint, load_checkpoint
from medusa_sim.lab.decoder.generate import generate
from medusa_sim.lab.decoder.generation import GenerationSettings
from medusa_sim.lab.decoder.medusa_drafter import MedusaDrafter
from medusa_sim.lab.decoder.methods import required_heads
from medusa_sim.lab.decoder.packed import pack
from medusa_sim.lab.decoder.tokenizer import load_tokenizer
from medusa_sim.lab.decoder.training import corpus
from medusa_sim.lab.decoder.training.evaluate import mean_tokens_per_step
from medusa_sim.lab.measure.acceptance_profiles import write_profiles
from medusa_sim.lab.measure.arguments import RunGrid, Tell
from medusa_sim.lab.measure.cells import RunRow, cell_name, write_config, write_runs
from medusa_sim.lab.measure.turns import step_clock
from medusa_sim.units import US_PER_S

WINDOWS, WINDOW_TOKENS, NEW_TOKENS = 128, 48, 128
"""Windows of held-out text: how many, tokens of a prompt and of its continuation, as benchmarks/decoder.py
draws them."""
PROMPT_TOKENS = 96


def measure_decoder_runs(folder: Path, grid: RunGrid, tell: Tell = lambda _: None) -> None:
    """Run every checkpoint and write the rows to `folder`; checkpoints that are done outlast an interrupt.

    A checkpoint's acceptance profile has the name of its folder. Raises UsageError for one without Medusa
    heads or such a profile, SpecError, OutputError.
    """
    texts = corpus.read_corpus()
    rows: list[RunRow] = []
    for path in grid.checkpoint:
        target = load_checkpoint(path, dtype=DTYPES[grid.dtype])
        name = path.resolve().name
        accuracy = load_acceptance(name).heads
        if target.heads is None or accuracy is None:
            raise UsageError(f"{path}: a checkpoint with Medusa heads and a profile of its name are needed")
        windows = corpus.file_windows(
            texts.heldout,
            load_tokenizer(path),
            count=WINDOWS,
            prompt_tokens=WINDOW_TOKENS,
            continuation_tokens=NEW_TOKENS,
            seed=1,
        )
        prompts = [window[:PROMPT_TOKENS] for window in windows[1::2]]
        if grid.packed:
            pack(target.model, target.heads)
        write_config(folder, name, target.model.config.to_hf())
        for row in run_grid(target, prompts[: grid.prompts], accuracy, grid):
            rows.append(row)
            tell(f"{cell_name(row)}: {row.step_us:.0f} us, {row.tokens_per_step:.2f} tokens per step")
        write_runs(folder, rows)
        for line in write_profiles(folder, target, prompts, new_tokens=grid.new_tokens):
            tell(line)


def run_grid(
    target: Checkpoint, prompts: Sequence[Sequence[int]], accuracy: HeadAccuracy, grid: RunGrid
) -> Iterator[RunRow]:
    """Cells of every pass, batch by batch; plain decoding is run besides the given counts.

    accuracy: of the heads, which decides the tree of each size. Raises UsageError where a batch does not
    divide the prompts, or for a checkpoint without heads.
    """
    heads, name = required_heads(target), target.path.resolve().name
    uneven = [batch for batch in grid.batches if len(prompts) % batch]
    if uneven:
        raise UsageError(f"{len(prompts)} prompts do not make whole batches of {uneven[0]}")
    order, clock = optimal_order(accuracy, max(grid.candidates)), step_clock()
    trees = {1: None} | {count: order.tree(count) for count in sorted(grid.candidates) if count > 1}
    settings = GenerationSettings(max_new_tokens=grid.new_tokens, stop_at_end_of_text=False)
    for repetition in range(grid.passes):
        for batch in grid.batches:
            for count, tree in trees.items():
                drafter = None if tree is None else MedusaDrafter(target.model, heads, tree)
                generate(target.model, prompts[:batch], replace(settings, max_new_tokens=4), drafter)
                runs = [
                    generate(target.model, prompts[i : i + batch], settings, drafter, clock=clock)
                    for i in range(0, len(prompts), batch)
                ]
                steps = sum(max(sequence.steps for sequence in run.sequences) for run in runs)
                yield RunRow(
                    model=name,
                    dtype=grid.dtype,
                    acceptance=name,
                    batch=batch,
                    candidates=count,
                    depth=0 if tree is None else tree.depth,
                    seq_len=len(prompts[0]) + grid.new_tokens // 2,
                    repetition=repetition,
                    steps=steps,
                    step_us=US_PER_S * sum(run.decode_s for run in runs) / steps,
                    tokens_per_step=mean_tokens_per_step([s for run in runs for s in run.sequences]),
                )
