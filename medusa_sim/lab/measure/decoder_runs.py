"""Whole generations on a grid of batches and tree sizes: tokens per step and wall clock of the real thing.

Beside them acceptance profiles that say how far texts differ, and in what runs a look-up finds drafts:

    <folder>/<model>/heads.toml    the checkpoint's profile with `request_spread` of a chain of all heads
    <folder>/<model>/ngram.toml    a look-up of LOOKED_UP drafts by position

Greedy, on held-out prompts other than those that gave the head accuracies of the checkpoint's profile
(`benchmarks/decoder.py` takes every second window, this the others).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from medusa_sim.acceptance.engine_counters import over_every_step, position_profile, profile_text
from medusa_sim.acceptance.heads import HeadAccuracy, optimal_order
from medusa_sim.acceptance.profile import acceptance_path, load_acceptance
from medusa_sim.acceptance.profile_file import encoded_profile, read_profile
from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.errors import UsageError
from medusa_sim.lab.decoder.checkpoint import DTYPES, Checkpoint, load_checkpoint
from medusa_sim.lab.decoder.generate import generate
from medusa_sim.lab.decoder.generation import GenerationSettings
from medusa_sim.lab.decoder.medusa_drafter import MedusaDrafter
from medusa_sim.lab.decoder.methods import required_heads
from medusa_sim.lab.decoder.ngram_drafter import NgramDrafter
from medusa_sim.lab.decoder.packed import pack
from medusa_sim.lab.decoder.tokenizer import load_tokenizer
from medusa_sim.lab.decoder.training import corpus
from medusa_sim.lab.decoder.training.evaluate import mean_tokens_per_step
from medusa_sim.lab.decoder.trials import acceptance_counts
from medusa_sim.lab.measure.arguments import RunGrid, Tell
from medusa_sim.lab.measure.cells import RunRow, cell_name, write_config, write_runs
from medusa_sim.lab.measure.turns import step_clock
from medusa_sim.units import US_PER_S
from medusa_sim.writing import write_text

WINDOWS, WINDOW_TOKENS, NEW_TOKENS = 128, 48, 128
"""Windows of held-out text: how many, tokens of a prompt and of its continuation, as benchmarks/decoder.py
draws them."""
PROMPT_TOKENS = 96
LOOKED_UP = 5
"""Drafts of a look-up in the text."""


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


def write_profiles(
    folder: Path, target: Checkpoint, prompts: Sequence[Sequence[int]], *, new_tokens: int
) -> Iterator[str]:
    """The profiles of a checkpoint, with what each measured in words. Raises DataError, OutputError."""
    name = target.path.resolve().name
    heads = required_heads(target)
    settings = GenerationSettings(max_new_tokens=new_tokens, stop_at_end_of_text=False)
    chain = MedusaDrafter(target.model, heads, CandidateTree.chain(heads.count))
    spread = acceptance_counts(target.model, prompts, settings, chain, heads.count).spread
    known = read_profile(acceptance_path(name))
    whole = msgspec.structs.replace(known, request_spread=None if spread is None else round(spread, 3))
    counts = acceptance_counts(target.model, prompts, settings, NgramDrafter(length=LOOKED_UP), LOOKED_UP)
    every, match_rate = over_every_step(counts)
    looked_up = position_profile(
        every,
        title=f"Look-up of {LOOKED_UP} drafts in texts of {name}, greedy",
        source=f"medusa-sim measure runs: {len(prompts)} held-out prompts, {new_tokens} tokens each",
        match_rate=match_rate,
    )
    for file, profile in (("heads.toml", whole), ("ngram.toml", looked_up)):
        path = folder / name / file
        write_text(path, encoded_profile(profile))
        yield f"wrote {path}: {profile_text(profile)}"


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
