"""A candidate tree as a drawing, and what each further node brings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from charts.style import HALO, NEUTRAL, Spec, base, category, layer, quantity
from medusa_sim.acceptance.tree_picture import node_columns
from medusa_sim.report.palette import SHADES

if TYPE_CHECKING:
    from medusa_sim.acceptance.tree import CandidateTree
    from medusa_sim.arrays import FloatArray
    from medusa_sim.plan.tree_answer import TreeCurve

LABELLED = 64
"""Candidates up to which each node carries its rank."""


def tree_chart(tree: CandidateTree, probability: FloatArray) -> Spec:
    """Nodes by depth; area and shade are the probability that the node is accepted."""
    across = node_columns(tree)
    depths, parents = tree.depths, tree.parents
    paths = [(), *tree.paths]
    nodes = [
        {
            "x": float(across[i]),
            "depth": int(depths[i]),
            "p": float(probability[i]),
            "path": "root" if not paths[i] else ", ".join(map(str, paths[i])),
            "label": "root" if not paths[i] else str(paths[i][-1]),
        }
        for i in range(tree.candidates)
    ]
    edges = [
        {"x": node["x"], "depth": node["depth"], "x2": nodes[parent]["x"], "depth2": nodes[parent]["depth"]}
        for node, parent in zip(nodes[1:], parents[1:].tolist(), strict=True)
    ]
    x = quantity("x", None, axis=None, scale={"padding": 14})
    y = quantity(
        "depth",
        "depth (head)",
        scale={"reverse": True, "domain": [0, max(tree.depth, 1)], "padding": 16, "nice": False},
        axis={"values": list(range(tree.depth + 1)), "format": "d"},
    )
    tips = [
        category("path", "ranks from the root"),
        quantity("depth", "depth"),
        quantity("p", "accepted with probability", format=".3f"),
    ]
    at = {"x": x, "y": y, "tooltip": tips}
    size = quantity("p", None, scale={"domain": [0, 1], "range": [18, 420]}, legend=None)
    scale = {"scheme": "cividis", "domain": [0, 1], "reverse": True}
    shade = quantity("p", "probability that the node is accepted", scale=scale)
    text = layer(
        "text",
        {**at, "text": {"field": "label"}},
        nodes,
        fontSize=10,
        dy={"expr": "datum.depth ? -13 : -17"},
        **HALO,
    )
    line = {"x": x, "y": y, "x2": {"field": "x2"}, "y2": {"field": "depth2"}}
    return base(
        110 + 80 * max(tree.depth, 1),
        layer=[
            layer("rule", line, edges, color=NEUTRAL, strokeWidth=1, opacity=0.7),
            layer(
                "circle",
                {**at, "size": size, "color": shade},
                nodes,
                opacity=1,
                stroke=NEUTRAL,
                strokeWidth=1,
            ),
            *([text] if tree.candidates <= LABELLED else []),
        ],
    )


def budget_chart(curve: TreeCurve, chosen: tuple[int, float, float]) -> Spec:
    """Tokens per step and speedup of the best tree of every size, and the tree at hand.

    chosen: candidates, tokens per step, speedup of the tree.
    """
    names = ("tokens per step", "speedup")
    values = [
        {"candidates": int(count), "value": float(value), "what": name}
        for name, line in zip(names, (curve.tokens_per_step, curve.step_speedup), strict=True)
        for count, value in zip(curve.candidates, line, strict=True)
    ]
    here = [
        {"candidates": chosen[0], "value": value, "what": name, "text": f"this tree: {value:.2f}"}
        for name, value in zip(names, chosen[1:], strict=True)
    ]
    largest = int(curve.candidates[-1])
    every = 32 if largest > 128 else 8 if largest > 16 else 1
    ticks = [1, *range(every, largest + 1, every)]
    x = quantity("candidates", "candidates (root included)", axis={"values": ticks}, scale={"nice": False})
    y = quantity("value", "tokens per step, or speedup", scale={"zero": False})
    legend = {"symbolType": "stroke", "symbolSize": 500, "symbolStrokeWidth": 2.5}
    what = category("what", None, scale={"domain": names, "range": SHADES[:2]}, legend=legend)
    dash = category("what", None, scale={"domain": names, "range": [[1, 0], [7, 3]]})
    tips = [
        category("what", "line"),
        quantity("candidates", "candidates"),
        quantity("value", "value", format=".3f"),
    ]
    at, text = {"x": x, "y": y}, {"field": "text"}
    return base(
        260,
        layer=[
            layer("line", {**at, "color": what, "strokeDash": dash, "tooltip": tips}, values, strokeWidth=2),
            layer("point", {**at, "color": what, "tooltip": tips}, here, size=90, strokeWidth=2.5),
            *(
                layer("text", {**at, "text": text}, [row], dy=dy, fontSize=11, fontWeight="bold")
                for row, dy in zip(here, (-14, 18), strict=True)
            ),
        ],
    )
