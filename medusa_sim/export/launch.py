"""The whole command that starts an engine for a set-up: model, GPUs, precision, requests, KV cache, drafts.

Options are those of vLLM 0.33 (vllm/engine/arg_utils.py: --tensor-parallel-size, --data-parallel-size,
--enable-expert-parallel, --max-num-seqs, --max-model-len, --kv-cache-dtype, --quantization), SGLang 0.5
(sglang/srt/server_args.py: --tp, --ep, --dp, --enable-dp-attention, --max-running-requests, --context-length)
and TensorRT-LLM 1.2 (tensorrt_llm/commands/serve.py: --tp_size, --ep_size, --max_batch_size, --max_seq_len,
--config; llm_args.py: enable_attention_dp, kv_cache_config). What speculates is `engine_settings`' own text.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any

from medusa_sim.errors import UsageError, unknown_name
from medusa_sim.export.checkpoints import drafter_id, weights_id
from medusa_sim.export.engines import engine_settings
from medusa_sim.export.settings import EngineSettings
from medusa_sim.plan.question import Question as Recommended
from medusa_sim.plan.recommend import recommend
from medusa_sim.plan.scenario import Scenario
from medusa_sim.setups.comparison import Comparison
from medusa_sim.setups.setup import PLAIN
from medusa_sim.specs.model import Model
from medusa_sim.specs.models import checkpoint_ids, load_model
from medusa_sim.units import HALVES

_CONFIG = "serve.yaml"
ON_LOADING = ("vllm", "sglang")
"""Engines that quantise 16-bit checkpoints to fp8 while they load them."""


def chosen_command(answer: Comparison, row: Mapping[str, Any], draft_path: str | None = None) -> str:
    """The command for one copy of a row's set-up, with the settings of a recommendation for its batches.

    draft_path: the drafter's checkpoint (None: a published one, else a name to be replaced). Lengths are
    allowed to twice their means. Raises UsageError where the engine cannot be told the set-up.
    """
    scenario, asked = answer.scenario(row), answer.question
    speculation = None
    if row["drafter"] != PLAIN:
        searched = scenario.but(max_drafts=int(row["drafts"]))
        answered = recommend(searched, Recommended(batch_max=int(row["batch"]), seq_len=(asked.seq_len,)))
        path = draft_path or drafter_id(row["drafter"], answer.model.name, row["engine"])
        path = path or f"{row['drafter']}-of-{answer.model.name}"
        speculation = engine_settings(answered, row["engine"], draft_path=path)
    longest = ceil(2.0 * (asked.prompt_tokens + asked.output_tokens))
    return launch_command(scenario, row["engine"], int(row["batch"]), longest, speculation)


def launch_command(
    scenario: Scenario, engine: str, requests: int, max_tokens: int, speculation: EngineSettings | None
) -> str:
    """Lines of the shell that start one copy of the model.

    requests: most of them in a step; max_tokens: longest prompt and output together. speculation: settings of
    the same engine; None: none. Raises UsageError for an engine without a serving command here.
    """
    if engine not in _SERVED:
        raise UsageError(unknown_name("engine with a launch command", engine, _SERVED))
    ids = checkpoint_ids(scenario.model.name)
    checkpoint, note = ids[0] if ids else scenario.model.name, ""
    form = scenario.model.form
    if form != _published(scenario) and not _quantises(engine, scenario):
        if known := weights_id(scenario.model.name, form):
            checkpoint = known
            held = scenario.model.kv_dtype
            if engine == "tensorrt-llm" and held != "fp8":  # where nothing overrides the checkpoint's own
                note = f"# {known}: priced with a KV cache in {held}; one in fp8 that it brings is taken\n"
        else:
            note = f"# {checkpoint}: its {form} checkpoint has to be named instead\n"
    text = "" if speculation is None else speculation.text
    return note + _SERVED[engine](scenario, checkpoint, requests, max_tokens, text)


def _quantises(engine: str, scenario: Scenario) -> bool:
    """Whether the engine makes the weights of a 16-bit checkpoint fp8 itself."""
    is_fp8 = scenario.model.form == "fp8" and _published(scenario) in HALVES
    return is_fp8 and engine in ON_LOADING


def _published(scenario: Scenario) -> str:
    """The format of the checkpoint that the model's name stands for."""
    model = scenario.arguments.model
    return (model if isinstance(model, Model) else load_model(model)).form


def _words(options: dict[str, int | str | bool | None]) -> Iterator[str]:
    for name, value in options.items():
        if value is True:
            yield name
        elif value not in (None, False):
            yield from (name, str(value))


def _more_than_one(count: int) -> int | None:
    return count if count > 1 else None


def _kv_cache(scenario: Scenario, checkpoint: str, fp8: str, half: str) -> str | None:
    """What names the KV cache's format; `auto` would take the fp8 one that NVIDIA's checkpoints may bring."""
    if scenario.model.kv_dtype == "fp8":
        return fp8
    return half if checkpoint == weights_id(scenario.model.name, scenario.model.form) else None


def _vllm(scenario: Scenario, checkpoint: str, requests: int, max_tokens: int, text: str) -> str:
    parallel = scenario.parallel
    words = _words(
        {
            "--tensor-parallel-size": _more_than_one(parallel.attention_tp),
            "--data-parallel-size": parallel.tp if parallel.dp_attention else None,
            "--enable-expert-parallel": parallel.ep > 1,
            # of each of its data-parallel ranks
            "--max-num-seqs": -(-requests * parallel.attention_tp // parallel.tp),
            "--max-model-len": max_tokens,
            "--quantization": "fp8" if _quantises("vllm", scenario) else None,
            "--kv-cache-dtype": _kv_cache(scenario, checkpoint, "fp8", "bfloat16"),
        }
    )
    return f"{shlex.join(['vllm', 'serve', checkpoint, *words])} {text}".strip() + "\n"


def _sglang(scenario: Scenario, checkpoint: str, requests: int, max_tokens: int, text: str) -> str:
    parallel = scenario.parallel
    words = _words(
        {
            "--tp": _more_than_one(parallel.tp),
            "--ep": _more_than_one(parallel.ep),
            "--enable-dp-attention": parallel.dp_attention,
            "--dp": parallel.tp if parallel.dp_attention else None,
            "--max-running-requests": requests,
            "--context-length": max_tokens,
            "--quantization": "fp8" if _quantises("sglang", scenario) else None,
            "--kv-cache-dtype": _kv_cache(scenario, checkpoint, "fp8_e4m3", "bf16"),
        }
    )
    *before, flags = text.rstrip("\n").split("\n")  # lines that write a file come first
    serve = shlex.join(["python", "-m", "sglang.launch_server", "--model-path", checkpoint, *words])
    return "\n".join([*before, f"{serve} {flags}".strip()]) + "\n"


def _tensorrt(scenario: Scenario, checkpoint: str, requests: int, max_tokens: int, text: str) -> str:
    parallel = scenario.parallel
    lines = ["enable_attention_dp: true"] if parallel.dp_attention else []
    lines += ["kv_cache_config:", "  dtype: fp8"] if scenario.model.kv_dtype == "fp8" else []
    config = "".join(f"{line}\n" for line in lines) + text
    words = _words(
        {
            "--tp_size": _more_than_one(parallel.tp),
            "--ep_size": _more_than_one(parallel.ep),
            "--max_batch_size": -(-requests // parallel.tp) if parallel.dp_attention else requests,
            "--max_seq_len": max_tokens,
            "--config": _CONFIG if config else None,
        }
    )
    serve = shlex.join(["trtllm-serve", checkpoint, *words]) + "\n"
    return f"cat > {_CONFIG} <<'EOF'\n{config}EOF\n{serve}" if config else serve


_SERVED = {"vllm": _vllm, "sglang": _sglang, "tensorrt-llm": _tensorrt}
