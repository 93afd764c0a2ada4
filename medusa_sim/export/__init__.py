"""A recommendation as launch settings of serving engines, one module an engine."""

from __future__ import annotations

from collections.abc import Callable

from medusa_sim.errors import UsageError, unknown_name
from medusa_sim.export import llama_cpp, plain_json, sglang, tensorrt_llm, tgi, vllm
from medusa_sim.export.settings import EngineSettings
from medusa_sim.plan.recommend import Recommendation

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


def exported(
    answer: Recommendation, engine: str, *, version: str | None = None, draft_path: str | None = None
) -> EngineSettings:
    """Launch settings of an engine; `draft_path` names the draft's checkpoint in them.

    Raises UsageError for an unknown engine, a version that the writer does not know, and everything
    that the engine cannot do, saying why.
    """
    if engine not in WRITERS:
        raise UsageError(unknown_name("engine", engine, ENGINES))
    return WRITERS[engine](answer, version, draft_path)
