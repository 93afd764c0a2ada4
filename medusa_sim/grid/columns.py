"""Which quantities the rows of each command hold, and in which order.

A quantity that no list names comes last in the rows of every command that can have it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from medusa_sim.grid.cells import Cells
from medusa_sim.grid.quantities import BY_NAME, MEMORY, values
from medusa_sim.scenario.scenario import Scenario

if TYPE_CHECKING:
    import pyarrow as pa


def _ends(*names: str) -> tuple[str, ...]:
    """Both ends of the 80 % intervals of some quantities."""
    return tuple(f"{name}_{end}" for name in names for end in ("low", "high"))


SWEEP = {
    **{name: name for name in (
        "gpu", "model", "tp", "ep", "dp_attention", "runtime", "kernels", "scope", "latency_model", "drafter",
        "acceptance", "baseline", "batch", "seq_len", "candidates", "drafts", "tokens_per_step",
        "decode_step_us", "verify_only_us", "verify_step_us", "verify_low_us", "verify_high_us",
    )},
    "overhead": "baseline_overhead",
    "speedup": "baseline_speedup",
    "speedup_low": "baseline_speedup_low",
    "speedup_high": "baseline_speedup_high",
    **{name: name for name in (
        "step_speedup", "server_speedup", "server_speedup_low", "server_speedup_high", "itl_us", "tpot_us",
        "ttft_ms", "benchmark_ttft_ms", "tokens_per_s", "tokens_per_s_per_user", "usd_per_million_tokens",
        "watts", "joule_per_token",
        "bound", "source", "memory_bytes", "fits_memory",
    )},
}  # fmt: skip
"""Columns of a sweep, each with its quantity.

`step_speedup` and `server_speedup` are one thing in every command. `speedup` is what a command decides by: of
the step in rows of a sweep, whatever is served; of the server in a recommendation with requests.
"""
BY_COUNT = (
    "batch", "seq_len", "candidates", "drafts", "tokens_per_step", "decode_step_us", "verify_step_us",
    "overhead", "speedup", "step_speedup", "server_speedup", "fits_memory",
)  # fmt: skip
"""Columns of `recommend --by-count`."""
ROW = (
    "batch_min", "batch_max", "seq_len", "candidates", "paths", "tokens_per_step", "speedup",
    "speedup_lowest", "speedup_highest", "batch_lowest", "speedup_low", "speedup_high", "step_speedup",
    "server_speedup", "server_speedup_low", "server_speedup_high", "kernels_speedup", "itl_us", "tpot_us",
    "max_batch_without", "max_batch_with", "drafts", "width", "chain",
    "speedup_at_batch_min", "overhead", "decode_step_us", "verify_step_us", "tokens_per_s",
    "plain_tokens_per_s", "tokens_per_s_per_user", "plain_tokens_per_s_per_user", "usd_per_million_tokens",
    "plain_usd_per_million_tokens", "watts", "plain_watts", "joule_per_token", "plain_joule_per_token",
    "best_candidates", "best_speedup", "near_best", "ends_profile", "speculative_candidates",
    "speculative_speedup", "speculative_speedup_low", "speculative_speedup_high", "verdict", "uncertain",
    "required_tokens_per_step", "required_acceptance_factor", "speedup_acceptance_minus_10_percent",
    "speedup_acceptance_plus_10_percent", "chain_candidates", "chain_speedup",
    "speedup_heads_on_accepted_row", "free_candidates", "next_count", "held_by", "cliff_after",
    "cheaper_larger", "memory_bytes", "fits_memory", "meets_latency", "ttft_ms",
    "benchmark_ttft_ms",
    *_ends(
        "itl_us", "tpot_us", "ttft_ms", "benchmark_ttft_ms", "tokens_per_s", "tokens_per_s_per_user",
        "usd_per_million_tokens", "watts", "joule_per_token",
    ),
)  # fmt: skip
"""What JSON and CSV say of a row of a schedule (`ScheduleRow`)."""
POINT = (
    "batch", "seq_len", "candidates", "drafts", "max_batch", "tokens_per_s", "tokens_per_s_per_user",
    "time_per_token_ms", *MEMORY,
)  # fmt: skip
"""What JSON says of the best throughput."""
BY_DRAFTS = ("drafts", "candidates", "speedup")
"""What JSON says of each draft length."""
REQUEST = (
    "batch", "prompt_tokens", "output_tokens", "candidates", "depth", "tokens_per_step", "first_token_us",
    "plain_first_token_us", "total_us", "plain_total_us", "per_token_us", "plain_per_token_us", "speedup",
    "decode_speedup",
)  # fmt: skip
"""What JSON says of a request (`RequestLatency`)."""
LOAD = (
    "rate_per_s", "policy", "requests_per_s", "requests_in_system", "ttft_p50_s", "ttft_p99_s", "tpot_mean_s",
    "tpot_p99_s", "itl_p50_s", "itl_p99_s", "tokens_per_s", "goodput_share", "tokens_per_step", "e2e_ratio",
    "kv_share", "watts", "joule_per_token", "usd_per_million_tokens",
)  # fmt: skip
"""Columns of the table of a load test."""
OVER_TIME = ("requests", "waiting", "kv_tokens", "tokens_per_s")
"""What may be drawn over the time of a run."""
AGAINST_RATE = (
    "tpot_at_share_s", "ttft_at_share_s", "tpot_mean_s", "tpot_p99_s", "ttft_p50_s", "ttft_p99_s",
    "goodput_per_s", "tokens_per_s",
)  # fmt: skip
"""What may be drawn against the rate."""
AGAINST_SPEED = (
    "tokens_per_s_per_gpu", "usd_per_million_tokens", "joule_per_token", "tokens_per_s_per_mw",
)  # fmt: skip
"""What may be drawn against the speed of a stream."""
COMPARE = (
    "gpu", "gpus", "tp", "ep", "dp_attention", "precision", "engine", "drafter", "drafts", "batch",
    "tokens_per_s_per_gpu", "tokens_per_s_per_user", "usd_per_million_tokens", "on_frontier", "chosen",
    "replicas", "kv_precision",
    *_ends("tokens_per_s_per_gpu", "tokens_per_s_per_user", "usd_per_million_tokens"),
    "tpot_ms", "ttft_ms", "e2e_ms", "joule_per_token", "tokens_per_s_per_mw", "sure", "meets_limits",
    *_ends("tpot_ms", "ttft_ms", "joule_per_token", "tokens_per_s_per_mw"), "benchmark_ttft_ms",
)  # fmt: skip
"""In the order of the table; rates are of output tokens, of all copies where they count GPUs or dollars."""
OF_LOAD_TESTS = ("benchmark_ttft_ms",)
"""Of these, what takes a tenth of a comparison's time and no screen shows."""


def with_unlisted(names: Iterable[str]) -> tuple[str, ...]:
    """Names of a command's columns, and of the quantities of cells that no command lists, last."""
    return (*names, *(name for name in _unlisted() if BY_NAME[name].read is not None))


def _unlisted() -> list[str]:
    listed = {*SWEEP, *SWEEP.values(), *BY_COUNT, *ROW, *POINT, *COMPARE, *LOAD}
    return [name for name, quantity in BY_NAME.items() if name not in listed]


def run_values(run: Mapping[str, float], names: Iterable[str] = ()) -> dict[str, float]:
    """Results of a run under load by name, and of quantities that no list names those that a run has."""
    others = [name for name in _unlisted() if BY_NAME[name].read_run is not None]
    found = {}
    for name in (*names, *others):
        read_run = BY_NAME[name].read_run
        found[name] = run[name] if name in run else np.nan if read_run is None else read_run(run)
    return found


def sweep_columns() -> dict[str, str]:
    """Columns of a sweep, each with its quantity."""
    return SWEEP | {name: name for name in with_unlisted(())}


def gain_column(scenario: Scenario) -> str:
    """The column that chooses a count: the server's speedup where prompts are given, else the step's."""
    return "speedup" if scenario.traffic is None else "server_speedup"


def count_table(by_count: Cells) -> pa.Table:
    """One row a length, batch and count, with the drafting that is best for that count there: BY_COUNT.

    drafts: draft length (Medusa: heads run). One candidate is plain decoding. Names are those of a schedule's
    rows: speedup is the server's where there are requests, step_speedup the step's.
    """
    import pyarrow as pa

    def column(value: npt.NDArray[Any]) -> pa.Array:
        cells = np.moveaxis(np.broadcast_to(value, by_count.shape), 1, 0).ravel()
        return pa.array(cells, from_pandas=True)  # what it has not is empty

    return pa.table(
        {name: column(value) for name, value in values(by_count, with_unlisted(BY_COUNT)).items()}
    )
