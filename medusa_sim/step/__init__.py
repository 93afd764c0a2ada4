"""What one step launches and how long that takes.

From the time of a step down to one kernel, the order in which to read:

    `step.speculative_step`       verification and drafting (`drafting`); a plain step is `step.decode_step`
    `step.verification_step`      one pass of the target, or its mean over how much it verifies (`verified`)
    `network.model_launches`      the kernels of a model and workload, block by block: mixers (`attention`,
                                  `latent`, `sparse`, `recurrent`), `feed_forward`, `exchange`, `residual`
    `pass_cost.timed_pass`        one pass: its kernels are timed, then host and engine are added
                                  (`pass_cost.pass_cost`); `host` and `graphs` have what an engine adds
    `kernels.kernel_time`         one launch in its runtime, by the latency model (`latency.calibrated`)
    `timed_kernels.TimedKernels`  what is added up over them
    `compose.step_us`             device, host and engine put together: the time of every `compose.Cost`

A drafter (`step.drafter`) adds passes to the verification. `prompt_kernels` and `prompts` are the kernels
that read prompts and what an engine makes of them. `serving` averages steps over the requests of a server.

The names below are what a user chooses by. Help pages read them: nothing here imports numpy.
"""

from typing import Literal

Scope = Literal["model", "block"]
"""What a step launches: all that an engine runs, or the Medusa paper's simplified block."""
OverlapName = Literal["chain", "tree", "independent", "disjoint"]
"""How candidates of one sequence share experts (`expert_union`)."""
