"""One engine of vLLM in this process, stepped by hand, with its counters of speculation."""

from __future__ import annotations

import time
from typing import Any

from vllm_timing import clock

Plan = dict[str, Any]

BLOCK_TOKENS = 32
"""Of a block of the K/V cache: the smallest that the CPU kernels take, so that repeated prompts are found."""


class Counters:
    """Stands where the engine logs: the scheduler's counters of speculation, summed since `clear`."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Start from zero."""
        self.drafts, self.drafted, self.accepted = 0, 0, 0

    def record(self, *, scheduler_stats: Any, **_: Any) -> None:
        """One step's counters."""
        seen = scheduler_stats.spec_decoding_stats
        if seen is not None:
            self.drafts += seen.num_drafts
            self.drafted += seen.num_draft_tokens
            self.accepted += seen.num_accepted_tokens

    def log(self) -> None:
        """Nothing: the engine calls this every few seconds."""


class Engine:
    """One `LLM` in this process, stepped by hand."""

    def __init__(self, plan: Plan, method: str, drafts: int) -> None:
        from vllm import LLM  # after the environment is set

        started = time.perf_counter()
        self.method, self.drafts = method, drafts
        self.llm = LLM(
            plan["target"],
            skip_tokenizer_init=True,
            dtype=plan["dtype"],
            max_model_len=plan["max_tokens"],
            max_num_seqs=max(plan["batches"]),
            max_num_batched_tokens=plan.get("prefill_tokens", 8192),
            block_size=BLOCK_TOKENS,
            kv_cache_memory_bytes=plan["kv_bytes"],
            enable_prefix_caching=plan.get("prefix_caching", True),
            enforce_eager=True,
            speculative_config=speculation(plan, method, drafts),
            disable_log_stats=False,
            seed=0,
        )
        self.engine = self.llm.llm_engine
        self.counters = self.engine.logger_manager = Counters()
        self.started_s = time.perf_counter() - started
        self._requests = 0
        keep_kernels_registered()

    @property
    def runner(self) -> Any:
        """VLLM's model runner, which holds the loaded modules and the K/V cache."""
        return self.engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner

    def begin(self, prompts: list[list[int]], new_tokens: int) -> list[str]:
        """Queue prompts, greedy; returns request ids."""
        from vllm import SamplingParams

        sampling = SamplingParams(ignore_eos=True, detokenize=False, temperature=0, max_tokens=new_tokens)
        names = []
        for prompt in prompts:
            self._requests += 1
            names.append(f"request-{self._requests}")
            self.engine.add_request(names[-1], {"prompt_token_ids": prompt}, sampling)
        return names

    def step(self) -> tuple[float, list[Any]]:
        """One engine step: seconds by `clock` and what it emitted."""
        started = clock()
        outputs = self.engine.step()
        return clock() - started, outputs

    def row(self, kind: str, **found: object) -> dict[str, object]:
        """A line of the record: which engine, what was found, its counters since they were cleared."""
        seen = self.counters
        counted = {"drafting": seen.drafts, "drafted": seen.drafted, "accepted": seen.accepted}
        return {"row": kind, "method": self.method, "drafts": self.drafts, **found, **counted}

    def end(self, requests: list[str]) -> None:
        """Abort requests."""
        if requests:
            self.engine.abort_request(requests)


def speculation(plan: Plan, method: str, drafts: int) -> dict[str, object] | None:
    """`speculative_config` of a method."""
    if method == "plain":
        return None
    if method == "ngram":
        least, most = plan["ngram"]
        sizes = {"prompt_lookup_min": least, "prompt_lookup_max": most}
        return {"method": "ngram", "num_speculative_tokens": drafts, **sizes}
    return {"method": "draft_model", "model": plan["draft"], "num_speculative_tokens": drafts}


def keep_kernels_registered() -> None:
    """A second engine of a process registers the CPU's kernels again and fails on its own wrappers (0.32)."""
    from vllm.platforms import current_platform

    kind = type(current_platform)
    if hasattr(kind, "register_triton_kernel_overrides"):
        kind.register_triton_kernel_overrides = classmethod(lambda cls: None)


def prompts_of(count: int, tokens: int, vocab: int) -> list[list[int]]:
    """Different for every request, the same in every pass, no token twice near another."""
    return [[3 + (131 * r + 7 * i * (r + 1)) % (vocab - 3) for i in range(tokens)] for r in range(count)]
