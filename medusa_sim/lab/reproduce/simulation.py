"""Figures 21 to 23 of the Medusa paper: the simulated speedup of one Llama-7B block on A100-80GB-PCIe."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.data import DataDir
from medusa_sim.grid.cells import price
from medusa_sim.grid.configurations import at_counts
from medusa_sim.lab.reproduce.published import BATCHES, CANDIDATES, PAPER_GPU, SEQ_LENS, read_published
from medusa_sim.scenario.defaults import FIXED_BASELINE_BATCH, FIXED_BASELINE_SEQ_LEN, Baseline
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.launch import Part
from medusa_sim.step.step import decode_step

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

MODEL = "llama-7b"
FIGURE23_BATCH = 4
_SHARES: dict[Part, str] = {"attention": "qk_pv", "qkv": "qkv_linear", "mlp": "up_gate_down"}
"""Parts of a step -> the paper's names of the bars of Figure 21."""


def figure21(data_dir: DataDir = None) -> pd.DataFrame:
    """Acceleration rate, normalised latency and speedup by candidates: batch 1, 1024 keys."""
    frame = _simulated((1,), (1024,), data_dir)
    printed = read_published("medusa_figures21_22")
    printed = printed[printed["figure"] == 21].pivot_table(
        index="candidates", columns="quantity", values="value"
    )
    for quantity, column in (
        ("speedup", "published_speedup"),
        ("acc_rate", "published_tokens_per_step"),
        ("normalized_latency", "published_normalized_latency"),
    ):
        frame[column] = frame["candidates"].map(printed[quantity])
    return _with_errors(frame)


def figure22(data_dir: DataDir = None) -> pd.DataFrame:
    """Speedup by candidates and batch at 1024 keys."""
    frame = _simulated(BATCHES, (1024,), data_dir)
    printed = read_published("medusa_figures21_22")
    curves = printed[printed["figure"] == 22].set_index(["batch", "candidates"])["value"]
    cells = list(zip(frame["batch"], frame["candidates"], strict=True))
    frame["published_speedup"] = curves.reindex(cells).to_numpy()
    return _with_errors(frame)


def figure23(data_dir: DataDir = None) -> pd.DataFrame:
    """Speedup by candidates and context length at batch 4: a prediction without published values."""
    frame = _simulated((FIGURE23_BATCH,), SEQ_LENS, data_dir)
    frame["published_speedup"] = np.nan
    return _with_errors(frame)


def _simulated(batches: Sequence[int], seq_lens: Sequence[int], data_dir: DataDir) -> pd.DataFrame:
    """The grid with both baselines; times in us, shares in units of the baseline step of Figure 21."""
    import pandas as pd

    scenario = Scenario(
        gpu=PAPER_GPU,
        model=MODEL,
        runtime="paper",
        scope="block",
        acceptance="paper-fig21",
        data_dir=data_dir,
    )
    cells = price(scenario, batches, seq_lens, at_counts(scenario.options(), np.asarray(CANDIDATES))).by_count
    assert list(cells.configurations.counts) == list(CANDIDATES)  # noqa: S101  # the paper's counts, plain decoding first
    batch, seq_len, candidates = (
        axis.ravel() for axis in np.meshgrid(batches, seq_lens, cells.configurations.counts, indexing="ij")
    )
    fixed_us = decode_step(scenario.setting, FIXED_BASELINE_BATCH, FIXED_BASELINE_SEQ_LEN).time_us
    baseline_us: dict[Baseline, FloatArray] = {"same": cells.steps.decode_us, "fixed": fixed_us}

    def column(values: FloatArray) -> FloatArray:
        return np.broadcast_to(values, cells.shape).ravel()

    return pd.DataFrame(
        {
            "batch": batch,
            "seq_len": seq_len,
            "candidates": candidates,
            "predicted_tokens_per_step": column(cells.tokens_per_step),
            "decode_step_us": column(cells.steps.decode_us),
            "verify_step_us": column(cells.steps.time_us),
            "predicted_normalized_latency": column(cells.steps.time_us / fixed_us),
            **{
                f"predicted_{share}": column(cells.steps.parts_us[part] / fixed_us)
                for part, share in _SHARES.items()
            },
            **{
                f"speedup_{name}": column(cells.tokens_per_step * baseline_us[name] / cells.steps.time_us)
                for name in baseline_us
            },
        }
    )


def _with_errors(frame: pd.DataFrame) -> pd.DataFrame:
    """Signed: predicted minus published, and predicted / published - 1, for both baselines."""
    for name in get_args(Baseline):
        frame[f"difference_{name}"] = frame[f"speedup_{name}"] - frame["published_speedup"]
        frame[f"error_{name}"] = frame[f"speedup_{name}"] / frame["published_speedup"] - 1.0
    return frame
