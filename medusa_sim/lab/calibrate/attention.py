"""Fits fused attention (`latency.attention`) of one GPU and library to measured rows.

Tile sizes and other whole numbers are found by coordinate search, the rest by least squares. Held-out errors
leave out whole (heads, kv_heads) groups, or whole batches and query lengths where there is one group.
"""

from __future__ import annotations

import msgspec
import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.errors import DataError
from medusa_sim.lab.calibrate.fit import UNFITTED, Law, warm
from medusa_sim.lab.calibrate.kind_rows import Rows, require_rows
from medusa_sim.lab.calibrate.search import coordinate_search, refined
from medusa_sim.lab.calibrate.starts import Bounds
from medusa_sim.latency.attention import attention_time
from medusa_sim.operators.attention import Attention
from medusa_sim.specs.fitted_attention import AttentionKernel, AttentionPath
from medusa_sim.specs.gpu import Gpu

_BOUNDS = Bounds.of("attention")
_LIMITS = _BOUNDS.limits
_Law = Law[Attention, AttentionKernel]

_CHOICES: dict[str, tuple[object, ...]] = {
    "ctas_per_sm": (1, 2),
    "split_above": (128, 256, 512),
    "tile_rows": (64, 128),
    "tile_keys": (64, 96, 128),
    "packs_gqa": (True, False),
}
"""What coordinate search tries, in this order."""

_STYLES: tuple[dict[str, object], ...] = (
    {
        "ctas_per_sm": 1,
        "split_above": 256,
        "tile_rows": 128,
        "tile_keys": 64,
        "packs_gqa": True,
    },
    {
        "ctas_per_sm": 2,
        "split_above": 512,
        "tile_rows": 64,
        "tile_keys": 64,
        "packs_gqa": False,
    },
)
"""Where the search starts: one large tile an SM and longest first, or two small ones."""

_ONE_ROW: dict[str, object] = {
    "packs_gqa": True,
    "store_passes": 0.0,
    "append_ratio": 0.0,
}
"""What rows of one query cannot tell: they always pack and store next to nothing."""

_NARROW_ROWS = 3
"""Below four rows per K/V head FlashInfer leaves the tensor cores; other libraries do not."""
_NARROW_GAIN = 0.8
"""What a second path must lower the objective to, to be kept."""
_BAND_ROWS = 20
_SEARCH_ROWS = 400
_FIT_ROWS = 1500
_EVALUATIONS = 25
_ORDER = ("batch", "q_len", "kv_len", "kv_heads", "heads")


def fit_attention(rows: Rows[Attention], gpu: Gpu, *, source: str, **_: object) -> AttentionKernel:
    """Kernel parameters of measured rows, with `fit` filled in.

    Deterministic, under a minute for 5000 rows. Raises DataError for fewer than 20 rows or for a kind
    that is not fused.
    """
    if not rows.operator.is_fused:
        raise DataError(f"{source}: {rows.operator.kind} is not a fused kernel; `fit_unfused` fits it")
    require_rows(rows, source)
    law: _Law = Law(gpu, warm(attention_time))
    return law.with_fit(
        _search(rows, law),
        rows,
        lambda kernel, part: _refined(kernel, part, law),
        source=source,
        least_rows=_BAND_ROWS,
    )


def _search(rows: Rows[Attention], law: _Law) -> AttentionKernel:
    """The best kernel, with a narrow path where that lowers the objective by more than a fifth."""
    one = _refined(_kernel(_search_path(rows, law)), rows, law)
    narrow = _rows_per_head(rows.operator) <= _NARROW_ROWS
    if rows.operator.kind != "decode_attention" or min(narrow.sum(), (~narrow).sum()) < 100:
        return one
    two = msgspec.structs.replace(
        _kernel(_search_path(rows.where(~narrow), law)),
        narrow=_search_path(rows.where(narrow), law),
        narrow_rows=_NARROW_ROWS,
    )
    two = _refined(two, rows, law)
    return two if law.cost(two, rows) < _NARROW_GAIN * law.cost(one, rows) else one


def _search_path(rows: Rows[Attention], law: _Law) -> AttentionPath:
    """The better of the searches from both styles, on an even subset of the rows."""
    subset = rows.thin(_SEARCH_ROWS, *_ORDER)
    paths = [_coordinate_search(style, subset, law) for style in _STYLES]
    return min(paths, key=lambda path: law.cost(_kernel(path), subset))


def _coordinate_search(style: dict[str, object], rows: Rows[Attention], law: _Law) -> AttentionPath:
    """One pass over the whole numbers, keeping what lowers the objective; least squares inside."""
    fixed = _ONE_ROW if rows.operator.kind == "decode_attention" else {}
    start = _refined_path(msgspec.convert(_BOUNDS.starts | style | fixed, AttentionPath), rows, law)

    def changed(path: AttentionPath, name: str, option: object) -> AttentionPath:
        return _refined_path(msgspec.structs.replace(path, **{name: option}), rows, law)

    free = {name: options for name, options in _CHOICES.items() if name not in fixed}
    return coordinate_search(start, free, getattr, changed, lambda path: law.cost(_kernel(path), rows))[0]


def _refined(kernel: AttentionKernel, rows: Rows[Attention], law: _Law) -> AttentionKernel:
    """Every path fitted to the rows that it serves."""
    if kernel.narrow is None:
        return msgspec.structs.replace(
            kernel, wide=_refined_path(kernel.wide, rows.thin(_FIT_ROWS, *_ORDER), law)
        )
    narrow = _rows_per_head(rows.operator) <= kernel.narrow_rows
    return msgspec.structs.replace(
        kernel,
        wide=_refined_path(kernel.wide, rows.where(~narrow).thin(_FIT_ROWS, *_ORDER), law),
        narrow=_refined_path(kernel.narrow, rows.where(narrow).thin(_FIT_ROWS, *_ORDER), law),
    )


def _refined_path(path: AttentionPath, rows: Rows[Attention], law: _Law) -> AttentionPath:
    """Least squares on log time over the parameters that the rows can tell apart."""
    limits = {name: limit for name, limit in _LIMITS.items() if _is_seen(name, path, rows.operator, law.gpu)}
    log_time = np.log(rows.time_us)
    return refined(
        path,
        limits,
        lambda trial: np.log(law.time_us(_kernel(trial), rows)) - log_time,
        max_nfev=_EVALUATIONS,
    )


def _is_seen(name: str, path: AttentionPath, operator: Attention, gpu: Gpu) -> bool:
    """Whether the rows can tell a parameter; if not, it keeps its start.

    Rows of one token store next to nothing; one CTA on an SM shares with none; rows that all fit in L2
    never show HBM.
    """
    if name in ("store_passes", "append_ratio"):
        return operator.kind != "decode_attention"
    if name in ("bandwidth_fraction", "l2_fill", "l2_sharpness"):
        return bool(np.max(operator.bytes) > gpu.l2_bytes)
    return name != "sharing" or path.ctas_per_sm > 1


def _kernel(path: AttentionPath) -> AttentionKernel:
    """A kernel of one path, its fit still empty."""
    return AttentionKernel(wide=path, fit=UNFITTED)


def _rows_per_head(operator: Attention) -> FloatArray:
    return as_float(operator.q_len) * operator.heads / operator.kv_heads
