"""Defaults and limits that more than one command uses, the same in the app and Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

DEFAULT_GPU = "a100-80gb-pcie"
DEFAULT_MODEL = "vicuna-7b"
DEFAULT_DRAFTERS = ("medusa", "eagle3", "ngram")
"""Drafters to take where none is named: the first of these that the runtime runs."""
DEFAULT_DRAFTER = DEFAULT_DRAFTERS[0]
DEFAULT_SEQ_LEN = 1024
"""Committed tokens of a step where neither a length nor a request is given."""
DEFAULT_CANDIDATES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
DEFAULT_BATCHES = (1, 64)
"""Smallest and largest batch that `recommend` searches."""
TYPICAL = "typical-"
"""Profiles for drafters of models that were never measured: an assumption, and called one."""
MAX_DRAFTS = 16
"""Longest draft that is searched."""
LONGEST_DRAFT = 64
"""Drafts, or heads, in a row at most."""
CANDIDATES_MAX = 256
"""Largest tree searched; verification has long been compute-bound there."""
FREE_WITHIN = 1.10
"""Overhead up to which candidates count as free."""
SWITCHING_GAIN = 0.03
"""A gain below this is not worth another row (docs/method.md, schedule)."""
KERNELS_ALONE = "cuda-graph"
"""Kernels in a graph, without an engine; it runs the trees of Medusa's heads, as no current engine does."""
ALONE = "kernel"
"""One kernel, timed alone: how rows of operators are timed."""
RUNS_CHAINS = "vllm"
"""The engine of everything that drafts chains: its newest version."""
LOAD_REQUESTS = 1000
"""Drawn requests of one run under load; `load`, Python and the app simulate as many, with as many seeds."""
LOAD_SEEDS = 3
LOAD_OUTPUT_TOKENS = 256.0
LOAD_PROMPT_TOKENS = DEFAULT_SEQ_LEN - LOAD_OUTPUT_TOKENS / 2.0
"""Of a request where none is given, in commands that need one: half way through its output it is as long as a
step of the others."""
LENGTH_CV = 0.4
"""Coefficient of variation of prompts and outputs: the outputs of ML.ENERGY's runs show 0.36 (they make the
requests in flight longer than the mean, docs/method-engines.md)."""
LOAD_SHARE = 0.9
"""Share of the requests that must keep the limits for a rate to count as carried."""
FIXED_BASELINE_BATCH = 1
FIXED_BASELINE_SEQ_LEN = 1024
"""The one decode step that the paper's Figures 22 and 23 divide by (docs/method.md, baselines)."""


def default_drafter(runs: Sequence[str] | None) -> str:
    """The drafter where none is named; runs: the drafters of the engine, None where there is none.

    >>> default_drafter(["draft-model", "mtp", "ngram"])
    'ngram'
    """
    if runs is None:
        return DEFAULT_DRAFTER
    return next((name for name in DEFAULT_DRAFTERS if name in runs), *runs[:1])


def request_length(prompt_tokens: float, output_tokens: float) -> int:
    """Committed tokens of a request half way through its output, where no other length is given."""
    return max(round(prompt_tokens + output_tokens / 2.0), 1)


LoadPrefix = Literal["system", "session"]
"""Whose the found part of a prompt is: one text of all requests, or what a session said before."""
Baseline = Literal["same", "fixed"]
"""What a step is divided by: the plain step of its own shape, or one fixed step (below)."""
