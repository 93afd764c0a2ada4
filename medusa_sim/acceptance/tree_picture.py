"""Pictures of trees: text for a terminal, SVG without any library, PNG through matplotlib."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.arrays import FloatArray
from medusa_sim.outside.escaping import for_svg
from medusa_sim.writing import atomic

COLUMN_PX, ROW_PX, RADIUS_PX, MARGIN_PX = 26, 78, 11, 24


def _label(tree: CandidateTree, probability: FloatArray | None, node: int) -> str:
    guess = "root" if node == 0 else str(tree.ranks[node])
    return guess if probability is None else f"{guess}  {probability[node]:.3f}"


def text_tree(tree: CandidateTree, probability: FloatArray | None = None) -> str:
    """One line a node: its rank and, if given, the probability (candidates,) of reaching it."""
    children = tree.children
    lines = [_label(tree, probability, 0)]

    def branches(node: int, prefix: str) -> list[tuple[int, str, bool]]:
        """Children of a node, the last first, each with whether it is the last."""
        return [(child, prefix, child == children[node][-1]) for child in reversed(children[node])]

    stack = branches(0, "")
    while stack:
        node, prefix, is_last = stack.pop()
        lines.append(f"{prefix}{'└─' if is_last else '├─'} {_label(tree, probability, node)}")
        stack += branches(node, prefix + ("   " if is_last else "│  "))
    return "\n".join(lines)


def node_columns(tree: CandidateTree) -> FloatArray:
    """(candidates,) horizontal place of each node: leaves side by side, parents over their children."""
    place = np.zeros(tree.candidates)
    paths = [(), *tree.paths]
    leaves = sorted(tree.leaves.tolist(), key=lambda node: paths[node])
    place[leaves] = np.arange(len(leaves))
    for level in range(tree.depth - 1, -1, -1):
        below = np.flatnonzero(tree.depths == level + 1)
        low = np.full(tree.candidates, np.inf)
        high = np.full(tree.candidates, -np.inf)
        np.minimum.at(low, tree.parents[below], place[below])
        np.maximum.at(high, tree.parents[below], place[below])
        inner = np.isfinite(low)
        place[inner] = (low[inner] + high[inner]) / 2.0
    return place


def svg_tree(
    tree: CandidateTree, probability: FloatArray | None = None, title: str = "Candidate tree"
) -> str:
    """The tree as an SVG document: a circle a node with its rank, darker where it is likelier."""
    x = MARGIN_PX + COLUMN_PX * node_columns(tree)
    y = MARGIN_PX + ROW_PX * tree.depths.astype(np.float64)
    width, height = float(x.max()) + MARGIN_PX, float(y.max()) + MARGIN_PX
    shade = np.full(tree.candidates, 0.25) if probability is None else np.sqrt(np.clip(probability, 0.0, 1.0))
    paths = [(), *tree.paths]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        'font-family="sans-serif" font-size="10" text-anchor="middle">',
        f"<title>{for_svg(title)}</title>",
        '<g stroke="#8a94a6" stroke-width="1">',
    ]
    parts += [
        f'<line x1="{x[parent]:.1f}" y1="{y[parent]:.1f}" x2="{x[node]:.1f}" y2="{y[node]:.1f}"/>'
        for node, parent in enumerate(tree.parents.tolist())
        if parent >= 0
    ]
    parts.append("</g>")
    for node in range(tree.candidates):
        hover = f"path {list(paths[node])}" if node else "root"
        hover += "" if probability is None else f", reached with probability {probability[node]:.4f}"
        label = "root" if node == 0 else str(tree.ranks[node])
        ink = "#ffffff" if shade[node] > 0.6 else "#10233f"
        parts.append(
            f'<g><title>{hover}</title><circle cx="{x[node]:.1f}" cy="{y[node]:.1f}" r="{RADIUS_PX}" '
            f'fill="#1f4e9c" fill-opacity="{0.08 + 0.92 * shade[node]:.2f}" stroke="#1f4e9c"/>'
            f'<text x="{x[node]:.1f}" y="{y[node] + 3.5:.1f}" fill="{ink}">{label}</text></g>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def write_png(tree: CandidateTree, path: Path, probability: FloatArray | None = None) -> None:
    """The same picture as PNG, written whole or not at all.

    Raises:
        OutputError: the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    x, y = node_columns(tree), -tree.depths.astype(np.float64)
    figure = Figure(
        figsize=(max(4.0, 0.26 * float(x.max()) + 1.0), 1.0 + 0.9 * tree.depth), layout="constrained"
    )
    axes = figure.add_subplot()
    for node, parent in enumerate(tree.parents.tolist()):
        if parent >= 0:
            axes.plot([x[parent], x[node]], [y[parent], y[node]], color="#8a94a6", linewidth=0.8, zorder=1)
    shade = np.full(tree.candidates, 0.25) if probability is None else np.sqrt(probability)
    axes.scatter(x, y, s=130, c=shade, cmap="Blues", vmin=0.0, vmax=1.0, edgecolors="#1f4e9c", zorder=2)
    for node in range(tree.candidates):
        label = "root" if node == 0 else str(tree.ranks[node])
        colour = "white" if shade[node] > 0.6 else "#10233f"
        axes.text(x[node], y[node], label, ha="center", va="center", fontsize=7, color=colour, zorder=3)
    axes.set_axis_off()
    with atomic(path) as file:
        FigureCanvasAgg(figure).print_figure(file, format="png", dpi=150)
