"""A priced grid -> what to run: where speculation pays, with how many candidates, and how sure that is.

From an answer down to a row, the order in which to read:

    `recommend`        the search: every count at every batch asked about; its answer is a `recommendation`
    `schedule`         which configuration runs which batches; `batch_ranges` says how long one stands
    `schedule_row`     one row of it; `alternatives` and `sensitivity` are functions of a row, which it has as
                       attributes; `quantities` lists what commands print of it
    `break_even`       where speculation pays; `verdict` says what of that is certain, `coarse_search` at
                       which batches it is asked
    `capacity`         the best throughput of all batches that fit; `shortfall` what does not fit

`sweep_answer`, `check` (of a `measured_run`) and `tree_answer` are what other commands answer. `surprises`
are steps that need explaining; `count_curves` reads curves over counts.
"""

from medusa_sim.plan import quantities  # declared for whoever prints an answer of this room

__all__ = ["quantities"]
