"""What the fitted kernels of one GPU err on the rows of another: the widths in specs/inheritance.py.

Every measured kernel is given to every other GPU whose rows of the same library exist, with that GPU's
datasheet; the rows had no part in it. Formats with scales of blocks have few rows, so that a kernel is given
to the rows of other libraries too. The rows are not part of this project (CONTRIBUTING.md); their folder
is the argument, $MEDUSA_SIM_DATA, or ../shared/data.

Prints a line a pair, then for linear layers, fused attention, and linear layers with scales of blocks (of
the same library and of another), of the same architecture and of another, the mean error and the
half-width (of the logarithm) that, added in quadrature to the kernel's own band, holds 80 % of the rows.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from accuracy import GPU_OF_FILE
from recorded import GPU_OF_ROWS, data_folder, present
from scipy.optimize import brentq

from medusa_sim.arrays import FloatArray
from medusa_sim.latency.calibrated import CalibratedLatency
from medusa_sim.operators.operator import Operator
from medusa_sim.operators.table import operators_of, read_rows
from medusa_sim.specs.formats import SCALED
from medusa_sim.specs.gpu import Gpu, load_gpu
from medusa_sim.specs.inheritance import fitted_kernels

PROMISED = 0.8
FAMILIES = ("gemm", "attention")


@dataclass(frozen=True, slots=True)
class Transfer:
    """Rows of one operator on `taker`, predicted by the kernel of `lender`."""

    lender: Gpu
    taker: Gpu
    family: str
    place: str
    ratio: FloatArray
    low: FloatArray
    high: FloatArray

    @property
    def is_alike(self) -> bool:
        """Whether both GPUs have one architecture."""
        return self.lender.architecture == self.taker.architecture

    def coverage(self, error: float) -> float:
        """Share of rows inside the kernel's own band with `error` added to its half-width."""
        centre, half = np.sqrt(self.low * self.high), np.log(self.high / self.low) / 2.0
        return float(np.mean(np.abs(np.log(self.ratio / centre)) <= np.hypot(half, error)))


def transfers(folder: Path) -> Iterator[Transfer]:
    """Every pair of GPUs with rows and a kernel of one library, for linear layers and fused attention."""
    gpus = {name: load_gpu(name) for name in dict.fromkeys(GPU_OF_FILE.values())}
    for path in sorted(present(folder / "measured").glob("*.parquet")):
        taker, kernel_set = gpus[GPU_OF_FILE[path.stem.split("_")[0]]], path.stem.split("_")[-1]
        frame = read_rows(path, need_time=True)
        times = frame["time_us"].to_numpy(dtype=np.float64)
        for index, operator in operators_of(frame):
            if operator.FAMILY not in FAMILIES:
                continue
            place = f"{operator.FAMILY}.{operator.dtype if operator.kind == 'gemm' else operator.kind}"
            for lender in gpus.values():
                kernels = lender.kernels.get(kernel_set)
                kernel = fitted_kernels(kernels).get(place) if kernels else None
                if lender is not taker and kernel is not None and not kernel.fit.lender:
                    yield _transfer(lender, taker, kernel_set, place, operator, times[index])


def scaled_transfers(folder: Path) -> Iterator[Transfer]:
    """Every pair of GPUs for linear layers in a format with scales of blocks."""
    gpus = [load_gpu(name) for name in GPU_OF_ROWS.values()]
    frame = read_rows(present(folder / "moe_tp" / "quant_gemm.parquet"), need_time=True)
    for (recorded, engine), part in frame.groupby(["gpu", "engine"], observed=True):
        rows = part.reset_index(drop=True)
        times, taker = rows["time_us"].to_numpy(dtype=np.float64), load_gpu(GPU_OF_ROWS[str(recorded)])
        for index, operator in operators_of(rows):
            if operator.form not in SCALED:
                continue
            for lender, kernel_set in (
                (gpu, name) for gpu in gpus if gpu is not taker for name in gpu.kernels
            ):
                kernel = lender.kernels[kernel_set].gemm.get(operator.form)
                if kernel is None or kernel.fit.inherited_from:
                    continue
                family = "scaled" if kernel_set == engine else "scaled, other library"
                place = f"gemm.{operator.form}"
                found = _transfer(lender, taker, kernel_set, place, operator, times[index])
                yield dataclasses.replace(found, family=family)


def _transfer(
    lender: Gpu, taker: Gpu, kernel_set: str, place: str, operator: Operator, time_us: FloatArray
) -> Transfer:
    carrier = dataclasses.replace(taker, kernels=lender.kernels)
    found = CalibratedLatency(carrier, kernel_set, cold=False).time(operator)
    low, high = found.low_us / found.time_us, found.high_us / found.time_us
    return Transfer(lender, taker, operator.FAMILY, place, time_us / found.time_us, low, high)


def main() -> None:
    """Print both tables."""
    folder = data_folder(*sys.argv[1:2])
    found = [*transfers(folder), *scaled_transfers(folder)]
    for each in found:
        error = float(np.mean(np.abs(1.0 / each.ratio - 1.0)))
        print(
            f"{each.place:27} {each.lender.name:>15} -> {each.taker.name:15} error {error:6.1%}, "
            f"inside the kernel's own band {each.coverage(0.0):4.0%}"
        )
    for alike in (True, False):
        for family in dict.fromkeys(each.family for each in found):
            group = [each for each in found if each.family == family and each.is_alike == alike]
            if not group:
                continue
            error = float(np.mean([np.mean(np.abs(1.0 / each.ratio - 1.0)) for each in group]))
            own = float(np.mean([each.coverage(0.0) for each in group]))
            width = brentq(lambda x, of=group: np.mean([e.coverage(x) for e in of]) - PROMISED, 0.0, 2.0)
            print(
                f"{family}, {'the same' if alike else 'another'} architecture: {len(group)} pairs, error "
                f"{error:.1%}, inside the own band {own:.0%}, for {PROMISED:.0%} add {width:.2f}"
            )


if __name__ == "__main__":
    main()
