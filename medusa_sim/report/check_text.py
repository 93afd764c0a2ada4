"""A check of a running engine for people, as a sentence, as a table and in full precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from medusa_sim.plan.check import CheckedPart, EngineCheck
from medusa_sim.report.measured_text import measured_facts
from medusa_sim.report.quantity_table import quantity_table, shown
from medusa_sim.report.scenario_text import acceptance_facts, asked_text, kernel_facts
from medusa_sim.report.screen import Fact, Screen
from medusa_sim.report.text import TextTable, capitalised, drafts_text, duration, significant
from medusa_sim.report.workload_text import workload_text

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What `medusa-sim check` answers; `sentence` says it, `frame` and `values` carry the numbers."""

    check: EngineCheck

    @property
    def is_inside(self) -> bool:
        """Whether every part that was measured is inside its band."""
        return self.check.is_inside

    @property
    def off(self) -> tuple[str, ...]:
        """Names of the parts outside their bands, slow ones first."""
        return tuple(part.name for part in self.check.off)

    @property
    def sentence(self) -> str:
        """The verdict, with what to look at next."""
        check, run = self.check, self.check.run
        workload = workload_text(check.scenario, [run.seq_len], str(run.batch))
        whole = (
            f"{duration(run.time_us)} a token ({workload}), predicted {duration(check.predicted_us)} "
            f"({duration(check.low_us)} to {duration(check.high_us)})"
        )
        if run.undescribed:
            whole += f", acceptance {self._as_measured}"
        if check.is_inside:
            return f"{self._verdict}: {whole}."
        first, *others = check.off
        also = "".join(f"; also {_part_text(check, part)}" for part in others)
        steps = "; then ".join(_next(check, part) for part in check.off)
        return f"{self._verdict}: {whole}: {_part_text(check, first)}{also}; next: {steps}."

    @property
    def screen(self) -> Screen:
        """All of the answer."""
        check, run = self.check, self.check.run
        whole = (
            f"{duration(run.time_us)} a token, predicted {duration(check.predicted_us)} (80 %: "
            f"{duration(check.low_us)} to {duration(check.high_us)})"
        )
        said = [f"{self._verdict}: {whole}."]
        said += [f"{capitalised(_part_text(check, part))}." for part in check.off]
        facts = [Fact("Look at", _next(check, part)) for part in check.off]
        facts += [*acceptance_facts(check.scenario), *measured_facts(check.scenario)]
        if run.undescribed:
            facts.append(Fact("Acceptance", self._as_measured))
        return Screen(
            asked=asked_text(
                check.scenario, workload_text(check.scenario, [run.seq_len], str(run.batch)),
                drafts_text(run.drafts + 1),
            ),
            answer=(" ".join(said),),
            tables=(self._table,),
            facts=(*facts, *kernel_facts(check.scenario)),
            warnings=tuple(check.warnings),
        )  # fmt: skip

    @property
    def _verdict(self) -> str:
        """Whether the time per token is outside of its band, or a part of it alone."""
        check = self.check
        if check.is_inside:
            return "Inside the band"
        inside = check.low_us <= check.run.time_us <= check.high_us
        return "A part outside of its band" if inside else "Outside of the band"

    @property
    def _as_measured(self) -> str:
        run = self.check.run
        return f"as measured ({run.undescribed} describes fewer than {run.drafts} drafts)"

    @property
    def _table(self) -> TextTable:
        """A row a part: time per token of a request, and its share of the difference."""
        parts = self.check.parts
        columns: dict[str, list[str]] = {
            "part": [str(part.name) for part in parts],
            "measured_us": [shown("measured_us", part.measured_us) for part in parts],
            "predicted_us": [shown("predicted_us", part.predicted_us) for part in parts],
            "interval": [f"{duration(part.low_us)} to {duration(part.high_us)}" for part in parts],
            "costs_us": ["+" * (part.costs_us > 0) + shown("costs_us", part.costs_us) for part in parts],
            "is_off": ["OFF" if part.is_off else "fine" for part in parts],
        }
        return quantity_table(columns, words=("part", "is_off"))

    @property
    def frame(self) -> pd.DataFrame:
        """A row a part, microseconds per token of a request; costs_us: its share of the difference."""
        import pandas as pd

        names = ("name", "measured_us", "predicted_us", "low_us", "high_us", "costs_us", "is_off")
        rows = [[getattr(part, name) for name in names] for part in self.check.parts]
        return pd.DataFrame(rows, columns=["part", *names[1:]])

    @property
    def values(self) -> dict[str, Any]:
        """What the rows do not hold: the verdict and the tokens of a step, in full precision."""
        check, run = self.check, self.check.run
        return {
            "inside": check.is_inside,
            "off": list(self.off),
            "sentence": self.sentence,
            "next": [_next(check, part) for part in check.off],
            "warnings": list(check.warnings),
            "batch": run.batch,
            "seq_len": run.seq_len,
            "drafts": run.drafts,
            "measured_us": run.time_us,
            "predicted_us": check.predicted_us,
            "low_us": check.low_us,
            "high_us": check.high_us,
            "measured_tokens_per_step": run.tokens_per_step,
            "predicted_tokens_per_step": check.tokens_per_step,
            "tokens_per_step_low": check.few,
            "tokens_per_step_high": check.many,
            "measured_accepted": list(run.accepted),
            "predicted_accepted": list(check.accepted),
            "position": check.position,
        }

    def __repr__(self) -> str:
        return self.sentence


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
            f"a step for {significant(check.tokens_per_step, 3)}, {cost} {'more' if slow else 'less'}"
        )
    times = run.tokens_per_step if part.name == "round" else 1.0
    what = "the round" if part.name == "round" else "plain decoding"
    off_us = abs(part.measured_us - part.predicted_us) * times
    text = (
        f"{what} is {duration(off_us)} too {'slow' if slow else 'fast'} "
        f"({duration(part.measured_us * times)} for {duration(part.predicted_us * times)})"
    )
    return f"{text}, {cost}" if run.drafts else text


def _next(check: EngineCheck, part: CheckedPart) -> str:
    backend = check.scenario.backend
    kernel = "the attention backend" if backend is None else f"that attention runs {backend.name}"
    if not part.is_slow:
        return _FAST[part.name]
    if part.name == "plain":
        return "clocks and power limit (nvidia-smi -q -d CLOCK,POWER), other load on the GPU or its host"
    if part.name == "round":
        return f"the engine's log: rounds in a CUDA graph, {kernel}, --kv-dtype as it was started"
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


_FAST = {
    "acceptance": "the prompts, which are easier than the profile's; take them with `acceptance from-engine`",
    "round": "--drafts and --runtime: a shorter draft or a newer engine; else `calibrate engine`",
    "plain": "--gpu, --weight-dtype and --runtime: a faster card, narrower weights or a newer engine",
}
"""What to look at where a part is better than predicted."""
