"""Tables of the public wheel -> rows in the form of the measured data: one Layout for each file of ours.

A layout only renames columns and gives units. It says nothing of which rows are ours: that is the rule
(`evidence_rule.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from common.study import GPU_OF_ROWS

TIME = "time_us"
INSIDE = "aiconfigurator_core/systems/data/"
_DTYPES = {"bfloat16": "bf16"}
_ENGINES = {"trtllm": "tensorrt-llm"}
_BYTES = {"half": 2, "bfloat16": 2, "int8": 1}
_NODE_RANKS = 8
"""Of DeepEP's tables, which count nodes."""
NOT_GATED = {(2048, 5120), (2688, 1856), (4096, 2688), (8192, 5120)}
"""Hidden size and width of Nemotron-3's experts, which have no gate; tables do not say so."""
_VERIFIED_TOKENS, _VERIFIED_PREFIX = (2, 128), 1024
"""New tokens on a prefix that count as a verification (`verifies`)."""


@dataclass(frozen=True)
class Place:
    """A table of the wheel: system, kind of operator, framework, version, name."""

    system: str
    kind: str
    framework: str
    version: str
    table: str

    @classmethod
    def of(cls, path: str) -> Place:
        """The place of a path in the wheel."""
        system, kind, framework, version, name = path.removeprefix(INSIDE).split("/")
        return cls(system, kind, framework, version, name.removesuffix("_perf.parquet"))

    @property
    def path(self) -> str:
        """Below INSIDE."""
        return f"{self.system}/{self.kind}/{self.framework}/{self.version}/{self.table}_perf.parquet"

    @property
    def gpu(self) -> str:
        """The hardware file; the system's own name where there is none."""
        return GPU_OF_ROWS.get(self.system, self.system)

    @property
    def engine(self) -> str:
        """The framework as the project spells it."""
        return _ENGINES.get(self.framework, self.framework)


Table = pd.DataFrame


def _us(found: Table, digits: int = 6) -> Any:
    return (1e3 * found.latency.astype(np.float64)).round(digits)


def _of_system(found: Table, place: Place, **columns: Any) -> Table:
    """Rows under the names of `moe_tp`: system and framework as the wheel spells them."""
    named = {"gpu": place.system, "engine": place.framework, "version": place.version}
    return pd.DataFrame(named | columns, found.index)


def _of_gpu(found: Table, place: Place, **columns: Any) -> Table:
    """Rows under the names of `kernels_2026`: GPUs and engines as the project spells them."""
    named = {"gpu": place.gpu, "engine": place.engine, "version": place.version}
    return pd.DataFrame(named | {"kernel": found.kernel_source} | columns, found.index)


# measured/


def _measured(found: Table, **columns: Any) -> Table:
    source = "aic:" + found.framework + "-" + found.version + ":" + found.kernel_source
    return pd.DataFrame({"gpu": found.device, "source": source} | columns, found.index)


def measured_gemm(found: Table, _: Place) -> Table:
    """`measured/*_gemm_sglang`."""
    return _measured(
        found, op="gemm", m=found.m, n=found.n, k=found.k, dtype=found.gemm_dtype.replace(_DTYPES),
        **{TIME: _us(found, 3)},
    )  # fmt: skip


def measured_attention(found: Table, place: Place) -> Table:
    """`measured/*_attention_sglang`: no window, K and V in the format of the queries."""
    decodes = place.table.startswith("generation")
    rows = _measured(
        found, op="decode_attention" if decodes else "prefill_attention", batch=found.batch_size,
        q_len=1 if decodes else found.isl, kv_len=found.isl + found.step, heads=found.num_heads,
        kv_heads=found.num_key_value_heads, head_dim=found.head_dim, dtype=found.attn_dtype.replace(_DTYPES),
        **{TIME: _us(found, 3)},
    )  # fmt: skip
    kept = found.kv_cache_dtype == found.attn_dtype
    if "window_size" in found:
        kept &= found.window_size.fillna(0) <= 0
    return rows[kept]


# moe_tp/


def quantised(found: Table, place: Place) -> Table:
    """`moe_tp/quant_gemm`."""
    return _of_system(
        found, place, kernel=found.kernel_source, dtype=found.gemm_dtype, m=found.m, n=found.n, k=found.k,
        **{TIME: _us(found, 3)},
    )  # fmt: skip


def experts(found: Table, place: Place) -> Table:
    """`moe_tp/moe`. What a rank was given of a layer was not recorded: `common/routing.py` draws it."""
    gated = [size not in NOT_GATED for size in zip(found.hidden_size, found.inter_size, strict=True)]
    return _of_system(
        found, place, kernel=found.kernel_source, dtype=found.moe_dtype, tokens=found.num_tokens,
        hidden=found.hidden_size, inter=found.inter_size, topk=found.topk, experts=found.num_experts,
        tp=found.moe_tp_size, ep=found.moe_ep_size, distribution=found.distribution, gated=gated,
        **{TIME: _us(found, 3)},
    )  # fmt: skip


def latent(found: Table, place: Place) -> Table:
    """`moe_tp/mla`: the kernel, or the module with its projections."""
    is_module, is_wide = place.table.endswith("_module"), place.table.startswith("wideep")
    decodes = "generation" in place.table
    return _of_system(
        found, place, kernel=found.kernel_source,
        scope="module" if is_module else "wideep_module" if is_wide else "kernel",
        phase="decode" if decodes else "prefill", mla_dtype=found.mla_dtype, kv_dtype=found.kv_cache_dtype,
        gemm_dtype=found.gemm_type if "gemm_type" in found else "none", heads=found.num_heads,
        batch=found.batch_size, q_len=1 if decodes else found.isl,
        kv_len=found.step if decodes and is_module else found.isl + found.step, **{TIME: _us(found, 3)},
    )  # fmt: skip


def collectives(found: Table, place: Place) -> Table:
    """`moe_tp/collectives`: the table counts elements, of its own precision where it is an engine's."""
    is_library = place.table == "nccl"
    dtype = found.nccl_dtype if is_library else found.allreduce_dtype
    return _of_system(
        found, place, kernel=found.kernel_source, op=found.op_name, dtype=dtype, ranks=found.num_gpus,
        bytes=found.message_size * dtype.map(_BYTES),
        **{TIME: _us(found) if is_library else _us(found, 3)},
    )  # fmt: skip


def dispatch(found: Table, place: Place) -> Table:
    """`moe_tp/moe_dispatch`: tables of three makers; DeepEP's give dispatch and combination a column each."""
    if place.table.startswith("wideep_deepep"):
        phases = ("dispatch", "combine")
        return pd.concat([_deepep(found, place, phase) for phase in phases], ignore_index=True)
    if place.table == "moe_a2a":
        return _of_system(
            found, place, backend=found.comm_backend, phase=found.phase, dtype=found.comm_dtype,
            ep=found.ep_size, nodes=found.node_num, hidden=found.hidden_size, topk=found.topk,
            experts=found.num_experts, tokens=found.num_tokens, sms=found.sms,
            **{TIME: found.latency.round(3)},
        )  # fmt: skip
    return _of_system(
        found, place, backend=found.kernel_source, phase=found.op_name, dtype=found.moe_dtype,
        ep=found.moe_ep_size, nodes=0, hidden=found.hidden_size, topk=found.topk,
        experts=found.num_experts, tokens=found.num_tokens, sms=0, **{TIME: _us(found, 3)},
    )  # fmt: skip


def _deepep(found: Table, place: Place, phase: str) -> Table:
    is_fast = place.table.endswith("_ll")
    dtype = "" if not is_fast else "fp8" if phase == "dispatch" else "bfloat16"
    time = (
        found[f"{phase}_avg_t_us"] if is_fast else found[f"{phase}_transmit_us"] + found[f"{phase}_notify_us"]
    )
    return _of_system(
        found, place, backend="deepep_ll" if is_fast else "deepep_normal", phase=phase, dtype=dtype,
        ep=found.node_num * _NODE_RANKS, nodes=found.node_num, hidden=found.hidden_size,
        topk=found.num_topk, experts=found.num_experts, tokens=found.num_token,
        sms=0 if is_fast else found[f"{phase}_sms"],
        **{TIME: time.astype(np.float64).round(3)},
    )  # fmt: skip


# kernels_2026/


def _kept(found: Table, place: Place, **renamed: str) -> Table:
    """All columns of a table that describe a shape, some under other names."""
    told = found.drop(columns=["framework", "version", "device", "kernel_source", "latency"])
    return told.rename(columns=renamed).assign(**_of_gpu(found, place), **{TIME: _us(found)})


def recurrent(found: Table, place: Place) -> Table:
    """`kernels_2026/gdn`, `kda`, `mamba2`."""
    return _kept(found, place, batch_size="batch", seq_len="q_len")


def connections(found: Table, place: Place) -> Table:
    """`kernels_2026/hyper_connections`."""
    return _kept(found, place)


def window(found: Table, place: Place) -> Table:
    """`kernels_2026/window_attention`: rows of attention that have a window."""
    rows = _of_gpu(
        found, place, batch=found.batch_size, q_len=found.isl, heads=found.num_heads,
        kv_heads=found.num_key_value_heads, head_dim=found.head_dim, attn_dtype=found.attn_dtype,
        kv_cache_dtype=found.kv_cache_dtype, prefix=found.step, window=found.window_size,
        phase=place.table.removesuffix("_attention"), **{TIME: _us(found)},
    )  # fmt: skip
    return rows[found.window_size.fillna(0) > 0]


def sparse(found: Table, place: Place) -> Table:
    """`kernels_2026/sparse`: whole modules."""
    op, phase, _ = place.table.removeprefix("dsv4_").split("_")
    few, many = _VERIFIED_TOKENS
    verifies = found.isl.between(few, many) & (found.step >= _VERIFIED_PREFIX) & (phase == "context")
    return _of_gpu(
        found, place, model_name=found.model, mla_dtype=found.mla_dtype, kv_cache_dtype=found.kv_cache_dtype,
        gemm_type=found.gemm_type, heads=found.num_heads, batch=found.batch_size, q_len=found.isl,
        tp_size=found.tp_size, prefix=found.step, op=op, phase=phase, verifies=verifies,
        compress_ratio=found.get("compress_ratio", np.nan), **{TIME: _us(found)},
    )  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """A file of ours, the tables of the wheel that it is made of, and how.

    merges: whether repeated measurements of a shape are one row, their median.
    """

    file: str
    tables: tuple[str, ...]
    renamed: Callable[[Table, Place], Table]
    system: str = ""
    framework: str = ""
    merges: bool = False

    def takes(self, place: Place) -> bool:
        """Whether a table may hold rows of the file."""
        return (
            place.table in self.tables
            and self.system in ("", place.system)
            and self.framework in ("", place.framework)
        )

    def rows(self, found: Table, place: Place) -> Table:
        """Rows of a table in the columns of the file."""
        rows = self.renamed(found, place)
        if self.merges:
            shape = [name for name in rows.columns if name != TIME]
            rows = rows.groupby(shape, sort=False, dropna=False, observed=True)[TIME].median().reset_index()
        return rows.reset_index(drop=True)


_SYSTEMS = {"a100sxm": "a100_sxm", "h100sxm": "h100_sxm", "h200sxm": "h200_sxm", "l40s": "l40s"}
"""How files of `measured` begin -> system."""
_PHASES = ("generation", "context")
LAYOUTS = (
    *(Layout(f"measured/{begins}_gemm_sglang.parquet", ("gemm",), measured_gemm, system, "sglang")
      for begins, system in _SYSTEMS.items()),
    *(Layout(f"measured/{begins}_{ours}_attention_sglang.parquet", (f"{theirs}_attention",),
             measured_attention, system, "sglang")
      for begins, system in _SYSTEMS.items()
      for ours, theirs in (("decode", "generation"), ("prefill", "context"))),
    Layout("moe_tp/quant_gemm.parquet", ("gemm",), quantised),
    Layout("moe_tp/moe.parquet", ("moe",), experts, merges=True),
    Layout("moe_tp/mla.parquet",
           tuple(name.format(phase) for phase in _PHASES
                 for name in ("{}_mla", "mla_{}_module", "wideep_{}_mla")), latent, merges=True),
    Layout("moe_tp/collectives.parquet", ("nccl", "custom_allreduce"), collectives, merges=True),
    Layout("moe_tp/moe_dispatch.parquet",
           ("moe_a2a", "trtllm_alltoall", "wideep_deepep_ll", "wideep_deepep_normal"), dispatch),
    *(Layout(f"kernels_2026/{name}.parquet", (name,), recurrent) for name in ("gdn", "kda", "mamba2")),
    Layout("kernels_2026/hyper_connections.parquet", ("mhc_module",), connections),
    Layout("kernels_2026/window_attention.parquet", tuple(f"{each}_attention" for each in _PHASES), window),
    Layout("kernels_2026/sparse.parquet",
           tuple(f"{op}_{phase}_module" for phase in _PHASES
                 for op in ("dsa", "msa", "dsv4_csa", "dsv4_hca")), sparse),
)  # fmt: skip
