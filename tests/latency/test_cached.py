"""A cached time is the time: whatever matters to an operator matters to the key."""

import dataclasses

import numpy as np
import pytest

from medusa_sim.errors import SpecError
from medusa_sim.latency.base import OperatorTime
from medusa_sim.latency.by_name import Answers, CachedLatency, cached
from medusa_sim.latency.calibrated import CalibratedLatency
from medusa_sim.operators.columns import OPERATORS
from medusa_sim.operators.kinds import operator_of
from medusa_sim.operators.operator import Attention, Elementwise, Gemm, Operator
from medusa_sim.specs.gpu import load_gpu

LATENCY = CalibratedLatency(load_gpu("a100-80gb-pcie"), "torch")
SIZES = {"m": 8, "n": 4096, "k": 512, "batch": 2, "q_len": 1, "kv_len": 1024, "heads": 32, "kv_heads": 8,
         "head_dim": 128, "tokens": 16, "hidden": 2048, "inter": 768, "experts": 128, "topk": 8,
         "local_experts": 64, "hit": 40, "rows": 64, "padded16": 640, "padded64": 2560,
         "padded128": 5120, "message_bytes": 65536, "ranks": 8, "nodes": 1, "sms": 24,
         "gated": 1, "key_heads": 16, "key_dim": 64, "value_dim": 96, "conv_width": 4, "prefix": 2048,
         "window": 512, "q_rank": 1536, "index_heads": 4, "streams": 4, "sites": 2,
         "nope_dim": 192, "v_dim": 256}  # fmt: skip
FUSED = [
    kind
    for kind, made in OPERATORS.items()
    if made in (Gemm, Attention, Elementwise) and kind not in ("qk", "pv")
]


def operator(kind: str, **sizes: int) -> Operator:
    columns = {name: SIZES[name] for name in OPERATORS[kind].COLUMNS}
    return operator_of(kind, "fp16", columns | sizes)


@pytest.mark.parametrize("kind", OPERATORS)
def test_each_field_of_an_operator_but_its_name_changes_the_key(kind):
    base = operator(kind)
    assert dataclasses.replace(base, name="other").key == base.key
    for field in dataclasses.fields(base):
        if field.name in base.COLUMNS:
            other = base.with_columns(**{field.name: 2 * SIZES[field.name]})
        elif field.name in base.LABELS:
            other = dataclasses.replace(base, **{field.name: not getattr(base, field.name)})
        elif field.name in ("dtype", "weight_dtype", "kv_dtype"):
            other = dataclasses.replace(base, **{field.name: "fp8"})
        else:
            assert field.name in ("name", "kind")
            continue
        assert (*other.key, *other.axes) != (*base.key, *base.axes), field.name


def test_no_two_kinds_share_a_time():
    latency = CachedLatency(LATENCY)
    times = {kind: float(latency.time(operator(kind)).time_us) for kind in FUSED}
    for kind, time_us in times.items():
        assert time_us == float(LATENCY.time(operator(kind)).time_us)


def test_a_grid_of_token_counts_is_the_same_as_each_alone():
    m = np.arange(1, 17)[:, None] * np.arange(1, 65)
    base = operator("gemm").with_columns(m=m)
    whole, alone = cached(LATENCY).time(base), LATENCY.time(base)
    for name in ("time_us", "low_us", "high_us", "bound", "source"):
        assert np.array_equal(getattr(whole, name), getattr(alone, name))


@pytest.mark.parametrize("kind", ["gemm", "rms_norm"])
def test_grids_that_overlap_are_the_same_as_each_alone_and_no_size_is_computed_twice(kind):
    computed: list[float] = []

    class Counting(CalibratedLatency):
        def time(self, operator: Operator) -> OperatorTime:
            computed.extend(np.ravel(operator.axes[0]).tolist())
            return super().time(operator)

    latency = CachedLatency(Counting(load_gpu("a100-80gb-pcie"), "torch"))
    grids = [np.array([64, 3, 17]), np.arange(1, 30)[:, None] * np.array([1, 2, 3.5]), np.asarray(3.0)]
    for m in grids:
        base = operator(kind).with_columns(m=m)
        whole, alone = latency.time(base), LATENCY.time(base)
        for name in ("time_us", "low_us", "high_us", "bound", "source"):
            assert np.array_equal(getattr(whole, name), np.broadcast_to(getattr(alone, name), m.shape)), name
    assert sorted(computed) == np.unique(np.concatenate([m.ravel() for m in grids])).tolist()


@pytest.mark.parametrize("gpu", ["h100-sxm", "b200"])
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
@pytest.mark.parametrize("kind", OPERATORS)
def test_models_that_share_answers_answer_as_each_alone(gpu, dtype, kind):
    card = load_gpu(gpu)
    libraries = [name for name in card.kernels if card.kernels[name].gemm]
    models = [
        CalibratedLatency(card, kernels, library=library, serves=library)
        for kernels in libraries
        for library in ("", "vllm", "sglang", "trtllm")
    ]
    columns = {name: SIZES[name] for name in OPERATORS[kind].COLUMNS}
    asked = operator_of(kind, dtype, columns)
    answers = Answers()
    for latency in models:
        shared = CachedLatency(latency, answers, latency.whose)
        shared.expect([asked])
        try:
            alone = latency.time(asked)
        except SpecError:
            with pytest.raises(SpecError):
                shared.time(asked)
            continue
        found = shared.time(asked)
        assert (found.time_us, found.low_us, found.high_us) == (alone.time_us, alone.low_us, alone.high_us)
        assert (found.source, found.bound) == (alone.source, alone.bound)


def test_what_is_expected_is_computed_with_the_first_that_is_asked():
    computed: list[int] = []

    class Counting(CalibratedLatency):
        def time(self, operator: Operator) -> OperatorTime:
            computed.append(np.size(operator.axes[0]))
            return super().time(operator)

    latency, m = CachedLatency(Counting(load_gpu("a100-80gb-pcie"), "torch")), np.arange(1.0, 9.0)
    latency.expect(operator("gemm").with_columns(m=m * share) for share in (1.0, 100.0))
    for share in (1.0, 100.0):
        asked = operator("gemm").with_columns(m=m * share)
        assert np.array_equal(latency.time(asked).time_us, LATENCY.time(asked).time_us)
    assert computed == [16]
