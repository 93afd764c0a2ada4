"""`medusa-sim tree`: build, score, draw and convert candidate trees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from medusa_sim.cli import examples
from medusa_sim.cli.options import output_options
from medusa_sim.cli.output import Output, command_line
from medusa_sim.errors import SpecError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from medusa_sim.acceptance.heads import HeadAccuracy
    from medusa_sim.acceptance.tree import CandidateTree

FORMS = ("paths", "leaves", "json", "tensorrt-llm", "successors")


@click.group(
    epilog=examples(
        "medusa-sim tree build --head-accuracy medusa1-vicuna-7b --candidates 64 --format json -o tree.json",
        "medusa-sim tree score --tree tree.json --head-accuracy heads.csv",
        "medusa-sim tree draw --tree tree.json -o tree.svg",
    )
)
def tree() -> None:
    """Candidate trees: the best one of a size, what a given one is worth, pictures, other formats."""


def _accuracy_options(required: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrap(command: Callable[..., Any]) -> Callable[..., Any]:
        command = click.option(
            "--heads", type=click.IntRange(1, 64), default=None, help="Use only the first heads [all]."
        )(command)
        command = click.option(
            "--of", "of_model", default=None, help="Rows of this model, where a CSV file has a model column."
        )(command)
        return click.option(
            "--head-accuracy",
            required=required,
            default=None,
            help="A profile's name, or a CSV (head,rank,accuracy[,labels]) or TOML file.",
        )(command)

    return wrap


_TREE = (
    click.option(
        "--tree",
        "tree_file",
        type=click.Path(path_type=Path),
        required=True,
        help="Tree file (JSON, or a public .py list).",
    ),
    click.option("--name", default=None, help="Which tree, where the file holds several."),
    click.option("--leaves-only", is_flag=True, help="The file lists leaves; add their prefixes."),
)


def _tree_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_TREE):
        command = option(command)
    return command


def _heads(given: str, of_model: str | None, first: int | None, data_dir: Path | None) -> HeadAccuracy:
    """Accuracies of a profile or file. Raises SpecError for a curve, which has none."""
    from medusa_sim.acceptance.head_table import read_accuracies
    from medusa_sim.acceptance.profile import load_acceptance

    if of_model is not None:
        if not given.endswith(".csv"):
            raise UsageError(f"--of {of_model} picks rows of a CSV file; {given} is none")
        accuracy = read_accuracies(Path(given), of_model)
    else:
        profile = load_acceptance(given, data_dir)
        if profile.heads is None:
            raise SpecError(f"acceptance {given} is a curve without heads; give accuracies per head and rank")
        accuracy = profile.heads
    return accuracy if first is None else accuracy.first(first)


@tree.command(
    epilog=examples("medusa-sim tree build --head-accuracy heads.csv --candidates 64 --format json")
)
@_accuracy_options(required=True)
@click.option("--candidates", type=click.IntRange(1, 65536), required=True, help="Nodes and root.")
@output_options
def build(
    head_accuracy: str,
    of_model: str | None,
    heads: int | None,
    candidates: int,
    output: Output,
    data_dir: Path | None,
) -> None:
    """The tree of that many candidates with the most expected tokens per step."""
    from medusa_sim.acceptance.optimise import optimal_order

    accuracy = _heads(head_accuracy, of_model, heads, data_dir)
    _show(output, optimal_order(accuracy, candidates).tree(candidates), accuracy)


@tree.command(epilog=examples("medusa-sim tree score --tree mc_sim_7b_63.json --head-accuracy heads.csv"))
@_tree_options
@_accuracy_options(required=True)
@click.option(
    "--tail",
    type=click.Choice(("refuse", "zeros", "fit")),
    default="refuse",
    show_default=True,
    help="Ranks beyond the measured ones: refuse, never right, or a power law fitted to the head.",
)
@output_options
def score(
    tree_file: Path,
    name: str | None,
    leaves_only: bool,
    head_accuracy: str,
    of_model: str | None,
    heads: int | None,
    tail: str,
    output: Output,
    data_dir: Path | None,
) -> None:
    """Expected tokens per step of a given tree."""
    from medusa_sim.acceptance.tree_file import read_tree

    accuracy = _heads(head_accuracy, of_model, heads, data_dir)
    read = read_tree(tree_file, name=name, leaves_only=leaves_only)
    if tail == "zeros":
        accuracy = accuracy.with_zeros(read.ranks_used)
    elif tail == "fit":
        accuracy = accuracy.with_tail(read.ranks_used)
    _show(output, read, accuracy)


@tree.command(epilog=examples("medusa-sim tree draw --tree tree.json --head-accuracy heads.csv -o tree.png"))
@_tree_options
@_accuracy_options(required=False)
@click.option(
    "-o", "--output", "path", type=click.Path(path_type=Path), default=None, help="FILE.svg or FILE.png."
)
def draw(
    tree_file: Path,
    name: str | None,
    leaves_only: bool,
    head_accuracy: str | None,
    of_model: str | None,
    heads: int | None,
    path: Path | None,
) -> None:
    """The tree as text, or as a picture in a file."""
    from medusa_sim.acceptance.heads import node_probabilities
    from medusa_sim.acceptance.tree_file import read_tree, svg_tree, text_tree, write_png
    from medusa_sim.writing import check_writable, write_text

    read = read_tree(tree_file, name=name, leaves_only=leaves_only)
    probability = None
    if head_accuracy is not None:
        probability = node_probabilities(read, _heads(head_accuracy, of_model, heads, None))
    if path is None:
        click.echo(text_tree(read, probability))
        return
    check_writable(path)
    match path.suffix.lower():
        case ".svg":
            write_text(path, svg_tree(read, probability, title=path.stem))
        case ".png":
            write_png(read, path, probability)
        case suffix:
            raise UsageError(f"{path}: a picture is .svg or .png, given {suffix or 'no suffix'}")
    click.echo(f"wrote {path}", err=True)


@tree.command(
    epilog=examples("medusa-sim tree convert --tree medusa_choices.py --name mc_sim_7b_63 --to json")
)
@_tree_options
@click.option(
    "--to", "form", type=click.Choice(FORMS), default="paths", show_default=True, help="Form to write."
)
@click.option(
    "-o", "--output", "path", type=click.Path(path_type=Path), default=None, help="File instead of stdout."
)
def convert(tree_file: Path, name: str | None, leaves_only: bool, form: Any, path: Path | None) -> None:
    """The same tree in another form."""
    from medusa_sim.acceptance.tree_file import read_tree, tree_text
    from medusa_sim.writing import check_writable, write_text

    text = tree_text(read_tree(tree_file, name=name, leaves_only=leaves_only), form) + "\n"
    if path is None:
        click.echo(text, nl=False)
        return
    check_writable(path)
    write_text(path, text)
    click.echo(f"wrote {path}", err=True)


def _show(output: Output, built: CandidateTree, accuracy: HeadAccuracy) -> None:
    from medusa_sim import __version__
    from medusa_sim.acceptance.heads import (
        expected_tokens_per_step,
        node_probabilities,
        tokens_per_step_error,
    )
    from medusa_sim.acceptance.tree_file import SCHEMA

    tokens, error = expected_tokens_per_step(built, accuracy), tokens_per_step_error(built, accuracy)
    probability = node_probabilities(built, accuracy)
    paths = [list(path) for path in built.paths]
    if output.form == "json":
        values = {
            "schema": SCHEMA,
            "kind": "medusa-sim/tree",
            "version": __version__,
            "command": command_line(),
            "paths": paths,
            "candidates": built.candidates,
            "depth": built.depth,
            "tokens_per_step": tokens,
            "tokens_per_step_low": max(tokens - error, 1.0),
            "tokens_per_step_high": tokens + error,
            "nodes_per_depth": built.nodes_per_depth.tolist(),
        }
        output.text(json.dumps(values) + "\n")
        return
    if output.form in ("csv", "parquet", "md"):
        import pyarrow as pa

        depths = built.depths.tolist()
        rows = {
            "path": [json.dumps(path) for path in ([], *paths)],
            "depth": depths,
            "probability": probability,
        }
        output.rows(pa.table(rows), "tree")
        return
    from medusa_sim.acceptance.tree_file import text_tree

    head = f"{built.candidates} candidates, depth {built.depth}: {tokens:.4f} tokens a step"
    band = f" (80 %: {max(tokens - error, 1.0):.3f}-{tokens + error:.3f} from the labels)" if error else ""
    output.text(f"{head}{band}\n{text_tree(built, probability)}\n")
