"""Quantities of schedules, of the best throughput and of checks, and what their rows hold."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.grid.cells import Cells
from medusa_sim.grid.quantity import Quantity, both_ends, declare, listed
from medusa_sim.units import US_PER_MS

MEMORY_WHEN_FULL = ("weights_bytes", "full_drafter_bytes", "full_kv_cache_bytes", "full_activation_bytes")
"""Bytes that as many requests as fit keep on one GPU, in the order of `MemoryParts`."""


def _at_largest_batch(part: int) -> Callable[[Cells], FloatArray]:
    return lambda cells: cells.memory_at(cells.max_batch)[part]


DECLARED = declare(
    # of a row of a schedule, in tables for people
    Quantity(name="near_best", title="as good"),
    Quantity(name="free_candidates", title="free", better="more"),
    Quantity(name="speedup_acceptance_minus_10_percent", title="-10 % acceptance", unit="times"),
    # of a row's cell
    Quantity(
        name="kernels_speedup", title="kernels alone", unit="times", better="more",
        read=lambda cells: np.full((), np.nan) if cells.with_kernels_alone is None
        else cells.with_kernels_alone.step_speedup,
        model_only=True,
    ),
    Quantity(name="max_batch_with", title="max batch", better="more"),
    # of the best throughput
    Quantity(name="max_batch", read=lambda cells: cells.max_batch, better="more"),
    Quantity(
        name="time_per_token_ms", read=lambda cells: cells.server.token_us / US_PER_MS, better="less",
        model_only=True,
    ),
    *(Quantity(name=name, read=_at_largest_batch(part), unit="bytes", model_only=True)
      for part, name in enumerate(MEMORY_WHEN_FULL)),
    # of a check of a running engine
    Quantity(name="part", title="part"),
    Quantity(name="measured_us", title="measured", unit="us", better="less"),
    Quantity(name="predicted_us", title="predicted", unit="us", better="less"),
    Quantity(name="costs_us", title="difference", unit="us", better="less"),
    Quantity(name="is_off", title="band"),
)  # fmt: skip

ROW = listed(
    "batch_min", "batch_max", "seq_len", "candidates", "paths", "tokens_per_step", "speedup",
    "speedup_lowest", "speedup_highest", "batch_lowest", "speedup_low", "speedup_high", "step_speedup",
    "server_speedup", "server_speedup_low", "server_speedup_high", "kernels_speedup", "itl_us", "tpot_us",
    "max_batch_without", "max_batch_with", "drafts", "width", "chain",
    "speedup_at_batch_min", "overhead", "decode_step_us", "verify_step_us", "tokens_per_s",
    "plain_tokens_per_s", "tokens_per_s_per_user", "plain_tokens_per_s_per_user", "usd_per_million_tokens",
    "plain_usd_per_million_tokens", "watts", "plain_watts", "joule_per_token", "plain_joule_per_token",
    "best_candidates", "best_speedup", "near_best", "best_ends_profile", "speculative_candidates",
    "speculative_speedup", "speculative_speedup_low", "speculative_speedup_high", "verdict", "uncertain",
    "required_tokens_per_step", "required_acceptance_factor", "speedup_acceptance_minus_10_percent",
    "speedup_acceptance_plus_10_percent", "chain_candidates", "chain_speedup",
    "speedup_heads_on_accepted_row", "free_candidates", "next_count", "held_by", "cliff_after",
    "quicker_larger", "memory_bytes", "fits_memory", "meets_latency", "ttft_ms",
    "benchmark_ttft_ms",
    *both_ends(
        "itl_us", "tpot_us", "ttft_ms", "benchmark_ttft_ms", "tokens_per_s", "tokens_per_s_per_user",
        "usd_per_million_tokens", "watts", "joule_per_token",
    ),
)  # fmt: skip
"""Columns of a row of a schedule (`ScheduleRow`) in JSON and CSV."""
POINT = listed(
    "batch", "seq_len", "candidates", "drafts", "max_batch", "tokens_per_s", "tokens_per_s_per_user",
    "time_per_token_ms", *MEMORY_WHEN_FULL,
)  # fmt: skip
"""Keys of the best throughput in JSON."""
STREAM = ("batch", "seq_len", "candidates", "drafts", "tpot_us")
"""Keys of the fastest stream in JSON."""
BY_DRAFTS = ("drafts", "candidates", "speedup")
"""Keys of each draft length in JSON."""
