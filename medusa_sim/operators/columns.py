"""Columns of a table of operators, and its cells as arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import FloatArray
from medusa_sim.operators.attention import Attention
from medusa_sim.operators.elementwise import ELEMENTWISE_KINDS, Elementwise
from medusa_sim.operators.gemm import Gemm
from medusa_sim.operators.kinds import KIND_OF
from medusa_sim.operators.operator import Operator, TextArray

if TYPE_CHECKING:
    import pandas as pd


OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "heads": ("q_heads", "num_v_heads", "nheads"),
    "key_heads": ("num_k_heads", "n_groups"),
    "key_dim": ("head_k_dim", "d_state"),
    "value_dim": ("head_v_dim",),
    "conv_width": ("d_conv",),
    "tokens": ("num_tokens",),
    "hidden": ("hidden_size",),
    "streams": ("hc_mult",),
    "sites": ("num_sites",),
    "dtype": ("mla_dtype", "attn_dtype"),
    "engine": ("engine_or_library",),
    "kernel": ("backend",),
}
"""Column -> its names in published tables, read where the column is missing (or a dtype blank)."""
ENGINES = {"tensorrt-llm": "trtllm", "tensorrt_llm": "trtllm"}
"""Engine -> its kernel set, where the two names differ."""


LATENT_HEAD = 576
"""Width of a cached row of latent attention (512 + 64): how rows without an `op` are recognised."""
OPERATORS: dict[str, type[Operator]] = {name: kind.operator for name, kind in KIND_OF.items()}
"""Every operator by kind."""
FAMILIES: dict[str, type[Operator]] = {made.FAMILY: made for made in OPERATORS.values()}
SIZE_COLUMNS = tuple(dict.fromkeys(name for made in (Gemm, Attention, Elementwise) for name in made.COLUMNS))
"""Sizes that a checked table always has; sizes of other families are optional columns."""
MORE_COLUMNS = tuple(
    dict.fromkeys(
        name for made in FAMILIES.values() for name in made.row_numbers() if name not in SIZE_COLUMNS
    )
)
OPTIONAL_COLUMNS = {name: blank for made in FAMILIES.values() for name, blank in made.ROWS.optional.items()}
WHOLE_COLUMNS = (
    *SIZE_COLUMNS,
    *MORE_COLUMNS,
    *(name for name, blank in OPTIONAL_COLUMNS.items() if not np.isnan(blank)),
)
"""Columns of whole numbers."""
CHOICE_COLUMNS = ("engine", "kernel")
"""Library or engine of the measured kernel, and the kernel's name there."""
NAME_COLUMNS = ("op", "dtype")
REQUIRED_COLUMNS = ("op", *SIZE_COLUMNS, "dtype")
TIME_COLUMN = "time_us"
BYTES_COLUMN = "bytes"
LARGEST_BYTES = 1e15
LEAST_US = 1e-3
"""Shortest time allowed for a kernel, about four clock cycles."""
LARGEST_SIZE = 1e9
"""Far above any real tensor size; a larger number is a mistake (a byte count, a time in ns)."""
_ALIASES = {
    "input_layernorm": "rms_norm", "post_attention_layernorm": "rms_norm", "post_layernorm": "rms_norm",
    "final_layernorm": "rms_norm", "attn_rope": "rope", "mlp_act": "activation", "act_fn": "activation",
    "add": "residual", "emb": "embedding", "fused_moe": "moe", "alltoall": "all_to_all",
}  # fmt: skip
KINDS: dict[str, str] = {**{kind: kind for kind in OPERATORS if kind != "gemm"}, **_ALIASES}
"""Kind of each name in the column `op`; rows of any other name are linear layers if they have m, n and k."""


def with_names(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with our column names, and with `op`, `part` and `dtype` filled in from other columns."""
    for ours, others in OTHER_NAMES.items():
        for other in (name for name in others if name in frame):
            if ours not in frame:
                frame = frame.assign(**{ours: frame[other]})
            elif ours == "dtype":
                given = frame["dtype"].astype("string").str.strip()
                frame = frame.assign(dtype=given.where(given.fillna("") != "", frame[other].astype(str)))
    if "engine" in frame:
        frame = frame.assign(engine=frame["engine"].replace(ENGINES))
    if "op" not in frame and "q_heads" in frame:
        frame = frame.assign(op=_by_queries(frame))
    elif "op" not in frame and {"m", "n", "k"} <= {*frame.columns} and "batch" not in frame:
        frame = frame.assign(op="gemm")
    if "d_state" in frame and "value_dim" not in frame:  # Mamba-2, whose heads have one width
        frame = frame.assign(value_dim=frame["head_dim"])
    return frame if "op" not in frame else _with_words(frame)


def _with_words(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with `part` (of a layer) and `dtype`; a dtype is blank where no column gives one."""
    if "part" not in frame and "hc_mult" in frame:
        frame = frame.assign(part=frame["op_name"])
    elif "part" not in frame and {"d_conv", "kernel"} <= {*frame.columns}:
        is_conv = frame["kernel"].astype(str).str.contains("conv1d")
        frame = frame.assign(part=is_conv.map({True: "conv", False: "state"}))
    if "dtype" not in frame:
        kinds = [OPERATORS.get(kind) for kind in frame["op"].astype(str).unique()]
        return frame.assign(dtype="") if all(kind and kind.ROWS.blank_dtype for kind in kinds) else frame
    if "ep" in frame:  # rows of dispatch: "default" does not say what an engine sends
        return frame.assign(dtype=frame["dtype"].astype("string").str.strip().replace("default", ""))
    return frame


def _by_queries(frame: pd.DataFrame) -> pd.Series[Any]:
    """Kinds of attention rows: latent by the width of a cached row, else one or several queries."""
    import pandas as pd

    several = pd.to_numeric(frame["q_len"], errors="coerce") > 1
    named = several.map({True: "verify_attention", False: "decode_attention"})
    return named.mask(pd.to_numeric(frame["head_dim"], errors="coerce") == LATENT_HEAD, "mla_decode")


IndexArray: TypeAlias = npt.NDArray[np.intp]


def texts(
    frame: pd.DataFrame, column: str, index: IndexArray | slice = slice(None), blank: str = ""
) -> TextArray:
    """A text column of a checked frame at `index`, stripped; `blank` where there is none."""
    if column not in frame:
        return np.full(len(np.arange(len(frame))[index]), blank, dtype=object).astype(str)
    given = frame[column].iloc[index]
    codes, values = given.factorize(use_na_sentinel=True)
    words = np.asarray([*(str(value).strip() or blank for value in values), blank])
    cells: TextArray = words[codes]
    return cells


def dtype_names(frame: pd.DataFrame, kinds: TextArray) -> TextArray:
    """The numeric format of each row as given, or its family's default where blank."""
    names = texts(frame, "dtype")
    for kind in np.unique(kinds[names == ""]):
        if kind in OPERATORS:
            names = np.where((names == "") & (kinds == kind), OPERATORS[str(kind)].ROWS.blank_dtype, names)
    return names


def kinds_of(frame: pd.DataFrame) -> npt.NDArray[np.str_]:
    """The operator kind of each row; '' for an unknown name without m, n and k.

    The name decides, except that an elementwise name with m, n and k is a linear layer.
    """
    named = frame["op"].map(KINDS).fillna("").to_numpy(dtype=str)
    sized = frame[list(Gemm.COLUMNS)].notna().all(axis=1).to_numpy(dtype=bool)
    kinds: npt.NDArray[np.str_] = np.where(sized & np.isin(named, ("", *ELEMENTWISE_KINDS)), "gemm", named)
    return kinds


def row_numbers(frame: pd.DataFrame, made: type[Operator], rows: IndexArray) -> dict[str, FloatArray]:
    """Sizes of one family's rows by column, with blanks of optional columns filled in."""
    numbers = {name: frame[name].to_numpy(dtype=np.float64)[rows] for name in made.row_numbers()}
    for name, blank in made.ROWS.optional.items():
        given = frame[name].to_numpy(dtype=np.float64)[rows] if name in frame else np.full(rows.size, blank)
        numbers[name] = np.where(np.isnan(given), blank, given)
    return numbers
