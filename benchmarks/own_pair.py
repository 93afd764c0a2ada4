"""Tokens per step of draft-model methods on the shipped pair, as rows like the RSD paper's tables.

    python benchmarks/own_pair.py > profiles/acceptance/rsd/own_pair.csv

Rejection sampling with the decoder on held-out prompts of the standard library: chains, SpecTr, RSD-C and
RSD-S at two temperatures. `error` is the standard error of block_efficiency between texts. About ten minutes.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
import torch
from common.agreement import ratio_of_sums
from common.script import command_line
from decoder import PROMPT_TOKENS, heldout_windows

from medusa_sim.lab.decoder.checkpoint import load_checkpoint
from medusa_sim.lab.decoder.generate import generate
from medusa_sim.lab.decoder.generation import GenerationSettings
from medusa_sim.lab.decoder.methods import SHIPPED_DRAFT, make_method

ROOT = Path(__file__).resolve().parents[1] / "profiles" / "checkpoints"
TARGET = "python-stdlib-medusa-1"
NEW_TOKENS = 112
DECODERS = {"sd": "SD", "spectr": "SpecTr", "rsd-c": "RSD-C", "rsd-s": "RSD-S"}
SHAPES = {
    "sd": ("1", "2", "3", "4", "5", "7", "10"),
    "spectr": ("2x2", "2x3", "4x3", "8x4"),
    "rsd-c": ("2-1", "2-2-1", "4-2-1", "8-1-1"),
    "rsd-s": ("2x2", "2x3", "4x3", "8x4"),
}
COLUMNS = "target draft task experiment decoder spec block_efficiency error draft_ratio"


def main() -> None:
    """Print the table."""
    parser = command_line(__doc__)
    parser.add_argument("--prompts", type=int, default=96)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--new-tokens", type=int, default=NEW_TOKENS, help="of each text")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[1.0, 0.6])
    given = parser.parse_args()
    torch.set_num_threads(1)
    target, draft = load_checkpoint(ROOT / TARGET), load_checkpoint(ROOT / SHIPPED_DRAFT)
    windows = heldout_windows(ROOT / TARGET, given.prompts, given.new_tokens, given.seed)
    prompts = [window[:PROMPT_TOKENS] for window in windows]
    ratio = draft.model.config.parameter_count / target.model.config.parameter_count
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(COLUMNS.split())
    for temperature in given.temperatures:
        settings = GenerationSettings(
            max_new_tokens=given.new_tokens, temperature=temperature, stop_at_end_of_text=False
        )
        for name, spec in ((name, spec) for name, shapes in SHAPES.items() for spec in shapes):
            method = make_method(name, target, draft=draft.model, tree=spec, temperature=temperature)
            found = generate(target.model, prompts, settings, method.drafter)
            accepted = [text.accepted_lengths for text in found.sequences]
            steps = np.array([len(each) for each in accepted], dtype=float)
            rate, error = ratio_of_sums(steps + [sum(each) for each in accepted], steps)
            experiment = "length" if name == "sd" else "budget"
            row = (TARGET, SHIPPED_DRAFT, f"standard library T {temperature:g}", experiment, DECODERS[name])
            out.writerow((*row, spec, f"{rate:.4f}", f"{error:.4f}", f"{ratio:.4f}"))
            sys.stdout.flush()


if __name__ == "__main__":
    main()
