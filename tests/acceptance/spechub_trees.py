"""Tokens per step of SpecHub's measured trees, beside those of independent positions.

The vectors give P(k-th child accepted) for Llama-68m/160m drafting for Llama-2-7B-chat on CNN; the runs give
tokens per step of k-ary and optimised trees. Nothing is fitted here.

What the logs need to be read right:

* a k-ary map `k^d` counts d levels with the root, so it has d - 1 levels of children;
* temperatures are spelt `T06` or `T0.6`; vectors were measured on CNN, so only CNN runs are compared;
* an optimised map (`T06-P1-cnn-32`) names draft temperature, data and size but no sampler: one map
  served all three. Built from the two-child SpecHub vector it explains all of them; built per sampler
  it would promise 6 % more than was measured at 32 candidates;
* `binary_trees_log_T06.txt` has runs under wrong labels (its 2^4 is a 2^2, 34 % off); the same
  settings stand in `b_trees_*.txt`, so the file is left out whole. Runs that a second log repeats
  count once.
"""

import re
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import isotonic_regression

from medusa_sim.acceptance.heads import HeadAccuracy, expected_tokens_per_step, optimal_order
from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.arrays import FloatArray

LABELS_WRONG = "binary_trees_log_T06.txt"
VECTOR_PREFIX = {
    "RRS_with_replacement(test_specinfer)": "SpecInferTree-",
    "RRS_without_replacement(testbed/SpecTree)": "SpecTree-",
    "SpecHub": "",
}
DEPTH_MAX = 16
"""Deeper than any tree of the runs: 32 candidates give 8 levels."""
_VECTOR_NAME = re.compile(r"(SpecInferTree-|SpecTree-|)(llama-\w+)-7b-chat-T([\d.]+)-P1-cnn")
_K_ARY = re.compile(r"(\d+)\^(\d+)")
_OPTIMISED = re.compile(r"T[\d.]+-P1-cnn-(\d+)")


def child_vectors(table: Path) -> dict[tuple[str, str, float], FloatArray]:
    """(children,) acceptance by child, keyed by vector prefix, draft and temperature.

    Two measurements under both spellings of one temperature are averaged.
    """
    frame = pd.read_csv(table, names=["name", "child", "prob"], skiprows=1)
    by_key: dict[tuple[str, str, float], list[FloatArray]] = {}
    for name, rows in frame[frame["child"] != "none"].groupby("name"):
        if match := _VECTOR_NAME.fullmatch(str(name)):
            order = rows["child"].astype(int).to_numpy().argsort()
            temperature = float(re.sub(r"^0(\d)", r"0.\1", match[3]))  # `06` is 0.6
            by_key.setdefault((match[1], match[2], temperature), []).append(rows["prob"].to_numpy()[order])
    return {key: np.mean(vectors, axis=0) for key, vectors in by_key.items()}


def _tree(growmap: str, shared_map: FloatArray | None) -> CandidateTree | None:
    """The tree that a map's name means; None of an optimised one whose vector is not known."""
    if match := _K_ARY.fullmatch(growmap):
        return CandidateTree.cartesian([int(match[1])] * (int(match[2]) - 1))
    match = _OPTIMISED.fullmatch(growmap)
    if match is None or shared_map is None:
        return None
    heads = HeadAccuracy(np.tile(isotonic_regression(shared_map, increasing=False).x, (DEPTH_MAX, 1)))
    return optimal_order(heads, int(match[1])).tree(int(match[1]))


def tree_comparison(vectors: Path, runs: Path) -> pd.DataFrame:
    """Every CNN run that a vector matches and that counts, with its tree's `kind`, `candidates`, `predicted`
    tokens per step and `error`, predicted / measured - 1; behind them those with wrong labels (`wrong`).
    """
    by_key = child_vectors(vectors)
    frame = pd.read_csv(runs)
    frame = frame[frame["dataset"] == "cnn"].assign(wrong=lambda rows: rows["log"] == LABELS_WRONG)
    frame = frame.drop_duplicates(["wrong", "algorithm", "draft", "T", "growmap", "tokens_per_step"])
    found = []
    for run in frame.sort_values("wrong", kind="stable").to_dict("records"):
        vector = by_key.get((VECTOR_PREFIX.get(run["algorithm"], "?"), run["draft"], run["T"]))
        tree = _tree(run["growmap"], by_key.get(("", run["draft"], run["T"])))
        if vector is None or tree is None:
            continue
        width = max(tree.ranks_used, vector.size)
        heads = HeadAccuracy(np.tile(np.pad(vector, (0, width - vector.size)), (tree.depth, 1)))
        predicted = expected_tokens_per_step(tree, heads)
        found.append(
            {
                **run,
                "kind": "k-ary" if _K_ARY.fullmatch(run["growmap"]) else "optimised",
                "candidates": tree.candidates,
                "predicted": predicted,
                "error": predicted / run["tokens_per_step"] - 1.0,
            }
        )
    return pd.DataFrame(found)
