"""Tables 6 to 8 of the Medusa paper: achieved FLOP/s of one operator, by candidates.

Figures 9 to 20 of the Medusa paper: where operators lie on the roofline of three GPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from medusa_sim.data import DataDir
from medusa_sim.operators.operator import operational_intensity
from medusa_sim.operators.table import check_rows, operators_of
from medusa_sim.reproduce.published import (
    BATCHES,
    CANDIDATES,
    PAPER_GPU,
    PAPER_SET,
    SEQ_LENS,
    Reproduction,
    operator_table,
    paper_latency,
    paper_roof,
)
from medusa_sim.specs.gpu import load_gpu
from medusa_sim.specs.models import load_model
from medusa_sim.specs.runtime import load_runtime
from medusa_sim.step.roofline import roofline_points
from medusa_sim.step.rows import predicted_rows
from medusa_sim.step.workload import Grid
from medusa_sim.units import TERA, US_PER_S

if TYPE_CHECKING:
    import pandas as pd


TABLE7_SEQ_LEN = 1024
_PAPER = "Medusa, arXiv 2401.10774, appendix G.2"
_IN_SAMPLE = "the kernel set `paper` is fitted to these rows: `medusa-sim specs` shows its held-out error"


def table6(data_dir: DataDir = None) -> Reproduction:
    """Attention product by context length, batch 16, Llama-33B on A100-80GB-PCIe."""
    return Reproduction(
        name="table6",
        title="Table 6: attention product, batch 16, Llama-33B, A100-80GB-PCIe",
        source=f"{_PAPER}, Table 6",
        caveat=_IN_SAMPLE,
        frame=_compared(operator_table("medusa_table6"), "seq_len", data_dir),
    )


def table7(data_dir: DataDir = None) -> Reproduction:
    """Attention product by batch size at 1024 keys: a prediction, no row of it was used or seen."""
    import pandas as pd

    batch, candidates = (axis.ravel() for axis in np.meshgrid(BATCHES, CANDIDATES, indexing="ij"))
    rows = pd.DataFrame(
        {
            "op": "qk",
            **dict.fromkeys(("m", "n", "k"), np.nan),
            "batch": batch,
            "q_len": candidates,
            "kv_len": TABLE7_SEQ_LEN,
            "heads": 52,
            "kv_heads": 52,
            "head_dim": 128,
            "dtype": "fp16",
        }
    )
    return Reproduction(
        name="table7",
        title="Table 7: attention product, 1024 keys, Llama-33B, A100-80GB-PCIe",
        source=f"{_PAPER}, Table 7",
        caveat=(
            "prediction: the published table is kept out of this project as a test; Table 6, to which the "
            "kernels are fitted, has one batch"
        ),
        frame=_compared(check_rows(rows, "table7"), "batch", data_dir),
    )


def table8(data_dir: DataDir = None) -> Reproduction:
    """Up, gate and down projections by batch size, Llama-33B on A100-80GB-PCIe."""
    return Reproduction(
        name="table8",
        title="Table 8: up/gate/down projections, Llama-33B, A100-80GB-PCIe",
        source=f"{_PAPER}, Table 8",
        caveat=_IN_SAMPLE,
        frame=_compared(operator_table("medusa_table8"), "batch", data_dir),
    )


def _compared(rows: pd.DataFrame, line: str, data_dir: DataDir) -> pd.DataFrame:
    """One row a cell of the table. `line` names the axis along which T(candidates) / T(1) is taken.

    Errors are signed: predicted / published - 1.
    """
    import pandas as pd

    predicted = predicted_rows(
        rows, load_gpu(PAPER_GPU, data_dir), load_runtime(PAPER_SET), data_dir=data_dir
    )
    flops, intensity = (np.empty(len(rows)) for _ in range(2))
    for index, operator in operators_of(rows):
        flops[index] = operator.flops
        intensity[index] = operational_intensity(operator)
    missing = pd.Series(np.nan, index=rows.index)
    frame = pd.DataFrame(
        {
            "batch": rows["batch"].astype(int),
            "seq_len": rows["kv_len"].astype("Int64"),
            "candidates": rows["q_len"].astype(int),
            "published_us": rows.get("time_us", missing),
            "predicted_us": predicted["predicted_us"],
            "low_us": predicted["low_us"],
            "high_us": predicted["high_us"],
        }
    )
    frame["error"] = frame["predicted_us"] / frame["published_us"] - 1.0
    for kind in ("published", "predicted"):
        first = frame.loc[frame["candidates"] == 1].set_index(line)[f"{kind}_us"]
        frame[f"{kind}_ratio"] = frame[f"{kind}_us"] / frame[line].map(first)
    frame["ratio_error"] = frame["predicted_ratio"] / frame["published_ratio"] - 1.0
    frame["published_flops_per_s"] = rows.get("published_tflops_per_s", missing) * TERA
    frame["predicted_flops_per_s"] = flops / frame["predicted_us"] * US_PER_S
    frame["published_operational_intensity"] = rows.get("published_op_intensity", missing)
    frame["operational_intensity"] = intensity
    frame["bound"], frame["source"] = predicted["bound"], predicted["source"]
    return frame


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
        "batch", "seq_len", "candidates", "operational_intensity", "published_flops_per_s",
        "predicted_flops_per_s", "bound", "source",
    ]  # fmt: skip
    what = table.title.partition(": ")[2]
    return Reproduction(
        name=f"figure{number}",
        title=f"Figure {number}: {what}, FLOP/s against operational intensity",
        source=f"Medusa, arXiv 2401.10774, appendix G.2, Figure {number} (the points of {table.source[-7:]})",
        caveat=table.caveat,
        frame=table.frame[columns],
    )
