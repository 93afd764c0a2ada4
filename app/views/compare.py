"""Compare: up to four set-ups side by side over batch."""

from __future__ import annotations

import dataclasses
from typing import Any

import answers
import inputs
import show
import sidebar
import streamlit as st
from charts.compare import compare_chart
from chosen import SetUp

from medusa_sim.errors import MedusaSimError
from medusa_sim.report.numbers import times
from medusa_sim.step.drafter.registry import drafter_kind

_MOST = 4
_BATCHES = (1, 2, 4, 8, 16, 32, 64)
_OTHERS = ("h100-sxm", "l40s", "h200-sxm")
_WHAT = ("speedup", "tokens_per_s", "ms_per_token")
_WIDTHS = {
    "set-up": 245,
    "batch": 55,
    "candidates": 82,
    "drafts": 58,
    "speedup": 70,
    "80 %": 82,
    "tokens/s": 70,
    "plain": 62,
    "ms a token": 82,
    "largest batch": 90,
}


def page(set_up: SetUp) -> None:
    """The first set-up is the sidebar's; the others differ in what their column says."""
    st.title("Set-ups side by side", anchor=False)
    left, right = st.columns(2)
    count = inputs.whole(left, "setups", "Set-ups", 1, _MOST, 2, "The first is the one of the sidebar.")
    what = inputs.choice(right, "what", "Show", _WHAT, "speedup", "What the chart shows.")
    set_ups = [set_up, *_others(set_up, count)]
    show.ignored_note()
    rows = _rows(set_ups)
    if not rows:
        return
    _answer(rows)
    plain = {"tokens_per_s": "plain_tokens_per_s", "ms_per_token": "plain_ms_per_token"}.get(what)
    titles = {
        "speedup": "speedup over plain decoding",
        "tokens_per_s": "tokens/s",
        "ms_per_token": "ms a token",
    }
    searched = ["--batch", "1..64", "--by-count"]
    commands = [show.command(["recommend", *each.options, *searched, "--format", "csv"]) for each in set_ups]
    import pyarrow as pa

    table = pa.Table.from_pylist([{"set_up": name, **row} for name, found in rows.items() for row in found])
    caption = "Each batch with the count of its schedule; batches that do not fit in memory are left out. "
    caption += "Bars: 80 % intervals." if plain is None else "Thin lines: plain decoding."
    show.chart(
        compare_chart(
            rows, what, titles[what], plain, ("speedup_low", "speedup_high") if plain is None else None
        ),
        name="compare",
        caption=caption,
        told="\n".join(commands),
        rows=table,
        alt="Lines of the set-ups over batch",
    )
    show.table(_table(rows), "compared", _WIDTHS)


def _rows(set_ups: list[SetUp]) -> dict[str, list[dict[str, Any]]]:
    """Answers by name; a set-up without one says why and leaves the others alone."""
    found = {}
    for name, each in zip(_names(set_ups), set_ups, strict=True):
        if each.lacks_acceptance:
            st.info(
                f"{name}: type how often its drafts are accepted; nothing is assumed.", icon=":material/help:"
            )
            continue
        try:
            found[name] = answers.by_batch(each, _BATCHES)
        except MedusaSimError as error:
            st.error(show.in_words(f"{name}: {error}"), icon=":material/error:")
            continue
        scenario = answers.scenario_of(each)
        if scenario.borrows_acceptance:
            show.warn(f"{name}: acceptance {scenario.profile.name} was measured on another model")
    return found


def _others(first: SetUp, count: int) -> list[SetUp]:
    """Set-ups 2 to `count`, a column each."""
    found = []
    columns = st.columns(_MOST)
    with columns[0]:
        _first(first)
    for i, column in enumerate(columns[1:count]):
        number = i + 2
        with column:
            st.markdown(f"**Set-up {number}**")
            gpu = sidebar.gpu_choice(st, f"gpu{number}", default=_OTHERS[i])
            model = sidebar.model_choice(st, gpu, f"model{number}", default="vicuna-7b")
            engine = sidebar.engine_choice(st, f"engine{number}", default=first.engine)
            drafter = sidebar.drafter_choice(st, engine, f"drafter{number}")
            acceptance = sidebar.acceptance_choice(st, drafter, f"acceptance{number}")
            dtype = sidebar.dtype_for(gpu, sidebar.dtype_choice(st, f"dtype{number}"))
        found.append(
            dataclasses.replace(
                first,
                gpu=gpu,
                model=model,
                engine=engine,
                drafter=drafter,
                draft_model="llama-68m" if drafter_kind(drafter).takes_draft_model else None,
                acceptance=acceptance,
                config=None,
                dtype=dtype,
            )
        )
    return found


def _first(first: SetUp) -> None:
    """What the sidebar says, beside the set-ups that it is compared with."""
    st.markdown("**Set-up 1** :small[(the sidebar)]")
    told = {
        "GPU": first.gpu,
        "Model": first.model,
        "Engine": first.engine,
        "Drafter": first.drafter,
        "Acceptance": first.acceptance or sidebar.SHIPPED,
        "Dtype": first.dtype or sidebar.PUBLISHED,
    }
    st.markdown("\n\n".join(f":small[{name}]  \n{value}" for name, value in told.items()))


def _names(set_ups: list[SetUp]) -> list[str]:
    """Number, model, GPU, engine and drafter."""
    return [f"{i + 1}: {each.title}, {each.drafter}" for i, each in enumerate(set_ups)]


def _answer(rows: dict[str, list[dict[str, Any]]]) -> None:
    """Which is fastest for one user, and which for the card."""
    fitting = {name: [row for row in found if row["fits_memory"]] for name, found in rows.items()}
    fitting = {name: found for name, found in fitting.items() if found}
    if not fitting:
        st.error("No set-up fits in memory at any batch shown.")
        return
    first = min(fitting, key=lambda name: float(fitting[name][0]["ms_per_token"]))
    most = max(fitting, key=lambda name: max(float(row["tokens_per_s"]) for row in fitting[name]))
    gains = max(fitting, key=lambda name: float(fitting[name][0]["speedup"]))
    quickest, top = fitting[first][0], max(fitting[most], key=lambda row: float(row["tokens_per_s"]))
    show.figures(
        show.Figure(
            "Fastest for one user",
            f"{quickest['ms_per_token']:.2f} ms a token",
            first,
            "Least time a token and user at the smallest batch that fits.",
        ),
        show.Figure(
            "Most tokens/s",
            f"{top['tokens_per_s']:,.0f}",
            f"{most}, batch {top['batch']}",
            "Largest throughput of any batch shown that fits.",
        ),
        show.Figure(
            "Gains most at batch 1",
            times(float(fitting[gains][0]["speedup"])),
            gains,
            "Largest speedup over plain decoding at the smallest batch that fits.",
        ),
        width=275,
    )


def _table(rows: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [
        {
            "set-up": name,
            "batch": row["batch"],
            "candidates": _count(row),
            "drafts": str(row["drafts"]) if row["candidates"] > 1 and row["fits_memory"] else "-",
            "speedup": times(row["speedup"]),
            "80 %": f"{row['speedup_low']:.2f}-{row['speedup_high']:.2f}",
            "tokens/s": f"{row['tokens_per_s']:,.0f}",
            "plain": f"{row['plain_tokens_per_s']:,.0f}",
            "ms a token": f"{row['ms_per_token']:.2f}",
            "largest batch": row["max_batch"],
        }
        for name, found in rows.items()
        for row in found
    ]


def _count(row: dict[str, Any]) -> str:
    if not row["fits_memory"]:
        return "no room"
    return "off" if row["candidates"] == 1 else str(row["candidates"])
