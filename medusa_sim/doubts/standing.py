"""How near a set-up is to measured ones: groups of measured rows, and the nearest server.

`profiles/accuracy.csv` holds statistics of groups of rows, measured and predicted (`make accuracy`), never a
row itself. How near a scenario is to measured servers decides its bands (`specs/nearness.py`) and the error
to expect; `standing` gives both.
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
from medusa_sim.reading.files import FileState, file_state, read_text
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.specs.engine import unversioned
from medusa_sim.specs.model import Model
from medusa_sim.specs.nearness import Nearness, nearness
from medusa_sim.specs.served_groups import known_kinds
from medusa_sim.specs.strict import convert
from medusa_sim.step.step import decode_step
from medusa_sim.units import FORMATS, format_text

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
BAND_REQUESTS = 16
"""Requests of the plain step whose band is given; 1 for local engines."""
_Share = Annotated[float, Meta(ge=0.0, le=100.0)]
_NUMBERS = ("error", "bias", "worst", "held", "half_width", "left_out")
UNSERVED, DEVICE, OTHER_DEVICES = "unserved", "device", "other devices"
"""Standing without a server's rows: nothing, a local engine's speeds on this device, or on others only."""


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
    """Every group of the file. Raises SpecError for a malformed one."""
    state = _state(data_dir)
    return () if state is None else _read(state)


def _state(data_dir: DataDir) -> FileState | None:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How near a set-up is to measured servers.

    nearness: that of a plain step; None without a serving engine. near_groups: groups of the measured set-up
    that it is judged by. half_width: of the 80 % band of a plain step of BAND_REQUESTS; between: the part of
    it due to nearness, in quadrature. without_server: what is known without a server.
    """

    nearness: Nearness | None
    near_groups: tuple[Group, ...]
    half_width: float
    between: float = 0.0
    without_server: str = UNSERVED

    @property
    def kind(self) -> str:
        """The kind of difference; without a server UNSERVED, DEVICE or OTHER_DEVICES."""
        return self.without_server if self.nearness is None else self.nearness.difference.kind

    @property
    def expected(self) -> float | None:
        """Mean error of steps to expect: of groups that a fit did not see, as new as this set-up is.

        At least that of another version where the version differs too (as in `nearness.widening_by`).
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
    """The format that groups a model: the format of most of its weights, of its experts if it has any."""
    form = model.form if model.experts is None else model.experts.form or model.form
    return FORMATS[form].weight_dtype


def standing(scenario: Scenario) -> Standing:
    """How near a scenario is to measured servers, by the group that decides its bands.

    Kept while the file of groups is the same, since a page asks several times whenever it is drawn.
    """
    return _standing(scenario, _state(scenario.arguments.data_dir))


@lru_cache(maxsize=32)
def _standing(scenario: Scenario, state: FileState | None) -> Standing:
    """The same; state: of the file of groups, of which another makes another answer."""
    requests = 1 if scenario.runtime.local else BAND_REQUESTS
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
        group for group in (() if state is None else _read(state))
        if (group.engine, group.gpu) == (engine, known.gpu) and group.weights in known.formats
        and group.model in (known.model, scenario.model.name)
    )  # fmt: skip
    beside = float(found.widening.half_width(1.0, experts))
    return Standing(nearness=found, near_groups=near, half_width=half_width, between=beside)


def _on_device(scenario: Scenario, half_width: float) -> Standing:
    """Standing of a local engine: groups on the same device, else on all measured ones."""
    runtime = scenario.runtime.name
    every = tuple(group for group in groups(scenario.arguments.data_dir) if group.engine == runtime)
    own = tuple(group for group in every if group.gpu == scenario.gpu.name)
    known = DEVICE if own else OTHER_DEVICES if every else UNSERVED
    return Standing(nearness=None, near_groups=own or every, half_width=half_width, without_server=known)


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
