"""What every export has in common: the text, its notes, and the chain that an engine without trees runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from medusa_sim.errors import UsageError
from medusa_sim.plan.recommend import Recommendation, recommend
from medusa_sim.plan.schedule_row import ScheduleRow


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Settings as text that the engine takes, for one version of it, and what a reader must know."""

    engine: str
    version: str
    text: str
    notes: tuple[str, ...] = ()


def checked_version(engine: str, version: str | None, known: tuple[str, ...]) -> str:
    """The version asked for, or the newest known. `known` holds prefixes such as `0.24`, oldest first.

    Raises UsageError for a version that starts with none of them.
    """
    if version is None:
        return known[-1]
    number = version.removeprefix("v")
    for prefix in known:
        if number == prefix or number.startswith(f"{prefix}."):
            return prefix
    raise UsageError(
        f"{engine} {version}: its settings are not known (known: {', '.join(known)}); their meaning changes "
        "between versions, so check the engine's documentation and edit what the nearest known version gives"
    )


def as_chain(answer: Recommendation) -> tuple[Recommendation, tuple[str, ...]]:
    """The same question answered with chains alone, and what a tree would have gained over them.

    Raises UsageError where the acceptance profile knows no chains.
    """
    if answer.question.chain_only:
        return answer, ()
    question = replace(answer.question, chain_only=True)
    chained = recommend(answer.gpu, answer.setting, answer.drafting, answer.profile, question)
    tree = max((row for row in answer.schedule if row.fits_memory), key=_gain, default=None)
    if tree is None or tree.chain or tree.candidates == 1 or tree.chain_speedup is None:
        return chained, ()
    note = (
        f"this engine verifies chains only: at batch {tree.batch_max}, length {tree.seq_len} the best chain "
        f"gives {tree.chain_speedup:.2f}x, a tree of {tree.candidates} candidates would give "
        f"{tree.speedup:.2f}x ({tree.speedup / tree.chain_speedup - 1.0:+.0%})"
    )
    return chained, (note,)


def _gain(row: ScheduleRow) -> float:
    return row.speedup / row.chain_speedup if row.chain_speedup else 0.0


def speculating(answer: Recommendation, engine: str) -> list[ScheduleRow]:
    """Rows of the schedule over all lengths. Raises UsageError where none speculates."""
    rows = list(answer.schedule_all_lengths)
    if not any(row.candidates > 1 for row in rows):
        raise UsageError(
            f"{engine}: nothing to export, speculation does not pay at batch "
            f"{answer.question.batch_min}..{answer.question.batch_max}; leave it switched off"
        )
    return rows


def needed_draft(answer: Recommendation, engine: str, draft_path: str | None) -> str:
    """The checkpoint of the draft. Raises UsageError where it was not given."""
    if draft_path is None:
        raise UsageError(
            f"{engine} needs the checkpoint of the {answer.drafting.method} draft: "
            "add --draft-path FOLDER_OR_ID"
        )
    return draft_path


def one_length_note(answer: Recommendation) -> tuple[str, ...]:
    """Engines schedule by batch alone; say which lengths were averaged."""
    lengths = answer.question.seq_len
    if len(lengths) == 1:
        return (f"computed at length {lengths[0]}; the engine does not look at the context",)
    listed = ", ".join(map(str, lengths))
    return (
        f"one schedule for lengths {listed} (geometric mean of the speedups): the engine sees no context",
    )
