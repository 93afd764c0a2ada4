"""What one step launches and how long that takes.

From the time of a step down to one kernel:

    `step.verification_step`      a step of a workload: its passes, or their mean over what it verifies
    `pass_time.work_time`         one pass: kernels are timed, then device, host and engine put together
    `network.model_launches`      the kernels of a model and workload, mixer by mixer (`attention`, ...)
    `compose.pass_cost`           the cost of a pass; `host` has what an engine adds
    `kernels.kernel_time`         one launch in its runtime
    `latency.calibrated`          the law of the kernel

A drafter (`step.drafter`) is passes beside the verification. A full server (`server`) is a step in the mean
over who decodes, who is away and whose prompt rides on it.
"""
