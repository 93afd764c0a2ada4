"""Times of linear attention, windows, sparse attention and hyper-connections."""

import dataclasses

import numpy as np

from medusa_sim.calibrate.fit import UNFITTED, Rows
from medusa_sim.calibrate.stream import fit_stream
from medusa_sim.latency.base import Source
from medusa_sim.latency.calibrated import CalibratedLatency
from medusa_sim.latency.stream import stream_time
from medusa_sim.operators.recurrent import Recurrent
from medusa_sim.specs.gpu import load_gpu
from medusa_sim.specs.kernels import StreamKernel

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
    assert there.kernels == here.kernels
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
