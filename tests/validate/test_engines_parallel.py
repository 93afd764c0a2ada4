"""Several GPUs and mixtures of experts against a served engine; nothing is fitted to these rows."""

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def parallel() -> ModuleType:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import engine_parallel
    finally:
        sys.path.pop(0)
    return engine_parallel


def test_several_gpus_and_experts_as_served(parallel, shared_data):
    rows = parallel.served(shared_data)
    errors = {kind: np.asarray([row.error for row in rows if row.experts == kind]) for kind in (False, True)}
    assert len(errors[False]) >= 15
    assert len(errors[True]) >= 15
    assert np.abs(errors[False]).mean() < 0.075
    assert np.abs(errors[True]).mean() < 0.08
    assert max(np.abs(each).max() for each in errors.values()) < 0.20
