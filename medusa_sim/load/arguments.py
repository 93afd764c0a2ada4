"""The arguments of a load test, each declared once, as those of a scenario are (`scenario.declare`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from medusa_sim.scenario.declare import ANY, FLAG, NUMBER, PATH, WHOLE, Declared, argument, declared
from medusa_sim.scenario.defaults import (
    LENGTH_CV,
    LOAD_OUTPUT_TOKENS,
    LOAD_PROMPT_TOKENS,
    LOAD_REQUESTS,
    LOAD_SEEDS,
    LOAD_SHARE,
    LoadPrefix,
)

NO_DRAFTS = "none"
DEFAULT_POLICIES = (NO_DRAFTS, "schedule")
BLOCK_TOKENS = 16
"""vLLM's block size."""
MOST_IN_STEP, MOST_TOKENS, _MOST_BLOCK_TOKENS = 4096, 131_072, 1024
"""Times are kept for every number of requests, and for every number of tokens."""
_MOST_WAITED = 1000
"""Steps that a prompt may have to wait."""
MOST_IN_RUN = 20_000_000
"""Requests of one run: some hundreds of bytes are kept of each."""
_LONGEST_PAUSE = 1e6
_MOST_MEAN = 1e8
MOST_SEEDS = 100
_REQUESTS, _SERVER, _ASKED = "Requests", "The server", "What is asked for"


@dataclass(frozen=True)
class LoadArguments(Declared):
    """Arguments of `medusa-sim load` besides the scenario and the rates."""

    policies: Sequence[Any] = argument(
        DEFAULT_POLICIES, ANY,
        "Policies, by commas: none, 3 (drafts), schedule, schedule=1:5,32:3,96:0, budget; "
        "as SGLang adaptive, throughput_aware; as TensorRT-LLM draft_len_schedule=4:4,8:2.",
        option="--policy",
    )  # fmt: skip
    trace: str | os.PathLike[str] | None = argument(
        None, PATH, "CSV or Parquet with the arrival, prompt and output tokens of each request.", _REQUESTS
    )
    users: int | None = argument(
        None, WHOLE, "A closed loop instead: this many always in flight.", _REQUESTS, least=1
    )
    think_s: float = argument(
        0.0, NUMBER, "Pause of a user between requests.", _REQUESTS, least=0, most=_LONGEST_PAUSE
    )
    requests: int = argument(LOAD_REQUESTS, WHOLE, "Requests to draw.", _REQUESTS, least=1, most=MOST_IN_RUN)
    burstiness: float = argument(
        1.0, NUMBER, "Shape of gamma-distributed gaps: 1 is Poisson, below comes in bursts.", _REQUESTS,
        least=0.01, most=10_000,
    )  # fmt: skip
    ramp: float = argument(
        1.0, NUMBER, "The rate grows linearly to this many times the first.", _REQUESTS, above=0
    )
    prompt_tokens: float = argument(
        LOAD_PROMPT_TOKENS, NUMBER, "Mean prompt.", _REQUESTS, least=1, most=_MOST_MEAN
    )
    output_tokens: float = argument(
        LOAD_OUTPUT_TOKENS, NUMBER, "Mean output.", _REQUESTS, least=1, most=_MOST_MEAN
    )
    length_cv: float = argument(
        LENGTH_CV, NUMBER,
        "Coefficient of variation of both lengths (log-normal; 0: all equal).",
        _REQUESTS, least=0, most=10,
    )  # fmt: skip
    ttft_ms: float | None = argument(None, NUMBER, "Limit of the time to the first token.", _ASKED, above=0)
    tpot_ms: float | None = argument(
        None, NUMBER, "Limit of a request's mean time per token.", _ASKED, above=0
    )
    e2e_ms: float | None = argument(None, NUMBER, "Limit of a request's whole time.", _ASKED, above=0)
    share: float = argument(
        LOAD_SHARE, NUMBER, "Share of requests within the limits from which a rate counts as carried.",
        _ASKED, above=0, most=1,
    )  # fmt: skip
    max_num_seqs: int | None = argument(
        None,
        WHOLE,
        "Most requests in a step [the engine's default for the GPU].",
        _SERVER,
        least=1,
        most=MOST_IN_STEP,
    )
    max_num_batched_tokens: int | None = argument(
        None,
        WHOLE,
        "Most tokens in a step, prompts included [the engine's default for the GPU].",
        _SERVER,
        least=1,
        most=MOST_TOKENS,
    )
    prompt_interval: int = argument(
        1, WHOLE,
        "Every how many steps one may carry prompts (vLLM prefill_schedule_interval, SGLang "
        "--prefill-decode-interval).",
        _SERVER, least=1, most=_MOST_WAITED,
    )  # fmt: skip
    prompt_wait: int | None = argument(
        None, WHOLE,
        "Steps that a prompt waits for others to ride with it (TensorRT-LLM batch_wait_timeout_iters) [the "
        "engine's].",
        _SERVER, least=0, most=_MOST_WAITED,
    )  # fmt: skip
    block_size: int = argument(
        BLOCK_TOKENS, WHOLE, "Tokens of a KV block.", _SERVER, least=1, most=_MOST_BLOCK_TOKENS
    )
    prefix_hit_rate: float = argument(
        0.0, NUMBER, "Share of a prompt's tokens found in the cache, below 1.", _REQUESTS, least=0, most=1
    )
    prefix: LoadPrefix = argument(
        "system",
        LoadPrefix,
        "What the cache holds: one text of all requests, or what each session said before.",
        _REQUESTS,
    )
    cancelled: float = argument(
        0.0, NUMBER,
        "Share of requests that the client cancels, at a random point of the output; they count in no "
        "latency and no goodput.",
        _REQUESTS, least=0, most=1,
    )  # fmt: skip
    seeds: int | None = argument(
        None, WHOLE,
        f"Runs of each policy and rate, on the same draws [{LOAD_SEEDS}; a trace: 1].",
        _REQUESTS, least=1, most=MOST_SEEDS,
    )  # fmt: skip
    drop_long: bool = argument(
        False, FLAG, "Leave out requests that model or KV cache cannot hold.", _REQUESTS
    )


LOAD = declared(LoadArguments)
"""Arguments of a load test, by name."""
