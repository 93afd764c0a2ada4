"""A check of a running engine for people: the answer, the parts as a table, what to look at next."""

from __future__ import annotations

from medusa_sim.plan.check import CheckedPart, EngineCheck
from medusa_sim.report.quantity_table import quantity_table, quantity_text
from medusa_sim.report.screen import Fact, Screen
from medusa_sim.report.table import TextTable
from medusa_sim.report.words.measured import measured_facts
from medusa_sim.report.words.numbers import capitalised, drafts_text, duration, significant
from medusa_sim.report.words.scenario import acceptance_facts, asked_text, kernel_facts, workload_text

_FAST = {
    "acceptance": "the prompts, which are easier than the profile's; take them with `acceptance from-engine`",
    "round": "--drafts and --runtime: a shorter draft or a newer engine; else `calibrate engine`",
    "plain": "--gpu, --weight-dtype and --runtime: a faster GPU, narrower weights or a newer engine",
}
"""Next steps for a part that is faster than predicted."""


def check_screen(check: EngineCheck) -> Screen:
    """All of the answer."""
    run = check.run
    facts = [Fact("Look at", next_text(check, part)) for part in check.off]
    facts += [*acceptance_facts(check.scenario, run.drafts + 1), *measured_facts(check.scenario)]
    if run.shorter_profile:
        facts.append(Fact("Acceptance", _as_measured(check)))
    return Screen(
        asked=headline(check),
        answer=answer_lines(check),
        tables=(parts_table(check),),
        facts=(*facts, *kernel_facts(check.scenario)),
        warnings=tuple(check.warnings),
    )


def headline(check: EngineCheck) -> str:
    """The run in one line: requests, set-up and drafts."""
    run = check.run
    workload = workload_text(check.scenario, [run.seq_len], str(run.batch))
    return asked_text(check.scenario, workload, drafts_text(run.drafts + 1))


def sentence(check: EngineCheck) -> str:
    """The run, the answer, and the next step."""
    lines = [f"{headline(check)}.", *answer_lines(check)]
    if check.run.shorter_profile:
        lines.append(f"Acceptance is {_as_measured(check)}.")
    if check.off:
        lines.append(f"Next: {'; then '.join(next_text(check, part) for part in check.off)}.")
    return " ".join(lines)


def answer_lines(check: EngineCheck) -> tuple[str, ...]:
    """Whether it is inside its band, with the time per token, then a line for each part that is off."""
    token = (
        f"{duration(check.run.time_us)} a token, predicted {duration(check.predicted_us)} (80 %: "
        f"{duration(check.low_us)} to {duration(check.high_us)})"
    )
    parts = (f"{capitalised(_part_text(check, part))}." for part in check.off)
    return (f"{_inside(check)}: {token}.", *parts)


def _inside(check: EngineCheck) -> str:
    """Whether the time per token, or only a part of it, is outside its band."""
    if check.is_inside:
        return "Inside the band"
    inside = check.low_us <= check.run.time_us <= check.high_us
    return "A part is outside its band" if inside else "Outside the band"


def _as_measured(check: EngineCheck) -> str:
    run = check.run
    return f"as measured ({run.shorter_profile} describes fewer than {run.drafts} drafts)"


def parts_table(check: EngineCheck) -> TextTable:
    """A row a part: time per token of a request, and its share of the difference."""
    parts = check.parts
    columns: dict[str, list[str]] = {
        "part": [str(part.name) for part in parts],
        "measured_us": [quantity_text("measured_us", part.measured_us) for part in parts],
        "predicted_us": [quantity_text("predicted_us", part.predicted_us) for part in parts],
        "interval": [f"{duration(part.low_us)} to {duration(part.high_us)}" for part in parts],
        "costs_us": ["+" * (part.costs_us > 0) + quantity_text("costs_us", part.costs_us) for part in parts],
        "is_off": ["outside" if part.is_off else "inside" for part in parts],
    }
    return quantity_table(columns, words=("part", "is_off"))


def _part_text(check: EngineCheck, part: CheckedPart) -> str:
    """One part that is off, with its milliseconds."""
    run = check.run
    slow = part.is_slow
    cost = f"{duration(abs(part.costs_us))} a token"
    if part.name == "acceptance":
        where = ""
        if (k := check.position) is not None:
            where = f" at position {k} ({run.accepted[k]:.2f} of the steps, profile {check.accepted[k]:.2f})"
        return (
            f"acceptance is {'low' if slow else 'high'}{where}: {significant(run.tokens_per_step, 3)} tokens "
            f"a step, {significant(check.tokens_per_step, 3)} predicted, which is {cost} "
            f"{'more' if slow else 'less'}"
        )
    times = run.tokens_per_step if part.name == "round" else 1.0
    what = "the round" if part.name == "round" else "plain decoding"
    off_us = abs(part.measured_us - part.predicted_us) * times
    text = (
        f"{what} is {duration(off_us)} too {'slow' if slow else 'fast'} "
        f"({duration(part.measured_us * times)}, predicted {duration(part.predicted_us * times)})"
    )
    if not run.drafts:
        return text
    return f"{text}, which is {cost}" if part.costs_us else f"{text}, which the round does not show"


def next_text(check: EngineCheck, part: CheckedPart) -> str:
    """Next step for a part that is off."""
    backend = check.scenario.backend
    kernel = "the attention backend" if backend is None else f"that attention runs {backend.name}"
    if not part.is_slow:
        return _FAST[part.name]
    if part.name == "plain":
        return "clocks and power limit (nvidia-smi -q -d CLOCK,POWER), other load on the GPU or its host"
    if part.name == "round":
        return f"the engine's log: that rounds run in a CUDA graph, {kernel}, the format of the KV cache"
    if check.position is None:
        return (
            "acceptance by position (the engine's /metrics page, --counters), the drafter and chat template"
        )
    if check.position == 0:
        return "the drafter (trained for this very model?) and the chat template of the prompts"
    return (
        "the sampling temperature and the kind of prompts, which the profile may not have been taken at, and "
        "whether the drafter was trained for so many drafts"
    )
