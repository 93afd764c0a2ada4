"""Tree: build, edit or import a candidate tree, and see what it gives."""

from __future__ import annotations

import json
from collections.abc import Callable

import answers
import inputs
import notes
import numpy as np
import show
import streamlit as st
import uploads
from charts import tree as charts

from medusa_sim.acceptance.heads import (
    HeadAccuracy,
    expected_tokens_per_step,
    node_probabilities,
    tokens_per_step_error,
)
from medusa_sim.acceptance.optimise import optimal_order
from medusa_sim.acceptance.profile import acceptance_names, load_acceptance
from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.acceptance.tree_file import parsed_tree, tree_text
from medusa_sim.arrays import FloatArray
from medusa_sim.errors import UsageError
from medusa_sim.plan.tree_speedup import BestTrees
from medusa_sim.report.numbers import times
from medusa_sim.specs.gpu import load_gpu

_KINDS = ("best of a size", "widths per head", "my paths", "a file")
_FORMS = ("paths", "leaves", "json", "tensorrt-llm", "successors")
_LARGEST = 256
_DEFAULT = "medusa1-vicuna-7b"
_EXAMPLE = "[[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0]]"


def page(set_up: inputs.SetUp) -> None:
    """The tree first as figures, then as a picture."""
    st.title("Candidate trees", anchor=False)
    left, middle, right = st.columns(3)
    name = inputs.choice(
        left,
        "accuracies",
        "Head accuracies",
        _profiles(),
        _DEFAULT,
        "How often each rank of each head is right.",
    )
    accuracy = load_acceptance(name).heads
    if accuracy is None:
        raise UsageError(f"acceptance {name} has no accuracies per head; choose another profile")
    kind = inputs.choice(middle, "kind", "Tree", _KINDS, _KINDS[0], "Build it, or bring your own.")
    batch = inputs.whole(right, "batch", "Batch", 1, 64, 1, "For the speedup on the GPU of the sidebar.")
    tree, told = _tree(kind, accuracy, name)
    show.ignored_note()
    extended = tree.ranks_used > accuracy.ranks
    if extended:
        accuracy = accuracy.with_tail(tree.ranks_used)
    probability = node_probabilities(tree, accuracy)
    speedup = answers.tree_speedup(set_up, tree, accuracy, batch)
    best = answers.best_trees(set_up, accuracy, batch, min(max(64, 2 * tree.candidates), _LARGEST))
    _figures(tree, accuracy, probability, speedup, best)
    show.chart(
        charts.tree_chart(tree, probability),
        name="tree",
        caption=_tree_caption(tree, accuracy, name),
        told=told,
        alt="The candidate tree, likelier nodes larger",
    )
    show.hand_out(
        "tree-files",
        [
            ("json" if form == "json" else f"{form}.json", "application/json", _text_of(tree, form))
            for form in _FORMS
        ],
    )
    here = (tree.candidates, expected_tokens_per_step(tree, accuracy), speedup)
    _budget(set_up, best, here, name, batch, extended=extended)
    _mask(tree, told)


def _profiles() -> tuple[str, ...]:
    return tuple(name for name in acceptance_names() if load_acceptance(name).heads is not None)


def _tree(kind: str, accuracy: HeadAccuracy, profile: str) -> tuple[CandidateTree, str]:
    """The tree, and the command that gives it."""
    if kind == _KINDS[0]:
        left, right = st.columns(2)
        size = inputs.whole(left, "size", "Candidates", 2, _LARGEST, 32, "Nodes and the root.")
        heads = inputs.whole(
            right, "depth", "Heads", 1, accuracy.heads, accuracy.heads, "The first heads only."
        )
        order = optimal_order(accuracy.first(heads), size)
        if order.tokens_per_step.size < size:
            size = order.tokens_per_step.size
            st.caption(f"{profile} describes trees of at most {size} candidates with {heads} heads.")
        tree = order.tree(size)
        words = ["tree", "build", "--head-accuracy", profile, "--candidates", str(tree.candidates)]
        if heads < accuracy.heads:
            words += ["--heads", str(heads)]
        return tree, show.command(words)
    if kind == _KINDS[1]:
        widths = []
        for i, column in enumerate(st.columns(accuracy.heads)):
            told = "Guesses of this head that follow every node of the level above; 0 ends the tree."
            widths.append(
                inputs.number(column, f"w{i + 1}", f"Head {i + 1}", 0, 16, (4, 3, 2, 0, 0)[i % 5], told)
            )
        stop = widths.index(0) if 0 in widths else len(widths)
        nodes = int(np.cumprod(widths[:stop]).sum()) + 1 if stop else 1
        if nodes > _LARGEST:
            raise UsageError(f"widths {widths[:stop]}: {nodes} candidates; at most {_LARGEST} are shown here")
        if not stop:
            raise UsageError("head 1 has width 0: give it at least one guess")
        return CandidateTree.cartesian(widths[:stop]), _score_command(profile)
    if kind == _KINDS[2]:
        text = inputs.text(
            st, "paths", "Paths: ranks from the root, as JSON", _EXAMPLE, "The public choices format."
        )
        return _small(parsed_tree(text, where="paths")), _score_command(profile)
    given = st.file_uploader("Tree file", type=["json", "py", "txt"], help="Read as data, never run.")
    if given is None:
        st.info("Upload medusa_choices, eagle_choices, a child list or this project's JSON.")
        st.stop()
    content = uploads.checked(given.name, given.getvalue())
    return _small(parsed_tree(uploads.text(given.name, content), where=given.name)), _score_command(profile)


def _small(tree: CandidateTree) -> CandidateTree:
    if tree.candidates > _LARGEST:
        raise UsageError(f"the tree has {tree.candidates} candidates; at most {_LARGEST} are shown here")
    return tree


def _score_command(profile: str) -> str:
    return show.command(["tree", "score", "--tree", "tree.json", "--head-accuracy", profile, "--tail", "fit"])


def _text_of(tree: CandidateTree, form: str) -> Callable[[], str]:
    return lambda: json.dumps(json.loads(tree_text(tree, form)))  # type: ignore[arg-type]


def _tree_caption(tree: CandidateTree, accuracy: HeadAccuracy, name: str) -> str:
    ranks = "Numbers: ranks. " if tree.candidates <= charts.LABELLED else ""
    heads = "correlated" if accuracy.correlation else "independent"
    return f"Area and shade: probability that a node is accepted ({name}, heads {heads}). {ranks}".strip()


def _figures(
    tree: CandidateTree, accuracy: HeadAccuracy, probability: FloatArray, speedup: float, best: BestTrees
) -> None:
    tokens = expected_tokens_per_step(tree, accuracy)
    most = float(best.tokens_per_step[: tree.candidates][-1])
    error = tokens_per_step_error(tree, accuracy)
    show.figures(
        show.Figure(
            "Tokens per step",
            f"{tokens:.2f}",
            f"+- {error:.2f} (80 %)" if error else None,
            "1 + the probabilities of all nodes. 80 % interval from the label counts alone; model "
            "error is not in it.",
        ),
        show.Figure("Candidates", str(tree.candidates), None, "Nodes of the tree and the root."),
        show.Figure("Depth", str(tree.depth), None, "Heads that draft."),
        show.Figure(
            "Speedup here",
            times(speedup),
            None,
            "Over plain decoding with the GPU, model, batch and context of this page; as many Medusa heads "
            "are charged as the tree is deep.",
        ),
        show.Figure(
            "Of the best tree",
            f"{tokens / most:.0%}",
            f"best of this size: {most:.2f}",
            "Tokens per step against the optimal tree of as many candidates.",
        ),
    )
    smallest = float(probability.min())
    st.markdown(
        f"The least likely node is accepted {smallest:.1%} of the time: that is what removing it costs."
    )


def _budget(
    set_up: inputs.SetUp,
    best: BestTrees,
    here: tuple[int, float, float],
    name: str,
    batch: int,
    *,
    extended: bool,
) -> None:
    """Best trees of every size, and the one at hand. extended: accuracies end in a fitted tail."""
    st.subheader("What a larger tree would bring", anchor=False)
    told = _sweep_command(set_up, batch, name, len(best.speedup))
    tail = "Ranks beyond the measured ones: a fitted tail, which `sweep` leaves out. " if extended else ""
    show.chart(
        charts.budget_chart(best.tokens_per_step.tolist(), best.speedup.tolist(), here),
        name="budget",
        caption="Fastest tree of every size, charged as many heads as it is deep, on "
        f"{set_up.gpu}, {set_up.model}, batch {batch}, length {set_up.seq_len}. "
        + tail
        + notes.accuracy(load_gpu(set_up.gpu), answers.setting_of(set_up)),
        told=told,
        alt="Tokens per step and speedup by candidates",
    )


def _sweep_command(set_up: inputs.SetUp, batch: int, profile: str, largest: int) -> str:
    words = ["sweep", "--gpu", set_up.gpu, "--model", set_up.model]
    words += ["--batch", str(batch), "--seq", str(set_up.seq_len)]
    words += set_up.launch_options
    words += ["--candidates", f"1..{largest}", "--acceptance", profile]
    return show.command([*words, "--format", "csv"])


def _mask(tree: CandidateTree, told: str) -> None:
    with st.expander("Attention mask"):
        if tree.candidates <= charts.MASK_DRAWN:
            show.chart(
                charts.mask_chart(tree),
                name="mask",
                caption="Each candidate sees the whole committed context, itself and its ancestors.",
                told=told,
                alt="The tree attention mask",
            )
        else:
            st.markdown(
                f"The mask of {tree.candidates} candidates is not drawn (at most {charts.MASK_DRAWN} are): "
                "download it as CSV, 1 where a row's candidate sees a column's."
            )
        show.hand_out("mask-rows", [("csv", "text/csv", lambda: show.csv_bytes(charts.mask_table(tree)))])
