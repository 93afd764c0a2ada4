"""Fitted parameters of communication: collectives, and tokens sent to their experts.

Rates are shares of the datasheet's link (`link_bandwidth_bytes_per_s`) or of a streaming multiprocessor's
even share of it. Equations: `latency/collective.py`, `latency/dispatch.py`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from medusa_sim.gpus.fitted import Fit, Norm, Rate, Ratio
from medusa_sim.reading.strict import Us

FEWEST_RANKS = 2.0
"""Ranks at which a regime's range and start are stated."""


class CollectiveRegime(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One algorithm and protocol of a library, which serves a range of message sizes (C2, C3)."""

    start_us: Us
    """Time of an empty message at two ranks."""
    rank_us: Us
    """The same for every further rank."""
    copy_passes: Ratio
    """How often the whole message passes at the link's datasheet bandwidth, whatever the number of ranks."""
    link_passes: Ratio
    """How often what an algorithm must send does."""
    bytes_max: Annotated[float, Meta(ge=0.0, le=1e15)] = 0.0
    """The largest message that it serves at two ranks; 0: any."""
    growth: Annotated[float, Meta(ge=-8.0, le=8.0)] = 0.0
    """bytes_max grows as (ranks / 2) to this power."""
    one_shot: bool = False
    """Whether each rank sends its whole message to every other."""
    in_switch: Ratio = 0.0
    """What a byte costs compared with a ring's where the switch adds up; 0: it does not."""


class CollectiveKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One collective of a library."""

    regimes: Annotated[tuple[CollectiveRegime, ...], Meta(min_length=1)]
    """By ascending message, the last open."""
    fit: Fit
    name: str = ""
    """Its name in the library, as rows give it; empty: any."""
    ranks_of: str = ""
    """`gpu:set:entry` of the kernel that it grows as beyond `most_ranks` (C5)."""
    most_ranks: Annotated[float, Meta(ge=FEWEST_RANKS, le=1024.0)] = FEWEST_RANKS
    """Ranks of its own rows, at most."""

    @property
    def knows_ranks(self) -> bool:
        """Whether it was measured at more than one number of ranks."""
        return any(regime.rank_us or regime.growth for regime in self.regimes)


class DispatchKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Dispatch or combination of tokens to experts (Y1 to Y5, `medusa_sim.latency.dispatch`)."""

    start_us: Us
    """Time without tokens."""
    width_us: Us
    """The same for every 1,024 values of a token's width."""
    spread_us: Us
    """The same for every copy of a token."""
    rank_us: Us
    """The same for every doubling of the ranks beyond two."""
    fill_us: Us
    """What is added, for every 1,024 values, until tokens fill the pipeline."""
    fill_tokens: Rate
    """Tokens that fill half of it."""
    token_us: Us
    """Time of one multiprocessor for a token."""
    own_us: Us
    """The same for every 1,024 values of it."""
    copy_us: Us
    """The same for every 1,024 values of each copy that travels."""
    link_fraction: Rate
    """Share of the link's bandwidth."""
    norm: Norm
    """Exponent of the smooth maximum of multiprocessors and link."""
    per_expert: bool
    """Whether a token makes a copy for each expert instead of each rank."""
    fit: Fit
    far_us: Us = 0.0
    """Start for every doubling of the nodes; 0 where no rows tell, as of the next two."""
    far_fraction: Ratio = 0.0
    """Share of the link's bandwidth between two nodes."""
    far_growth: Ratio = 0.0
    """Exponent by which that falls with more nodes."""
    name: str = ""
    """Of the library's backend; empty: any."""
