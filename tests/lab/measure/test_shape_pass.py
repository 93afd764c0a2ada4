"""`measure` on a fake device: order, budget, resuming, Ctrl-C, noise, what it refuses. No real timing."""

import dataclasses
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from medusa_sim.errors import DataError, UsageError
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.lab.measure import hardware, record, shape_pass, shapes, spread
from medusa_sim.lab.measure.environment import differences, model_label, slug, torch_device
from medusa_sim.lab.measure.record import Recorder, begin, write_meta
from medusa_sim.lab.measure.shapes import TimedShape, timed_shapes
from medusa_sim.lab.measure.spread import Timing, spread_warning, timing_of
from medusa_sim.latency.measured import profile_of
from medusa_sim.latency.measurement import Environment, Meta, Rates, read_meta
from medusa_sim.models.layer_group import LayerGroup
from medusa_sim.models.named import load_model
from medusa_sim.operators.table import read_rows

RATES = Rates(copy_bytes_per_s=1e12, read_bytes_per_s=1e12, flops_per_s={"fp16": 1e14}, launch_eager_us=5.0)
ENVIRONMENT = Environment(
    name="fake-card", device="Fake Card 9000", kind="cuda", units=100, cache_bytes=40_000_000,
    memory_bytes=80_000_000_000, driver="1.2, CUDA 13", clocks_mhz={"sm": 1980.0, "memory": 2619.0},
    current_clocks_mhz={"sm": 345.0}, torch="2.9.0", threads=4, commit="abc", date="2026-01-02T03:04:05Z",
    load_average=0.1,
)  # fmt: skip
META = Meta(
    schema=1, title="t", method="m", models=("llama-7b",), dtypes=("fp16",), environment=ENVIRONMENT,
    rates=RATES,
)  # fmt: skip


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class FakeBench:
    """Takes `pace` times the expected seconds; times are those of the rates; the spread is scripted."""

    def __init__(self, clock: Clock, *, pace: float = 1.0, spreads: list[float] | None = None) -> None:
        self.clock, self.pace, self.spreads = clock, pace, spreads or []
        self.seen: list[TimedShape] = []
        self.stop_after: int | None = None

    def timing(self, case: TimedShape) -> Timing:
        if self.stop_after is not None and len(self.seen) == self.stop_after:
            raise KeyboardInterrupt
        self.clock.now += self.pace * shape_pass.expected_s(case, RATES)
        spread = self.spreads[len(self.seen)] if len(self.seen) < len(self.spreads) else 0.02
        self.seen.append(case)
        us = 1.0 + case.bytes / 1e6 + case.flops / 1e8
        return Timing(us, us * (1 - spread / 2), us * (1 + spread / 2), 9)


def some_cases(dtypes: tuple[str, ...] = ("fp16",)) -> list[TimedShape]:
    return timed_shapes([load_model("llama-7b"), load_model("llama-3-8b")], dtypes)


def run(
    folder: Path, wanted: list[TimedShape], bench: FakeBench, **options: float
) -> tuple[shape_pass.Outcome, Recorder]:
    held, meta = begin(folder, META, resume=(folder / "meta.toml").exists())
    write_meta(folder, meta)
    memory = options.pop("memory_bytes", 80e9)
    outcome = shape_pass.measure_shapes(
        wanted, bench, held, RATES, memory_bytes=memory, clock=bench.clock, **options
    )
    return outcome, held


def test_shapes_cover_what_the_answer_needs():
    found = some_cases()
    assert len({case.key for case in found}) == len(found)
    m = {case.sizes["m"] for case in found if case.operator.kind == "gemm"}
    assert {1, 16, 64, 65, 128, 129, 256, 257, 512, 4096} <= m
    assert set(range(8, 145, 8)) <= m  # tile edges show up to 144
    products = {(case.sizes["n"], case.sizes["k"]) for case in found if case.operator.kind == "gemm"}
    assert {
        (12288, 4096), (4096, 4096), (22016, 4096), (11008, 4096), (4096, 11008), (32000, 4096),
    } <= products  # fmt: skip
    assert {(6144, 4096), (1024, 4096), (28672, 4096), (128256, 4096)} <= products  # grouped-query Llama 3
    verify = [case.sizes for case in found if case.operator.kind == "verify_attention"]
    assert {s["q_len"] for s in verify} == {2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128}
    assert {s["kv_len"] - s["q_len"] for s in verify} == {128, 256, 512, 1024, 2048, 4096, 8192}
    assert {s["batch"] for s in verify} == {1, 2, 4, 8, 16, 32, 64}
    assert all(s["q_len"] == 1 for s in (c.sizes for c in found if c.operator.kind == "decode_attention"))
    kinds = {case.operator.kind for case in found if case.operator.kind != "gemm"}
    assert {
        "qk", "pv", "prefill_attention", "rms_norm", "rope", "activation", "residual", "embedding",
    } <= kinds  # fmt: skip


def test_the_first_shapes_cover_every_family_and_later_ones_refine():
    found = some_cases()
    levels = [case.level for case in found]
    assert levels == sorted(levels)
    first = found[: levels.index(1)]
    assert Counter(case.operator.FAMILY for case in first).keys() == set(shapes.FAMILIES)
    assert {case.sizes["m"] for case in first if case.operator.kind == "gemm"} == {1, 16, 64, 128}
    # Within a level the families advance together: halfway through, each is about halfway.
    second = [case for case in found if case.level == 2]
    half = Counter(case.operator.FAMILY for case in second[: len(second) // 2])
    whole = Counter(case.operator.FAMILY for case in second)
    assert all(abs(half[family] / whole[family] - 0.5) < 0.05 for family in whole)


def test_a_shape_of_two_models_is_as_cold_as_in_the_larger():
    small, large = load_model("llama-7b"), load_model("llama-13b")
    layers = LayerGroup(large.layers, (small.attention,), large.mlp)
    shared = dataclasses.replace(large, hidden=small.hidden, groups=(layers,))
    both = {case.key: case for case in timed_shapes([small, shared], ["fp16"])}
    key = ("gemm", "fp16", "fp16", small.hidden, small.hidden, 1)
    assert both[key].between_bytes == 2.0 * max(small.parameter_count, shared.parameter_count)


def test_a_budget_is_kept_and_takes_the_most_informative(tmp_path):
    wanted = some_cases()
    whole = sum(shape_pass.expected_s(case, RATES) for case in wanted)
    clock = Clock()
    bench = FakeBench(clock, pace=2.0)  # twice as slow as expected: the session learns it
    outcome, _ = run(tmp_path / "a", wanted, bench, budget_s=0.2 * whole)
    assert clock.now - 100.0 <= 0.2 * whole
    assert clock.now - 100.0 > 0.15 * whole
    assert outcome.measured + outcome.left == len(wanted)
    done = {case.key for case in bench.seen}
    assert all(case.key in done for case in wanted if case.level <= 1)


def test_a_case_is_left_that_would_overrun_at_the_pace_so_far(tmp_path):
    """The first took three times as long as expected: so would the second, for which twice is left."""
    wanted = some_cases()[:2]
    first, second = (shape_pass.expected_s(case, RATES) for case in wanted)
    for share, left in ((2.0, 1), (3.1, 0)):
        bench = FakeBench(Clock(), pace=3.0)
        outcome, _ = run(tmp_path / str(share), wanted, bench, budget_s=3.0 * first + share * second)
        assert (outcome.measured, outcome.left) == (2 - left, left)


def test_what_does_not_fit_memory_and_noise_are_shown_with_a_remedy(tmp_path):
    outcome, _ = run(tmp_path / "a", some_cases(), FakeBench(Clock()), memory_bytes=4e9)
    assert outcome.too_large > 0
    assert outcome.measured + outcome.too_large == len(some_cases())
    assert spread_warning(0, 10, "cpu", 3.0) is None
    told = spread_warning(4, 10, "cpu", 3.25)
    assert told is not None
    assert "4 of 10" in told
    assert "load average 3.25" in told
    assert "--resume" in told
    assert "lock-gpu-clocks" in (spread_warning(1, 10, "cuda", 0.0) or "")


def test_ctrl_c_keeps_rows_and_resume_does_the_rest(tmp_path):
    wanted = some_cases()[:90]
    first = FakeBench(Clock())
    first.stop_after = 40
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "rows", wanted, first)
    kept = sum(len(read_rows(path, need_time=True)) for path in (tmp_path / "rows").glob("*.csv"))
    assert kept == 40
    second = FakeBench(Clock())
    outcome, held = run(tmp_path / "rows", wanted, second)
    assert (outcome.kept, outcome.measured, held.rows) == (40, 50, 90)
    assert not {case.key for case in first.seen} & {case.key for case in second.seen}
    assert read_meta(tmp_path / "rows", Meta).resumed == (ENVIRONMENT,)
    at_once, _ = run(tmp_path / "once", wanted, FakeBench(Clock()))
    assert at_once.measured == 90
    for path in (tmp_path / "rows").glob("*.csv"):
        assert path.read_bytes() == (tmp_path / "once" / path.name).read_bytes()
    assert not list((tmp_path / "rows").glob(".*"))  # no temporary file is left


def test_rows_are_saved_while_a_session_runs(tmp_path):
    """A process that is killed loses seconds, not the session."""
    clock = Clock()
    held = Recorder(tmp_path, clock)
    for case in some_cases()[:3]:
        clock.now += 3.0
        held.add(case, Timing(1.0, 1.0, 1.0, 3))
    assert sum(len(read_rows(path)) for path in tmp_path.glob("*.csv")) == 2


def test_noise_is_measured_once_more_and_the_steadier_row_kept(tmp_path):
    wanted = some_cases()[:3]
    bench = FakeBench(Clock(), spreads=[0.5, 0.2, 0.02, 0.3, 0.05])
    outcome, held = run(tmp_path, wanted, bench)
    assert [case.key for case in bench.seen] == [wanted[i].key for i in (0, 0, 1, 2, 2)]
    assert (held.noisy, held.rows) == (1, 3)
    again = FakeBench(Clock(), spreads=[0.4, 0.4])  # noisier still: the old row stays, and is noisy
    outcome, held = run(tmp_path, wanted, again)
    assert (outcome.kept, outcome.measured, held.noisy) == (2, 1, 1)
    quiet = FakeBench(Clock())
    more = some_cases()[:5]
    outcome, held = run(tmp_path, more, quiet)
    assert (outcome.measured, held.noisy) == (3, 0)
    assert [case.key for case in quiet.seen] == [
        more[i].key for i in (3, 4, 0)
    ]  # what is missing comes first


def test_rows_are_what_profile_and_calibrate_read(tmp_path):
    """Every recorded shape reads back its own time, as an operator of the right kind."""
    bench = FakeBench(Clock())
    wanted = some_cases()[:400]
    _, held = run(tmp_path, wanted, bench)
    frames = {path.name: read_rows(path, need_time=True) for path in tmp_path.glob("*.csv")}
    assert sum(map(len, frames.values())) == held.rows == len(wanted)
    assert set(frames) == {"gemm_fp16.csv", "attention_fp16.csv", "elementwise_fp16.csv"}
    assert list(next(iter(frames.values())).columns) == list(record.OperatorRow.__struct_fields__)
    profile_of("fake-card", sorted(tmp_path.glob("*.csv")))


def test_progress_tells_the_time_left(tmp_path):
    told: list[tuple[int, int, float, float]] = []
    clock = Clock()
    held = Recorder(tmp_path)
    shape_pass.measure_shapes(
        some_cases()[:50], FakeBench(clock, pace=3.0), held, RATES, memory_bytes=80e9, clock=clock,
        advance=lambda *given: told.append((*given, clock())),
    )  # fmt: skip
    done, of, left_s, at = zip(*told, strict=True)
    assert done == tuple(range(1, 51))
    assert set(of) == {50}
    assert left_s[-1] == 0.0
    assert left_s[24] == pytest.approx(at[-1] - at[24], rel=1e-6)


def test_a_folder_with_what_a_run_left_before_its_first_row_is_not_said_to_hold_rows(tmp_path):
    write_meta(tmp_path, META)
    with pytest.raises(UsageError, match=r"holds the meta.toml of a run without rows; add --resume"):
        begin(tmp_path, META, resume=False)


def test_a_folder_with_rows_needs_resume_and_the_same_device(tmp_path):
    run(tmp_path, some_cases()[:5], FakeBench(Clock()))
    with pytest.raises(UsageError, match="--resume"):
        begin(tmp_path, META, resume=False)
    other = msgspec.structs.replace(META, environment=msgspec.structs.replace(ENVIRONMENT, device="Another"))
    with pytest.raises(UsageError, match=r"measured elsewhere.*Another"):
        begin(tmp_path, other, resume=True)
    begin(tmp_path, other, resume=True, allow_different=True)
    newer = msgspec.structs.replace(META, environment=msgspec.structs.replace(ENVIRONMENT, torch="3.0"))
    with pytest.raises(UsageError, match=r"torch 2\.9\.0 and 3\.0"):
        begin(tmp_path, newer, resume=True)
    (tmp_path / "notes.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(DataError, match="not written by `measure`"):
        begin(tmp_path, META, resume=True)


def test_environments_and_devices_are_named_by_what_differs():
    assert differences(ENVIRONMENT, ENVIRONMENT) == []
    slow = msgspec.structs.replace(ENVIRONMENT, clocks_mhz={"sm": 1410.0, "memory": 2619.0})
    assert differences(ENVIRONMENT, slow) == ["sm clock 1980 and 1410 MHz"]
    near = msgspec.structs.replace(ENVIRONMENT, clocks_mhz={"sm": 1950.0})
    assert differences(ENVIRONMENT, near) == []
    cpu = msgspec.structs.replace(ENVIRONMENT, kind="cpu")
    assert differences(cpu, msgspec.structs.replace(cpu, threads=8)) == ["threads 4 and 8"]
    assert slug("Intel(R) Xeon(R) CPU E5-2690 v4 @ 2.60GHz") == "intel-xeon-e5-2690-v4"
    assert slug("AMD EPYC 9B14") == "amd-epyc-9b14"
    with pytest.raises(UsageError, match=r"cpu, cuda or cuda:n"):
        torch_device("gpu")
    with pytest.raises(UsageError, match=r"sees \d+ CUDA devices"):
        torch_device("cuda:999")
    assert timing_of([3.0]) == Timing(3.0, 3.0, 3.0, 1)
    found = timing_of([float(i) for i in range(1, 12)])
    assert (found.time_us, found.p10_us, found.p90_us, found.repeats) == (6.0, 2.0, 10.0, 11)
    assert found.spread == pytest.approx(8.0 / 6.0)
    assert spread.SPREAD_LIMIT == 0.10


def test_hardware_file_of_a_measured_device(tmp_path):
    """It reads back as a GPU, is renewed by a better run, and left alone once kernels were fitted to it."""
    path = hardware.write_hardware(tmp_path, ENVIRONMENT, RATES)
    assert path == tmp_path / "hardware" / "fake-card.toml"
    card = load_gpu("fake-card", tmp_path)
    assert (card.sms, card.l2_bytes, card.peak("fp16")) == (100, 40e6, 1e14)
    assert card.bandwidth_bytes_per_s == 1e12
    assert all(source for source in card.sources.values())
    assert "measured by medusa-sim" in card.sources["peak_flops_per_s.fp16"]
    better = hardware.with_rows(RATES, {"fp16": 2e14}, 3e12)
    assert hardware.write_hardware(tmp_path, ENVIRONMENT, better) == path
    assert load_gpu("fake-card", tmp_path).peak("fp16") == 2e14
    shipped = msgspec.structs.replace(ENVIRONMENT, name="a40")
    assert hardware.write_hardware(tmp_path, shipped, better) is None


def test_a_profile_names_models_without_the_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert model_label(str(tmp_path / "models" / "config.json")) == "models/config.json"
    for given in ("llama-7b", "models/config.json", "/elsewhere/config.json"):
        assert model_label(given) == given
