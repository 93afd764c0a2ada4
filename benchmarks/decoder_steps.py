"""Measure decoding and verification steps of models with random weights: what `validate --decoder` reads.

    python benchmarks/decoder_steps.py out/steps --device cpu --dtype fp32 \
        --models benchmarks/models/llama-3m benchmarks/models/llama-50m --batches 1,2,4,8
    python benchmarks/decoder_steps.py out/steps --device cuda --dtype fp16 --models llama-7b \
        --batches 1,4,16 --candidates 16,32,48,64,80,96,112,128

Trees are the best of their size under the head accuracies of an acceptance profile; every step accepts two
draft tokens. Cells of a batch are timed in turns, in two passes over the grid.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

from medusa_sim.acceptance.heads import expected_tokens_per_step
from medusa_sim.acceptance.optimise import optimal_order
from medusa_sim.acceptance.profile import load_acceptance
from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.decoder.config import DecoderConfig, config_from_hf, read_config
from medusa_sim.errors import MedusaSimError
from medusa_sim.measure import hardware
from medusa_sim.measure.decoder_steps import step_grid
from medusa_sim.measure.environment import environment, torch_device
from medusa_sim.measure.kernels import DTYPES
from medusa_sim.measure.step_timing import random_weights
from medusa_sim.measure.steps import StepMeta, StepRow, write_steps
from medusa_sim.specs.models import load_model

ACCEPTED = 2


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--name", help="of the device, as in `medusa-sim measure --name`")
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="fp32")
    parser.add_argument("--models", nargs="+", required=True, help="names, or folders with a config.json")
    parser.add_argument("--batches", default="1,2,4,8")
    parser.add_argument("--candidates", default="4,8,16,32,48,64,96,128")
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--acceptance", default="medusa1-vicuna-7b", help="profile of head accuracies")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--passes", type=int, default=2)
    return parser.parse_args()


def decoder_config(name: str) -> tuple[str, DecoderConfig]:
    """A folder's config, or the sizes of a named model."""
    if Path(name).is_dir():
        return Path(name).name, read_config(Path(name))
    model = load_model(name)
    values = {
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": model.vocab,
        "hidden_size": model.hidden,
        "intermediate_size": model.intermediate,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "max_position_embeddings": model.max_seq_len,
    }
    return name, config_from_hf(values, name)


def trees_of(profile: str, counts: list[int]) -> dict[int, tuple[CandidateTree, float]]:
    """The best tree of each size and the tokens per step that it is expected to give."""
    heads = load_acceptance(profile).heads
    if heads is None:
        raise SystemExit(f"acceptance profile {profile} has no head accuracies")
    order = optimal_order(heads, max(counts))
    trees = {count: order.tree(count) for count in counts}
    return {count: (tree, expected_tokens_per_step(tree, heads)) for count, tree in trees.items()}


def _rows(given: argparse.Namespace, name: str, config: DecoderConfig, device: torch.device) -> list[StepRow]:
    counts = [int(count) for count in given.candidates.split(",") if int(count) > 1]
    chosen = trees_of(given.acceptance, counts)
    deepest = max(tree.depth for tree, _ in chosen.values())
    model, heads = random_weights(config, dtype=DTYPES[given.dtype], device=device, heads=deepest)
    rows = []
    for cell in step_grid(
        model,
        heads,
        {count: tree for count, (tree, _) in chosen.items()},
        batches=[int(batch) for batch in given.batches.split(",")],
        seq_len=given.seq_len,
        accepted=ACCEPTED,
        repeats=given.repeats,
        passes=given.passes,
    ):
        tokens = chosen[cell.candidates][1] if cell.candidates > 1 else 1.0
        rows.append(
            StepRow(
                model=name,
                dtype=given.dtype,
                batch=cell.batch,
                seq_len=cell.seq_len,
                candidates=cell.candidates,
                depth=cell.depth,
                repetition=cell.repetition,
                time_us=cell.timing.median_us,
                p10_us=cell.timing.p10_us,
                p90_us=cell.timing.p90_us,
                repeats=cell.timing.repeats,
                tokens_per_step=tokens,
            )
        )
        where = f"{name} pass {cell.repetition + 1} batch {cell.batch} candidates {cell.candidates}"
        print(f"{where}: {cell.timing.median_us:.0f} us", file=sys.stderr)
    return rows


def main() -> None:
    """Measure and write; rows of finished models are kept when a later one is interrupted."""
    given = _arguments()
    device = torch_device(given.device)
    seen = environment(device, given.name)
    given.folder.mkdir(parents=True, exist_ok=True)
    meta = StepMeta(
        schema=1,
        title=f"Steps of the decoder with random weights on {seen.device}",
        launched="cuda-graph" if device.type == "cuda" else "eager",
        acceptance=given.acceptance,
        accepted_draft_tokens=ACCEPTED,
        copy_bytes_per_s=hardware.rates(device, seen, (given.dtype,)).copy_bytes_per_s,
        environment=seen,
    )
    rows: list[StepRow] = []
    for given_name in given.models:
        name, config = decoder_config(given_name)
        rows += _rows(given, name, config, device)
        (given.folder / name).mkdir(exist_ok=True)
        text = json.dumps(config.to_hf(), indent=2) + "\n"
        (given.folder / name / "config.json").write_text(text, encoding="utf-8")
        write_steps(given.folder, meta, rows)
        first = min(row.time_us for row in rows if row.model == name and row.candidates == 1)
        read = config.parameter_count * DTYPES[given.dtype].itemsize / first * 1e6
        share = read / meta.copy_bytes_per_s
        print(
            f"{name}: the fastest decoding step reads weights at {read / 1e9:.1f} GB/s, {share:.0%} of the "
            f"copy bandwidth ({meta.copy_bytes_per_s / 1e9:.1f} GB/s)"
        )


if __name__ == "__main__":
    try:
        main()
    except MedusaSimError as error:
        raise SystemExit(f"Error: {error}") from None
