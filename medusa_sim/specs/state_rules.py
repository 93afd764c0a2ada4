"""What engines do with recurrent states when they speculate: which drafts a hybrid takes, what they cost.

Facts of mid 2026 with the pull requests and issues (#) that say them; versions after those may differ.
"""

from __future__ import annotations

from dataclasses import dataclass

from medusa_sim.specs.model import Model
from medusa_sim.specs.recurrent import GatedDelta


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRules:
    """One engine's. drafts: shapes and drafters; states: what a round keeps; prefixes: what of a prompt is
    found again; source: where each is said.
    """

    engine: str
    drafts: str
    states: str
    prefixes: str
    source: str


RULES: dict[str, StateRules] = {
    "vllm": StateRules(
        engine="vLLM",
        drafts="chains of MTP, EAGLE-3, DFlash, suffix; no trees",
        states="a state for each draft and one more a request, the next step starts from the accepted one",
        prefixes="prefix cache by whole state blocks: --mamba-cache-mode align with MTP, all is experimental",
        source="vllm #42121, #54080, #39809, #50172, #40696",
    ),
    "sglang": StateRules(
        engine="SGLang",
        drafts="chains; trees only with page size 1 and without SpecV2",
        states="a state for each verified token beside the slots, sized by --max-running-requests; "
        "--enable-linear-replayssm-spec replays them instead",
        prefixes="radix cache with no_buffer (no overlapped schedule) or extra_buffer (two more slots)",
        source="sglang #14792, #14077, #37066, #35064, #36889",
    ),
    "trtllm": StateRules(
        engine="TensorRT-LLM",
        drafts="chains of MTP, suffix automaton, DFlash; no trees",
        states="KV and states under one manager with rollback; Mamba-2 replays from the state two steps back",
        prefixes="block reuse through MambaHybridCacheManagerV2",
        source="TensorRT-LLM #12896, #11533, #13453, #14203, #17327",
    ),
}
"""By the name of an engine's kernel set."""
NGRAM_CORRUPTS = "vllm #39273, fix #52942 open"


def told_of_states(library: str, model: Model, drafter: str) -> tuple[str, ...]:
    """What an answer says of an engine's states; nothing of models without them, or of unknown engines."""
    rules = RULES.get(library)
    if rules is None or not model.keeps_states:
        return ()
    told = [f"{rules.engine} with states: {rules.drafts}; {rules.states}; {rules.prefixes} ({rules.source})"]
    if library == "vllm" and drafter == "ngram" and model.blocks(GatedDelta):
        told.append(
            f"n-gram drafts corrupted outputs of gated delta layers in vLLM ({NGRAM_CORRUPTS}): "
            "a step without drafts reads another state; MTP and EAGLE draft in every step"
        )
    return tuple(told)
