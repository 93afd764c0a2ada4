"""Every kernel of a step of a model of each architecture: how many, how large, as its config.json says."""

from collections.abc import Iterator

import numpy as np
import pytest
from tables import table

from medusa_sim.engines.runtime import load_runtime
from medusa_sim.models.named import load_model
from medusa_sim.models.parallel import Parallel
from medusa_sim.models.variants import on_one_gpu
from medusa_sim.step.launch import Launch
from medusa_sim.step.network import model_launches
from medusa_sim.step.workload import prefill, verify

STEPS = {"verify": verify(2, 300, 4), "long": verify(2, 5000, 4), "prompt": prefill(1, 5000)}
"""Two requests verify four tokens each behind 300 or 5,000; a prompt of 5,000."""
PARTS = {"long": ("attention",), "prompt": ("attention", "exchange", "lm_head")}
"""What is listed of the longer ones: the rest has other rows and is the same."""
EXPECTED = table("launched_kernels")


def listed(launches: tuple[Launch, ...], parts: tuple[str, ...] | None, indent: str = "") -> Iterator[str]:
    for launch in launches:
        if parts is None or launch.part in parts:
            operator = launch.operator
            sizes = {name: np.asarray(size, dtype=float) for name, size in operator.sizes.items()}
            named = [f"{name}={size:g}" for name, size in sizes.items() if not np.isnan(size)]
            kind = "" if operator.kind in ("gemm", operator.name) else f" {operator.kind}"
            yield " ".join([f"{indent}{launch.count}", f"{operator.name}{kind}", operator.dtype, *named])
            yield from listed(launch.composed, None, f"{indent}  ")


@pytest.mark.parametrize(("heading", "expected"), EXPECTED.items(), ids=EXPECTED)
def test_a_step_launches_the_kernels_of_its_model(heading, expected):
    name, runtime, tp, ep, step = heading.split()
    parallel = Parallel(tp=int(tp), ep=abs(int(ep)), dp_attention=int(ep) < 0)
    model = on_one_gpu(load_model(name), parallel)
    launches = model_launches(model, STEPS[step], load_runtime(runtime))
    assert list(listed(launches, PARTS.get(step))) == expected.splitlines()
