"""The card: one picture for the command and the app, with the answer's own numbers on it."""

import re
from datetime import date

import pytest
from click.testing import CliRunner
from PIL import Image

from medusa_sim import __version__
from medusa_sim.cli import cli
from medusa_sim.plan.recommend import recommend
from medusa_sim.report.card import SIZE, card_figure
from medusa_sim.report.figures.files import render
from medusa_sim.report.palette import contrast
from medusa_sim.scenario.question import Question
from medusa_sim.scenario.scenario import Scenario

SET_UPS = (
    ({"gpu": "h100-sxm", "model": "llama-3.1-8b", "drafter": "eagle3"}, 4),
    ({"gpu": "h100-sxm", "model": "llama-3.1-8b", "drafter": "ngram", "acceptance": "0.1"}, 8),
    ({"gpu": "l4", "model": "llama-3.3-70b", "drafter": "eagle3"}, 1),
    ({"gpu": "a100-80gb-pcie", "model": "vicuna-7b", "drafter": "medusa"}, 1),
)


def texts(figure) -> list[str]:
    return [text.get_text() for text in figure.texts]


@pytest.mark.parametrize(("set_up", "batch"), SET_UPS, ids=["pays", "off", "no room", "trees"])
def test_a_card_says_what_the_answer_says_within_its_edges(set_up, batch):
    answer = recommend(Scenario(**set_up), Question(batch_max=8))
    row = next(each for each in answer.schedule if each.batch_min <= batch <= each.batch_max)
    figure = card_figure(answer, batch)
    figure.canvas.draw()
    assert len(figure.axes) == row.fits_memory  # a chart without a batch that fits would be empty
    for axis in figure.axes:
        ruler = axis.yaxis
        for place, label in zip(ruler.get_majorticklocs(), ruler.get_majorticklabels(), strict=True):
            assert float(label.get_text().rstrip("x")) == pytest.approx(place, rel=1e-9)
    told = texts(figure)
    assert f"{set_up['model']} on {set_up['gpu']}" in told
    assert f"medusa-sim {__version__}" in told
    assert f"predicted {date.today():%Y-%m-%d}" in told
    if not row.fits_memory:
        assert "no room" in told
    elif row.candidates == 1:
        assert "off" in told
    else:
        assert any(re.fullmatch(r"\d\.\d\dx", text) for text in told)
        assert any(f"{row.drafts} drafts" in text or f"{row.candidates} candidates" in text for text in told)
    wide, high = figure.bbox.width, figure.bbox.height
    for text in figure.texts:
        box = text.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= wide
        assert 0 <= box.y0 < box.y1 <= high


@pytest.mark.parametrize("dark", [False, True])
def test_the_text_of_a_card_reads(dark):
    from matplotlib.colors import to_hex

    answer = recommend(Scenario(**SET_UPS[0][0]), Question(batch_max=2))
    figure = card_figure(answer, dark=dark)
    for text in figure.texts:
        assert contrast(to_hex(text.get_color()), to_hex(figure.get_facecolor())) >= 4.5
    assert b"<svg" in render(figure, ".svg")


def test_the_command_writes_it_and_replaces_nothing_unasked(tmp_path):
    path = tmp_path / "card.png"
    words = ["card", "--gpu", "h100-sxm", "--model", "llama-3.1-8b", "--drafter", "eagle3", "--batch", "1..4"]
    run = CliRunner().invoke(cli, [*words, "-o", str(path)])
    assert run.exit_code == 0, run.output
    with Image.open(path) as picture:
        assert picture.size == SIZE
    before = path.read_bytes()
    again = CliRunner().invoke(cli, [*words, "-o", str(path)])
    assert again.exit_code
    assert "--overwrite" in again.output
    assert path.read_bytes() == before
    other = CliRunner().invoke(cli, [*words, "-o", str(path), "--overwrite", "--at", "2"])
    assert other.exit_code == 0
    assert path.read_bytes() != before
    assert CliRunner().invoke(cli, [*words, "-o", str(tmp_path / "card.gif")]).exit_code
