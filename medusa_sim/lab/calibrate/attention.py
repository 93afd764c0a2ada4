"""Fits fused attention (`latency.attention`) of one GPU and library to measured rows.

Tile sizes and other whole numbers are found by coordinate search where they are not known (`BY_TOKEN`), the
rest by least squares. Held-out errors leave out whole (heads, kv_heads) groups, or whole batches and query
lengths where there is one group.
"""

from __future__ import annotations

from functools import partial

import msgspec
import numpy as np
from msgspec.structs import replace

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.errors import DataError
from medusa_sim.gpus.fitted_attention import AttentionKernel, AttentionPath
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.lab.calibrate.driver import UNFITTED, Budget, FitDriver, warm
from medusa_sim.lab.calibrate.rows import Rows, require_rows
from medusa_sim.lab.calibrate.search import coordinate_search, value_at
from medusa_sim.lab.calibrate.starts import Bounds
from medusa_sim.latency.attention import attention_time
from medusa_sim.operators.attention import Attention

_BOUNDS = Bounds.of("attention")
_Driver = FitDriver[Attention, AttentionKernel]

_CHOICES: dict[str, tuple[object, ...]] = {
    "wide.ctas_per_sm": (1, 2),
    "wide.split_above": (128, 256, 512),
    "wide.tile_rows": (64, 128),
    "wide.tile_keys": (64, 96, 128),
    "wide.packs_gqa": (True, False),
}
"""What coordinate search tries, in this order."""

_STYLES: tuple[dict[str, object], ...] = (
    {"ctas_per_sm": 1, "split_above": 256, "tile_rows": 128, "tile_keys": 64, "packs_gqa": True},
    {"ctas_per_sm": 2, "split_above": 512, "tile_rows": 64, "tile_keys": 64, "packs_gqa": False},
)
"""Where the search starts: one large tile an SM and longest first, or two small ones."""

_ONE_ROW: dict[str, object] = {"packs_gqa": True, "store_passes": 0.0, "append_ratio": 0.0}
"""What rows of one query cannot tell: they always pack and store next to nothing."""

BY_TOKEN: dict[str, object] = {
    "by_token": True, "tile_rows": 16, "tile_keys": 128, "split_above": 0, "ctas_per_sm": 1,
}  # fmt: skip
"""trtllm-gen, which every engine runs on Blackwell for one query: tiles of up to 16 heads a key, whole splits
(FlashInfer, include/flashinfer/trtllm/fmha/fmhaKernels.cuh)."""

_NARROW_ROWS = 3
"""Below four rows per K/V head FlashInfer leaves the tensor cores; other libraries do not."""
_NARROW_GAIN = 0.8
"""What a second path must lower the objective to, to be kept."""
_LEAST_PATH_ROWS = 100
"""Rows that both paths need."""
_BUDGET = Budget(search_rows=400, fit_rows=1500, evaluations=25, band_rows=20)
_ORDER = ("batch", "q_len", "kv_len", "kv_heads", "heads")
"""Columns over which rows are drawn evenly, the last first."""


def fit_attention(rows: Rows[Attention], gpu: Gpu, *, source: str) -> AttentionKernel:
    """Kernel parameters of measured rows, with `fit` filled in.

    Deterministic, under a minute for 5000 rows. Raises DataError for fewer than 20 rows or for a kind
    that is not fused.
    """
    if not rows.operator.is_fused:
        raise DataError(f"{source}: {rows.operator.kind} is not a fused kernel; `fit_unfused` fits it")
    require_rows(rows, source)
    driver: _Driver = FitDriver(gpu, warm(attention_time), _BUDGET)
    return driver.with_fit(_search(rows, driver), rows, partial(_refit, driver=driver), source=source)


def _search(rows: Rows[Attention], driver: _Driver) -> AttentionKernel:
    """The best kernel, with a narrow path where that lowers the objective as far as `_NARROW_GAIN`."""
    if rows.operator.kind == "decode_attention" and driver.gpu.architecture == "blackwell":
        path = msgspec.convert(_BOUNDS.starts | BY_TOKEN | _ONE_ROW, AttentionPath)
        return _refit(AttentionKernel(wide=path, fit=UNFITTED), rows, driver)
    one = _refit(_search_path(rows, driver), rows, driver)
    narrow = _rows_per_head(rows.operator) <= _NARROW_ROWS
    if rows.operator.kind != "decode_attention" or min(narrow.sum(), (~narrow).sum()) < _LEAST_PATH_ROWS:
        return one
    two = replace(
        _search_path(rows.where(~narrow), driver),
        narrow=_search_path(rows.where(narrow), driver).wide,
        narrow_rows=_NARROW_ROWS,
    )
    two = _refit(two, rows, driver)
    return two if driver.cost(two, rows) < _NARROW_GAIN * driver.cost(one, rows) else one


def _search_path(rows: Rows[Attention], driver: _Driver) -> AttentionKernel:
    """A kernel of one path: the better of the searches from both styles, on an even subset of the rows."""
    subset = rows.thin(_BUDGET.search_rows, *_ORDER)
    return driver.best([_coordinate_search(style, subset, driver) for style in _STYLES], subset)


def _coordinate_search(style: dict[str, object], rows: Rows[Attention], driver: _Driver) -> AttentionKernel:
    """One pass over the whole numbers, keeping what lowers the objective."""
    fixed = _ONE_ROW if rows.operator.kind == "decode_attention" else {}
    path = msgspec.convert(_BOUNDS.starts | style | fixed, AttentionPath)
    free = {place: options for place, options in _CHOICES.items() if place.split(".")[1] not in fixed}
    refit = partial(_least_squares, place="wide", rows=rows, driver=driver)
    start = refit(AttentionKernel(wide=path, fit=UNFITTED))
    return coordinate_search(start, free, refit, lambda kernel: driver.cost(kernel, rows))[0]


def _refit(kernel: AttentionKernel, rows: Rows[Attention], driver: _Driver) -> AttentionKernel:
    """Every path fitted to the rows that it serves."""
    if kernel.narrow is None:
        return _least_squares(kernel, "wide", rows, driver)
    narrow = _rows_per_head(rows.operator) <= kernel.narrow_rows
    kernel = _least_squares(kernel, "wide", rows.where(~narrow), driver)
    return _least_squares(kernel, "narrow", rows.where(narrow), driver)


def _least_squares(
    kernel: AttentionKernel, place: str, rows: Rows[Attention], driver: _Driver
) -> AttentionKernel:
    """Least squares over the parameters of a path that the rows can tell apart."""
    part = rows.thin(_BUDGET.fit_rows, *_ORDER)
    path: AttentionPath = value_at(kernel, place)
    seen = {
        parameter: limit
        for parameter, limit in _BOUNDS.at(place).items()
        if _is_seen(parameter.split(".")[1], path, rows.operator, driver.gpu)
    }
    return driver.least_squares(kernel, seen, part)


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


def _rows_per_head(operator: Attention) -> FloatArray:
    return as_float(operator.q_len) * operator.heads / operator.kv_heads
