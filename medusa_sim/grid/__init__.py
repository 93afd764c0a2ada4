"""Cells of a scenario: what a step takes and gives at every batch, length and way of drafting.

From a printed number down to a step, the order in which to read:

    `quantities`   every number that is printed, by name; `columns` has which command shows it
    `cells`        some configurations at every batch and length: the best of them, and what each gives
    `steps`        the step of each cell, put together from passes, and what requests of a server see of it
    `surface`      the passes, each priced once: plain, verifying, drafting (`step.step`)
    `bands`        how sure each of these is; none narrows beyond what was measured (`beyond`)

`cell`, `single_step`, `request_latency` and `tree_answer` are views of one place in a grid, `sweep` a table
of all of it.
"""
