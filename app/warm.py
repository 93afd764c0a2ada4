"""What the first page needs, imported and answered while the browser starts: `medusa-sim app` runs it."""

from __future__ import annotations

import contextlib

import answers
import jobs
from chosen import OPENS, set_up_of
from views import answer as page  # noqa: F401  # its imports

from medusa_sim.errors import MedusaSimError


def first_page() -> None:
    """Answer what a bare address asks, then start what searches. What fails here is said on the page."""
    with contextlib.suppress(MedusaSimError):
        set_up = set_up_of(OPENS)
        answers.profile_titles()
        answers.planned(set_up)
        answers.launch_plan(set_up, answers.every_batch(set_up))
        answers.measured_near(set_up)
    jobs.warm_up()
