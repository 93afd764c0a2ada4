"""The fit of each section of a kernel set: rows of its operators -> the parameters of its law.

A kind whose law is that of a stream is fitted as one; a law of its own (`latency.laws`) has a fit here.
"""

from __future__ import annotations

from typing import Any, Protocol

from medusa_sim.gpus.gpu import Gpu
from medusa_sim.gpus.kernels import Kernel
from medusa_sim.lab.calibrate.attention import fit_attention
from medusa_sim.lab.calibrate.collective import fit_collective
from medusa_sim.lab.calibrate.dispatch import fit_dispatch
from medusa_sim.lab.calibrate.elementwise import fit_elementwise
from medusa_sim.lab.calibrate.latent import fit_latent
from medusa_sim.lab.calibrate.moe import fit_experts
from medusa_sim.lab.calibrate.rows import Rows
from medusa_sim.lab.calibrate.serial import fit_serial_attention, fit_serial_gemm
from medusa_sim.lab.calibrate.stream import fit_stream
from medusa_sim.lab.calibrate.transfer import fit_linear
from medusa_sim.lab.calibrate.unfused import fit_unfused
from medusa_sim.operators.kinds import Kind


class Fitter(Protocol):
    """Fits the rows of one kind of operator."""

    def __call__(self, rows: Rows[Any], gpu: Gpu, *, source: str) -> Kernel:
        """Their kernel; source: one line kept with it. Raises DataError for too few rows or shapes."""
        ...


FITS: dict[str, Fitter] = {
    "gemm": fit_linear,
    "serial_gemm": fit_serial_gemm,
    "attention": fit_attention,
    "serial_attention": fit_serial_attention,
    "unfused": fit_unfused,
    "elementwise": fit_elementwise,
    "moe": fit_experts,
    "mla": fit_latent,
    "collective": fit_collective,
    "dispatch": fit_dispatch,
}
"""By section of a kernel set."""


def fitter(kind: Kind, architecture: str) -> Fitter:
    """What fits rows of a kind on a device of that architecture."""
    return FITS.get(kind.section_on(architecture), fit_stream)
