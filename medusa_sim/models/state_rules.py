"""Rules of engines for a hybrid model's recurrent states while they speculate: `state_rules.toml`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
from msgspec.structs import replace

from medusa_sim.models.mixers import Mixer
from medusa_sim.models.model import Model
from medusa_sim.models.recurrent import GatedDelta, Mamba2
from medusa_sim.reading.documents import read_toml
from medusa_sim.reading.strict import convert

_NGRAM_CORRUPTS = "vllm #39273, fix #52942 open"
_FILE = Path(__file__).with_suffix(".toml")


class StateRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The rules of one engine."""

    engine: str
    """Name in answers."""
    drafts: str
    """Drafters and shapes of drafts that it runs with a hybrid."""
    states: str
    """States that a round keeps."""
    prefixes: str
    """How a prompt's prefix is found again."""
    source: str
    gated_delta: str = ""
    """Dtype of gated delta states, whatever the model's config says; empty: as the config says."""
    unnamed: str = ""
    """Dtype of states whose config names none, but Kimi's; empty: the usual one of their kind."""


RULES: dict[str, StateRules] = convert(read_toml(_FILE), dict[str, StateRules], _FILE)
"""By the name of an engine's kernel set (`Runtime.library`)."""


def as_served(model: Model, library: str) -> Model:
    """The model with its states in the dtype that an engine keeps them in."""
    rules = RULES.get(library)
    if rules is None or not model.keeps_states:
        return model
    groups = tuple(
        dataclasses.replace(group, mixers=tuple(_served(mixer, rules) for mixer in group.mixers))
        for group in model.groups
    )
    return model if groups == model.groups else dataclasses.replace(model, groups=groups)


def _served(mixer: Mixer, rules: StateRules) -> Mixer:
    """A mixer with its states as an engine keeps them."""
    if not isinstance(mixer, GatedDelta | Mamba2):
        return mixer
    always = rules.gated_delta if isinstance(mixer, GatedDelta) else ""
    return replace(mixer, named_states=always or mixer.named_states or rules.unnamed or None)


def state_notes(library: str, model: Model, drafter: str) -> tuple[str, ...]:
    """Sentences about an engine's states; empty for models without states and unknown engines."""
    rules = RULES.get(library)
    if rules is None or not model.keeps_states:
        return ()
    lines = [f"{rules.engine} with states: {rules.drafts}; {rules.states}; {rules.prefixes} ({rules.source})"]
    if library == "vllm" and drafter == "ngram" and model.blocks(GatedDelta):
        lines.append(
            f"n-gram drafts corrupted outputs of gated delta layers in vLLM ({_NGRAM_CORRUPTS}): "
            "a step without drafts reads another state; MTP and EAGLE draft in every step"
        )
    return tuple(lines)
