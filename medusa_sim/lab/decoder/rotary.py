"""Rotary position embedding: frequencies as configs scale them, tables of rotations, the rotation itself."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from medusa_sim.lab.decoder.config import DecoderConfig

_TABLE_ROWS = 256
"""Rotations are tabulated for so many positions, or a multiple."""


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """fp32 for half precision, else the dtype itself: norms, rotations, softmax."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def inverse_frequencies(config: DecoderConfig) -> tuple[Tensor, float]:
    """Rotary inverse frequencies (head_dim / 2,), fp32 on the CPU, and the factor on cos and sin.

    Plain (Su et al. 2021), linear (position interpolation), Llama 3 (wavelength bands) and
    YaRN (Peng et al. 2023, with its 0.1 ln(factor) + 1 attention factor).
    """
    scaling, dim, theta = config.rope_scaling, config.head_dim, config.rope_theta
    plain = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32, device="cpu") / dim)
    if scaling.rope_type == "linear":
        return plain / scaling.factor, 1.0
    if scaling.rope_type == "llama3":
        original = scaling.original_max_position_embeddings
        wavelength = 2 * math.pi / plain
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        smooth = ((original / wavelength - low) / (high - low)).clamp(0.0, 1.0)
        return (1 - smooth) * plain / scaling.factor + smooth * plain, 1.0
    if scaling.rope_type == "yarn":
        original = scaling.original_max_position_embeddings

        def rotation_dim(rotations: float) -> float:
            return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

        low = max(math.floor(rotation_dim(scaling.beta_fast)), 0)
        high = min(math.ceil(rotation_dim(scaling.beta_slow)), dim - 1)
        ramp = (
            (torch.arange(dim // 2, dtype=torch.float32, device="cpu") - low) / max(high - low, 1e-3)
        ).clamp(0.0, 1.0)
        factor = scaling.attention_factor
        if factor is None:
            factor = 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0
        return ramp * plain / scaling.factor + (1 - ramp) * plain, factor
    return plain, 1.0


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of (batch, q, heads, head_dim) by (.., q, 1, head_dim) cosines and sines.

    The first half of the sines is negative: x cos + (-x2, x1) sin is x cos + (x2, x1) (-sin, sin).
    """
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


class Rotations:
    """Cosines and signed sines of positions, tabulated for each device and dtype where they are asked for.

    Not buffers of the model: `.half()` would round the frequencies.
    """

    def __init__(self, config: DecoderConfig) -> None:
        self._frequencies, self._factor = inverse_frequencies(config)
        self._tables: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}

    def tables(self, positions: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines (see `rotate`) of at least so many positions, (.., 1, head_dim) each."""
        tables = self._tables.get((device, dtype))
        if tables is None or len(tables[0]) < positions:
            tables = self._new_tables(positions, device, dtype)
        return tables

    def _new_tables(self, positions: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        with torch.inference_mode(mode=False):  # training may use them too
            wide = accumulation_dtype(dtype)
            order = torch.arange(-(-positions // _TABLE_ROWS) * _TABLE_ROWS, device=device)
            angles = order[:, None, None].to(wide) * self._frequencies.to(device=device, dtype=wide)
            cos, sin = angles.cos() * self._factor, angles.sin() * self._factor
            tables = (torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype))
        self._tables[device, dtype] = tables
        return tables
