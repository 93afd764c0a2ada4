"""Decoding methods by name: which drafter, with which tree."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from medusa_sim.acceptance.heads import HeadAccuracy, optimal_order
from medusa_sim.acceptance.profile import acceptance_names, load_acceptance
from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.acceptance.tree_file import read_tree
from medusa_sim.errors import SpecError, UsageError
from medusa_sim.lab.decoder.arguments import MATCH, METHODS, NGRAM_MAX, Match
from medusa_sim.lab.decoder.candidates import RejectionRule
from medusa_sim.lab.decoder.checkpoint import Checkpoint
from medusa_sim.lab.decoder.drafter import Drafter, NoDrafter
from medusa_sim.lab.decoder.heads import MedusaHeads
from medusa_sim.lab.decoder.medusa_drafter import MedusaDrafter
from medusa_sim.lab.decoder.model import Llama
from medusa_sim.lab.decoder.model_drafter import BeamDrafter, TreeDrafter
from medusa_sim.lab.decoder.ngram_drafter import NgramDrafter

SHIPPED_CHECKPOINT = "python-stdlib-medusa-2"
SHIPPED_DRAFT = "python-stdlib-draft"
CHECKPOINTS = "profiles/checkpoints"
FOREIGN_PROFILE = "medusa1-vicuna-7b"
"""Head accuracies that shape the trees of a checkpoint without a profile of its own."""
AUTO = "auto"
"""The tree of medusa that `decode` sizes by timing steps; no method can be made with it."""
DEFAULT_TREES = {
    "ar": "",
    "sd": "4",
    "specinfer": "2-2-1",
    "spectr": "4x3",
    "rsd-c": "2-2-1",
    "rsd-s": "4x3",
    "ngram": "5",
}
"""By method; medusa's has to be given or sized."""
_BRANCHING = re.compile(r"\d{1,9}(-\d{1,9})*")
_BEAM = re.compile(r"(\d{1,9})x(\d{1,9})")
_MOST_NODES = 1024
"""Largest tree: engines stop at a few hundred nodes, and a mask of more fills memory."""


@dataclass(frozen=True, slots=True)
class Method:
    """A ready drafter, and the tree in words."""

    name: str
    drafter: Drafter
    tree: str


def make_method(
    name: str,
    target: Checkpoint,
    *,
    draft: Llama | None = None,
    tree: str | None = None,
    temperature: float = 0.0,
    accuracy: HeadAccuracy | None = None,
    ngram_max: int = NGRAM_MAX,
    match: Match = MATCH,
) -> Method:
    """The method `name` with a tree from text.

    medusa, which has no default: a number of candidates (the best tree of that size under `accuracy`, by
    default that of the checkpoint's profile), a branching like `4-2-1`, or a file of paths. sd and ngram: a
    chain length. specinfer, rsd-c: a branching. spectr, rsd-s: paths or beams x depth, like `4x3`.
    Raises UsageError or SpecError.
    """
    text = tree if tree is not None else DEFAULT_TREES.get(name, "")
    drafter: Drafter
    if name == "ar":
        drafter = NoDrafter()
    elif name == "ngram":
        drafter = NgramDrafter(length=_count(text), ngram_max=ngram_max, match=match)
    elif name == "medusa":
        if text in ("", AUTO):
            raise UsageError(f"tree {text!r}: candidates (64), a branching (4-2-1) or a file is needed here")
        heads = required_heads(target)
        drafter = MedusaDrafter(target.model, heads, medusa_tree(text, target, accuracy))
    elif name not in METHODS:
        raise UsageError(f"unknown method {name!r} (known: {', '.join(METHODS)})")
    elif draft is None:
        raise UsageError(f"--method {name} drafts with a smaller model; give --draft DIR")
    elif draft.config.vocab_size != target.model.config.vocab_size:
        raise UsageError(
            f"the draft model has {draft.config.vocab_size} tokens, the target "
            f"{target.model.config.vocab_size}; both must share one tokenizer"
        )
    else:
        drafter = _model_drafter(name, draft, text, temperature)
    return Method(name, drafter, text)


def _model_drafter(name: str, draft: Llama, tree: str, temperature: float) -> Drafter:
    """What tells the draft-model methods apart: branching, how siblings are drawn, and the rule."""
    if name == "rsd-s":
        width, depth = _beam(tree)
        return BeamDrafter(draft, width=width, depth=depth, temperature=temperature)
    rule: RejectionRule = "multi-round"
    if name in ("spectr", "rsd-c"):
        rule = "k-seq" if name == "spectr" else "recursive"
    if name == "spectr":
        paths, depth = _beam(tree)
        branching = [paths] + [1] * (depth - 1)
    else:
        branching = [1] * _count(tree) if name == "sd" else _branching(tree)
    return TreeDrafter(draft, branching, temperature=temperature, rejection_rule=rule)


def required_heads(target: Checkpoint) -> MedusaHeads:
    """The checkpoint's heads. Raises UsageError where it has none."""
    if target.heads is None:
        raise UsageError(
            f"{target.path} has no Medusa heads; train them (medusa-sim train) or use another --method"
        )
    return target.heads


def medusa_tree(text: str, target: Checkpoint, accuracy: HeadAccuracy | None) -> CandidateTree:
    """A tree from `text` (see `make_method`)."""
    if _BRANCHING.fullmatch(text) and "-" in text:
        return CandidateTree.cartesian(_branching(text))
    if text.isdecimal():
        known = accuracy if accuracy is not None else head_accuracy(target, profile_of(target.path)[0])
        return optimal_order(known, _count(text)).tree(_count(text))
    return read_tree(Path(text))


def head_accuracy(target: Checkpoint, profile: str, data_dir: Path | None = None) -> HeadAccuracy:
    """Accuracies of a profile (a name or a file) for as many heads as the checkpoint has.

    Raises SpecError where the profile knows no heads, UsageError where the checkpoint has none.
    """
    loaded = load_acceptance(profile, data_dir)
    count = required_heads(target).count
    if loaded.heads is None:
        raise SpecError(f"acceptance profile {loaded.name} knows no heads; give another or --tree FILE")
    return loaded.heads.first(min(count, loaded.heads.depth))


def profile_of(checkpoint: Path, data_dir: Path | None = None) -> tuple[str, str | None]:
    """The profile that shapes a checkpoint's trees, and what to tell the user where it is not its own."""
    name = checkpoint.resolve().name
    if name in acceptance_names(data_dir):
        return name, None
    return FOREIGN_PROFILE, (
        f"{name} has no acceptance profile; trees are shaped by {FOREIGN_PROFILE} "
        "(--acceptance NAME or FILE for accuracies of its own, --tree FILE for a tree)"
    )


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text[:9]) <= _MOST_NODES:
        raise UsageError(f"--tree {text[:40]!r}: a whole number from 1 to {_MOST_NODES} is needed here")
    return int(text)


def _branching(text: str) -> list[int]:
    if not _BRANCHING.fullmatch(text) or 0 in (parts := [int(part) for part in text.split("-")]):
        raise UsageError(f"--tree {text!r}: branching factors like 2-2-1 are needed here")
    nodes = math.prod(parts) * len(parts)
    if nodes > _MOST_NODES:
        raise UsageError(f"--tree {text!r}: up to {nodes} nodes; at most {_MOST_NODES} are decoded here")
    return parts


def _beam(text: str) -> tuple[int, int]:
    match = _BEAM.fullmatch(text)
    if match is None or int(match[1]) < 1 or int(match[2]) < 1:
        raise UsageError(f"--tree {text!r}: paths or beams x depth, like 4x3, is needed here")
    if int(match[1][:9]) * int(match[2][:9]) > _MOST_NODES:
        raise UsageError(f"--tree {text!r}: more than {_MOST_NODES} nodes; take fewer paths or levels")
    return int(match[1]), int(match[2])
