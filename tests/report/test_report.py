"""Rendering: numbers people read, formats machines read back, files that are whole or absent."""

import io
import json
import math
from itertools import pairwise

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from medusa_sim import __version__
from medusa_sim.grid.axes import Grid
from medusa_sim.report.blocks import Folded
from medusa_sim.report.charts.chart import HeatMap, MapCell
from medusa_sim.report.charts.sweep import step_bars
from medusa_sim.report.document import html_page
from medusa_sim.report.figures.draw import bars_figure
from medusa_sim.report.figures.files import render
from medusa_sim.report.formats import csv_parts, json_parts, markdown_parts
from medusa_sim.report.length_view import length_view
from medusa_sim.report.palette import PARTS
from medusa_sim.report.table import TextTable, aligned, markdown
from medusa_sim.report.words.numbers import capitalised, duration, significant, times, with_prefix
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.writing import atomic

TABLE = pa.table(
    {
        "gpu": pa.DictionaryArray.from_arrays([0, 0, 0], ["a40"]),
        "candidates": [1, 16, 64],
        "verify_step_us": [25_123.456789, 1e-7, math.nan],
        "memory_bytes": pa.array([None, 4.85e10, 12.0]),
        "fits_memory": [True, False, None],
        "note": ["plain", "a, b", 'say "x" | y'],
    }
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (1.23456, "1.235"), (0.012345, "0.01235"), (123456.0, "123,456"), (math.nan, "-"),
        (2.5e15, "2.500e+15"),
    ],
)  # fmt: skip
def test_significant_digits(value, text):
    assert significant(value) == text


def test_a_name_with_figures_keeps_its_case_where_a_sentence_begins():
    assert capitalised("sglang-0.5's own terms") == "sglang-0.5's own terms"
    assert capitalised("kernels of h200-sxm") == "Kernels of h200-sxm"
    assert capitalised("") == ""


def test_units_are_decimal():
    assert with_prefix(8.5e10, "B") == "85.0 GB"
    assert with_prefix(3.12e14, "FLOP/s") == "312 TFLOP/s"
    assert duration(812.3) == "812 us"
    assert duration(14_210.0) == "14.2 ms"
    assert times(2.308) == "2.31x"


@given(st.floats(min_value=1e-4, max_value=1e11))
def test_rounding_stays_within_half_a_last_digit(value):
    assert float(significant(value).replace(",", "")) == pytest.approx(value, rel=0.5e-3)


def test_csv_reads_back_exactly_and_quotes_only_where_it_must():
    text = b"".join(csv_parts([TABLE.slice(0, 2), TABLE.slice(2)])).decode()
    assert text.count("gpu,candidates") == 1
    back = pd.read_csv(io.StringIO(text))
    assert list(back["verify_step_us"][:2]) == [25_123.456789, 1e-7]
    assert math.isnan(back["verify_step_us"][2])
    assert list(back["note"]) == ["plain", "a, b", 'say "x" | y']
    text = b"".join(csv_parts([TABLE.select(["gpu", "candidates"])])).decode()
    assert text == "gpu,candidates\na40,1\na40,16\na40,64\n"


def test_json_is_one_object_with_its_origin():
    parts = json_parts([TABLE.slice(0, 1), TABLE.slice(1)], "medusa-sim sweep", "sweep", {"caveats": ["c"]})
    found = json.loads(b"".join(parts))
    assert found["schema"] == "medusa-sim/sweep/1"
    assert found["version"] == __version__
    assert found["command"] == "medusa-sim sweep"
    assert found["caveats"] == ["c"]
    assert [row["candidates"] for row in found["rows"]] == [1, 16, 64]
    assert found["rows"][0]["verify_step_us"] == 25_123.456789
    assert found["rows"][2]["verify_step_us"] is None


def test_markdown_has_one_header_and_plain_text_cuts_nothing():
    text = b"".join(markdown_parts([TABLE.slice(0, 2), TABLE.slice(2)])).decode()
    assert len(text.strip().split("\n")) == 2 + 3
    assert "\\|" in text
    assert "48.5 GB" in text
    wide = TextTable(tuple(f"column_{i}" for i in range(40)), (("x" * 30,) * 40,), (False,) * 40)
    assert "…" not in aligned(wide)
    assert aligned(wide).count("x" * 30) == 40
    assert "x" * 30 in markdown(wide)


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    path = tmp_path / "out.csv"
    path.write_text("before")

    def fail_halfway() -> None:
        with atomic(path) as file:
            file.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_halfway()
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
    with atomic(path) as file:
        file.write(b"after")
    assert path.read_text() == "after"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("width", [60, 80, 100, 140, 200])
def test_a_line_never_cuts_a_cell(width):
    table = TextTable(
        ("name", "first", "second", "third", "source"),
        (("a100", "x" * 20, "y" * 20, "1.23", "words " * 30), ("h100", "x", "y", "4.56", "w")),
        (False, True, True, True, False),
        expendable=("first", "second"),
    )
    drawn = aligned(table.fitted(width))
    assert "1.23" in drawn
    assert drawn.count("words") == 30
    assert max(map(len, drawn.splitlines())) <= width


@pytest.mark.parametrize("runtime", ["cuda-graph", "hf-eager", "vllm"])
def test_every_part_of_a_step_is_drawn_and_they_add_up(runtime):
    grid = Grid.of([1, 64], [1024], [1, 2, 4])
    view = length_view(Scenario(runtime=runtime), grid, 1024)
    assert set(view.parts_us) <= set(PARTS)
    total = sum(view.parts_us.values())
    np.testing.assert_allclose(total, view.step_us, rtol=1e-6)
    chart = step_bars(view, "title")
    assert [bar.total for bar in chart.bars if bar.name == "1"] == pytest.approx([1.0, 1.0])
    figure = bars_figure(chart)
    render(figure, ".svg")
    labels = [each.get_window_extent() for each in figure.axes[0].get_yticklabels()]
    assert all(one.y0 > other.y1 for one, other in pairwise(labels))


def test_a_page_holds_the_tables_that_are_drawn_on_it():
    names = [f"column {i}" for i in range(40)]
    wide = TextTable(
        tuple(names), (tuple("cell" for _ in names),), (True,) * 40, expendable=tuple(names[10:])
    )
    page = html_page("title", [wide, Folded("all", wide)])
    assert page.count("column 10<") == 1
    assert page.count("column 5<") == 2


def test_a_line_parts_what_gains_from_what_loses_as_it_is_printed():
    """0.996 is printed as 1.00 and loses nothing."""
    speedups = {(1, 2): 1.3, (1, 4): 0.996, (1, 8): 0.99, (2, 2): 1.01, (2, 4): 0.98, (2, 8): 0.9}
    cells = [
        MapCell(batch=batch, count=count, speedup=speedup, is_best=False, fits=True)
        for (batch, count), speedup in speedups.items()
    ]
    map_ = HeatMap(title="", value="speedup", counted="", batches=(1, 2), counts=(2, 4, 8), cells=cells)
    assert map_.crossings == ([(1, 4), (2, 2)], [(1, 4)])
