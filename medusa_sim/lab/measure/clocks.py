"""The clocks of a GPU: raised before a measurement, and watched while it runs."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING

from medusa_sim.lab.measure.environment import DOMAINS, nvidia_smi

if TYPE_CHECKING:
    import torch

_WARM_UP_S = 1.0
_WARM_UP_SIZE = 4096
_EVERY_MS = 500
_STOP_S = 5.0


def raise_clocks(device: torch.device) -> None:
    """Products for a second: an idle GPU runs at a fifth of its clock. Nothing on a CPU."""
    import torch

    if device.type != "cuda":
        return
    square = torch.ones(_WARM_UP_SIZE, _WARM_UP_SIZE, dtype=torch.float16, device=device)
    began = time.perf_counter()
    while time.perf_counter() - began < _WARM_UP_S:
        for _ in range(10):
            square @ square
        torch.cuda.synchronize(device)


@dataclass(slots=True)
class Clocks:
    """What was seen, MHz, by domain."""

    seen: dict[str, list[float]] = field(default_factory=lambda: {domain: [] for domain in DOMAINS})

    def add(self, line: str) -> None:
        """One line of nvidia-smi; those that hold no numbers are passed over."""
        cells = line.split(",")
        with contextlib.suppress(ValueError):
            values = [float(cell) for cell in cells]
            for domain, value in zip(DOMAINS, values, strict=True):
                self.seen[domain].append(value)

    @property
    def summary(self) -> dict[str, float]:
        """Lowest, median and highest of each domain; empty where nothing was seen."""
        summary: dict[str, float] = {}
        for domain, values in self.seen.items():
            if values:
                summary |= {
                    f"{domain}_lowest": min(values),
                    f"{domain}_median": statistics.median(values),
                    f"{domain}_highest": max(values),
                }
        return summary


@contextlib.contextmanager
def watch_clocks(device: torch.device) -> Iterator[Clocks]:
    """The clocks of a CUDA device while the block runs; nothing is seen on a CPU or without nvidia-smi."""
    clocks = Clocks()
    process = _watched(device) if device.type == "cuda" else None
    if process is None:
        yield clocks
        return
    reader = threading.Thread(target=_read, args=(process.stdout, clocks), daemon=True)
    reader.start()
    try:
        yield clocks
    finally:
        process.terminate()
        reader.join(_STOP_S)
        process.wait(_STOP_S)


def _read(lines: IO[str], clocks: Clocks) -> None:
    with lines:
        for line in lines:
            clocks.add(line)


def _watched(device: torch.device) -> subprocess.Popen[str] | None:
    command = nvidia_smi(device, DOMAINS.values())
    if not command:
        return None
    command.append(f"--loop-ms={_EVERY_MS}")
    try:
        return subprocess.Popen(  # noqa: S603  # a fixed command without a shell
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    except OSError:
        return None
