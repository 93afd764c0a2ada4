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

import msgspec

from medusa_sim.export.chains import TreeShape
from medusa_sim.export.settings import Chosen, EngineExport, EngineMethod, Versions, require
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
_NUMBERS = (
    "max_draft_len", "num_nextn_predict_layers", "speculative_model", "max_matching_ngram_size",
    "dynamic_tree_max_topK", "max_total_draft_tokens",
)  # fmt: skip


class TensorrtSpeculativeConfig(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """`speculative_config` of TensorRT-LLM (tensorrt_llm/llmapi/llm_args.py).

    version: "1.2" reads a schedule as "batch >= key" and wants key 1 at max_draft_len; from "1.3" it reads
    "batch <= key, beyond the last 0" and wants the smallest key at max_draft_len. In 1.2 the number of MTP
    drafts is num_nextn_predict_layers, which overwrites max_draft_len.
    """

    decoding_type: str
    version: str
    max_draft_len: int | None = None
    num_nextn_predict_layers: int | None = None
    speculative_model: str | None = None
    max_matching_ngram_size: int | None = None
    draft_len_schedule: dict[int, int] | None = None
    use_dynamic_tree: bool = False
    dynamic_tree_max_topK: int | None = None  # noqa: N815  # the engine's own spelling
    max_total_draft_tokens: int | None = None

    def __post_init__(self) -> None:
        old_mtp = self.decoding_type == "MTP" and self.version == "1.2"
        drafts = self.num_nextn_predict_layers if old_mtp else self.max_draft_len
        require(drafts is not None and drafts > 0, "the number of drafts must be above 0")
        require(
            self.speculative_model is not None or self.decoding_type in ("MTP", "NGram", "SA"),
            f"{self.decoding_type} needs speculative_model",
        )
        require(
            self.version == "1.4" or self.decoding_type not in ("PARD", "DFlash", "DSpark", "SA"),
            f"{self.decoding_type} is read from 1.4 on",
        )
        self._check_schedule(drafts or 0)
        self._check_tree(drafts or 0)

    def _check_schedule(self, drafts: int) -> None:
        schedule = self.draft_len_schedule
        if schedule is None:
            return
        require(min(schedule) >= 1 and min(schedule.values()) >= 0, "batches from 1 and drafts from 0")
        first = 1 if self.version == "1.2" else min(schedule)
        require(schedule.get(first) == drafts, f"draft_len_schedule[{first}] must equal max_draft_len")
        require(max(schedule.values()) <= drafts, "draft lengths may not exceed max_draft_len")
        require(not self.use_dynamic_tree, "a schedule belongs to chains")

    def _check_tree(self, drafts: int) -> None:
        if not self.use_dynamic_tree:
            return
        require(self.decoding_type == "Eagle3" and self.version != "1.2", "dynamic trees: Eagle3 from 1.3")
        topk, total = self.dynamic_tree_max_topK or 0, self.max_total_draft_tokens or 0
        require(topk > 0, "dynamic_tree_max_topK must be above 0")
        require(drafts <= total <= topk * drafts, "max_total_draft_tokens must lie in depth..topK * depth")


def schedule(chosen: Chosen) -> dict[int, int] | None:
    """`draft_len_schedule` in the meaning of that version; None where the number of drafts is fixed."""
    if not chosen.plan.dynamic or chosen.tree is not None:
        return None
    if chosen.version == "1.2":
        return {start: tier.drafts for start, tier in chosen.starts}
    *before, last = chosen.plan.tiers
    ends = {tier.batch_max: tier.drafts for tier in before}
    return ends if last.drafts == 0 else {**ends, max(LARGEST_BATCH, last.batch_max): last.drafts}


def speculative_config(chosen: Chosen) -> TensorrtSpeculativeConfig:
    """The value of `speculative_config`."""
    method, tree = chosen.method, chosen.tree
    old_mtp = method.name == "MTP" and chosen.version == "1.2"
    drafts = chosen.plan.drafts if tree is None else tree.depth
    return TensorrtSpeculativeConfig(
        decoding_type=method.name,
        version=chosen.version,
        max_draft_len=None if old_mtp else drafts,
        num_nextn_predict_layers=drafts if old_mtp else None,
        speculative_model=chosen.draft_path,
        max_matching_ngram_size=5 if method.name == "NGram" else None,
        draft_len_schedule=schedule(chosen),
        use_dynamic_tree=tree is not None,
        dynamic_tree_max_topK=None if tree is None else tree.width,
        max_total_draft_tokens=None if tree is None else tree.candidates - 1,
    )


def _yaml(chosen: Chosen) -> Iterator[str]:
    return yaml_lines(speculative_config(chosen), synchronous=chosen.drafter in SYNCHRONOUS)


def yaml_lines(config: TensorrtSpeculativeConfig, *, synchronous: bool) -> Iterator[str]:
    """Lines of the configuration file."""
    if synchronous:
        yield "disable_overlap_scheduler: true"
    yield "speculative_config:"
    yield f"  decoding_type: {config.decoding_type}"
    for name in _NUMBERS:
        if (value := getattr(config, name)) is not None:
            yield f"  {name}: {json.dumps(value)}"
    if config.use_dynamic_tree:
        yield "  use_dynamic_tree: true"
    if config.draft_len_schedule is not None:
        yield "  draft_len_schedule:"
        yield from (f"    {batch}: {drafts}" for batch, drafts in config.draft_len_schedule.items())


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
