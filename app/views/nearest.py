"""The public measurement nearest to a set-up, beside what is predicted for it."""

from __future__ import annotations

import answers
import show
import streamlit as st
from charts.draw import lines_spec
from chosen import SetUp

from medusa_sim.report.charts.setups import measured_chart
from medusa_sim.report.compare_text import beside_text
from medusa_sim.report.text import significant


def nearest(set_up: SetUp) -> None:
    """In a sentence; on its predicted curve where it is of this set-up."""
    beside = answers.measured_beside(set_up)
    if beside is None:
        st.caption("No public measurement of this model or this card is held.")
        return
    st.caption(show.in_words(beside_text(beside)))
    if not beside.differs:
        show.chart(
            lines_spec(measured_chart(beside), 220),
            name="measured",
            caption="Line: predicted tokens/s a user of the set-up as measured, with its 80 % interval; "
            f"cross: measured, {significant(beside.figure.tokens_per_s_per_user, 3)} "
            f"(predicted {beside.error:+.0%}).",
            rows=lambda: [
                dict(zip(beside.curve, row, strict=True)) for row in zip(*beside.curve.values(), strict=True)
            ],
            alt="Predicted speed of a user against the requests, and the measurement",
        )
