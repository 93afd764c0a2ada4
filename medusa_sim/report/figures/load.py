"""Plots of a load test: latency and goodput against the rate, and one run over time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from medusa_sim.report.figures.style import FAINT, LINES, MARKERS, drawing, shades
from medusa_sim.units import KILO

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from medusa_sim.load.metrics import Goals
    from medusa_sim.load.search import Carried
    from medusa_sim.load.simulate import LoadPoint

_LATENCIES = (("ttft", "time to first token"), ("tpot", "time per token"))


def latency_figure(
    points: Sequence[LoadPoint], goals: Goals, title: str, carried: Sequence[Carried] = ()
) -> Figure:
    """Times against the rate: of the share that must keep the limits as lines, medians thin; knees marked.

    carried: what each policy carries, a dashed line each, and where it is full, a dotted one.
    """
    with drawing(9.2, 4.2, columns=2) as (figure, axes):
        for axis, (name, words) in zip(axes, _LATENCIES, strict=True):
            for number, (policy, line) in enumerate(_by_policy(points).items()):
                colour = shades(len(_by_policy(points)))[number]
                rates = [point.rate for point in line]
                for quantile, width, alpha in (("at_share", 1.8, 1.0), ("p50", 0.9, 0.75)):
                    axis.plot(
                        rates,
                        [KILO * point.mean[f"{name}_{quantile}_s"] for point in line],
                        LINES[number % len(LINES)],
                        marker=MARKERS[number % len(MARKERS)] if quantile == "at_share" else None,
                        color=colour,
                        linewidth=width,
                        alpha=alpha,
                        label=policy if quantile == "at_share" else None,
                    )
            limit = {"ttft": goals.ttft_s, "tpot": goals.tpot_s}[name]
            if limit is not None:
                axis.axhline(KILO * limit, color=FAINT, linewidth=1.0)
                axis.text(rates[0], KILO * limit, " limit", va="bottom", fontsize=8, color=FAINT)
            for number, each in enumerate(carried):
                colour = shades(len(carried))[number]
                if each.largest_per_s:
                    axis.axvline(each.largest_per_s, color=colour, linewidth=0.9, linestyle="--")
                axis.axvline(each.saturated_per_s, color=colour, linewidth=0.9, linestyle=":")
            axis.set_xlabel("requests a second")
            axis.set_ylabel(f"{words}, ms")
            axis.set_ylim(bottom=0.0)
            axis.legend(fontsize=8)
        axes[0].set_title(title)
        axes[1].set_title(f"{100 * goals.share:g} % of the requests are below; thin: half of them")
    return figure


def goodput_figure(points: Sequence[LoadPoint], title: str) -> Figure:
    """Requests a second that keep the limits against those that come; the diagonal keeps all."""
    with drawing(6.4, 4.2) as (figure, axes):
        axis = axes[0]
        lines = _by_policy(points)
        top = max(point.rate for point in points)
        axis.plot([0.0, top], [0.0, top], color=FAINT, linewidth=0.9)
        for number, (policy, line) in enumerate(lines.items()):
            means = [point.mean["goodput_per_s"] for point in line]
            halves = [_or_zero(point.half_width("goodput_per_s")) for point in line]
            axis.errorbar(
                [point.rate for point in line],
                means,
                yerr=halves,
                fmt=f"{MARKERS[number % len(MARKERS)]}{LINES[number % len(LINES)]}",
                color=shades(len(lines))[number],
                capsize=2.5,
                label=policy,
            )
        axis.set_xlabel("requests a second that come")
        axis.set_ylabel("requests a second within the limits")
        axis.set_xlim(left=0.0)
        axis.set_ylim(0.0, 1.05 * top)
        axis.legend(fontsize=8)
        axis.set_title(title)
    return figure


def timeline_figure(points: Sequence[LoadPoint], kv_tokens: float, title: str) -> Figure:
    """Requests, KV cache and tokens a second over the run of the first seed, a line a policy."""
    with drawing(9.2, 5.6, rows=3) as (figure, axes):
        for number, point in enumerate(points):
            line, colour = point.first.timeline, shades(len(points))[number]
            style = LINES[number % len(LINES)]
            for axis, values in zip(
                axes, (line.requests, 100.0 * line.kv_tokens / kv_tokens, line.tokens_per_s), strict=True
            ):
                axis.plot(line.time_s, values, style, color=colour, linewidth=1.1, label=point.policy)
            axes[0].plot(line.time_s, line.waiting, style, color=colour, linewidth=0.6, alpha=0.7)
        _label(axes, ("requests that decode\n(thin: that wait)", "KV cache, %", "tokens/s"))
        axes[0].legend(fontsize=8, ncols=4)
        axes[0].set_title(title)
        axes[2].set_xlabel("seconds")
    return figure


def _label(axes: Sequence[Axes], names: Sequence[str]) -> None:
    for axis, name in zip(axes, names, strict=True):
        axis.set_ylabel(name)
        axis.set_ylim(bottom=0.0)


def _by_policy(points: Sequence[LoadPoint]) -> dict[str, list[LoadPoint]]:
    found: dict[str, list[LoadPoint]] = {}
    for point in points:
        found.setdefault(point.policy, []).append(point)
    return found


def _or_zero(value: float) -> float:
    return value if math.isfinite(value) else 0.0
