"""Roofline: where the operators of prefill, decode and parallel decode lie on a GPU's roof."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import answers
import inputs
import notes
import show
import streamlit as st
from charts.roofline import roofline_chart
from chosen import SetUp

from medusa_sim.errors import MedusaSimError
from medusa_sim.report.numbers import duration, significant, with_prefix
from medusa_sim.specs.gpu import gpu_names, load_gpu
from medusa_sim.specs.runtime import load_runtime
from medusa_sim.step.roofline import PhaseSpeed, phase_speeds

if TYPE_CHECKING:
    import pyarrow as pa

_NOBODY = "none"
_WHICH = ("all", "linear layers", "attention")
_SHOWN = (
    "gpu", "op", "phase", "batch", "seq_len", "query_tokens", "time_us", "operational_intensity",
    "flops_per_s", "roofline_flops_per_s", "bound", "source",
)  # fmt: skip
_PHONE = ("operator", "phase", "time", "bound by")


def page(set_up: SetUp) -> None:
    """Two sliders move the points; a second GPU may stand beside the first."""
    st.title("Operators on the roofline", anchor=False)
    headline = st.container()  # the answer stands above its inputs
    left, middle, right, last = st.columns(4)
    batch = inputs.whole(left, "batch", "Batch", 1, 256, 4, "Sequences that a step decodes side by side.")
    candidates = inputs.whole(
        middle, "candidates", "Candidates", 1, 256, 64, "Tokens that one parallel decode step verifies."
    )
    told = "Its roof dashed, its points open."
    other = inputs.choice(right, "against", "Compare with", (_NOBODY, *gpu_names()), _NOBODY, told)
    which = inputs.choice(last, "which", "Operators", _WHICH, "all", "Which operators are drawn.")
    show.ignored_note()
    import pyarrow as pa

    gpus = [set_up.gpu] + ([other] if other not in (_NOBODY, set_up.gpu) else [])
    tables = []
    for gpu in list(gpus):
        try:
            tables.append(answers.roofline(set_up, gpu, batch, (candidates,)))
        except MedusaSimError as error:
            if gpu == set_up.gpu:
                raise
            gpus.remove(gpu)  # the first stands without its neighbour
            st.warning(f"{gpu}: {error}", icon=":material/warning:")
    points = pa.concat_tables(tables)
    if which != "all":
        wanted = [(part == "attention") == (which == "attention") for part in points["part"].to_pylist()]
        points = points.filter(pa.array(wanted))
    with headline:
        _answer(points.filter(pa.array([gpu == set_up.gpu for gpu in points.column("gpu").to_pylist()])))
    model, card = answers.model_of(set_up), load_gpu(set_up.gpu)
    kernels = load_runtime(set_up.runtime).kernel_set(model.dtype)
    options = [*set_up.kernel_options, "--batch", str(batch), "--candidates", str(candidates)]
    commands = [show.command(["roofline", "--gpu", gpu, *options, "--format", "csv"]) for gpu in gpus]
    show.chart(
        roofline_chart(points, [load_gpu(gpu) for gpu in gpus], model.dtype),
        name="roofline",
        caption=f"Lines: what the datasheet allows ({model.dtype}, dense). Points: predicted; the gap "
        "below the roof is what tiles, waves and launches of the real kernels cost. "
        + notes.accuracy(card, kernels, model),
        told="\n".join(commands),
        rows=points,
        alt="Operators by operational intensity and speed under the roof of the GPU",
    )
    with st.expander("Every point"):
        show.table([_told(row) for row in points.select(_SHOWN).to_pylist()], _PHONE)


def _answer(points: pa.Table) -> None:
    """Speed and share of the roof by phase."""
    speeds = phase_speeds(points)
    titles = {"prefill": "Prefill", "decode": "Decode", "verify": "Parallel decode"}
    show.figures(
        *(
            show.Figure(
                title,
                with_prefix(speeds[phase].flops_per_s, "FLOP/s"),
                f"{speeds[phase].of_roof:.0%} of the roof; {_waits(speeds[phase])}",
                "All operators drawn, one layer on one GPU: FLOPs over predicted time, how near the roof, "
                "and what most of that time waits for.",
            )
            for phase, title in titles.items()
            if phase in speeds
        ),
        width=250,
    )


def _waits(speed: PhaseSpeed) -> str:
    """`94% waits for memory`: what bounds most of the time."""
    bound, share = next(iter(speed.waits.items()))
    return f"{share:.0%} waits for {bound}"


def _told(row: dict[str, Any]) -> dict[str, object]:
    """A point as text with units."""
    return {
        "gpu": row["gpu"],
        "operator": row["op"],
        "phase": row["phase"],
        "tokens": row["query_tokens"],
        "time": duration(row["time_us"]),
        "FLOP/byte": significant(row["operational_intensity"], 3),
        "speed": with_prefix(row["flops_per_s"], "FLOP/s"),
        "roof": with_prefix(row["roofline_flops_per_s"], "FLOP/s"),
        "bound by": row["bound"],
        "source": row["source"],
    }
