"""Policies by their names, those of engines among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from medusa_sim.errors import UsageError, shown
from medusa_sim.load.arguments import NO_DRAFTS
from medusa_sim.load.policies import (
    Adaptive,
    Budget,
    BySize,
    Fixed,
    Policy,
    ThroughputAware,
    schedule_for,
)
from medusa_sim.load.step_table import StepTable

ENGINE_NAMES = {
    "num_speculative_tokens_per_batch_size": "schedule",
    "speculative-adaptive": "adaptive",
    "draft_len_schedule": "schedule",
}
"""Settings of vLLM, SGLang and TensorRT-LLM that mean one of the policies here."""
NOT_SIMULATED = {
    "priority": "requests are served first come, first served",
    "enable_adaptive_verification": "vLLM picks drafts by the drafter's logits, which are not drawn",
}
"""Names that engines have, and why they mean nothing here."""
_COMPUTED: dict[str, Callable[[StepTable, float], Policy]] = {
    "schedule": schedule_for,
    "adaptive": lambda table, _length: Adaptive(tiers=_tiers(table)),
    "throughput_aware": lambda table, _length: ThroughputAware(
        step_s=table.step_s[:, :, 0], tiers=_tiers(table)
    ),
    "budget": lambda table, _length: Budget.from_table(table),
}
"""Policies by name, made from a table and a typical length."""
_SCHEDULE, *_OTHERS = _COMPUTED
NAMES = (NO_DRAFTS, "K", _SCHEDULE, "schedule=1:5,32:3,96:0", "draft_len_schedule=31:5,95:3", *_OTHERS)
"""Forms of a policy's name; K is a whole number."""
_UP_TO = "draft_len_schedule"
"""TensorRT-LLM's form: drafts up to so many requests, none beyond the last (pull request 10860)."""


def name_here(name: str) -> str:
    """Our name of a policy, whatever an engine calls it: `3` is `K=3`. Raises UsageError."""
    name = name.strip()
    name = ENGINE_NAMES.get(name, name)
    policy = _given(name)
    return name if policy is None else policy.name


def drafts_asked(names: Sequence[str], known: int) -> int:
    """Longest draft that policies of these names may run, of the `known` ones of the scenario.

    Raises UsageError for a name that means nothing, or that asks for more drafts.
    """
    longest = 0
    for name in names:
        policy = _given(name)
        if policy is None:
            longest = known
            continue
        most = policy.count if isinstance(policy, Fixed) else max(drafts for _, drafts in policy.entries)
        if most > known:
            raise UsageError(
                f"policy {shown(name)} drafts {most} tokens and the acceptance describes {known}: choose "
                "fewer, or a profile measured further out"
            )
        longest = max(longest, min(policy.longest, known))
    return longest


def never_drafts(names: Sequence[str]) -> bool:
    """Whether all of these names are `none`, which takes no drafter."""
    return all(_given(name) == Fixed(0) for name in names)


def policy_of(name: str, table: StepTable, length: float) -> Policy:
    """The policy of a name that `drafts_asked` let pass. length: typical committed tokens of a request.

    Raises UsageError for a name that means nothing.
    """
    return _given(name) or _COMPUTED[name](table, length)


def _tiers(table: StepTable) -> tuple[int, ...]:
    """SGLang's numbers of drafts, as far as the table goes."""
    return tuple(sorted({min(tier, table.drafts_max) for tier in (1, 3, 7)}))


def _given(name: str) -> Fixed | BySize | None:
    """The policy whose drafts its name gives; None where they are computed. Raises UsageError."""
    if name in _COMPUTED:
        return None
    if name == NO_DRAFTS:
        return Fixed(0)
    count = name.removeprefix("K=").removeprefix("k=")
    if count.isascii() and count.isdigit() and len(count) < 4:
        return Fixed(int(count))
    if name in NOT_SIMULATED:
        raise UsageError(
            f"policy {shown(name)} is not simulated: {NOT_SIMULATED[name]}; give one of {', '.join(NAMES)}"
        )
    kind, _, entries = name.partition("=")
    if kind not in (_SCHEDULE, _UP_TO):
        raise UsageError(f"policy {shown(name)}: give one of {', '.join(NAMES)}")
    return BySize(_entries(name, entries, up_to=kind == _UP_TO), name=name)


def _entries(name: str, text: str, *, up_to: bool) -> tuple[tuple[int, int], ...]:
    """(first requests, drafts) of `1:5,32:3`; up_to: the last requests are given instead. UsageError."""
    try:
        pairs = [tuple(int(part) for part in entry.split(":")) for entry in text.split(",")]
        entries = tuple((requests, drafts) for requests, drafts in pairs)
    except ValueError:
        raise UsageError(f"policy {shown(name)}: entries are REQUESTS:DRAFTS, as in 1:5,32:3,96:0") from None
    if up_to:
        firsts = (1, *(last + 1 for last, _ in entries))
        entries = tuple(zip(firsts, (*(drafts for _, drafts in entries), 0), strict=True))
    firsts = tuple(first for first, _ in entries)
    if firsts[0] != 1 or list(firsts) != sorted(set(firsts)) or min(drafts for _, drafts in entries) < 0:
        raise UsageError(f"policy {shown(name)}: entries rise from 1 request, as in 1:5,32:3,96:0")
    return entries
