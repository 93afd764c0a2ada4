"""Commands with which a user checks the answer on the same engine: without speculation, and with it.

Acceptance is made synthetic, so that the engine accepts exactly what was assumed and what is compared is the
time of its steps: vLLM `rejection_sample_method` synthetic (unconditional rates by position), SGLang
`SGLANG_SIMULATE_ACC_LEN` (counts the bonus token), TensorRT-LLM `TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS`
(does not, and takes whole numbers alone before 1.4), llama.cpp `--spec-synth-rates` (as vLLM). SGLang and
TensorRT-LLM force one length at every batch, so each number of drafts of a schedule is run in a server of its
own. The results are what `calibrate engine` reads, of llama.cpp `check`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

from medusa_sim.errors import UsageError
from medusa_sim.export import exports
from medusa_sim.export.chains import ChainPlan
from medusa_sim.export.settings import Chosen, EngineExport, EngineSettings
from medusa_sim.outside.escaping import for_comment, for_shell
from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.scenario.arguments import ARGUMENTS

_OUTPUT_TOKENS = 256
_PROMPTS_PER_REQUEST = 8
_OF_THE_SERVER = ("dtype", "weight_dtype", "kv_dtype", "tp", "ep", "dp_attention")
"""Arguments of the set-up that both runs have, beside GPU, model and engine."""


def ab_script(answer: Recommendation, settings: EngineSettings) -> str:
    """A shell script with both runs, the predicted speedups beside them, and the comparison at the end.

    Raises UsageError for an engine without synthetic acceptance, and for trees, whose acceptance by position
    cannot be given to an engine.
    """
    name, plan, chosen = settings.engine, settings.plan, settings.chosen
    engine = exports().get(name)
    if engine is None or not engine.serve_command or chosen is None:
        known = ", ".join(each.name for each in exports().values() if each.serve_command)
        raise UsageError(f"{name} has no synthetic acceptance to check with; --ab knows {known}")
    if chosen.drafter in engine.never_synthetic:
        checked = ", ".join(method for method in engine.methods if method not in engine.never_synthetic)
        raise UsageError(
            f"{name} forces no acceptance of {chosen.drafter}; --ab checks {checked} there, or any chain "
            "with --export vllm"
        )
    if plan is None:
        raise UsageError(f"{name}: synthetic acceptance is for chains; add --chain-only to check a chain")
    if answer.scenario.parallel.dp_attention and not engine.takes_dp_attention:
        raise UsageError(
            f"{name}: --ab writes no file for its data-parallel attention; leave --dp-attention out"
        )
    scenario, length = answer.scenario, answer.question.seq_len[0]
    if scenario.traffic is not None and length > scenario.length:
        raise UsageError(
            f"--ab with --seq {length}: benchmarks send prompts alone, without the cached prefix that makes "
            f"requests of {scenario.length} tokens so long; leave out --seq"
        )
    parts = _parts(engine, chosen)
    lines = [
        for_comment(f"# {name} {settings.version} without and with speculation, acceptance made synthetic"),
        for_comment(f"MODEL=...  # the checkpoint of {answer.scenario.model.name}"),
        *(f"# predicted at batch {batch}: {speedup:.2f}x, {length:.2f} tokens a step"
          for batch, speedup, length in predictions(engine, chosen, plan)),
        "",
        "# A: no speculation",
        f"{engine.server(chosen)} &",
        *_bench(engine, answer, batches(plan), "plain"),
        "",
        *(line for part in parts for line in _speculating(engine, part, batches(plan))),
        "# the speedup is the ratio of output tokens per second; "
        + ("the last line compares both" if engine.is_local else "the same files calibrate a runtime"),
        f"medusa-sim {'check' if engine.is_local else 'calibrate engine'} {_read(engine, parts[0])}",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _read(engine: EngineExport, part: Chosen) -> str:
    """Files and settings that are compared, or that a runtime is fitted to: the plain runs, and those of one
    number of drafts.

    Clients of engines that force one length do not write how many drafts a step has.
    """
    scenario, draft = part.answer.scenario, part.answer.scenario.drafting.parts.draft
    told = {
        "gpu": scenario.gpu.name,
        "model": scenario.model.name,
        "runtime": scenario.runtime.name if engine.is_local else engine.name,
        "drafter": part.drafter,
        "draft-model": None if draft is None else draft.name,
        "drafts": str(part.plan.drafts) if engine.is_local or not engine.synthetic_by_position else None,
        "name": None if engine.is_local else "mine",
    }
    options = [f"--{name} {for_shell(value)}" for name, value in told.items() if value]
    known = (*_OF_THE_SERVER, "acceptance") if engine.is_local else _OF_THE_SERVER
    given = {name: getattr(scenario.arguments, name) for name in known}
    options += [
        shlex.join(ARGUMENTS[name].words(value))
        for name, value in given.items()
        if value != ARGUMENTS[name].default
    ]
    return " ".join(["plain_*.json*", f"{_label(part)}_*.json*", *options])


def _label(part: Chosen) -> str:
    """How names of the files of a part begin."""
    return f"spec{part.plan.drafts}"


def batches(plan: ChainPlan) -> tuple[int, ...]:
    """Batches to run: the ends of what was searched, of every tier, and one in the middle."""
    grid = plan.grid.batch
    middle = int(grid[grid.searchsorted(round(float(grid[0] * grid[-1]) ** 0.5))])
    ends = [tier.batch_max for tier in plan.tiers]
    return tuple(sorted({int(grid[0]), middle, int(grid[-1]), *ends}))


def acceptance_length(plan: ChainPlan, batch: int) -> float:
    """Tokens per step that the plan's rates give at a batch, the bonus token included."""
    return 1.0 + sum(plan.rates[: plan.drafts_at(batch)])


def predictions(engine: EngineExport, chosen: Chosen, plan: ChainPlan) -> Iterator[tuple[int, float, float]]:
    """(batch, speedup, tokens a step) of each run, with the acceptance that the engine can be made to have.

    A step takes as long whatever it accepts, so that the speedup grows as the tokens do.
    """
    for batch in batches(plan):
        length, drafts = acceptance_length(plan, batch), plan.drafts_at(batch)
        forced = engine.nearest_length(chosen.version, length) if drafts else length
        yield batch, plan.grid.speedup(batch, drafts) * forced / length, forced


def _parts(engine: EngineExport, chosen: Chosen) -> tuple[Chosen, ...]:
    """Parts of an A/B test, one server each: the whole schedule, or one number of drafts a part."""
    plan = chosen.plan
    if engine.synthetic_by_position or not plan.dynamic:
        return (chosen,)
    return tuple(
        replace(
            chosen,
            plan=replace(plan, drafts=tier.drafts, tiers=(tier,), rates=plan.rates[: tier.drafts]),
        )
        for tier in plan.tiers
        if tier.drafts
    )


def _speculating(engine: EngineExport, part: Chosen, every: Sequence[int]) -> Iterator[str]:
    """The server of a part and its runs, at those of `every` batch that its tiers hold."""
    plan = part.plan
    first, last = plan.tiers[0].batch_min, plan.tiers[-1].batch_max
    held = [batch for batch in every if first <= batch <= last]
    yield f"# B: speculation, batch {first} to {last} (stop the server before it first)"
    yield from engine.synthetic(part, engine.nearest_length(part.version, acceptance_length(plan, first)))
    yield from _bench(engine, part.answer, held, _label(part))
    yield ""


def _bench(engine: EngineExport, answer: Recommendation, every: Sequence[int], label: str) -> Iterator[str]:
    """Runs at (prompt, output) tokens whose middle context is the length that was asked for."""
    length = answer.question.seq_len[0]
    output = min(_OUTPUT_TOKENS, max(length // 2, 1))
    prompt, output = answer.question.request or (max(length - output // 2, 1), output)
    for batch in every:
        common = (
            f"--dataset-name random --random-input-len {prompt} --random-output-len {output} "
            f"--max-concurrency {batch} --num-prompts {_PROMPTS_PER_REQUEST * batch}"
        )
        yield engine.bench_command.format(
            port=engine.port, common=common, prompt=prompt, output=output, name=f"{label}_b{batch}"
        )
