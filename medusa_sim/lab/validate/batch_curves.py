"""Published throughput ratios of EAGLE by batch, beside predictions.

The rows are the user's file (columns source, setup, method, batch_or_concurrency,
throughput_ratio_vs_no_spec); none of them ships. Chains of 3 drafts on an H100 (SGLang) and of 2 on an
A100 (vLLM), Llama-3.1-8B, MT-bench (EAGLE-3 paper, arXiv 2503.01840, tables 3 and 5).

tau T_decode / (T_verify + T_draft + T_engine) is what an engine shows; the model has no T_engine. What
T_engine must be for the published ratio is given beside every row.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from medusa_sim.acceptance.heads import chain_tokens_per_step
from medusa_sim.acceptance.profile import load_acceptance
from medusa_sim.data import DataDir
from medusa_sim.errors import DataError
from medusa_sim.latency.by_name import LatencyName
from medusa_sim.reading.tables import numbered_csv_table
from medusa_sim.scenario.defaults import KERNELS_ALONE
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.drafter.layer import Eagle, Eagle3, LayerDrafter
from medusa_sim.step.drafting import drafting_times
from medusa_sim.step.step import decode_step, verification_step

if TYPE_CHECKING:
    import pandas as pd


COLUMNS = ("setup", "method", "batch_or_concurrency", "throughput_ratio_vs_no_spec")
MODEL = "llama-3.1-8b"
CONTEXT = 512
"""A typical context of MT-bench answers."""
GPUS = {"H100": "h100-sxm", "A100": "a100-80gb-sxm"}
KERNELS = "sglang"


@dataclass(frozen=True, slots=True)
class SourceModel:
    """How a method of the file drafts, and the published chain rates that stand for its acceptance."""

    acceptance: str
    draft_vocab: int | None
    drafter: type[LayerDrafter]


METHODS = {
    "EAGLE": SourceModel("eagle1-vicuna-7b", None, Eagle),
    "EAGLE-3": SourceModel("eagle3-llama-3.1-8b", 32_000, Eagle3),
}
"""EAGLE: the only published rates per position are of another target (Vicuna-7B)."""


def batch_curves(path: Path, latency: LatencyName = "calibrated", data_dir: DataDir = None) -> pd.DataFrame:
    """One row a published point.

    Columns: setup, method, gpu, drafts, batch, tokens_per_step, decode_step_us, verify_us, draft_us,
    published_speedup, predicted_speedup, error (predicted / published - 1), engine_us (what the engine must
    add to a step for the published ratio; negative where the model is too slow or its acceptance too low),
    engine_share (of the whole step), relative_published and relative_predicted (to the smallest batch of
    the curve, so that acceptance cancels), relative_error.

    Raises DataError for a file without these columns, an unknown method or a setup without GPU or chain.
    """
    import pandas as pd

    frame = numbered_csv_table(path, COLUMNS)
    parts = [
        _curve(str(setup), str(method), rows, latency, data_dir)
        for (setup, method), rows in frame.groupby(["setup", "method"], sort=False)
    ]
    return pd.concat(parts, ignore_index=True)


def _curve(
    setup: str, method: str, rows: pd.DataFrame, latency: LatencyName, data_dir: DataDir
) -> pd.DataFrame:
    import pandas as pd

    gpu = next((name for word, name in GPUS.items() if word in setup), None)
    chain = re.search(r"chain(\d{1,9})", setup)
    if gpu is None or chain is None or method not in METHODS:
        raise DataError(
            f"setup {setup!r}, method {method!r}: a GPU of {', '.join(GPUS)}, chainN and a method of "
            f"{', '.join(METHODS)} are needed"
        )
    drafts, known = int(chain[1]), METHODS[method]
    heads = load_acceptance(known.acceptance, data_dir).heads
    assert heads is not None  # noqa: S101  # both shipped profiles hold positions
    tokens = float(chain_tokens_per_step(heads)[drafts])
    # kernels alone: what the published curves hold beyond them is the engine's
    base = Scenario(
        gpu=gpu, model=MODEL, runtime=KERNELS_ALONE, latency=latency, kernels=KERNELS, data_dir=data_dir
    ).setting
    drafter = known.drafter(depth=drafts, draft_vocab=known.draft_vocab)
    setting = replace(base, drafter=drafter, compacted_drafts=drafts)
    ordered = rows.sort_values("batch_or_concurrency")
    batch = ordered["batch_or_concurrency"].to_numpy()
    published = ordered["throughput_ratio_vs_no_spec"].to_numpy(dtype=float)
    decode_us = decode_step(setting, batch, CONTEXT).time_us
    verify_us = verification_step(setting, batch, CONTEXT, drafts + 1).time_us
    draft_us = sum(part.time_us for part in drafting_times(setting, batch, CONTEXT, drafts + 1))
    predicted = tokens * decode_us / (verify_us + draft_us)
    needed_us = tokens * decode_us / published
    relative_predicted, relative_published = predicted / predicted[0], published / published[0]
    return pd.DataFrame(
        {
            "setup": setup,
            "method": method,
            "gpu": gpu,
            "drafts": drafts,
            "batch": batch,
            "tokens_per_step": tokens,
            "decode_step_us": decode_us,
            "verify_us": verify_us,
            "draft_us": draft_us,
            "published_speedup": published,
            "predicted_speedup": predicted,
            "error": predicted / published - 1.0,
            "engine_us": needed_us - verify_us - draft_us,
            "engine_share": 1.0 - (verify_us + draft_us) / needed_us,
            "relative_published": relative_published,
            "relative_predicted": relative_predicted,
            "relative_error": relative_predicted / relative_published - 1.0,
        }
    )
