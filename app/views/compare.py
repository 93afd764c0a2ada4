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
from chosen import SetUp, ships

from medusa_sim.errors import MedusaSimError
from medusa_sim.report.numbers import times
from medusa_sim.specs.runtime import load_runtime
from medusa_sim.step.drafter.registry import drafter_kind

_MOST = 4
_BATCHES = (1, 2, 4, 8, 16, 32, 64)
_GPUS = ("h100-sxm", "h200-sxm", "l40s")
_ENGINES = ("vllm", "sglang", "tensorrt-llm", "cuda-graph")
_SAME = "as set-up 1"
_WHAT = ("speedup", "tokens_per_s", "ms_per_token")
_PHONE = ("batch", "drafts", "speedup", "tokens/s", "ms a token")


def page(set_up: SetUp) -> None:
    """The first set-up is the sidebar's; the others are it but for what their column says."""
    st.title("Set-ups side by side", anchor=False)
    headline = st.container()  # the answer stands above its inputs
    left, right = st.columns(2)
    count = inputs.whole(left, "setups", "Set-ups", 1, _MOST, 2, "The first is the one of the sidebar.")
    what = inputs.choice(right, "what", "Show", _WHAT, "speedup", "What the chart shows.")
    set_ups = [set_up, *_others(set_up, count)]
    show.ignored_note()
    rows = _rows(set_ups)
    if not rows:
        return
    with headline:
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
    for name, found in rows.items():
        st.markdown(f"**{name}**")
        show.table([_told(row) for row in found], _PHONE)


def _rows(set_ups: list[SetUp]) -> dict[str, list[dict[str, Any]]]:
    """Answers by name; a set-up without one says why and leaves the others alone."""
    found = {}
    known: set[str] = set()
    for name, each in zip(_names(set_ups), set_ups, strict=True):
        try:
            found[name] = answers.by_batch(each, _BATCHES)
        except MedusaSimError as error:
            st.error(show.in_words(f"{name}: {error}"), icon=":material/error:")
            continue
        told = answers.scenario_of(each).warnings
        show.warn(*(line for line in told if line not in known))
        known |= set(told)
    return found


def _others(first: SetUp, count: int) -> list[SetUp]:
    """Set-ups 2 to `count`, a column each: another GPU, another engine, another drafter, else another GPU."""
    found = []
    columns = st.columns(_MOST)
    with columns[0]:
        _first(first)
    cards = iter(name for name in _GPUS if name != first.gpu)
    engine = _other_engine(first)
    drafter = _other_drafter(first)
    for i, column in enumerate(columns[1:count]):
        varied = {1: "engine" if engine else "gpu", 2: "drafter" if drafter else "gpu"}.get(i, "gpu")
        with column:
            found.append(
                _asked(
                    first,
                    i + 2,
                    gpu=next(cards) if varied == "gpu" else first.gpu,
                    engine=engine if varied == "engine" and engine else first.engine,
                    drafter=drafter if varied == "drafter" and drafter else first.drafter,
                )
            )
    return found


def _other_engine(first: SetUp) -> str | None:
    """The first other engine that runs the drafter."""
    names = (load_runtime(name).name for name in _ENGINES)
    same = load_runtime(first.runtime).library
    runs = (name for name in names if first.drafter in sidebar.drafters_of(name))
    return next((name for name in runs if load_runtime(name).library != same), None)


def _other_drafter(first: SetUp) -> str | None:
    """The first other drafter of the engine of which an acceptance is known for the model."""
    known = sidebar.drafters_of(first.engine)
    return next((name for name in known if name != first.drafter and ships(name, first.model)), None)


def _asked(first: SetUp, number: int, *, gpu: str, engine: str, drafter: str) -> SetUp:
    """One set-up as its column says, the first where it says nothing else."""
    st.markdown(f"**Set-up {number}**")
    gpu = sidebar.gpu_choice(st, f"gpu{number}", default=gpu)
    model = sidebar.model_choice(st, gpu, f"model{number}", default=_SAME, also=_SAME)
    engine = sidebar.engine_choice(st, f"engine{number}", default=engine)
    drafter = sidebar.drafter_choice(st, engine, f"drafter{number}", default=drafter)
    acceptance = sidebar.acceptance_choice(
        st, drafter, f"acceptance{number}", default=first.acceptance if drafter == first.drafter else None
    )
    dtype = sidebar.dtype_choice(st, f"dtype{number}", default=first.dtype)
    draft_model = first.draft_model or "llama-68m"
    return dataclasses.replace(
        first,
        gpu=gpu,
        model=first.model if model == _SAME else model,
        engine=engine,
        drafter=drafter,
        draft_model=draft_model if drafter_kind(drafter).takes_draft_model else None,
        heads=first.heads if drafter == first.drafter else None,
        acceptance=acceptance,
        config=first.config if model == _SAME else None,
        dtype=sidebar.dtype_for(gpu, dtype),
    )


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
    """Number, GPU, and what else differs between them."""
    parts = [
        [each.gpu, each.model, each.engine, each.drafter, each.acceptance or "", each.dtype or ""]
        for each in set_ups
    ]
    differs = [len(set(column)) > 1 for column in zip(*parts, strict=True)]
    differs[0] = True
    kept = [[word for word, is_told in zip(row, differs, strict=True) if is_told and word] for row in parts]
    return [f"{i + 1}: {', '.join(words)}" for i, words in enumerate(kept)]


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


def _told(row: dict[str, Any]) -> dict[str, Any]:
    """A batch of a set-up as text."""
    drafts = "off" if row["candidates"] == 1 else str(row["drafts"])
    return {
        "batch": row["batch"],
        "drafts": drafts if row["fits_memory"] else "no room",
        "candidates": row["candidates"],
        "speedup": times(row["speedup"]),
        "80 %": f"{row['speedup_low']:.2f}-{row['speedup_high']:.2f}",
        "tokens/s": f"{row['tokens_per_s']:,.0f}",
        "plain": f"{row['plain_tokens_per_s']:,.0f}",
        "ms a token": f"{row['ms_per_token']:.2f}",
        "largest batch": row["max_batch"],
    }
