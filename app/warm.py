"""What the first page needs, imported and answered while the browser starts: `medusa-sim app` runs it."""

from __future__ import annotations

import contextlib

import answers
import sidebar
from chosen import DRAFTER, GPU, MODEL, SetUp
from views import answer as page

from medusa_sim.errors import MedusaSimError


def first_page() -> None:
    """Answer what a bare address asks. What fails here is said on the page."""
    with contextlib.suppress(MedusaSimError):
        set_up = SetUp(gpu=GPU, model=MODEL, drafter=DRAFTER, dtype=sidebar.dtype_of(GPU))
        request = answers.usual_request(set_up)
        answers.recommendation(set_up, page.BATCH_MAX, "latency", request)
        answers.launch_plan(set_up, page.BATCH_MAX, "latency", request)
        answers.measured_beside(set_up)
