"""What one step launches and how long that takes.

From the time of a step down to one kernel, the order in which to read:

    `step.speculative_step`       verification and drafting (`drafting`); a plain step is `step.decode_step`
    `step.verification_step`      one pass of the target, or its mean over how much it verifies (`verified`)
    `network.model_launches`      the kernels of a model and workload, block by block: mixers (`attention`,
                                  `latent`, `sparse`, `recurrent`), `feed_forward`, `exchange`, `residual`
    `pass_time.timed_pass`        one pass: its kernels are timed, then host and engine are added
                                  (`pass_time.pass_cost`); `host` and `graphs` have what an engine adds
    `kernels.kernel_time`         one launch in its runtime, by the latency model (`latency.calibrated`)
    `kernel_sums.TimedLaunches`   what is added up over them
    `compose.step_us`             device, host and engine put together: the time of every `compose.Cost`

A drafter (`step.drafter`) adds passes to the verification. A full server averages steps over who decodes, who
is away and whose prompt rides along. In the order in which to read:

    `request_cycle`               what its requests do: decode, be away, queue, read a prompt
    `returning`                   which of them come back together
    `begun_prompts`               how many prompts begin on a step
    `prompt_kernels`, `prompts`   kernels that read prompts, and what an engine makes of them
    `mixed_steps`                 what a step with so many prompts takes
    `step_means`                  means over all its steps
    `server`, `first_tokens`      what requests see of these
"""
