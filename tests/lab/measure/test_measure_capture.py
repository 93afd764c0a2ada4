"""What a GPU captures: without one, that it asks the device for no value; with one, that it runs."""

import dataclasses
import subprocess
import sys
import time

import pytest
import torch
from decoder_models import tiny_config, tiny_llama
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.errors import UsageError
from medusa_sim.lab.decoder.cache import KVCache
from medusa_sim.lab.decoder.fixed_shapes import graphed_forward, verify_slots
from medusa_sim.lab.measure import bench, clocks, environment, hardware
from medusa_sim.lab.measure.arguments import StepGrid
from medusa_sim.lab.measure.bench import CudaBench
from medusa_sim.lab.measure.decoder_steps import step_grid
from medusa_sim.lab.measure.environment import torch_device
from medusa_sim.lab.measure.kernels import CALLS, Pool, attention_kernels, calls
from medusa_sim.lab.measure.shapes import TimedShape, timed_shapes
from medusa_sim.lab.measure.subject import Subject, random_weights
from medusa_sim.lab.measure.timed_steps import step_us
from medusa_sim.models.feed_forwards import Mlp
from medusa_sim.models.layer_group import LayerGroup
from medusa_sim.models.mixers import Grouped
from medusa_sim.models.named import load_model

TREE = CandidateTree.cartesian([2, 2, 1])
TREES = {1: (CandidateTree.chain(0), 1.0), TREE.candidates: (TREE, 1.0)}
needs_cuda = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def without_data(mode: FakeTensorMode, cache: KVCache) -> None:
    """Take the values out of a cache: whoever asks for one gets an error."""
    cache.keys, cache.values, cache.lengths = (
        mode.from_tensor(each) for each in (cache.keys, cache.values, cache.lengths)
    )


def test_captured_forwards_ask_for_no_value():
    """The forward of `decode --launch` and of timed steps, for trees and plain steps."""
    model = tiny_llama(31, dtype=torch.float32)
    cache = model.new_cache(batch=2, capacity=64)
    cache.lengths += 9
    with torch.inference_mode():
        mask, depths = torch.from_numpy(TREE.mask), torch.from_numpy(TREE.depths)
        tokens = torch.zeros(2, TREE.candidates, dtype=torch.long)
        model(tokens, cache=cache)  # tables of rotations are made before a capture
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            without_data(mode, cache)
            with pytest.raises(DataDependentOutputException):
                cache.lengths.tolist()  # what this test can see
            with pytest.raises(DataDependentOutputException):
                model(tokens, cache=cache)  # the eager forward reads the lengths
            for filled in (False, True):
                found = verify_slots(model, cache, 32, tokens, mask, depths, filled=filled)
                assert found.shape == (2, TREE.candidates, 32)
                plain = verify_slots(model, cache, 10, tokens[:, :1], mask[:1, :1], depths[:1], filled=filled)
                assert plain.shape == (2, 1, 32)


def test_timed_kernels_ask_for_no_value():
    """Every kind of operator, as `CudaBench` captures it."""
    layers = LayerGroup(2, (Grouped(heads=4, kv_heads=2, head_dim=16),), Mlp(width=96))
    model = dataclasses.replace(load_model("llama-7b"), hidden=64, groups=(layers,), vocab=128)
    pool = Pool(torch.device("cpu"), 1000)
    chosen = {case.operator.kind: case for case in timed_shapes([model], ("fp32",)) if case.flops < 1e8}
    assert set(chosen) == set(CALLS)
    for case in chosen.values():
        (call, *_) = calls(TimedShape(operator=case.operator, level=0, between_bytes=0.0), pool)
        with torch.inference_mode(), FakeTensorMode(allow_non_fake_inputs=True):
            call()


def test_attention_kernels_are_shown_and_graphs_need_a_gpu():
    sizes = {"heads": 4, "kv_heads": 2, "head_dim": 16}
    assert set(attention_kernels(torch.device("cpu"), torch.float32, **sizes)) == {"plain", "tree"}
    model = tiny_llama()
    with pytest.raises(UsageError, match="CUDA graphs need a CUDA device"):
        graphed_forward(model, model.new_cache(batch=1, capacity=8))


def test_clocks_are_read_line_by_line(tmp_path):
    seen = clocks.Clocks()
    for line in ("1980, 2619\n", "345, 2619\n", "[N/A], [N/A]\n", "\n", "1755, 2619\n"):
        seen.add(line)
    assert seen.summary == {
        **{"sm_lowest": 345.0, "sm_median": 1755.0, "sm_highest": 1980.0},
        **{"memory_lowest": 2619.0, "memory_median": 2619.0, "memory_highest": 2619.0},
    }
    assert clocks.Clocks().summary == {}
    with clocks.watch_clocks(torch.device("cpu")) as none:
        clocks.raise_clocks(torch.device("cpu"))
    assert none.summary == {}


def test_clocks_are_watched_until_the_block_ends(monkeypatch):
    script = "import time\nwhile True: print('1500, 2600', flush=True); time.sleep(0.01)"

    def fake(device: object) -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)

    monkeypatch.setattr(clocks, "_watched", fake)
    with clocks.watch_clocks(torch.device("cuda")) as seen:
        for _ in range(500):
            if seen.summary:
                break
            time.sleep(0.01)
    assert seen.summary["sm_median"] == 1500.0


@pytest.fixture
def device() -> torch.device:
    """The last GPU: where there are two, not the one that torch takes by itself."""
    return torch_device(f"cuda:{torch.cuda.device_count() - 1}")


class TestOnCuda:
    pytestmark = needs_cuda

    def test_work_is_captured_and_timed(self, device):
        total = torch.zeros(1, device=device)
        replay = bench.capture_calls([lambda: total.add_(1.0)] * 10, device, results=2)
        before = float(total)
        assert 0.0 < bench.device_us(replay, device) < 1e5
        assert float(total) == before + 10.0

    def test_every_kind_of_operator_is_timed(self, device):
        model = load_model("llama-7b")
        chosen = {case.operator.kind: case for case in reversed(timed_shapes([model], ("fp16",)))}
        bench = CudaBench(Pool(device, 50 * 2**20))
        for case in chosen.values():
            assert 0.5 < bench.timing(case).time_us < 1e5

    def test_graphed_steps_are_the_eager_ones(self, device):
        config = tiny_config(101, hidden_size=256, head_dim=64)
        model, heads = random_weights(config, dtype=torch.float16, device=device, heads=3)
        with torch.inference_mode():
            for graphed in (False, True):
                subject = Subject("tiny", "fp16", model, heads, TREES, StepGrid(seq_len=200))
                for step in subject.steps(2, graphs=graphed).values():
                    assert 0.0 < step_us(step, device, time.perf_counter) < 1e6
            cache = model.new_cache(batch=2, capacity=200 + TREE.candidates)
            cache.keys.normal_()
            cache.values.normal_()
            cache.lengths += 200
            mask, depths = torch.from_numpy(TREE.mask).to(device), torch.from_numpy(TREE.depths).to(device)
            tokens = torch.arange(2 * TREE.candidates, device=device).view(2, -1)
            eager = model(tokens, cache=cache, tree_mask=mask, depths=depths)
            found = graphed_forward(model, cache)(tokens, mask, depths)
            assert (found - eager).abs().max() < 2e-2 * eager.abs().max()

    def test_a_grid_leaves_no_memory_behind(self, device):
        config = tiny_config(101, hidden_size=256, head_dim=64)
        model, heads = random_weights(config, dtype=torch.float16, device=device, heads=3)
        grid = StepGrid(batches=(1, 4), seq_len=200)
        rows = list(step_grid(Subject("tiny", "fp16", model, heads, TREES, grid)))
        assert len(rows) == 2 * 2 * 2
        assert all(0.0 < row.time_us < 1e5 for row in rows)

    def test_rates_of_the_card(self, device):
        found = hardware.rates(device, environment.environment(device), ("fp16",))
        assert found.copy_bytes_per_s > 1e11
        assert found.flops_per_s["fp16"] > 1e13
        assert 0.0 < found.launch_graph_us < found.launch_eager_us
