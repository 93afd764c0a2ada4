"""What a measurement depends on besides the shape: the device, its clocks, the software, the day.

Stored with the rows, so that a profile is only compared with the device that it was recorded on.
"""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import medusa_sim
from medusa_sim.data import check_name
from medusa_sim.errors import UsageError
from medusa_sim.gpus.gpu_names import DRIVER_NAMES
from medusa_sim.latency.measurement import Environment
from medusa_sim.units import KILO, MEGA

if TYPE_CHECKING:
    import torch


CLOCK_TOLERANCE = 0.05
"""Share by which clocks may differ before two runs count as different devices."""

_TOOL_TIMEOUT_S = 20
_CPUINFO = Path("/proc/cpuinfo")
_CPU_TREE = Path("/sys/devices/system/cpu")


def torch_device(text: str) -> torch.device:
    """`cpu`, `cuda` or `cuda:n` as a device, made torch's current one, whose streams and graphs are used.

    Raises UsageError where there is none of that kind.
    """
    import torch

    match = re.fullmatch(r"(cpu)|cuda(?::(\d{1,3}))?", text.strip())
    if match is None:
        raise UsageError(f"--device {text!r}: cpu, cuda or cuda:n is allowed")
    if match[1]:
        return torch.device("cpu")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = int(match[2] or 0)
    if index >= count:
        raise UsageError(
            f"--device {text}: torch {torch.__version__} sees {count} CUDA devices; use --device cpu, "
            "or a torch with CUDA on a machine with a driver"
        )
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def environment(device: torch.device, name: str | None = None) -> Environment:
    """The device and this moment; `name` replaces the name that is derived from the system's.

    Raises UsageError for a name that no file may have.
    """
    import torch

    if name is not None:
        check_name("--name", name)

    threads = torch.get_num_threads()
    if device.type == "cuda":
        facts = _cuda_facts(device)
        title = str(facts["device"])
        own = DRIVER_NAMES.get(title) or slug(title)
    else:
        facts = _cpu_facts() | {"units": threads}
        own = f"{slug(str(facts['device']))}-{threads}t"
    return Environment(
        name=name or own,
        kind="cuda" if device.type == "cuda" else "cpu",
        torch=str(torch.__version__),
        threads=threads,
        commit=code_version(),
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        load_average=load_average(),
        **facts,
    )


def _cpu_facts() -> dict[str, Any]:
    """The CPU of this machine."""
    highest, current = _cpu_clocks_mhz()
    return {
        "device": _cpu_title(),
        "cache_bytes": last_level_cache_bytes(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "driver": f"{platform.system()} {platform.release()}",
        "clocks_mhz": highest,
        "current_clocks_mhz": current,
    }


def _cuda_facts(device: torch.device) -> dict[str, Any]:
    """A CUDA device. Clocks and driver come from nvidia-smi where it is there."""
    import torch

    properties = torch.cuda.get_device_properties(device)
    keys = ("driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.memory")
    command = nvidia_smi(device, keys)
    output = _output(command) if command else ""
    values = [value.strip() for value in output.splitlines()[0].split(",")] if output else []
    seen = dict(zip(keys, values, strict=True)) if len(values) == len(keys) else {}
    return {
        "device": str(properties.name),
        "units": int(properties.multi_processor_count),
        "cache_bytes": int(properties.L2_cache_size),
        "memory_bytes": int(properties.total_memory),
        "driver": f"{seen.get('driver_version', 'unknown driver')}, CUDA {torch.version.cuda}",
        "clocks_mhz": _mhz(seen, {"sm": "clocks.max.sm", "memory": "clocks.max.memory"}),
        "current_clocks_mhz": _mhz(seen, DOMAINS),
    }


def differences(first: Environment, second: Environment) -> list[str]:
    """Why times of one say nothing about the other: name, device, threads of a CPU, clocks."""
    lines = []
    fields = ["name", "device", "kind", "units"] + (["threads"] if first.kind == "cpu" else [])
    for name in fields:
        one, other = getattr(first, name), getattr(second, name)
        if one != other:
            lines.append(f"{name} {one!r} and {other!r}")
    for domain in sorted(first.clocks_mhz.keys() & second.clocks_mhz.keys()):
        one, other = first.clocks_mhz[domain], second.clocks_mhz[domain]
        if abs(one - other) > CLOCK_TOLERANCE * max(one, other):
            lines.append(f"{domain} clock {one:g} and {other:g} MHz")
    return lines


def model_label(given: str) -> str:
    """A model as a profile names it: a path below the working directory is told from there."""
    path, here = Path(given), Path.cwd()
    return str(path.relative_to(here)) if path.is_absolute() and path.is_relative_to(here) else given


def environment_text(seen: Environment) -> str:
    """The device and this moment in one line."""
    clocks = ", ".join(f"{domain} {mhz:g} MHz" for domain, mhz in seen.clocks_mhz.items()) or "unknown clocks"
    units = f"{seen.units} {'threads' if seen.kind == 'cpu' else 'SMs'}"
    return (
        f"{seen.name}: {seen.device}, {units}, {clocks}, {seen.driver}, torch {seen.torch}, "
        f"load average {seen.load_average:g}"
    )


def slug(title: str) -> str:
    """A device's name as a file name: `Intel(R) Xeon(R) Processor` -> `intel-xeon-processor`."""
    plain = re.sub(r"\((?:r|tm|c)\)|@.*$|\bcpu\b", " ", title.lower())
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-") or "device"


def load_average() -> float:
    """Processes that wanted to run in the last minute; 0 where the system does not tell."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else 0.0


def last_level_cache_bytes() -> int:
    """The largest cache that core 0 sees; 32 MiB where the system does not tell."""
    sizes = [
        int(text[:-1]) * {"K": 2**10, "M": 2**20, "G": 2**30}[text[-1]]
        for path in _CPU_TREE.glob("cpu0/cache/index*/size")
        if re.fullmatch(r"\d+[KMG]", text := path.read_text(encoding="ascii").strip())
    ]
    return max(sizes, default=32 * 2**20)


def code_version() -> str:
    """The commit of a checkout, else the package's version."""
    root = Path(medusa_sim.__file__).resolve().parents[1]
    if (root / ".git").exists():
        output = _output(["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"])
        if output:
            return output
    return f"medusa-sim {medusa_sim.__version__}"


def _cpu_title() -> str:
    if _CPUINFO.is_file():
        for line in _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return " ".join(value.split())
    return platform.processor() or platform.machine() or "cpu"


def _cpu_clocks_mhz() -> tuple[dict[str, float], dict[str, float]]:
    """Highest and current clock of core 0, empty where the system does not tell."""
    current: dict[str, float] = {}
    if _CPUINFO.is_file():
        match = re.search(r"^cpu MHz\s*:\s*([0-9.]+)", _CPUINFO.read_text(encoding="utf-8"), re.MULTILINE)
        current = {"core": float(round(float(match[1])))} if match else {}
    limit = _CPU_TREE / "cpu0/cpufreq/cpuinfo_max_freq"
    if limit.is_file():
        return {"core": int(limit.read_text(encoding="ascii")) * KILO / MEGA}, current
    return dict(current), current  # a virtual machine shows one fixed clock


def nvidia_smi(device: torch.device, keys: Iterable[str]) -> list[str]:
    """The command that tells of one GPU; empty where torch does not say which it is."""
    import torch

    uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
    given = uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
    query = f"--query-gpu={','.join(keys)}"
    return ["nvidia-smi", f"--id={given}", query, "--format=csv,noheader,nounits"] if uuid else []


def _mhz(seen: dict[str, str], keys: dict[str, str]) -> dict[str, float]:
    numbers = {domain: seen.get(key, "") for domain, key in keys.items()}
    return {domain: float(text) for domain, text in numbers.items() if re.fullmatch(r"[0-9.]+", text)}


def _output(command: list[str]) -> str:
    """Standard output of a tool, empty where it is missing or fails."""
    try:
        done = subprocess.run(  # noqa: S603  # a fixed command without a shell
            command, capture_output=True, text=True, timeout=_TOOL_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


DOMAINS = {"sm": "clocks.sm", "memory": "clocks.mem"}
"""Clocks that are watched, as nvidia-smi calls them."""
