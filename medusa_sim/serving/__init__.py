"""A full server: what its requests do, and its steps averaged over who decodes and whose prompt rides along.

In the order in which to read:

    `traffic`, `request_steps`    lengths of requests, and how many steps one decodes
    `request_cycle`               what its requests do: decode, be away, queue, read a prompt
    `returning`                   which of them come back together
    `begun_prompts`, `running`    how many prompts begin on a step, and who waits for its room
    `mixed_steps`                 what a step with so many prompts takes
    `step_means`                  means over all its steps
    `server`, `first_tokens`      what a server is given, and what its requests see of these
    `watts`                       power over such steps

Steps and the kernels that read prompts are those of `step`. Nothing is simulated here: `load` does that.
"""
