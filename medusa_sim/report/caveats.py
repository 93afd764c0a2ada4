"""What a reader of a sweep must know before trusting it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from medusa_sim.acceptance.profile import AcceptanceProfile
from medusa_sim.plan.scenario import Scenario
from medusa_sim.report.numbers import percent
from medusa_sim.specs.fitted import Fit
from medusa_sim.step.workload import Grid


def caveats(settings: Sequence[Scenario], grid: Grid) -> Iterator[str]:
    """One sentence each, those that apply to these settings and this grid."""
    yield (
        "Every time is a prediction. The 80 % interval joins the scatter of kernel times on shapes that the "
        "fit had not seen with the uncertainty of the acceptance profile; it does not cover another engine, "
        "another clock or another driver."
    )
    for item in settings:
        yield from (f"{line[:1].upper()}{line[1:]}." for line in item.warnings)
        yield from _latency_caveats(item)
    profiles = {item.profile.name: item.profile for item in settings}
    for profile in profiles.values():
        yield (
            f"Tokens per step come from `{profile.name}` ({profile.source}), whatever the GPU and model: "
            "measure your own model's acceptance before relying on the speedup. Step times do not depend "
            "on it."
        )
    if any(item.scope == "block" for item in settings):
        yield (
            "Scope `block` is the Medusa paper's simplified block: no norms, output projection, LM head or "
            "drafter."
        )
    if any(item.baseline == "fixed" for item in settings):
        yield (
            "Baseline `fixed` divides every step by one decode step at batch 1 and length 1024, as the "
            "paper's plots do; it is no throughput ratio."
        )
    longest = int(grid.seq_len.max())
    for item in settings:
        model = item.model
        if longest > model.max_seq_len:
            yield (
                f"`{model.name}` is published for lengths up to {model.max_seq_len}; the grid goes to "
                f"{longest}."
            )


def acceptance_basis(profile: AcceptanceProfile) -> list[str]:
    """What a profile counts where that is not what a running system accepts."""
    if profile.agreement != "teacher-forced":
        return []
    return [
        f"Acceptance {profile.name} is agreement with a text (teacher-forced), not what a running system "
        "accepts: measure it on the model's own output."
    ]


def _latency_caveats(item: Scenario) -> Iterator[str]:
    name = item.latency.name
    if name == "roofline":
        yield (
            f"`{item.gpu.name}`: the roofline is a floor; it falls 31 to 45 % short of measured linear "
            "layers (docs/method.md)."
        )
    if name != "calibrated":
        return
    gemm = item.linear_fit
    if gemm is not None:
        yield f"Linear layers of `{item.gpu.name}` ({item.kernels}): {_fit_text(gemm)}."
    if item.backend is not None:
        yield (
            f"Verification attends with {item.backend.name} ({item.backend.source}); few rows of it with 2 "
            "to 128 queries are public: its time is put together from decode and prefill kernels where "
            "keys are split, and follows rows of an RTX 3090 where they are not."
        )


def _fit_text(fit: Fit) -> str:
    return (
        f"mean error {percent(fit.fit_error)} on the {fit.rows} rows of the fit, "
        f"{percent(fit.heldout_error)} on held-out shapes"
    )
