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
    "fp8_block": 1.0 + 4.0 / (128 * 128),
    "int8": 1.0,
    "int4": 0.5,
    "nvfp4": 0.5 + 1.0 / 16,
    "mxfp4": 0.5 + 1.0 / 32,
}
"""Bytes of one element of each dtype that a specification may name.

With the scales of block formats: fp8_block, fp32 for 128 x 128 weights (DeepSeek-V3, arXiv 2412.19437);
nvfp4, one byte for 16 values; mxfp4, one byte for 32 (OCP Microscaling Formats v1.0). Scales and zero points
of integers, whose groups vary, are counted where weights are stored (`Model.scale_bytes`); the kernels that
were fitted to int4 rows hold what reading them takes.
"""

SAME_TENSOR_CORES: dict[str, str] = {"fp8_block": "fp8", "mxfp4": "nvfp4"}
"""A dtype whose arithmetic is another's, at that one's peak: only the scales differ."""
