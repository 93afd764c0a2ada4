"""A question, resolved once: the GPU, model, engine, drafter and acceptance that arguments name.

From a scenario down to its arguments, the order in which to read:

    `scenario`              all of it with the requests; what every step of it shares (`step.setting`)
    `machine_with_drafter`  what drafts: the acceptance in force (`acceptance`, `adjusted_acceptance`) and
                            every way of drafting (`draft_options`)
    `machine`               what runs: engine, GPUs, the model as they hold it (`as_run`), the times of its
                            kernels and how well these were fitted (`kernel_fits`)
    `arguments`             what a user may say, each declared once (`declare`) with its default (`defaults`)

`Scenario` is a `MachineWithDrafter`, which is a `Machine`: each class adds to the one below it.

`question` is what recommendations and checks are asked besides; `axis_values` reads the axes of a grid.
`local_rows` and `local_correction` take what a person measured on their own machine.
"""
