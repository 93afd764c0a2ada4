"""What every fitted kernel of every GPU must do, whatever its law: one test over all kinds and sets."""

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest
from one_line import one_line

from medusa_sim.errors import DataError, SpecError
from medusa_sim.gpus.gpu import Gpu, load_gpu
from medusa_sim.gpus.gpu_names import gpu_names
from medusa_sim.lab.calibrate.fits import fitter
from medusa_sim.lab.calibrate.rows import Rows
from medusa_sim.latency.calibrated import CalibratedLatency
from medusa_sim.latency.roofline import roofline_time_us
from medusa_sim.operators.kinds import KINDS, Kind, operator_of
from medusa_sim.operators.operator import Operator
from medusa_sim.units import format_of

POINTS = 48
DRAWN: dict[str, tuple[float, float]] = {
    "m": (1, 20_000), "n": (64, 30_000), "k": (64, 30_000), "batch": (1, 512), "q_len": (1, 128),
    "kv_len": (1, 60_000), "prefix": (1, 60_000), "window": (64, 4096), "tokens": (1, 8192),
    "hidden": (2048, 8192), "inter": (256, 8192), "message_bytes": (256, 1e9),
}  # fmt: skip
"""Ends of what is drawn, evenly in the logarithm."""
CHOSEN: dict[str, tuple[float, ...]] = {
    "heads": (8, 32, 64, 128), "kv_heads": (1, 8), "head_dim": (128,), "experts": (128, 256), "topk": (8,),
    "ranks": (2, 4, 8), "nodes": (1,), "sms": (0,), "key_heads": (8,), "key_dim": (128,), "value_dim": (128,),
    "conv_width": (4,), "q_rank": (1536,), "index_heads": (64,), "nope_dim": (128,), "v_dim": (128,),
    "streams": (4,), "sites": (1,),
}  # fmt: skip
FORMS = ("fp16", "bf16", "fp32", "fp8", "fp8_block", "int4", "nvfp4", "mxfp4")
FROM_MEMORY = ("gemm", "attention", "unfused", "elementwise", "moe", "mla")
"""Sections whose operators move no less than they count: a collective may add up in the switch, a state may
be stored in another dtype."""


def drawn(kind: Kind, name: str, form: str, seed: int) -> Operator:
    """Random sizes that make sense together."""
    rng = np.random.default_rng(seed)
    columns = kind.operator.COLUMNS
    sizes = {
        column: np.floor(np.exp(rng.uniform(*np.log(DRAWN[column]), POINTS)))
        if column in DRAWN
        else rng.choice(CHOSEN[column], POINTS)
        for column in columns
        if column in {*DRAWN, *CHOSEN}
    }
    if name in ("decode_attention", "mla_decode"):
        sizes["q_len"] = np.ones(POINTS)
    if "kv_len" in columns:
        sizes["kv_len"] += sizes["q_len"]
    if "local_experts" in columns:
        rows = sizes["tokens"] * sizes["topk"]
        sizes |= {"rows": rows, "local_experts": sizes["experts"], "hit": np.minimum(rows, sizes["experts"])}
    stored = format_of(form)
    made = operator_of(name, stored.dtype, sizes)
    has_weights = "weight_dtype" in kind.operator.__dataclass_fields__
    return dataclasses.replace(made, weight_dtype=stored.weight_dtype) if has_weights else made


def timed(gpu: Gpu, kernels: str) -> Iterator[tuple[CalibratedLatency, Kind, Operator]]:
    """Every operator that the set serves."""
    model = CalibratedLatency(gpu, kernels)
    for kind in (each for each in KINDS if each.table(gpu.kernels[kernels])):
        for seed, (name, form) in enumerate((name, form) for name in kind.names for form in FORMS):
            operator = drawn(kind, name, form, seed)
            try:
                roofline_time_us(gpu, operator)
                model.time(operator)
            except SpecError:  # no kernel of that arithmetic
                continue
            yield model, kind, operator


def fitted_sets() -> list[tuple[str, str]]:
    """GPUs and sets with a kernel that was fitted to rows of their own."""
    return [
        (name, held)
        for name in gpu_names()
        for held, kernels in load_gpu(name).kernels.items()
        if any(not each.fit.inherited_from for kind in KINDS for each in kind.table(kernels).values())
    ]


@pytest.mark.parametrize(("name", "kernels"), fitted_sets())
def test_times_keep_the_limits_of_the_card_and_a_grid_is_its_points(name, kernels):
    gpu, found = load_gpu(name), 0
    hot = CalibratedLatency(gpu, kernels, cold=False)
    for model, kind, operator in timed(gpu, kernels):
        cold, told = model.time(operator), f"{operator.kind} {operator.form}"
        assert np.isfinite(cold.time_us).all(), told
        assert (cold.low_us <= cold.time_us).all(), told
        assert (cold.time_us <= cold.high_us).all(), told
        assert cold.time_us.shape == cold.bound.shape == cold.source.shape == (POINTS,), told
        if kind.section in FROM_MEMORY:
            assert (cold.time_us >= roofline_time_us(gpu, operator) * (1.0 - 1e-12)).all(), told
            if kind.section not in ("moe", "attention", "mla"):  # other tiles; rows' lengths are all alike
                assert (hot.time(operator).time_us <= cold.time_us * (1.0 + 1e-12)).all(), told
        for point in (0, POINTS // 2):
            sizes = {key: np.ravel(each)[point] for key, each in operator.sizes.items() if np.ndim(each)}
            one = float(model.time(operator.with_columns(**sizes)).time_us)
            assert one == pytest.approx(float(cold.time_us[point]), rel=1e-12), told
        found += 1
    assert found


FITTERS = [("h100-sxm", kind) for kind in KINDS if kind.section not in ("gemm", "unfused")]
FITTERS += [("cpu-emerald-rapids-50m", kind) for kind in KINDS if kind.serial]


@pytest.mark.parametrize(("card", "kind"), FITTERS, ids=lambda each: getattr(each, "section", each))
def test_three_rows_are_no_fit(card, kind):
    gpu, operator = load_gpu(card), drawn(kind, kind.names[0], "bf16", 0)
    operator = operator.with_columns(
        **{name: np.broadcast_to(size, POINTS).astype(float) for name, size in operator.sizes.items()}
    )
    with one_line(DataError, "x.csv: 3 rows"):
        fitter(kind, gpu.architecture)(
            Rows(operator, np.ones(POINTS)).where(np.arange(3)), gpu, source="x.csv"
        )
