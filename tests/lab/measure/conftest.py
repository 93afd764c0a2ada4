"""A grid of measurements that takes a second."""

from functools import partial

import pytest


@pytest.fixture
def small_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny axes, a tiny cache, short samples and fits of few turns: the machinery, not the times."""
    import scipy.optimize

    from medusa_sim.lab.measure import bench, environment, hardware, kernels, shapes, turns

    levels = {1: 0, 2: 0, 4: 1, 8: 1, 16: 1}
    monkeypatch.setattr(shapes, "M_LEVELS", levels)
    monkeypatch.setattr(shapes, "ELEMENTWISE_M_LEVELS", dict.fromkeys(range(1, 22), 0))
    monkeypatch.setattr(shapes, "Q_LEVELS", {1: 0, 2: 0, 4: 1, 8: 1})
    monkeypatch.setattr(shapes, "CONTEXT_LEVELS", {16: 0, 32: 1, 48: 1, 64: 1})
    monkeypatch.setattr(shapes, "BATCH_LEVELS", {1: 0, 2: 1, 3: 1, 4: 1, 5: 1})
    monkeypatch.setattr(shapes, "UNFUSED_Q_LEVELS", {1: 0, 4: 1})
    monkeypatch.setattr(shapes, "PREFILL_LEVELS", dict.fromkeys((4, 8, 12, 16, 20, 24), 0))
    monkeypatch.setattr(environment, "last_level_cache_bytes", lambda: 100_000)
    monkeypatch.setattr(hardware, "_LEAST_COPY_BYTES", 2**20)
    monkeypatch.setitem(hardware._PRODUCT, "cpu", 128)
    monkeypatch.setattr(kernels, "_EMBEDDING_ROWS", 100)
    monkeypatch.setattr(bench, "_SAMPLE_US", 1.0)
    monkeypatch.setattr(bench, "_CASE_S", 0.0)
    monkeypatch.setattr(bench, "_FEWEST_REPEATS", 2)
    monkeypatch.setattr(bench, "_USUAL_S", 0.0)
    monkeypatch.setattr(bench, "_SETTLING_S", 0.0)
    monkeypatch.setattr(turns, "_MOST", turns._FEWEST)
    monkeypatch.setattr(scipy.optimize, "least_squares", partial(scipy.optimize.least_squares, max_nfev=2))
