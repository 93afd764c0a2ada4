"""What `measure` takes, each declared once (`scenario.declare`). Free of torch: help pages read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from medusa_sim.errors import UsageError
from medusa_sim.lab.decoder.arguments import packed_weights
from medusa_sim.scenario.declare import ANY, FOLDER, NUMBER, PATH, REQUIRED, WHOLE, WORD, Declared, argument

if TYPE_CHECKING:
    from medusa_sim.acceptance.tree import CandidateTree

Tell = Callable[[str], object]
"""Takes a line for the user."""
RunDtype = Literal["fp32", "bf16"]


@dataclass(frozen=True, kw_only=True)
class MeasureOptions(Declared):
    """What is measured: a device, with the shapes of some models."""

    device: str = argument("cpu", WORD, "cpu, cuda or cuda:n.")
    models: tuple[str, ...] = argument(
        ("llama-7b",), ANY, "Models whose shapes are measured: names or paths of a config.json, by commas.",
        names="models",
    )  # fmt: skip
    dtype: str | None = argument(None, WORD, "fp32, bf16, fp16, by commas [default: cpu fp32, cuda fp16].")
    packed: bool = packed_weights()
    budget: float | None = argument(
        None, NUMBER,
        "Stop after this many seconds, the most informative shapes first [default: all of them].",
        above=0, metavar="SECONDS",
    )  # fmt: skip
    out: Path | None = argument(
        None, FOLDER, "Folder of the rows [default: profiles/operators/NAME in the data folder]."
    )
    name: str | None = argument(
        None, WORD, "Name of the device as a --gpu [default: from what the system says]."
    )
    threads: int | None = argument(None, ANY, "CPU threads [default: torch's].", names="threads")
    data_dir: Path | None = argument(
        None, FOLDER,
        "Your own specs and profiles [default: $MEDUSA_SIM_DATA_DIR, else the platform's user data folder].",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Sizes(Declared):
    """Sizes at which steps are measured, alone or in whole generations."""

    batches: Sequence[int] = argument((1, 2, 4, 8), ANY, "Batches.", option="--batch", names="batch")
    candidates: Sequence[int] = argument(
        (4, 8, 16, 32, 48, 64, 96, 128), ANY, "Tokens of a verification step.", names="candidates"
    )
    passes: int = argument(2, WHOLE, "Passes over the grid.", least=1)


@dataclass(frozen=True, kw_only=True)
class StepGrid(Sizes):
    """What is measured of every model."""

    seq_len: int = argument(1024, ANY, "Tokens before a step.", names="length")
    acceptance: str = argument(
        "medusa1-vicuna-7b", WORD, "Profile of heads, whose best trees the steps verify.", names="profile"
    )
    repeats: int = argument(10, WHOLE, "Timed steps of a cell.", least=1)

    def trees(self) -> dict[int, tuple[CandidateTree, float]]:
        """The best tree of each size above 1 and the tokens per step that it is expected to give.

        Raises UsageError for a profile without heads, or where there is no such size.
        """
        from medusa_sim.acceptance.heads import expected_tokens_per_step, optimal_order
        from medusa_sim.acceptance.profile import load_acceptance

        heads = load_acceptance(self.acceptance).heads
        counts = [count for count in self.candidates if count > 1]
        if heads is None:
            raise UsageError(f"acceptance profile {self.acceptance} has no head accuracies; choose another")
        if not counts:
            raise UsageError("candidates: at least one count above 1 is needed besides plain decoding")
        order = optimal_order(heads, max(counts))
        trees = {count: order.tree(count) for count in counts}
        return {count: (tree, expected_tokens_per_step(tree, heads)) for count, tree in trees.items()}


@dataclass(frozen=True, kw_only=True)
class RunGrid(Sizes):
    """What is run of every checkpoint; each batch divides the prompts."""

    checkpoint: Sequence[Path] = argument(
        REQUIRED, PATH,
        "Checkpoint with Medusa heads and an acceptance profile of its name; may be given again.", many=True,
    )  # fmt: skip
    dtype: RunDtype = argument("fp32", WORD, "Of weights and arithmetic.", choices=get_args(RunDtype))
    packed: bool = packed_weights()
    prompts: int = 16
    new_tokens: int = 80
