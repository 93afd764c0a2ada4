"""Answers that no server gives: the scan of `benchmarks/scan.py` in small, and the simulator."""

import pytest
import roads
import scan
from _pytest.mark.structures import ParameterSet

SET_UPS = (
    scan.SetUp("h100-sxm", "llama-3.1-8b", "vllm", "bf16", 1),
    scan.SetUp("h100-sxm", "llama-3.3-70b", "vllm", "fp8", 4),
    scan.SetUp("h200-sxm", "qwen3-30b-a3b", "sglang", "fp8", 1),
    scan.SetUp("b200", "gpt-oss-120b", "tensorrt-llm", "bf16", 1),
    scan.SetUp("l40s", "llama-3.1-8b", "sglang", "bf16", 1),
)

AT_NIGHT = (SET_UPS[1], SET_UPS[4])
"""Of engines that have another here."""


def asked(*more: tuple[int, ...]) -> list[ParameterSet]:
    """The set-ups, with more of each."""
    return [
        pytest.param(each, *rest, marks=[pytest.mark.nightly] if each in AT_NIGHT else [], id=str(each))
        for each, *rest in zip(SET_UPS, *more, strict=True)
    ]


@pytest.mark.parametrize("each", asked())
def test_no_verdict_comes_from_an_artefact(each):
    found = scan.scanned(each)
    assert found["batches"] > 100
    assert found["ranges"] <= 3  # where it hovers about 1, the verdict says so
    assert found["falls"] <= 1
    assert found["moved"] == 0
    assert found["worse"] == 0
    assert found["narrows"] > -1e-9


@pytest.mark.parametrize(("each", "users"), asked((4, 64, 32, 96, 32)))
def test_a_sweep_is_what_the_simulator_gives(each, users):
    plain, drafting = (
        roads.differences(
            roads.Server(
                family=each.runtime, scenario=each.scenario(), drafts=drafts, users=users, length_cv=0.6
            )
        )
        for drafts in (0, 2)
    )
    speedup = (1.0 + drafting["tokens/s"]) / (1.0 + plain["tokens/s"]) - 1.0
    assert abs(speedup) < 0.04
    assert abs(plain["ITL"]) < 0.1
    assert abs(drafting["ITL"]) < 0.2
    for apart in (plain, drafting):
        assert abs(apart["tokens/s"]) < 0.03
        assert abs(apart["TPOT"]) < 0.02
        assert abs(apart["TTFT"]) < 0.08


def test_a_cliff_of_plain_throughput_is_named_in_the_answer():
    each = scan.SetUp("h200-sxm", "qwen3-32b", "sglang", "fp8", 1)
    assert scan.scanned(each)["falls"] > 0
    answer = each.scenario().recommend(batch=(120, 140))
    (line,) = (line for line in answer.warnings if "less throughput" in line)
    assert "128 (-" in line
    smooth = SET_UPS[0].scenario().recommend(batch=(120, 140))
    assert not any("less throughput" in line for line in smooth.warnings)
