"""A recommendation as launch settings of serving engines, one module an engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from medusa_sim.errors import UsageError, unknown_name
from medusa_sim.export import llama_cpp, plain_json, sglang, tensorrt_llm, tgi, vllm
from medusa_sim.export.settings import EngineSettings
from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.specs.parallel import ONE
from medusa_sim.step.drafter import DRAFTERS

Writer = Callable[[Recommendation, str | None, str | None], EngineSettings]

WRITERS: dict[str, Writer] = {
    "vllm": vllm.settings,
    "sglang": sglang.settings,
    "tensorrt-llm": tensorrt_llm.settings,
    "tgi": tgi.settings,
    "llama-cpp": llama_cpp.settings,
    "json": plain_json.settings,
}
ENGINES: tuple[str, ...] = tuple(WRITERS)


def engine_settings(
    answer: Recommendation, engine: str, *, version: str | None = None, draft_path: str | None = None
) -> EngineSettings:
    """Launch settings of an engine; `draft_path` names the draft's checkpoint in them.

    Raises UsageError for an unknown engine, a version that the writer does not know, and everything
    that the engine cannot do, saying why.
    """
    if engine not in WRITERS:
        raise UsageError(unknown_name("engine", engine, ENGINES))
    found = WRITERS[engine](answer, version, draft_path)
    notes = (*_acceptance_note(answer), *_latency_note(answer), *_gpu_notes(answer, engine))
    return replace(found, notes=(*found.notes, *notes))


def _acceptance_note(answer: Recommendation) -> tuple[str, ...]:
    """That the acceptance is another drafter's than the one that is launched."""
    method, name = answer.drafting.method, answer.scenario.profile.name
    own = next((kind.name for kind in DRAFTERS.values() if name.startswith(kind.profiles[0])), method)
    if own == method:
        return ()
    return (
        f"{method} is launched, but acceptance {name} was measured with {own}: take --drafter {own}, or "
        "measure yours",
    )


def _latency_note(answer: Recommendation) -> tuple[str, ...]:
    """Batches that the limit of latency rules out, which the settings do not."""
    late = [row for row in answer.schedule if row.meets_latency is False]
    if not late:
        return ()
    told = ", ".join(f"{row.batch_min}..{row.batch_max} at length {row.seq_len}" for row in late)
    return (f"batch {told}: no way of running stays within {answer.question.max_latency_ms:g} ms a token",)


def _gpu_notes(answer: Recommendation, engine: str) -> tuple[str, ...]:
    """The options that share the model among GPUs, which the settings leave to the reader."""
    parallel = answer.scenario.parallel
    if parallel == ONE:
        return ()
    options = [_GPU_OPTIONS[engine].format(tp=parallel.tp)] if engine in _GPU_OPTIONS else []
    if engine == "vllm" and parallel.ep > 1:
        options.append("--enable-expert-parallel")
    if engine == "sglang":
        options += [f"--ep {parallel.ep}"] if parallel.ep > 1 else []
        options += [f"--enable-dp-attention --dp {parallel.tp}"] if parallel.dp_attention else []
    return (f"computed for {answer.scenario.cards}: start the engine with {' '.join(options) or 'as many'}",)


_GPU_OPTIONS = {
    "vllm": "--tensor-parallel-size {tp}",
    "sglang": "--tp {tp}",
    "tensorrt-llm": "tensor_parallel_size: {tp}",
    "tgi": "--num-shard {tp}",
}
