"""Whole runs of the decoder over a grid."""

import dataclasses
import itertools
from pathlib import Path

import pytest
import torch
from decoder_models import tiny_heads, tiny_llama

from medusa_sim.acceptance.heads import HeadAccuracy
from medusa_sim.errors import UsageError
from medusa_sim.lab.decoder.checkpoint import Checkpoint
from medusa_sim.lab.measure import decoder_runs
from medusa_sim.lab.measure.arguments import RunGrid
from medusa_sim.lab.measure.decoder_runs import run_grid


def test_a_step_is_its_share_of_the_time_of_all_runs(monkeypatch):
    """A clock that moves a second a reading: each of two runs decodes for one, in six steps."""
    model = tiny_llama(dtype=torch.float64)
    target = Checkpoint(model=model, heads=tiny_heads(model, count=3), path=Path())
    ticks = itertools.count()
    monkeypatch.setattr(decoder_runs, "step_clock", lambda: lambda: float(next(ticks)))
    grid = RunGrid(checkpoint=(), batches=(1,), candidates=(1,), new_tokens=7, passes=1)
    accuracy = HeadAccuracy.checked([[0.5, 0.2, 0.1]] * 3)
    (cell,) = run_grid(target, [[1, 2, 3, 4], [5, 6, 7, 8]], accuracy, grid)
    assert (cell.steps, cell.step_us) == (12, pytest.approx(2e6 / 12))


def test_the_grid_runs_every_cell_and_counts_its_tokens():
    model = tiny_llama(dtype=torch.float64)
    heads = tiny_heads(model, count=3)
    accuracy = HeadAccuracy.checked([[0.5, 0.2, 0.1]] * 3)
    target = Checkpoint(model=model, heads=heads, path=Path())
    prompts = [[1, 2, 3, 4], [5, 6, 7, 8]]
    grid = RunGrid(checkpoint=(), batches=(1, 2), candidates=(1, 2, 6), new_tokens=7)
    cells = list(run_grid(target, prompts, accuracy, grid))
    assert [(c.repetition, c.batch, c.candidates) for c in cells] == [
        (p, b, c) for p in (0, 1) for b in (1, 2) for c in (1, 2, 6)
    ]
    for cell in cells:
        assert cell.step_us > 0.0
        assert cell.seq_len == 4 + 3
        if cell.candidates == 1:
            assert cell.tokens_per_step == 1.0
            assert cell.steps == 6 * (2 if cell.batch == 1 else 1)  # the first token comes with the prompt
        else:
            assert 1.0 <= cell.tokens_per_step <= 1.0 + cell.depth
    with pytest.raises(UsageError, match="whole batches of 3"):
        list(run_grid(target, prompts, accuracy, dataclasses.replace(grid, batches=(3,))))
