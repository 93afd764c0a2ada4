"""Elementwise kernels: physics as properties, the fit as recovery, measured rows where the data is."""

import dataclasses
import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from medusa_sim.gpus.gpu import Gpu, load_gpu
from medusa_sim.gpus.kernels import ElementwiseKernel, StreamKernel
from medusa_sim.lab.calibrate.driver import UNFITTED
from medusa_sim.lab.calibrate.elementwise import fit_elementwise
from medusa_sim.lab.calibrate.rows import Rows
from medusa_sim.lab.calibrate.stream import fit_stream
from medusa_sim.latency.calibrated import CalibratedLatency
from medusa_sim.latency.elementwise import elementwise_time
from medusa_sim.latency.operator_time import Bound, Source
from medusa_sim.latency.stream import is_eager, stream_time
from medusa_sim.operators.elementwise import ELEMENTWISE_KINDS, Elementwise, ElementwiseKind
from medusa_sim.operators.operator import Size
from medusa_sim.operators.recurrent import Recurrent

GPUS = ["a100-80gb-pcie", "a40", "h100-sxm", "rtx-a6000", "h200-sxm", "l40s"]
KINDS = [kind for kind in ELEMENTWISE_KINDS if kind != "next_token"]
"""The choice of the next token was measured on no GPU."""
names, kinds = st.sampled_from(GPUS), st.sampled_from(KINDS)


def kernel_of(name: str, kind: str) -> tuple[Gpu, ElementwiseKernel]:
    gpu = load_gpu(name)
    return gpu, gpu.kernel_set("torch").elementwise[kind]


def shape(kind: ElementwiseKind, m: Size, n: Size) -> Elementwise:
    return Elementwise(name=kind, kind=kind, m=m, n=n, dtype="fp16")


def by_hand_us(gpu: Gpu, kernel: ElementwiseKernel, operator: Elementwise, *, cold: bool) -> float:
    """(E1) to (E4) of one launch, number by number."""
    m, moved, bandwidth = int(operator.m), float(operator.bytes), gpu.bandwidth_bytes_per_s / 1e6
    floor_us = moved / bandwidth if cold else 0.0
    if m <= kernel.serial_rows:
        return max(kernel.ramp_us + kernel.serial_row_us * m, floor_us)
    memory_us = moved / (kernel.bandwidth_fraction * bandwidth)
    if not cold:
        hit = 1 / (1 + (moved / (kernel.l2_fill * gpu.l2_bytes)) ** kernel.l2_sharpness)
        memory_us *= 1 - hit + hit / kernel.l2_ratio

    def row_us(at_once: int) -> float:
        return moved / m / (kernel.row_ratio * bandwidth / gpu.sms) * (1 + kernel.sharing * (at_once - 1))

    load, c = m / gpu.sms, kernel.rows_per_sm
    full = m // (gpu.sms * c)
    rest = load - full * c
    time_us = kernel.ramp_us + full * math.hypot(row_us(c), memory_us * c / load)
    if rest > 1e-9:
        time_us += math.hypot(row_us(math.ceil(rest - 1e-9)), memory_us * rest / load)
    return max(time_us, floor_us)


@given(names, kinds, st.integers(1, 10_000), st.integers(64, 30_000), st.booleans())
def test_the_time_is_that_of_the_equations(name, kind, m, n, cold):
    gpu, kernel = kernel_of(name, kind)
    found = elementwise_time(gpu, kernel, shape(kind, m, n), cold=cold).time_us
    told = by_hand_us(gpu, kernel, shape(kind, m, n), cold=cold)
    assert float(found) == pytest.approx(told * kernel.fit.slower, rel=1e-9)


@given(names, kinds, st.integers(17, 10_000), st.integers(64, 30_000))
def test_more_rows_never_cost_less_beyond_the_serial_look_up(name, kind, m, n):
    gpu, kernel = kernel_of(name, kind)
    assert kernel.serial_rows < 17
    cost = elementwise_time(gpu, kernel, shape(kind, np.array([m, m + 1, 2 * m]), n)).time_us
    # The last wave is priced by its own share of the traffic, so a step may undercut by a rounding error.
    assert np.all(np.diff(cost) >= -1e-9 * cost[0])


@pytest.mark.parametrize("name", GPUS)
def test_a_few_rows_cost_the_ramp_and_one_row_and_many_wait_for_memory(name):
    gpu, kernel = kernel_of(name, "residual")
    assert elementwise_time(gpu, kernel, shape("residual", 100_000, 8192)).bound == Bound.MEMORY
    few = elementwise_time(gpu, kernel, shape("residual", np.array([1, 2, 4]), 4096))
    assert np.all(few.bound == Bound.LATENCY)
    np.testing.assert_allclose(few.time_us, few.time_us[0], rtol=0.2)


def test_an_embedding_of_few_tokens_is_gathered_one_by_one():
    """PyTorch's small-index kernel loops: 16 tokens take longer than 64 (published rows show 14 and 6 us)."""
    gpu, kernel = kernel_of("a100-80gb-pcie", "embedding")
    cost = elementwise_time(gpu, kernel, shape("embedding", np.array([16, 64]), 4096)).time_us
    assert cost[0] > 1.5 * cost[1]


@pytest.mark.parametrize("kind", ["rms_norm", "embedding"])
def test_a_fit_recovers_what_made_the_rows(kind):
    gpu, kernel = kernel_of("a100-80gb-pcie", kind)
    m, n = (grid.ravel() for grid in np.meshgrid(2 ** np.arange(0, 14), [1024, 2048, 4096, 8192]))
    operator = shape(kind, m, n)
    times = elementwise_time(gpu, kernel, operator, cold=False).time_us
    fitted = fit_elementwise(Rows(operator, times), gpu, source="made up")
    assert fitted.fit.heldout_error < 0.03
    assert fitted == fit_elementwise(Rows(operator, times), gpu, source="made up")


def test_every_kind_is_fitted_on_every_card():
    for name in GPUS:
        assert set(load_gpu(name).kernel_set("torch").elementwise) == set(KINDS)


H100 = load_gpu("h100-sxm")
QUERIES = np.array([2, 4, 8])


def k3(gpu: str = "h100-sxm", **sizes: object) -> tuple[CalibratedLatency, Recurrent]:
    made = {"batch": 64, "q_len": QUERIES, "heads": 96, "key_heads": 96, "phase": "verify"} | sizes
    operator = Recurrent(name="kda", kind="kda", dtype="bf16", **made)  # sizes
    return CalibratedLatency(load_gpu(gpu), "sglang", library="vllm"), operator


def test_another_card_of_the_architecture_is_faster_by_its_memory():
    here, there = (latency.time(operator) for latency, operator in (k3(), k3("h200-sxm")))
    ratio = H100.bandwidth_bytes_per_s / load_gpu("h200-sxm").bandwidth_bytes_per_s
    assert np.all(there.time_us >= ratio * here.time_us)
    assert np.all(there.time_us < 0.95 * here.time_us)  # the same kernel, part of which is arithmetic
    assert there.place == here.place
    assert np.all(there.source >= Source.BORROWED)
    assert np.all(there.high_us / there.low_us > here.high_us / here.low_us)


def test_what_nobody_measured_says_so():
    """Mamba-2's state update and the gated delta rule's verification have no rows."""
    latency, operator = k3(q_len=1, phase="generation")
    scan = latency.time(dataclasses.replace(operator, kind="mamba2"))
    measured = latency.time(dataclasses.replace(operator, kind="gdn"))
    assert np.all(scan.source == Source.EXTRAPOLATED)
    assert np.all(scan.high_us / scan.low_us > measured.high_us / measured.low_us)
    verified = latency.time(dataclasses.replace(operator, kind="gdn", phase="verify", q_len=4))
    assert np.all(verified.source >= Source.BORROWED)


def test_a_fit_finds_what_made_its_rows():
    batch, heads = (each.ravel().astype(float) for each in np.meshgrid(2 ** np.arange(11), [8, 16, 32, 48]))
    operator = Recurrent(
        name="gdn", kind="gdn", dtype="bf16", batch=batch, q_len=np.ones_like(batch), heads=heads,
        key_heads=heads, key_dim=np.full_like(batch, 128.0), value_dim=np.full_like(batch, 128.0),
        conv_width=np.full_like(batch, 4.0),
    )  # fmt: skip
    known = StreamKernel(
        ramp_us=4.0, loads={"state": 1.2, "tokens": 1.2}, work={"state": 1.0}, steps={"tokens": 0.1},
        norm=3.0, l2_ratio=2.0, l2_fill=1.0, l2_sharpness=8.0, fit=UNFITTED,
    )  # fmt: skip
    times = stream_time(H100, known, operator, cold=False).time_us
    found = fit_stream(Rows(operator, times), H100, source="made up")
    assert found.fit.heldout_error < 0.02
    cold = stream_time(H100, found, operator).time_us
    assert np.all(cold >= stream_time(H100, found, operator, cold=False).time_us)


def test_the_time_of_a_stream_is_that_of_the_equations():
    """(F1) to (F4) of one launch, number by number; in a step the host is the runtime's, not the kernel's."""
    operator = Recurrent(
        name="gdn", kind="gdn", dtype="bf16", batch=8, q_len=1, heads=32, key_heads=16, key_dim=128,
        value_dim=128, conv_width=4,
    )  # fmt: skip
    kernel = StreamKernel(
        ramp_us=9.0, loads={"state": 1.2, "tokens": 0.5}, work={"state": 2.0}, steps={"tokens": 0.1},
        norm=3.0, l2_ratio=2.0, l2_fill=0.5, l2_sharpness=4.0, host_us=150.0, host_share=0.4, graph_tokens=7,
        fit=UNFITTED,
    )  # fmt: skip
    ran = operator.as_run(H100.architecture)
    bandwidth, peak = H100.bandwidth_bytes_per_s / 1e6, H100.peak("bf16") / 1e6
    memory = (1.2 * float(ran.loads["state"]) + 0.5 * float(ran.loads["tokens"])) / bandwidth
    work, turns = 2.0 * float(ran.work["state"]) / peak, 0.1 * float(ran.steps(H100.sms)["tokens"])
    kept = {"state": 1.0, "tokens": 0.5}  # of a class that is read more than once no more than all is left
    left = sum(kept[name] * float(size) for name, size in ran.footprint.items()) / (0.5 * H100.l2_bytes)
    hit = 1 / (1 + left**4)
    warm = memory * (1 - hit + hit / 2)
    assert 0.01 < hit < 0.99
    device, warm_device = ((each**3 + work**3 + turns**3) ** (1 / 3) for each in (memory, warm))
    start = min(9.0, 5.0 * operator.LAUNCHES)
    measured = ((9.0 + warm_device) ** 8 + (150.0 + 0.4 * warm_device) ** 8) ** (1 / 8)
    held = msgspec.structs.replace(kernel, graph_tokens=8)
    beyond = msgspec.structs.replace(kernel, host_us=40.0)
    short = msgspec.structs.replace(beyond, graph_tokens=0)  # of the kernel itself
    for given_kernel, cold, told in (
        (kernel, True, start + device),
        (kernel, False, measured),
        (held, False, 9.0 + warm_device),
        (beyond, True, start + device),
        (short, True, ((9.0 + device) ** 8 + (40.0 + 0.4 * device) ** 8) ** (1 / 8)),
    ):
        assert float(stream_time(H100, given_kernel, operator, cold=cold).time_us) == pytest.approx(told)


def test_a_floor_that_another_host_leaves_alone_is_the_kernel_s():
    """A GB200 is a B200 with another host: of 23 eager floors most are 1.4 to 2.1 times as long there."""
    floors = {False: [], True: []}
    b200, gb200 = (load_gpu(name).kernels for name in ("b200", "gb200"))
    for held in b200.keys() & gb200.keys():
        for section in ("window", "sparse"):
            one, other = (getattr(kernels[held], section) for kernels in (b200, gb200))
            for key in one.keys() & other.keys():
                pair = one[key], other[key]
                if pair[0].name == pair[1].name and all(each.host_us > 2.0 for each in pair):
                    floor = [np.hypot(each.ramp_us**4, each.host_us**4) ** (1 / 4) for each in pair]
                    floors[all(map(is_eager, pair))].append(floor[1] / floor[0])
    assert min(map(len, floors.values())) > 15
    assert np.median(floors[True]) > 1.4
    assert np.median(floors[False]) == pytest.approx(1.0, abs=0.06)
