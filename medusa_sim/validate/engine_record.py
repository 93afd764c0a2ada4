"""The record of a served engine: what `benchmarks/validate_engine.py` keeps of a run, and reading it back.

<folder>/meta.toml         what was run, with what, on what
<folder>/operators.csv     the engine's own operators, each timed by itself, as rows of the project
<folder>/steps.csv         steps by target, method, drafts, batch and pass
<folder>/acceptance.csv    the shipped pair: share of steps that accepted so many drafts, by source
    <folder>/texts.csv         how many of its texts are the decoder's
<folder>/<model>/config.json
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from medusa_sim.errors import DataError
from medusa_sim.measure.record import read_toml_struct
from medusa_sim.reading import read_csv_table
from medusa_sim.specs.measurement import META, Environment
from medusa_sim.specs.model import Model
from medusa_sim.specs.strict import convert
from medusa_sim.validate.steps import decoder_model

if TYPE_CHECKING:
    import pandas as pd

DTYPE = "bf16"
OPERATOR_COLUMNS = ("target", "op", "m", "batch", "q_len", "kv_len", "time_us")
Method = Literal["plain", "ngram", "draft"]
Struct = TypeVar("Struct", bound=msgspec.Struct)


class EngineMeta(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`meta.toml`. seconds: of the whole run; settings: of the engine, one line; python: that it ran in."""

    schema: int
    title: str
    targets: tuple[str, ...]
    draft: str
    passes: int
    seconds: int
    settings: str
    python: str
    packages: dict[str, str]
    environment: Environment


class EngineStep(msgspec.Struct, frozen=True, kw_only=True, rename={"number": "pass"}):
    """One batch of one method in one pass.

    seq_len: mean committed tokens of a request. time_us, p10_us, p90_us, least_us: of the steps, each
    timed by the process's CPU time (with one thread it never waits), or by the wall clock with more threads;
    elapsed_us: wall clock over steps. All at the run's usual speed: divided by reference_us, which a fixed
    piece of work beside these steps took, times its median over the run. drafting, drafted, accepted: the
    engine's counters over these steps (requests that drafted, their draft tokens, those accepted); emitted:
    tokens of all requests.
    """

    target: str
    method: Method
    drafts: int
    batch: int
    number: int
    seq_len: float
    time_us: float
    p10_us: float
    p90_us: float
    least_us: float
    reference_us: float
    elapsed_us: float
    steps: int
    emitted: int
    drafting: int
    drafted: int
    accepted: int

    @property
    def rows(self) -> float:
        """Tokens that a step verified: one a request and what it drafted."""
        return self.batch + self.drafted / self.steps


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """Share of steps that accepted at least `position` drafts, with its standard error between texts.

    source: vLLM, decoder (the project's), predicted (other prompts' plain texts).
    """

    method: Method
    source: str
    position: int
    steps: int
    accepted: int
    share: float
    error: float


class SameText(msgspec.Struct, frozen=True, kw_only=True):
    """How many of the texts are the decoder's to the last token."""

    method: Method
    texts: int
    same: int
    tokens: int
    common_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRecord:
    """A folder, read. operators: columns as written."""

    meta: EngineMeta
    steps: list[EngineStep]
    operators: pd.DataFrame
    accepted: list[Accepted]
    texts: list[SameText]
    models: dict[str, Model]


def read_engine_record(folder: Path) -> EngineRecord:
    """Read a record. Raises DataError for a missing or malformed file."""
    meta = read_toml_struct(folder / META, EngineMeta)
    return EngineRecord(
        meta=meta,
        steps=_structs(folder / "steps.csv", EngineStep),
        operators=read_csv_table(folder / "operators.csv", OPERATOR_COLUMNS),
        accepted=_structs(folder / "acceptance.csv", Accepted),
        texts=_structs(folder / "texts.csv", SameText),
        models={name: decoder_model(folder, name, DTYPE) for name in (*meta.targets, meta.draft)},
    )


def _structs(path: Path, form: type[Struct]) -> list[Struct]:
    frame = read_csv_table(path, form.__struct_encode_fields__)
    return convert(frame.to_dict("records"), list[form], path, error=DataError)  # type: ignore[valid-type]
