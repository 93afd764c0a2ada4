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

from medusa_sim.acceptance.tree import CandidateTree, check_size
from medusa_sim.errors import SpecError, shown, unknown_name
from medusa_sim.outside.limits import SPEC_BYTES
from medusa_sim.reading.documents import json_of
from medusa_sim.reading.files import named, read_text

SCHEMA = 1
PATH_KEYS = ("paths", "medusa_choices", "eagle_choices", "choices")
TreeFormat = Literal["paths", "leaves", "json", "tensorrt-llm", "successors"]

_ASSIGNED = re.compile(r"^[ \t]*(\w+)[ \t]*=[ \t]*(?=\[)", re.MULTILINE)
_BRACKET = re.compile(r"[\[\]]")
_REST = re.compile(r"[ \t]*(?:#[^\n]*)?$", re.MULTILINE)
"""Text allowed after a list on its last line."""


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
            content = {"Successors": tree.children}
    return json.dumps(content)
