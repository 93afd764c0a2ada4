"""What every export has in common: the text, its notes, and what engines are told alike."""

from __future__ import annotations

from dataclasses import dataclass, field

from medusa_sim.errors import UsageError
from medusa_sim.export.chains import ChainPlan, Tier
from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.plan.schedule import ScheduleRow


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Settings as text that the engine takes, for one version of it, and what a reader must know.

    plan: drafts by batch; None where the settings are those of a tree.
    """

    engine: str
    version: str
    text: str
    notes: tuple[str, ...] = ()
    plan: ChainPlan | None = field(default=None, repr=False)

    def __str__(self) -> str:
        """The text alone, as it goes into a shell or a file."""
        return self.text


def needed_draft(answer: Recommendation, engine: str, draft_path: str | None) -> str:
    """The checkpoint of the draft. Raises UsageError where it was not given."""
    if draft_path is None:
        raise UsageError(
            f"{engine} needs the checkpoint of the {answer.drafting.method} draft: "
            "add --draft-path FOLDER_OR_ID (draft_path= in Python)"
        )
    return draft_path


def tree_note(answer: Recommendation) -> tuple[str, ...]:
    """What the best searched tree would have gained over the chain that the engine runs instead."""
    trees = [
        row for row in answer.schedule
        if row.fits_memory and not row.chain and row.candidates > 1 and row.chain_speedup is not None
    ]  # fmt: skip
    if not trees:
        return ()
    row = max(trees, key=_gain_over_chain)
    chain_speedup = row.chain_speedup or 1.0
    return (
        f"a chain is written: at batch {row.batch_max}, length {row.seq_len} the best chain gives "
        f"{chain_speedup:.2f}x, a tree of {row.candidates} candidates would give {row.speedup:.2f}x "
        f"({row.speedup / chain_speedup - 1.0:+.0%})",
    )


def _gain_over_chain(row: ScheduleRow) -> float:
    return row.speedup / row.chain_speedup if row.chain_speedup else 0.0


def length_note(answer: Recommendation, cap: str) -> str:
    """Engines schedule by batch alone: which lengths were averaged, and beyond which drafts cost time.

    `cap` is the engine's own setting that limits the length of a request.
    """
    lengths = answer.question.seq_len
    if len(lengths) == 1:
        told = f"computed at length {lengths[0]}; the engine does not look at the context"
    else:
        listed = ", ".join(map(str, lengths))
        told = f"one answer for lengths {listed} (geometric mean of the speedups): the engine sees no context"
    loses = answer.break_even_context.loses_from
    if loses is None or loses <= answer.break_even_context.searched_from:
        return told
    return (
        f"{told}: at batch {answer.question.batch_max} speculation loses from length {loses} on; keep longer "
        f"requests from this server with {cap} {loses - 1} and run them on one without a drafter"
    )


def range_notes(plan: ChainPlan, cap: str) -> tuple[str, ...]:
    """What happens outside the searched batches: in every engine the nearest tier goes on.

    `cap` is the engine's own setting that limits the batch.
    """
    batch, last = plan.grid.batch, plan.tiers[-1]
    notes = []
    if batch[0] > 1:
        notes.append(f"batches below {batch[0]} were not searched and run as {batch[0]} does")
    what = f"the last number of drafts ({last.drafts}) goes on" if last.drafts else "speculation stays off"
    if plan.grid.memory_limited:
        notes.append(f"batches above {batch[-1]} do not fit in memory at this length; shorter ones: {what}")
    else:
        notes.append(
            f"batches above {batch[-1]} were not searched: {what} there; search further with --batch 1..N, "
            f"or keep the batch below with {cap} {batch[-1]}"
        )
    if plan.loses:
        worst = min(
            plan.grid.speedup(int(n), plan.drafts_at(int(n)))
            for first, to in plan.loses for n in batch[(batch >= first) & (batch <= to)]
        )  # fmt: skip
        told = ", ".join(f"{first}..{to}" for first, to in plan.loses)
        first, to = plan.loses[-1]
        limit = f"limit the batch with {cap} {first - 1}, or " if to == batch[-1] and first > batch[0] else ""
        notes.append(
            f"at batch {told} this is no faster than no speculation (down to {worst:.2f}x): {limit}serve "
            "such batches without it"
        )
    return tuple(notes)


def tier_notes(plan: ChainPlan, why: str) -> tuple[str, ...]:
    """What a schedule by batch would be, where one number of drafts is written instead, and `why`."""
    if plan.dynamic or len(plan.possible) == 1:
        return ()
    told = told_tiers(plan.possible)
    return (f"one number of drafts for every batch: {plan.drafts}; by batch it would be {told}, but {why}",)


def told_tiers(tiers: tuple[Tier, ...]) -> str:
    """`4 at 1..16, 2 at 17..64, off at 65..256`."""
    return ", ".join(f"{tier.drafts or 'off'} at {tier.batch_min}..{tier.batch_max}" for tier in tiers)


def too_small(plan: ChainPlan, margin: float) -> str:
    """The reason that a schedule gains less than it costs."""
    return f"that gains {plan.gain:.1%} where it must gain {margin:.1%} to pay for switching"
