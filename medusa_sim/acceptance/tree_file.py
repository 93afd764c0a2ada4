"""Trees from and to files: the public list of paths, engines' variants of it, and this project's JSON.

Read: a JSON list of paths (Medusa `medusa_choices`, EAGLE and TensorRT-LLM `eagle_choices`), a JSON
object with one of these keys, an object of several named trees, a Python file `name = [[0], ...]`, and
child lists (`Successors`, Sequoia's grow map). Nothing is ever evaluated as code.

Pictures: text for a terminal, SVG without any library, PNG through matplotlib.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from medusa_sim.acceptance.tree import CandidateTree, check_size
from medusa_sim.arrays import FloatArray
from medusa_sim.errors import SpecError, shown, unknown_name
from medusa_sim.outside.escaping import for_svg
from medusa_sim.outside.limits import SPEC_BYTES
from medusa_sim.reading import json_of, named, read_text
from medusa_sim.writing import atomic

SCHEMA = 1
PATH_KEYS = ("paths", "medusa_choices", "eagle_choices", "choices")
TreeFormat = Literal["paths", "leaves", "json", "tensorrt-llm", "successors"]

_ASSIGNED = re.compile(r"^[ \t]*(\w+)[ \t]*=[ \t]*(?=\[)", re.MULTILINE)
_BRACKET = re.compile(r"[\[\]]")
_REST = re.compile(r"[ \t]*(?:#[^\n]*)?$", re.MULTILINE)
"""What may stand behind a list on its last line."""


def _assignments(text: str) -> dict[str, str]:
    """Lists of lists in Python's syntax by the names that they are assigned to, in one pass over the text."""
    found: dict[str, str] = {}
    at = 0
    while (name := _ASSIGNED.search(text, at)) is not None:
        open_, at = 0, len(text)
        for bracket in _BRACKET.finditer(text, name.end()):
            open_ += 1 if bracket[0] == "[" else -1
            if not open_:
                at = bracket.end()
                break
        else:
            break
        if text[name.end() + 1 : at].lstrip().startswith("[") and _REST.match(text, at):
            found[name[1]] = text[name.end() : at]
    return found


def paths_from_successors(successors: Sequence[Sequence[int]], where: str = "tree") -> list[tuple[int, ...]]:
    """Paths of a tree given as the child list of each node, node 0 the root; rank = place in the list.

    Raises:
        SpecError: a child that does not exist, comes before its parent or has two parents.
    """
    path: dict[int, tuple[int, ...]] = {0: ()}
    check_size(len(successors), 0, where)
    for node, children in enumerate(successors):
        if node not in path or not isinstance(children, list):
            raise SpecError(f"{where}: node {node} of Successors has no parent before it, or no child list")
        for rank, child in enumerate(children):
            known = isinstance(child, int) and not isinstance(child, bool) and 0 < child < len(successors)
            if not known or child in path:
                raise SpecError(f"{where}: child {shown(child)} of node {node} is unknown or has two parents")
            path[child] = (*path[node], rank)
            check_size(0, len(path[child]), where)
    return [path[node] for node in range(1, len(successors))]


def _pick(trees: dict[str, Any], name: str | None, where: str) -> Any:
    if name is not None:
        if name not in trees:
            raise SpecError(f"{where}: " + unknown_name("tree", name, trees))
        return trees[name]
    if len(trees) == 1:
        return next(iter(trees.values()))
    if not trees:
        raise SpecError(
            f"{where}: an empty object holds no tree; give a list of paths such as [[0], [1], [0, 0]]"
        )
    raise SpecError(f"{where}: holds {len(trees)} trees, name one of: {', '.join(sorted(trees))[:200]}")


def _decoded(text: str, where: str) -> Any:
    try:
        return json_of(text, where, "JSON or `name = [[0], ...]`")
    except SpecError:
        assignments = _assignments(text)
        if not assignments:
            raise
    return {
        name: json_of(re.sub(r",\s*\]", "]", body), f"{where}: {shown(name)}", "a list of paths")
        for name, body in assignments.items()
    }


def parsed_tree(
    text: str,
    *,
    name: str | None = None,
    leaves_only: bool = False,
    where: str = "tree",
) -> CandidateTree:
    """The tree in `text`; `name` picks one of several.

    Raises:
        SpecError: text that holds no tree, several without a name, or a tree that is wrong.
    """
    value = _decoded(text, where)
    if isinstance(value, dict):
        key = next((key for key in PATH_KEYS if key in value), None)
        if key is not None and name is None:
            schema = value.get("schema", SCHEMA)
            if schema != SCHEMA:
                raise SpecError(f"{where}: schema {shown(schema)} is unknown (this version reads {SCHEMA})")
            value = value[key]
        elif isinstance(value.get("Successors"), list):
            value = paths_from_successors(value["Successors"], where)
        else:
            value = _pick(value, name, where)
    if not isinstance(value, list):
        raise SpecError(f"{where}: a list of paths is needed, given {type(value).__name__}")
    return CandidateTree.from_paths(value, leaves_only=leaves_only, where=where)


def read_tree(path: str | Path, *, name: str | None = None, leaves_only: bool = False) -> CandidateTree:
    """The tree in a file; see `parsed_tree`. SpecError when the file cannot be read."""
    text = read_text(Path(path), SPEC_BYTES, "a JSON list of paths")
    return parsed_tree(text, name=name, leaves_only=leaves_only, where=f"tree {named(path)}")


def tree_text(tree: CandidateTree, form: TreeFormat = "paths") -> str:
    """The tree as JSON text that `parsed_tree` reads back (`leaves` with `leaves_only=True`)."""
    paths = [list(path) for path in tree.paths]
    content: Any
    match form:
        case "paths":
            content = paths
        case "leaves":
            content = [paths[node - 1] for node in tree.leaves if node > 0]
        case "json":
            content = {
                "schema": SCHEMA,
                "paths": paths,
                "candidates": tree.candidates,
                "depth": tree.depth,
            }
        case "tensorrt-llm":
            content = {"eagle_choices": paths}
        case "successors":
            children: list[list[int]] = [[] for _ in range(tree.candidates)]
            for node, parent in enumerate(tree.parents.tolist()):
                if parent >= 0:
                    children[parent].append(node)
            content = {"Successors": children}
    return json.dumps(content)


COLUMN_PX, ROW_PX, RADIUS_PX, MARGIN_PX = 26, 78, 11, 24


def _label(tree: CandidateTree, probability: FloatArray | None, node: int) -> str:
    guess = "root" if node == 0 else str(tree.ranks[node])
    return guess if probability is None else f"{guess}  {probability[node]:.3f}"


def text_tree(tree: CandidateTree, probability: FloatArray | None = None) -> str:
    """One line a node: its rank and, if given, the probability (candidates,) of reaching it."""
    children: list[list[int]] = [[] for _ in range(tree.candidates)]
    for node, parent in enumerate(tree.parents.tolist()):
        if parent >= 0:
            children[parent].append(node)
    lines = [_label(tree, probability, 0)]
    stack = [(child, "", i == len(children[0]) - 1) for i, child in enumerate(children[0])][::-1]
    while stack:
        node, prefix, last = stack.pop()
        lines.append(f"{prefix}{'└─' if last else '├─'} {_label(tree, probability, node)}")
        below = prefix + ("   " if last else "│  ")
        stack += [(child, below, i == len(children[node]) - 1) for i, child in enumerate(children[node])][
            ::-1
        ]
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
