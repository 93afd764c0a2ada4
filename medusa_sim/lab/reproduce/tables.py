"""Tables 6 to 8 of the Medusa paper: achieved FLOP/s of one operator, by candidates.

Figures 9 to 20 of the Medusa paper: where operators lie on the roofline of three GPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from medusa_sim.data import DataDir
from medusa_sim.engines.runtime import load_runtime
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.grid.axes import Grid
from medusa_sim.grid.roofline import roofline_points
from medusa_sim.lab.reproduce.published import (
    BATCHES,
    CANDIDATES,
    PAPER_GPU,
    PAPER_SET,
    SEQ_LENS,
    operator_table,
    paper_latency,
    paper_roof,
)
from medusa_sim.models.named import load_model
from medusa_sim.operators.operator import operational_intensity
from medusa_sim.operators.table import check_rows, operators_of
from medusa_sim.step.rows import predicted_rows
from medusa_sim.units import TERA, US_PER_S

if TYPE_CHECKING:
    import pandas as pd


TABLE7_SEQ_LEN = 1024
POINTS = [
    "batch", "seq_len", "candidates", "operational_intensity", "published_flops_per_s",
    "predicted_flops_per_s", "bound", "source",
]  # fmt: skip
"""Columns of a table that Figures 18 to 20 draw."""


def printed_table(name: str, line: str, data_dir: DataDir = None) -> pd.DataFrame:
    """Table 6 or 8 (`medusa_table6`), whose rows are shipped; line: as of `_compared`."""
    return _compared(operator_table(name), line, data_dir)


def points(table: pd.DataFrame) -> pd.DataFrame:
    """Figures 18 to 20: a table on the roofline."""
    return table[POINTS]


def table7(data_dir: DataDir = None) -> pd.DataFrame:
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
    return _compared(check_rows(rows, "table7"), "batch", data_dir)


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


_SERIES = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv mlp"),
    **dict.fromkeys(("up_proj", "gate_proj", "down_proj"), "up/gate/down"),
    **dict.fromkeys(("qk", "pv"), "qk/pv"),
}
_PHASES = {"prefill": "init", "decode": "ar"}
"""Our names -> those of the figures' legends."""


def operator_figure(gpu_name: str, model_name: str, data_dir: DataDir = None) -> pd.DataFrame:
    """One of Figures 9 to 17: prefill and decode, batch 1 to 64 and 128 to 8192 keys in powers of two.

    One row an operator and setting; `series` is the legend's name. Raises SpecError where a GPU lacks
    the kernels.
    """
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
    return frame
