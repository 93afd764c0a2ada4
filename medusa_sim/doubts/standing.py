"""How near a scenario is to measured servers: the group of rows that it is judged by, its band, its error.

How near it is decides its bands (`engines/nearness.py`) and the error to expect.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from medusa_sim.engines.accuracy_groups import Group, accuracy_state, groups
from medusa_sim.engines.engine import unversioned
from medusa_sim.engines.nearness import Nearness, nearness
from medusa_sim.engines.served_groups import known_kinds
from medusa_sim.reading.files import FileState
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.step import decode_step
from medusa_sim.units import format_text

BAND_REQUESTS = 16
"""Requests of the plain step whose band is given; 1 for local engines."""
UNSERVED, DEVICE, OTHER_DEVICES = "unserved", "device", "other devices"
"""Standing without a server's rows: nothing, a local engine's speeds on this device, or on others only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How near a set-up is to measured servers.

    nearness: that of a plain step; None of bare kernels and local engines. half_width: of the 80 % band of a
    plain step of BAND_REQUESTS; between: the part of it due to nearness, in quadrature. without_server: what
    is known without a server.
    """

    nearness: Nearness | None
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


def standing(scenario: Scenario) -> Standing:
    """How near a scenario is to measured servers, by the group that decides its bands.

    Kept while the file of groups is the same, since a page asks several times whenever it is drawn.
    """
    return _standing(scenario, accuracy_state(scenario.arguments.data_dir))


@lru_cache(maxsize=32)
def _standing(scenario: Scenario, state: FileState | None) -> Standing:
    """The same; state: of the file of groups, of which another makes another answer."""
    del state
    requests = 1 if scenario.runtime.local else BAND_REQUESTS
    step = decode_step(scenario.setting, np.asarray(requests), np.asarray(scenario.length))
    half_width = float(0.5 * np.log(step.high_us / step.low_us))
    if scenario.runtime.local:
        gpus = {group.gpu for group in _groups_in(scenario)}
        known = DEVICE if scenario.gpu.name in gpus else OTHER_DEVICES if gpus else UNSERVED
        return Standing(nearness=None, half_width=half_width, without_server=known)
    if not scenario.setting.runtime.widenings:
        return Standing(nearness=None, half_width=half_width)
    experts = float(step.parts_us.get("experts", np.zeros(())) / step.time_us)
    found = nearness(scenario.runtime.place(scenario.case), experts)
    beside = float(found.widening.half_width(1.0, experts))
    return Standing(nearness=found, half_width=half_width, between=beside)


def near_groups(scenario: Scenario) -> tuple[Group, ...]:
    """Groups of the measured set-up that a scenario is judged by.

    Of a local engine those on the same device, else on all measured ones.
    """
    if scenario.runtime.local:
        every = _groups_in(scenario)
        return tuple(group for group in every if group.gpu == scenario.gpu.name) or every
    found = standing(scenario).nearness
    if found is None:
        return ()
    known, engine = found.group, unversioned(found.group.runtime)
    return tuple(
        group for group in groups(scenario.arguments.data_dir)
        if (group.engine, group.gpu) == (engine, known.gpu) and group.weights in known.formats
        and group.model in (known.model, scenario.model.name)
    )  # fmt: skip


def _groups_in(scenario: Scenario) -> tuple[Group, ...]:
    """Groups of a local engine."""
    runtime = scenario.runtime.name
    return tuple(group for group in groups(scenario.arguments.data_dir) if group.engine == runtime)
