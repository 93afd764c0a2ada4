"""Types of stored weights in files of local engines: blocks of GGUF, groups of MLX, and what a file mixes.

A name such as Q4_K_M is that of a file, not of a format: its tensors have several types, by what they are
for. `FILES` says which share of the layers has which type (half of the value matrices in Q6_K ...), `TYPES`
what a weight of a type takes.

Sources: llama.cpp of October 2026 (0c1e5709), `ggml/src/ggml-common.h` (every block is asserted there) and
`src/llama-quant.cpp`, which chooses the type of every tensor; MLX of August 2026 (846d1762), affine
quantisation with a 16-bit scale and bias for each group of 64.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, TypeAlias

Role: TypeAlias = Literal["linear", "keys", "values", "output", "down", "head", "embedding", "experts"]
"""What a matrix is for: the token's row of `embedding` is looked up, everything else is multiplied. `output`
follows attention, `head` gives the logits, `linear` is everything else."""

TYPES: dict[str, float] = {
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "q4_0": 18 / 32,
    "q4_1": 20 / 32,
    "q5_0": 22 / 32,
    "q5_1": 24 / 32,
    "q8_0": 34 / 32,
    "q2_k": 84 / 256,
    "q3_k": 110 / 256,
    "q4_k": 144 / 256,
    "q5_k": 176 / 256,
    "q6_k": 210 / 256,
    "iq1_s": 50 / 256,
    "iq1_m": 56 / 256,
    "iq2_xxs": 66 / 256,
    "iq2_xs": 74 / 256,
    "iq2_s": 82 / 256,
    "iq3_xxs": 98 / 256,
    "iq3_s": 110 / 256,
    "iq4_xs": 136 / 256,
    "iq4_nl": 18 / 32,
    "tq1_0": 54 / 256,
    "tq2_0": 66 / 256,
    "mxfp4": 17 / 32,
    "nvfp4": 36 / 64,
    "affine2": 2.5 / 8,
    "affine3": 3.5 / 8,
    "affine4": 4.5 / 8,
    "affine5": 5.5 / 8,
    "affine6": 6.5 / 8,
    "affine8": 8.5 / 8,
}
"""Bytes of one weight, with its share of the block's scales."""

Shares: TypeAlias = tuple[tuple[str, float], ...]
"""(type, share of the layers that have it)."""
Mix: TypeAlias = Mapping[str, Shares]
"""Shares by role; `linear` stands for roles that are not named."""
_ALSO = {
    "q3_k": "q3_k_m", "q4_k": "q4_k_m", "q5_k": "q5_k_m", "mxfp4-moe": "mxfp4_moe",
    "mxfp4-q4": "mlx-4bit", "mxfp4-q8": "mlx-8bit",
    "ud-q2_k_xl": "q2_k", "ud-q3_k_xl": "q3_k_m", "ud-q5_k_xl": "q5_k_m", "ud-q6_k_xl": "q6_k",
    "ud-iq2_xxs": "iq2_xxs", "ud-iq2_m": "iq2_m", "ud-iq3_xxs": "iq3_xxs", "ud-iq1_s": "iq1_s",
    "ud-iq1_m": "iq1_m",
    **{f"{bits}{mark}bit": f"mlx-{bits}bit" for bits in (2, 3, 4, 5, 6, 8) for mark in ("", "-")},
}  # fmt: skip
"""Other names of the same files; `llama-quantize` takes the first three so too."""
OTHER_NAMES: dict[str, str] = {**_ALSO, "f32": "fp32"}
CACHES = ("f16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl")
"""Types in which llama.cpp keeps K and V (common.h)."""
OF_MLX = "mlx-"
"""How names of MLX's begin; the others are GGUF."""
MIXTURES = "_moe"
"""How names of files end whose experts have another type than everything else."""
_SIZES: dict[Role, float] = {"linear": 0.615, "keys": 0.019, "values": 0.019, "output": 0.077, "down": 0.269}
"""Shares of the weights of a layer of Llama-3.1-8B by role, at which files are told apart by one number."""


def _half(more: str, base: str) -> Shares:
    """`use_more_bits`: the first and the last eighth of the layers, and every third of the others."""
    return ((more, 0.5), (base, 0.5))


def _eighth(more: str, base: str) -> Shares:
    """The first eighth of the layers."""
    return ((more, 0.125), (base, 0.875))


def _mix(base: str | Shares, **roles: str | Shares) -> Mix:
    told: dict[str, str | Shares] = {"linear": base, **roles}
    return {role: ((given, 1.0),) if isinstance(given, str) else given for role, given in told.items()}


FILES: dict[str, Mix] = {
    "f16": _mix("f16"),
    "q4_0": _mix("q4_0", head="q6_k"),
    "q4_1": _mix("q4_1", head="q6_k"),
    "q5_0": _mix("q5_0", head="q6_k"),
    "q5_1": _mix("q5_1", head="q6_k"),
    "q8_0": _mix("q8_0"),
    "q2_k": _mix("q2_k", values="q4_k", output="q3_k", down="q3_k", head="q6_k"),
    "q2_k_s": _mix("q2_k", values="q4_k", down=_eighth("q4_k", "q2_k"), head="q6_k"),
    "q3_k_s": _mix("q3_k", head="q6_k"),
    "q3_k_m": _mix(
        "q3_k", values=_eighth("q5_k", "q4_k"), output="q4_k", down=_eighth("q5_k", "q4_k"), head="q6_k"
    ),
    "q3_k_l": _mix("q3_k", values="q5_k", output="q5_k", down="q5_k", head="q6_k"),
    "q4_k_s": _mix("q4_k", values=_eighth("q5_k", "q4_k"), down=_eighth("q5_k", "q4_k"), head="q6_k"),
    "q4_k_m": _mix("q4_k", values=_half("q6_k", "q4_k"), down=_half("q6_k", "q4_k"), head="q6_k"),
    "q5_k_s": _mix("q5_k", head="q6_k"),
    "q5_k_m": _mix("q5_k", values=_half("q6_k", "q5_k"), down=_half("q6_k", "q5_k"), head="q6_k"),
    "q6_k": _mix("q6_k"),
    "iq1_s": _mix("iq1_s", values="q4_k", down=_eighth("q2_k", "iq1_s"), head="q5_k", embedding="q2_k"),
    "iq1_m": _mix("iq1_m", values="q4_k", down=_eighth("q2_k", "iq1_m"), head="q5_k", embedding="q2_k"),
    "iq2_xxs": _mix("iq2_xxs", values="q4_k", down=_eighth("q2_k", "iq2_xxs"), head="q5_k", embedding="q2_k"),
    "iq2_xs": _mix("iq2_xs", values="q4_k", down=_eighth("q2_k", "iq2_xs"), head="q5_k", embedding="q2_k"),
    "iq2_s": _mix("iq2_xs", values="q4_k", down=_eighth("iq3_s", "iq2_xs"), head="q5_k", embedding="iq3_s"),
    "iq2_m": _mix("iq2_s", values="q4_k", down=_eighth("iq3_s", "iq2_s"), head="q5_k", embedding="iq3_s"),
    "iq3_xxs": _mix("iq3_xxs", values="q4_k", down=_eighth("q4_k", "q3_k"), head="q5_k", embedding="iq3_s"),
    "iq3_s": _mix("iq3_s", values="q4_k", head="q6_k"),
    "iq3_m": _mix("iq3_s", values="q4_k", output="q4_k", down=_eighth("q4_k", "iq3_s"), head="q6_k"),
    "iq4_xs": _mix("iq4_xs", values="q5_k", down=_eighth("q5_k", "iq4_xs"), head="q6_k"),
    "iq4_nl": _mix("iq4_nl", values="q5_k", down=_eighth("q5_k", "iq4_nl"), head="q6_k"),
    "mxfp4_moe": _mix("q8_0", experts="mxfp4", down="q8_0"),
    "ud-q4_k_xl": _mix("q4_k", values="q6_k", output="q5_k", down=_half("q6_k", "q5_k"), head="q6_k"),
    "ud-q4_k_xl_moe": _mix("q8_0", experts=(("q5_k", 0.33), ("q4_k", 0.67)), embedding="q8_0"),
    "ud-q8_k_xl": _mix((("bf16", 0.19), ("q8_0", 0.81)), experts="q8_0", head="bf16", embedding="bf16"),
    "mlx-2bit": _mix("affine2"),
    "mlx-3bit": _mix("affine3"),
    "mlx-4bit": _mix("affine4"),
    "mlx-5bit": _mix("affine5"),
    "mlx-6bit": _mix("affine6"),
    "mlx-8bit": _mix("affine8"),
}
"""Types by role in files of that name. The dynamic ones (`ud-`) differ from model to model: those here have
the sizes of Qwen3.6's published files within 4 %, of six other models' within 15. A file itself is read
exactly (`--model FILE.gguf`)."""

NAMES: tuple[str, ...] = (*FILES, *_ALSO)
"""What `--weight-dtype` takes of them, in lower case."""


def read_by(runtime: str) -> tuple[str, ...]:
    """Names of the files that a runtime reads: GGUF of llama.cpp, MLX's of MLX, of a server none.

    >>> read_by("mlx")[:2]
    ('mlx-2bit', 'mlx-3bit')
    """
    own = {"llama": False, "mlx": True}.get(re.split(r"\W", runtime)[0])
    return tuple(name for name in FILES if name.startswith(OF_MLX) is own)


def named_file(given: str) -> str:
    """The name in FILES of a type as people and tools write it; others in lower case.

    >>> [named_file(each) for each in ("Q4_K_M", "Q4_K - Medium", "MXFP4 MoE", "4-bit", "FP8")]
    ['q4_k_m', 'q4_k_m', 'mxfp4_moe', 'mlx-4bit', 'fp8']
    """
    name = re.sub(r"[ _-]+(small|medium|large)$", lambda size: f"_{size[1][0]}", given.lower())
    name = name.replace(" ", "_")
    return OTHER_NAMES.get(name, name)


def shares(file: str, role: Role) -> Shares:
    """Types of the matrices of a role in a file of that name, and how many layers have each."""
    mix = FILES[file]
    return mix.get(role, mix["linear"])


def bytes_per_weight(file: str, role: Role) -> float:
    """Of the matrices of a role, on average over layers; of experts without a type: gate, up and down."""
    if role == "experts" and role not in FILES[file]:
        return (2.0 * bytes_per_weight(file, "linear") + bytes_per_weight(file, "down")) / 3.0
    return sum(TYPES[name] * share for name, share in shares(file, role))


def mean_bytes(file: str) -> float:
    """Of the weights of a layer with the proportions of Llama-3.1-8B's."""
    if file.endswith(MIXTURES):
        return bytes_per_weight(file, "experts")  # nearly everything of the models that come so
    whole = sum(_SIZES.values())
    return sum(part * bytes_per_weight(file, role) for role, part in _SIZES.items()) / whole
