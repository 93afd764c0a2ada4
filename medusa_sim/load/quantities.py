"""Quantities of runs under load, the columns of their table and of their charts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from medusa_sim.grid.quantity import BY_NAME, Quantity, declare, listed, unlisted

DECLARED = declare(
    # of a run
    Quantity(name="rate_per_s", title="rate", axis="requests a second"),
    Quantity(name="policy", title="policy"),
    Quantity(name="requests_per_s", title="done/s", better="more"),
    Quantity(name="requests_in_system", title="in flight"),
    Quantity(name="ttft_p50_s", title="TTFT", axis="time to first token, median, ms", unit="s"),
    Quantity(name="ttft_p99_s", title="TTFT p99", axis="time to first token, 99th per cent, ms", unit="s"),
    Quantity(name="ttft_at_share_s", axis="time to first token that {share} keep, ms", unit="s"),
    Quantity(name="tpot_mean_s", title="TPOT", axis="time per token, mean, ms", unit="s"),
    Quantity(name="tpot_p99_s", title="TPOT p99", axis="time per token, 99th per cent, ms", unit="s"),
    Quantity(name="tpot_at_share_s", axis="time per token that {share} keep, ms", unit="s"),
    Quantity(name="itl_p50_s", title="ITL", unit="s"),
    Quantity(name="itl_p99_s", title="ITL p99", unit="s"),
    Quantity(name="goodput_share", title="in limits", unit="share"),
    Quantity(name="goodput_per_s", axis="requests/s within the limits"),
    Quantity(name="e2e_ratio", title="time vs first", unit="times"),
    Quantity(name="kv_share", title="KV", unit="share", digits=2),
    Quantity(name="saturated_per_s", title="saturates at"),
    Quantity(name="largest_per_s", title="rate within limits"),
    Quantity(name="loses", title="slower"),
    Quantity(name="off_from", title="off from"),
    Quantity(name="gpus_needed", title="GPUs"),
    # over its time
    Quantity(name="time_s", axis="seconds"),
    Quantity(name="requests", axis="requests that decode"),
    Quantity(name="not_decoding", axis="requests that wait"),
    Quantity(name="kv_tokens", axis="tokens in the KV cache"),
)  # fmt: skip

LOAD = listed(
    "rate_per_s", "policy", "requests_per_s", "requests_in_system", "ttft_p50_s", "ttft_p99_s", "tpot_mean_s",
    "tpot_p99_s", "itl_p50_s", "itl_p99_s", "tokens_per_s", "goodput_share", "tokens_per_step", "e2e_ratio",
    "kv_share", "watts", "joule_per_token", "usd_per_million_tokens",
)  # fmt: skip
"""Columns of the table of a load test."""
OVER_TIME = ("requests", "not_decoding", "kv_tokens", "tokens_per_s")
"""What may be drawn over the time of a run."""
AGAINST_RATE = (
    "tpot_at_share_s", "ttft_at_share_s", "tpot_mean_s", "tpot_p99_s", "ttft_p50_s", "ttft_p99_s",
    "goodput_per_s", "tokens_per_s",
)  # fmt: skip
"""What may be drawn against the rate."""


def run_values(run: Mapping[str, float], names: Iterable[str] = ()) -> dict[str, float]:
    """Results of a run by name, and of the quantities that no command lists those that a run has."""
    others = [quantity.name for quantity in unlisted() if quantity.read_run is not None]
    found = {}
    for name in (*names, *others):
        read_run = BY_NAME[name].read_run
        found[name] = run[name] if name in run else np.nan if read_run is None else read_run(run)
    return found
