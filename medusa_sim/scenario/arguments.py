"""The arguments of a scenario, each declared once (`scenario.declare`).

Options of the command line, checks in Python, `Scenario.command`, files of parts, help pages and inputs of
the app follow from the fields of `Arguments`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, get_args

from medusa_sim.file_types import CACHES
from medusa_sim.file_types import NAMES as FILE_NAMES
from medusa_sim.latency.by_name import Fallback, LatencyName
from medusa_sim.scenario.declare import (
    ANY,
    FLAG,
    FOLDER,
    GPU,
    LATENCY,
    MODEL,
    NUMBER,
    PATH,
    RUNTIME,
    WHOLE,
    WORD,
    Argument,
    Declared,
    argument,
    declared,
)
from medusa_sim.scenario.defaults import (
    DEFAULT_DRAFTERS,
    DEFAULT_GPU,
    DEFAULT_MODEL,
    KERNELS_ALONE,
    LENGTH_CV,
    LOAD_OUTPUT_TOKENS,
    LOAD_PROMPT_TOKENS,
    LONGEST_DRAFT,
    MAX_DRAFTS,
    RUNS_CHAINS,
    Baseline,
)
from medusa_sim.step import OverlapName, Scope

if TYPE_CHECKING:
    from medusa_sim.data import DataDir
    from medusa_sim.engines.runtime import Runtime
    from medusa_sim.gpus.gpu import Gpu
    from medusa_sim.latency.model import LatencyModel
    from medusa_sim.models.named import ModelName
    from medusa_sim.scenario.acceptance import Given

MOST_TOKENS = 10**9
"""Of a prompt or an output."""
_DTYPES = ("fp16", "bf16", "fp32", "fp8", "fp8_block", "int8", "nvfp4")
_WEIGHTS_ALONE = ("int4", "mxfp4")
_WEIGHTS = (*_DTYPES, *_WEIGHTS_ALONE)
_MACHINE, _DRAFTS, _FORMATS = "Engine and GPUs", "Drafts and acceptance", "Number formats"
_REQUESTS, _ASKED = "Requests", "What is asked for"


@dataclass(frozen=True, eq=False)
class Arguments(Declared):
    """The arguments of a scenario: names, files or loaded objects."""

    always: ClassVar[tuple[str, ...]] = ("gpu", "model", "drafter")

    gpu: str | Gpu = argument(
        DEFAULT_GPU, GPU, "GPU (`medusa-sim specs` lists them).", _MACHINE, names="gpu", label="GPU"
    )
    model: ModelName = argument(
        DEFAULT_MODEL,
        MODEL,
        "Model, or the path of a Hugging Face config.json or GGUF file.",
        _MACHINE,
        names="model",
        label="Model",
    )
    runtime: str | Runtime | None = argument(
        None, RUNTIME,
        f"The engine, or how kernels launch [by the drafter: medusa {KERNELS_ALONE}, others {RUNS_CHAINS}].",
        _MACHINE, names="runtime", label="Engine",
    )  # fmt: skip
    drafter: str | None = argument(
        None, WORD,
        "What drafts: {names} [the first of " + ", ".join(DEFAULT_DRAFTERS) + " that the runtime runs].",
        _DRAFTS, names="drafter", label="Drafter",
    )  # fmt: skip
    acceptance: Given = argument(
        None, ANY,
        "Profile, file, rate of every draft (0.7), share of all steps by draft (0.78,0.60,0.42), "
        "conditional:0.78,0.77,0.70, mean length@drafts (2.8@3) or share of all drafts@drafts (60%@3) "
        "[the model's profile, else a borrowed one].",
        _DRAFTS, names="profile", label="Acceptance",
    )  # fmt: skip
    heads: int | None = argument(
        None, WHOLE,
        "Trained Medusa heads; a tree uses one for each level [all of the profile; curves: 5].",
        _DRAFTS, least=1, most=LONGEST_DRAFT, label="Medusa heads",
    )  # fmt: skip
    draft_model: ModelName | None = argument(
        None, MODEL, "Model of --drafter draft-model and pard.", _DRAFTS, names="model", label="Draft model"
    )
    draft_runtime: str | Runtime | None = argument(
        None, RUNTIME, "How the draft model launches [as --runtime].", _DRAFTS, names="runtime"
    )
    draft_vocab: int | None = argument(
        None, WHOLE, "Output tokens of an EAGLE layer's own head.", _DRAFTS, least=1
    )
    max_drafts: int = argument(
        MAX_DRAFTS, WHOLE, "Longest draft that is searched (num_speculative_tokens).", _DRAFTS,
        least=1, most=LONGEST_DRAFT,
    )  # fmt: skip
    chain_only: bool | None = argument(
        None, FLAG, "Search chains only, or trees too [chains where the runtime has no tree attention].",
        _DRAFTS, option="--chain-only/--trees",
    )  # fmt: skip
    match_rate: float | None = argument(
        None, NUMBER,
        "ngram, suffix: share of steps that find drafts [the profile's, else its first rate / 0.53].",
        _DRAFTS, above=0,
    )  # fmt: skip
    p_min: float = argument(
        0.0, NUMBER,
        "llama.cpp's --spec-draft-p-min: a draft ends before a token of lower probability.",
        _DRAFTS, least=0, most=0.99, label="p-min",
    )  # fmt: skip
    prompt_tokens: float | None = argument(
        None, NUMBER,
        "Mean prompt of a server's requests; speedups and rates are then the server's "
        f"[engines without --seq: {LOAD_PROMPT_TOKENS:g} in, {LOAD_OUTPUT_TOKENS:g} out; sweep: none].",
        _REQUESTS, least=1, most=MOST_TOKENS,
    )  # fmt: skip
    output_tokens: float | None = argument(
        None, NUMBER, "Mean output of these requests (with --prompt-tokens).", _REQUESTS,
        least=1, most=MOST_TOKENS,
    )  # fmt: skip
    length_cv: float = argument(
        LENGTH_CV, NUMBER,
        "Coefficient of variation of both lengths (log-normal; 0: all equal).",
        _REQUESTS, least=0, most=10,
    )  # fmt: skip
    workload: str | None = argument(
        None, WORD,
        "MT-bench category (writing, coding, ...) whose acceptance rate to use [the average].",
        _DRAFTS,
    )  # fmt: skip
    lossless: bool = argument(
        False, FLAG,
        "Lossless output: greedy instead of typical acceptance.",
        _DRAFTS,
    )  # fmt: skip
    dtype: str | None = argument(
        None,
        WORD,
        "Arithmetic of the linear layers [the model's].",
        _FORMATS,
        choices=_DTYPES,
        belong_to=("--weight-dtype", _WEIGHTS_ALONE),
        label="Arithmetic",
    )
    weight_dtype: str | None = argument(
        None, WORD,
        "Stored weights [as --dtype]; llama.cpp and MLX: the type of the file (Q4_K_M, Q8_0, 4bit ...).",
        _FORMATS, choices=_WEIGHTS, others=FILE_NAMES, label="Weights",
    )  # fmt: skip
    kv_dtype: str | None = argument(
        None,
        WORD,
        "KV cache; llama.cpp: q8_0, q4_0 ... too.",
        _FORMATS,
        choices=("fp16", "bf16", "fp32", "fp8"),
        others=CACHES,
        label="KV cache",
    )
    tp: int = argument(
        1, WHOLE, "GPUs that share the model (tensor parallelism).", _MACHINE, least=1, label="GPUs"
    )
    ep: int = argument(
        1, WHOLE, "Groups of GPUs, each with experts of its own; 1 splits every expert.",
        _MACHINE, least=1, label="Whole experts on each GPU",
    )  # fmt: skip
    dp_attention: bool = argument(
        False,
        FLAG,
        "Each GPU has sequences of its own in attention (SGLang's --enable-dp-attention).",
        _MACHINE,
    )
    overlap: OverlapName | None = argument(
        None,
        OverlapName,
        "How far candidates of one sequence choose the same experts [chain; tree where trees run].",
        _MACHINE,
    )
    latency: LatencyName | LatencyModel = argument(
        "calibrated", LATENCY,
        "roofline: datasheet limits. calibrated: fitted kernels. measured: recorded rows.",
        _MACHINE, choices=get_args(LatencyName),
    )  # fmt: skip
    kernels: str | None = argument(
        None, WORD,
        "Kernel set [torch for fp16, sglang for bf16 and fp8, paper with --runtime paper].",
        _MACHINE,
    )  # fmt: skip
    bench: str | os.PathLike[str] | None = argument(
        None, PATH,
        "Output of llama-bench, llama-batched-bench, mlx-lm's benchmark or llama-server on your machine, "
        "which corrects its times.",
        _MACHINE,
    )  # fmt: skip
    power_limit: float | None = argument(
        None, NUMBER,
        "llama.cpp and MLX: watts that the GPU may take; slows arithmetic, not memory [no limit].",
        _MACHINE, above=0, most=2000,
    )  # fmt: skip
    fallback: Fallback = argument(
        "refuse",
        Fallback,
        "With --latency measured: refuse shapes without rows, or predict them as calibrated.",
        _MACHINE,
    )
    scope: Scope = argument(
        "model", Scope, "model: all that an engine runs. block: the Medusa paper's simplified block.", _ASKED
    )
    baseline: Baseline = argument(
        "same",
        Baseline,
        "Divide by plain decoding at the same shape, or (the paper's plots) at batch 1, length 1024.",
        _ASKED,
    )
    price: float | None = argument(
        None, NUMBER,
        "Dollars per GPU-hour [the list price of `medusa-sim specs prices`, where there is one].",
        _ASKED, above=0,
    )  # fmt: skip
    data_dir: DataDir = argument(
        None, FOLDER,
        "Your own GPUs, profiles and runtimes, searched first "
        "[$MEDUSA_SIM_DATA_DIR, else the user's data folder].",
        "Output", names="data_dir",
    )  # fmt: skip


ARGUMENTS = declared(Arguments)
"""The arguments of a scenario by name."""


def words_of(given: Mapping[str, object], known: Mapping[str, Argument] = ARGUMENTS) -> list[str]:
    """Arguments as words of the command line. Raises UsageError for an object that no option can name."""
    return [word for name, value in given.items() for word in known[name].words(value)]
