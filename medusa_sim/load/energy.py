"""Watts of a run: what its steps, prompts and pauses draw (docs/method-engines.md, watts).

Decoding and verification steps draw by (W2) at the middle length, with the filter of their logits; prompts
by their FLOPs, averaged over their lengths, since they share a step's weights; a server without work its idle
watts. The limit (W3) holds for the mean while it works.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray, as_float
from medusa_sim.gpus.power import Power
from medusa_sim.grid.cells import price
from medusa_sim.load.run_result import Sums
from medusa_sim.scenario.draft_options import DraftOption
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.serving.watts import prompt_joules, sampling_joules, watts
from medusa_sim.step.sampling import sampled
from medusa_sim.units import US_PER_S


@dataclass(frozen=True, kw_only=True, eq=False)
class Energy:
    """What steps and prompts of a scenario draw.

    above_w: (1 + drafts, 1 + requests) watts above idle of one GPU in a step without prompts.
    prompt_token_joule: above idle, of one GPU; drafter_token_joule: what a loaded drafter adds that reads
    prompts, too. gpus: that run the model together.
    """

    power: Power
    gpus: int
    above_w: FloatArray
    prompt_token_joule: float
    drafter_token_joule: float = 0.0

    def watts(self, sums: Sums) -> float:
        """Mean watts of all GPUs over some time of a run."""
        drafts, requests = sums.steps_s.shape
        joules = float((sums.steps_s * self.above_w[:drafts, :requests]).sum())
        loaded = drafts > 1
        joules += sums.prompt_tokens * (self.prompt_token_joule + loaded * self.drafter_token_joule)
        busy_s = min(sums.busy_s, sums.span_s)
        if busy_s <= 0.0:
            return self.gpus * self.power.fit.idle_watts
        working = float(watts(self.power, np.asarray(joules), np.asarray(busy_s * US_PER_S)))
        idle_s = sums.span_s - busy_s
        return self.gpus * (working * busy_s + self.power.fit.idle_watts * idle_s) / sums.span_s

    def joule_per_token(self, sums: Sums) -> float:
        """Joules of all GPUs over the tokens that were emitted; nan where none were."""
        return self.watts(sums) * sums.span_s / sums.emitted if sums.emitted else float("nan")


def energy_of(
    scenario: Scenario,
    options: Sequence[DraftOption],
    max_requests: int,
    length: float,
    prompt_tokens: IntArray,
    found_tokens: IntArray | int = 0,
) -> Energy | None:
    """What steps of a scenario draw; None where the GPU's power is not known.

    options: chains of 1, 2, ... drafts. length: mean committed tokens of a request in flight, at which
    steps are both timed and metered; prompt_tokens: (n,) of whole prompts, of which found_tokens are
    found in the cache and not read again.
    """
    power = scenario.gpu.power
    if power is None:
        return None
    batch = np.arange(1, max_requests + 1)
    cells = price(scenario, batch, [max(round(length), 1)], options).by_count
    setting, sizes = cells.surface.setting, batch[:, None, None].astype(np.float64)
    rows = sizes * np.asarray(setting.verified.mean_tokens(cells.candidates), dtype=np.float64)
    joules = cells.steps.joules + sampling_joules(power, setting, rows)
    added = sampled(setting, sizes, cells.candidates, cells.tokens_per_step)
    above = np.broadcast_to(joules / (cells.steps.time_us + added.time_us) * US_PER_S, cells.shape)[:, 0].T
    prompts = np.stack(np.broadcast_arrays(prompt_tokens - found_tokens, found_tokens))
    (tokens, found), often = np.unique(prompts, axis=1, return_counts=True)
    drafter = options[-1].drafter if options else None
    plain, drafting = (
        float((often * prompt_joules(power, setting, as_float(tokens), reader, found)).sum())
        / float((often * tokens).sum())
        for reader in (None, drafter)
    )
    return Energy(
        power=power,
        gpus=scenario.gpus,
        above_w=np.concatenate([above[:, :1], above], axis=1),
        prompt_token_joule=plain,
        drafter_token_joule=drafting - plain,
    )
