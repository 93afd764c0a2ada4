"""Passes timed together have the times that each has alone, and their kernels are asked for once."""

from dataclasses import replace

import numpy as np
import pytest

from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.serving.watts import launch_joules
from medusa_sim.step.compose import COST_FIELDS
from medusa_sim.step.drafting import drafting_times_of
from medusa_sim.step.pass_cost import timed_pass
from medusa_sim.step.workload import verify

BATCH, LENGTH = np.array([[[1]], [[24]]]), np.array([[[700], [9000]]])
DEPTHS, GPU = (1, 3, 4, 6), load_gpu("h100-sxm")


def settings_of(**given):
    of = Scenario(chain_only=True, **given)
    return [replace(of.setting, drafter=of.drafting.drafter(depth)) for depth in DEPTHS]


CASES = {
    "eagle3": {"gpu": "h100-sxm", "model": "llama-3.1-8b", "drafter": "eagle3"},
    "mtp with experts": {
        "gpu": "h200-sxm", "model": "deepseek-r1", "drafter": "mtp", "tp": 8, "runtime": "sglang"
    },
    "a draft model with windows": {
        "gpu": "h100-sxm", "model": "gemma-3-27b", "drafter": "draft-model", "draft_model": "gemma-3-1b",
        "acceptance": "typical-draft-model",
    },
    "a draft model that is read back": {
        "gpu": "rtx-5090", "model": "qwen3-8b", "drafter": "draft-model", "draft_model": "qwen3-0.6b",
        "runtime": "llama.cpp", "acceptance": "typical-draft-model",
    },
    "a block": {"gpu": "h100-sxm", "model": "qwen3-8b", "drafter": "dflash"},
    "a block and heads": {"gpu": "h100-sxm", "model": "qwen3-8b", "drafter": "dspark"},
    "p-eagle": {"gpu": "h100-sxm", "model": "gpt-oss-120b", "drafter": "p-eagle"},
    "heads": {"gpu": "a100-80gb-pcie", "model": "vicuna-7b"},
}  # fmt: skip


def alike(one, other):
    """Whether both are the same, though one may hold an axis along which it does not vary."""
    first, second = np.broadcast_arrays(one, other)
    return first == pytest.approx(second, rel=1e-12)


@pytest.mark.parametrize("given", CASES.values(), ids=CASES)
def test_passes_timed_together_have_the_times_that_each_has_alone(given):
    settings = settings_of(**given)
    together = drafting_times_of(settings, BATCH, LENGTH, 7)
    for steps, setting in zip(together, settings, strict=True):
        works = setting.drafter.work(setting.shard, verify(BATCH, LENGTH, 7), setting.runtime)
        for step, alone in zip(steps, (timed_pass(setting.latency, work) for work in works), strict=False):
            for name in COST_FIELDS:
                assert alike(getattr(step.cost, name), getattr(alone.cost, name)), name
            for part, time_us in alone.parts_us.items():
                assert alike(step.parts_us[part], time_us), part
            for code, time_us in alone.waits_us.items():
                assert alike(step.waits_us[code], time_us), code
            assert alike(step.source, alone.source)
            for one, apart in zip(step.passes, alone.passes, strict=True):
                assert (one.work.name, one.gaps_us) == (apart.work.name, apart.gaps_us)
                joules = (launch_joules(GPU, GPU.power, each.work.launches) for each in (one, apart))
                assert alike(one.alone(next(joules)), next(joules))


class Asked:
    """A latency model that counts what it is asked."""

    def __init__(self, latency):
        self.name, self.gpu, self.latency, self.times = latency.name, latency.gpu, latency, 0

    def time(self, operator):
        self.times += 1
        return self.latency.time(operator)


def asked_of(settings):
    counting = Asked(settings[0].latency)
    drafting_times_of([replace(setting, latency=counting) for setting in settings], BATCH, LENGTH, 7)
    return counting.times


def test_kernels_of_every_draft_length_are_asked_for_as_often_as_those_of_the_longest():
    *_, longest = settings = settings_of(**CASES["eagle3"])
    assert asked_of(settings) == asked_of([longest])
    assert asked_of([longest]) == pytest.approx(
        2 * asked_of(settings[:1]), rel=0.1
    )  # reading, and all levels
