"""A recommendation as launch settings of serving engines: a record an engine, one way to write them."""

from __future__ import annotations

import json
from dataclasses import replace
from math import ceil

from medusa_sim.errors import UsageError, unknown_name
from medusa_sim.export import ENGINES, exports
from medusa_sim.export.chains import best_tree, chain_plan, graph_sizes, idle_cost, tree_notes
from medusa_sim.export.settings import (
    Chosen,
    EngineExport,
    EngineMethod,
    EngineSettings,
    Versions,
    forgone_tree,
    length_note,
    range_notes,
    tier_notes,
    too_small,
)
from medusa_sim.grid.quantities import scenario_values
from medusa_sim.models.checkpoints import drafter_id
from medusa_sim.models.parallel import ONE
from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.serving.traffic import step_limits, step_tokens
from medusa_sim.step.drafter import drafters

METHODS = {name: engine.methods for name, engine in exports().items()}
"""Each engine's names of our drafting methods."""

_OF_A_ROW = (
    "batch_min", "batch_max", "seq_len", "candidates", "drafts", "width", "chain", "paths", "tokens_per_step",
    "speedup",
)  # fmt: skip
"""Values of a row of a schedule that an engine needs to run it."""


def engine_settings(
    answer: Recommendation, engine: str, *, version: str | None = None, draft_path: str | None = None
) -> EngineSettings:
    """Launch settings of an engine; `draft_path` names the draft's checkpoint in them.

    Raises UsageError for an unknown engine, a version that is not known, a checkpoint that is missing, and
    everything that the engine cannot do, saying why.
    """
    if engine not in ENGINES:
        raise UsageError(unknown_name("engine", engine, ENGINES))
    if engine == "json":
        settings = _json_settings(answer, version, draft_path)
    else:
        settings = _settings(exports()[engine], answer, version, draft_path)
    notes = (*_acceptance_note(answer), *_latency_note(answer), *_gpu_notes(answer, engine))
    return replace(settings, notes=(*settings.notes, *notes))


def _json_settings(answer: Recommendation, version: str | None, draft_path: str | None) -> EngineSettings:
    """JSON for no engine in particular, with trees, for code of one's own: a versioned file."""
    known, _ = Versions("json", ("1",), "1").chosen(version)
    values = {
        "schema": f"medusa-sim/schedule/{known}",
        **scenario_values(answer.scenario, "gpu", "model", "tp", "ep", "drafter"),
        "draft_path": draft_path,
        **scenario_values(answer.scenario, "acceptance"),
        "enable": answer.enable,
        "loses_from_length": answer.break_even_context.loses_from,
        "schedule": [{name: getattr(row, name) for name in _OF_A_ROW} for row in answer.schedule],
    }
    text = json.dumps(values, indent=1, allow_nan=False) + "\n"
    return EngineSettings(engine="json", version=known, text=text)


def _settings(
    engine: EngineExport, answer: Recommendation, version: str | None, draft_path: str | None
) -> EngineSettings:
    known, nearest = engine.versions.chosen(version)
    method = engine_method(engine, answer.scenario.drafting.method, known)
    scheduled, margin = known in method.scheduled, engine.margin(answer)
    plan = chain_plan(
        answer,
        graph_sizes(engine.name) if engine.has_known_graphs else (),
        scheduled=scheduled,
        margin=margin,
        idle_cost=idle_cost(answer) if engine.idle_drafter_costs else None,
    )
    allowed = engine.trees(method, known)
    tree = None if allowed is None else best_tree(answer, plan, allowed)
    draft_path, drafter_note = _draft(engine, answer, draft_path) if method.checkpoint else (None, "")
    chosen = Chosen(
        answer=answer,
        version=known,
        method=method,
        plan=plan,
        tree=tree,
        draft_path=draft_path,
        is_default=version is None,
    )
    if tree is not None:
        plan_notes = tree_notes(tree)
    else:
        why = too_small(plan, margin) if scheduled else method.untested or engine.why_one_number
        plan_notes = (*forgone_tree(answer), *tier_notes(plan, why))
    notes = (
        f"written for {engine.title} {known}",
        nearest,
        drafter_note,
        *plan_notes,
        *engine.notes(chosen),
        *range_notes(plan, engine.batch_option),
        _limit_note(answer, engine, min(plan.max_batch, plan.grid.searched_to)),
        length_note(answer, engine.length_option),
    )
    return EngineSettings(
        engine=engine.name,
        version=known,
        text=engine.write(chosen),
        notes=tuple(filter(None, notes)),
        plan=plan if tree is None else None,
        chosen=chosen,
    )


def _limit_note(answer: Recommendation, engine: EngineExport, batch: int) -> str:
    """Says where batches that fit, to `batch`, are more than the engine takes by default.

    Tokens of a step stay, unless they are fewer than the requests (`step_tokens`).
    """
    scenario = answer.scenario
    if scenario.runtime.engine is None:
        return ""
    server, schedulers = (scenario.runtime, scenario.gpu), scenario.parallel.schedulers
    most, _ = step_limits(*server, schedulers=schedulers)
    if batch <= most:
        return ""
    tokens = ceil(round(float(step_tokens(*server, batch, schedulers=schedulers)), 6))
    return (
        f"batches above {most} are of a server that is started with {engine.batch_option} {batch} and has "
        f"{tokens} tokens in a step"
    )


def _draft(engine: EngineExport, answer: Recommendation, given: str | None) -> tuple[str, str]:
    """The draft's checkpoint, as given, else a published one that the engine loads; and a note on it.

    Raises UsageError where none is known.
    """
    if given is not None:
        return given, ""
    method, model = answer.scenario.drafting.method, answer.scenario.model.name
    # llama.cpp, without options of a whole command, takes converted files alone
    known = drafter_id(method, model, engine.name) if engine.launch_options else None
    if known is None:
        raise UsageError(
            f"{engine.name} needs the checkpoint of the {method} draft, none is known for {model}: add "
            "--draft-path FOLDER_OR_ID (draft_path= in Python)"
        )
    return known, f"{known} drafts, a published checkpoint: --draft-path names another"


def engine_method(engine: EngineExport, method: str, version: str) -> EngineMethod:
    """A drafting method under the name that this version of the engine gives it.

    Raises UsageError where it has none, and says what to do.
    """
    name, known = engine.name, engine.methods
    if method not in known:
        why = engine.missing_methods.get(method, "its documentation has none")
        others = [name for name, methods in METHODS.items() if method in methods]
        advice = f"export to {' or '.join(others)}" if others else "choose another drafter"
        if method == "eagle" and "eagle3" in known:
            advice = f"{advice}; with an EAGLE-3 checkpoint say --drafter eagle3"
        if method == "medusa":
            advice = "train an EAGLE-3 or DFlash drafter, which engines serve (vllm still loads Medusa heads)"
        raise UsageError(f"{name} has no {method} speculation ({why}; it has {', '.join(known)}); {advice}")
    method_of = known[method]
    if method_of.versions and version not in method_of.versions:
        raise UsageError(
            f"{name} {version} has no {method} speculation; give --engine-version {method_of.versions[0]}, "
            "which has"
        )
    return method_of


def _acceptance_note(answer: Recommendation) -> tuple[str, ...]:
    """Says so where acceptance was measured with another drafter than the one that is launched."""
    method, name = answer.scenario.drafting.method, answer.scenario.profile.name
    own = next((kind.name for kind in drafters().values() if name.startswith(kind.profiles[0])), method)
    if own == method:
        return ()
    return (
        f"{method} is launched, but acceptance {name} was measured with {own}: take --drafter {own}, or "
        "measure yours",
    )


def _latency_note(answer: Recommendation) -> tuple[str, ...]:
    """Batches that the limit of latency rules out, which the settings do not."""
    late = [row for row in answer.schedule if row.meets_latency is False]
    if not late:
        return ()
    text = ", ".join(f"{row.batch_min}..{row.batch_max} at length {row.seq_len}" for row in late)
    return (f"batch {text}: no way of running stays within {answer.question.max_latency_ms:g} ms a token",)


def _gpu_notes(answer: Recommendation, engine: str) -> tuple[str, ...]:
    """The options that share the model among GPUs, which the settings leave to the reader."""
    parallel = answer.scenario.parallel
    if parallel == ONE:
        return ()
    known = exports().get(engine)
    options = [] if known is None else known.of_gpus(parallel)
    return (
        f"computed for {answer.scenario.gpus_text}: start the engine with {' '.join(options) or 'as many'}",
    )
