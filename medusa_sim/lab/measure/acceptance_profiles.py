"""Acceptance profiles of a checkpoint, measured beside its runs: how far texts differ, what a look-up drafts.

<folder>/<model>/heads.toml    the checkpoint's profile with `request_spread` of a chain of all heads
<folder>/<model>/ngram.toml    a look-up of LOOKED_UP drafts by position
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from medusa_sim.acceptance.engine_counters import over_every_step, position_profile, profile_text
from medusa_sim.acceptance.profile import acceptance_path
from medusa_sim.acceptance.profile_file import encoded_profile, read_profile
from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.lab.decoder.checkpoint import Checkpoint
from medusa_sim.lab.decoder.generation import GenerationSettings
from medusa_sim.lab.decoder.medusa_drafter import MedusaDrafter
from medusa_sim.lab.decoder.methods import required_heads
from medusa_sim.lab.decoder.ngram_drafter import NgramDrafter
from medusa_sim.lab.decoder.trials import acceptance_counts
from medusa_sim.writing import write_text

LOOKED_UP = 5
"""Drafts of a look-up in the text."""


def write_profiles(
    folder: Path, target: Checkpoint, prompts: Sequence[Sequence[int]], *, new_tokens: int
) -> Iterator[str]:
    """The profiles of a checkpoint, with what each measured in words. Raises DataError, OutputError."""
    name = target.path.resolve().name
    heads = required_heads(target)
    settings = GenerationSettings(max_new_tokens=new_tokens, stop_at_end_of_text=False)
    chain = MedusaDrafter(target.model, heads, CandidateTree.chain(heads.count))
    spread = acceptance_counts(target.model, prompts, settings, chain, heads.count).spread
    known = read_profile(acceptance_path(name))
    whole = msgspec.structs.replace(known, request_spread=None if spread is None else round(spread, 3))
    counts = acceptance_counts(target.model, prompts, settings, NgramDrafter(length=LOOKED_UP), LOOKED_UP)
    every, match_rate = over_every_step(counts)
    looked_up = position_profile(
        every,
        title=f"Look-up of {LOOKED_UP} drafts in texts of {name}, greedy",
        source=f"medusa-sim measure runs: {len(prompts)} held-out prompts, {new_tokens} tokens each",
        match_rate=match_rate,
    )
    for file, profile in (("heads.toml", whole), ("ngram.toml", looked_up)):
        path = folder / name / file
        write_text(path, encoded_profile(profile))
        yield f"wrote {path}: {profile_text(profile)}"
