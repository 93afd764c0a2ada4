"""Steps of the decoder on a grid, their files, and `validate decoder`. No real timing is judged."""

import csv
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from asking import answered, document
from asking import run as invoke
from decoder_models import tiny_config, tiny_heads, tiny_llama

from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.errors import DataError, UsageError
from medusa_sim.lab.decoder.draft import MedusaDrafter
from medusa_sim.lab.decoder.generate import (
    BatchDecoder,
    GenerationSettings,
    eager_forward,
    generate,
)
from medusa_sim.lab.measure.arguments import StepGrid
from medusa_sim.lab.measure.cells import StepMeta, StepRow, read_steps, write_steps
from medusa_sim.lab.measure.decoder_steps import (
    Subject,
    full_step,
    step_grid,
    time_in_turns,
)
from medusa_sim.lab.measure.record import write_meta
from medusa_sim.lab.validate.steps import Gaps, decoder_step, validate_decoder
from medusa_sim.latency.by_name import latency_model
from medusa_sim.specs.gpu import load_gpu
from medusa_sim.specs.hf_config import model_from_config
from medusa_sim.specs.measurement import Environment, Meta, Rates

TREE = CandidateTree.from_paths([(0,), (1,), (0, 0), (0, 1), (0, 0, 0)])
GPU = "h100-sxm"
ENVIRONMENT = Environment(
    name=GPU, device="NVIDIA H100 80GB HBM3", kind="cuda", units=132, cache_bytes=50 * 2**20,
    memory_bytes=80 * 2**30, driver="1", clocks_mhz={"sm": 1980.0}, current_clocks_mhz={}, torch="2.9",
    threads=1, commit="c", date="2026-01-01T00:00:00Z", load_average=0.0,
)  # fmt: skip
META = StepMeta(
    schema=1, title="t", launched="cuda-graph", acceptance="medusa1-vicuna-7b", accepted_draft_tokens=2,
    copy_bytes_per_s=1e12, environment=ENVIRONMENT,
)  # fmt: skip


def ticking() -> Callable[[], float]:
    """A clock that moves one second a reading."""
    readings = iter(range(10**6))
    return lambda: float(next(readings))


def test_grid_times_every_cell_in_every_pass():
    model = tiny_llama(dtype=torch.float32)
    heads = tiny_heads(model, count=3)
    trees = {1: (CandidateTree.chain(0), 1.0), 3: (CandidateTree.chain(2), 1.0), 6: (TREE, 2.0)}
    grid = StepGrid(batches=(1, 2), seq_len=9, repeats=3)
    subject = Subject("tiny", "fp32", model, heads, trees, grid)
    cells = list(step_grid(subject, clock=ticking()))
    assert [(c.repetition, c.batch, c.candidates) for c in cells] == [
        (p, b, c) for p in (0, 1) for b in (1, 2) for c in (1, 3, 6)
    ]
    assert {c.candidates: c.depth for c in cells} == {1: 0, 3: 2, 6: 3}
    assert all(c.time_us == 1e6 and c.repeats == 3 for c in cells)
    assert {c.candidates: c.tokens_per_step for c in cells} == {1: 1.0, 3: 1.0, 6: 2.0}
    with pytest.raises(UsageError, match="the tree for 5 candidates has 6"):
        dataclasses.replace(subject, trees={5: (TREE, 1.0)})
    with pytest.raises(UsageError, match="CUDA graphs need a CUDA device"):
        list(step_grid(subject, graphs=True))


def test_cells_take_turns():
    order: list[int] = []
    steps = {count: (lambda count=count: order.append(count)) for count in (1, 4, 8)}
    timings = time_in_turns(steps, torch.device("cpu"), repeats=4, clock=ticking())
    turn = [
        count for count in (1, 4, 8) for _ in range(4)
    ]  # once untimed, for it took long, and thrice timed
    assert order == turn * 2
    assert {timing.repeats for timing in timings.values()} == {6}
    order.clear()
    quarter = (i / 16 for i in range(10**6))  # four steps fit a quarter of a second
    time_in_turns({1: steps[1]}, torch.device("cpu"), repeats=1, clock=lambda: next(quarter))
    assert order == [1] * (4 + 3)


@pytest.mark.parametrize("accepted", [0, 2, 9])
def test_a_step_does_the_decoders_work_and_comes_back(accepted):
    """The logits are those of the model on the drafted tree; the accepted rows are kept; the length stays."""
    model = tiny_llama(dtype=torch.float64)
    heads = tiny_heads(model, count=3)
    cache = model.new_cache(batch=2, capacity=20)
    torch.manual_seed(0)
    cache.keys.normal_()
    cache.values.normal_()
    cache.lengths += 7
    before = cache.keys.clone()
    forward = eager_forward(model, cache)
    states: list[torch.Tensor] = []

    def noted(tokens: torch.Tensor, mask: torch.Tensor, depths: torch.Tensor) -> torch.Tensor:
        states.append(forward(tokens, mask, depths))
        return states[-1]

    with torch.inference_mode():
        full_step(model, heads, TREE, cache, accepted, noted)()
    assert cache.lengths.tolist() == [7, 7]
    assert torch.equal(cache.keys[:, :, :, :7], before[:, :, :, :7])
    fresh = model.new_cache(batch=2, capacity=20)
    fresh.keys.copy_(before)
    fresh.values.copy_(cache.values)
    fresh.lengths += 7
    with torch.inference_mode():
        generator = torch.Generator().manual_seed(0)
        hidden = torch.randn(2, model.config.hidden_size, generator=generator, dtype=model.dtype)
        roots = torch.zeros(2, dtype=torch.long)
        draft = MedusaDrafter(model, heads, TREE).propose(roots, hidden, ())
        found = model(draft.tokens, cache=fresh, tree_mask=draft.mask, depths=draft.depths)
        assert torch.equal(found, states[0])
        depth = min(accepted, TREE.depth)
        fresh.keep([[0, 1, 3, 5][: depth + 1]] * 2)
    assert torch.equal(cache.keys[:, :, :, 7 : 8 + depth], fresh.keys[:, :, :, 7 : 8 + depth])


def test_the_timed_step_is_the_one_that_generate_runs(monkeypatch):
    model = tiny_llama(dtype=torch.float32)
    heads = tiny_heads(model, count=3)
    ran: list[int] = []
    own = BatchDecoder.step

    def counted(decoding: BatchDecoder) -> list[list[int]]:
        ran.append(decoding.drafter.nodes)
        return own(decoding)

    monkeypatch.setattr(BatchDecoder, "step", counted)
    cache = model.new_cache(batch=1, capacity=20)
    with torch.inference_mode():
        full_step(model, heads, TREE, cache, 2, eager_forward(model, cache))()
    assert ran == [TREE.candidates]
    run = generate(model, [[1, 2]], GenerationSettings(max_new_tokens=6), MedusaDrafter(model, heads, TREE))
    assert len(ran) == 1 + run.steps


def measured_rows(factor: dict[int, float], *, wobble: float = 0.0, launch_us: float = 2.0) -> list[StepRow]:
    """Rows that the simulator itself predicts with `launch_us`, times `factor` by candidates."""
    config = tiny_config(1000, hidden_size=1024, intermediate_size=2816, head_dim=128, num_attention_heads=8)
    config = dataclasses.replace(config, num_key_value_heads=8)
    path = Path(_folder) / "tiny" / "config.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(config.to_hf()), encoding="utf-8")
    model = dataclasses.replace(model_from_config(path), dtype="fp16", weight_dtype="fp16", kv_dtype="fp16")
    model = dataclasses.replace(model, activation_dtype="fp16")
    rows = []
    for batch in (1, 4):
        for candidates, share in factor.items():
            latency = latency_model(load_gpu(GPU), "calibrated", "torch", cold=False)
            depth = 0 if candidates == 1 else 3
            step = decoder_step(model, latency, batch, 64, candidates, depth, launch_us)
            time_us = float(step.time_us)
            for repetition, sign in ((0, 1.0), (1, -1.0)):
                us = share * time_us * (1.0 + sign * wobble / 2.0)
                rows.append(
                    StepRow(
                        model="tiny", dtype="fp16", batch=batch, seq_len=64, candidates=candidates,
                        depth=depth, repetition=repetition, time_us=us, p10_us=us, p90_us=us, repeats=5,
                        tokens_per_step=1.0 + 0.5 * float(np.log(candidates)),
                    )
                )  # fmt: skip
    return rows


_folder = ""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(f"{__name__}._folder", str(tmp_path / "steps"))
    (tmp_path / "steps").mkdir()
    return tmp_path / "steps"


def test_what_the_simulator_predicts_is_met_exactly(folder):
    """Rows of its own with a launch of 2 us: the launch is found again, and no error is left."""
    write_steps(folder, META, measured_rows({1: 1.0, 16: 1.0, 64: 1.0, 128: 1.0}))
    found = validate_decoder(folder, load_gpu(GPU))
    assert found.gaps["tiny"].launch_us == pytest.approx(2.0, rel=1e-3)  # six digits in the file
    by_name = {each.quantity: each for each in found.comparisons}
    assert set(by_name) == {"decode step", "verify step", "speedup"}
    assert (by_name["decode step"].cells, by_name["verify step"].cells) == (
        1,
        6,
    )  # the fitted one is left out
    assert all(each.mean < 1e-4 and each.floor == 0.0 and each.within == 1.0 for each in found.comparisons)
    assert all(choice.grid_steps == 0 and choice.regret == 0.0 for choice in found.choices)


def test_an_eager_step_has_gaps_of_its_own(folder):
    """300 us beside a plain step and 700 beside a speculative one are found, and their cells left out."""
    rows = [
        msgspec.structs.replace(row, time_us=row.time_us + (300.0 if row.candidates == 1 else 700.0))
        for row in measured_rows({1: 1.0, 16: 1.0, 64: 1.0}, launch_us=0.0)
    ]
    write_steps(folder, msgspec.structs.replace(META, launched="eager"), rows)
    found = validate_decoder(folder, load_gpu(GPU))
    assert found.gaps["tiny"].plain_us == pytest.approx(300.0, rel=1e-3)
    assert found.gaps["tiny"].speculative_us == pytest.approx(700.0, rel=1e-3)
    assert found.gaps["tiny"].launch_us == 0.0
    counted = {each.quantity: (each.cells, each.worst) for each in found.comparisons}
    assert {name: cells for name, (cells, _) in counted.items()} == {
        "decode step": 1,
        "verify step": 3,
        "speedup": 3,
    }
    assert all(worst < 1e-3 for _, worst in counted.values())


def test_errors_floors_and_choices_are_counted(folder):
    """Steps of 64 that take 3 times as long, and passes that differ by 8 %."""
    rows = measured_rows({1: 1.0, 16: 1.0, 64: 3.0}, wobble=0.08)
    write_steps(folder, META, rows)
    found = validate_decoder(folder, load_gpu(GPU), gaps=Gaps(launch_us=2.0))
    by_name = {each.quantity: each for each in found.comparisons}
    verify = by_name["verify step"]
    assert by_name["decode step"].cells == 2  # nothing was fitted
    assert verify.floor == pytest.approx(0.08, rel=1e-3)
    errors = 1.0 / 0.98 - 1.0, 1.0 - 1.0 / (3.0 * 0.98)  # the lower quartile of two passes
    assert verify.mean == pytest.approx(sum(errors) / 2.0, rel=1e-3)
    assert verify.worst == pytest.approx(max(errors), rel=1e-3)
    assert "64 candidates" in verify.worst_at
    assert verify.within == 0.5
    assert by_name["speedup"].floor == pytest.approx(0.0, abs=1e-4)  # drifts hit both steps of a ratio
    assert by_name["speedup"].worst == pytest.approx(2.0, rel=1e-3)
    for choice in found.choices:
        assert choice.measured == 16
        assert choice.grid_steps == (choice.predicted == 64)


def test_do_not_enable_comes_out(folder):
    """Where every verification step costs ten decoding steps, the best count is 1, measured and predicted."""
    rows = [
        msgspec.structs.replace(row, tokens_per_step=1.0 + 0.001 * (row.candidates > 1))
        for row in measured_rows({1: 1.0, 16: 1.0, 64: 1.0})
    ]
    write_steps(folder, META, rows)
    found = validate_decoder(folder, load_gpu(GPU))
    assert [(choice.predicted, choice.measured) for choice in found.choices] == [(1, 1), (1, 1)]


def test_other_devices_are_refused(folder, tmp_path):
    write_steps(folder, META, measured_rows({1: 1.0, 16: 1.0}))
    with pytest.raises(UsageError, match=r"name 'a100-80gb-sxm' and 'h100-sxm'.*--allow-different"):
        validate_decoder(folder, load_gpu("a100-80gb-sxm"))
    assert validate_decoder(folder, load_gpu("a100-80gb-sxm"), allow_different=True).comparisons
    profile = tmp_path / "data" / "profiles" / "operators" / GPU
    profile.mkdir(parents=True)
    slower = msgspec.structs.replace(ENVIRONMENT, clocks_mhz={"sm": 1200.0})
    rates = Rates(copy_bytes_per_s=1e12, read_bytes_per_s=1e12, flops_per_s={}, launch_eager_us=5.0)
    meta = Meta(schema=1, title="t", method="m", models=(), dtypes=("bf16",), environment=slower, rates=rates)
    write_meta(profile, meta)
    with pytest.raises(UsageError, match=r"sm clock 1200 and 1980 MHz; dtype bf16 and fp16"):
        validate_decoder(folder, load_gpu(GPU), data_dir=tmp_path / "data")
    write_meta(profile, msgspec.structs.replace(meta, environment=ENVIRONMENT, dtypes=("fp16",)))
    assert validate_decoder(folder, load_gpu(GPU), data_dir=tmp_path / "data").comparisons


def test_files_read_back_and_bad_ones_are_named(folder):
    rows = measured_rows({1: 1.0, 16: 1.0})
    write_steps(folder, META, rows)
    meta, back = read_steps(folder)
    assert meta == META
    times = {"time_us": 1.0, "p10_us": 1.0, "p90_us": 1.0, "tokens_per_step": 1.0}
    untimed = [[msgspec.structs.replace(row, **times) for row in table] for table in (back, rows)]
    assert untimed[0] == untimed[1]
    with (folder / "steps.csv").open(newline="", encoding="utf-8") as file:
        table = list(csv.reader(file))
    for column, bad, told in ((2, "x", "row 1: batch: given 'x'"), (7, "-1", "row 1: time_us: given -1")):
        broken = [table[0], [*table[1][:column], bad, *table[1][column + 1 :]], *table[2:]]
        (folder / "steps.csv").write_text("\n".join(map(",".join, broken)) + "\n", encoding="utf-8")
        with pytest.raises(DataError, match=told):
            read_steps(folder)
    (folder / "steps.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(DataError, match="columns model, dtype"):
        read_steps(folder)


def test_command_prints_scores_and_fails_above(folder):
    write_steps(folder, META, measured_rows({1: 1.0, 16: 1.0, 64: 1.5}))
    table = answered("validate", "decoder", "--gpu", GPU, folder)
    assert "verify step" in table.stdout
    assert "candidates to choose" in table.stdout
    assert "tiny: 2.00 us a launch beside kernels, fitted to the first steps" in table.stderr
    markdown = invoke("validate", "decoder", "--gpu", GPU, folder, "--format", "md")
    assert markdown.stdout.count("| ---") >= 2
    found = document("validate", "decoder", "--gpu", GPU, folder)
    assert len(found["rows"]) == 6
    assert {each["quantity"] for each in found["comparisons"]} == {"decode step", "verify step", "speedup"}
    assert len(found["choices"]) == 2
    failed = invoke("validate", "decoder", "--gpu", GPU, folder, "--fail-above", 5)
    assert failed.exit_code == 3
    assert "verify step: mean error" in failed.stderr
    assert invoke("validate", "decoder", "--gpu", GPU, folder, "--fail-above", 60).exit_code == 0
    other = invoke("validate", "decoder", "--gpu", "a40", folder)
    assert other.exit_code == 2
    assert "not of one device" in other.stderr


def test_a_folder_for_validate_is_measured_by_the_command(tmp_path):
    """Two steps of a tiny model, timed for real, and read back by `validate decoder`."""
    config = tiny_config(101)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(json.dumps(config.to_hf()), encoding="utf-8")
    model, out = tmp_path / "tiny" / "config.json", tmp_path / "steps"
    words = ("--models", model, "--batch", "1,2", "--candidates", "4", "--seq-len", 16, "--repeats", 1)
    found = answered("measure", "steps", *words, "--passes", 1, "--name", "here", out)
    assert "tiny pass 1 batch 2 candidates 4" in found.stderr
    meta, rows = read_steps(out)
    assert meta.environment.name == "here"
    assert [(row.batch, row.candidates, row.depth > 0) for row in rows] == [
        (1, 1, False), (1, 4, True), (2, 1, False), (2, 4, True)
    ]  # fmt: skip
    assert model_from_config(out / "tiny" / "config.json").vocab == 101
