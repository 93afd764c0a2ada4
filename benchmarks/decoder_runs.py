"""Run the trained decoders over batches and tree sizes: what `validate --decoder` compares end to end.

    python benchmarks/decoder_runs.py out/runs --checkpoints profiles/checkpoints/python-stdlib-medusa-1

Greedy, on held-out prompts other than those that gave the head accuracies (benchmarks/decoder.py takes every
second window, this the others). Rows go to FOLDER/runs.csv beside the config of each model.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from medusa_sim.acceptance.profile import load_acceptance
from medusa_sim.decoder.checkpoint import load_checkpoint
from medusa_sim.decoder.tokenizer import load_tokenizer
from medusa_sim.decoder.training import corpus
from medusa_sim.errors import MedusaSimError
from medusa_sim.measure.decoder_runs import run_grid
from medusa_sim.measure.runs import RunRow, write_runs

WINDOWS, WINDOW_TOKENS, PROFILE_PROMPT_TOKENS, PROFILE_NEW_TOKENS = 128, 176, 48, 128
"""As benchmarks/decoder.py draws them."""
PROMPT_TOKENS = 96


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--checkpoints", type=Path, nargs="+", required=True)
    parser.add_argument("--batches", default="1,2,4,8")
    parser.add_argument("--candidates", default="4,8,16,32,48,64,96,128")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--new-tokens", type=int, default=80)
    parser.add_argument("--passes", type=int, default=2)
    given = parser.parse_args()
    texts = corpus.read_corpus()
    rows: list[RunRow] = []
    for folder in given.checkpoints:
        target = load_checkpoint(folder)
        name = folder.resolve().name
        accuracy = load_acceptance(name).heads
        if target.heads is None or accuracy is None:
            raise SystemExit(f"{folder}: a checkpoint with Medusa heads and a profile of its name are needed")
        windows = corpus.heldout_prompts(
            texts.heldout,
            load_tokenizer(folder),
            count=WINDOWS,
            prompt_tokens=PROFILE_PROMPT_TOKENS,
            continuation_tokens=PROFILE_NEW_TOKENS,
            seed=1,
        )
        prompts = [window[:PROMPT_TOKENS] for window in windows[1::2]][: given.prompts]
        for cell in run_grid(
            target,
            target.heads,
            prompts,
            accuracy,
            batches=[int(batch) for batch in given.batches.split(",")],
            candidates=[int(count) for count in given.candidates.split(",")],
            new_tokens=given.new_tokens,
            passes=given.passes,
        ):
            rows.append(
                RunRow(
                    model=name,
                    dtype="fp32",
                    acceptance=name,
                    batch=cell.batch,
                    candidates=cell.candidates,
                    depth=cell.depth,
                    seq_len=cell.seq_len,
                    repetition=cell.repetition,
                    steps=cell.steps,
                    step_us=cell.step_us,
                    tokens_per_step=cell.tokens_per_step,
                )
            )
            told = f"{cell.step_us:.0f} us, {cell.tokens_per_step:.2f} tokens a step"
            print(
                f"{name} pass {cell.repetition + 1} batch {cell.batch} candidates {cell.candidates}: {told}",
                file=sys.stderr,
            )
        (given.folder / name).mkdir(parents=True, exist_ok=True)
        text = json.dumps(target.model.config.to_hf(), indent=2) + "\n"
        (given.folder / name / "config.json").write_text(text, encoding="utf-8")
        write_runs(given.folder, rows)


if __name__ == "__main__":
    try:
        main()
    except MedusaSimError as error:
        raise SystemExit(f"Error: {error}") from None
