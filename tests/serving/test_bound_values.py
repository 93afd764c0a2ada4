"""What a step waits for, and what a server's tokens take of it, by hand."""

from dataclasses import replace
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from servers import CHAT, served, setting

from medusa_sim.engines.engine import StepLimit
from medusa_sim.engines.runtime import load_runtime
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.serving import watts
from medusa_sim.serving.begun_prompts import Begun
from medusa_sim.serving.server import FullServer, ServedCells
from medusa_sim.serving.step_means import _Cases
from medusa_sim.serving.traffic import Traffic, drafting_requests
from medusa_sim.step.verified import Verified


def test_tokens_of_a_server_share_their_mean_steps():
    """(N10) and (N11): 255 tokens in 100 steps."""
    step_us = np.asarray(9_000.0)
    seen = served(setting(), step_us, 8, 4, np.asarray(2.6), CHAT, decode_steps=np.asarray(100.0))
    assert isinstance(seen, FullServer)
    assert float(seen.tpot_us) == pytest.approx(float(np.squeeze(seen._means.decoding_us)) * 100.0 / 255.0)
    whole = float(np.squeeze(seen._means.step_us * seen._cycle.steps)) / CHAT.output_tokens
    assert float(seen.token_us) == pytest.approx(whole)


@pytest.mark.parametrize("prefix", [0.0, 500.0])
@pytest.mark.parametrize(("candidates", "joules"), [(1, 2.0), (4, 3.0)])
def test_prompts_draw_as_often_as_requests_begin(monkeypatch, candidates, joules, prefix):
    """Eight requests read 700 tokens each, behind a prefix, and decode for 32 steps of 20 J."""
    read = {None: 2.0, "drafter": 3.0}
    monkeypatch.setattr(
        watts, "prompt_joules", lambda power, setting, lengths, of, before: read[of] * (lengths + before)
    )
    monkeypatch.setattr(watts, "sampling_joules", lambda power, setting, rows: 0.5 * rows)
    traffic = Traffic(prompt_tokens=700.0, output_tokens=80.0, prompt_cv=0.5, output_cv=0.3)
    cells = ServedCells(
        setting=SimpleNamespace(verified=Verified()), drafter="drafter", requests=8, candidates=candidates,
        tokens_per_step=None, step_us=None, cached_tokens=prefix,
    )  # fmt: skip
    found = watts.requests_joules(None, cells, traffic, np.asarray(32.0), np.asarray(20.0))
    assert float(found) == pytest.approx(
        8 * joules * (700 + prefix) + 32 * (20.0 + 0.5 * 8 * candidates), rel=1e-3
    )


@pytest.mark.parametrize(("further", "share"), [(0.0, 0.6), (0.5, 0.9), (1.0, 1.0)])
def test_the_share_of_steps_that_carry_prompts_is_one_at_most(further, share):
    """On 0.4 of the steps none begins, on 0.6 one or two do; each may go on for further steps: 0.6 + 0.3, and
    0.6 + 0.6 would be 1.2.
    """
    number, weight = np.array([0.0, 1.0, 2.0]), np.array([0.4, 0.4, 0.2])
    going_on = np.stack([0.0 * number, 2 * further * (number > 0)], axis=1)  # averaged over lengths
    begun = Begun(number, weight, np.zeros(3, dtype=np.int64), np.ones(3))
    cases = _Cases(1, begun, SimpleNamespace(full_steps=going_on))
    assert cases.carrying_share.tolist() == pytest.approx([share])


def test_a_loaded_drafter_limits_the_requests_of_a_step_on_every_scheduler():
    """48 a scheduler: 96 of two, but no more than a step has without drafts."""
    runtime = load_runtime("sglang")
    engine = msgspec.structs.replace(runtime.engine, drafting_requests=48, limits_each=True)
    limit = StepLimit(tokens=8192, requests=64)

    def most(schedulers: int, **changed: object) -> int:
        made = msgspec.structs.replace(engine, step_limits=(limit,), **changed)
        return drafting_requests(replace(runtime, engine=made), load_gpu("h100-sxm"), schedulers=schedulers)

    assert [most(1), most(2), most(2, limits_each=False)] == [48, 96, 48]
    assert [most(2, drafting_requests=0), most(1, drafting_requests=100)] == [128, 64]
