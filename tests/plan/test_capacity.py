"""What does not fit: how much is missing, and changes that were tried and do."""

import numpy as np
import pytest
from asking import run

from medusa_sim.grid.axes import Grid
from medusa_sim.grid.cells import price
from medusa_sim.grid.sweep import sweep
from medusa_sim.plan.recommend import recommend
from medusa_sim.plan.shortfall import shortfall
from medusa_sim.plan.surprises import slower_format_us
from medusa_sim.plan.sweep_answer import sweep_answer
from medusa_sim.report.recommend.warnings import warnings
from medusa_sim.report.words.memory import shortfall_text
from medusa_sim.scenario.question import Question
from medusa_sim.scenario.scenario import Scenario

EAGLE = {"drafter": "eagle", "acceptance": 0.7}
H100 = {"gpu": "h100-sxm"}


@pytest.mark.parametrize(
    ("arguments", "batch", "seq_len"),
    [
        ({"model": "llama-2-70b"}, 1, 1024),
        ({"model": "vicuna-7b"}, 256, 1024),
        ({"gpu": "h100-sxm", "model": "llama-3.1-70b", "tp": 2}, 64, 32768),
        ({"gpu": "l4", "model": "deepseek-r1"}, 1, 1024),
        (
            {"gpu": "h100-sxm", "model": "llama-3.1-8b", "prompt_tokens": 6000, "output_tokens": 400},
            100,
            6200,
        ),
        ({**H100, "model": "llama-3.1-8b", "prompt_tokens": 900, "output_tokens": 200}, 100, 9000),
    ],
)
def test_every_change_that_is_named_does(arguments, batch, seq_len):
    scenario = Scenario(**EAGLE, **arguments)
    assert not price(scenario, [batch], [seq_len], ()).fits[0, 0, 0]
    found = shortfall(scenario, batch, seq_len)
    assert found.needed_bytes > found.usable_bytes
    assert 1 <= len(found.changes) <= 3
    for change in found.changes:
        names, values = (change.option.split()[start::2] for start in (0, 1))
        words = dict(zip((name[2:].replace("-", "_") for name in names), values, strict=True))
        size, typed = int(words.pop("batch", batch)), words.pop("seq", None)
        changed = scenario.but(**{name: int(v) if v.isdigit() else v for name, v in words.items()})
        shorter = "prompt_tokens" in words
        (length,) = changed.lengths(() if shorter else (int(typed or seq_len),))  # refuses what cannot be
        assert price(changed, [size], [length], ()).fits[0, 0, 0], change
        assert change.needed_bytes <= change.usable_bytes
        assert change.option in shortfall_text(found)


def test_what_fits_lacks_nothing_and_what_does_not_has_no_price():
    assert shortfall(Scenario(), 1, 1024) is None
    table = next(sweep([Scenario()], Grid.of([1, 256], [1024], [1, 2])))
    fits = np.asarray(table.numbers["fits_memory"], dtype=bool)
    assert fits.tolist() == [True, True, False, False]
    for name in ("usd_per_million_tokens", "joule_per_token"):
        assert (np.isfinite(table.numbers[name]) == fits).all()


def test_what_does_not_fit_ends_the_answer_with_its_warnings():
    for command in ("sweep", "recommend"):
        words = ["--model", "llama-2-70b", "--drafter", "eagle", "--acceptance", "0.7", "--seq", "1024"]
        shown = run(command, *words).stdout
        assert "Does not fit" in shown
        assert "Would fit" in shown
        assert "$" not in shown
        assert "speedup" not in shown
    words = ["--gpu", "b300", "--model", "kimi-k3", "--drafter", "eagle3", "--batch", "1..2"]
    for form in ("table", "md"):
        shown = run("recommend", *words, "--format", form, "--verbose").stdout
        assert "warning: kernels of b300 are borrowed" in shown
        assert shown.count("Does not fit") == 1
    scenario = Scenario(gpu="l40s", model="llama-3.1-70b", drafter="eagle3")
    told = " ".join(warnings(recommend(scenario, Question(batch_max=4))))
    assert "batch 0" not in told
    assert told.count("Does not fit: ") == 1
    assert "batch 1 of length" in told
    assert "activations < 0.01 GB" in told


def test_the_parts_of_the_memory_are_the_memory():
    scenario = Scenario()
    found = sweep_answer(scenario, Grid.of([1, 8], [1024], [1, 8]))
    for case in range(2):
        parts, most = found.memory(case)
        assert float(parts.total) == pytest.approx(found.column("memory_bytes")[case])
        assert most >= found.column("batch")[case]
        assert all(float(part) > 0.0 for part in parts)


@pytest.mark.parametrize("dtype", [None, "fp8"])
def test_a_format_that_is_slower_is_shown(dtype):
    small = {"gpu": "b200", "model": "llama-3.1-8b", "tp": 4, "runtime": "cuda-graph", **EAGLE}
    asked = Scenario(**small, dtype=dtype)
    own, published = (
        float(price(each, [1], [1024], ()).steps.decode_us[0, 0, 0]) for each in (asked, Scenario(**small))
    )
    expected = pytest.approx((own, published)) if own > 1.005 * published else None
    assert slower_format_us(sweep_answer(asked, Grid.of([1], [1024], [1, 2])).by_count) == expected
    found = recommend(asked, Question(batch_min=1, batch_max=2))
    told = [line for line in warnings(found) if line.startswith("slower") and "published" in line]
    assert len(told) == (slower_format_us(found.cells) is not None)
