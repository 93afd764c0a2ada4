"""`medusa-sim time`: the predicted time of every row of a file of operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from medusa_sim.cli import options as take
from medusa_sim.cli.output import Output

GIVEN_UP = (
    "bound", "low_us", "high_us", "head_dim", "kv_heads", "heads", "kv_len", "q_len", "batch", "k", "n"
)  # fmt: skip
"""Columns that a narrow table leaves out before the predicted time, the first to go first."""
_OPS = "CSV or Parquet with op,m,n,k,batch,q_len,kv_len,heads,kv_heads,head_dim,dtype[,time_us]."


@take.command(
    "medusa-sim time --gpu h100-sxm --ops rows.csv --format csv",
    "medusa-sim time --gpu a100-80gb-pcie --ops rows.parquet --cache as-measured -o predicted.parquet",
)
@click.option("--ops", type=take.FILE, required=True, help=_OPS)
@take.rows("names")
@take.row_runtime
@take.row_cache
@take.output
@take.data_dir
def time(
    *, ops: Path, names: dict[str, Any], runtime: str, cache: str, output: Output, data_dir: Path | None
) -> None:
    """Predicted time of every row of operators: predicted_us, low_us, high_us, bound, source.

    Every row is one launch. low_us and high_us hold 80 % of measurements of shapes that the fit has not seen.

    \b
    Kinds of rows (op), and their columns:
      linear layers                          m, n, k
      rms_norm, rope, activation, residual,
      embedding, next_token (or aliases)     m, n
      decode_attention, prefill_attention,
      verify_attention, unfused qk and pv    batch, q_len, kv_len, heads, kv_heads,
                                             head_dim
      moe                                    tokens, hidden, inter, topk, experts
      mla_decode, mla_prefill                batch, q_len, kv_len, heads, kv_dtype;
                                             scope, gemm_dtype of a whole module
      all_reduce, all_gather,
      reduce_scatter, all_to_all             bytes, ranks
      dispatch, combine                      tokens, hidden, topk, experts, ep
      gdn, kda, mamba2                       batch, q_len, heads, key_heads, key_dim,
                                             value_dim, conv_width; part, phase
      window_attention                       batch, q_len, prefix, heads, kv_heads,
                                             head_dim, window; phase
      dsa, msa, csa, hca                     batch, q_len, prefix, heads; phase,
                                             kv_cache_dtype, gemm_type, model_name
      hyper_connections                      tokens, hidden, streams, sites; part

    Columns engine and kernel (or backend), and a collective's version, choose whose kernel; the column
    kernels says which it was. A column of the file that already has one of the new names is kept as
    given_NAME.
    """  # noqa: D301  # click reads the character, not its escape
    from medusa_sim.engines.runtime import load_runtime
    from medusa_sim.gpus.gpu import load_gpu
    from medusa_sim.operators.table import row_chunks
    from medusa_sim.report.formats import arrow_chunks
    from medusa_sim.step.rows import predicted_rows

    gpu, launched = load_gpu(names.pop("gpu"), data_dir), load_runtime(runtime, data_dir)
    parts = (
        predicted_rows(rows, gpu, launched, cold=cache == "cold", data_dir=data_dir, **names)
        for rows in row_chunks(ops)
    )
    output.rows(arrow_chunks(parts), "time", expendable=GIVEN_UP)
