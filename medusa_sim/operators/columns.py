"""Columns of a table of operators, and the names under which its rows are known."""

from __future__ import annotations

import numpy as np

from medusa_sim.operators.kinds import OPERATORS
from medusa_sim.operators.operator import Attention, Elementwise, ElementwiseKind, Gemm, Operator
from medusa_sim.operators.recorded import KIND_ALIASES

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
