"""TensorRT-LLM: the YAML of `--config` with `speculative_config` (chains, dynamic trees, drafts by batch).

Read in tensorrt_llm/llmapi/llm_args.py, _torch/speculative/{drafter,interface,utils}.py and
docs/source/features/speculative-decoding.md. `pip install tensorrt-llm` gives 1.2.1. `draft_len_schedule`
changed its meaning between 1.2 (`{1: 4, 4: 2, 8: 0}`: batch >= key) and 1.3 (`{4: 4, 8: 2, 32: 1}`: batch <=
key, beyond the last 0; pull request 10860), and who reads it. `use_dynamic_tree` of Eagle3 works from 1.3; in
1.2 its own warning says not to use it. Medusa existed in the removed engine backend only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from medusa_sim.export.chains import TreeShape
from medusa_sim.export.settings import Chosen, EngineExport, EngineMethod, Versions
from medusa_sim.models.parallel import Parallel
from medusa_sim.outside.escaping import for_comment
from medusa_sim.scenario.scenario import Scenario

LARGEST_BATCH = 2048
"""`max_batch_size` of the engine by default: a schedule that shall not end goes on to here."""
_CONFIG = "serve.yaml"
_DATA_PARALLEL = "enable_attention_dp: true"
_CHUNKS = "enable_chunked_prefill: true"
SYNCHRONOUS = ("ngram", "draft-model")
"""Methods whose documentation asks for `disable_overlap_scheduler: true`."""

_FRACTIONS = ("1.4",)
"""Versions that force fractions of accepted drafts (pull request 13569); others read `int`, and force nothing
where it fails.
"""


def schedule(chosen: Chosen) -> dict[int, int] | None:
    """`draft_len_schedule` in the meaning of that version; None where the number of drafts is fixed."""
    if not chosen.plan.dynamic or chosen.tree is not None:
        return None
    if chosen.version == "1.2":
        return {start: tier.drafts for start, tier in chosen.starts}
    *before, last = chosen.plan.tiers
    ends = {tier.batch_max: tier.drafts for tier in before}
    return ends if last.drafts == 0 else {**ends, max(LARGEST_BATCH, last.batch_max): last.drafts}


def speculative_config(chosen: Chosen) -> dict[str, Any]:
    """The value of `speculative_config` (tensorrt_llm/llmapi/llm_args.py).

    In 1.2 the number of MTP drafts is num_nextn_predict_layers, which overwrites max_draft_len.
    """
    name, tree, by_batch = chosen.method.name, chosen.tree, schedule(chosen)
    old_mtp = name == "MTP" and chosen.version == "1.2"
    drafts = chosen.plan.drafts if tree is None else tree.depth
    config: dict[str, Any] = {
        "decoding_type": name, "num_nextn_predict_layers" if old_mtp else "max_draft_len": drafts
    }  # fmt: skip
    if chosen.draft_path is not None:
        config["speculative_model"] = chosen.draft_path
    if name == "NGram":
        config["max_matching_ngram_size"] = 5
    if tree is not None:
        config["dynamic_tree_max_topK"] = tree.width
        config |= {"max_total_draft_tokens": tree.candidates - 1, "use_dynamic_tree": True}
    return config if by_batch is None else {**config, "draft_len_schedule": by_batch}


def _yaml(chosen: Chosen) -> Iterator[str]:
    """Lines of the configuration file."""
    if chosen.drafter in SYNCHRONOUS:
        yield "disable_overlap_scheduler: true"
    yield "speculative_config:"
    for name, value in speculative_config(chosen).items():
        if name == "draft_len_schedule":
            yield f"  {name}:"
            yield from (f"    {batch}: {drafts}" for batch, drafts in value.items())
        else:
            yield f"  {name}: {value if name == 'decoding_type' else json.dumps(value)}"


def _digits(accepted: float) -> str:
    """`2`, not `2.00`, which a version without fractions cannot read, and `1.84`."""
    return f"{accepted:.2f}".removesuffix(".00")


class TensorrtLlm(EngineExport):
    """The record of TensorRT-LLM."""

    def write(self, chosen: Chosen) -> str:
        """The file."""
        return (
            "\n".join(
                [for_comment(f"# TensorRT-LLM {chosen.version}, written by medusa-sim"), *_yaml(chosen)]
            )
            + "\n"
        )

    def of_gpus(self, parallel: Parallel) -> list[str]:
        """Data-parallel attention is set in the configuration file."""
        return super().of_gpus(parallel) + [f"'{_DATA_PARALLEL}' in its file"] * parallel.dp_attention

    def launch_lines(self, scenario: Scenario, speculation: list[str]) -> list[str]:
        """The configuration file that it reads, where there is anything to say."""
        cache = ["kv_cache_config:", "  dtype: fp8"] if scenario.model.kv_dtype == "fp8" else []
        data_parallel = [_DATA_PARALLEL] if scenario.parallel.dp_attention else []
        chunks = [] if scenario.refused_prompt is None else [_CHUNKS]
        lines = [*speculation, *data_parallel, *chunks, *cache]
        return [f"cat > {_CONFIG} <<'EOF'", *lines, "EOF", f"--config {_CONFIG}"] if lines else []

    def synthetic(self, chosen: Chosen, length: float) -> Iterator[str]:
        """`TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS` does not count the bonus token; 0 forces nothing."""
        yield "cat > speculative.yaml <<'EOF'"
        yield from _yaml(chosen)
        yield "EOF"
        yield (
            f"TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS={_digits(length - 1.0)} \\\n"
            f"{self.server(chosen)} --config speculative.yaml &"
        )

    def nearest_length(self, version: str, length: float) -> float:
        """Of a whole number of accepted drafts, from 1, before the version that reads fractions."""
        return length if version in _FRACTIONS else 1.0 + max(round(length - 1.0), 1)

    def trees(self, method: EngineMethod, version: str) -> Callable[[TreeShape], bool] | None:
        """Dynamic trees, within their top-k."""
        if method.name != "Eagle3" or version == "1.2":
            return None
        return lambda shape: shape.depth <= shape.candidates - 1 <= shape.width * shape.depth

    def notes(self, chosen: Chosen) -> Iterator[str]:
        """Notes on single versions and methods."""
        if chosen.is_default:
            yield (
                "1.2 is what pip installs; draft_len_schedule means the opposite from 1.3 on: give "
                "--engine-version 1.3 or 1.4 for a release candidate"
            )
        if chosen.tree is not None:
            yield "dynamic trees do not run with sliding-window or latent (MLA) attention"
        plan = chosen.plan
        if plan.dynamic and chosen.tree is None and chosen.version != "1.2" and plan.tiers[-1].drafts == 0:
            yield (
                "after a time at 0 drafts the drafter's own cache is stale and acceptance recovers late "
                "(NVIDIA/TensorRT-LLM#16888, open)"
            )
        if chosen.method.name == "PARD":
            yield (
                "TensorRT-LLM runs 2 K tokens a request with PARD, not K + 1 (pull request 12262): "
                "verification costs more than priced here where it is not free"
            )


TENSORRT_LLM = TensorrtLlm(
    name="tensorrt-llm",
    title="TensorRT-LLM",
    versions=Versions("tensorrt-llm", ("1.2", "1.3", "1.4"), "1.2"),
    why_one_number="TensorRT-LLM reads no schedule for this method in this version",
    batch_option="max_batch_size",
    length_option="max_seq_len",
    serve_command='trtllm-serve "$MODEL"',
    bench_command=(
        'python -m tensorrt_llm.serve.scripts.benchmark_serving --model "$MODEL" --port {port} '
        "{common} --random-ids --tokenize-on-client --ignore-eos --save-result --result-filename {name}.json"
    ),
    never_synthetic=("ngram", "draft-model"),
    missing_methods={
        "medusa": "it went with the engine backend",
        "eagle": "checkpoints of EAGLE-1 and 2 are incompatible with its PyTorch backend",
    },
    methods={
        "eagle3": EngineMethod("Eagle3", checkpoint=True, scheduled=("1.3", "1.4")),
        "mtp": EngineMethod("MTP", checkpoint=False, scheduled=("1.4",)),
        "draft-model": EngineMethod("Draft_Target", checkpoint=True, scheduled=("1.2", "1.4")),
        "ngram": EngineMethod("NGram", checkpoint=False, scheduled=("1.2",)),
        "pard": EngineMethod("PARD", checkpoint=True, scheduled=("1.4",), versions=("1.4",)),
        "dflash": EngineMethod("DFlash", checkpoint=True, scheduled=("1.4",), versions=("1.4",)),
        "dspark": EngineMethod("DSpark", checkpoint=True, versions=("1.4",)),
        "suffix": EngineMethod("SA", checkpoint=False, scheduled=("1.4",), versions=("1.4",)),
    },
    sets_cache_dtype=False,
    launch_options={
        "--tp_size": "tp",
        "--ep_size": "ep",
        "--max_batch_size": "requests_a_rank",
        "--max_seq_len": "max_tokens",
    },
)
"""tensorrt_llm/llmapi/llm_args.py (decoding_type); _torch/speculative: in 1.2 only the drafters that are
models of their own and the n-gram pool read a schedule, from 1.3 only one-model drafting does
(support_dynamic_draft_len: Eagle3 first, pull request 12262 adds MTP, draft target, PARD, DFlash, SA).
Options of the whole command: tensorrt_llm/commands/serve.py, 1.2; --max_batch_size is of each data-
parallel rank.
"""
