"""A run of an engine, put together from its benchmark's results and its counters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from medusa_sim.acceptance.engine_counters import AcceptanceCounts, combined, over_every_step
from medusa_sim.acceptance.engine_records import read_counts
from medusa_sim.engine_runs.bench import logged_counts, read_bench
from medusa_sim.engine_runs.bench_row import LOG, WANTED, BenchRow, Shape, taken_as_plain
from medusa_sim.engine_runs.load_generators import AIPERF, VLLM_SERVE
from medusa_sim.engines.engine import unversioned
from medusa_sim.engines.runtime import load_runtime
from medusa_sim.errors import DataError, MedusaSimError, UsageError
from medusa_sim.models.named import load_model
from medusa_sim.outside.limits import TABLE_BYTES
from medusa_sim.plan.measured_run import MeasuredRun, with_known_acceptance
from medusa_sim.reading.files import read_text
from medusa_sim.scenario.local_rows import is_written_by_tools, rows_of
from medusa_sim.scenario.question import Measured
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.units import US_PER_MS

_TIMES = {"tpot_ms", "tokens_per_s", "itl_ms"}
_ACCEPTED = {"accepted_by_position", "tokens_per_step"}
NO_DRAFTER = "ngram"
"""The drafter that has no weights and costs nothing where it drafts nothing."""
_SAME = 0.02
"""Relative difference of two numbers of requests that are one."""


def engine_run(
    scenario: Scenario,
    files: Sequence[Path] = (),
    counts: AcceptanceCounts | None = None,
    given: Measured | None = None,
) -> tuple[Scenario, MeasuredRun]:
    """The scenario with the requests that were served, and the run, for `plan.check.check`.

    Where the acceptance describes fewer drafts than were run, the measured one takes its place.

    files: results of benchmarks; the one that speculates is checked, one at as many requests without drafts
    is its plain decoding. counts: what the engine counted. given: by hand, which goes
    before what files say. Raises DataError for files, UsageError for runs that cannot be told apart or are
    not whole.
    """
    asked = {} if given is None else given.changed
    measured: dict[str, Any] = {}
    caveat = ""
    if files:
        path, row, plain = _rows(files, asked, scenario)
        _refuse_others(scenario, row)
        measured = _of_row(row, plain)
        if asked.get("drafts") and not row.drafts and counts is None and not _ACCEPTED & asked.keys():
            raise UsageError(
                f"{row.source}: reports no drafts; give what {asked['drafts']} drafts gave "
                "(--accepted-by-position, --tokens-per-step, --counters), or a run with them"
            )
        by_position = (
            not scenario.drafting.drafter_class.looks_up
        )  # or steps that found drafts are counted alone
        if (
            counts is None
            and by_position
            and row.drafts
            and row.tool in (VLLM_SERVE, AIPERF)
            and path.suffix == ".json"
        ):
            counts = combined(read_counts(path))
        elif counts is None and by_position and row.tool == LOG:
            counts = logged_counts(path)
        scenario = _serving(scenario, row)
        if counts is None and not _ACCEPTED & asked.keys():
            caveat = taken_as_plain([row], asked.get("drafts"))
    if scenario.drafting.drafter_class.looks_up:
        measured.pop("tokens_per_step", None)
        counts = None if counts is None else over_every_step(counts)[0]
    if counts is not None:
        measured |= _of_counts(counts, measured)
        scenario = _serving(scenario, counts)
    if _ACCEPTED & asked.keys():  # one of them tells the other
        measured.pop("tokens_per_step", None)
        measured.pop("accepted_by_position", None)
    if _TIMES & asked.keys():
        for name in _TIMES:
            measured.pop(name, None)
    if "seq_len" not in asked:
        scenario = scenario.with_usual_requests()
    run = Measured(**measured | asked)
    (length,) = scenario.lengths(() if run.seq_len is None else (run.seq_len,))
    return with_known_acceptance(scenario, MeasuredRun.from_measured(run, length, caveat))


def told_by(files: Sequence[Path], asked: Measured | None = None) -> dict[str, str]:
    """Scenario as benchmark results name it: its `model` by our name, its `runtime`, where known.

    A run without drafts loaded no drafter, as if it looked its drafts up (`drafter`). Raises DataError as
    `read_bench`, UsageError for files of several models.
    """
    shape = Shape() if asked is None else Shape(concurrency=asked.batch, drafts=asked.drafts)
    rows = [row for path in files for row in read_bench(path, shape)]
    models = {name for row in rows if (name := known_model(row.model))}
    if len(models) > 1:
        raise UsageError(f"these files are of {' and '.join(sorted(models))}: check one model at a time")
    engines = {row.engine for row in rows if row.engine}
    told = {"model": models, "runtime": engines if len(engines) == 1 else set[str]()}
    found = {name: next(iter(values)) for name, values in told.items() if values}
    for path in files:
        text = read_text(path, TABLE_BYTES, WANTED, DataError)
        found = {**(rows_of(text, path).told if is_written_by_tools(text) else {}), **found}
    return found if any(row.drafts for row in rows) else {**found, "drafter": NO_DRAFTER}


def known_model(given: str) -> str:
    """The model of a served name; empty where no model here has that name."""
    try:
        return load_model(given).name if given and not Path(given).exists() else ""
    except MedusaSimError:
        return ""


def refuse_other_model(own: str, row: BenchRow) -> None:
    """Raises UsageError for a run of another model than `own`, where both are known."""
    model = known_model(row.model)
    if model and model != own and known_model(own):
        raise UsageError(
            f"{row.source} is a run of {row.model}, not of {own}: give --model {model}, or a run of {own}"
        )


def _refuse_others(scenario: Scenario, row: BenchRow) -> None:
    """Raises UsageError for a run of another model or engine than the scenario's."""
    refuse_other_model(scenario.model.name, row)
    runtime = scenario.runtime
    # by their kernel sets: a runtime of one's own has a name of its own
    if row.engine and runtime.engine is not None and load_runtime(row.engine).library != runtime.library:
        raise UsageError(
            f"{row.source} is a run of {row.engine}, not of {runtime.name}: give --runtime {row.engine}, "
            f"or a run of {unversioned(runtime.name)}"
        )


def _serving(scenario: Scenario, run: BenchRow | AcceptanceCounts) -> Scenario:
    """The scenario with the requests of a run, where it says their lengths and the scenario does not."""
    if scenario.traffic is not None or not run.prompt or not run.output:
        return scenario
    return scenario.but(prompt_tokens=run.prompt, output_tokens=run.output)


def _of_row(row: BenchRow, plain: BenchRow | None) -> dict[str, Any]:
    """A run of a benchmark as fields of `Measured`."""
    measured: dict[str, Any] = {"batch": round(row.concurrency), "drafts": round(row.drafts)}
    if row.drafts and row.acceptance_length > 1.0:
        measured["tokens_per_step"] = row.acceptance_length
    if row.with_prompts:
        measured["tokens_per_s"] = row.tokens_per_s
    for name, time_us in (("tpot_ms", row.tpot_us), ("itl_ms", row.itl_us)):
        if time_us is not None and not row.with_prompts:
            measured[name] = time_us / US_PER_MS
    if plain is not None and not plain.with_prompts:
        measured["plain_tpot_ms"] = (plain.tpot_us or plain.step_us) / US_PER_MS
    return measured


def _of_counts(counts: AcceptanceCounts, beside: dict[str, Any]) -> dict[str, Any]:
    """Counts of an engine as fields of `Measured`; a benchmark's speed takes precedence over its page's."""
    shares = tuple(float(share) for share in counts.shares)
    measured: dict[str, Any] = {"drafts": len(shares), "accepted_by_position": shares}
    measured["tokens_per_step"] = counts.tokens_per_step
    if counts.tpot_us is not None and not _TIMES & beside.keys():
        measured["tpot_ms"] = counts.tpot_us / US_PER_MS
    if counts.running and "batch" not in beside:
        measured["batch"] = round(counts.running)
    return measured


def _rows(
    files: Sequence[Path], asked: dict[str, Any], scenario: Scenario
) -> tuple[Path, BenchRow, BenchRow | None]:
    """(file, run that is checked, plain run at as many requests) of results of benchmarks."""
    batch, traffic = asked.get("batch"), scenario.traffic
    shape = Shape(
        concurrency=batch,
        prompt=traffic.prompt_tokens if traffic else None,
        output=traffic.output_tokens if traffic else None,
        drafts=asked.get("drafts"),
    )
    rows = [(path, row) for path in files for row in read_bench(path, shape)]
    if any(row.offline for _, row in rows):
        raise UsageError("a result of bench latency holds its prompts; give one of bench serve to a check")
    if batch is not None:
        rows = [(path, row) for path, row in rows if abs(row.concurrency - batch) <= _SAME * batch]
        if not rows:
            raise UsageError(f"no run at {batch} requests in flight is in these files; leave out --batch")
    drafted = [(path, row) for path, row in rows if row.drafts]
    chosen = drafted or rows
    if len(chosen) > 1:
        sizes = ", ".join(f"{row.concurrency:g} ({row.source})" for _, row in chosen)[:200]
        raise UsageError(
            f"{len(chosen)} runs, at {sizes} requests in flight; choose one with --batch or its file"
        )
    path, row = chosen[0]
    alike = (each for _, each in rows if abs(each.concurrency - row.concurrency) <= _SAME * row.concurrency)
    plain = next((each for each in alike if not each.drafts), None)
    return path, row, plain if row.drafts else None
