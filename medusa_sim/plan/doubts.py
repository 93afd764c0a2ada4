"""What a scenario rests on that was not measured for it, a sentence each."""

from __future__ import annotations

import numpy as np

from medusa_sim.plan.defaults import TYPICAL
from medusa_sim.plan.fits import other_form, too_large, unfitted_kinds
from medusa_sim.plan.resolved import Resolved
from medusa_sim.specs.engine_facts import told_of_states
from medusa_sim.specs.fitted import FEWEST_RANKS, CollectiveKernel
from medusa_sim.specs.mixers import Latent
from medusa_sim.specs.model import RUN_IN_FP16, UNCHECKED
from medusa_sim.specs.parallel import ONE

_ONE_NODE = 8
"""GPUs that one NVLink domain joins in most servers."""


def doubts(of: Resolved) -> tuple[str, ...]:
    """Every reservation about the answers of a scenario."""
    told = []
    if of.profile.name.startswith(TYPICAL):
        told.append(
            f"acceptance {of.profile.name} is an assumption ({of.profile.title}): nobody measured "
            f"{of.drafting.method} on {of.model.name}; give your own with --acceptance"
        )
    elif of.borrows_acceptance:
        told.append(
            f"acceptance {of.profile.name} was measured on another model than {of.model.name}; give "
            "your own with --acceptance"
        )
    if of.profile.output_share != 1.0:
        told.append(
            f"acceptance {of.profile.name}: every rate is {of.profile.output_share:.2f} of the published one "
            f"in outputs of {of.arguments.output_tokens:g} tokens, as served to random prompts; real ones "
            "may reach it: give your own with --acceptance"
        )
    if of.arguments.dtype is None:
        told += [f"{of.model.name}: {note}" for note in of.model.notes if note.endswith(RUN_IN_FP16)]
    told += [f"{of.model.name}: {note}" for note in of.model.notes if note.endswith(UNCHECKED)]
    if of.scope == "model" and of.runtime.engine is not None:
        told += told_of_states(of.runtime.library, of.model, of.drafting.method)
    told += _of_engine(of)
    if of.gpu.exceeds_link(np.asarray(float(of.parallel.tp))):
        told.append(
            f"the link of {of.gpu.name} joins {of.gpu.linked_gpus} cards: {of.parallel.tp} share a slower one"
        )
    if of.parallel.tp > _ONE_NODE:
        told.append(
            f"{of.parallel}: priced as if all were in one NVLink domain; links between nodes are slower"
        )
    if of.scope == "model" and (reason := too_large(of.model, of.shard, of.gpu, of.runtime.engine)):
        told.append(reason)
    told += _of_kernels(of)
    if of.runtime.chain_only and of.has_trees:
        told.append(
            f"{of.runtime.name} has no tree attention: trees are priced as if it had; --chain-only "
            "leaves them out"
        )
    return tuple(told)


def _of_engine(of: Resolved) -> list[str]:
    """What was not measured of the engine itself, while it drafts and on as many GPUs."""
    told, engine, runtime = [], of.runtime.engine, of.runtime
    only = () if engine is None else engine.measured_drafters
    if not runtime.is_measured:
        told.append(
            f"{runtime.name}: nobody measured this engine; its own terms are guesses or another's, "
            "with wide bands"
        )
    elif not runtime.is_drafting_measured or (only and of.drafting.method not in only):
        but = f" but with {', '.join(only)}" if only else ""
        told.append(
            f"{runtime.name}: nobody measured drafting in this engine{but}; its terms are guesses or "
            "another's, with wide bands"
        )
    if of.parallel != ONE and engine is not None:
        known = f", {engine.several_gpus} aside," if engine.several_gpus else ""
        told.append(
            f"{runtime.name}'s own terms{known} were fitted on one GPU and are taken over for "
            f"{of.parallel}, with wider bands"
        )
    return told


def _of_kernels(of: Resolved) -> list[str]:
    """What times rest on beside kernels that were fitted to this GPU, format and spread."""
    if of.latency.name != "calibrated":
        return []
    told = []
    if of.kernel_lenders:
        told.append(
            f"kernels of {of.gpu.name} are borrowed from {', '.join(of.kernel_lenders)}, with wider bands"
        )
    if other := other_form(of.model, of.fits):
        told.append(
            f"nobody measured experts in {other[0]} on {of.gpu.name}: times are of {other[1]} kernels "
            "that read as many bytes, with wider bands"
        )
    if of.unpacked_forms:
        told.append(
            f"{of.gpu.name} has no {' or '.join(of.unpacked_forms)} arithmetic: such weights are "
            "unpacked to 16 bits, as vLLM does (Marlin)"
        )
    unfitted = () if of.scope == "block" else unfitted_kinds(of.latency, of.shard, of.runtime)
    if unfitted:
        told.append(
            f"{' and '.join(unfitted)} of {of.model.name}: no kernel is fitted; times follow from "
            "bytes and FLOPs, with wide bands"
        )
    if of.scope == "model" and "sparse" in {place.partition(".")[0] for place in of.fits}:
        told.append(
            f"sparse attention of {of.model.name} takes fitted modules: those of several queries a "
            "request are of prompts or extrapolated from one, with wider bands"
        )
    elif of.model.blocks(Latent) and of.scope == "model":
        told.append(
            f"latent attention of {of.model.name} was fitted at one query: its verification is "
            "extrapolated, 10 to 20 % from public rows in the mean, with wider bands"
        )
    if of.unpacks:
        told.append(
            f"nobody measured the unpacking of {' and '.join(of.unpacks)} on {of.gpu.name}: times "
            "are of kernels without it that read as many bytes, with wider bands"
        )
    if of.parallel.tp > FEWEST_RANKS and not all(kernel.knows_ranks for kernel in _collectives(of)):
        told.append(
            f"collectives of {of.gpu.name} were measured between {FEWEST_RANKS:g} cards alone: among "
            f"{of.parallel.tp} they are extrapolated, with wider bands"
        )
    if of.parallel.ep > 1:
        told.append(
            f"experts spread over GPUs (ep {of.parallel.ep}) are priced by kernels that were fitted "
            "without, with wider bands"
        )
    return told


def _collectives(of: Resolved) -> list[CollectiveKernel]:
    """Kernels of the exchange of a step."""
    places = [key.removeprefix("collective.") for key in of.fits if key.startswith("collective.")]
    parts = (place.partition(":") for place in places)
    return [of.gpu.kernels[name].collective[key] for name, _, key in parts]
