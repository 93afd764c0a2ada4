"""The Python face: a scenario that answers with pandas frames and sentences. `import medusa_sim as ms`.

Numbers are those of the command line, from the same functions; errors are `medusa_sim.errors`, with the
command line's sentences.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medusa_sim.data import DataDir
from medusa_sim.doubts.of_answer import answer_doubts
from medusa_sim.doubts.of_scenario import scenario_doubts
from medusa_sim.engines.runtime import Runtime, load_runtime
from medusa_sim.errors import UsageError, check_kind, shown, unknown_name
from medusa_sim.gpus.gpu import Gpu, load_gpu
from medusa_sim.grid.axes import Grid
from medusa_sim.grid.single_step import SingleStep, single_step
from medusa_sim.grid.sweep import sweep as sweep_tables
from medusa_sim.load.arguments import DEFAULT_POLICIES, LOAD
from medusa_sim.models.model import Model
from medusa_sim.plan.recommend import recommend as recommended
from medusa_sim.report.recommend.python import RecommendResult
from medusa_sim.scenario.arguments import ARGUMENTS, words_of
from medusa_sim.scenario.axis_values import Sizes, as_list, names, numbers, whole_numbers
from medusa_sim.scenario.declare import FLAG, NUMBER, RUNTIME, Argument, check, declared
from medusa_sim.scenario.defaults import (
    ALONE,
    DEFAULT_BATCHES,
    DEFAULT_CANDIDATES,
    DEFAULT_GPU,
    DEFAULT_MODEL,
)
from medusa_sim.scenario.question import QUESTION, Question
from medusa_sim.scenario.scenario import Scenario as ScenarioAlone
from medusa_sim.setups.question import NAMES, SIZES
from medusa_sim.step.rows import predicted_rows

if TYPE_CHECKING:
    import pandas as pd

    from medusa_sim.latency.by_name import Fallback, LatencyName
    from medusa_sim.load.policies import Policy
    from medusa_sim.report.check.python import CheckResult
    from medusa_sim.report.compare.python import CompareResult
    from medusa_sim.report.load.python import LoadResult


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Scenario(ScenarioAlone):
    """What is run where, with a method for each question; its arguments are `scenario.arguments.Arguments`.

    It is the scenario that every room takes. The methods stand here, since a room imports only those above it
    and what answers lies below `scenario`.

    `sweep`, `recommend`, `step` and `check` answer about it. `but` gives another one with some arguments
    changed.
    """

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the scenario rests on that was not measured for it, a sentence each."""
        return scenario_doubts(self)

    def sweep(
        self, batch: Sizes = 1, seq_len: Sizes | None = None, candidates: Sizes = DEFAULT_CANDIDATES
    ) -> pd.DataFrame:
        """The rows of `medusa-sim sweep`: one for each batch, length (committed tokens) and count.

        seq_len None: of a request its prompt and half its output, else 1024, as everywhere below.
        Columns have their unit in their name; `attrs["warnings"]` lists what to know. Counts that the
        acceptance does not describe have no rows. Raises UsageError for sizes below 1, CoverageError where
        no count is described.
        """
        import pandas as pd

        lengths = self.lengths(() if seq_len is None else whole_numbers("seq_len", seq_len))
        axes = {"batch": batch, "seq_len": lengths, "candidates": candidates}
        grid = Grid.of(*(whole_numbers(name, sizes) for name, sizes in axes.items()))
        tables = [table.pandas() for table in sweep_tables([self], grid)]
        frame: pd.DataFrame = pd.concat(tables, ignore_index=True)
        missing = sorted(set(grid.candidates.tolist()) - set(frame["candidates"].unique().tolist()))
        ends = f"no rows for candidates {missing}: acceptance {self.profile.name} ends before"
        beyond = answer_doubts(self, int(grid.seq_len.max()), (int(grid.batch.min()), int(grid.batch.max())))
        frame.attrs["warnings"] = [
            *scenario_doubts(self, int(grid.candidates.max())),
            *([ends] if missing else []),
            *beyond,
        ]
        return frame

    def recommend(
        self,
        batch: Sizes = DEFAULT_BATCHES,
        seq_len: Sizes | None = None,
        *,
        request: tuple[int, int] | None = None,
        **question: Any,
    ) -> RecommendResult:
        """What `medusa-sim recommend` answers for every batch from the smallest to the largest given.

        request: (prompt, output) tokens, in the place of the scenario's; speedups and rates are the
        server's then. question: further fields
        of `medusa_sim.scenario.question.Question` (objective, max_latency_ms, candidates_max, ...). Raises
        UsageError for a question that makes no sense.
        """
        batches = whole_numbers("batch", batch)
        check(question, QUESTION, "part of the question")
        if request is not None:
            prompt_output = whole_numbers("request", request)
            if len(prompt_output) != 2 or min(prompt_output) < 1:
                raise UsageError(f"request {shown(request)}: (prompt, output) tokens are needed")
            request = (prompt_output[0], prompt_output[1])
        lengths = [] if seq_len is None else whole_numbers("seq_len", seq_len)
        for name, given in (("batch", batches), ("seq_len", None if seq_len is None else lengths)):
            if given == []:
                raise UsageError(f"{name} is empty: give at least one whole number from 1")
        asked = Question(
            batch_min=min(batches),
            batch_max=max(batches),
            seq_len=tuple(lengths),
            request=request,
            **question,
        )
        return RecommendResult(answer=recommended(self, asked))

    def simulate(
        self,
        policies: str | int | Policy | Sequence[str | int | Policy] = DEFAULT_POLICIES,
        rates: float | Iterable[float] | None = None,
        *,
        search: bool = True,
        target_rate: float | None = None,
        **load: Any,
    ) -> LoadResult:
        """Requests over time under policies of speculation, as `medusa-sim load`.

        policies: names, numbers of drafts, or policies of your own (derived from
        `medusa_sim.load.policies.Policy`). rates: requests a second (None: the trace's own, else shares of
        what is carried). search: find what each policy carries. load: arguments of
        `medusa_sim.load.arguments.LoadArguments`: trace, users, requests, prompt_tokens, tpot_ms, seeds, ...
        Raises UsageError or DataError for what makes no sense.
        """
        from medusa_sim.load.answer import run_load
        from medusa_sim.load.load_test import load_test
        from medusa_sim.report.load.python import LoadResult

        several = policies if isinstance(policies, Sequence) and not isinstance(policies, str) else [policies]
        named = [str(each) if isinstance(each, int) else each for each in several]
        asked = None if rates is None else numbers("rates", rates)
        check_kind("search", search, FLAG.wanted, FLAG.allowed)
        if target_rate is not None:
            check_kind("target_rate", target_rate, NUMBER.wanted, NUMBER.allowed)
        test = load_test(self, policies=named, **load)
        return LoadResult(answer=run_load(test, asked, search=search, target_rate=target_rate))

    def check(
        self,
        bench: Sequence[str | Path] | str | Path = (),
        *,
        counters: str | Path | None = None,
        before: str | Path | None = None,
        **measured: Any,
    ) -> CheckResult:
        """A running engine compared with its prediction, as `medusa-sim check`: inside its band, or not.

        bench: files of load generators; counters: what the engine counted, a file (before: the page that came
        first). measured: by hand, `medusa_sim.scenario.question.Measured` (batch, seq_len, drafts,
        tpot_ms, tokens_per_s, itl_ms, plain_tpot_ms, accepted_by_position, tokens_per_step). Raises
        UsageError or DataError for what is missing or makes no sense, CoverageError for more drafts than the
        drafter makes.
        """
        from medusa_sim.acceptance.engine_counters import combined
        from medusa_sim.acceptance.engine_records import read_counts
        from medusa_sim.engine_runs.run import engine_run
        from medusa_sim.plan.check import check as checked
        from medusa_sim.report.check.python import CheckResult
        from medusa_sim.scenario.question import Measured

        check(measured, declared(Measured), "measured quantity")
        files = [Path(file) for file in ([bench] if isinstance(bench, str | Path) else bench)]
        counts = None
        if counters is not None:
            counts = combined(read_counts(Path(counters), None if before is None else Path(before)))
        return CheckResult(answer=checked(*engine_run(self, files, counts, Measured(**measured))))

    def step(self, batch: int = 1, seq_len: int | None = None, candidates: int | None = None) -> SingleStep:
        """One step at a batch, length and count (None: the best count; 1: plain decoding).

        A count that the acceptance does not describe is timed with as many drafts as it has, without a
        speedup.
        """
        (seq_len,) = self.lengths(() if seq_len is None else whole_numbers("seq_len", seq_len))
        sizes = {"batch": batch, "seq_len": seq_len, "candidates": 1 if candidates is None else candidates}
        axes = [whole_numbers(name, [size]) for name, size in sizes.items()]
        Grid.of(*axes)
        batch, seq_len = axes[0][0], axes[1][0]
        candidates = None if candidates is None else axes[2][0]
        if candidates is None:
            candidates = self.recommend(batch, seq_len).schedule_row.best_candidates
        return single_step(self, batch, seq_len, candidates)

    def command(self, name: str = "recommend") -> str:
        """The scenario as a line of the shell. Raises UsageError for an object that no option can name."""
        check_kind("name", name, "a command", (str,))
        return shlex.join(["medusa-sim", name, *words_of(self.changed)])

    @classmethod
    def from_command(cls, line: str) -> Scenario:
        """The scenario of a line `[medusa-sim] recommend|sweep OPTIONS`; what is asked of it is left out.

        Raises UsageError for a line that the command line would not take, or for several GPUs or models.
        """
        from medusa_sim.cli import parsed

        check_kind("line", line, "a command line", (str,))
        given = parsed(line)
        return cls(
            **{name: value for name, value in given.items() if name in ARGUMENTS and value is not None}
        )

    def _repr_html_(self) -> str:
        """A table of the arguments that are not the defaults, for notebooks."""
        import pandas as pd

        values = {name: str(value) for name, value in self.changed.items()}
        values.setdefault("acceptance", self.profile.name)
        return str(pd.Series(values, name="scenario").to_frame().to_html())


def sweep(
    *,
    gpu: str | Sequence[str] = DEFAULT_GPU,
    model: str | Sequence[str] = DEFAULT_MODEL,
    batch: Sizes = 1,
    seq_len: Sizes | None = None,
    candidates: Sizes = DEFAULT_CANDIDATES,
    tp: Sizes = 1,
    **scenario: Any,
) -> pd.DataFrame:
    """`Scenario(...).sweep(...)` over one or more GPUs, models and numbers of GPUs, GPUs outermost."""
    import pandas as pd

    cards, targets, ways = as_list(gpu), as_list(model), whole_numbers("tp", tp)
    for name, given in (("gpu", cards), ("model", targets), ("tp", ways)):
        if not given:
            raise UsageError(f"{name} is empty: give at least one")
    frames = [
        Scenario(**{"gpu": card, "model": target, "tp": gpus, **scenario}).sweep(batch, seq_len, candidates)
        for card in cards
        for target in targets
        for gpus in ways
    ]
    whole: pd.DataFrame = pd.concat(
        [frame.astype({"gpu": str, "model": str}) for frame in frames], ignore_index=True
    )
    whole.attrs["warnings"] = list(
        dict.fromkeys(line for frame in frames for line in frame.attrs["warnings"])
    )
    return whole


def recommend(
    *, batch: Sizes = DEFAULT_BATCHES, seq_len: Sizes | None = None, **scenario: Any
) -> RecommendResult:
    """`Scenario(...).recommend(...)`: parts of the question by their names, every other is the scenario's."""
    asked = {name: scenario.pop(name) for name in (*QUESTION, "request") if name in scenario}
    return Scenario(**scenario).recommend(batch, seq_len, **asked)


def simulate(
    policies: str | int | Policy | Sequence[str | int | Policy] = DEFAULT_POLICIES,
    rates: float | Iterable[float] | None = None,
    **given: Any,
) -> LoadResult:
    """`Scenario(...).simulate(...)`: arguments of the load by their names, every other is the scenario's."""
    ours = {name: given.pop(name) for name in ARGUMENTS if name in given and name not in LOAD}
    return Scenario(**ours).simulate(policies, rates, **given)


def compare(
    model: str | Path | Model = DEFAULT_MODEL,
    *,
    price: float | Mapping[str, float] | None = None,
    advance: Callable[[int, int], None] | None = None,
    **given: Any,
) -> CompareResult:
    """Which set-up, as `medusa-sim compare`: sentence, chosen, frontier, table, runners_up, refused.

    price: dollars per GPU-hour of every GPU, or by GPU. advance: told (set-ups priced, of so many). given:
    fields of `medusa_sim.setups.question.SetupQuestion` (tokens_per_s_per_user, rate, ...) and of
    `medusa_sim.setups.question.SetupChoices` (gpus: GPUs; counts, engines, drafters, ...), one value or
    several; every other is an argument of each scenario (acceptance, latency, data_dir, ...). Raises
    UsageError for an unknown name, for a question that makes no sense, and where every set-up is refused.
    """
    from medusa_sim.report.compare.python import CompareResult
    from medusa_sim.setups.question import SetupChoices, SetupQuestion
    from medusa_sim.setups.search import compare as compared

    asked, choices = (
        {name: _listed(each, given.pop(name)) for name, each in declared(kind).items() if name in given}
        for kind in (SetupQuestion, SetupChoices)
    )
    known = {*ARGUMENTS, *declared(SetupQuestion), *declared(SetupChoices), "price"}
    for name in given:
        if name not in known:
            raise UsageError(unknown_name("argument of a comparison", name, known))
    comparison = compared(
        model, SetupQuestion(**asked), SetupChoices(**choices), prices=price, advance=advance, **given
    )
    return CompareResult(answer=comparison)


def _listed(argument: Argument, given: Any) -> Any:
    """A list where the argument is one: of names, or of whole numbers."""
    if given is None or argument.type not in (NAMES, SIZES):
        return given
    if isinstance(given, Sized) and not len(given):
        raise UsageError(f"{argument.name} is empty: give at least one, or leave it out for the usual ones")
    if argument.type is NAMES:
        return names(argument.name, given)
    return tuple(whole_numbers(argument.name, given))


def time_rows(
    rows: pd.DataFrame | str | Path,
    gpu: str | Gpu,
    *,
    runtime: str | Runtime = ALONE,
    latency: LatencyName = "calibrated",
    kernels: str | None = None,
    cold: bool = True,
    fallback: Fallback = "refuse",
    data_dir: DataDir = None,
) -> pd.DataFrame:
    """Rows of operators (a frame or a file) with predicted_us, low_us, high_us, bound, source: `time`.

    Raises DataError for rows that are none, SpecError or CoverageError where a kernel is missing.
    """
    import pandas as pd

    from medusa_sim.operators.table import check_rows, read_rows

    given = {"gpu": gpu, "latency": latency, "kernels": kernels, "fallback": fallback}
    check(given, ARGUMENTS)
    for name, value, kind in (("runtime", runtime, RUNTIME), ("cold", cold, FLAG)):
        check_kind(name, value, kind.wanted, kind.allowed)
    check_kind("rows", rows, "a frame or the path of a file", (pd.DataFrame, str, os.PathLike))
    frame = check_rows(rows, "rows") if isinstance(rows, pd.DataFrame) else read_rows(Path(rows))
    return predicted_rows(
        frame,
        load_gpu(gpu, data_dir) if isinstance(gpu, str) else gpu,
        load_runtime(runtime, data_dir) if isinstance(runtime, str) else runtime,
        latency=latency,
        kernels=kernels,
        cold=cold,
        fallback=fallback,
        data_dir=data_dir,
    )
