"""Groups of measured rows and how far predictions are off them, as `profiles/accuracy.csv` has them.

Statistics of rows measured and predicted (`make accuracy`), never a row itself.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from medusa_sim import data
from medusa_sim.data import DataDir
from medusa_sim.models.model import Model
from medusa_sim.outside.limits import SPEC_BYTES
from medusa_sim.reading.files import FileState, file_state, read_text
from medusa_sim.reading.strict import convert
from medusa_sim.units import FORMATS

ACCURACY_FILE = "accuracy.csv"
SMALL_GROUPS = "others"
"""The value of a column for groups that are too small to be named."""
LEAST_ROWS = 5
"""Fewest rows of a group: statistics of fewer would give single rows away."""
ROW_KINDS = {
    "kernel": "one kernel alone",
    "step": "a step of an engine",
    "round": "a round of drafting and verification",
    "served": "time per token of a full server",
    "load": "times of requests that arrive at random",
    "speedup": "tokens/s with drafts over without",
    "local": "speeds of llama.cpp and MLX",
    "acceptance": "tokens of a step",
}
"""Kinds of rows."""
_Share = Annotated[float, Meta(ge=0.0, le=100.0)]
_NUMBERS = ("error", "bias", "worst", "held", "half_width", "left_out")


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Statistics of rows of one kind that were compared with predictions.

    error: mean of |predicted / measured - 1|; bias: mean of predicted / measured - 1; worst: that of the row
    furthest off. held: share of rows inside the 80 % band, whose mean half-width (of the logarithm) is
    half_width. left_out: mean error by a fit that had not seen the group. fitted: whether parameters were
    fitted to these rows. data: the file of rows; source: where they were published.
    """

    kind: str
    what: str
    engine: str
    gpu: str
    model: str
    family: str
    weights: str
    version: str
    gpus: str
    requests: str
    rows: Annotated[int, Meta(ge=LEAST_ROWS)]
    error: _Share
    bias: Annotated[float, Meta(ge=-1.0, le=100.0)]
    worst: Annotated[float, Meta(ge=-1.0, le=1000.0)]
    held: Annotated[float, Meta(ge=0.0, le=1.0)] | None
    half_width: _Share | None
    left_out: _Share | None
    fitted: str
    source: str
    data: str


COLUMNS = Group.__struct_fields__


def span_of(values: Iterable[Any]) -> str:
    """A span as text, `1 to 8`; empty without finite values."""
    known = sorted({int(value) for value in map(float, values) if math.isfinite(value)})
    if not known:
        return ""
    return str(known[0]) if known[0] == known[-1] else f"{known[0]} to {known[-1]}"


def groups(data_dir: DataDir = None) -> tuple[Group, ...]:
    """Every group of the file; none without one. Raises SpecError for a malformed one."""
    state = accuracy_state(data_dir)
    return () if state is None else _read(state)


def accuracy_state(data_dir: DataDir) -> FileState | None:
    """The state of the file of groups; None where there is none."""
    path = data.find("profiles", ACCURACY_FILE, data_dir)
    return None if path is None else file_state(path)


@lru_cache(maxsize=4)
def _read(state: FileState) -> tuple[Group, ...]:
    text = read_text(state.path, SPEC_BYTES, "a table of groups")
    rows = [
        {name: _value(name, given) for name, given in row.items()}
        for row in csv.DictReader(io.StringIO(text))
    ]
    return convert(rows, tuple[Group, ...], state.path)


def _value(column: str, text: str) -> Any:
    """A cell as a number where its column holds numbers; other text stays, and `convert` refuses it."""
    if column not in (*_NUMBERS, "rows"):
        return text
    try:
        return int(text) if column == "rows" else float(text) if text else None
    except ValueError:
        return text


def table_text(found: Sequence[Group]) -> str:
    """The text of the file that `groups` reads."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for group in found:
        writer.writerow(["" if value is None else value for value in msgspec.structs.astuple(group)])
    return text.getvalue()


def together(found: Iterable[Group]) -> tuple[Group, ...]:
    """Groups that agree in every column a table shows, joined: means over their rows."""
    parts: dict[tuple[str, ...], list[Group]] = {}
    for group in found:
        place = (group.kind, group.what, group.engine, group.gpu, group.model, group.weights)
        parts.setdefault(place, []).append(group)
    return tuple(map(_joined, parts.values()))


def _joined(parts: Sequence[Group]) -> Group:
    means = {name: mean_of(parts, name) for name in ("error", "bias", "held", "half_width", "left_out")}
    fitted = {group.fitted for group in parts}
    return msgspec.structs.replace(
        parts[0], **{name: None if math.isnan(mean) else mean for name, mean in means.items()},
        rows=sum(group.rows for group in parts), worst=max((group.worst for group in parts), key=abs),
        fitted=fitted.pop() if len(fitted) == 1 else "in part",
        source="; ".join(dict.fromkeys(group.source for group in parts)),
        data="; ".join(dict.fromkeys(group.data for group in parts)),
    )  # fmt: skip


def mean_of(found: Iterable[Group], name: str) -> float:
    """Mean of a column over the rows of groups that have it; nan where none has."""
    known = [(getattr(group, name), group.rows) for group in found if getattr(group, name) is not None]
    return sum(value * rows for value, rows in known) / sum(rows for _, rows in known) if known else math.nan


def weights_of(model: Model) -> str:
    """The format that groups a model: the format of most of its weights, of its experts if it has any."""
    form = model.form if model.experts is None else model.experts.form or model.form
    return FORMATS[form].weight_dtype
