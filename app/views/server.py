"""A running engine against its prediction: what a log or a metrics page says, taken over and judged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import answers
import show
import streamlit as st
import uploads
from chosen import PageArguments

from medusa_sim.acceptance.engine_counters import combined
from medusa_sim.acceptance.engine_records import read_counts
from medusa_sim.engine_runs.bench import is_bench
from medusa_sim.engine_runs.run import engine_run
from medusa_sim.errors import MedusaSimError
from medusa_sim.plan.check import check
from medusa_sim.reading.files import held
from medusa_sim.report.check.python import CheckResult
from medusa_sim.scenario.question import Measured

if TYPE_CHECKING:
    from medusa_sim.acceptance.engine_counters import AcceptanceCounts

_TOLD = (
    "A /metrics page of vLLM, a result of a load generator (vllm bench serve, SGLang, AIPerf), acceptance "
    "histograms as JSON, or a log of vLLM, SGLang or llama.cpp."
)

OPENED = "engine_given"
"""The key of the part that asks."""


def judged(set_up: PageArguments) -> None:
    """What a file or a pasted text of the user's engine says, at the foot of every page."""
    looked_at = st.session_state.get("batch", 1)  # in flight, where the file says none
    batch = looked_at if isinstance(looked_at, int) else 1
    label = "Your running engine: paste or upload its log, metrics page or benchmark"
    with st.expander(label, key=OPENED, on_change="rerun") as opened:
        if not opened.open:  # its inputs would be loaded with every page
            return
        given = st.file_uploader("File", key="engine_file", help=_TOLD)
        pasted = st.text_area("Or its text", key="engine_text", height=90, placeholder=_TOLD)
        if given is None and not pasted.strip():
            return
        name, content = ("pasted.txt", pasted.encode()) if given is None else (given.name, given.getvalue())
        try:
            with held(name, uploads.checked(name, content)) as path:
                _read(set_up, path, batch)
        except MedusaSimError as error:
            st.error(show.in_words(str(error)), icon=":material/error:")


def _read(set_up: PageArguments, path: Path, batch: int) -> None:
    """Acceptance where it is counted; the verdict where a speed is."""
    counts: AcceptanceCounts | None = None
    unread: MedusaSimError | None = None
    try:
        counts = combined(read_counts(path))
    except MedusaSimError as error:  # a benchmark's result may hold none
        unread = error
    taken: dict[str, str | int] = {}
    if counts is not None:
        taken["acceptance"] = ",".join(f"{share:.3f}" for share in counts.shares.tolist())
    result, told = _verdict(set_up, path, counts, batch)
    if result is not None:
        run = result.answer.run
        taken |= {"batch": run.batch} if run.batch <= answers.room(set_up) else {}
        taken |= {"seq": run.seq_len} if result.answer.scenario.traffic is not None else {}
        tell = st.success if result.is_inside else st.warning
        tell(show.in_words(result.sentence))
        if told:
            st.caption(told)
        if counts is None and run.drafts:
            taken["acceptance"] = f"{run.tokens_per_step:.3f}@{run.drafts}"
    elif is_bench(path):
        st.error(show.in_words(told), icon=":material/error:")
    elif unread is not None:
        raise unread
    if counts is not None:
        st.markdown(
            f"{show.escaped(counts.engine)} counted {counts.steps:,} steps, {counts.tokens_per_step:.2f} "
            f"tokens a step; drafts accepted in {taken['acceptance']} of the steps, by position."
        )
        if result is None:
            st.caption(
                "No verdict on its speed, which it does not hold: a log with its lines of throughput does, "
                "and so does the result of a load generator."
            )
    names = ", ".join(
        {"acceptance": "acceptance", "batch": "batch", "seq": "context"}[name] for name in taken
    )
    if taken:
        take_over = st.session_state.update  # the page's own inputs
        st.button(f"Take over {names}", on_click=take_over, args=(taken,), icon=":material/input:")


def _verdict(
    set_up: PageArguments, path: Path, counts: AcceptanceCounts | None, batch: int
) -> tuple[CheckResult | None, str]:
    """The verdict on a file and what this page added to it; or none, and why.

    A file may leave out the drafts of a step or the requests in flight: those are taken from the page.
    """
    scenario, why = answers.scenario_of(set_up), ""
    drafts = answers.drafts_at(set_up, batch)
    tries: tuple[tuple[tuple[Path, ...], Measured, str], ...] = (
        ((path,), Measured(), ""),
        ((path,), Measured(drafts=drafts), f"{drafts} drafts a step"),
        ((), Measured(), ""),
        ((), Measured(batch=batch), f"{batch} requests in flight"),
    )
    for files, given, added in tries:
        try:
            judged_run = engine_run(scenario, files, None if files else counts, given)
            result = CheckResult(answer=check(*judged_run))
        except MedusaSimError as error:
            why = why or str(error)
        else:
            return result, f"Not in the file, taken from this page: {added}." if added else ""
    return None, why
