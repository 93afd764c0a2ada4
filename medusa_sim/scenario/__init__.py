"""A question, resolved once: the GPU, model, engine, drafter and acceptance that arguments name.

From a scenario down to its arguments, the order in which to read:

    `scenario`        all of it, each part loaded once: the machine, its kernels, what drafts, the requests,
                      and what every step shares (`step.setting`)
    `latency_asked`   the times of its kernels; `kernel_fits`: how well these were fitted
    `draft_options`   the drafter, and every way in which it may draft
                      with the acceptance in force (`adjusted_acceptance`, of what was measured: `acceptance`)
    `as_run`          the model in the formats that an engine runs it in
    `arguments`       what a user may say, each declared once (`declare`) with its default (`defaults`)

`question` is what recommendations and checks are asked besides; `axis_values` reads the axes of a grid.
`local_rows` and `local_correction` take what a person measured on their own machine.
"""
