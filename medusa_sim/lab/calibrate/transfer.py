"""Linear layers measured at one weight shape only: another kernel set of the same GPU supplies the rest.

Rows of one (n, k), such as the Medusa paper's Table 8, cannot tell a ramp from a bandwidth and say nothing
about other shapes. The GPU's own measured set (`torch`) knows both. Its kernel is the start; the parameters
in `LIMITS` are fitted again to the rows and, weakly, to the start's own times for the layers of the Llama
family, so that one shape does not move what many shapes have settled. Tiles, splits, the cost of a split
and the rest stay. One shape cannot tell a limit of each SM's loads from one of the whole chip: the two
become one.

Two things that rows say about the library's choice are searched: its penalty on splitting k, and from
which m on it prefers a large tile for wide outputs (one more entry in the list of tiles).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import msgspec
import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.errors import DataError
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.gpus.kernels import GemmKernel, GemmTile
from medusa_sim.lab.calibrate.driver import FitDriver
from medusa_sim.lab.calibrate.gemm import fit_gemm, gemm_start, merged_repeats
from medusa_sim.lab.calibrate.rows import Rows, require_rows
from medusa_sim.lab.calibrate.search import Limits, least_squares, soft_cost
from medusa_sim.latency.gemm import gemm_time
from medusa_sim.operators.gemm import Gemm

LIMITS: Limits = {
    "bandwidth_fraction": (0.3, 1.0),
    "peak_fraction": (0.3, 1.0),
    "memory_norm": (1.0, 30.0),
    "wave_rounding": (0.02, 1.0),
    "contention": (0.02, 1.0),
    "load_ratio": (1.0, 10.0),
}
"""Parameters fitted again, and where they may go."""

WIDE_SHARE = 0.5
"""The preference for a large tile holds for outputs from this share of the measured width."""

_LAYERS = (
    *((4096, 4096), (5120, 5120), (8192, 8192)),
    *((11008, 4096), (13824, 5120), (22016, 8192)),
    *((4096, 11008), (5120, 13824), (8192, 22016)),
)
"""Weight shapes (n, k) of the Llama family at which the start is held on to."""
_TOKENS = (1, 16, 32, 48, 64, 80, 96, 112, 128, 192, 256, 384, 512, 1024)
_WEIGHT = 0.1
"""Weight of each of the start's own times, in units of a measured row."""

_MIDDLING_CONTENTION = 0.5
"""Where contention begins."""
_PREFERENCES = (0.8, 0.67)
_SPLIT_PENALTIES = (1.0, 1.2)
"""On a large tile's selection penalty and on the penalty of splits, tried with each other."""
_LARGE = 128
"""Rows and columns from which a tile is large."""
_WORTH = 0.9
"""A preference is kept where it lowers the objective to this share; the weaker of two equals wins."""
_EQUAL = 1.01
"""Times the least objective up to which preferences are equals."""
_SCALE = 0.02
"""Log error from which on errors count by size: rows of one shape scatter less than most."""
_DIFFERENCE = 1e-3
"""Relative, of the differences that stand for slopes."""


@dataclass(frozen=True, slots=True)
class _Evidence:
    """What a candidate is judged by: measured rows, and the start's times above its ramp for other layers."""

    gpu: Gpu
    rows: Rows[Gemm]
    layers: Gemm
    layers_us: FloatArray

    @classmethod
    def of(cls, gpu: Gpu, rows: Rows[Gemm], start: GemmKernel) -> _Evidence:
        n, k, m = (
            np.asarray(column, dtype=np.float64)
            for column in zip(*((n, k, m) for (n, k), m in product(_LAYERS, _TOKENS)), strict=True)
        )
        layers = Gemm(name="layers", m=m, n=n, k=k, dtype=rows.operator.dtype)
        return cls(gpu, rows, layers, gemm_time(gpu, start, layers).time_us - start.ramp_us)

    def errors(self, kernel: GemmKernel) -> FloatArray:
        """Log errors of the rows, then the weighted ones of the layers."""
        layers_us = gemm_time(self.gpu, kernel, self.layers).time_us - kernel.ramp_us
        rows_us = gemm_time(self.gpu, kernel, self.rows.operator).time_us
        measured = np.log(rows_us / self.rows.time_us)
        return np.concatenate([measured, _WEIGHT * np.log(layers_us / self.layers_us)])

    def cost(self, kernel: GemmKernel) -> float:
        """The objective."""
        return soft_cost(self.errors(kernel), _SCALE)


def fit_linear(
    rows: Rows[Gemm],
    gpu: Gpu,
    *,
    source: str,
    kernel_set: str = "",
    ramp_us: float | None = None,
) -> GemmKernel:
    """Linear layers of several weight shapes by themselves; of one from what was measured on the same GPU.

    kernel_set: whose tiles the fit begins with. ramp_us: of the unfused products of the same table, None
    where it has none. Raises DataError for fewer than 20 rows.
    """
    rows = merged_repeats(rows)
    require_rows(rows, source)
    form = rows.operator.form
    start = _measured_gemm(gpu, form)
    if rows.labels("n", "k").max() > 0 or start is None:
        return fit_gemm(rows, gpu, source=source, start=gemm_start(kernel_set, form, gpu))
    ramp_us = start.ramp_us if ramp_us is None else ramp_us
    return fit_transferred_gemm(rows, gpu, start=start, ramp_us=ramp_us, source=source)


def _measured_gemm(gpu: Gpu, form: str) -> GemmKernel | None:
    """A kernel fitted to rows of this GPU itself and this numeric format, `torch` first."""
    for name in sorted(gpu.kernels, key=lambda name: name != "torch"):
        kernel = gpu.kernels[name].gemm.get(form)
        if kernel is not None and not kernel.fit.inherited_from and name != "paper":
            return kernel
    return None


def fit_transferred_gemm(
    rows: Rows[Gemm], gpu: Gpu, *, start: GemmKernel, ramp_us: float, source: str
) -> GemmKernel:
    """The kernel `start` of the same GPU, brought to rows of one weight shape, with `fit` filled in.

    ramp_us: the cost of a launch as the rows were timed; one shape cannot tell it from a bandwidth, so it
    comes from elsewhere (for the paper's tables: the vector products of Table 6). Held-out errors leave
    out every fifth m. Deterministic; about half a minute. Raises DataError for more than one weight shape.
    """
    shapes = int(rows.labels("n", "k").max()) + 1
    if shapes > 1:
        raise DataError(f"{source}: {shapes} weight shapes (n, k); fit them without a start kernel")
    evidence = _Evidence.of(gpu, rows, start)
    begun = msgspec.structs.replace(
        start,
        ramp_us=ramp_us,
        load_ratio=(start.load_ratio * (start.l2_ratio or start.load_ratio)) ** 0.5,
        l2_ratio=0.0,
        contention=_MIDDLING_CONTENTION,
    )
    kernel = _with_preference(_least_squares(begun, evidence), begun, evidence)
    chosen = msgspec.structs.replace(begun, tiles=kernel.tiles, split_penalty=kernel.split_penalty)
    return FitDriver(gpu, gemm_time).with_fit(
        kernel,
        rows,
        lambda _, part: _least_squares(chosen, replace(evidence, rows=part)),
        source=source,
        groups=np.argsort(np.argsort(as_float(rows.operator.m))).astype(np.int64),
    )


def _with_preference(kernel: GemmKernel, begun: GemmKernel, evidence: _Evidence) -> GemmKernel:
    """The kernel with one more tile entry, where the library's preference for a large tile shows."""
    candidates = (_least_squares(option, evidence) for option in _preferring(begun, evidence.rows))
    by_cost = [(evidence.cost(candidate), candidate) for candidate in candidates]
    if not by_cost or min(cost for cost, _ in by_cost) > _WORTH * evidence.cost(kernel):
        return kernel
    best = min(cost for cost, _ in by_cost)
    return next(candidate for cost, candidate in by_cost if cost <= _EQUAL * best)


def _preferring(begun: GemmKernel, rows: Rows[Gemm]) -> Iterator[GemmKernel]:
    """Kernels that prefer one of the large tiles beyond a measured m, weakest preference first."""
    n_min = int(np.ceil(WIDE_SHARE * float(as_float(rows.operator.n)[0])))
    edges = np.unique(as_float(rows.operator.m))
    large = [tile for tile in begun.tiles if min(tile.m, tile.n) >= _LARGE]
    for preference, split, tile in product(_PREFERENCES, _SPLIT_PENALTIES, large):
        for m in edges[(edges >= tile.m) & (edges < 2 * tile.m)]:
            entry = GemmTile(
                m=tile.m,
                n=tile.n,
                selection_penalty=preference * tile.selection_penalty,
                m_min=int(m) + 1,
                n_min=n_min,
            )
            yield msgspec.structs.replace(
                begun, tiles=(*begun.tiles, entry), split_penalty=split * begun.split_penalty
            )


def _least_squares(begun: GemmKernel, evidence: _Evidence) -> GemmKernel:
    return least_squares(
        begun, LIMITS, evidence.errors, scale=_SCALE, diff_step=np.full(len(LIMITS), _DIFFERENCE)
    )
