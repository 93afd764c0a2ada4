"""No half-width falls beyond what was measured: the last batch, the last length, the last version."""

from typing import Any

import numpy as np
import pytest

from medusa_sim.engines.served_groups import longest_tokens
from medusa_sim.grid.cells import Cells, price
from medusa_sim.grid.costs import joule_band
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.pass_cost import setup_half_us

KNOWN = longest_tokens()
SET_UPS: tuple[dict[str, Any], ...] = (
    {"gpu": "l40s", "model": "qwen3-32b", "tp": 4, "runtime": "sglang"},
    {"gpu": "b200", "model": "llama-3.1-8b", "dtype": "fp8", "runtime": "vllm", "prompt_tokens": 512,
     "output_tokens": 256},
    {"gpu": "h200-sxm", "model": "gpt-oss-120b", "tp": 8, "runtime": "tensorrt-llm"},
)  # fmt: skip
NEWER = (
    ("vllm-0.15", "vllm-0.24", "vllm-0.33", "vllm-0.60"),
    ("sglang-0.5", "sglang-0.9"),
    ("tensorrt-llm-1.2", "tensorrt-llm-1.3", "tensorrt-llm-2.0"),
)
DENSE = (("llama-3.1-70b", 4), ("llama-3.1-8b", 1))
"""Measured on an H200 in fp8: the first in vLLM and TensorRT-LLM, the second in SGLang."""


def halves(cells: Cells) -> dict[str, np.ndarray]:
    """(B, S, K) half-widths of steps, speedups, times per token (so dollars) and to the first, joules."""
    of_step, speedup = cells.steps.time_us, cells.speedup
    ends = {"slower": cells.bands.step_us.high / of_step, "faster": of_step / cells.bands.step_us.low}
    ends |= {"gain, more": cells.speedup_band[1] / speedup, "gain, less": speedup / cells.speedup_band[0]}
    for name, (low, high) in (
        ("token", cells.bands.token_us.ratios()), ("first token", cells.bands.first_token.ratios()),
        ("joules", joule_band(cells)),
    ):  # fmt: skip
        ends |= {f"{name}, more": high, f"{name}, less": 1.0 / low}
    return {name: np.broadcast_to(np.log(end), cells.shape) for name, end in ends.items()}


@pytest.mark.parametrize("set_up", SET_UPS, ids=lambda each: f"{each['gpu']}, {each['runtime']}")
def test_no_band_is_narrower_beyond_the_last_batch_or_length(set_up):
    of = Scenario(**set_up, drafter="eagle3", acceptance="0.7,0.5,0.3")
    engine = of.setting.runtime.engine
    assert engine is not None
    requests = engine.measured_requests
    batch = [requests, 2 * requests, 4 * requests]
    found = halves(price(of, batch, [KNOWN, 2 * KNOWN, 4 * KNOWN, 8 * KNOWN]).by_count)
    beyond = halves(price(of, [5 * requests], [13 * KNOWN]).by_count)
    for name, half in found.items():
        for axis in (0, 1):
            assert (np.diff(half, axis=axis) >= -1e-9).all(), (name, axis)
        assert (beyond[name] >= half[-1, -1] - 1e-9).all(), name


@pytest.mark.parametrize("versions", NEWER, ids=lambda each: each[0].partition("-")[0])
def test_no_version_that_nobody_measured_is_known_better_than_those_before_it(versions):
    for model, tp in DENSE:
        asked: dict[str, Any] = {"gpu": "h200-sxm", "model": model, "dtype": "fp8", "tp": tp}
        shares = []
        for version in versions:
            of = Scenario(**asked, runtime=version, drafter="eagle3", acceptance="0.7,0.5,0.3")
            shares.append(float(setup_half_us(of.setting.runtime, np.ones(()))))
        assert shares == sorted(shares)
        is_measured = (model == "llama-3.1-8b") == versions[0].startswith("sglang")
        assert shares[0] < shares[-1] or not is_measured
