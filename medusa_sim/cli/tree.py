"""`medusa-sim tree`: build, score, draw and convert candidate trees."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from medusa_sim.cli import examples, say
from medusa_sim.cli import options as take
from medusa_sim.cli.output import Output, command_line
from medusa_sim.cli.values import Whole
from medusa_sim.errors import SpecError, UsageError
from medusa_sim.scenario.declare import FLAG, PATH, REQUIRED, WHOLE, WORD, Declared, argument

if TYPE_CHECKING:
    from medusa_sim.acceptance.heads import HeadAccuracy
    from medusa_sim.acceptance.tree import CandidateTree

FORMS = ("paths", "leaves", "json", "tensorrt-llm", "successors")
_NEEDED: dict[str, Any] = {"required": True}


@click.group(
    epilog=examples(
        "medusa-sim tree build --head-accuracy medusa1-vicuna-7b --candidates 64 --format json -o tree.json",
        "medusa-sim tree score --tree tree.json --head-accuracy heads.csv",
        "medusa-sim tree draw --tree tree.json -o tree.svg",
    )
)
def tree() -> None:
    """Candidate trees: the best one of a size, what a given one is worth, pictures, other formats."""


@dataclass(frozen=True, kw_only=True)
class TreeFile(Declared):
    """Where a tree stands."""

    tree_file: Path = argument(REQUIRED, PATH, "Tree file (JSON, or a public .py list).", option="--tree")
    name: str | None = argument(None, WORD, "Which tree, where the file holds several.")
    leaves_only: bool = argument(False, FLAG, "The file lists leaves; add their prefixes.")

    def read(self) -> CandidateTree:
        """The tree."""
        from medusa_sim.acceptance.tree_file import read_tree

        return read_tree(self.tree_file, name=self.name, leaves_only=self.leaves_only)


@dataclass(frozen=True, kw_only=True)
class Accuracies(Declared):
    """Accuracies by head and rank."""

    head_accuracy: str | None = argument(
        None, WORD, "A profile's name, or a CSV (head,rank,accuracy[,labels]) or TOML file."
    )
    of_model: str | None = argument(
        None, WORD, "Rows of this model, where a CSV file has a model column.", option="--of"
    )
    heads: int | None = argument(None, WHOLE, "Use only the first heads [all].", least=1, most=64)

    def read(self, data_dir: Path | None = None) -> HeadAccuracy:
        """Accuracy of heads of the profile or file. Raises SpecError for a curve, which has none."""
        from medusa_sim.acceptance.head_table import read_accuracies
        from medusa_sim.acceptance.profile import load_acceptance

        given = self.head_accuracy or ""
        if self.of_model is not None:
            if not given.endswith(".csv"):
                raise UsageError(f"--of {self.of_model} picks rows of a CSV file; {given} is none")
            accuracy = read_accuracies(Path(given), self.of_model)
        else:
            profile = load_acceptance(given, data_dir)
            if profile.heads is None:
                raise SpecError(
                    f"acceptance {given} is a curve without heads; give accuracies per head and rank"
                )
            accuracy = profile.heads
        return accuracy if self.heads is None else accuracy.first(self.heads)


_TREE = take.record("given", TreeFile)


@take.command("medusa-sim tree build --head-accuracy heads.csv --candidates 64 --format json", into=tree)
@take.record("asked", Accuracies, head_accuracy=_NEEDED)
@click.option("--candidates", type=Whole(1, 65536), required=True, help="Nodes and root.")
@take.output
@take.data_dir
def build(*, asked: Accuracies, candidates: int, output: Output, data_dir: Path | None) -> None:
    """The tree of that many candidates with the most expected tokens per step."""
    from medusa_sim.acceptance.heads import optimal_order

    accuracy = asked.read(data_dir)
    _show(output, optimal_order(accuracy, candidates).tree(candidates), accuracy)


@take.command("medusa-sim tree score --tree mc_sim_7b_63.json --head-accuracy heads.csv", into=tree)
@_TREE
@take.record("asked", Accuracies, head_accuracy=_NEEDED)
@click.option(
    "--tail",
    default="refuse",
    show_default=True,
    type=click.Choice(("refuse", "zeros", "fit")),
    help="Ranks beyond the measured ones: refuse, never right, or a power law fitted to the head.",
)
@take.output
@take.data_dir
def score(*, given: TreeFile, asked: Accuracies, tail: str, output: Output, data_dir: Path | None) -> None:
    """Expected tokens per step of a given tree."""
    accuracy, read = asked.read(data_dir), given.read()
    if tail == "zeros":
        accuracy = accuracy.with_zeros(read.ranks_used)
    elif tail == "fit":
        accuracy = accuracy.with_tail(read.ranks_used)
    _show(output, read, accuracy)


@take.command("medusa-sim tree draw --tree tree.json --head-accuracy heads.csv -o tree.png", into=tree)
@_TREE
@take.record("asked", Accuracies)
@click.option("-o", "--output", "path", type=take.FILE, help="FILE.svg or FILE.png.")
@take.data_dir
def draw(*, given: TreeFile, asked: Accuracies, path: Path | None, data_dir: Path | None) -> None:
    """The tree as text, or as a picture in a file."""
    from medusa_sim.acceptance.heads import node_probabilities
    from medusa_sim.acceptance.tree_picture import svg_tree, text_tree, write_png
    from medusa_sim.writing import check_writable, write_text

    read = given.read()
    probability = None if asked.head_accuracy is None else node_probabilities(read, asked.read(data_dir))
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
    say(f"wrote {path}")


@take.command("medusa-sim tree convert --tree medusa_choices.py --name mc_sim_7b_63 --to json", into=tree)
@_TREE
@click.option(
    "--to", "form", default="paths", show_default=True, type=click.Choice(FORMS), help="Form to write."
)
@click.option("-o", "--output", "path", type=take.FILE, help="File instead of stdout.")
def convert(*, given: TreeFile, form: Any, path: Path | None) -> None:
    """The same tree in another form."""
    from medusa_sim.acceptance.tree_file import tree_text
    from medusa_sim.writing import check_writable, write_text

    text = tree_text(given.read(), form) + "\n"
    if path is None:
        click.echo(text, nl=False)
        return
    check_writable(path)
    write_text(path, text)
    say(f"wrote {path}")


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
    from medusa_sim.acceptance.tree_picture import text_tree

    counted = f"{built.candidates} candidate{'s' * (built.candidates > 1)}"
    head = f"{counted}, depth {built.depth}: {tokens:.4f} tokens a step"
    band = f" (80 %: {max(tokens - error, 1.0):.3f}-{tokens + error:.3f} from the labels)" if error else ""
    output.text(f"{head}{band}\n{text_tree(built, probability)}\n")
