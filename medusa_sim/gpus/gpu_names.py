"""Names of GPUs: those that have a file, as drivers and people write them, and relatives of others."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

from medusa_sim import data
from medusa_sim.errors import shown, unknown_name

HARDWARE = "hardware"
LOCAL_HARDWARE = "hardware/local"
DRIVER_NAMES = {
    "NVIDIA A100 80GB PCIe": "a100-80gb-pcie",
    "NVIDIA A100-SXM4-80GB": "a100-80gb-sxm",
    "NVIDIA A100-SXM4-40GB": "a100-40gb",
    "NVIDIA A100-PCIE-40GB": "a100-40gb",
    "NVIDIA A40": "a40",
    "NVIDIA B200": "b200",
    "NVIDIA GB200": "gb200",
    "NVIDIA H100 80GB HBM3": "h100-sxm",
    "NVIDIA H100 NVL": "h100-nvl",
    "NVIDIA H100 PCIe": "h100-pcie",
    "NVIDIA H200": "h200-sxm",
    "NVIDIA L4": "l4",
    "NVIDIA L40S": "l40s",
    "NVIDIA GeForce RTX 3090": "rtx-3090",
    "NVIDIA GeForce RTX 4090": "rtx-4090",
    "NVIDIA GeForce RTX 5090": "rtx-5090",
    "NVIDIA RTX A6000": "rtx-a6000",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx-pro-6000",
    "NVIDIA A10G": "a10g",
    "NVIDIA GB10": "gb10",
    "NVIDIA H20": "h20-sxm",
    "NVIDIA H800": "h800-sxm",
}
"""The name that a driver reports -> the shipped hardware file of that GPU."""
_WRITTEN = {
    "A100 80GB SXM4": "a100-80gb-sxm", "H100 SXM5": "h100-sxm", "H100 80GB SXM5": "h100-sxm",
    "MI300X OAM": "mi300x", "MI325X OAM": "mi325x",
    "A100 SXM 80GB": "a100-80gb-sxm", "A100 PCIe 80GB": "a100-80gb-pcie", "H200": "h200-sxm",
    "V100-PCIE-32GB": "v100", "Tesla P40": "p40", "Radeon AI PRO R9700": "r9700", "DGX Spark": "gb10",
    "Strix Halo": "radeon-8060s", "Ryzen AI Max+ 395": "radeon-8060s", "RTX 5060 Ti 16GB": "rtx-5060-ti",
    "RTX 4060 Ti 16GB": "rtx-4060-ti", "Jetson AGX Orin": "agx-orin", "Jetson Orin Nano": "orin-nano",
    "Arc B70": "arc-pro-b70",
}  # fmt: skip
"""The same of names in data sheets and shops."""
_RELATIVES = {
    "a16": "a40",
    "a30": "a100-40gb",
    "a800": "a100-80gb-sxm",
    "gh200": "h200-sxm",
    "l20": "l40s",
    "l40": "l40s",
    "mi308": "mi300x",
    "mi350": "mi355x",
}
"""GPUs without a file, by how their names begin -> the nearest of the same architecture that has one."""
_OWN_FILE = "to add a GPU write hardware/NAME.toml in your data folder (docs/guide.md, 'Your own GPU')"


def gpu_names(data_dir: str | os.PathLike[str] | None = None) -> tuple[str, ...]:
    """Names of all GPUs with kernels of servers' engines, the user's and the shipped ones."""
    return data.stems(HARDWARE, (".toml",), data_dir)


def local_names(data_dir: str | os.PathLike[str] | None = None) -> tuple[str, ...]:
    """Names of the devices that local engines alone run on: what stands on a desk."""
    return data.stems(LOCAL_HARDWARE, (".toml",), data_dir)


def device_names(data_dir: str | os.PathLike[str] | None = None) -> tuple[str, ...]:
    """Names of everything that `load_gpu` takes."""
    return (*gpu_names(data_dir), *local_names(data_dir))


def gpu_name(given: str, data_dir: str | os.PathLike[str] | None = None) -> str:
    """The name of the file of a GPU as people or drivers write it: `H100-SXM`, `NVIDIA GeForce RTX 5090`.

    What is no such name stays as it is.
    """
    names = device_names(data_dir)
    if given in names:
        return given
    typed = _folded(given)
    alike = [name for name in names if _folded(name) == typed]
    said = _said().get(typed)
    if not alike and said is None:  # `RTX 3060 12GB`: a size that the GPU has anyhow
        bare = _folded(re.sub(r"[\s_-]+\d+ ?gb$", "", given[:100].lower()))
        alike = [name for name in local_names(data_dir) if _folded(name) == bare]
    return alike[0] if len(alike) == 1 else said if said in names else given


def _folded(name: str) -> str:
    return re.sub(
        r"[\s_()-]+", "", re.sub(r"nvidia|geforce|tesla|amd|instinct|apple|intel", "", name[:100].lower())
    )


@cache
def _said() -> dict[str, str]:
    return {_folded(name): gpu for name, gpu in (DRIVER_NAMES | _WRITTEN).items()}


def gpu_path(name: str, data_dir: str | os.PathLike[str] | None) -> Path | None:
    """The file of that very name; None where there is none."""
    found = (data.find(folder, f"{name}.toml", data_dir) for folder in (HARDWARE, LOCAL_HARDWARE))
    return next(filter(None, found), None)


def unknown_gpu(name: str, data_dir: str | os.PathLike[str] | None) -> str:
    """One line about a GPU that has no file: a relative that has one, and how to write another."""
    if "," in name:
        return f"gpu {shown(name)}: one GPU is asked about here; `medusa-sim compare` takes several"
    if (near := relative_of(name)) is None:
        return f"{unknown_name('GPU', name, device_names(data_dir))}; {_OWN_FILE}"
    return f"GPU {shown(name)} has no file here; its nearest relative is {near!r}; {_OWN_FILE}"


def relative_of(name: str) -> str | None:
    """The GPU with a file that is nearest to a known one without; None for all other names."""
    typed = name[:100].lower().replace("_", "-").replace(" ", "-")
    begun = [begins for begins in _RELATIVES if re.match(rf"{begins}(?![0-9])", typed)]
    return _RELATIVES[max(begun, key=len)] if begun else None
