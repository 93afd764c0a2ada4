"""Public measurements nearest to a set-up, beside what is predicted for them."""

from __future__ import annotations

import answers
import show
import streamlit as st
from charts.draw import lines_spec
from chosen import PageArguments

from medusa_sim.report.charts.setups import measured_chart
from medusa_sim.report.words.measured import figure_text
from medusa_sim.report.words.numbers import percent, significant
from medusa_sim.setups.measured import NearestFigure

_PHONE = ("measured set-up", "measured", "predicted", "error")
MOST = 3
"""Measurements beside an answer."""


def nearest(set_up: PageArguments, most: int | None = MOST) -> None:
    """As a table, the nearest first, by the distance that bands go by; most: None: all.

    Beside an answer far ones of another model are left out. What is measured of this very set-up stands on
    its predicted curve.
    """
    shown = answers.measured_near(set_up, every=most is None)[:most]
    if not shown:
        st.caption("No public measurement near this set-up is held.")
        return
    st.subheader("Measured near it", anchor=False)
    show.table([_row(beside) for beside in shown], _PHONE)
    st.caption("Tokens/s a user of the set-ups as they were measured; the error is the prediction's.")
    same = next((beside for beside in shown if not beside.differs), None)
    if same is not None:
        curve = answers.measured_curve(same.figure)
        show.chart(
            lines_spec(measured_chart(same.figure, curve), 220),
            name="measured",
            caption="Line: predicted tokens/s a user of the set-up as measured, with its 80 % interval; "
            f"cross: measured, {significant(same.figure.tokens_per_s_per_user, 3)} "
            f"(predicted {percent(same.error, 0, signed=True)}).",
            rows=lambda: [dict(zip(curve, row, strict=True)) for row in zip(*curve.values(), strict=True)],
            alt="Predicted speed of a user against the requests, and the measurement",
        )


def _row(beside: NearestFigure) -> dict[str, str]:
    figure, measured = beside.figure, beside.figure.tokens_per_s_per_user
    return {
        "measured set-up": figure_text(figure),
        "differs in": ", ".join(beside.differs) or "nothing",
        "measured": significant(measured, 3),
        "predicted": significant(measured * (1.0 + beside.error), 3),
        "error": f"{100.0 * beside.error:+.0f} %",
        "source": figure.source,
    }
