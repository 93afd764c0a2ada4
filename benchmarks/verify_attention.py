r"""Attention with several queries beside public rows: errors by kernel; fits of vLLM's latent kernels.

    python benchmarks/verify_attention.py            # errors by kernel, as `medusa-sim time --ops`; a second
    python benchmarks/verify_attention.py --rows     # every row as well
    python benchmarks/verify_attention.py --fit      # writes FlashMLA and FlashAttention-3 MLA into hardware/

Where rows are silent: Hopper is an H100, Blackwell a B200; blocks A and B of vLLM's benchmark have 64 and 128
heads (as many as a model has, and half of them), vLLM's script for trtllm-gen 64 on 8, Qwen3-Coder-480B its
96 on 8 (what its rows read asks for no fewer). Rows without heads on other GPUs, ratios, and GPUs that have
no kernels here are left out. Fits of the latent kernels hold whole numbers of heads out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from common.script import ROOT, command_line
from common.study import measured_rows, named_rows, table
from msgspec.structs import replace

from medusa_sim.engines.runtime import load_runtime
from medusa_sim.gpus.fitted_attention import LatentKernel
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.lab.calibrate.hardware_file import FittedKernel, write_kernels
from medusa_sim.lab.calibrate.latent import fit_latent
from medusa_sim.lab.calibrate.rows import Rows
from medusa_sim.latency.choice import NAME_MARK
from medusa_sim.operators.latent import LatentAttention
from medusa_sim.operators.table import check_rows
from medusa_sim.step.rows import predicted_rows

CARDS = (("RTX 3090", "rtx-3090"), ("SM100", "b200"), ("H100", "h100-sxm"), ("Hopper", "h100-sxm"))
"""How a row's GPU begins, and what it is here."""
BLOCKS = (("block A", 64), ("block B", 128))
SCRIPT_HEADS = (64, 8, 128)
LATENT_DIM = 576
FITTED = {"FLASHMLA": ("FLASHMLA", "flash_mla_with_kvcache"), "FLASH_ATTN_MLA": ("FLASH_ATTN_MLA",)}
"""Latent kernels of vLLM by name, and how the kernels of their rows begin."""
WRITTEN = ("h100-sxm", "h200-sxm")
"""Rows say Hopper: keys of 1,024 tokens lie in L2, so that both GPUs have one clock and as many SMs."""
SOURCE = "vLLM's attention benchmark, FLASHMLA and FLASH_ATTN_MLA on Hopper; FlashMLA issue 30 (H100)"


def _row(line: Any) -> dict[str, object] | None:
    """A row as `medusa-sim time --ops` reads it, with `card` and the measured `time_us`."""
    card = next((name for begins, name in CARDS if str(line.gpu).startswith(begins)), None)
    if card is None or "ratio" in line.metric or "variable lengths" in line.metric:
        return None
    heads = next((count for block, count in BLOCKS if str(line.q_heads).startswith(block)), line.q_heads)
    if "96" in str(heads):
        heads, line = 96, line._replace(kv_heads=8)
    kv_heads, width, name = line.kv_heads, line.head_dim, str(line.kernel)
    if pd.isna(heads) and card == "b200":
        heads, kv_heads, width = SCRIPT_HEADS
    if pd.isna(pd.to_numeric(heads, errors="coerce")):
        return None
    latent = width == LATENT_DIM
    kind = "mla_decode" if latent else "decode_attention" if line.q_len == 1 else "verify_attention"
    return {
        "op": kind, "gpu": card, "kernel": name, "dtype": str(line.dtype).partition("_")[0],
        "kv_dtype": str(line.kv_dtype).partition("_")[0],
        "batch": line.batch, "q_len": line.q_len, "kv_len": line.kv_len, "heads": float(heads),
        "kv_heads": np.nan if latent else float(kv_heads), "head_dim": np.nan if latent else width,
        "scope": "kernel" if latent else "", "time_us": line.value_us,
    }  # fmt: skip


def scored(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with what `medusa-sim time` predicts."""
    parts = []
    for card, part in rows.groupby("gpu"):
        asked = check_rows(part.drop(columns="gpu").reset_index(drop=True), "rows", need_time=True)
        parts.append(predicted_rows(asked, load_gpu(str(card)), load_runtime("kernel"), cold=True))
        parts[-1]["gpu"] = card
    found = pd.concat(parts, ignore_index=True)
    held = (found.low_us <= found.time_us) & (found.time_us <= found.high_us)
    return found.assign(error=found.predicted_us / found.time_us - 1.0, held=held)


def table_of(found: pd.DataFrame) -> str:
    """Mean, bias and worst error, and the share that bands hold, by kernel."""
    lines = []
    for key, part in found.groupby(["kernel", "gpu"], sort=False):
        percent = 100.0 * part.error
        worst = percent.iloc[int(np.argmax(percent.abs()))]
        errors = (f"{percent.abs().mean():.1f}", f"{percent.mean():+.1f}", f"{worst:+.1f}")
        lines.append((*key, len(part), *errors, f"{100 * part.held.mean():.0f}"))
    return table("kernel | GPU | rows | mean % | bias % | worst % | in band %", 2, lines)


def with_memory(kernel: LatentKernel, card: str) -> LatentKernel:
    """The kernel with the memory of the GPU's other latent kernel: rows of 1,024 keys hardly leave L2."""
    known = load_gpu(card).kernels["sglang"].mla["decode_bf16"].wide
    names = ("bandwidth_fraction", "l2_ratio", "l2_fill", "l2_sharpness")
    return replace(kernel, wide=replace(kernel.wide, **{name: getattr(known, name) for name in names}))


def fitted(rows: pd.DataFrame, card: str) -> Iterator[FittedKernel]:
    """Latent kernels of vLLM, which rows ask for by name."""
    for name, begins in FITTED.items():
        own = rows[rows.kernel.str.startswith(begins)]
        sizes: dict[str, Any] = {
            size: own[size].to_numpy(dtype=np.float64) for size in ("batch", "q_len", "kv_len", "heads")
        }
        operator = LatentAttention(name="mla_decode", kind="mla_decode", dtype="bf16", **sizes)
        part = Rows(operator, own.time_us.to_numpy(dtype=np.float64), name)
        kernel = with_memory(fit_latent(part, load_gpu(card), source=SOURCE), card)
        errors = f"fit {kernel.fit.fit_error:.3f}, heads held out {kernel.fit.heldout_error:.3f}"
        print(f"{card} {name}: {part.time_us.size} rows, {errors}")
        yield FittedKernel(section="mla", key=f"{operator.form}{NAME_MARK}{name}", kernel=kernel)


def main() -> None:
    """Print errors, or fit and write."""
    parser = command_line(__doc__)
    parser.add_argument("--rows", action="store_true", help="print every row")
    parser.add_argument("--fit", action="store_true", help="fit vLLM's latent kernels and write them")
    asked = parser.parse_args()
    every = named_rows(measured_rows("verify_attention_kernels"))
    rows = pd.DataFrame(row for line in every if (row := _row(line)))
    if asked.fit:
        for card in WRITTEN:
            write_kernels(ROOT / "hardware", load_gpu(card), "vllm", list(fitted(rows, card)))
        return
    found = scored(rows)
    print(table_of(found))
    print(f"{len(found)} rows: mean {100 * found.error.abs().mean():.1f} %")
    if asked.rows:
        shown = ["kernel", "heads", "batch", "q_len", "kv_len", "time_us", "predicted_us", "source", "error"]
        print(found[shown].round(2).to_string())


if __name__ == "__main__":
    main()
