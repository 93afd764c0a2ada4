"""Fits the fused attention model of `medusa_sim.latency.attention` to measured rows of one GPU and library.

The objective is the sum of smoothed absolute log errors (soft l1). Tile sizes and other whole numbers are
found by coordinate search, the rest by least squares. Held-out errors come from refits in which whole
(heads, kv_heads) groups are left out, or whole batches and query lengths where there is one group.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.calibrate.residuals import residual_bands
from medusa_sim.errors import DataError
from medusa_sim.latency.attention import attention_time
from medusa_sim.operators.operator import Attention
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.kernels import AttentionKernel, AttentionPath, Fit, Residual

RANGES_OF_SIZE: tuple[int, ...] = (1, 8, 64, 512, 4096, 65536, 4194304)
"""Upper ends of the ranges of q_len x batch for which residual bands are kept."""

_START: dict[str, tuple[float, float, float]] = {
    "ramp_us": (8.0, 0.1, 30.0),
    "cta_us": (3.0, 0.02, 30.0),
    "row_us": (3e-3, 1e-5, 0.5),
    "whole_fraction": (0.5, 0.02, 3.0),
    "split_fraction": (0.5, 0.02, 3.0),
    "split_us": (3.0, 0.01, 20.0),
    "split_step_us": (0.5, 1e-3, 5.0),
    "bandwidth_fraction": (0.85, 0.6, 1.0),
    "l2_ratio": (3.0, 1.0, 12.0),
    "l2_fill": (0.8, 0.3, 3.0),
    "l2_sharpness": (6.0, 1.0, 30.0),
    "store_passes": (1.0, 1e-3, 2.5),
    "append_ratio": (0.1, 1e-3, 5.0),
    "sharing": (0.5, 0.01, 1.0),
}
"""Start, lowest and highest value of each parameter that least squares finds."""

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
_CHANGE_GAIN = 0.99
"""What a change must bring to be kept: a second path a fifth, another whole number a hundredth."""
_SCALE = 0.1
_FOLDS = 5
_LEAST_ROWS = 20
_BAND_ROWS = 20
_SEARCH_ROWS = 400
_FIT_ROWS = 1500


@dataclass(frozen=True, slots=True)
class AttentionRows:
    """Measured rows of one kind of fused attention: shapes of one length, and their times in us."""

    operator: Attention
    time_us: FloatArray

    @property
    def group(self) -> IntArray:
        """What is held out together: a label per (heads, kv_heads), per (batch, q_len) or per kv_len.

        The first of these that takes more than one value.
        """
        op = self.operator
        candidates = [(op.heads, op.kv_heads), (op.batch, op.q_len), (op.kv_len, op.head_dim)]
        labels = [_labels(first, second) for first, second in candidates]
        return next((label for label in labels if label.max() > 0), np.arange(len(self.time_us)))

    def where(self, keep: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> AttentionRows:
        """The rows for which `keep` is true (or whose numbers it holds)."""
        op = self.operator
        kept = dataclasses.replace(
            op,
            batch=np.asarray(op.batch)[keep],
            q_len=np.asarray(op.q_len)[keep],
            kv_len=np.asarray(op.kv_len)[keep],
            heads=np.asarray(op.heads)[keep],
            kv_heads=np.asarray(op.kv_heads)[keep],
            head_dim=np.asarray(op.head_dim)[keep],
        )
        return AttentionRows(operator=kept, time_us=self.time_us[keep])


def fit_attention(operator: Attention, time_us: FloatArray, gpu: Gpu, *, source: str) -> AttentionKernel:
    """Kernel parameters of measured rows (`operator` holds one shape a row), with `fit` filled in.

    Deterministic, under a minute for 5000 rows. Raises DataError for fewer than 20 rows or for a kind
    that is not fused.
    """
    if not operator.is_fused:
        raise DataError(f"{source}: {operator.kind} is not a fused kernel; `fit_unfused` fits it")
    if len(time_us) < _LEAST_ROWS:
        raise DataError(
            f"{source}: {len(time_us)} rows of {operator.kind}; a fit needs {_LEAST_ROWS} or more"
        )
    rows = AttentionRows(operator=operator, time_us=np.asarray(time_us, dtype=np.float64))
    kernel = _searched(rows, gpu)
    labels = rows.group
    predicted = np.empty_like(rows.time_us)
    folds = min(_FOLDS, int(labels.max()) + 1)
    for fold in range(folds):
        held = labels % folds == fold
        predicted[held] = _time_us(_refined(kernel, rows.where(~held), gpu), rows.where(held), gpu)
    fit = Fit(
        source=source,
        rows=len(rows.time_us),
        fit_error=_error(_time_us(kernel, rows, gpu), rows),
        heldout_error=_error(predicted, rows),
        residuals=residual_bands(
            rows.time_us,
            predicted,
            np.asarray(rows.operator.q_len, dtype=np.float64) * rows.operator.batch,
            RANGES_OF_SIZE,
            least_rows=_BAND_ROWS,
        ),
    )
    return msgspec.structs.replace(kernel, fit=fit)


def _searched(rows: AttentionRows, gpu: Gpu) -> AttentionKernel:
    """The best kernel, with a narrow path where that lowers the objective by more than a fifth."""
    one = _refined(_kernel(_searched_path(rows, gpu)), rows, gpu)
    narrow = _rows_per_head(rows.operator) <= _NARROW_ROWS
    if rows.operator.kind != "decode_attention" or min(narrow.sum(), (~narrow).sum()) < 100:
        return one
    two = msgspec.structs.replace(
        _kernel(_searched_path(rows.where(~narrow), gpu)),
        narrow=_searched_path(rows.where(narrow), gpu),
        narrow_rows=_NARROW_ROWS,
    )
    two = _refined(two, rows, gpu)
    return two if _cost(two, rows, gpu) < _NARROW_GAIN * _cost(one, rows, gpu) else one


def _searched_path(rows: AttentionRows, gpu: Gpu) -> AttentionPath:
    """The better of the searches from both styles, on an even subset of the rows."""
    subset = _thinned(rows, _SEARCH_ROWS)
    found = [_coordinate_search(style, subset, gpu) for style in _STYLES]
    return min(found, key=lambda path: _cost(_kernel(path), subset, gpu))


def _coordinate_search(style: dict[str, object], rows: AttentionRows, gpu: Gpu) -> AttentionPath:
    """One pass over the whole numbers, keeping what lowers the objective; least squares inside."""
    continuous = {name: start for name, (start, _, _) in _START.items()}
    fixed = _ONE_ROW if rows.operator.kind == "decode_attention" else {}
    best = _refined_path(msgspec.convert(continuous | style | fixed, AttentionPath), rows, gpu)
    lowest = _cost(_kernel(best), rows, gpu)
    for name, options in _CHOICES.items():
        for option in options:
            if name in fixed or option == getattr(best, name):
                continue
            path = _refined_path(msgspec.structs.replace(best, **{name: option}), rows, gpu)
            cost = _cost(_kernel(path), rows, gpu)
            if cost < _CHANGE_GAIN * lowest:
                best, lowest = path, cost
    return best


def _refined(kernel: AttentionKernel, rows: AttentionRows, gpu: Gpu) -> AttentionKernel:
    """Every path fitted to the rows that it serves."""
    if kernel.narrow is None:
        return msgspec.structs.replace(
            kernel, wide=_refined_path(kernel.wide, _thinned(rows, _FIT_ROWS), gpu)
        )
    narrow = _rows_per_head(rows.operator) <= kernel.narrow_rows
    return msgspec.structs.replace(
        kernel,
        wide=_refined_path(kernel.wide, _thinned(rows.where(~narrow), _FIT_ROWS), gpu),
        narrow=_refined_path(kernel.narrow, _thinned(rows.where(narrow), _FIT_ROWS), gpu),
    )


def _refined_path(path: AttentionPath, rows: AttentionRows, gpu: Gpu) -> AttentionPath:
    """Least squares on log time over the parameters of `_START` that the rows can tell apart."""
    from scipy.optimize import least_squares

    names = [name for name in _START if _is_seen(name, path, rows.operator, gpu)]
    lowest = np.log([_START[name][1] for name in names])
    highest = np.log([_START[name][2] for name in names])
    log_time = np.log(rows.time_us)

    def replaced(values: FloatArray) -> AttentionPath:
        return msgspec.structs.replace(path, **dict(zip(names, np.exp(values).tolist(), strict=True)))

    def residual(values: FloatArray) -> FloatArray:
        errors: FloatArray = np.log(_time_us(_kernel(replaced(values)), rows, gpu)) - log_time
        return errors

    start = np.log([getattr(path, name) for name in names])
    found = least_squares(
        residual,
        np.clip(start, lowest + 1e-6, highest - 1e-6),
        bounds=(lowest, highest),
        loss="soft_l1",
        f_scale=_SCALE,
        max_nfev=25,
    )
    return replaced(found.x)


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
    band = (Residual(size_max=float(RANGES_OF_SIZE[-1]), low=1.0, high=1.0),)
    return AttentionKernel(
        wide=path, fit=Fit(source="being fitted", rows=0, fit_error=0.0, heldout_error=0.0, residuals=band)
    )


def _time_us(kernel: AttentionKernel, rows: AttentionRows, gpu: Gpu) -> FloatArray:
    return attention_time(gpu, kernel, rows.operator, cold=False).time_us


def _error(predicted_us: FloatArray, rows: AttentionRows) -> float:
    return float(np.mean(np.abs(predicted_us / rows.time_us - 1.0)))


def _cost(kernel: AttentionKernel, rows: AttentionRows, gpu: Gpu) -> float:
    log_error = np.log(_time_us(kernel, rows, gpu) / rows.time_us)
    return float(np.sum(np.sqrt(1.0 + (log_error / _SCALE) ** 2) - 1.0))


def _rows_per_head(operator: Attention) -> FloatArray:
    return np.asarray(operator.q_len, dtype=np.float64) * operator.heads / operator.kv_heads


def _thinned(rows: AttentionRows, count: int) -> AttentionRows:
    """At most `count` rows, drawn evenly over the shapes ordered by group, length and batch."""
    op = rows.operator
    keys = (op.batch, op.q_len, op.kv_len, op.kv_heads, op.heads)
    order = np.lexsort([np.asarray(key) for key in keys])
    step = max(1.0, len(order) / count)
    return rows.where(order[np.arange(0.0, len(order), step).astype(np.int64)])


def _labels(first: object, second: object) -> IntArray:
    _, labels = np.unique(np.stack([np.asarray(first), np.asarray(second)]), axis=1, return_inverse=True)
    return labels.reshape(-1).astype(np.int64)
