"""Cells of a scenario: what a step takes and gives at every batch, length and way of drafting.

From a printed number down to a step, the order in which to read:

    `quantities`   every number of cells that is printed, by name, and which command shows it
    `cells`        configurations at every batch and length: what each gains, which is best, what it needs
    `bands`        how sure that is, beyond what was measured too (`extrapolation`)
    `server_steps` their steps as requests of a full server see them (`serving.server`)
    `steps`        the step of each cell, put together from passes
    `surface`      the passes, each priced once: plain, verifying, drafting (`step.step`)

Each holds what stands below it (`Cells.steps`, `Cells.server_steps`, `Cells.bands`).

`axes` are those of a grid, `roofline` lays operators out on them.
`cell`, `single_step` and `request_latency` are views of one place in a grid, `sweep` a table of all of it.
"""

from medusa_sim.grid import quantities  # declared for whoever prints a quantity

__all__ = ["quantities"]
