"""Fits of latent attention: which parameters their rows can tell."""

import msgspec
import numpy as np
import pytest
from made_up import latent

from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.lab.calibrate import latent as latent_fits
from medusa_sim.lab.calibrate.latent import _is_seen
from medusa_sim.lab.calibrate.rows import Rows

GPU = load_gpu("h100-sxm")
KERNEL = next(iter(GPU.kernels["vllm"].mla.values()))


@pytest.mark.parametrize(
    ("name", "path", "kv_len", "is_seen"),
    [
        ("sharing", {"ctas_per_sm": 1}, 4096.0, False), ("sharing", {"ctas_per_sm": 2}, 4096.0, True),
        ("split_us", {"split_above": 8192}, 4096.0, False), ("split_us", {"split_above": 1024}, 4096.0, True),
        ("whole_fraction", {"split_above": 8192}, 4096.0, True),
        ("whole_fraction", {"split_above": 1024}, 4096.0, False),
        ("bandwidth_fraction", {}, 64.0, False), ("bandwidth_fraction", {}, 65536.0, True),
    ],
)  # fmt: skip
def test_rows_tell_a_parameter_or_leave_it_where_it_starts(name, path, kv_len, is_seen):
    rows = latent(heads=16, batch=np.array([8.0, 16.0]), kv_len=np.full(2, kv_len))
    changed = msgspec.structs.replace(KERNEL.wide, **path)
    assert _is_seen(name, KERNEL, changed, Rows(rows, np.ones(2)), GPU) == is_seen


@pytest.mark.parametrize(("heads", "narrow_rows", "fitted"), [
    ((4, 16, 32), 16, {"wide": [32], "narrow": [4, 16]}), ((32, 64), 16, {"wide": [32, 64]}),
    ((4, 8), 16, {"narrow": [4, 8]}),
])  # fmt: skip
def test_each_path_is_fitted_to_the_rows_that_it_serves(monkeypatch, heads, narrow_rows, fitted):
    seen = {}

    def noted(kernel, place, rows, law):
        seen[place] = rows.operator.heads.tolist()
        return kernel

    monkeypatch.setattr(latent_fits, "_least_squares", noted)
    kernel = msgspec.structs.replace(KERNEL, narrow=KERNEL.wide, narrow_rows=narrow_rows)
    count = len(heads)
    operator = latent(
        heads=np.array(heads), batch=np.ones(count), kv_len=np.full(count, 512.0), q_len=np.ones(count)
    )
    latent_fits._refit(kernel, Rows(operator, np.ones(count)), None)
    assert seen == fitted
    latent_fits._refit(msgspec.structs.replace(KERNEL, narrow=None), Rows(operator, np.ones(count)), None)
    assert seen["wide"] == list(heads)
