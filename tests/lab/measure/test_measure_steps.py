"""Steps of the decoder on a grid, and their files. No real timing is judged."""

import csv
import dataclasses
import json
from collections.abc import Callable

import pytest
import torch
from asking import answered
from decoder_models import tiny_config, tiny_heads, tiny_llama
from step_meta import META

from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.errors import DataError, UsageError
from medusa_sim.lab.decoder.generate import BatchDecoder, eager_forward, generate
from medusa_sim.lab.decoder.generation import GenerationSettings
from medusa_sim.lab.decoder.medusa_drafter import MedusaDrafter
from medusa_sim.lab.measure.arguments import StepGrid
from medusa_sim.lab.measure.cells import StepRow, read_steps, write_steps
from medusa_sim.lab.measure.decoder_steps import step_grid
from medusa_sim.lab.measure.subject import Subject
from medusa_sim.lab.measure.timed_steps import full_step, time_in_turns
from medusa_sim.models.hf_config import model_from_config

TREE = CandidateTree.from_paths([(0,), (1,), (0, 0), (0, 1), (0, 0, 0)])


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


def test_files_read_back_and_bad_ones_are_named(tmp_path):
    folder, common = tmp_path, {"model": "tiny", "dtype": "fp16", "batch": 1, "seq_len": 64, "repeats": 5}
    rows = [
        StepRow(**common, candidates=candidates, depth=depth, repetition=0, tokens_per_step=1.5, **times)
        for candidates, depth, us in ((1, 0, 100.0), (16, 3, 125.0))
        for times in [dict.fromkeys(("time_us", "p10_us", "p90_us"), us)]
    ]
    write_steps(folder, META, rows)
    assert read_steps(folder) == (META, rows)
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
