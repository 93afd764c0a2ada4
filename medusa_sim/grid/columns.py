"""Rows that are cells, one each: what they hold and in which order, in a sweep and by count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from medusa_sim.grid.cells import Cells
from medusa_sim.grid.quantities import values
from medusa_sim.grid.quantity import listed, with_unlisted
from medusa_sim.scenario.scenario import Scenario

if TYPE_CHECKING:
    import pyarrow as pa


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
BY_COUNT = listed(
    "batch", "seq_len", "candidates", "drafts", "tokens_per_step", "decode_step_us", "verify_step_us",
    "overhead", "speedup", "step_speedup", "server_speedup", "fits_memory",
)  # fmt: skip
"""Columns of `recommend --by-count`."""
listed(*SWEEP, *SWEEP.values())


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
        return pa.array(cells, from_pandas=True)  # nan becomes null

    return pa.table(
        {name: column(value) for name, value in values(by_count, with_unlisted(BY_COUNT)).items()}
    )
