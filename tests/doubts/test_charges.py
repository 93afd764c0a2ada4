"""What each term of an engine adds to a round, by hand: seven requests of a model with ten layers."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from medusa_sim.doubts import charges


def made(**more: Any) -> Any:
    terms = {
        "host_us_per_request": 3.0, "layer_us": 2.0, "host_us_per_token": 4.0, "experts_share": 0.8,
        "expert_parallel_us_per_layer": 1.5, "lookup_us_per_request": 6.0, "draft_us_per_step": 50.0,
        "draft_us_per_request": 5.0, "draft_us_per_layer": 9.0, "draft_us_per_pass": 30.0,
        "plan_us_per_pass": 8.0, "pieces_us_per_layer": 0.5,
    }  # fmt: skip
    engine = SimpleNamespace(**{name: SimpleNamespace(value=value) for name, value in terms.items()})
    scenario = SimpleNamespace(
        model=SimpleNamespace(layers=10), parallel=SimpleNamespace(ep=more.pop("ep", 1)),
        setting=SimpleNamespace(latency=None),
        drafting=SimpleNamespace(kind=SimpleNamespace(looks_up=more.pop("looks_up", False))),
    )  # fmt: skip
    given = {"requests": np.array([7.0]), "candidates": 4, "option": 1, "passes": (),
             "plain": SimpleNamespace(parts_us={"experts": np.array([100.0])})}  # fmt: skip
    return SimpleNamespace(engine=engine, scenario=scenario, **given | more)


@pytest.mark.parametrize(
    ("exposed_us", "step", "requests", "layers"),
    [(51.0, 10.0, 21.0, 20.0), (41.0, 0.0, 21.0, 20.0), (20.5, 0.0, 10.5, 10.0), (0.0, 0.0, 0.0, 0.0)],
)
@pytest.mark.parametrize("ep", [1, 2])
def test_what_the_device_hides_is_taken_off_the_step_first(
    monkeypatch, exposed_us, step, requests, layers, ep
):
    exposed = SimpleNamespace(exposed=SimpleNamespace(time_us=np.array([exposed_us])))
    monkeypatch.setattr(charges, "split_host", lambda engine, requests, layers: exposed)
    monkeypatch.setattr(charges, "is_captured", lambda engine, requests, candidates: candidates > 3)
    launching = SimpleNamespace(time_us=np.array([70.0]))
    monkeypatch.setattr(charges, "launching_us", lambda engine, layers, captured: captured and launching)
    told = {name: float(np.squeeze(us)) for name, us in charges._of_every_step(made(ep=ep)).items()}
    expected = {
        "host_us_per_step": step, "host_us_per_request": requests, "layer_us": layers,
        "host_us_per_token": 28.0, "eager_us_per_layer": 70.0, "experts_share": 25.0,
    }  # fmt: skip
    assert told == pytest.approx(expected | ({"expert_parallel_us_per_layer": 15.0} if ep > 1 else {}))


def passes(*layers: int) -> tuple[Any, ...]:
    """Passes of a drafter of so many layers, behind one of the target."""
    works = [
        SimpleNamespace(works=(SimpleNamespace(of="draft", layers=each),), device_us=1.0) for each in layers
    ]
    return (
        SimpleNamespace(works=(SimpleNamespace(of="target", layers=80),)),
        *works,
        SimpleNamespace(works=()),
    )


@pytest.mark.parametrize(("layers", "longer"), [(4, "draft_us_per_layer"), (3, "draft_us_per_pass")])
def test_passes_of_a_drafter_are_charged_by_the_longer_of_two_terms(monkeypatch, layers, longer):
    """Four layers of 9 us are longer than a pass of 30, three are not."""
    pass_us = SimpleNamespace(time_us=np.array(11.0))
    monkeypatch.setattr(charges, "drafting_pass_us", lambda engine, layers, device_us: pass_us)
    told = {name: float(np.squeeze(us)) for name, us in
            charges._of_drafting(made(passes=passes(layers, layers))).items()}  # fmt: skip
    assert told == pytest.approx({"draft_us_per_step": 50.0, "draft_us_per_request": 35.0, longer: 22.0})
    assert charges._of_drafting(made(option=None)) == {}
    assert charges._of_drafting(made(looks_up=True)) == {"lookup_us_per_request": 42.0}


def test_passes_outside_a_graph_are_planned(monkeypatch):
    monkeypatch.setattr(charges, "has_whole_graph", lambda latency, work: work.layers == 1)
    told = charges._of_passes(made(passes=passes(1, 2, 3)))
    assert {name: float(us) for name, us in told.items()} == {
        "plan_us_per_pass": 16.0, "pieces_us_per_layer": 1.0,
    }  # fmt: skip
