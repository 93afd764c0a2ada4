"""Trees from and to files: the public list of paths, engines' variants of it, and this project's JSON.

Read: a JSON list of paths (Medusa `medusa_choices`, EAGLE and TensorRT-LLM `eagle_choices`), a JSON
object with one of these keys, an object of several named trees, a Python file `name = [[0], ...]`, and
child lists (`Successors`, Sequoia's grow map). Nothing is ever evaluated as code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.errors import SpecError, shown, unknown_name
from medusa_sim.reading import SPEC_BYTES, json_of, read_text

SCHEMA = 1
PATH_KEYS = ("paths", "medusa_choices", "eagle_choices", "choices")
TreeFormat = Literal["paths", "leaves", "json", "tensorrt-llm", "successors"]

_ASSIGNMENT = re.compile(
    r"^\s*(\w+)\s*=\s*(\[\s*\[.*?\]\s*,?\s*\])\s*(?:#[^\n]*)?$", re.DOTALL | re.MULTILINE
)


def paths_from_successors(successors: Sequence[Sequence[int]], where: str = "tree") -> list[tuple[int, ...]]:
    """Paths of a tree given as the child list of each node, node 0 the root; rank = place in the list.

    Raises:
        SpecError: a child that does not exist, comes before its parent or has two parents.
    """
    path: dict[int, tuple[int, ...]] = {0: ()}
    for node, children in enumerate(successors):
        if node not in path or not isinstance(children, list):
            raise SpecError(f"{where}: node {node} of Successors has no parent before it, or no child list")
        for rank, child in enumerate(children):
            known = isinstance(child, int) and not isinstance(child, bool) and 0 < child < len(successors)
            if not known or child in path:
                raise SpecError(f"{where}: child {shown(child)} of node {node} is unknown or has two parents")
            path[child] = (*path[node], rank)
    return [path[node] for node in range(1, len(successors))]


def _pick(named: dict[str, Any], name: str | None, where: str) -> Any:
    if name is not None:
        if name not in named:
            raise SpecError(f"{where}: " + unknown_name("tree", name, named))
        return named[name]
    if len(named) == 1:
        return next(iter(named.values()))
    if not named:
        raise SpecError(
            f"{where}: an empty object holds no tree; give a list of paths such as [[0], [1], [0, 0]]"
        )
    raise SpecError(f"{where}: holds {len(named)} trees, name one of: {', '.join(sorted(named))[:200]}")


def _decoded(text: str, where: str) -> Any:
    try:
        return json_of(text, where, "JSON or `name = [[0], ...]`")
    except SpecError:
        assignments = dict(_ASSIGNMENT.findall(text))
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
    **limits: int | None,
) -> CandidateTree:
    """The tree in `text`; `name` picks one of several, `limits` are `heads` and `ranks` of `from_paths`.

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
    return CandidateTree.from_paths(value, leaves_only=leaves_only, where=where, **limits)


def read_tree(
    path: str | Path, *, name: str | None = None, leaves_only: bool = False, **limits: int | None
) -> CandidateTree:
    """The tree in a file; see `parsed_tree`. SpecError when the file cannot be read."""
    text = read_text(Path(path), SPEC_BYTES, "a JSON list of paths")
    return parsed_tree(text, name=name, leaves_only=leaves_only, where=f"tree {path}", **limits)


def leaf_paths(tree: CandidateTree) -> list[list[int]]:
    """Only the paths that end in a leaf, which say as much as all of them."""
    return [list(tree.paths[node - 1]) for node in tree.leaves if node > 0]


def tree_text(tree: CandidateTree, form: TreeFormat = "paths", *, indent: int | None = None) -> str:
    """The tree as JSON text that `parsed_tree` reads back (`leaves` with `leaves_only=True`)."""
    paths = [list(path) for path in tree.paths]
    content: Any
    match form:
        case "paths":
            content = paths
        case "leaves":
            content = leaf_paths(tree)
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
    return json.dumps(content, indent=indent)
