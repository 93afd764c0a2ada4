"""Columns of a table of operators and the cells of its rows as arrays.

RECORDED: how tables of other projects name what a table of operators calls `op` and `dtype`. Each entry is
recognised by the columns that it has; a new kind of table is a new entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import FloatArray
from medusa_sim.operators.kinds import KIND_OF
from medusa_sim.operators.operator import (
    ELEMENTWISE_KINDS,
    Attention,
    Elementwise,
    ElementwiseKind,
    Gemm,
    Operator,
    TextArray,
)

if TYPE_CHECKING:
    import pandas as pd


KIND_ALIASES: dict[str, str] = {"fused_moe": "moe", "alltoall": "all_to_all"}
"""Further names in the column `op` -> kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A table that leaves out `op` or `dtype`.

    tells, lacks: columns that it has and has not. op: the operator of every row where the column is missing,
    a name or made from the rows. dtype: the column that holds it instead. kernel: the column that holds the
    name of the kernel instead. no_dtype: words in `dtype` that say nothing. renamed: our column -> its name
    there. part: which part of a layer a row is, of tables without a dtype.
    """

    tells: frozenset[str]
    lacks: frozenset[str]
    op: str | Callable[[pd.DataFrame], pd.Series[Any]]
    dtype: str = "dtype"
    kernel: str = "kernel"
    no_dtype: frozenset[str] = frozenset()
    renamed: Mapping[str, str] = field(default_factory=dict)
    part: Callable[[pd.DataFrame], pd.Series[Any]] | None = None


LATENT_HEAD = 576
"""Width of a cached row of latent attention, by which tables without a name for it tell it (512 and 64)."""


def _by_queries(frame: pd.DataFrame) -> pd.Series[Any]:
    """Attention with several queries, with one, or latent: by q_len and the width of a cached row."""
    import pandas as pd

    several = pd.to_numeric(frame["q_len"], errors="coerce") > 1
    named = several.map({True: "verify_attention", False: "decode_attention"})
    return named.mask(pd.to_numeric(frame["head_dim"], errors="coerce") == LATENT_HEAD, "mla_decode")


def _convolution(frame: pd.DataFrame) -> pd.Series[Any]:
    """Which part of linear attention a kernel is, by its name."""
    return frame["kernel"].astype(str).str.contains("conv1d").map({True: "conv", False: "state"})


RECORDED: tuple[Recorded, ...] = (
    Recorded(tells=frozenset({"tokens", "inter", "experts", "topk"}), lacks=frozenset({"m"}), op="moe"),
    Recorded(tells=frozenset({"m", "n", "k"}), lacks=frozenset({"batch", "heads", "topk"}), op="gemm"),
    Recorded(
        tells=frozenset({"mla_dtype", "heads", "kv_len"}),
        lacks=frozenset(),
        op=lambda frame: _by_phase(frame, "mla_decode", "mla_prefill", "prefill"),
        dtype="mla_dtype",
    ),
    Recorded(
        tells=frozenset({"ep", "hidden", "topk"}),
        lacks=frozenset({"inter"}),
        op=lambda frame: _by_phase(frame, "dispatch", "combine", "combine"),
        kernel="backend",
        no_dtype=frozenset({"default"}),
    ),
    Recorded(
        tells=frozenset({"q_heads", "kv_heads", "head_dim", "q_len"}),
        lacks=frozenset({"heads"}),
        op=_by_queries,
        renamed={"heads": "q_heads", "engine": "engine_or_library"},
    ),
    Recorded(
        tells=frozenset({"num_v_heads", "head_k_dim"}),
        lacks=frozenset({"m"}),
        op=lambda frame: frame["op_name"],
        renamed={
            "heads": "num_v_heads",
            "key_heads": "num_k_heads",
            "value_dim": "head_v_dim",
            "key_dim": "head_k_dim",
            "conv_width": "d_conv",
        },
        part=_convolution,
    ),
    Recorded(
        tells=frozenset({"d_state", "nheads"}),
        lacks=frozenset({"m"}),
        op="mamba2",
        renamed={
            "heads": "nheads",
            "key_heads": "n_groups",
            "value_dim": "head_dim",
            "key_dim": "d_state",
            "conv_width": "d_conv",
        },
        part=_convolution,
    ),
    Recorded(
        tells=frozenset({"hc_mult", "num_tokens"}),
        lacks=frozenset({"m"}),
        op="hyper_connections",
        renamed={
            "tokens": "num_tokens",
            "hidden": "hidden_size",
            "streams": "hc_mult",
            "sites": "num_sites",
        },
        part=lambda frame: frame["op_name"],
    ),
    Recorded(
        tells=frozenset({"window", "attn_dtype"}),
        lacks=frozenset(),
        op="window_attention",
        dtype="attn_dtype",
    ),
    Recorded(
        tells=frozenset({"gemm_type", "prefix", "mla_dtype"}), lacks=frozenset(), op="dsa", dtype="mla_dtype"
    ),
)
ENGINES = {"tensorrt-llm": "trtllm", "tensorrt_llm": "trtllm"}
"""Engines whose kernel set has another name."""


def _by_phase(frame: pd.DataFrame, first: str, second: str, word: str) -> pd.Series[Any]:
    """The second operator where `phase` has the word, else the first; blank without such a column."""
    if "phase" not in frame:
        return frame.iloc[:, 0].map(lambda _: "")
    return frame["phase"].astype(str).str.contains(word).map({True: second, False: first})


def with_names(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with `op`, and with `dtype` where another column holds it; itself where it has both.

    A blank `dtype` of a row is filled from the other column too.
    """
    columns = {str(column) for column in frame.columns}
    if "engine" in columns:
        frame = frame.assign(engine=frame["engine"].replace(ENGINES))
    for kind in RECORDED:
        if not kind.tells <= columns or kind.lacks & columns:
            continue
        frame = frame.assign(
            **{ours: frame[theirs] for ours, theirs in kind.renamed.items() if theirs in frame}
        )
        if kind.part is not None and "part" not in columns:
            frame = frame.assign(part=kind.part(frame))
            columns.add("part")
        if kind.part is not None and "dtype" not in columns:
            frame = frame.assign(dtype="")
            columns.add("dtype")
        if "op" not in columns:
            frame = frame.assign(op=kind.op if isinstance(kind.op, str) else kind.op(frame))
            columns.add("op")
        if kind.dtype != "dtype":
            names = frame[kind.dtype].astype(str)
            given = frame["dtype"].astype("string") if "dtype" in columns else None
            filled = names if given is None else given.where(given.str.strip().fillna("") != "", names)
            frame = frame.assign(dtype=filled)
            columns.add("dtype")
        if kind.no_dtype and "dtype" in columns:
            names = frame["dtype"].astype("string").str.strip()
            frame = frame.assign(dtype=names.mask(names.isin(list(kind.no_dtype)), ""))
        if "kernel" not in columns and kind.kernel in columns:
            frame = frame.assign(kernel=frame[kind.kernel])
            columns.add("kernel")
    return frame


OPERATORS: dict[str, type[Operator]] = {name: kind.operator for name, kind in KIND_OF.items()}
"""Every operator by kind."""
FAMILIES: dict[str, type[Operator]] = {made.FAMILY: made for made in OPERATORS.values()}
SIZE_COLUMNS = tuple(dict.fromkeys(name for made in (Gemm, Attention, Elementwise) for name in made.COLUMNS))
"""Sizes that every table has; those of further families are read where they are."""
MORE_COLUMNS = tuple(
    dict.fromkeys(
        name for made in FAMILIES.values() for name in made.row_numbers() if name not in SIZE_COLUMNS
    )
)
OPTIONAL_COLUMNS = {name: blank for made in FAMILIES.values() for name, blank in made.OPTIONAL.items()}
WHOLE_COLUMNS = (
    *SIZE_COLUMNS,
    *MORE_COLUMNS,
    *(name for name, blank in OPTIONAL_COLUMNS.items() if not np.isnan(blank)),
)
"""Columns of whole numbers."""
CHOICE_COLUMNS = ("engine", "kernel")
"""Whose kernel a row is of: library or engine, and the name of the kernel there."""
NAME_COLUMNS = ("op", "dtype")
REQUIRED_COLUMNS = ("op", *SIZE_COLUMNS, "dtype")
TIME_COLUMN = "time_us"
BYTES_COLUMN = "bytes"
LARGEST_BYTES = 1e15
LARGEST_SIZE = 1e9
"""Far above any real tensor extent; a larger number is a slip (a byte count, a time in ns)."""

ELEMENTWISE_ALIASES: dict[str, ElementwiseKind] = {
    "rms_norm": "rms_norm",
    "input_layernorm": "rms_norm",
    "post_attention_layernorm": "rms_norm",
    "post_layernorm": "rms_norm",
    "final_layernorm": "rms_norm",
    "rope": "rope",
    "attn_rope": "rope",
    "activation": "activation",
    "mlp_act": "activation",
    "act_fn": "activation",
    "residual": "residual",
    "add": "residual",
    "embedding": "embedding",
    "emb": "embedding",
    "next_token": "next_token",
}
"""Names under which public benchmarks record an elementwise kernel -> its kind."""

KINDS: dict[str, str] = {
    **{kind: kind for kind in OPERATORS if kind != "gemm"},
    **ELEMENTWISE_ALIASES,
    **KIND_ALIASES,
}
"""What a name in the column `op` means; rows of any other name are linear layers if they have m, n and k."""


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
    """The name of each row's numeric format as given; a family's own where that is blank."""
    names = texts(frame, "dtype")
    for kind in np.unique(kinds[names == ""]):
        if kind in OPERATORS:
            names = np.where((names == "") & (kinds == kind), OPERATORS[str(kind)].BLANK_DTYPE, names)
    return names


def kinds_of(frame: pd.DataFrame) -> npt.NDArray[np.str_]:
    """The operator kind of each row, '' for a name that is none and has no m, n, k.

    The name decides, except that an elementwise name with m, n and k is a linear layer.
    """
    named = frame["op"].map(KINDS).fillna("").to_numpy(dtype=str)
    sized = frame[list(Gemm.COLUMNS)].notna().all(axis=1).to_numpy(dtype=bool)
    kinds: npt.NDArray[np.str_] = np.where(sized & np.isin(named, ("", *ELEMENTWISE_KINDS)), "gemm", named)
    return kinds


def row_numbers(frame: pd.DataFrame, made: type[Operator], rows: IndexArray) -> dict[str, FloatArray]:
    """Sizes of one family's rows by column; what a family leaves out where it is blank is filled in."""
    numbers = {name: frame[name].to_numpy(dtype=np.float64)[rows] for name in made.row_numbers()}
    for name, blank in made.OPTIONAL.items():
        given = frame[name].to_numpy(dtype=np.float64)[rows] if name in frame else np.full(rows.size, blank)
        numbers[name] = np.where(np.isnan(given), blank, given)
    return numbers
