"""What `train` and `decode` take, each argument declared once (`scenario.declare`).

Free of torch: the commands' help pages read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from medusa_sim.scenario.declare import (
    ANY,
    FLAG,
    FOLDER,
    NUMBER,
    PATH,
    REQUIRED,
    WHOLE,
    WORD,
    Declared,
    argument,
)

AcceptanceRule = Literal["rejection", "typical", "greedy"]
Match = Literal["earliest", "latest"]
Launch = Literal["eager", "static", "cuda-graph"]
Training = Literal["backbone", "medusa-1", "medusa-2"]
TrainingText = Literal["text", "self"]
Schedule = Literal["constant", "sine"]
Dtype = Literal["fp32", "bf16", "fp16"]
DecodedDtype = Literal["fp32", "bf16", "fp16", "fp64"]

ACCEPTANCE_RULE: AcceptanceRule = "rejection"
MATCH: Match = "earliest"
NGRAM_MAX = 3
HEADS = 5
HEAD_LAYERS = 1
LAMBDA_0 = 0.2
SCHEDULE: Schedule = "constant"
"""Defaults of `decode` and `train`, and of what they are made of."""

METHODS = ("medusa", "ar", "sd", "specinfer", "spectr", "rsd-c", "rsd-s", "ngram")
SEED_MAX = 2**32 - 1
"""A text or training step draws from a multiple of the seed, in 64 bits."""


def packed_weights() -> bool:
    """The argument `--packed`, which `decode` and what is measured for it take alike (`decoder.packed`)."""
    given: bool = argument(
        False, FLAG,
        "On a CPU: weights of linear layers laid out once for its library (twice the memory).",
        option="--packed/--no-packed",
    )  # fmt: skip
    return given


@dataclass(frozen=True, kw_only=True)
class Recipe(Declared):
    """What to train and how.

    Heads go on from those of the checkpoint, if it has any; the three settings of heads are for new ones. On
    its own text (`data` self) Medusa-2 learns by KL to itself, without an adapter.
    """

    method: Training = argument(
        REQUIRED, WORD,
        "backbone: a small Llama from scratch. medusa-1: heads only. medusa-2: heads and a LoRA adapter.",
        choices=get_args(Training),
    )  # fmt: skip
    save: Path = argument(
        REQUIRED, PATH,
        "Folder of the checkpoint to write: a new one, an empty one, or with --overwrite one of its own.",
    )  # fmt: skip
    checkpoint: Path | None = argument(None, PATH, "Checkpoint folder to start from.")
    data: TrainingText = argument(
        "text", WORD,
        "text: Python source. self: continuations that the model writes itself (self-distillation).",
        choices=get_args(TrainingText),
    )  # fmt: skip
    text_folder: Path | None = argument(
        None, FOLDER, "Folder of .py files [default: this Python's standard library without its tests].",
        option="--text",
    )  # fmt: skip
    steps: int = argument(2000, WHOLE, "Training steps.", least=1)
    batch: int = argument(16, WHOLE, "Texts per step.", least=1)
    length: int = argument(256, WHOLE, "Tokens per text.", least=8)
    learning_rate: float | None = argument(None, NUMBER, "Peak [default: by method].", above=0)
    seed: int = argument(0, WHOLE, "Of everything that is drawn.", least=0, most=SEED_MAX)
    vocab: int = argument(1024, WHOLE, "Of a new tokenizer.", least=257)
    hidden: int = argument(128, WHOLE, "Width of a new backbone.", least=8)
    intermediate: int = argument(384, WHOLE, "Width of its feed-forward blocks.", least=8)
    layers: int = argument(5, WHOLE, "Its layers.", least=1)
    attention_heads: int = argument(4, WHOLE, "Its query heads.", least=1)
    kv_heads: int = argument(2, WHOLE, "Its heads of keys and values.", least=1)
    medusa_heads: int | None = argument(
        None, WHOLE, f"New heads, where the checkpoint has none [default: {HEADS}].", least=1
    )
    medusa_layers: int | None = argument(
        None, WHOLE, f"Residual blocks of a new head [default: {HEAD_LAYERS}].", least=1
    )
    own_output: bool | None = argument(
        None, FLAG, "An output layer per new head, or the LM head [default: own].",
        option="--own-output/--shared-output",
    )  # fmt: skip
    lambda_0: float = argument(LAMBDA_0, NUMBER, "Weight of the heads' loss in medusa-2.")
    schedule: Schedule = argument(
        SCHEDULE, WORD, "Of that weight over the steps.", choices=get_args(Schedule)
    )
    responses: int = argument(512, WHOLE, "Own texts with --data self.", least=1)
    temperature: float = argument(0.7, NUMBER, "Of own texts.", least=0)
    dtype: Dtype = argument("fp16", WORD, "Of the saved weights.", choices=get_args(Dtype))
    compiled: bool = argument(
        False, FLAG, "torch.compile the loss (needs a C++ compiler).", option="--compile/--no-compile"
    )
    overwrite: bool = argument(False, FLAG, "Replace files that are there and are not this command's own.")


@dataclass(frozen=True, kw_only=True)
class Request(Declared):
    """What `decode` is asked of these texts; None where the default decides."""

    texts: list[str]
    checkpoint: str | None = argument(
        None, WORD, "Folder or name of a shipped checkpoint [default: the shipped Medusa-2 model]."
    )
    head_file: Path | None = argument(None, PATH, "Medusa heads of a Medusa-1 repository.")
    draft: str | None = argument(None, WORD, "Folder or name of the draft model [default: the shipped one].")
    method: str = argument("medusa", WORD, "How drafts are made and verified.", choices=METHODS)
    tree: str | None = argument(
        None, WORD,
        "medusa: auto (what pays here; the default), candidates (64), branching (4-2-1), file. sd, ngram: "
        "length (4). specinfer, rsd-c: branching (2-2-1). spectr, rsd-s: paths or beams x depth (4x3).",
    )  # fmt: skip
    acceptance_rule: AcceptanceRule = argument(
        ACCEPTANCE_RULE, WORD,
        "How drafts are accepted above temperature 0; rejection keeps the model's distribution.",
        choices=get_args(AcceptanceRule), option="--rule",
    )  # fmt: skip
    acceptance: str | None = argument(
        None, WORD,
        "Profile (name or file) whose head accuracies shape medusa's trees [the checkpoint's].",
    )  # fmt: skip
    ngram_max: int = argument(NGRAM_MAX, WHOLE, "ngram: longest n looked up.", least=1, most=64)
    match: Match = argument(MATCH, WORD, "ngram: which earlier copy is continued.", choices=get_args(Match))
    chat: bool = argument(False, FLAG, "Put each prompt into the checkpoint's chat template.")
    keep_space: bool = argument(
        False, FLAG, "Keep a prompt's last space, which words of the model bring along."
    )
    temperature: float = argument(0.6, NUMBER, "0 is greedy.", least=0)
    max_new_tokens: int = argument(128, WHOLE, "Longest continuation.", least=1)
    seed: int = argument(0, WHOLE, "Of everything that is drawn.", least=0, most=SEED_MAX)
    dtype: DecodedDtype | None = argument(
        None, WORD, "[default: fp32 on a CPU, else the half precision of the checkpoint]",
        choices=get_args(DecodedDtype),
    )  # fmt: skip
    device: str = argument("cpu", WORD, "cpu, cuda, cuda:1, ...")
    threads: int | None = argument(
        None, ANY,
        "CPU threads [default: 1 for a small model, whose products are too small to share; else all].",
        names="threads",
    )  # fmt: skip
    launch: Launch = argument(
        "eager", WORD, "How the pass of a verification step is launched.", choices=get_args(Launch)
    )
    packed: bool = packed_weights()
    plain: bool = argument(True, FLAG, "Also decode plainly, for comparison.", option="--plain/--no-plain")
    data_dir: Path | None = None
