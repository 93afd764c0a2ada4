"""Fitted parameters of communication between GPUs, as stored in `hardware/<gpu>.toml`.

Rates are shares of the datasheet's link (`link_bandwidth_bytes_per_s`) or of a streaming multiprocessor's
even share of it; `medusa_sim.latency.collective` and `medusa_sim.latency.collective` have the equations.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from medusa_sim.specs.fitted import Fit, Norm, Rate, Ratio
from medusa_sim.specs.strict import Us


class CollectiveRegime(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One algorithm and protocol of a library, which serves a range of message sizes.

    bytes_max: the largest message that it serves at two ranks (0: any); it grows as (ranks / 2) ^ growth.
    start_us, rank_us: time of an empty message at two ranks, and for every further rank. copy_passes: how
    often the whole message passes at the link's datasheet bandwidth whatever the number of ranks;
    link_passes: how often what an algorithm must send does. one_shot: each rank sends its whole message to
    every other. in_switch: of ranks among which the switch adds up, what a byte costs beside a ring's (0: it
    does not).
    """

    start_us: Us
    rank_us: Us
    copy_passes: Ratio
    link_passes: Ratio
    bytes_max: Annotated[float, Meta(ge=0.0, le=1e15)] = 0.0
    growth: Annotated[float, Meta(ge=-8.0, le=8.0)] = 0.0
    one_shot: bool = False
    in_switch: Ratio = 0.0


class CollectiveKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One collective of a library: its regimes by ascending message, the last open.

    name: of the kernel in its library, by which rows ask for it; empty: any.
    """

    regimes: Annotated[tuple[CollectiveRegime, ...], Meta(min_length=1)]
    fit: Fit
    name: str = ""

    @property
    def knows_ranks(self) -> bool:
        """Whether it was measured at more than one number of ranks."""
        return any(regime.rank_us or regime.growth for regime in self.regimes)


class DispatchKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Dispatch or combination of tokens under expert parallelism.

    start_us, width_us, spread_us, rank_us: time without tokens, for every 1,024 values of a token's width,
    for every copy of it, and for every doubling of the ranks beyond two. fill_us, fill_tokens: what is added,
    for every 1,024 values, until tokens fill the pipeline, and how many fill half of it. token_us, own_us,
    copy_us: time of one multiprocessor for a token, for every 1,024 values of it, and for every 1,024 values
    of each copy that travels. link_fraction: share of the link's bandwidth. norm: exponent of the smooth
    maximum of both. per_expert: a copy for each expert instead of each rank. far_us, far_fraction,
    far_growth: start for every doubling of the nodes, link of copies between two nodes, and the exponent by
    which these grow with more; 0 where no rows tell. name: of the library's backend; empty: any.
    """

    start_us: Us
    width_us: Us
    spread_us: Us
    rank_us: Us
    fill_us: Us
    fill_tokens: Rate
    token_us: Us
    own_us: Us
    copy_us: Us
    link_fraction: Rate
    norm: Norm
    per_expert: bool
    fit: Fit
    far_us: Us = 0.0
    far_fraction: Ratio = 0.0
    far_growth: Ratio = 0.0
    name: str = ""
