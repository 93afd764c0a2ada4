"""Set-ups that carry a rate: launch commands leave room for arrivals at random, and queues are said."""

from typing import Any

import pytest
from asking import run

import medusa_sim as ms
from medusa_sim.export.launch import chosen_command
from medusa_sim.report.compare.sentences import QUEUED, loaded_line, queue_text
from medusa_sim.setups.comparison import Comparison

RATED: dict[str, Any] = {
    "model": "llama-3.1-8b", "gpus": "h100-sxm", "counts": 1, "engines": "vllm", "weight_dtypes": "bf16",
    "drafters": ("none", "eagle3"), "prompt_tokens": 500, "output_tokens": 300,
}  # fmt: skip


@pytest.mark.parametrize("rate", [0.5, 2.0, 8.0])
def test_a_launch_command_for_a_rate_leaves_no_request_waiting(rate):
    """Random arrivals are more than their mean now and then; what is written is what is simulated."""
    found = ms.compare(**RATED, rate=rate)
    for loaded in found.under_load(requests=200):
        assert 1e3 * loaded.point.mean["ttft_p50_s"] < QUEUED * loaded.row["ttft_ms"]
        assert queue_text(loaded) == ""
        command = chosen_command(found.answer, loaded.row)
        held = int(command.partition("--max-num-seqs ")[2].split()[0])
        assert held == found.answer.most_requests(loaded.row) >= 32


def test_a_limit_on_the_speed_of_a_stream_still_caps_the_requests():
    free, limited = (ms.compare(**RATED, rate=2, tpot_ms=limit) for limit in (None, 8.0))
    most = [found.answer.most_requests(found.chosen) for found in (free, limited)]
    assert most[0] > most[1] >= limited.chosen["batch"]
    users = ms.compare(**RATED, users=24)
    assert users.answer.most_requests(users.chosen) == users.chosen["batch"]


def test_a_rate_near_what_copies_carry_is_stated_to_queue():
    found = ms.compare(**RATED, rate=2)
    carried = 2.0 / found.answer.busy(found.chosen)
    near, far = (ms.compare(**RATED, rate=share * carried) for share in (0.95, 0.5))
    assert any("wait for each other" in line for line in near.warnings) == (
        near.answer.busy(near.chosen) > 0.85
    )
    assert not any("wait for each other" in line for line in far.warnings)
    assert near.answer.busy(near.chosen) > 0.85


def test_queues_under_load_are_stated(monkeypatch):
    """As with the cap that held the mean alone: 3.6 s to a first token, and not a word."""
    found = ms.compare(**RATED, rate=2)
    monkeypatch.setattr(Comparison, "most_requests", lambda self, row: int(row["batch"]))
    told = [loaded_line(each) for each in found.under_load(requests=200)]
    assert "requests wait: a first token takes" in told[0]


def test_lengths_are_not_cut_to_twice_the_mean():
    found = ms.compare(**RATED, rate=2)
    assert "--max-model-len" not in found.command()
    small = ms.compare(**{**RATED, "gpus": "l4", "drafters": "none"}, users=2)
    command = small.command()
    longest = int(command.partition("--max-model-len ")[2].split()[0])
    assert 1600 < longest < 131_072
    assert f"# prompt and output beyond {longest:,} tokens are refused" in command


def test_a_rate_that_no_fleet_carries_is_refused_or_stated():
    done = run("compare", "--model", "llama-3.1-8b", "--gpu", "h100-sxm", "--rate", "1e9")
    assert done.exit_code == 2
    assert "rate" in done.stderr
    assert "1,000,000" in done.stderr or "1000000" in done.stderr
    found = ms.compare(**RATED, rate=900_000)
    assert any("GPUs" in line and "requests a second" in line for line in found.warnings)
