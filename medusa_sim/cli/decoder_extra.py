"""What the decoder's commands need beyond the core."""

from __future__ import annotations

import importlib.util

from medusa_sim.errors import UsageError

SEED_MAX = 2**32 - 1
"""Seeds of the decoder's commands; a text or training step draws from a multiple of it, in 64 bits."""


def require_decoder_extra(*more: str) -> None:
    """Raises UsageError, one line, where torch or a companion is not installed."""
    needed = ("torch", "safetensors", "tokenizers", *more)
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"this command needs {', '.join(missing)}; install the extra: pip install 'medusa-sim[decoder]'"
        )
