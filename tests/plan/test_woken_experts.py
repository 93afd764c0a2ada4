"""Where a mixture of experts makes drafts dear: the range, its numbers, and the sentence."""

import numpy as np
import pytest

from medusa_sim.api import Scenario
from medusa_sim.plan.question import Question
from medusa_sim.plan.recommend import recommend
from medusa_sim.plan.surface import price
from medusa_sim.plan.woken_experts import DEAR, waking
from medusa_sim.report.recommend_reason import reason
from medusa_sim.step.workload import union

MOE = Scenario(
    gpu="h100-sxm", model="qwen3-30b-a3b", drafter="eagle3", acceptance=[0.7, 0.5], latency="roofline"
)
BATCHES = [1, 2, 4, 8, 16, 32, 64, 128, 256]


def test_the_range_is_where_a_draft_costs_and_wakes():
    surface = price(MOE, BATCHES, [1024])
    found = waking(surface)
    experts = surface.setting.model.experts
    assert found.first <= found.worst <= found.last < 256
    assert not found.capped
    assert found.plain == pytest.approx(float(union(experts.experts, experts.topk, found.worst, 1)))
    assert found.woken == pytest.approx(float(union(experts.experts, experts.topk, found.worst, 2)))
    assert found.plain < found.woken < found.experts == experts.experts
    assert found.cost >= DEAR
    # what the experts cost is part of what verification costs
    overhead = np.ravel(surface.verify.time_us[..., 0]) / np.ravel(surface.decode.time_us) - 1.0
    assert found.cost <= overhead[BATCHES.index(found.worst)] + 1e-9


def test_a_range_is_named_and_its_end_only_where_the_search_found_it():
    found = waking(price(MOE, [1, 2, 4], [1024]))
    assert (found.last, found.capped) == (4, True)
    assert "above" not in reason(recommend(MOE, Question(batch_max=4))).split("wakes more experts")[1]
    answer = recommend(MOE, Question(batch_max=128))
    found = waking(answer.surface)
    told = reason(answer)
    assert f"From {found.first} to {found.last} requests each draft wakes more experts" in told
    assert f"of {found.experts} a layer" in told


def test_dense_models_wake_nothing_and_alike_tokens_fewer_experts():
    dense = MOE.but(model="llama-3.1-8b")
    assert waking(price(dense, BATCHES, [1024])) is None
    assert "experts" not in reason(recommend(dense, Question(batch_max=4)))
    few, many = (waking(price(MOE.but(overlap=name), BATCHES, [1024])) for name in ("chain", "independent"))
    assert few.woken < many.woken or few.worst != many.worst
    assert few.cost < many.cost
