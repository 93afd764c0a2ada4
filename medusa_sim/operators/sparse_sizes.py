"""Sizes of the sparse attention modules whose kernels were measured, by kind and by model."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.operators.operator import TextArray

SparseKind = Literal["dsa", "msa", "csa", "hca", "dsa_no_indexer"]
NO_INDEXER = "_no_indexer"
"""How the kind of a module ends that takes over the keys chosen by an earlier layer."""
LATENT_DIM, ROPE_DIM = 512, 64
"""Width of the compressed vector that all heads of `dsa` share, and of the rotated key beside it."""
HEAD_DIMS = {"msa": 128, "csa": 512, "hca": 512, "index": 128}
"""Width of a head by kind, and of an indexer's."""
OUT_RANK = 1024
"""Rank of the output projection of each group of heads (csa, hca)."""


class KeyChoice(NamedTuple):
    """Which of its cached tokens a query attends to."""

    topk: int
    """Keys that the indexer chooses; 0: there is no indexer, and all keys count."""
    window: int = 0
    """Last tokens that every query attends to besides."""
    ratio: int = 1
    """Tokens that one key compresses."""
    all_heads: int = 64
    """Query heads of the whole layer, over all GPUs."""


KEY_CHOICES: dict[str, KeyChoice] = {
    "dsa": KeyChoice(2048, all_heads=128),
    "msa": KeyChoice(2048),
    "csa": KeyChoice(512, 128, 4),
    "hca": KeyChoice(0, 128, 128),
}
"""From the configs of DeepSeek-V3.2 and GLM-5 (dsa), MiniMax-F3 (msa), DeepSeek-V4 (csa, hca)."""


class ModuleSizes(NamedTuple):
    """Widths of a module that differ between models of one kind."""

    hidden: int
    """Width of the model."""
    q_rank: int
    """Width of the compressed queries; 0: they are not compressed."""
    index_heads: int
    """Heads of the indexer."""
    nope_dim: int = 128
    """Width of a head's unrotated key (dsa)."""
    v_dim: int = 128
    """Width of a head's value (dsa)."""


MODULE_SIZES: dict[str, ModuleSizes] = {
    "dsa": ModuleSizes(7168, 1536, 64),
    "msa": ModuleSizes(6144, 0, 4),
    "csa": ModuleSizes(4096, 1024, 64),
    "hca": ModuleSizes(4096, 1024, 0),
}
"""Of DeepSeek-V3.2, MiniMax-F3 and DeepSeek-V4-Flash."""
_SIZES_BY_MODEL = {
    "GLM-5": ModuleSizes(6144, 2048, 32, 192, 256),
    "DeepSeek-V4-Pro": ModuleSizes(7168, 1536, 64),
}
"""Of other models, by the start of their name behind the publisher's."""

DSA_SIZES = (LATENT_DIM, ROPE_DIM, HEAD_DIMS["index"], KEY_CHOICES["dsa"].topk)
"""Sizes shared with the measured modules of `dsa`: both widths, index head width, keys chosen."""


def module_sizes(kind: str, models: TextArray) -> tuple[FloatArray, ...]:
    """The fields of `ModuleSizes` for named models, one array each with an entry a name.

    A name that is not listed has the sizes of the kind's first model.
    """
    names, inverse = np.unique(models, return_inverse=True)
    default = MODULE_SIZES[kind.removesuffix(NO_INDEXER)]
    listed = [_sizes_of_model(str(name).rpartition("/")[2]) or default for name in names]
    return tuple(np.asarray(listed, dtype=np.float64)[inverse].T)


def _sizes_of_model(name: str) -> ModuleSizes | None:
    return next((sizes for start, sizes in _SIZES_BY_MODEL.items() if name.startswith(start)), None)
