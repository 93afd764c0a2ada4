"""How often, on what and against what is measured, by hand, on clocks that a test turns."""

import contextlib
import itertools
import tomllib
import weakref
from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from medusa_sim.lab.measure import bench as bench_module
from medusa_sim.lab.measure import environment, hardware
from medusa_sim.lab.measure.bench import CpuBench, CudaBench, Sample, _repeats, device_us, results_kept
from medusa_sim.lab.measure.cells import StepRow
from medusa_sim.lab.measure.decoder_steps import whole_passes
from medusa_sim.lab.measure.kernels import Pool
from medusa_sim.lab.measure.shape_pass import FastestLayers, _slowness, expected_s
from medusa_sim.lab.measure.spread import Timing, lower_quartile, settled_timing, timing_of
from medusa_sim.lab.measure.turns import Turns, Visit, take_turns
from medusa_sim.latency.measurement import Rates

CPU = torch.device("cpu")


def case(**more: Any) -> Any:
    operator = SimpleNamespace(kind="gemm", dtype="fp16", FAMILY="gemm")
    given = {"operator": operator, "bytes": 2e6, "flops": 3e9, "activation_bytes": 0, "between_bytes": 0}
    return SimpleNamespace(**{**given, **more})


def test_samples_are_shown_by_their_median_and_deciles():
    """Of 0 to 100 in ones 50, 10 and 90: a spread of 160 %."""
    found = timing_of([float(value) for value in range(101)])
    assert (found.time_us, found.p10_us, found.p90_us, found.repeats) == (50.0, 10.0, 90.0, 101)
    assert found.spread == pytest.approx(1.6)
    assert timing_of([7.0]) == Timing(7.0, 7.0, 7.0, 1)
    settled = settled_timing([float(value) for value in range(101)])
    assert (settled.time_us, settled.p10_us) == (25.0, 10.0)
    assert [lower_quartile([4.0]), lower_quartile([4.0, 8.0])] == [4.0, 5.0]


@pytest.mark.parametrize(
    ("sample_us", "repeats"), [(500.0, 50), (3_000.0, 50), (5_000.0, 30), (30_000.0, 7), (1e6, 7), (0.1, 50)]
)
def test_samples_of_a_case_fill_0_15_seconds_within_7_and_50(sample_us, repeats):
    assert _repeats(sample_us) == repeats


def test_so_many_results_are_held_as_a_layer_writes():
    """Of a layer that writes 10 kB a result of 1 kB is held ten times; two tensors of one result together."""
    one = torch.zeros(256)  # 1,024 bytes
    assert results_kept(case(activation_bytes=10_240), one) == 10
    assert results_kept(case(activation_bytes=10_240), (one, one)) == 5
    assert results_kept(case(activation_bytes=0), one) == 1
    assert results_kept(case(activation_bytes=100), "nothing") == 100


def test_a_sample_is_the_time_of_its_calls_over_their_number():
    now = iter([10.0, 10.5])
    called: list[int] = []
    sample = Sample(itertools.cycle([lambda: called.append(1)]), deque(maxlen=2), 4, lambda: next(now))
    assert sample() == pytest.approx(0.5e6 / 4)
    assert len(called) == 4


@pytest.mark.parametrize(("call_us", "block"), [(10.0, 50), (1.0, 256), (1_000.0, 1), (200.0, 2)])
def test_a_sample_lasts_half_a_millisecond_or_256_calls(monkeypatch, call_us, block):
    clock = SimpleNamespace(now=0.0)

    def call() -> torch.Tensor:
        clock.now += call_us * 1e-6
        return torch.zeros(1)

    monkeypatch.setattr(bench_module, "calls", lambda case, pool: [call])
    bench = CpuBench(Pool(CPU, 1 << 20), lambda: clock.now)
    assert bench.ready(case()).calls == block


def test_warming_up_goes_through_the_operands_six_times_or_for_a_while(monkeypatch):
    """Three calls at least; attention that stays in the cache goes round 24 times."""
    clock, called = SimpleNamespace(now=0.0, step=0.0), []

    def call() -> torch.Tensor:
        clock.now += clock.step
        called.append(1)
        return torch.zeros(1)

    monkeypatch.setattr(bench_module, "calls", lambda case, pool: [call, call])
    bench = CpuBench(Pool(CPU, 1 << 20), lambda: clock.now)
    attention = SimpleNamespace(kind="decode_attention", dtype="fp16", FAMILY="attention")
    for asked, step, warm in (
        (case(), 0.0, 6 * 2), (case(), 0.1, 3), (case(), 0.0145, 5),
        (case(operator=attention), 0.0, 24 * 2), (case(operator=attention), 0.1, 3),
        (case(operator=attention, between_bytes=1 << 20), 0.0, 6 * 2),
    ):  # fmt: skip
        clock.step = step
        called.clear()
        bench.ready(asked)
        assert len(called) == 1 + warm + 1  # one to see the result, one to see how long it takes


def test_operands_are_copied_until_several_caches_are_read():
    """A cache of 1 MiB: copies of 64 KiB until what lies between two uses is read."""
    pool = Pool(CPU, 1 << 20)
    shape = (128, 128)
    assert pool.operands(shape, torch.float32, 4 * 65_536).shape == (4, 128, 128)
    assert pool.operands(shape, torch.float32, 4 * 65_536 + 1).shape == (5, 128, 128)
    assert pool.operands(shape, torch.float32, 0.0).shape == (1, 128, 128)
    assert len(pool.operands(shape, torch.float32, 1e12)) == pool.rotation_bytes // 65_536


# A session.


def rated(bytes_per_s: float) -> Rates:
    """A device of 100 TFLOP/s, whose host takes 5 us a launch."""
    return Rates(
        copy_bytes_per_s=bytes_per_s, read_bytes_per_s=bytes_per_s, flops_per_s={"fp16": 1e14},
        launch_eager_us=5.0,
    )  # fmt: skip


def test_a_case_takes_its_setting_up_and_twenty_launches():
    """2 MB at 1 TB/s, 3 GFLOP at 100 TFLOP/s and 5 us of the host are 37 us a launch."""
    rates = Rates(
        copy_bytes_per_s=1e12, read_bytes_per_s=1e12, flops_per_s={"fp16": 1e14}, launch_eager_us=5.0
    )
    assert expected_s(case(), rates) == pytest.approx(0.05 + 20 * 37e-6)
    other = SimpleNamespace(kind="gemm", dtype="fp32", FAMILY="gemm")  # no rate of its own: the best there is
    assert expected_s(case(operator=other), rates) == pytest.approx(0.05 + 20 * 37e-6)


def test_a_session_is_as_slow_as_half_of_its_last_cases():
    assert (_slowness([]), _slowness([1.0, 5.0, 2.0])) == (1.0, 2.0)


def test_the_fastest_layer_is_counted_in_bytes_and_in_flops():
    """3 GFLOP and 2 MB in 10 us are 300 TFLOP/s and 200 GB/s."""
    best = FastestLayers()
    best.see(case(), 10.0)
    best.see(case(), 20.0)
    best.see(case(operator=SimpleNamespace(kind="rms_norm", dtype="fp16")), 1.0)
    assert best.flops_per_s == {"fp16": pytest.approx(3e14)}
    assert best.bytes_per_s == pytest.approx(2e11)
    rates = Rates(
        copy_bytes_per_s=1e11, read_bytes_per_s=1e11, flops_per_s={"fp16": 1e14}, launch_eager_us=5.0
    )
    found = hardware.with_rows(rates, best.flops_per_s, best.bytes_per_s)
    assert (found.read_bytes_per_s, found.flops_per_s["fp16"]) == pytest.approx((2e11, 3e14))
    slower = hardware.with_rows(rates, {"fp16": 1.0}, 1.0)
    assert (slower.read_bytes_per_s, slower.flops_per_s) == (1e11, {"fp16": 1e14})


@pytest.mark.parametrize(("copy", "read"), [(1e11, 2.12345e11), (2.12345e11, 1e11)])
def test_the_bandwidth_of_a_file_is_the_faster_of_a_copy_and_of_reading(copy, read):
    """To four digits."""
    seen = SimpleNamespace(
        device="x", commit="c", date="2026-11-30", torch="2", kind="cpu", name="x", units=4, cache_bytes=1,
        memory_bytes=2,
    )  # fmt: skip
    rates = Rates(
        copy_bytes_per_s=copy, read_bytes_per_s=read, flops_per_s={"fp32": 1.23456e11}, launch_eager_us=5.0
    )
    given = tomllib.loads(hardware.hardware_text(seen, rates))
    assert given["bandwidth_bytes_per_s"]["value"] == 2.123e11
    assert given["peak_flops_per_s"]["fp32"]["value"] == 1.235e11


def test_rates_are_bytes_and_flops_over_their_times(monkeypatch):
    """Each timed as 100 us: a copy reads and writes, a product of 1,024 rows has 2 x 1,024^3 FLOP."""
    monkeypatch.setattr(hardware, "_us", lambda device, work, typical=min: 100.0)
    copy, read = hardware._bandwidths(CPU, 4_000)
    assert (copy, read) == pytest.approx((8_000 / 100e-6, 4_000 / 100e-6))
    assert hardware._product_flops_per_s(CPU, torch.float32) == pytest.approx(2 * 1024**3 / 100e-6)
    assert hardware._launch_us(CPU) == (1.0, 0.0)  # of a hundred


def test_the_best_of_nine_times_is_taken(monkeypatch):
    times = iter(np.cumsum([0.0, *itertools.chain.from_iterable((us * 1e-6, 0.0) for us in range(9, 0, -1))]))
    monkeypatch.setattr(hardware.time, "perf_counter", lambda: float(next(times)))
    called: list[int] = []
    assert hardware._us(CPU, lambda: called.append(1)) == pytest.approx(1.0)
    assert len(called) == 9


# Turns.


def test_a_visit_takes_two_to_eight_times_and_its_quartile_over_the_machines():
    """Of 20 ms twice, of 1 ms eight times; the reference beside each takes 2 us."""
    for us, times in ((20_000.0, 2), (1_000.0, 8), (10_000.0, 3)):
        called: list[float] = []
        turns = Turns(lambda: 2.0)
        turns.take(Visit("x", lambda us=us, called=called: lambda: called.append(us) or us))
        assert len(called) == times
        assert turns.found["x"] == [[us / 2.0]]
        assert turns.times_us("x") == [us]


def test_the_first_round_takes_a_sixth_of_the_budget():
    """Visits of a second: of 60 s ten and the one that shows it, then rounds of eleven while they fit."""
    clock = SimpleNamespace(now=1000.0)

    def run() -> float:
        clock.now += 0.5
        return 1e9

    visits = [Visit(place, lambda: run) for place in range(40)]
    turns = Turns(lambda: 1.0)
    rounds = list(take_turns(turns, visits[:1], visits[1:], budget_s=60.0, clock=lambda: clock.now))
    assert len(turns.found) == 11
    assert rounds == [1, 2, 3, 4, 5]
    assert clock.now == 1055.0
    short = Turns(lambda: 1.0)
    assert list(take_turns(short, visits[:1], [], budget_s=0.0, clock=lambda: clock.now)) == [1, 2]


def test_a_device_times_its_work_between_two_events(monkeypatch):
    """2.5 ms from the first event to the second."""
    told: list[str] = []

    class Event:
        def __init__(self, *, enable_timing: bool) -> None: ...

        def record(self) -> None:
            told.append("event")

        def synchronize(self) -> None: ...

        def elapsed_time(self, ended: "Event") -> float:
            return 2.5

    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "Event", Event)
    waited: list[int] = []
    monkeypatch.setattr(torch.cuda, "_sleep", waited.append)
    assert device_us(lambda: told.append("work"), torch.device("cuda")) == 2_500.0
    assert told == ["event", "work", "event"]
    device_us(lambda: None, torch.device("cuda"), 25)
    assert waited == [404_000, 500_000]  # cycles while the host queues what follows, 4,000 more a call


def test_the_largest_cache_of_a_core_is_read_in_kilobytes_megabytes_or_gigabytes(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "_CPU_TREE", tmp_path)
    assert environment.last_level_cache_bytes() == 32 * 2**20
    for index, (size, largest) in enumerate([("48K", 48 * 1024), ("2M", 2 * 1024**2), ("1G", 1024**3)]):
        folder = tmp_path / "cpu0" / "cache" / f"index{index}"
        folder.mkdir(parents=True)
        (folder / "size").write_text(f"{size}\n", encoding="ascii")
        assert environment.last_level_cache_bytes() == largest


@pytest.mark.parametrize(
    ("family", "between", "settles"), [("attention", 99, True), ("attention", 100, False), ("gemm", 0, False)]
)
def test_attention_that_stays_in_the_cache_between_calls_settles_longer(
    monkeypatch, family, between, settles
):
    """Its caches fill slowly: rotations and seconds of the longer warm-up."""
    asked: list[tuple[int, float]] = []
    made = CpuBench.__new__(CpuBench)
    made.pool, made.clock, made.patience = (
        SimpleNamespace(cache_bytes=100),
        itertools.count(0.0, 1e-3).__next__,
        1.0,
    )
    monkeypatch.setattr(bench_module, "calls", lambda *_: [lambda: 0.0])
    monkeypatch.setattr(bench_module, "results_kept", lambda *_: 1)
    monkeypatch.setattr(made, "_warm_up", lambda *args: asked.append(args[2:]), raising=False)
    operator = SimpleNamespace(kind=family, dtype="fp16", FAMILY=family)
    made.ready(case(operator=operator, between_bytes=between))
    usual = (bench_module._USUAL_ROTATIONS, bench_module._USUAL_S)
    long = (bench_module._SETTLING_ROTATIONS, bench_module._SETTLING_S)
    assert asked == [long if settles else usual]


def test_an_interrupted_pass_is_left_out_of_every_model():
    """Model a has both passes of its two cells, b lost the second cell of pass 1."""
    done = [("a", 0), ("a", 0), ("a", 1), ("a", 1), ("b", 0), ("b", 0), ("b", 1)]
    rows = [step_row(model, repetition) for model, repetition in done]
    kept = [(row.model, row.repetition) for row in whole_passes(rows, 2)]
    assert kept == [("a", 0), ("a", 0), ("b", 0), ("b", 0)]
    assert whole_passes(rows[-1:], 2) == []


def step_row(model: str, repetition: int) -> StepRow:
    return StepRow(
        model=model, dtype="fp32", batch=1, seq_len=8, candidates=1, depth=0, repetition=repetition,
        time_us=1.0, p10_us=1.0, p90_us=1.0, repeats=1, tokens_per_step=1.0,
    )  # fmt: skip


def test_a_buffer_grows_twice_as_large_and_takes_the_place_of_its_own_use_alone():
    """In 2 MiB of float32 values are 524,288, as many as are ever held to spare."""
    pool = Pool(CPU, 1 << 20)
    rows = pool.activations((64,), torch.float32, 0.0)
    for count, held in ((100, 100), (150, 200), (401, 401), (500, 802)):
        pool.operands((count,), torch.float32, 0.0)
        sizes = {name: buffer.numel() for name, buffer in pool._buffers.items()}
        assert sizes == {("activations", torch.float32): 64, ("operands", torch.float32): held}
    assert pool.activations((64,), torch.float32, 0.0).data_ptr() == rows.data_ptr()
    pool.operands((10,), torch.bfloat16, 0.0)
    assert set(pool._buffers) == {("activations", torch.float32), ("operands", torch.bfloat16)}


def test_a_graph_goes_round_until_a_sample_lasts_and_is_timed_for_0_15_seconds(monkeypatch):
    """Two operands of 50 us are 100 us: five rounds make a sample of 500, of which 50 are taken, not 300."""
    for call_us, rounds, repeats in ((50.0, 5, 50), (2_000.0, 1, 37), (20_000.0, 1, 7)):
        captured: list[int] = []
        timed: list[int] = []

        def capture(work: list[object], *_: object, captured: list[int] = captured, **__: object) -> Any:
            captured.append(len(work))
            return lambda: None

        def time_us(
            replay: object, device: object, of: int, timed: list[int] = timed, us: float = call_us
        ) -> float:
            timed.append(of)
            return of * us

        monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        monkeypatch.setattr(bench_module, "calls", lambda *_: [lambda: 0.0] * 2)
        monkeypatch.setattr(bench_module, "capture_calls", capture)
        monkeypatch.setattr(bench_module, "device_us", time_us)
        found = CudaBench(SimpleNamespace(device=CPU)).timing(case())
        assert (found.time_us, found.repeats) == (call_us, repeats)
        assert captured == ([2] if rounds == 1 else [2, 2 * rounds])
        assert timed == [2, *[2 * rounds] * repeats]


@pytest.mark.parametrize(("given", "held"), [({}, 0), ({"results": 2}, 2), ({"results": 9}, 3)])
def test_a_graph_holds_as_many_results_as_are_asked_for(monkeypatch, given, held):
    """While it is captured, so that each is written where a step would write it."""
    made: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    def work() -> torch.Tensor:
        result = torch.zeros(1)
        made.append(weakref.ref(result))
        return result

    def capture(once: Any, device: object, **_: object) -> tuple[Any, None]:
        once()
        alive.append(sum(each() is not None for each in made))
        return SimpleNamespace(replay=lambda: None), None

    monkeypatch.setattr(bench_module, "capture", capture)
    bench_module.capture_calls([work] * 3, CPU, **given)
    assert alive == [held]
