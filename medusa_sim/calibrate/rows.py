"""A table of measured rows -> fitted kernels of every operator and dtype that it holds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from medusa_sim.calibrate.attention import fit_attention
from medusa_sim.calibrate.elementwise import fit_elementwise
from medusa_sim.calibrate.gemm import GemmRows, fit_gemm, gemm_rows
from medusa_sim.calibrate.store import Kernel, Section, write_kernel
from medusa_sim.calibrate.transfer import fit_transferred_gemm
from medusa_sim.calibrate.unfused import UnfusedRows, fit_unfused
from medusa_sim.errors import DataError, OutputError, UsageError
from medusa_sim.operators import Attention, Elementwise, FloatArray, Gemm, Operator
from medusa_sim.rows import operators_of
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.kernels import GemmKernel, UnfusedKernel

if TYPE_CHECKING:
    import pandas as pd

_UNFUSED = ("qk", "pv")
_START_SET = "torch"


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedKernel:
    """A kernel and its place in a hardware file; the key of `unfused` is empty."""

    section: Section
    key: str
    kernel: Kernel


def fitted_kernels(frame: pd.DataFrame, gpu: Gpu, source: str) -> Iterator[FittedKernel]:
    """Fit each operator of checked rows with times (`read_rows(..., need_time=True)`), one after another.

    source: one line that is stored with the parameters. A dtype apart from GEMMs' is not told apart,
    since attention and elementwise kernels move 16-bit elements at one speed.

    Raises:
        DataError: too few rows or shapes for a fit, or verification rows (composed of other kernels).
    """
    times = frame["time_us"].to_numpy(dtype=np.float64)
    groups = [(operator, times[index]) for index, operator in operators_of(frame)]
    products = [(op, time) for op, time in groups if isinstance(op, Attention) and op.kind in _UNFUSED]
    unfused = fit_unfused(_joined(products), gpu, source=source) if products else None
    for operator, time_us in groups:
        if isinstance(operator, Attention) and operator.kind in _UNFUSED:
            continue
        yield _fitted(operator, time_us, gpu, source, unfused)
    if unfused is not None:
        yield FittedKernel(section="unfused", key="", kernel=unfused)


def _fitted(
    operator: Operator, time_us: FloatArray, gpu: Gpu, source: str, unfused: UnfusedKernel | None
) -> FittedKernel:
    match operator:
        case Gemm():
            m, n, k = (np.asarray(size, dtype=np.float64) for size in (operator.m, operator.n, operator.k))
            rows = gemm_rows(m, n, k, time_us, operator.dtype)
            return FittedKernel(section="gemm", key=operator.dtype, kernel=_gemm(rows, gpu, source, unfused))
        case Attention():
            attention = fit_attention(operator, time_us, gpu, source=source)
            return FittedKernel(section="attention", key=operator.kind, kernel=attention)
        case Elementwise():
            elementwise = fit_elementwise(operator, time_us, gpu, source=source)
            return FittedKernel(section="elementwise", key=operator.kind, kernel=elementwise)


def _gemm(rows: GemmRows, gpu: Gpu, source: str, unfused: UnfusedKernel | None) -> GemmKernel:
    """A fit of its own, or for rows of one weight shape beside unfused products (the Medusa paper's tables)
    the GPU's `torch` kernel brought to them, with the launch cost of the vector products.
    """
    start = gpu.kernels[_START_SET].gemm.get(rows.dtype) if _START_SET in gpu.kernels else None
    if unfused is None or start is None or len(np.unique(rows.shape)) > 1:
        return fit_gemm(rows, gpu, source=source)
    return fit_transferred_gemm(rows, gpu, start=start, ramp_us=unfused.vector_ramp_us, source=source)


def _joined(groups: list[tuple[Attention, FloatArray]]) -> UnfusedRows:
    """QK^T and PV rows together: both products cost the same."""
    dtypes = {operator.dtype for operator, _ in groups}
    if len(dtypes) > 1:
        raise DataError(f"unfused attention rows of {', '.join(sorted(dtypes))}: fit one dtype at a time")
    sizes = {
        name: np.concatenate(
            [np.asarray(getattr(operator, name), dtype=np.float64) for operator, _ in groups]
        )
        for name in ("batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim")
    }
    return UnfusedRows(**sizes, time_us=np.concatenate([time for _, time in groups]), dtype=dtypes.pop())


def check_set_name(name: str) -> None:
    """Refuse a kernel set that a TOML key or an option could not carry. Raises UsageError."""
    if not re.fullmatch(r"[a-z][a-z0-9_-]{0,40}", name):
        raise UsageError(f"kernel set {name!r}: a lower-case word is allowed (letters, digits, '-', '_')")


def write_kernels(folder: Path, gpu: Gpu, kernel_set: str, fitted: Sequence[FittedKernel]) -> Path:
    """Write all kernels into `folder`/<gpu>.toml in one step; the path.

    The file starts as the one that the GPU was loaded from, so that the datasheet stays with it. Raises
    OutputError where the folder cannot be written.
    """
    target = folder / f"{gpu.name}.toml"
    draft = folder / f".{gpu.name}.toml.part"
    try:
        draft.write_text(Path(gpu.path).read_text(encoding="utf-8"), encoding="utf-8")
        for each in fitted:
            write_kernel(draft, kernel_set, each.section, each.key, each.kernel)
        draft.replace(target)
    except OSError as error:
        raise OutputError(
            f"{target}: cannot be written ({error.strerror}); choose another --data-dir"
        ) from error
    finally:
        draft.unlink(missing_ok=True)
    return target
