"""Terms that one model's rows alone have told: named where they move another model's step much."""

from dataclasses import replace

import msgspec
import pytest

from medusa_sim import Scenario
from medusa_sim.doubts.of_answer import answer_doubts
from medusa_sim.doubts.one_model import CHANGE_WORTH_NAMING
from medusa_sim.doubts.terms import WORDS, WORDS_OF_FITTED
from medusa_sim.engines.engine import UNITS
from medusa_sim.engines.place import sizes_of
from medusa_sim.engines.ranges import Deviation
from medusa_sim.engines.runtime import load_runtime, runtime_names
from medusa_sim.engines.served_groups import served_groups
from medusa_sim.models.named import load_model

ONLY = "llama-3.1-70b"
SMALL = {"gpu": "h100-sxm", "model": "llama-3.1-8b", "drafter": "ngram", "acceptance": "0.5"}


def told(term, change, requests=(1, 256), **given):
    """Sentences where a runtime's term deviates so."""
    runtime = load_runtime("vllm-0.15")
    changed = msgspec.structs.replace(runtime.engine.terms[term], deviations=(change,), elsewhere=())
    engine = runtime.engine.with_terms({term: changed})
    scenario = Scenario(**SMALL | {"runtime": replace(runtime, engine=engine)} | given)
    return [line for line in answer_doubts(scenario, scenario.length, requests) if "alone in" in line]


@pytest.mark.parametrize(("term", "change", "given"), [
    ("layer_us", {"plus": 50.0}, {}),
    ("host_us_per_request", {"plus": 40.0}, {}),
    ("attention_share", {"times": 2.0}, {}),
    ("prompt_us_per_layer", {"plus": 300.0}, {"prompt_tokens": 512, "output_tokens": 256}),
])  # fmt: skip
def test_whatever_a_term_is_charged_for_it_is_named_once(term, change, given):
    (line,) = told(term, Deviation(**change, only=ONLY), **given)
    assert ONLY in line
    assert {**WORDS, **WORDS_OF_FITTED}[term] in line
    assert not told(term, Deviation(**change), **given)  # several models told it
    assert not told(term, Deviation(**change, generations=("ada",), only=ONLY), **given)  # not charged here
    assert not told(term, Deviation(**change, only="llama-3.1-8b"), **given)  # this model told it


def test_a_checkpoint_of_the_same_shape_is_the_model_that_shown_it():
    change = Deviation(plus=50.0, only=ONLY)
    assert told("layer_us", change, model="qwen3-32b", tp=2)
    assert not told("layer_us", change, model="llama-3.3-70b", tp=4)


def test_the_share_is_what_the_step_would_be_shorter_by():
    change = Deviation(plus=50.0, only=ONLY)
    (line,) = told("layer_us", change, requests=(8, 8))
    runtime = load_runtime("vllm-0.15")
    whole, less = (
        Scenario(**SMALL, runtime=replace(runtime, engine=runtime.engine.with_terms({"layer_us": term})))
        .sweep(8, candidates=[1])
        .decode_step_us.item()
        for deviations in ((change,), ())
        for term in [msgspec.structs.replace(runtime.engine.layer_us, deviations=deviations, elsewhere=())]
    )
    assert f"{100.0 * (1.0 - less / whole):.0f} % of the time per token at 8 requests" in line
    small = Deviation(plus=0.5 * CHANGE_WORTH_NAMING * whole / 32, only=ONLY)
    assert not told("layer_us", small, requests=(8, 8))


def test_every_such_term_has_words_and_a_model_that_was_served_and_no_other_there():
    for name in runtime_names():
        runtime = load_runtime(name)
        for key, term in (runtime.engine.terms if runtime.engine else {}).items():
            for each in term.deviations:
                if not each.only:
                    continue
                assert key in WORDS | WORDS_OF_FITTED, key
                sizes = {sizes_of(load_model(each.only))}
                there = {
                    group.sizes for group in served_groups()
                    if group.runtime == name
                    and (not each.generations or group.generation in each.generations)
                    and (not each.formats or not set(each.formats).isdisjoint(group.formats))
                }  # fmt: skip
                if not (each.forms or each.gpus or "expert" in key):  # of which dense models tell nothing
                    assert there <= sizes, (name, key, each.text)
    assert set(WORDS_OF_FITTED) <= set(UNITS)
    assert not set(WORDS_OF_FITTED) & set(WORDS)
