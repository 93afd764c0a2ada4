"""Weights, cache and states of a model of each architecture, whole and shared out, to the last byte."""

import dataclasses

import numpy as np
import pytest
from tables import table

from medusa_sim.models.named import load_model
from medusa_sim.models.parallel import Parallel
from medusa_sim.models.variants import on_one_gpu

SIZES = table("model_sizes")


@pytest.mark.parametrize("name", SIZES)
def test_a_model_is_as_large_as_its_config_says(name):
    """On one GPU of one, and of so many that share its heads or its experts."""
    for spread, expected in SIZES[name].items():
        tp, ep = (int(word) for word in spread.split(" "))
        model = on_one_gpu(load_model(name), Parallel(tp=tp, ep=ep))
        found = {
            "parameters": model.parameter_count,
            "active": model.active_parameter_count,
            "bytes": model.weight_bytes,
            "cache": model.kv_bytes(np.array([100.0, 5000.0, 100_000.0])).tolist(),
            "late": model.late_kv_bytes_per_token,
            "state": [model.state_bytes, model.draft_state_bytes],
        }
        assert found == expected, spread


@pytest.mark.parametrize(
    ("form", "scales", "stored"), [("int8", None, 1.0), ("int8", 0.25, 1.25), ("int4", 0.25, 0.75)]
)
def test_scales_are_stored_beside_weights_where_a_config_says_how_many(form, scales, stored):
    """One linear layer of a step reads them, too: its weights are the model's without what it embeds."""
    model = load_model("llama-3.1-8b")
    given = [dataclasses.replace(model, weight_dtype=form, scale_bytes=each) for each in (scales, 0.0)]
    more = given[0].weight_bytes - given[1].weight_bytes
    weights = model.parameter_count - 2 * model.vocab * model.hidden - 65 * model.hidden
    assert more == pytest.approx((stored - {"int8": 1.0, "int4": 0.5}[form]) * weights, rel=1e-3)
