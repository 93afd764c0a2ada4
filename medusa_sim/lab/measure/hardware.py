"""What a device reaches, and its hardware file: a measured CPU or an unknown GPU is a `--gpu` as well."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from msgspec.structs import replace

from medusa_sim.data import find
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.gpus.gpu_names import HARDWARE
from medusa_sim.lab.decoder.checkpoint import DTYPES
from medusa_sim.lab.measure.bench import capture_calls, device_us, synchronise
from medusa_sim.lab.measure.kernels import Call
from medusa_sim.latency.measurement import SCHEMA, Environment, Rates
from medusa_sim.units import US_PER_S
from medusa_sim.writing import make_folder, write_text

_COPY_CACHES, _LEAST_COPY_BYTES, _MOST_COPY_SHARE = 4, 2**28, 0.1
_REPEATS = 9
_LAUNCH_CALLS = 100
_PRODUCT = {"cpu": 1024, "cuda": 8192}


def rates(device: torch.device, seen: Environment, dtypes: Sequence[str]) -> Rates:
    """Copy and read bandwidth, the best large product of each dtype, and the launch floor. A few seconds."""
    size = min(max(_COPY_CACHES * seen.cache_bytes, _LEAST_COPY_BYTES), _MOST_COPY_SHARE * seen.memory_bytes)
    with torch.inference_mode():
        copy, read = _bandwidths(device, int(size))
        products = {dtype: _product_flops_per_s(device, DTYPES[dtype]) for dtype in dtypes}
        eager, graph = _launch_us(device)
    return Rates(
        copy_bytes_per_s=copy,
        read_bytes_per_s=read,
        flops_per_s=products,
        launch_eager_us=eager,
        launch_graph_us=graph,
    )


def with_rows(rates: Rates, best: dict[str, float], best_bytes_per_s: float) -> Rates:
    """Rates that no row exceeds: fractions of a peak are to stay below 1."""
    return replace(
        rates,
        read_bytes_per_s=max(rates.read_bytes_per_s, best_bytes_per_s),
        flops_per_s={dtype: max(rate, best.get(dtype, 0.0)) for dtype, rate in rates.flops_per_s.items()},
    )


def write_hardware(data_dir: Path, seen: Environment, rates: Rates) -> Path | None:
    """`hardware/<name>.toml` of the user's data from what was measured; None where it is not to be written.

    A shipped GPU keeps its datasheet. A file of the user's is renewed unless kernels were fitted to it:
    they are fractions of the rates in it. Raises OutputError where it cannot be written.
    """
    path = data_dir / HARDWARE / f"{seen.name}.toml"
    there = find(HARDWARE, f"{seen.name}.toml", data_dir)
    if there is not None and (there != path or load_gpu(seen.name, data_dir).kernels):
        return None
    make_folder(path.parent)
    write_text(path, hardware_text(seen, rates))
    load_gpu(seen.name, data_dir)  # what was written reads back, or says why not
    return path


def hardware_text(seen: Environment, rates: Rates) -> str:
    """A hardware file: units, cache and memory as the system tells them, rates as measured."""
    import tomlkit

    system = f"{seen.device}, as its system reports it"
    timed = f"measured by medusa-sim {seen.commit} on {seen.date[:10]}, torch {seen.torch}"
    bandwidth = max(rates.copy_bytes_per_s, rates.read_bytes_per_s)
    units, cache = ("threads that torch uses", "the last-level cache")
    if seen.kind != "cpu":
        units, cache = ("streaming multiprocessors", "the L2 cache")
    numbers = {
        "sms": (seen.units, system, units),
        "l2_bytes": (seen.cache_bytes, system, cache),
        "memory_bytes": (seen.memory_bytes, system, "all memory, the system's share included"),
        "bandwidth_bytes_per_s": (
            _rounded(bandwidth),
            timed,
            f"the fastest of a copy ({rates.copy_bytes_per_s:.3g} bytes/s read and written) and of reading, "
            f"alone or the weights of a linear layer as a step reads them ({rates.read_bytes_per_s:.3g})",
        ),
    }
    keys = ("value", "source", "note")
    peaks = {
        dtype: dict(zip(keys, (_rounded(rate), timed, "the fastest product that was timed"), strict=True))
        for dtype, rate in rates.flops_per_s.items()
    }
    return tomlkit.dumps(
        {
            "schema": SCHEMA,
            "name": seen.name,
            "title": seen.device,
            "architecture": seen.kind,
            **{name: dict(zip(keys, values, strict=True)) for name, values in numbers.items()},
            "peak_flops_per_s": peaks,
        }
    )


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _bandwidths(device: torch.device, size: int) -> tuple[float, float]:
    """Bytes per second of a copy (read and written count), and of a sum over the same bytes."""
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.zeros_like(source)
    copy_us = _best_us(device, lambda: target.copy_(source))
    read_us = _best_us(device, source.sum)
    count = source.numel() * source.itemsize
    return 2.0 * count / copy_us * US_PER_S, count / read_us * US_PER_S


def _product_flops_per_s(device: torch.device, dtype: torch.dtype) -> float:
    size = _PRODUCT[device.type]
    left, right = (torch.empty(size, size, dtype=dtype, device=device).uniform_(-1, 1) for _ in range(2))
    return 2.0 * size**3 / _best_us(device, lambda: left @ right) * US_PER_S


def _launch_us(device: torch.device) -> tuple[float, float]:
    """Time of a kernel that does nothing: launched from the host, and in a CUDA graph (0 on a CPU)."""
    one = torch.zeros(1, device=device)

    def many() -> None:
        for _ in range(_LAUNCH_CALLS):
            one.add_(1.0)

    eager = _us(device, many, statistics.median) / _LAUNCH_CALLS
    if device.type != "cuda":
        return eager, 0.0
    graph = capture_calls([lambda: one.add_(1.0)] * _LAUNCH_CALLS, device)
    return eager, _us(device, graph, statistics.median) / _LAUNCH_CALLS


def _best_us(device: torch.device, work: Call) -> float:
    """The best of a few times: a rate that something else lowered is no limit of the device.

    On CUDA between two events: the host's launch and wait take a tenth as long as a copy of 256 MiB.
    """
    if device.type != "cuda":
        return _us(device, work)
    work()
    return min(device_us(work, device) for _ in range(_REPEATS))


def _us(device: torch.device, work: Call, typical: Callable[[list[float]], float] = min) -> float:
    """What is `typical` of a few times on the host's clock."""
    times = []
    for _ in range(_REPEATS):
        synchronise(device)
        started = time.perf_counter()
        work()
        synchronise(device)
        times.append(US_PER_S * (time.perf_counter() - started))
    return typical(times)
