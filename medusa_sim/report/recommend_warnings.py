"""What an engineer must not overlook in a recommendation, one line each."""

from __future__ import annotations

from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.report.caveats import shortfall_text
from medusa_sim.report.recommend_reason import counted
from medusa_sim.report.sweep_text import slower_format
from medusa_sim.report.text import span, times


def warnings(answer: Recommendation) -> list[str]:
    """Places where speculation loses, does not fit or is uncertain, then what the answer rests on."""
    told = []
    for row in answer.schedule:
        where = f"batch {span(row.batch_min, row.batch_max)}, length {row.seq_len}"
        if not row.fits_memory:
            if most := row.max_batch_without:  # where nothing fits, what is missing says so
                told.append(f"{where}: does not fit even without speculation; at most batch {most} fits")
        elif row.candidates == 1 and row.speculative_speedup <= 1.0:
            told.append(
                f"{where}: speculation LOSES here ({times(row.speculative_speedup)} at best); switch it off"
            )
        elif row.candidates == 1:
            told.append(f"{where}: speculation would pay but its drafter leaves no room in memory")
        elif row.candidates > 1 and row.speedup_low < 1.0:
            told.append(
                f"{where}: the gain is not certain, the 80 % interval {row.speedup_low:.2f}-"
                f"{row.speedup_high:.2f} includes a loss"
            )
        if row.meets_latency is False:
            limit = answer.question.max_latency_ms
            told.append(f"{where}: a token takes longer than {limit:g} ms, with or without speculation")
    if answer.shortfall is not None:
        told.append(shortfall_text(answer.shortfall))
    return told + slower_format(answer.surface) + _model_warnings(answer)


def _model_warnings(answer: Recommendation) -> list[str]:
    told = [*answer.scenario.warnings]
    if any(row.ends_profile for row in answer.schedule):
        told.append(
            f"acceptance {answer.profile.name} ends at {counted(answer, int(answer.surface.counts[-1]))}, "
            "which is the best of all it describes: more may pay"
        )
    if answer.profile.heads is None:
        told.append(
            f"acceptance {answer.profile.name} is a curve: the tree itself and the number of heads worth "
            "running are not known; give your heads' accuracies with --acceptance FILE"
        )
    if answer.setting.latency.name == "roofline":
        told.append(
            "latency roofline: datasheet limits without any fitted kernel, optimistic at large counts"
        )
    if answer.setting.runtime.host_us_per_launch > 0.0:
        told.append(
            f"runtime {answer.setting.runtime.name} is bound by its host, which hides what more "
            "candidates cost the device; code that waits for the device while accepting hides "
            "less (docs/accuracy.md, Table 1)"
        )
    longest = max(answer.question.seq_len)
    if longest > answer.setting.model.max_seq_len:
        told.append(
            f"length {longest} is beyond the {answer.setting.model.max_seq_len} positions of "
            f"{answer.setting.model.name}"
        )
    return told
