"""Fitted parameters of kernels and modules whose time is a sum of traffic, arithmetic and steps in a row."""

from __future__ import annotations

import msgspec

from medusa_sim.specs.fitted import Fit, Norm, Rate, Ratio
from medusa_sim.specs.strict import Us


class StreamKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A kernel or module by what it moves, computes and waits for (see `medusa_sim.latency.stream`)."""

    ramp_us: Us
    """Start and drain of all its launches."""
    host_us: Us = 0.0
    """What the host takes to launch them one by one, beside the device; 0 of rows that replay a graph."""
    graph_tokens: int = 0
    """New tokens up to which rows replay a graph, if larger ones do not: `host_us` is of those alone."""
    loads: dict[str, Ratio]
    """Microseconds of each class of bytes, in units of what they take at the datasheet's bandwidth."""
    work: dict[str, Ratio]
    """Microseconds of each class of FLOPs, in units of what they take at the datasheet's peak."""
    steps: dict[str, Us]
    """Microseconds of each of what takes its time one after another."""
    norm: Norm
    """Exponent of the smooth maximum of the three (1 adds)."""
    l2_ratio: Rate = 1.0
    """Rate of what rows measured alone found in L2, in units of that from memory."""
    l2_fill: Rate = 1.0
    """Footprint over L2 at which half is still found there."""
    l2_sharpness: Rate = 6.0
    """How suddenly."""
    name: str = ""
    """Of the kernel in its library, by which rows ask for it; empty: any."""
    fit: Fit
