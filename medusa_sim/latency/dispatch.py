"""Calibrated time of dispatch, which brings tokens to the ranks of their experts, and of combining them.

With t tokens of a rank, h the width of one, n ranks on `nodes` nodes, c the copies that a token makes
(`Dispatch.copies`, or topk where `per_expert`), e the bytes of a value, s the multiprocessors that work (as
asked for; else one an expert, at most all) and L the link's datasheet bandwidth in one direction
(`DispatchKernel` has the other names):

    start    = start_us + width_us h / 1024 + spread_us c + rank_us log2(n / 2)
               + fill_us h / 1024 t / (t + fill_tokens)                    + far_us log2(nodes)          (Y1)
    sms      = t (token_us + (own_us + copy_us c) h / 1024) / s            reading, casting, adding      (Y2)
    link     = t h e c (n - 1) / n / (link_fraction L)                                                   (Y3)
    far      = t h e f / (far_fraction L),  f = (nodes / 2)^far_growth, between nodes only               (Y4)
    time     = start + |sms, link, far|                                    a smooth maximum of `norm`    (Y5)

One rank needs neither: its time is 0.
"""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import as_float
from medusa_sim.gpus.fitted_links import DispatchKernel
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.latency.bands import KernelParts, calibrated_time
from medusa_sim.latency.operator_time import OperatorTime
from medusa_sim.latency.waves import norm_max
from medusa_sim.operators.dispatch import ONE_NODE, Dispatch
from medusa_sim.units import BYTES_PER_ELEMENT, US_PER_S

_WIDTH = 1024.0
"""Values of a token that widths are counted in."""


def dispatch_time(gpu: Gpu, kernel: DispatchKernel, operator: Dispatch, *, cold: bool = True) -> OperatorTime:
    """Time of one dispatch or combination for every shape that `operator` holds (Y1 to Y5).

    low and high are the 80 % band of held-out residuals for the range of tokens.
    """
    del cold  # tokens that are sent are in no cache
    ranks, nodes = as_float(operator.ranks), as_float(operator.nodes)
    width = as_float(operator.hidden) / _WIDTH
    copies = as_float(operator.topk) if kernel.per_expert else operator.copies
    sms = np.where(as_float(operator.sms) > 0.0, operator.sms, np.minimum(operator.experts, gpu.sms))
    work_us = operator.size * (kernel.token_us + (kernel.own_us + kernel.copy_us * copies) * width) / sms

    values = operator.size * as_float(operator.hidden) * BYTES_PER_ELEMENT[operator.dtype]
    line_us = values / gpu.link_bandwidth_bytes_per_s * US_PER_S
    link_us = line_us * copies * (ranks - 1.0) / ranks / kernel.link_fraction
    filled = operator.size / (operator.size + kernel.fill_tokens)
    doublings = np.log2(np.maximum(ranks, 2.0) / 2.0)
    start_us = kernel.start_us + kernel.spread_us * copies + kernel.rank_us * doublings
    start_us = start_us + (kernel.width_us + kernel.fill_us * filled) * width
    if kernel.far_fraction > 0.0:
        far = np.where(nodes > ONE_NODE, (nodes / 2.0) ** kernel.far_growth, 0.0)
        link_us = norm_max(link_us, line_us * far / kernel.far_fraction, kernel.norm)
        start_us = start_us + kernel.far_us * np.log2(nodes)
    time_us = np.where(ranks > 1.0, start_us + norm_max(work_us, link_us, kernel.norm), 0.0)
    parts = (np.broadcast_to(part, time_us.shape) for part in (start_us, link_us, work_us))
    return calibrated_time(gpu, [(kernel.fit, operator)], KernelParts(time_us, *parts))
