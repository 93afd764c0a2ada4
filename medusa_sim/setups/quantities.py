"""Quantities of set-ups, and what the rows of a comparison hold."""

from __future__ import annotations

from medusa_sim.grid.costs import joule_band, joules
from medusa_sim.grid.quantities import rate_band, time_band, with_band
from medusa_sim.grid.quantity import Quantity, both_ends, declare, listed
from medusa_sim.units import US_PER_MS

COMPARE = listed(
    "gpu", "gpus", "tp", "ep", "dp_attention", "precision", "engine", "drafter", "drafts", "batch",
    "tokens_per_s_per_gpu", "tokens_per_s_per_user", "usd_per_million_tokens", "on_frontier", "chosen",
    "replicas", "kv_precision",
    *both_ends("tokens_per_s_per_gpu", "tokens_per_s_per_user", "usd_per_million_tokens"),
    "tpot_ms", "ttft_ms", "e2e_ms", "joule_per_token", "tokens_per_s_per_mw", "sure", "meets_limits",
    *both_ends("tpot_ms", "ttft_ms", "joule_per_token", "tokens_per_s_per_mw"), "benchmark_ttft_ms",
)  # fmt: skip
"""In the order of the table; rates are of output tokens, of all copies where they count GPUs or dollars."""
OF_LOAD_TESTS = ("benchmark_ttft_ms",)
"""Of these, what takes a tenth of a comparison's time and no screen shows."""
AGAINST_SPEED = (
    "tokens_per_s_per_gpu", "usd_per_million_tokens", "joule_per_token", "tokens_per_s_per_mw",
)  # fmt: skip
"""What may be drawn against the speed of a stream."""


DECLARED = declare(
    Quantity(name="set_up", title="set-up"),
    Quantity(
        name="tpot_ms", better="less", model_only=True,
        **with_band(lambda cells: cells.server.tpot_us / US_PER_MS, time_band),
    ),
    Quantity(name="e2e_ms", better="less"),
    Quantity(
        name="tokens_per_s_per_gpu", title="tokens/s/GPU", axis="output tokens/s a GPU",
        phrase="{} tokens/s a GPU", better="more", model_only=True,
        **with_band(lambda cells: cells.tokens_per_s / cells.scenario.gpus, rate_band),
    ),
    Quantity(
        name="tokens_per_s_per_mw", axis="output tokens/s per megawatt of GPUs", better="more",
        model_only=True,
        **with_band(lambda cells: 1e6 / joules(cells), lambda cells: joule_band(cells).of_inverse),
    ),
    Quantity(name="sure", title="sure", unit="share", digits=2),
    Quantity(name="chosen"),
)  # fmt: skip
