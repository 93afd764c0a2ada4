"""The cost of tokens in money and in energy, with its bands (docs/method.md, cost).

    (W1)  $ per million tokens = 1e6 GPUs price / (3600 tokens/s)
    (W4)  joule per token      = GPUs watts / (tokens/s)

price: dollars per GPU-hour. watts: of one GPU (`serving/watts.py`). tokens/s: of all GPUs together, emitted
tokens alone.
"""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import Band, FloatArray, Halves
from medusa_sim.grid.cells import Cells
from medusa_sim.grid.server_steps import ServerSteps

_S_PER_HOUR = 3600.0
_MILLION = 1e6


def usd_per_million_tokens(
    usd_per_gpu_hour: float | None, gpus: int, tokens_per_s: FloatArray | float
) -> FloatArray:
    """(W1), shaped as the rate; nan without a price."""
    price = np.nan if usd_per_gpu_hour is None else usd_per_gpu_hour
    return np.asarray(_MILLION * gpus * price / _S_PER_HOUR / np.asarray(tokens_per_s))


def joule_per_token(watts: FloatArray | float, tokens_per_s: FloatArray | float) -> FloatArray:
    """(W4), shaped as the two broadcast; watts: of all GPUs together."""
    return np.asarray(np.asarray(watts) / np.asarray(tokens_per_s))


def usd(cells: Cells) -> FloatArray:
    """Dollars per million tokens; nan where a cell does not fit."""
    return usd_per_million_tokens(
        cells.scenario.usd_per_gpu_hour, cells.scenario.gpus, _rate_that_fits(cells)
    )


def joules(cells: Cells) -> FloatArray:
    """Joules per token; nan where a cell does not fit."""
    return joule_per_token(cells.server_steps.watts, _rate_that_fits(cells))


def _rate_that_fits(cells: Cells) -> FloatArray:
    """Tokens a second; nan where they do not fit, so that they cost nothing that could be compared."""
    rate = cells.tokens_per_s
    return rate if cells.fits.all() else np.where(cells.fits, rate, np.nan)


def watts_band(cells: Cells) -> Band:
    """80 % of the watts, as ratios to them: a GPU's parameters, and the time in which a step draws."""
    low, high = _with_error_of_gpu(
        cells, cells.bands.token_us.of_inverse.times(1.0 - _idle_share(cells.server_steps))
    )
    power = cells.scenario.gpu.power
    limit = np.nan if power is None else cells.scenario.gpus * power.limit_watts
    return Band(low, np.minimum(high, limit / cells.server_steps.watts))


def joule_band(cells: Cells) -> Band:
    """80 % of the joules of a token, as ratios to them: a longer step lets GPUs draw idle power longer.

    Busier GPUs draw a smaller share of that, and the band would narrow beyond what was measured.
    """
    return _with_error_of_gpu(
        cells, cells.bands.widened(lambda bands: bands.token_us.times(_idle_share(bands.server_steps)))
    )


def _with_error_of_gpu(cells: Cells, halves: Halves) -> Band:
    """The ends of these half-widths together with that of a GPU's parameters, as ratios."""
    power = cells.scenario.gpu.power
    error = 0.0 if power is None else power.fit.error
    return Halves(np.hypot(error, halves.down), np.hypot(error, halves.up)).ratios()


def _idle_share(in_server: ServerSteps) -> FloatArray:
    """Share of the watts that the GPUs draw when they run nothing."""
    scenario = in_server.steps.surface.scenario
    idle = np.nan if scenario.gpu.power is None else scenario.gpu.power.fit.idle_watts
    return np.minimum(scenario.gpus * idle / in_server.watts, 1.0)
