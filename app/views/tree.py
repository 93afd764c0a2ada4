"""Tree: build, edit or import a candidate tree, and see what it gives in the set-up of the bar."""

from __future__ import annotations

import json
from functools import partial

import answers
import downloads
import inputs
import link
import notes
import numpy as np
import show
import streamlit as st
import uploads
from charts import tree as charts
from chosen import PageArguments
from inputs import Input

from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.acceptance.tree_file import parsed_tree, tree_text
from medusa_sim.doubts.of_scenario import scenario_doubts
from medusa_sim.errors import UsageError
from medusa_sim.plan.tree_answer import TreeAnswer, accuracies_of
from medusa_sim.report.words.basis import how_sure
from medusa_sim.report.words.numbers import percent, times
from medusa_sim.scenario.scenario import Scenario

_KINDS = ("as recommended", "best of a size", "widths per head", "my paths", "a file")
_FORMS = ("paths", "leaves", "json", "tensorrt-llm", "successors")
_LARGEST = 256
_WIDTHS = (4, 3, 2, 0, 0, 0, 0, 0)
_EXAMPLE = "[[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0]]"


def page(set_up: PageArguments) -> None:
    """The tree first as figures, then as a picture."""
    st.title("Candidate trees", anchor=False)
    headline = st.container()
    left, right = st.columns(2)
    first = _KINDS[1] if link.opened_with("size") else _KINDS[0]
    kind = inputs.choice(left, Input("kind", "Tree", "The recommended one, or your own."), _KINDS, first)
    of_batch = Input("batch", "Batch", "For the speedup in the set-up above.")
    batch = inputs.at_once(right, of_batch, answers.room(set_up))
    scenario = answers.scenario_of(set_up)
    tree, command = _tree(kind, set_up, scenario, batch)
    show.ignored_note()
    if set_up.chain_only and tree.depth < tree.candidates - 1:
        headline.error(
            f"**{set_up.title}: {set_up.engine} verifies chains only and cannot run this tree.** Choose "
            "another engine, or the recommended chain.",
            icon=":material/do_not_disturb_on:",
        )
        return
    answer = answers.tree(set_up, tree, batch)
    with headline:
        box = st.success if answer.step_speedup > 1.0 else st.error
        box(
            f"**{set_up.title}, batch {batch}: {tree.candidates} candidates, {tree.depth} drafts deep, "
            f"{times(answer.step_speedup)}**, {answer.tokens_per_step:.2f} tokens per step.",
            icon=":material/account_tree:",
        )
        planned = answers.warnings(set_up, answers.every_batch(set_up))
        lines = how_sure(scenario, f"Speedup {times(answer.step_speedup)}", seq_len=set_up.seq_len)
        show.how_sure(lines, *dict.fromkeys((*scenario_doubts(scenario), *planned)))
    _figures(set_up, tree, answer)
    ranks = "Numbers: ranks. " if tree.candidates <= charts.LABELLED else ""
    heads = "correlated" if accuracies_of(scenario).correlation else "independent"
    show.chart(
        charts.tree_chart(tree, answer.probability),
        name="tree",
        caption=f"Area and shade: probability that a node is accepted ({scenario.profile.name}, drafts "
        f"{heads}). "
        f"{ranks}".strip(),
        command=command,
        alt="The candidate tree, likelier nodes larger",
    )
    downloads.hand_out(
        "tree-files",
        label="The tree's files",
        files=[
            (
                "json" if form == "json" else f"{form}.json",
                "application/json",
                partial(lambda form: json.dumps(json.loads(tree_text(tree, form))), form),
            )
            for form in _FORMS
        ],
    )
    _budget(set_up, scenario, tree, answer, batch)


def _tree(kind: str, set_up: PageArguments, scenario: Scenario, batch: int) -> tuple[CandidateTree, str]:
    """The tree, and the command that gives it."""
    accuracy, profile = accuracies_of(scenario), scenario.profile.name
    if kind == _KINDS[0]:
        row = answers.row_at(set_up, batch)
        size = row.candidates if row.candidates > 1 else row.speculative_candidates
        tree = answers.best_tree(set_up, size, batch) if row.paths in (None, ()) else CandidateTree(row.paths)
        if row.candidates == 1:
            st.caption("Speculation is not recommended at this batch; this is the best of it.")
        return tree, _build_command(profile, tree)
    if kind == _KINDS[1]:
        meaning = "The fastest tree of that size in this set-up: nodes and the root."
        size = inputs.whole(st, Input("size", "Candidates", meaning), 2, _LARGEST, 32)
        tree = answers.best_tree(set_up, size, batch)
        if tree.candidates < size:
            st.caption(f"Trees of at most {tree.candidates} candidates are described by {profile} here.")
        return tree, _build_command(profile, tree)
    if kind == _KINDS[2]:
        widths = []
        for i, column in enumerate(st.columns(min(accuracy.depth, 8))):
            meaning = "Guesses of this head that follow every node of the level above; 0 ends the tree."
            of_head = Input(f"w{i + 1}", f"Head {i + 1}", meaning)
            widths.append(inputs.number(column, of_head, 0, 16, _WIDTHS[i]))
        stop = widths.index(0) if 0 in widths else len(widths)
        nodes = int(np.cumprod(widths[:stop]).sum()) + 1 if stop else 1
        if nodes > _LARGEST:
            raise UsageError(f"widths {widths[:stop]}: {nodes} candidates; at most {_LARGEST} are shown here")
        if not stop:
            raise UsageError("head 1 has width 0: give it at least one guess")
        return CandidateTree.cartesian(widths[:stop]), _score_command(profile)
    if kind == _KINDS[3]:
        of_paths = Input("paths", "Paths: ranks from the root, as JSON", "The public choices format.")
        text = inputs.text(st, of_paths, _EXAMPLE)
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


def _build_command(profile: str, tree: CandidateTree) -> str:
    words = ["tree", "build", "--head-accuracy", profile, "--candidates", str(tree.candidates)]
    return show.command([*words, "--heads", str(tree.depth)])


def _score_command(profile: str) -> str:
    return show.command(["tree", "score", "--tree", "tree.json", "--head-accuracy", profile, "--tail", "fit"])


def _figures(set_up: PageArguments, tree: CandidateTree, answer: TreeAnswer) -> None:
    served = answers.usual_request(set_up) is not None  # whose prompts lie between its steps
    show.figures(
        show.Figure(
            "Tokens per step",
            f"{answer.tokens_per_step:.2f}",
            f"± {answer.tokens_error:.2f} (80 %)" if answer.tokens_error else None,
            "1 + the probabilities of all nodes. 80 % interval from the sample sizes and, where the profile "
            "gives one, its model error.",
        ),
        show.Figure("Candidates", str(tree.candidates), None, "Nodes of the tree and the root."),
        show.Figure("Drafts deep", str(tree.depth), None, "Heads, or draft length, that it needs."),
        show.Figure(
            "Speedup of a step" if served else "Speedup",
            times(answer.step_speedup),
            None,
            "Over plain decoding with the engine, GPU, model, drafter and context above, at the batch above.",
        ),
        show.Figure(
            "Of the best tree",
            percent(answer.share_of_best, 0),
            f"most of this size: {answer.best_tokens_per_step:.2f}",
            "Tokens per step against the tree of as many candidates that emits most. The fastest tree may "
            "emit less, where a shallower one costs less drafting.",
        ),
    )
    st.markdown(
        f"The least likely node is accepted {percent(answer.least)} of the time: "
        "that is what removing it costs."
    )


def _budget(
    set_up: PageArguments, scenario: Scenario, tree: CandidateTree, answer: TreeAnswer, batch: int
) -> None:
    """Best trees of every size, and the one at hand."""
    st.subheader("What a larger tree would bring", anchor=False)
    largest = min(max(64, 2 * tree.candidates), _LARGEST)
    words = ["recommend", *set_up.options, "--candidates-max", str(largest), "--batch", str(batch)]
    tail = "Ranks beyond the measured ones: a fitted tail. " if answer.extended else ""
    what = "chain" if set_up.chain_only else "tree"
    curve = answers.tree_curve(set_up, batch, largest)
    show.chart(
        charts.budget_chart(curve, (tree.candidates, answer.tokens_per_step, answer.step_speedup)),
        name="budget",
        caption=f"The fastest {what} of every size with its drafting by "
        f"{scenario.drafting.drafter_class.title}: {set_up.title}, batch {batch}, length {set_up.seq_len:,}. "
        + tail
        + notes.accuracy(scenario),
        command=show.command([*words, "--by-count", "--format", "csv"]),
        alt="Tokens per step and speedup by candidates",
    )
