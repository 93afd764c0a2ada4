"""How near a set-up lies to what was measured: groups of measured rows, and the nearest server.

`profiles/accuracy.csv` holds groups of pairs of measured and predicted values (`make accuracy`), never a
row. How near a scenario lies to measured servers is what its bands go by (`specs/nearness.py`), and so is the
error to expect: one function says both.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from medusa_sim import data
from medusa_sim.data import DataDir
from medusa_sim.outside.limits import SPEC_BYTES
from medusa_sim.reading import FileState, file_state, read_text
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.specs.engine import unversioned
from medusa_sim.specs.model import Model
from medusa_sim.specs.nearness import Nearness, nearness
from medusa_sim.specs.served_groups import known_kinds
from medusa_sim.specs.strict import convert
from medusa_sim.step.step import decode_step
from medusa_sim.units import FORMATS, format_text

FILE = "accuracy.csv"
OTHERS = "others"
"""The value of a column where too few rows would tell values apart."""
LEAST = 5
"""Fewest rows of a group: of fewer, mean, bias and worst would tell single rows."""
KINDS = {
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
REQUESTS = 16
"""Requests of the plain step whose band is given; 1 on a machine of one's own."""
_Share = Annotated[float, Meta(ge=0.0, le=100.0)]


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Rows of one kind that were compared, in sums.

    error: mean of |predicted / measured - 1|; bias: without the bars; worst: of the row furthest off. held:
    share of the rows in the 80 % band, whose mean half-width (of the logarithm) is half_width. left_out: mean
    error where a fit had not seen the group. fitted: whether parameters were fitted to these rows. data: the
    file of rows; source: where anybody finds them.
    """

    kind: str
    what: str
    engine: str
    card: str
    model: str
    family: str
    weights: str
    version: str
    gpus: str
    requests: str
    rows: Annotated[int, Meta(ge=LEAST)]
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
    """`1 to 8`; empty where nothing is known."""
    known = sorted({int(value) for value in map(float, values) if math.isfinite(value)})
    if not known:
        return ""
    return str(known[0]) if known[0] == known[-1] else f"{known[0]} to {known[-1]}"


def groups(data_dir: DataDir = None) -> tuple[Group, ...]:
    """Every group. Raises SpecError for a malformed file."""
    path = data.find("profiles", FILE, data_dir)
    return () if path is None else _read(file_state(path))


@lru_cache(maxsize=4)
def _read(state: FileState) -> tuple[Group, ...]:
    text = read_text(state.path, SPEC_BYTES, "a table of groups")
    rows = [
        {name: _value(name, given) for name, given in row.items()}
        for row in csv.DictReader(io.StringIO(text))
    ]
    return convert(rows, tuple[Group, ...], state.path)


_NUMBERS = ("error", "bias", "worst", "held", "half_width", "left_out")


def _value(column: str, text: str) -> Any:
    """A cell as its column takes it; text that is no number stays text, which `convert` refuses."""
    if column not in (*_NUMBERS, "rows"):
        return text
    try:
        return int(text) if column == "rows" else float(text) if text else None
    except ValueError:
        return text


def table_text(found: Sequence[Group]) -> str:
    """The file that `groups` reads."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for group in found:
        writer.writerow(["" if value is None else value for value in msgspec.structs.astuple(group)])
    return text.getvalue()


UNSERVED, DEVICE, OTHER_DEVICES = "unserved", "device", "other devices"
"""Without a server: nothing else, or speeds of a local engine on this very device, or on others alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How near a set-up lies to servers that were measured.

    nearness: of a plain step; None where no engine serves, or one of a machine of one's own. near_groups:
    of the measured set-up that it is judged by. half_width: of the 80 % band of a plain step (REQUESTS);
    between: what of that is for how near it lies, in quadrature. unserved: what is known where no server is.
    """

    nearness: Nearness | None
    near_groups: tuple[Group, ...]
    half_width: float
    between: float = 0.0
    unserved: str = UNSERVED

    @property
    def kind(self) -> str:
        """What is new about the set-up; without a server UNSERVED, DEVICE or OTHER_DEVICES."""
        return self.unserved if self.nearness is None else self.nearness.difference.kind

    @property
    def expected(self) -> float | None:
        """Mean error of steps to expect: of groups that a fit did not see, as new as this set-up is.

        At least that of another version where the nearest is one too (`nearness.widening_by` does likewise).
        """
        if self.nearness is None:
            return None
        known, version = self.nearness.known, known_kinds()["version"]
        is_other_version = self.nearness.difference.is_other_version
        return max(known.error, version.error) if is_other_version else known.error

    @property
    def nearest(self) -> str:
        """The measured set-up that it is judged by: `llama-3.1-70b in vllm-0.15 on h200-sxm, fp8`."""
        if self.nearness is None:
            return ""
        group = self.nearness.group
        formats = " and ".join(map(format_text, group.formats))
        return f"{group.model} in {group.runtime} on {group.gpu}, {formats}"


def weights_of(model: Model) -> str:
    """The format that most weights of a model have, by which groups tell it apart: of its experts, if any."""
    form = model.form if model.experts is None else model.experts.form or model.form
    return FORMATS[form].weight_dtype


def standing(scenario: Scenario) -> Standing:
    """How near a scenario lies to servers that were measured, by the group that its bands go by."""
    requests = 1 if scenario.runtime.local else REQUESTS
    step = decode_step(scenario.setting, np.asarray(requests), np.asarray(scenario.length))
    half_width = float(0.5 * np.log(step.high_us / step.low_us))
    if scenario.runtime.local:
        return _on_device(scenario, half_width)
    if scenario.runtime.engine is None:
        return Standing(nearness=None, near_groups=(), half_width=half_width)
    experts = float(step.parts_us.get("experts", np.zeros(())) / step.time_us)
    found = nearness(scenario.runtime.place(scenario.case), experts)
    known, engine = found.group, unversioned(found.group.runtime)
    near = tuple(
        group for group in groups(scenario.arguments.data_dir)
        if (group.engine, group.card) == (engine, known.gpu) and group.weights in known.formats
        and group.model in (known.model, scenario.model.name)
    )  # fmt: skip
    beside = float(found.widening.half_width(1.0, experts))
    return Standing(nearness=found, near_groups=near, half_width=half_width, between=beside)


def _on_device(scenario: Scenario, half_width: float) -> Standing:
    """Of a local engine: its speeds on the same device, else on all that were measured."""
    runtime = scenario.runtime.name
    every = tuple(group for group in groups(scenario.arguments.data_dir) if group.engine == runtime)
    own = tuple(group for group in every if group.card == scenario.gpu.name)
    known = DEVICE if own else OTHER_DEVICES if every else UNSERVED
    return Standing(nearness=None, near_groups=own or every, half_width=half_width, unserved=known)


def together(found: Iterable[Group]) -> tuple[Group, ...]:
    """Groups with the same words in all that tables of them show, joined: means over their rows."""
    parts: dict[tuple[str, ...], list[Group]] = {}
    for group in found:
        place = (group.kind, group.what, group.engine, group.card, group.model, group.weights)
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
