"""Requests over time: arrivals, an engine's scheduler, policies of speculation, goodput.

From an answer down to a step, the order in which to read:

    `answer`        every policy at every rate, and the rates that each carries (`carried_rates`)
    `load_test`     what every run shares: a scenario, where its requests come from (`sources`, `trace`),
                    the limits on latency (`slos`)
    `point`         one policy at one rate over the seeds; its `metrics` are read off a `run_result`
    `serving_loop`  one run: `clients` send requests, a policy chooses drafts, the `scheduler` fills a step
                    from queue, `batch` and `cache`, the `step_table` says how long it takes
    `policies`      how many drafts every request gets in the next step; `policy_names` as they are typed

`largest_rate`, `saturation` and `losses` search rates by `trial` runs. `limits` are those of an engine on a
step, `prompt_table` the times of prompts, `draws` the drafts that are accepted, `energy` the watts.
"""
