"""The drafter that a scenario asks for: its parts and its longest draft, before its depth is chosen."""

from __future__ import annotations

from medusa_sim.acceptance.profile import CURVE_HEADS, AcceptanceProfile
from medusa_sim.engines.runtime import Runtime, load_runtime
from medusa_sim.file_types import FILES
from medusa_sim.models.model import Model
from medusa_sim.models.named import load_model
from medusa_sim.models.variants import with_dtypes
from medusa_sim.scenario.arguments import Arguments
from medusa_sim.scenario.draft_options import Drafting
from medusa_sim.step.drafter.base import Drafter, DrafterParts


def drafting_asked(
    asked: Arguments, drafter: type[Drafter], profile: AcceptanceProfile, target: Model, runtime: Runtime
) -> Drafting:
    """The drafter of a scenario. profile: its acceptance, which says how many heads there are.

    A draft model has the formats asked for, but a local engine's file has its own.
    """
    draft, launched, heads = asked.draft_model, asked.draft_runtime, profile.heads
    if draft is not None:
        draft = draft if isinstance(draft, Model) else load_model(draft)
        own_file = not runtime.local or draft.weight_dtype in FILES
        draft = with_dtypes(draft, asked.dtype, None if own_file else asked.weight_dtype)
    if isinstance(launched, str):
        launched = load_runtime(launched, asked.data_dir)
    return Drafting(
        method=drafter.name,
        parts=DrafterParts(
            heads=asked.heads or (CURVE_HEADS if heads is None else heads.depth),
            draft=draft,
            draft_runtime=launched,
            draft_vocab=asked.draft_vocab,
            modules=max(target.mtp_layers, 1),
        ),
        max_drafts=asked.max_drafts,
    )
