"""Cells of a scenario: what a step takes and gives at every batch, length and way of drafting.

From a printed number down to a step, the order in which to read:

    `quantities`   every number of cells that is printed, by name, and which command shows it
    `cells`        configurations at every batch and length: what each gains, which is best, what it needs
    `bands`        how sure each number of a step is, beyond what was measured too (`extrapolation`)
    `steps`        the step of each cell, put together from passes, and what requests of a server see of it
    `surface`      the passes, each priced once: plain, verifying, drafting (`step.step`)

`Cells` are `BandedSteps`, which are `Steps` of a `Surface`: each class adds to the one below it.

`axes` are those of a grid, `roofline` lays operators out on them.
`cell`, `single_step` and `request_latency` are views of one place in a grid, `sweep` a table of all of it.
"""

from medusa_sim.grid import quantities  # declared for whoever prints a quantity

__all__ = ["quantities"]
