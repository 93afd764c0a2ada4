"""Times of kernels by the laws and parameters that ship, in microseconds with their bands.

    PYTHONPATH=tests python tests/latency/test_kernel_times.py

writes `data/kernel_times.toml` anew, after a fit of kernels: what a law moves is looked at line by line.
"""

from pathlib import Path

import pytest
from tables import table
from work_cases import CASES, made

from medusa_sim.errors import SpecError
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.latency.calibrated import CalibratedLatency

TIMES = table("kernel_times")
"""By GPU, kernel set and library."""


def timed(kernels: str) -> dict[str, list[float]]:
    """Time, low and high of every case that the set has a kernel for."""
    gpu, kernel_set, library = kernels.split(" ")
    latency = CalibratedLatency(load_gpu(gpu), kernel_set, library=library.strip("-"))
    found = {}
    for name, case in CASES.items():
        try:
            time = latency.time(made(case["of"]))
        except SpecError:  # nobody measured it there
            continue
        found[name] = [float(value) for value in (time.time_us, time.low_us, time.high_us)]
    return found


@pytest.mark.parametrize("kernels", TIMES)
def test_a_kernel_takes_its_time(kernels):
    found = timed(kernels)
    assert list(found) == list(TIMES[kernels])
    for name, expected in TIMES[kernels].items():
        assert found[name] == pytest.approx(expected, rel=1e-6), name


def write() -> None:
    """All times as they are now."""
    lines = ["# By GPU, kernel set and library: time, low and high of a kernel in microseconds."]
    for kernels in TIMES:
        lines += ["", f'["{kernels}"]']
        for name, values in timed(kernels).items():
            lines.append(f'"{name}" = [{", ".join(f"{value:.9g}" for value in values)}]')
    path = Path(__file__).parents[1] / "data" / "kernel_times.toml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
