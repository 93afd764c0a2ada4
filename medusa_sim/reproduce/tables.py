"""Tables 6 to 8 of the Medusa paper: achieved FLOP/s of one operator, by candidates."""

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
    Reproduction,
    operator_table,
)
from medusa_sim.specs.gpu import load_gpu
from medusa_sim.specs.runtime import load_runtime
from medusa_sim.step.rows import predicted_rows
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
