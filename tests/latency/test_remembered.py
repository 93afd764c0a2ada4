"""What is remembered is what the model that is asked gives: no two operators share an answer by mistake."""

from dataclasses import replace

import numpy as np
import pytest

from medusa_sim.latency.by_name import latency_model
from medusa_sim.latency.remembered import remembered
from medusa_sim.operators.operator import ELEMENTWISE_KINDS, Elementwise, Gemm, Operator
from medusa_sim.specs.gpu import load_gpu

KINDS = [Elementwise(name=kind, kind=kind, m=4, n=4096, dtype="fp16") for kind in ELEMENTWISE_KINDS]
LINEAR = Gemm(name="qkv", m=np.arange(1, 200), n=4096, k=4096, dtype="fp16")
ALIKE: list[Operator] = [
    *KINDS,
    LINEAR,
    replace(LINEAR, dtype="bf16"),
    replace(LINEAR, n=12288),
    replace(LINEAR, m=np.arange(2, 201)),
]


@pytest.mark.parametrize("operators", [ALIKE, ALIKE[::-1]])
def test_operators_that_differ_in_one_field_keep_their_own_times(operators: list[Operator]) -> None:
    fresh = latency_model(load_gpu("a100-80gb-pcie"), "calibrated", "torch")
    kept = remembered(fresh)
    for _ in range(2):
        for operator in operators:
            assert np.array_equal(kept.time(operator).time_us, fresh.time(operator).time_us), operator.name


def test_names_do_not_matter() -> None:
    kept = remembered(latency_model(load_gpu("a100-80gb-pcie"), "calibrated", "torch"))
    assert kept.time(LINEAR) is kept.time(replace(LINEAR, name="another"))
