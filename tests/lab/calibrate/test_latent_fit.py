"""Fits of latent attention: which parameters their rows can tell."""

import msgspec
import numpy as np
import pytest
from made_up import latent

from medusa_sim.lab.calibrate.kind_rows import Rows
from medusa_sim.lab.calibrate.latent import _is_seen
from medusa_sim.specs.gpu import load_gpu

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
