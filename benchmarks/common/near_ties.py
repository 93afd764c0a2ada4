"""Whether two greedy texts part where two tokens are equally good to the precision of 16-bit floats.

A pass of one token and a pass of several sum their products in another order. Where the two best logits lie
closer than that rounding, either token is the greedy one, and texts may part without a fault. The logits are
those of the project's own decoder in 32 bits, which shares no code with the engine that wrote the texts.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from medusa_sim.lab.decoder.checkpoint import load_checkpoint
from medusa_sim.lab.decoder.tokenizer import load_tokenizer

ROUNDINGS = 2.0
"""Distances between 16-bit floats of the logits' size: one for each of the two."""


def part_at_tie(checkpoint: Path, prompt: str, one: str, other: str) -> bool:
    """Whether the first tokens that differ are the two best, within `ROUNDINGS` of each other.

    checkpoint: folder of the model that both texts continue `prompt` with. False for equal texts.
    """
    tokenizer = load_tokenizer(checkpoint)
    first, second = (tokenizer.encode(prompt + text).ids for text in (one, other))
    pairs = enumerate(zip(first, second, strict=False))
    place = next((at for at, (left, right) in pairs if left != right), 0)
    if not place:
        return False
    model = load_checkpoint(checkpoint).model
    with torch.no_grad():
        logits = model.logits(model(torch.tensor([first[:place]])))[0, -1]
    (high, low), chosen = (found.tolist() for found in logits.topk(2))
    return set(chosen) == {first[place], second[place]} and (
        high - low <= ROUNDINGS * float(np.spacing(np.float16(high)))
    )
