"""The whole command that starts an engine for a set-up: model, GPUs, precision, requests, KV cache, drafts.

Options are those of vLLM 0.33 (vllm/engine/arg_utils.py: --tensor-parallel-size, --data-parallel-size,
--enable-expert-parallel, --max-num-seqs, --max-model-len, --kv-cache-dtype, --quantization), SGLang 0.5
(sglang/srt/server_args.py: --tp, --ep, --dp, --enable-dp-attention, --max-running-requests, --context-length)
and TensorRT-LLM 1.2 (tensorrt_llm/commands/serve.py: --tp_size, --ep_size, --max_batch_size, --max_seq_len,
--config; llm_args.py: enable_attention_dp, kv_cache_config). What speculates is `engine_settings`' own text.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from medusa_sim.errors import UsageError, unknown_name
from medusa_sim.export import exports
from medusa_sim.export.engines import engine_settings
from medusa_sim.export.settings import EngineExport, EngineSettings, option_words, parallel_values
from medusa_sim.load.arguments import LoadArguments
from medusa_sim.load.limits import limits_of
from medusa_sim.models.checkpoints import drafter_id, weights_id
from medusa_sim.models.named import checkpoint_ids
from medusa_sim.outside.escaping import for_comment
from medusa_sim.plan.recommend import recommend
from medusa_sim.scenario.question import Question as Recommended
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.setups.comparison import Comparison
from medusa_sim.setups.setup import NO_DRAFTER
from medusa_sim.units import HALVES

_SERVED = {str(name): engine for name, engine in exports().items() if engine.launch_options}
"""Engines that a whole command is written for."""
_STORED = {"fp8_wo": "fp8", "nvfp4_wo": "nvfp4"}
"""Stored format of weights that are unpacked to 16 bits."""


def chosen_command(answer: Comparison, row: Mapping[str, Any], draft_path: str | None = None) -> str:
    """The command for one copy of a row's set-up, with the settings of a recommendation for its batches.

    draft_path: the drafter's checkpoint (None: a published one, else a name to be replaced). A copy may hold
    `Comparison.most_requests` at once, each as long as the model's positions, or as the KV cache holds: the
    command says which. Raises UsageError where the engine cannot be told the set-up.
    """
    scenario, asked, most = answer.scenario(row), answer.question, answer.most_requests(row)
    if row["engine"] not in _SERVED:
        raise UsageError(
            f"{row['engine']}: no whole command is written for it, only for {', '.join(_SERVED)}; "
            "medusa-sim recommend shows the same set-up, and for llama.cpp --export llama-cpp its options"
        )
    speculation = None
    if row["drafter"] != NO_DRAFTER:
        searched = scenario.but(max_drafts=int(row["drafts"]))
        answered = recommend(searched, Recommended(batch_max=most, seq_len=(asked.seq_len,)))
        path = draft_path or drafter_id(row["drafter"], answer.model.name, row["engine"])
        path = path or f"{row['drafter']}-of-{answer.model.name}"
        speculation = engine_settings(answered, row["engine"], draft_path=path)
    longest = _longest_request(scenario, int(row["drafts"]), most)
    command = launch_command(scenario, row["engine"], most, longest, speculation)
    return f"{_other_drafts(speculation, int(row['drafts']), most)}{command}"


def _other_drafts(speculation: EngineSettings | None, drafts: int, requests: int) -> str:
    """A comment where the settings make one number of drafts, another than is best at so many requests."""
    plan = None if speculation is None else speculation.plan
    if plan is None or plan.dynamic or requests not in plan.grid.batch or plan.drafts == drafts:
        return ""
    best, own = (plan.grid.speedup(requests, each) for each in (drafts, plan.drafts))
    return (
        f"# {plan.drafts} drafts at every batch, for few requests too: at {requests} they give {own:.2f}x, "
        f"{drafts} drafts {best:.2f}x\n"
    )


def _longest_request(scenario: Scenario, drafts: int, requests: int) -> int | None:
    """Tokens of the longest request that the KV cache holds, where the model has positions for more.

    None where the model's positions fit, or nothing is known of the room that so many requests' steps leave.
    """
    loaded = (each for each in (scenario.options(drafts + 1) if drafts else ()) if each.depth == drafts)
    try:
        limits = limits_of(scenario, next(loaded, None), LoadArguments(max_num_seqs=requests))
    except UsageError:
        return None
    longest = limits.longest_request(drafts)
    return None if longest >= limits.positions else longest


def launch_command(
    scenario: Scenario, engine: str, requests: int, max_tokens: int | None, speculation: EngineSettings | None
) -> str:
    """Lines of the shell that start one copy of the model.

    requests: most of them in a step; max_tokens: longest prompt and output together (None: the model's
    positions). speculation: settings of the same engine; None: none. Raises UsageError for an engine without
    a serving command here.
    """
    if engine not in _SERVED:
        raise UsageError(unknown_name("engine with a launch command", engine, _SERVED))
    known_engine = _SERVED[engine]
    form, published, ids = scenario.model.form, scenario.published, checkpoint_ids(scenario.model.name)
    usual, named, notes = ids[0] if ids else scenario.model.name, published.checkpoint, list[str]()
    checkpoint = named if named and (form == published.form or named in ids) else usual
    if form != published.form and not _quantises(known_engine, scenario):
        known = weights_id(scenario.model.name, _STORED.get(form, form))
        if known and checkpoint == usual:
            checkpoint = known
            held = scenario.model.kv_dtype
            if not known_engine.sets_cache_dtype and held != "fp8":
                notes.append(
                    f"# {known}: priced with a KV cache in {held}; one in fp8 that it brings is taken"
                )
        else:
            notes.append(f"# {checkpoint}: its {form} checkpoint has to be named instead")
    if max_tokens is not None:
        notes.append(
            f"# prompt and output beyond {max_tokens:,} tokens are refused: the KV cache holds no more"
        )
    values = launch_values(scenario, known_engine, checkpoint, requests, max_tokens)
    words = [
        word
        for option, name in known_engine.launch_options.items()
        for word in option_words(option, values[name])
    ]
    serve = known_engine.serve_command.replace('"$MODEL"', shlex.join([checkpoint, *words]))
    lines = [] if speculation is None else speculation.text.rstrip("\n").split("\n")
    *before, flags = known_engine.launch_lines(scenario, lines) or [""]  # lines that write a file come first
    return "\n".join([*map(for_comment, notes), *before, f"{serve} {flags}".strip()]) + "\n"


def launch_values(
    scenario: Scenario, engine: EngineExport, checkpoint: str, requests: int, max_tokens: int | None
) -> dict[str, int | str | bool | None]:
    """Values of an engine's options, by the names of `EngineExport.launch_options`."""
    parallel = scenario.parallel
    fp8, half = engine.kv_dtypes
    # `auto` would take the fp8 KV cache that NVIDIA's checkpoints may bring
    brings = checkpoint == weights_id(scenario.model.name, scenario.model.form)
    return {
        **parallel_values(parallel),
        "requests": requests,
        "requests_a_rank": -(-requests * parallel.attention_tp // parallel.tp),
        "max_tokens": max_tokens,
        "quantization": "fp8" if _quantises(engine, scenario) else None,
        "kv_dtype": fp8 if scenario.model.kv_dtype == "fp8" else half if brings else None,
    }


def _quantises(engine: EngineExport, scenario: Scenario) -> bool:
    """Whether the engine makes the weights of a 16-bit checkpoint fp8 itself."""
    form = scenario.model.form
    is_fp8 = _STORED.get(form, form) == "fp8" and scenario.published.form in HALVES
    return is_fp8 and engine.quantises_on_load
