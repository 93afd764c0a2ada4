"""The residual stream -> kernels: additions, or the mixing of several streams around every block."""

from __future__ import annotations

import math
from dataclasses import replace

from medusa_sim.models.model import Model
from medusa_sim.operators.elementwise import READ_AND_WRITE
from medusa_sim.operators.hyper_connection import CONNECTION_WIDTHS, HyperConnection
from medusa_sim.operators.operator import Size
from medusa_sim.step.launch import Launch, elementwise_launch

_CONNECTION_ENDS = (0.5, 2.0)
"""Ends where no kernel is fitted."""
_SITES = 2
"""Places that a row of hyper-connections has timed as one, around the attention and the experts of a layer.

One of them alone would be charged the start of both, 20 us for 10 (H100)."""


def residual_launches(model: Model, m: Size) -> list[Launch]:
    """What adds a mixer or feed-forward part to the residual stream, or mixes several streams around it."""
    hidden, sites = model.hidden, model.block_count
    if model.streams == 1:
        added = [elementwise_launch(model, "residuals", "residual", "norm_rope", m, hidden, sites)]
        if summed := model.part_count - sites:
            added.append(elementwise_launch(model, "mixer_sum", "residual", "norm_rope", m, hidden, summed))
        return added
    launches, together = [], math.gcd(sites, _SITES)
    for part, (per_stream, fixed) in CONNECTION_WIDTHS.items():
        width = (per_stream * model.streams + fixed) * hidden
        mid, low, high = (
            elementwise_launch(
                model, "hyper_connections", READ_AND_WRITE, "norm_rope", m, round(share * width), sites
            )
            for share in (1.0, *_CONNECTION_ENDS)
        )
        composed = replace(mid, ends=(low.operator, high.operator))
        kernel = HyperConnection(
            name="hyper_connections",
            tokens=m,
            hidden=hidden,
            streams=model.streams,
            part=part,
            sites=together,
            dtype=model.activation_dtype,
        )
        count = sites // together
        launches.append(replace(mid, operator=kernel, count=count, composed=(composed,)))
    return launches
