"""An answer as a picture to send: what was asked, whether speculation pays, what it rests on, and when.

1200 x 630 pixels, as messengers and pages show the picture of a link.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from medusa_sim import __version__
from medusa_sim.errors import UsageError
from medusa_sim.outside.escaping import for_figure
from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.plan.schedule import gains_by_batch
from medusa_sim.plan.schedule_row import ScheduleRow
from medusa_sim.report.figures.draw import look
from medusa_sim.report.figures.files import DPI
from medusa_sim.report.palette import FAINT, SHADES
from medusa_sim.report.recommend.sentences import Kind, ShortAnswer, short_answer
from medusa_sim.report.words.basis import rests_text
from medusa_sim.report.words.scenario import formats_text, workload_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

SIZE = (1200, 630)
"""Pixels."""
SUFFIXES = (".png", ".svg")
_LEFT, _RIGHT, _MIDDLE = 0.045, 0.955, 0.50
"""Shares of the width: left and right margin, and where words end and the chart begins."""
_LETTERS, _MOST_LINES = 62, 3
"""Letters of a line of what the answer rests on, and the most lines."""


def title_lines(answer: Recommendation, row: ScheduleRow) -> tuple[str, str]:
    """(`llama-3.1-8b on 8 x h200-sxm`, `vllm-0.33, eagle3, 512 in, 256 out, 1 request at once`)."""
    scenario = answer.scenario
    run = [scenario.runtime.name, *formats_text(scenario.arguments), scenario.drafting.method]
    served = workload_text(scenario, [row.seq_len], str(row.batch_max))
    return f"{scenario.model.name} on {scenario.gpus_text}", ", ".join([*run, served])


@dataclass(frozen=True, slots=True)
class _Inks:
    """Colours of a theme; each text has 4.5:1 on the page."""

    page: str
    text: str
    quiet: str
    grid: str
    line: str
    by_kind: Mapping[Kind, str]


_LIGHT = _Inks(
    "#ffffff", "#16181d", "#555a66", "#e2e4e8", SHADES[0],
    {"pays": "#14713a", "uncertain": "#8a5a00", "off": "#b3261e", "no room": "#b3261e"},
)  # fmt: skip
_DARK = _Inks(
    "#15171c", "#f2f3f5", "#b0b5c0", "#30343d", "#6ea1ff",
    {"pays": "#4cc474", "uncertain": "#e0a93b", "off": "#ff7b72", "no room": "#ff7b72"},
)  # fmt: skip


def check_card_path(path: Any, *, overwrite: bool) -> None:
    """Refuse at once a file of another form, or one that is there. Raises UsageError or OutputError."""
    from medusa_sim.writing import check_new, check_writable

    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"cannot tell the form of the card {path}: allowed are {' and '.join(SUFFIXES)}")
    check_writable(path)
    check_new(path, overwrite=overwrite)


def card_figure(answer: Recommendation, batch: int | None = None, *, dark: bool = False) -> Figure:
    """The card of an answer at one of its batches (None: the smallest) and its first length.

    Raises UsageError for a batch that was not searched.
    """
    from matplotlib.figure import Figure

    inks = _DARK if dark else _LIGHT
    batch = answer.question.batch_min if batch is None else batch
    row = answer.scheduled_row_at(batch, answer.question.seq_len[0])
    short, (title, run) = short_answer(answer, row), title_lines(answer, row)
    with look():
        figure = Figure(figsize=(SIZE[0] / DPI, SIZE[1] / DPI), facecolor=inks.page)
        quiet: dict[str, Any] = {"color": inks.quiet, "va": "top"}
        _fitted(figure, title, 0.93, 19.0, _RIGHT - _LEFT, color=inks.text, weight="bold")
        _fitted(figure, run, 0.835, 10.0, _RIGHT - _LEFT, **quiet)
        figure.text(
            _LEFT, 0.70, short.figure, color=inks.by_kind[short.kind], fontsize=44, weight="bold", va="top"
        )
        _fitted(figure, short.action, 0.465, 14.0, _MIDDLE - _LEFT, color=inks.text, weight="bold", va="top")
        _fitted(figure, short.more, 0.395, 10.5, _MIDDLE - _LEFT, **quiet)
        for place, line in enumerate(_basis(answer)):
            figure.text(_LEFT, 0.315 - 0.042 * place, for_figure(line), fontsize=7.6, **quiet)
        made_on = f"{date.today():%Y-%m-%d}"
        figure.text(_LEFT, 0.045, f"medusa-sim {__version__}", fontsize=9, weight="bold", color=inks.text)
        figure.text(_RIGHT, 0.045, f"predicted {made_on}", fontsize=9, color=inks.quiet, ha="right")
        figure.add_artist(_rule(inks))
        if drawn := [gain for gain in gains_by_batch(answer.rows_at(row.seq_len)) if gain["fits_memory"]]:
            axis = figure.add_axes((_MIDDLE + 0.085, 0.235, _RIGHT - _MIDDLE - 0.085, 0.465))
            _curve(axis, drawn, row, inks, short)
    return figure


def _rule(inks: _Inks) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([_LEFT, _RIGHT], [0.105, 0.105], color=inks.grid, linewidth=1.0)


def _fitted(figure: Figure, text: str, y: float, size: float, width: float, **how: Any) -> Text:
    """A line at the left margin, in letters small enough for `width` of the figure."""
    drawn = figure.text(_LEFT, y, for_figure(text), fontsize=size, **{"va": "top"} | how)
    wide = drawn.get_window_extent().width / figure.bbox.width
    if wide > width:
        drawn.set_fontsize(max(size * width / wide, 5.5))
    return drawn


def _basis(answer: Recommendation) -> list[str]:
    """Basis of the answer, in as many lines as there is room for."""
    return wrap(rests_text(answer.scenario), _LETTERS, max_lines=_MOST_LINES, placeholder=" ...")


def _curve(
    axis: Axes, drawn: Sequence[Mapping[str, Any]], row: ScheduleRow, inks: _Inks, short: ShortAnswer
) -> None:
    """Speedup of the schedule by batch with its band, the batch of the answer ringed."""
    axis.set_facecolor(inks.page)
    axis.grid(color=inks.grid)
    axis.tick_params(colors=inks.quiet, labelsize=8.5)
    for side in ("left", "bottom"):
        axis.spines[side].set_color(FAINT)
    axis.axhline(1.0, color=FAINT, linewidth=1.0, linestyle="--")
    axis.set_xlabel("requests at once", color=inks.quiet)
    axis.set_title("Speedup over decoding without drafts", color=inks.text, fontsize=9.2)
    batch, low, high, gain = (
        [gain[name] for gain in drawn] for name in ("batch", "speedup_low", "speedup_high", "speedup")
    )
    axis.fill_between(batch, low, high, color=inks.line, alpha=0.18, linewidth=0)
    axis.plot(batch, gain, color=inks.line, linewidth=2.4, marker="o" if len(batch) == 1 else None)
    if batch[-1] > batch[0]:
        axis.set_xscale("log", base=2)
        ticks = [2**power for power in range(17) if batch[0] <= 2**power <= batch[-1]]
        every = -(-len(ticks) // 8)
        axis.set_xticks(ticks[::every] or [batch[0]], [f"{tick:,}" for tick in ticks[::every] or [batch[0]]])
        axis.minorticks_off()
    here = next((gain for gain in drawn if gain["batch"] == row.batch_max), None)
    if here is not None:
        ring: dict[str, Any] = {"markersize": 12, "markerfacecolor": "none", "markeredgewidth": 2.4}
        axis.plot(
            [here["batch"]], [here["speedup"]], "o", color=inks.by_kind[short.kind], clip_on=False, **ring
        )
    axis.set_ylim(bottom=min(0.9, *low) if min(low) < 1.0 else 0.9, top=max(1.15, 1.04 * max(high)))
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}x")
