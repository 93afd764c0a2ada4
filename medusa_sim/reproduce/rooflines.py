"""Figures 9 to 20 of the Medusa paper: where operators lie on the roofline of three GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from medusa_sim.data import DataDir
from medusa_sim.reproduce.published import (
    BATCHES,
    PAPER_SET,
    SEQ_LENS,
    Reproduction,
    paper_latency,
    paper_roof,
)
from medusa_sim.reproduce.tables import table6, table7, table8
from medusa_sim.specs.gpu import load_gpu
from medusa_sim.specs.models import load_model
from medusa_sim.specs.runtime import load_runtime
from medusa_sim.step.roofline import roofline_points
from medusa_sim.step.workload import Grid

if TYPE_CHECKING:
    import pandas as pd

OPERATOR_FIGURES: dict[str, tuple[str, str]] = {
    "figure9": ("a100-80gb-pcie", "llama-7b"),
    "figure10": ("a100-80gb-pcie", "llama-13b"),
    "figure11": ("a100-80gb-pcie", "llama-33b"),
    "figure12": ("a40", "llama-7b"),
    "figure13": ("a40", "llama-13b"),
    "figure14": ("a40", "llama-33b"),
    "figure15": ("rtx-a6000", "llama-7b"),
    "figure16": ("rtx-a6000", "llama-13b"),
    "figure17": ("rtx-a6000", "llama-33b"),
}
"""Figure -> GPU and model."""

_SERIES = {
    "q_proj": "qkv mlp",
    "k_proj": "qkv mlp",
    "v_proj": "qkv mlp",
    "up_proj": "up/gate/down",
    "gate_proj": "up/gate/down",
    "down_proj": "up/gate/down",
    "qk": "qk/pv",
    "pv": "qk/pv",
}
_PHASES = {"prefill": "init", "decode": "ar"}
"""Our names -> those of the figures' legends."""


def operator_figure(name: str, data_dir: DataDir = None) -> Reproduction:
    """One of Figures 9 to 17: prefill and decode, batch 1 to 64 and 128 to 8192 keys in powers of two.

    One row an operator and setting; `series` is the legend's name. Raises SpecError where a GPU lacks
    the kernels.
    """
    gpu_name, model_name = OPERATOR_FIGURES[name]
    gpu, model = load_gpu(gpu_name, data_dir), load_model(model_name)
    latency = paper_latency(gpu, data_dir)
    points = roofline_points(
        latency, paper_roof(gpu), model, load_runtime(PAPER_SET), Grid.of(BATCHES, SEQ_LENS, (1,))
    )
    frame: pd.DataFrame = points.to_pandas()
    frame = frame[frame["phase"].isin(_PHASES)].reset_index(drop=True)
    legend = frame["op"].map(_SERIES) + " " + frame["phase"].map(_PHASES)
    frame.insert(4, "series", legend)
    frame["published_flops_per_s"] = np.nan
    kernels = "fitted to Tables 6 and 8"
    if PAPER_SET not in gpu.kernels:
        kernels = (
            "linear layers as fitted to measured rows of this GPU, attention products and launches as on the "
            "A100, because the paper prints no times here"
        )
    return Reproduction(
        name=name,
        title=f"Figure {name.removeprefix('figure')}: operators of {model.name} on {gpu.title}",
        source=f"Medusa, arXiv 2401.10774, appendix G.1, Figure {name.removeprefix('figure')}",
        caveat=f"prediction: the figure prints no numbers; {kernels}",
        frame=frame,
    )


def figure18(data_dir: DataDir = None) -> Reproduction:
    """Attention product with candidates at batch 16: the points of Table 6."""
    return _points_of(table6(data_dir), 18)


def figure19(data_dir: DataDir = None) -> Reproduction:
    """Attention product with candidates at 1024 keys: the points of Table 7."""
    return _points_of(table7(data_dir), 19)


def figure20(data_dir: DataDir = None) -> Reproduction:
    """Up, gate and down projections with candidates: the points of Table 8."""
    return _points_of(table8(data_dir), 20)


def _points_of(table: Reproduction, number: int) -> Reproduction:
    columns = [
        "batch",
        "seq_len",
        "candidates",
        "operational_intensity",
        "published_flops_per_s",
        "predicted_flops_per_s",
        "bound",
        "source",
    ]
    what = table.title.partition(": ")[2]
    return Reproduction(
        name=f"figure{number}",
        title=f"Figure {number}: {what}, FLOP/s against operational intensity",
        source=f"Medusa, arXiv 2401.10774, appendix G.2, Figure {number} (the points of {table.source[-7:]})",
        caveat=table.caveat,
        frame=table.frame[columns],
    )
