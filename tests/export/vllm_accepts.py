"""Runs in an environment with vLLM, without this project: does vLLM's own configuration take these settings?

stdin: JSON list of speculative configurations. stdout: one JSON object a configuration: `error` (empty where
vLLM took it) and `drafts`, the number it would draft at batches 1..2048. Checkpoints are stood in for by
`config.json` files of tiny models, which is all that vLLM reads before it loads weights.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
LARGEST_BATCH = 2048
LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 512,
    "max_position_embeddings": 2048, "torch_dtype": "bfloat16",
}  # fmt: skip
DRAFTS = {
    "eagle": {**LLAMA, "num_hidden_layers": 1},
    "eagle3": {**LLAMA, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 512},
    "draft_model": {**LLAMA, "num_hidden_layers": 1},
    "medusa": {"model_type": "medusa", "architectures": ["MedusaModel"], "hidden_size": 64, "vocab_size": 512,
               "num_heads": 5, "num_hidden_layers": 1},
}  # fmt: skip
MTP_TARGET = {
    "model_type": "deepseek_v3",
    "architectures": ["DeepseekV3ForCausalLM"],
    "num_nextn_predict_layers": 1,
}


def folder(root: Path, name: str, config: dict[str, Any]) -> str:
    path = root / name
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(path)


def checked(config: dict[str, Any], root: Path) -> dict[str, Any]:
    from vllm.config import ModelConfig, ParallelConfig, SpeculativeConfig
    from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

    method = config["method"]
    target = folder(root, f"target-{method}", MTP_TARGET if method == "mtp" else LLAMA)
    values = dict(config)
    if "model" in values:
        values["model"] = folder(root, method, DRAFTS[method])
    model = ModelConfig(model=target, tokenizer=target, skip_tokenizer_init=True, dtype="bfloat16")
    taken = SpeculativeConfig(**values, target_model_config=model, target_parallel_config=ParallelConfig())
    if taken.num_speculative_tokens_per_batch_size is None:
        drafts = [taken.num_speculative_tokens] * LARGEST_BATCH
    else:
        schedule = [list(entry) for entry in taken.num_speculative_tokens_per_batch_size]
        drafts = build_dynamic_sd_schedule_lookup(schedule, LARGEST_BATCH, taken.num_speculative_tokens)[1:]
    return {"method": taken.method, "drafts": drafts}


def main() -> None:
    with tempfile.TemporaryDirectory() as root:
        for config in json.load(sys.stdin):
            try:
                result = {"error": "", **checked(config, Path(root))}
            except Exception as error:  # whatever vLLM raises is the answer
                result = {"error": f"{type(error).__name__}: {error}"}
            print("RESULT " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
