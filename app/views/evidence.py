"""Evidence: predicted against measured and published, every number with its source, the method."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, cast, get_args

import answers
import inputs
import link
import measured
import msgspec
import notes
import show
import streamlit as st
from charts import validation as charts
from charts.draw import lines_spec
from chosen import PageArguments, from_here
from inputs import Input

from medusa_sim import data
from medusa_sim.doubts.standing import near_groups
from medusa_sim.engines.accuracy_groups import together
from medusa_sim.errors import MedusaSimError
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.lab.reproduce import TARGETS
from medusa_sim.lab.reproduce.charts import published_chart
from medusa_sim.lab.validate.operators import scores
from medusa_sim.lab.validate.score_tables import choice_table, comparisons_table, score_table
from medusa_sim.latency.by_name import LatencyName
from medusa_sim.report.words.basis import how_sure
from medusa_sim.report.words.caveats import as_sentence
from medusa_sim.report.words.numbers import percent
from medusa_sim.report.words.standing import groups_table
from medusa_sim.scenario.defaults import DEFAULT_DRAFTER, Baseline
from views import sources
from views.nearest import nearest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pandas as pd


_VIEWS = ("accuracy", "numbers in use", "method")
_PAPERS = "The papers of Medusa and of recursive speculative decoding: published against predicted"
EVERY_KERNEL, PAPERS = "every_kernel", "papers"
"""Keys of parts that are folded."""
_LATENCIES = ("measured", "calibrated")
_TOLD = (
    "op", "m", "n", "k", "batch", "q_len", "kv_len", "candidates", "model", "pair", "decoder", "seq_len",
    "gamma",
)  # fmt: skip

_OF_CELLS = ("candidates", "batch", "model")
"""Columns that a point of either chart tells."""
_FIT_PHONE = ("kernel", "held out", "rows", "borrowed from")
_SCORES = (
    "operator", "dtype", "size", "rows", "mean", "p90", "worst", "bias", "in band", "worst row",
)  # fmt: skip
_SCORE_PHONE = ("operator", "size", "rows", "mean", "worst")


_GROUPS = ("what", "model", "weights", "rows", "mean error", "worst", "in band", "left out", "rows are in")
_WORDS = {
    "round": "round of drafts", "TPOT": "time per token", "TTFT": "time to first token", "E2E": "end to end",
    "p99 E2E": "end to end, slowest 1 %", "p99 E2E, cold server": "end to end, slowest 1 %, cold server",
}  # fmt: skip
"""Measured times as groups of pairs call them, and in words."""
_GROUP_PHONE = ("what", "rows", "mean error", "rows are in")


def page(set_up: PageArguments) -> None:
    """How far off predictions of this GPU are, first; then one of three looks."""
    st.title("How far to trust it", anchor=False)
    note = st.container()
    scenario = answers.scenario_of(set_up)
    show.how_sure(how_sure(scenario, ""), answers.how_near(set_up), notes.accuracy(scenario))
    if near := near_groups(scenario):
        st.subheader("How far off on the nearest servers", anchor=False)
        named = [
            msgspec.structs.replace(group, what=_WORDS.get(group.what, group.what))
            for group in together(near)
        ]
        show.text_table(groups_table(named), _GROUPS, _GROUP_PHONE)
    nearest(set_up, None)
    view = inputs.one_of(st, Input("view", "Show"), _VIEWS, _VIEWS[0])
    if view == _VIEWS[0]:
        _accuracy(set_up, scenario.kernels)
    elif view == _VIEWS[1]:
        sources.numbers(set_up)
    else:
        sources.method()
    with note:
        show.ignored_note()


def _accuracy(set_up: PageArguments, usual: str) -> None:
    """What the fits are worth first, then rows, then the papers; usual: the set-up's kernels."""
    gpu = set_up.gpu
    sets = tuple(load_gpu(gpu).kernels) or ("none",)
    first = usual if usual in sets else sets[0]
    of_kernels = Input("kernels", "Kernels", "The fitted kernel set that is judged.")
    kernels = inputs.choice(st, of_kernels, sets, first)
    _fits(gpu, kernels)
    files = measured.profile_files(gpu)
    if files:
        st.subheader("Predicted against measured rows", anchor=False)
        _measured(gpu, kernels, files)
    _decoder(gpu)
    asked = set_up.drafter == DEFAULT_DRAFTER or any(map(link.opened_with, ("target", "baseline")))
    with st.expander(_PAPERS, asked, key=PAPERS, on_change="rerun") as opened:
        if opened.open:
            _published()


def _fits(gpu: str, kernels: str) -> None:
    fits = measured.fits_of(gpu, kernels)
    if not fits:
        st.info(f"{gpu} has no fitted kernels: measure it (`medusa-sim measure`, `medusa-sim calibrate`).")
        return
    of_this_card = {name: fit for name, fit in fits.items() if not fit.inherited_from} or fits
    show.figures(
        *(
            show.Figure(
                name,
                percent(fit.heldout_error),
                f"{percent(fit.fit_error)} on {fit.rows:,} rows fitted",
                "Mean error of time on shapes that were left out of a refit.",
            )
            for name, fit in [item for item in of_this_card.items() if "elementwise" not in item[0]][:4]
        ),
        width=215,
    )
    lenders = [lender for fit in fits.values() if (lender := fit.inherited_from.partition(":")[0])]
    lent_by = sorted({*lenders} - {gpu})
    if lent_by:
        st.caption(
            f"{sum(map(lenders.count, lent_by))} of {len(fits)} kernels are borrowed from "
            f"{', '.join(lent_by)}, with wider bands."
        )
    with st.expander(f"Every kernel: {len(fits)}", key=EVERY_KERNEL, on_change="rerun") as opened:
        if not opened.open:
            return
        rows = [
            {
                "kernel": name,
                "held out": percent(fit.heldout_error),
                "fit": percent(fit.fit_error),
                "rows": f"{fit.rows:,}",
                "borrowed from": fit.inherited_from or "-",
                "source": fit.source.partition("): ")[2] if fit.inherited_from else fit.source,
            }
            for name, fit in fits.items()
        ]
        show.table(rows, _FIT_PHONE)
        show.chart(
            charts.band_chart({name: fit for name, fit in of_this_card.items() if "elementwise" not in name}),
            name="bands",
            caption="Bars: where 80 % of measurements lie around the prediction, small sizes above large "
            "ones.",
            command=show.command(["specs", gpu, "--with-kernels"]),
            alt="Bands of measured over predicted by kernel and size",
        )


def _measured(gpu: str, kernels: str, files: Mapping[str, Path]) -> None:
    names = tuple(files)
    of_rows = Input("rows", "Rows", "Shipped or measured rows of this GPU.")
    path = files[inputs.choice(st, of_rows, names, names[0])]
    try:
        frame = measured.rows_of(path)
        rows, used = _compared(path, gpu, kernels)
    except MedusaSimError as error:  # the other sections of the page do not depend on it
        st.info(show.in_words(str(error)))
        return
    if len(rows) < len(frame):
        st.caption(
            f"{len(frame) - len(rows)} rows are left out: the set has no kernel that was fitted to such rows."
        )
    if used != kernels:
        st.caption(f"These rows are of the kernel set {used}; {kernels} has no such kernels.")
        kernels = used
    judged = scores(rows, load_gpu(gpu))
    whole = [score for score in judged if score.size == "all"]
    show.figures(
        *(
            show.Figure(
                f"{score.op} {score.dtype}",
                percent(score.mean),
                f"worst {percent(score.worst, 0)}; {percent(score.within_band, 0)} in band",
                f"Mean error of {score.rows} rows. Worst: {score.worst_at}",
            )
            for score in whole[:4]
        ),
        width=165,
    )
    words = ["validate", "rows", from_here(path), "--gpu", gpu, "--cache", "as-measured"]
    words += ["--runtime", "paper"] if kernels == "paper" else ["--kernels", kernels]
    show.chart(
        lines_spec(charts.scatter_chart(rows, "time_us", "predicted_us", "time (us)", _TOLD), 380),
        name="rows",
        caption="A point a row; dashed: 10 % off. Rows timed alone may have left operands in the cache, and "
        "are predicted so.",
        command=show.command(words),
        rows=lambda: rows,
        alt="Predicted over measured times",
    )
    show.text_table(score_table(judged, path.name), _SCORES, _SCORE_PHONE)


def _compared(path: Path, gpu: str, kernels: str) -> tuple[pd.DataFrame, str]:
    """Predicted beside measured by the chosen kernel set, or by the first that has such kernels."""
    try:
        return measured.compared(path, gpu, kernels), kernels
    except MedusaSimError:
        for other in load_gpu(gpu).kernels:
            with contextlib.suppress(MedusaSimError):
                return measured.compared(path, gpu, other), other
        raise


def _decoder(gpu: str) -> None:
    folder = data.find("profiles/decoder", gpu)
    if folder is None:
        return
    st.subheader("The decoder on this device", anchor=False)
    meaning = "Predicted from the measured operators themselves, or from the kernels fitted to them."
    chosen = inputs.choice(st, Input("latency", "Operators", meaning), _LATENCIES, _LATENCIES[0])
    latency = cast(LatencyName, chosen)
    judged = measured.decoder_validation(gpu, str(folder), latency)
    for table in (comparisons_table(judged.comparisons, ""), choice_table(judged.choices)):
        show.text_table(table)
    cells = measured.decoder_cells(gpu, str(folder), latency)
    words = ["validate", "decoder", from_here(folder), "--gpu", gpu, "--kernels", "torch"]
    words += ["--latency", latency]
    words += ["--fallback", "calibrated"] if latency == "measured" else []
    show.chart(
        lines_spec(charts.scatter_chart(cells, "measured_us", "predicted_us", "step (us)", _OF_CELLS), 380),
        name="steps",
        caption="A point a batch and count: whole steps of the decoder, the lower quartile of the passes; "
        "dashed: 10 % off. The first cells gave the overhead outside kernels.",
        command=show.command(words),
        rows=lambda: cells,
        alt="Predicted over measured steps of the decoder",
    )


def _published() -> None:
    left, right = st.columns(2)
    of_target = Input("target", "Table or figure", "Of the two papers.")
    name = inputs.choice(
        left, of_target, tuple(TARGETS), "figure22", words=lambda option: TARGETS[option].title
    )
    of_baseline = Input("baseline", "Baseline", "What the speedup is over.")
    baseline = inputs.choice(right, of_baseline, get_args(Baseline), "fixed")
    with st.spinner("Predicting what the paper prints"):
        target = measured.reproduced(name)
    frame = target.frame
    if "speedup_fixed" in frame:
        spec = lines_spec(published_chart(frame, f"speedup_{baseline}"), 360)
    else:
        pairs = charts.pairs(frame.columns)
        frame = frame.dropna(subset=list(pairs[0])) if pairs else frame
        if not pairs or frame.empty:
            st.info(f"{target.title}: the paper prints no numbers for it, or they are kept out as a test.")
            st.dataframe(target.frame.head(200), hide_index=True)
            return
        published, predicted = pairs[0]
        quantity = published.removeprefix("published_").replace("_", " ")
        spec = lines_spec(charts.scatter_chart(frame, published, predicted, quantity, _TOLD), 380)
    st.markdown(f"**{target.title}**")
    show.chart(
        spec,
        name=name,
        caption=f"{target.source}. {as_sentence(target.caveat)}",
        command=show.command(["reproduce", name, "--format", "csv"]),
        rows=lambda: target.frame,
        alt=f"{target.title}, predicted and published",
    )
    with st.expander("Every cell"):
        st.dataframe(target.frame.head(500), hide_index=True, key="cells")
