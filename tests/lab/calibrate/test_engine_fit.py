"""An engine's terms from runs on it: recovered, held out, narrower with more runs, written and found."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from asking import answered, run

from medusa_sim.engine_runs.bench_row import BenchRow
from medusa_sim.engines.ranges import MeasuredRange
from medusa_sim.engines.runtime import load_runtime
from medusa_sim.engines.term import Term
from medusa_sim.errors import DataError, UsageError
from medusa_sim.lab.calibrate.engine_fit import (
    FittedRow,
    _left_out_us,
    _linear_fit,
    _term,
    fitted_runtime,
)
from medusa_sim.lab.calibrate.predicted_runs import (
    covered_text,
    measured_range,
    predicted_us,
    source_text,
    with_terms,
)
from medusa_sim.lab.calibrate.runtime_file import check_runtime_name, write_runtime
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.drafter.layer import Eagle
from medusa_sim.step.setting import Setting
from medusa_sim.step.step import prefill_step

FILES = Path(__file__).resolve().parents[2] / "data" / "engine"


def setting(model: str = "llama-3.1-8b", runtime: str = "vllm-0.11") -> Setting:
    return Scenario(gpu="h100-sxm", model=model, runtime=runtime, drafter="ngram", acceptance=1.0).setting


def eagle(depth: int) -> Eagle:
    return Eagle(depth=depth)


def made_rows(asked: Setting, sizes: tuple[int, ...], drafts: tuple[int, ...] = (0,)) -> list[BenchRow]:
    """What a server with these terms would show."""
    rows = []
    for size in sizes:
        for k in drafts:
            row = BenchRow(
                source="made", tool="csv", concurrency=float(size), itl_us=1.0, prompt=128.0, output=512.0,
                drafts=float(k), acceptance_length=1.0 + 0.5 * k,
            )  # fmt: skip
            rows.append(replace(row, itl_us=predicted_us(asked, row, eagle)))
    return rows


def truth(**terms: float) -> Setting:
    base = {
        "hidden_us_per_step": 0.0,
        "filter_us": 0.0,
        "filter_bytes_per_logit": 0.0,
        "host_us_per_token": 0.0,
    }
    return with_terms(
        setting(), {key: Term(value=value, source="made") for key, value in {**base, **terms}.items()}
    )


@pytest.mark.parametrize("inherited", ["vllm-0.10", "vllm-0.11", "vllm-0.33", "sglang-0.5"])
def test_two_numbers_of_requests_give_the_others_whatever_is_inherited(inherited):
    made = made_rows(truth(host_us_per_step=900.0, host_us_per_request=40.0), (1, 8, 16, 32, 64, 128))
    fitted = fitted_runtime(setting(runtime=inherited), [made[0], made[4]], name="mine", title="t")
    found = replace(setting(runtime=inherited), runtime=fitted.runtime)
    errors = [predicted_us(found, row, None) / row.step_us - 1.0 for row in made]
    assert np.abs(errors).max() < 0.05
    held = ("hidden_us_per_step", "host_us_per_token", "filter_us")
    assert [fitted.runtime.engine.terms[name].value for name in held] == [0.0] * 3


@pytest.mark.parametrize(("concurrency", "requests"), [([], 1), ([0.3], 1), ([2.6, 8.4, 1.0], 8)])
def test_terms_are_known_up_to_the_most_requests_of_their_runs(concurrency, requests):
    rows = [SimpleNamespace(concurrency=each) for each in concurrency]
    known = measured_range(setting(), rows)  # type: ignore[arg-type]
    assert (known.requests, known.gpus, known.forms) == (requests, (1, 1), ("dense",))


def test_draft_terms_are_what_is_left_beside_plain_runs():
    asked = truth(
        host_us_per_step=900.0,
        host_us_per_request=40.0,
        draft_us_per_step=700.0,
        draft_us_per_request=30.0,
        draft_us_per_pass=650.0,
    )
    made = made_rows(asked, (1, 8, 64), (0, 3))
    fitted = fitted_runtime(setting(), made, name="mine", title="t", drafter=eagle)
    assert max(abs(each.error) for each in fitted.rows) < 0.02
    found = replace(setting(), runtime=fitted.runtime)
    for drafts, within in (
        ((0, 2), 0.02),
        ((5,), 0.10),
    ):  # one number of drafts does not say what one more takes
        others = made_rows(asked, (4, 32), drafts)
        errors = [predicted_us(found, row, eagle) / row.step_us - 1.0 for row in others]
        assert np.abs(errors).max() < within
    assert {"draft_us_per_step", "draft_us_per_request", "draft_us_per_pass"} <= fitted.terms.keys()


def test_more_runs_narrow_the_bands():
    made = made_rows(truth(host_us_per_step=900.0, host_us_per_request=40.0), (1, 4, 8, 16, 32, 64))
    few = fitted_runtime(setting(), [made[0], made[-1]], name="mine", title="t").terms
    many = fitted_runtime(setting(), made, name="mine", title="t").terms
    assert many["host_us_per_step"].half_width < few["host_us_per_step"].half_width


def test_what_cannot_be_fitted_is_refused():
    made = made_rows(truth(), (1, 8), (0, 3))
    with pytest.raises(DataError, match="plain runs at 8 requests only"):
        fitted_runtime(setting(), [made[2]], name="mine", title="t")
    with pytest.raises(DataError, match="no run without speculation"):
        fitted_runtime(setting(), [made[1], made[3]], name="mine", title="t", drafter=eagle)
    with pytest.raises(UsageError, match="--drafter"):
        fitted_runtime(setting(), made, name="mine", title="t")
    with pytest.raises(UsageError, match="no serving engine"):
        fitted_runtime(setting(runtime="cuda-graph"), made, name="mine", title="t")


def test_the_runtime_is_found_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("MEDUSA_SIM_DATA_DIR", str(tmp_path))
    made = made_rows(truth(host_us_per_step=900.0, host_us_per_request=40.0), (1, 8, 64))
    fitted = fitted_runtime(setting(), made, name="mine", title="t")
    write_runtime(tmp_path, fitted, "vllm-0.11")
    read = load_runtime("mine").engine
    for name, term in fitted.terms.items():
        assert read.terms[name].value == term.value
        assert read.terms[name].band == term.band
    assert read.terms["draft_us_per_pass"].inherited_from
    for name in ("vllm", "vllm-0.11", "../x"):
        with pytest.raises(UsageError, match="--name"):
            check_runtime_name(name)
    check_runtime_name("mine")


def test_the_command_prints_every_run_and_writes_the_runtime(tmp_path):
    files = [str(FILES / f"vllm_serve_{kind}_b{b}.json") for kind in ("plain", "spec") for b in (1, 8, 64)]
    named = ["--gpu", "h100-sxm", "--model", "llama-3.1-8b", "--name", "mine", "--drafter", "eagle"]
    written = ["--data-dir", str(tmp_path), "--format", "csv"]
    arguments = ["calibrate", "engine", *named, *files, *written]
    result = answered(*arguments)
    table = pd.read_csv(pd.io.common.StringIO(result.stdout))
    assert len(table) == 6
    assert table["error"].abs().max() < 0.05
    assert table["leave_one_out_error"].notna().all()
    assert (tmp_path / "profiles" / "runtimes" / "mine.toml").exists()
    for missing in ("--model", "--name"):
        at = arguments.index(missing)
        refused = run(*(arguments[:at] + arguments[at + 2 :]))
        assert refused.exit_code == 2


def test_the_command_fits_the_gpus_and_the_model_that_were_served(tmp_path):
    asked = Scenario(
        gpu="h100-sxm", model="llama-3.1-8b", runtime="vllm", drafter="ngram", acceptance=1.0, tp=4
    ).setting
    lines = [f"{row.concurrency},{row.itl_us},128,512,llama-3.1-8b" for row in made_rows(asked, (1, 8, 64))]
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(["concurrency,itl_us,prompt,output,model", *lines]))
    named = ("calibrate", "engine", str(path), "--gpu", "h100-sxm", "--name", "mine", "--dry-run")
    shown = ("--format", "csv")
    errors = [
        pd.read_csv(
            pd.io.common.StringIO(answered(*named, "--model", "llama-3.1-8b", *tp, *shown).stdout)
        ).error
        for tp in (("--tp", "4"), ())
    ]
    assert errors[0].abs().max() < 0.02 < errors[1].abs().max()
    refused = run(*named, "--model", "llama-3.2-3b", "--tp", "4")
    assert refused.exit_code == 2
    assert "give --model llama-3.1-8b" in refused.stderr


@pytest.mark.parametrize(("model", "name"), [("llama-3.1-8b", "Llama-3.1-8B"), ("qwen3-14b", "Qwen3-14B")])
@pytest.mark.parametrize("inherited", ["vllm-0.11", "vllm-0.33"])
def test_measured_servers_are_given_within_five_percent(shared_data, model, name, inherited):
    """From 8 and 64 requests to 16, 32 and 128 (nobody measured one request)."""
    frame = pd.read_csv(shared_data / "engines" / "plain_decode_mlenergy.csv")
    frame = frame[frame["model"].str.contains(name) & (frame["tp"] == 1) & (frame["task"] == "lm-arena-chat")]
    rows = {
        int(each.max_num_seqs): BenchRow(
            source="ml.energy", tool="csv", concurrency=float(each.avg_batch),
            itl_us=1e3 * float(each.median_itl_ms), prompt=125.0, output=float(each.avg_output_len),
        )
        for each in frame.itertuples()
    }  # fmt: skip
    asked = setting(model, inherited)
    fitted = fitted_runtime(asked, [rows[8], rows[64]], name="mine", title="t")
    found = replace(asked, runtime=fitted.runtime)
    for size in (16, 32, 128):
        assert predicted_us(found, rows[size], None) == pytest.approx(rows[size].step_us, rel=0.05)


def test_terms_are_the_relative_least_squares_drawn_towards_those_inherited():
    """By hand, one term h of b requests: measured 1.02 x (1000, 8000), inherited 900 with one sigma of 50.

    Two rows of 2 %, 20 us of 1000 and 160 of 8000, h = (1020 / 20^2 + 8 x 8160 / 160^2 + 900 / 50^2) / (1 /
    20^2 + 64 / 160^2 + 1 / 50^2) = 1011; the rows then miss by 0.9 % each, of one that is free: noise 1.26 %.
    """
    columns, observed = np.array([[1.0], [8.0]]), np.array([1000.0, 8000.0])
    value, sigma = _linear_fit(columns, 1.02 * observed, observed, np.array([900.0]), np.array([50.0]))

    def best(noise: float) -> tuple[float, float]:
        one, eight = 1000.0 * noise, 8000.0 * noise
        precision = 1 / one**2 + 64 / eight**2 + 1 / 50**2
        return (1020 / one**2 + 8 * 8160 / eight**2 + 900 / 50**2) / precision, precision**-0.5

    first, _ = best(0.02)
    assert first == pytest.approx(1011.1, abs=0.1)
    expected, half = best(2**0.5 * (1.02 - first / 1000))
    assert value == pytest.approx([expected])
    assert sigma == pytest.approx([half])
    # rows that agree are taken as half as noisy, no less
    value, sigma = _linear_fit(columns, observed, observed, np.array([1000.0]), np.array([50.0]))
    assert value == pytest.approx([1000.0])
    assert sigma == pytest.approx([(2 / 10**2 + 1 / 50**2) ** -0.5])


def test_rows_that_scatter_make_terms_less_sure_and_none_is_negative():
    """Three rows about one term of 1: 0.9, 1.1 and 1.0 scatter by sqrt(0.02 / 2) = 0.1."""
    columns, observed = np.ones((3, 1)), np.ones(3)
    value, sigma = _linear_fit(columns, np.array([0.9, 1.1, 1.0]), observed, np.array([1.0]), np.array([1e9]))
    assert value == pytest.approx([1.0])
    assert sigma == pytest.approx([0.1 / 3**0.5])
    value, _ = _linear_fit(columns, -observed, observed, np.array([0.0]), np.array([1e9]))
    assert value == pytest.approx([0.0], abs=1e-9)


def test_a_term_has_the_80_percent_band_of_its_sigma():
    """1.2816 sigma over the value; at most ten times, none of a term of 0."""
    rows = [BenchRow(source="a", tool=tool, concurrency=b, itl_us=1e4, prompt=128.0, output=512.0, drafts=k)
            for tool, b, k in (("vllm", 64.0, 0.0), ("csv", 8.0, 3.0))]  # fmt: skip
    measured = MeasuredRange(forms=("dense",), gpus=(1, 1), generations=("hopper",), requests=64)
    assert _term(1000.0, 100.0, rows, measured).band == pytest.approx(0.128)
    assert _term(1.0, 100.0, rows, measured).band == 10.0
    assert _term(0.0, 100.0, rows, measured).band == 0.0
    assert _term(0.05, 0.01, rows, measured).band == pytest.approx(0.256)
    assert _term(1.23456, 0.1, rows, measured).value == 1.235
    assert source_text(rows) == "fitted to 2 runs (csv, vllm)"
    assert covered_text(rows) == "8 to 64 requests, prompts of 128, outputs of 512, 3 drafts"
    assert covered_text(rows[:1]) == "64 to 64 requests, prompts of 128, outputs of 512"
    longer = replace(rows[0], prompt=1e4)
    assert covered_text([rows[0], longer]) == "64 to 64 requests, prompts of 128 to 10000, outputs of 512"


def test_a_run_is_compared_with_what_is_fitted_and_with_what_leaves_it_out():
    row = BenchRow(source="a", tool="csv", concurrency=1.0, itl_us=10_000.0, prompt=1.0, output=1.0)
    found = FittedRow(row=row, fitted_us=11_000.0, leave_one_out_us=9_000.0)
    assert (found.error, found.leave_one_out_error) == (pytest.approx(0.1), pytest.approx(-0.1))
    assert FittedRow(row=row, fitted_us=1.0, leave_one_out_us=None).leave_one_out_error is None


def test_a_run_is_seen_as_its_load_generator_sees_it():
    """Of an offline batch each step, with its prompts shared out among the tokens of a request."""
    asked = setting()
    given = {"source": "a", "tool": "csv", "concurrency": 8.0, "prompt": 128.0, "output": 512.0}
    gap, mean, whole = (
        predicted_us(asked, BenchRow(**given, **more), None)
        for more in ({"itl_us": 1.0}, {"tpot_us": 1.0}, {"tpot_us": 1.0, "with_prompts": True})
    )
    prompt_us = float(prefill_step(asked, 8, 128).time_us)
    offline = predicted_us(asked, BenchRow(**given, tpot_us=1.0, offline=True), None)
    step_us = predicted_us(asked, BenchRow(**given, itl_us=1.0, offline=True), None)
    assert offline == pytest.approx(step_us + prompt_us / 512)
    assert gap < mean < whole
    # of a run that drafts a token's time is that of a step over its tokens
    drafted = {**given, "drafts": 3.0, "acceptance_length": 2.5}
    chunk, token = (
        predicted_us(asked, BenchRow(**drafted, **more, offline=True), eagle)
        for more in ({"itl_us": 1.0}, {"tpot_us": 1.0})
    )
    drafter = eagle(3)
    read_us = float(prefill_step(replace(asked, drafter=drafter), 8, 128, drafter).time_us)
    assert token == pytest.approx(chunk + 2.5 * read_us / 512)


def test_what_no_other_run_tells_is_not_left_out():
    made = made_rows(truth(host_us_per_step=900.0), (1, 8), (0, 3))
    fitted = fitted_runtime(setting(), [*made[:2], made[2]], name="mine", title="t", drafter=eagle)
    # without the runs at 1 no run drafts; without that at 8 one plain run is left
    assert [each.leave_one_out_us is None for each in fitted.rows] == [False, True, False]
    scored = fitted.terms["host_us_per_step"].heldout_error
    errors = [abs(each.leave_one_out_error) for each in fitted.rows if each.leave_one_out_error is not None]
    assert scored == round(float(np.mean(errors)), 4)
    assert fitted.terms["host_us_per_step"].measured.requests == 8
    assert fitted.terms["draft_us_per_step"].measured.requests == 1


def test_runs_of_one_draft_are_runs_that_draft():
    """Left out can be what others tell: plain steps by plain runs, drafts by runs of both kinds."""
    plain, one = (made_rows(truth(host_us_per_step=900.0), (1, 8), (drafts,)) for drafts in (0, 1))
    asked = setting()
    assert _left_out_us(asked, one, eagle)[0] is None  # those at 8 all draft
    assert _left_out_us(asked, [*plain, one[0]], eagle)[-1] is None  # of those at 8 none does
    for rows in (plain, [*plain, *one]):
        assert _left_out_us(asked, rows, eagle) == pytest.approx([row.step_us for row in rows], rel=0.2)
