"""What was measured near a set-up: groups that ship, their page, classes, and the guard of their errors."""

import json
import os
from pathlib import Path

import accuracy
import msgspec
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from common import measured_pairs
from common.pages import DOCS

from medusa_sim.cli import cli
from medusa_sim.doubts.standing import BAND_REQUESTS, DEVICE, OTHER_DEVICES, UNSERVED, near_groups, standing
from medusa_sim.engines.accuracy_groups import (
    COLUMNS,
    LEAST_ROWS,
    ROW_KINDS,
    SMALL_GROUPS,
    groups,
    table_text,
    together,
)
from medusa_sim.engines.nearness import nearness
from medusa_sim.engines.served_groups import known_kinds
from medusa_sim.errors import SpecError
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.pass_cost import setup_half_us
from medusa_sim.step.step import decode_step

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("MEDUSA_SIM_DATA") or ROOT.parent / "shared" / "data")
needs_rows = pytest.mark.skipif(not DATA.exists(), reason="measured rows are not part of this project")
QUICK = ("deepseek_rows", "engine_fit")
"""Scripts whose rows are compared anew in seconds; the others at night."""


def some_pairs(*sizes, model="llama-3.1-8b", error=0.1, held=1.0):
    """Pairs of one group a size, of models of their own."""
    parts = [
        measured_pairs.pairs_of(
            pd.DataFrame({"measured": np.ones(size), "predicted": np.full(size, 1.0 + error), "held": held}),
            kind="step", what="plain step", engine="vllm", gpu="a40", model=model + "x" * place, family="",
            weights="bf16", data="engines/published_2026.csv", fitted="no",
        )
        for place, size in enumerate(sizes)
    ]  # fmt: skip
    return pd.concat(parts, ignore_index=True)


def test_groups_are_sums_that_go_together():
    found = groups()
    assert len(found) > 100
    assert len({accuracy.key(group) for group in found}) == len(found)
    for group in found:
        assert group.kind in ROW_KINDS, group
        assert group.source == measured_pairs.source_of(group.data), group
        assert abs(group.bias) <= group.error + 1e-3, group
        assert abs(group.worst) >= group.error - 6e-3, group
        assert group.rows >= LEAST_ROWS, group


def test_no_column_holds_a_measured_value():
    assert not {"measured", "predicted", "cell", "tokens"} & set(COLUMNS)
    numbers = {name for name in COLUMNS if isinstance(getattr(groups()[0], name), float | int)}
    assert numbers <= {"rows", "error", "bias", "worst", "held", "half_width", "left_out"}


def test_the_page_is_that_of_the_groups():
    written = (DOCS / "accuracy.md").read_text(encoding="utf-8")
    assert written == accuracy.page(groups()), "run `python benchmarks/accuracy.py --page`"


def test_every_page_of_errors_says_where_its_rows_are():
    page = (DOCS / "accuracy.md").read_text(encoding="utf-8")
    listed = page.partition("## Where the rows are")[2]
    for group in groups():
        assert "| {} | {} |".format(*group.data.rsplit("/", 1)) in listed
        assert group.source in listed
    for name in ("validation.md", "validation-engines.md"):
        assert "accuracy.md#where-the-rows-are" in (DOCS / name).read_text(encoding="utf-8")


def test_groups_of_few_rows_are_joined_or_left_out():
    (one, joined) = measured_pairs.grouped(some_pairs(LEAST_ROWS, LEAST_ROWS - 1, LEAST_ROWS - 1))
    assert (one.model, one.rows) == ("llama-3.1-8b", LEAST_ROWS)
    assert (joined.model, joined.rows) == (SMALL_GROUPS, 2 * LEAST_ROWS - 2)
    assert measured_pairs.grouped(some_pairs(LEAST_ROWS - 1)) == []


@pytest.mark.parametrize(("before", "now", "slides"), [
    (0.1, 0.109, False), (0.1, 0.112, True), (0.001, 0.0014, False), (0.1, 0.05, False),
])  # fmt: skip
def test_a_group_slides_beyond_a_tenth_of_its_error(before, now, slides):
    old, new = (measured_pairs.grouped(some_pairs(LEAST_ROWS, error=error)) for error in (before, now))
    assert bool(accuracy.slid(old, new)) == slides


def test_groups_without_their_rows_stay():
    before = list(groups())
    now = measured_pairs.grouped(some_pairs(LEAST_ROWS))
    kept = accuracy.merged(before, now)
    assert {group.data for group in before} <= {group.data for group in kept}


@needs_rows
@pytest.mark.slow
@pytest.mark.parametrize("script", QUICK)
def test_no_group_slid(script):
    found, lacking = accuracy.found_pairs([script])
    assert not lacking
    assert set(found.kind) <= set(accuracy.SCRIPTS[script])
    assert accuracy.slid(groups(), measured_pairs.grouped(found)) == [], (
        "run `make accuracy` where it is meant"
    )


@needs_rows
@pytest.mark.nightly
@pytest.mark.parametrize("script", [name for name in accuracy.SCRIPTS if name not in QUICK])
def test_no_group_slid_anywhere(script):
    found, _ = accuracy.found_pairs([script])
    assert set(found.kind) <= set(accuracy.SCRIPTS[script])
    assert accuracy.slid(groups(), measured_pairs.grouped(found)) == [], (
        "run `make accuracy` where it is meant"
    )


@needs_rows
@pytest.mark.parametrize(
    "folder", ["measured", "moe_tp", "kernels_2026", "serving", "engines", "acceptance", "local"]
)
def test_every_file_of_rows_has_a_source(folder):
    for path in (DATA / folder).iterdir():
        if path.suffix in (".csv", ".parquet"):
            assert measured_pairs.source_of(f"{folder}/{path.name}")


def of(**given):
    return Scenario(**{"drafter": "ngram", "acceptance": "0.5"} | given)


def test_a_set_up_that_was_measured_one_without_an_engine_and_one_without_a_server():
    served = of(gpu="h200-sxm", model="llama-3.1-70b", runtime="vllm-0.15", dtype="fp8", tp=4)
    assert standing(served).kind == "measured"
    assert {group.gpu for group in near_groups(served)} == {"h200-sxm"}
    launched, bare = (
        standing(of(gpu="a40", model="llama-3.1-8b", runtime=runtime)) for runtime in ("cuda-graph", "kernel")
    )
    assert (launched.kind, bare.kind) == ("engine", UNSERVED)
    assert launched.half_width > launched.between > 0.0 == bare.between


def test_what_coverage_expects_is_what_bands_go_by():
    """The class, its share and the half-width are those of the step that `sweep` prints."""
    import medusa_sim as ms

    given = {"gpu": "h200-sxm", "model": "qwen3-32b", "runtime": "sglang-0.5", "dtype": "fp8", "tp": 4}
    found, one = standing(of(**given)), ms.Scenario(drafter="ngram", acceptance="0.5", **given)
    row = one.sweep(BAND_REQUESTS, candidates=[1]).iloc[0]
    assert found.half_width == pytest.approx(0.5 * np.log(row.verify_high_us / row.verify_low_us))
    assert found.nearness == nearness(one.runtime.place(one.case), 0.0)
    assert found.expected >= known_kinds()[found.kind].error
    assert float(setup_half_us(one.setting.runtime, np.ones(()))) >= found.between > 0.0
    spread = of(gpu="b200", model="qwen3-235b-a22b", runtime="sglang-0.5", tp=8)
    mixture, step = standing(spread), decode_step(spread.setting, BAND_REQUESTS, spread.length)
    experts = float(step.parts_us["experts"] / step.time_us)
    assert experts > 0.1  # of the step: what is charged for layers of experts is charged for them
    assert mixture.between == pytest.approx(float(mixture.nearness.widening.half_width(1.0, experts)))


def test_a_machine_of_ones_own_stands_beside_speeds_of_its_engine():
    own, other = (of(gpu=gpu, model="llama-3.1-8b", runtime="llama.cpp-cuda") for gpu in ("gb10", "rtx-4090"))
    assert (standing(own).kind, standing(other).kind) == (DEVICE, OTHER_DEVICES)
    assert {group.gpu for group in near_groups(own)} == {"gb10"}
    assert {group.engine for group in near_groups(other)} == {"llama.cpp-cuda"}
    assert standing(own).expected is None


def test_groups_with_the_same_words_are_joined():
    first, *_ = groups()
    one = msgspec.structs.replace(first, rows=10, error=0.1, bias=0.1, worst=-0.5, held=None, fitted="yes")
    more = msgspec.structs.replace(
        one, rows=30, error=0.2, bias=-0.1, worst=0.3, held=0.5, fitted="no", data="x"
    )
    (joined,) = together([one, more])
    assert (joined.rows, joined.worst, joined.held, joined.fitted) == (40, -0.5, 0.5, "in part")
    assert joined.error == pytest.approx(0.175)
    assert joined.bias == pytest.approx(-0.05)
    assert len(together([one, msgspec.structs.replace(more, gpu="other")])) == 2


def ran(*words):
    return CliRunner().invoke(cli, ["specs", "--kind", "coverage", *words])


def test_coverage_prints_every_group_as_csv():
    text = ran("--format", "csv").stdout
    assert len(text.splitlines()) == len(groups()) + 1
    assert text.splitlines()[0] == ",".join(COLUMNS)


def test_coverage_of_a_set_up_says_its_class():
    words = [
        "--gpu",
        "h200-sxm",
        "--model",
        "llama-3.1-70b",
        "--runtime",
        "vllm-0.15",
        "--dtype",
        "fp8",
        "--tp",
        "4",
    ]
    told = json.loads(ran(*words, "--format", "json").stdout)
    assert told["class"] == "measured"
    assert told["expected_error"] == known_kinds()["measured"].error
    assert "inside what was measured" in " ".join(ran(*words).stdout.split())


@pytest.mark.parametrize(("words", "told"), [
    ("--gpu l40s --model gemma-3-27b", "specs --kind coverage --gpu l40s"),  # no group beside its nearest
    ("--gpu mi300x --model llama-3.1-70b --tp 8", "borrowed from h100-sxm"),
    ("--gpu a100-80gb-pcie --model vicuna-7b --runtime cuda-graph", "no server of this engine was measured"),
    ("--gpu a100-80gb-pcie --model vicuna-7b --runtime kernel", "no server was measured"),
    ("--gpu rtx-4090 --model llama-3.1-8b --runtime llama.cpp", "speeds of other devices were measured"),
])  # fmt: skip
def test_coverage_of_a_set_up_says_what_stands_in(words, told):
    done = ran(*words.split())
    assert told in " ".join(done.stdout.split())


@pytest.mark.parametrize(("words", "told"), [
    ("h100-sxm", "takes no NAME"), ("--tp 2", "give --gpu and --model"),
])  # fmt: skip
def test_coverage_refuses_in_one_line(words, told):
    done = ran(*words.split())
    assert done.exit_code in (1, 2)
    assert told in done.stderr


def test_a_set_up_without_the_kind_is_refused():
    done = CliRunner().invoke(cli, ["specs", "--gpu", "a40"])
    assert "--kind coverage" in done.stderr


def test_a_malformed_table_is_refused_with_its_place(tmp_path):
    folder = tmp_path / "profiles"
    folder.mkdir()
    text = table_text(groups()[:2]).replace(",yes,", ",yes,", 1)
    (folder / "accuracy.csv").write_text(text.replace(f",{groups()[0].rows},", ",two,", 1))
    with pytest.raises(SpecError, match="rows"):
        groups(tmp_path)


@pytest.mark.parametrize(
    ("option", "value", "column"), [("--gpu", "h100-sxm", "gpu"), ("--model", "llama-3.1-8b", "model")]
)
def test_groups_of_one_card_or_model_are_listed(option, value, column):
    rows = json.loads(
        CliRunner().invoke(cli, ["specs", "--kind", "coverage", option, value, "--format", "json"]).stdout
    )["rows"]
    assert len(rows) == sum(getattr(group, column) == value for group in groups()) > 0
    assert {row[column] for row in rows} == {value}
