"""What was priced goes when nobody needs it, so that a grid of many tables takes the room of one."""

import gc
import weakref

import numpy as np
import pytest

from medusa_sim.grid.cells import price
from medusa_sim.grid.quantities import SWEEP, values
from medusa_sim.grid.quantity import with_unlisted
from medusa_sim.scenario.scenario import Scenario


@pytest.mark.parametrize(
    "given",
    [
        {"gpu": "a100-80gb-pcie", "model": "vicuna-7b"},
        {"gpu": "h100-sxm", "model": "llama-3.1-8b", "drafter": "eagle3"},
        {"gpu": "h100-sxm", "model": "llama-3.1-8b", "drafter": "eagle3", "runtime": "cuda-graph"},
        # an engine: the largest batch that was measured is among these
        {"gpu": "h100-sxm", "model": "llama-3.1-8b", "drafter": "eagle3", "runtime": "vllm"},
    ],
)
def test_cells_that_were_read_hold_neither_themselves_nor_their_surface(given):
    cells = price(Scenario(**given), 2 ** np.arange(12), [512, 1024]).by_count
    assert values(cells, with_unlisted(SWEEP))
    assert cells.best().plain.speedup is not None
    held = weakref.ref(cells), weakref.ref(cells.surface), weakref.ref(cells.plain)
    gc.disable()  # it would find circles, though much later where arrays are few and large
    try:
        del cells
        assert [one() for one in held] == [None, None, None]
    finally:
        gc.enable()
