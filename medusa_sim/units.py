"""Constants only. Everything inside the package is SI (bytes, seconds, flops); text is rendered elsewhere."""

from __future__ import annotations

KILO = 1e3
MEGA = 1e6
GIGA = 1e9
TERA = 1e12
US_PER_S = 1e6
US_PER_MS = 1e3
MIB = 2**20

BYTES_PER_ELEMENT: dict[str, float] = {
    "fp64": 8.0,
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "int4": 0.5,
}
"""Bytes of one element of each dtype that a specification may name."""
