"""A cached time is the time: whatever matters to an operator matters to the key."""

import dataclasses
import pickle

import numpy as np
import pytest
from msgspec.structs import replace

from medusa_sim.doubts.of_scenario import scenario_doubts
from medusa_sim.errors import SpecError
from medusa_sim.gpus.fitted import Residual
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.gpus.gpu_names import gpu_names
from medusa_sim.gpus.inheritance import (
    TRANSFER_ERROR,
    TRANSFER_ERROR_LIBRARY,
    TRANSFER_ERROR_SCALED,
    TRANSFER_ERROR_SCALED_ALIKE,
    fitted_kernels,
    widen_band,
)
from medusa_sim.latency.cached import CachedLatency, Known
from medusa_sim.latency.calibrated import CalibratedLatency
from medusa_sim.latency.operator_time import OperatorTime, Source
from medusa_sim.operators.attention import Attention
from medusa_sim.operators.columns import OPERATORS
from medusa_sim.operators.elementwise import Elementwise
from medusa_sim.operators.gemm import Gemm
from medusa_sim.operators.kinds import operator_of
from medusa_sim.operators.operator import Operator
from medusa_sim.operators.recurrent import Recurrent
from medusa_sim.operators.window import WindowAttention
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.step import decode_step
from medusa_sim.units import SCALED

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


def test_lines_that_are_known_together_are_asked_once_for_what_another_was():
    asked: list[tuple[float, list[float]]] = []

    class Counting(CalibratedLatency):
        def time(self, operator: Operator) -> OperatorTime:
            asked.append((float(operator.n), np.ravel(operator.m).tolist()))
            return super().time(operator)

    latency = CachedLatency(Counting(load_gpu("a100-80gb-pcie"), "torch"), Known(shares_sizes=True))
    for n, m in ((4096, [1, 64]), (4096, [3, 64]), (11008, [64]), (11008, [1, 3])):
        layer = operator("gemm").with_columns(m=np.array(m), n=n)
        assert np.array_equal(latency.time(layer).time_us, LATENCY.time(layer).time_us)
    assert asked == [(4096, [1, 64]), (4096, [3]), (11008, [1, 3, 64])]


def test_what_is_sent_to_another_process_answers_alike_and_has_no_times():
    alone = LATENCY.time(operator("gemm"))
    latency = CachedLatency(LATENCY, Known(shares_sizes=True), LATENCY.whose)
    unasked = pickle.dumps(latency)
    assert latency.time(operator("gemm")) == alone
    assert len(pickle.dumps(latency)) == len(unasked)
    assert pickle.loads(pickle.dumps(latency)).time(operator("gemm")) == alone  # noqa: S301  # our own


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
    known = Known()
    for latency in models:
        shared = CachedLatency(latency, known, latency.whose)
        try:
            alone = latency.time(asked)
        except SpecError:
            with pytest.raises(SpecError):
                shared.time(asked)
            continue
        found = shared.time(asked)
        assert (found.time_us, found.low_us, found.high_us) == (alone.time_us, alone.low_us, alone.high_us)
        assert (found.source, found.bound) == (alone.source, alone.bound)


def test_new_sizes_of_a_line_count_among_what_is_kept(monkeypatch):
    monkeypatch.setattr("medusa_sim.latency.cached._MOST", 20)
    known = Known()
    latency = CachedLatency(LATENCY, known)
    norm = operator_of("rms_norm", "fp16", {"m": np.arange(1, 7), "n": 4096})
    latency.time(norm)
    assert known.entries == 6 + 6  # the line and the answer
    latency.time(norm.with_columns(m=np.arange(5, 9)))
    assert (known.entries, len(known.lines)) == (12 + 2 + 4, 1)
    latency.time(norm.with_columns(m=np.arange(9, 12)))
    assert (known.entries, len(known.lines), len(known.times)) == (11 + 3, 1, 1)


LAYER = Gemm(name="up", m=np.array([1, 64, 512]), n=11008, k=4096, dtype="fp16")
DECODE = Attention(
    name="decode", kind="decode_attention", batch=4, q_len=1, kv_len=1024, heads=32, kv_heads=8,
    head_dim=128, dtype="fp16",
)  # fmt: skip


def half_width(low: float, high: float) -> float:
    return float(np.log(high / low)) / 2.0


@pytest.mark.parametrize("name", gpu_names())
def test_every_borrowed_band_is_wider_than_its_lenders(name):
    gpu = load_gpu(name)
    for kernels in gpu.kernels.values():
        for place, kernel in fitted_kernels(kernels).items():
            if not kernel.fit.is_borrowed(name):
                continue
            _, set_name, *entry = kernel.fit.inherited_from.split(":")
            section, _, key = place.partition(".")
            held = fitted_kernels(load_gpu(kernel.fit.lender).kernels[set_name])
            lent = held[f"{section}.{entry[0] if entry else key}"].fit.residuals
            for wide, narrow in zip(kernel.fit.residuals, lent, strict=True):
                assert half_width(wide.low, wide.high) > half_width(narrow.low, narrow.high), place
                assert wide.low * wide.high == pytest.approx(narrow.low * narrow.high)


def test_kernels_that_take_longer_than_their_lenders_do_so_by_that_factor():
    card = load_gpu("mi300x")
    held = card.kernels["sglang"]
    linear = held.gemm["fp16"]
    assert linear.fit.slower > 1.0
    quick = replace(linear, fit=replace(linear.fit, slower=1.0))
    sets = card.kernels | {"sglang": replace(held, gemm=held.gemm | {"fp16": quick})}
    alone = dataclasses.replace(card, kernels=sets)
    slow, fast = (CalibratedLatency(each, "sglang").time(LAYER) for each in (card, alone))
    for name in ("time_us", "low_us", "high_us"):
        np.testing.assert_allclose(getattr(slow, name), linear.fit.slower * getattr(fast, name))


def test_faster_memory_shortens_what_memory_bounds_and_not_what_multiprocessors_do():
    """Chunked prefill takes 0.96 to 1.02 of an H100's time on an H200 (aiconfigurator-core 0.12)."""
    prompt = WindowAttention(
        name="w", dtype="bf16", batch=4, q_len=4096, prefix=0, heads=32, kv_heads=4, head_dim=64, window=128,
        phase="context",
    )  # fmt: skip
    states = Recurrent(name="gdn", kind="gdn", dtype="bf16", batch=256, q_len=1, heads=32, key_heads=16)
    lender, taker = (CalibratedLatency(load_gpu(name), "sglang") for name in ("h100-sxm", "h200-sxm"))
    kept, gained = (float(taker.time(each).time_us / lender.time(each).time_us) for each in (prompt, states))
    assert 0.85 < kept < 1.0  # 0.76 if every byte were memory's
    assert 3.35 / 4.8 <= gained < 0.8


def test_a_band_grows_by_its_factor_or_by_the_transfer_error_whichever_is_more():
    band = Residual(size_max=64.0, low=0.9, high=1.1)
    half = half_width(0.9, 1.1)
    by_factor, by_error = widen_band(band, 3.0, 0.05), widen_band(band, 1.0, 0.25)
    assert half_width(by_factor.low, by_factor.high) == pytest.approx(3.0 * half)
    assert half_width(by_error.low, by_error.high) == pytest.approx(np.hypot(half, 0.25))


@pytest.mark.parametrize("form", SCALED)
@pytest.mark.parametrize("name", [name for name in gpu_names() if not name.startswith("cpu-")])
def test_block_scales_of_another_card_or_library_are_less_certain_than_its_own(name, form):
    gpu = load_gpu(name)
    for set_name, kernels in gpu.kernels.items():
        kernel = kernels.gemm.get(form)
        if kernel is None or not kernel.fit.inherited_from:
            continue
        assert kernel.fit.is_borrowed(name)
        lender, lent_set, entry = kernel.fit.inherited_from.split(":")
        far, other_library = lender != name, lent_set != set_name
        alike = load_gpu(lender).architecture == gpu.architecture
        error = np.hypot(
            (TRANSFER_ERROR_SCALED_ALIKE if alike else TRANSFER_ERROR_SCALED) if far else 0.0,
            TRANSFER_ERROR_LIBRARY if other_library else 0.0,
        )
        lent = load_gpu(lender).kernels[lent_set].gemm[entry].fit.residuals
        for wide, narrow in zip(kernel.fit.residuals, lent, strict=True):
            half = half_width(narrow.low, narrow.high)
            assert half_width(wide.low, wide.high) >= np.hypot(half, error) - 1e-9


def test_another_librarys_block_scales_on_the_same_card_are_shown():
    scenario = Scenario(
        gpu="l40s", model="llama-3.1-8b", dtype="fp8_block", drafter="ngram", acceptance="0.5"
    )
    assert scenario.kernel_fits.lenders[:1] == ("l40s:trtllm:fp8_block",)
    assert any("l40s:trtllm" in line for line in scenario_doubts(scenario))
    step = decode_step(scenario.setting, 8, 1024)
    assert step.source == Source.BORROWED
    assert step.high_us / step.low_us > 1.5
    half = scenario.but(dtype="bf16")
    assert "l40s:sglang:bf16" not in half.kernel_fits.lenders  # one library runs both


@pytest.mark.parametrize(("gpu", "source"), [("h100-sxm", Source.CALIBRATED), ("h100-nvl", Source.BORROWED)])
def test_times_of_borrowed_kernels_say_so(gpu, source):
    latency = CalibratedLatency(load_gpu(gpu), "torch")
    assert np.all(latency.time(LAYER).source == source)


def test_weights_and_caches_that_a_kernel_unpacks_are_extrapolated_and_less_certain():
    latency = CalibratedLatency(load_gpu("a40"), "torch")
    packed = latency.time(dataclasses.replace(LAYER, weight_dtype="int8"))
    dense = latency.time(LAYER)
    assert np.all(packed.source == Source.EXTRAPOLATED)
    wide = np.log(packed.high_us / packed.low_us) / 2.0
    narrow = np.log(dense.high_us / dense.low_us) / 2.0
    assert wide == pytest.approx(np.hypot(narrow, TRANSFER_ERROR))
    assert latency.time(dataclasses.replace(DECODE, kv_dtype="fp8")).source == Source.EXTRAPOLATED
    assert latency.time(dataclasses.replace(LAYER, weight_dtype="bf16")).source[0] == Source.CALIBRATED


@pytest.mark.parametrize("gpu", [name for name in gpu_names() if load_gpu(name).architecture == "ampere"])
@pytest.mark.parametrize("runtime", ["vllm", "sglang", "cuda-graph"])
def test_cards_that_multiply_both_halves_alike_take_one_step_for_them(gpu, runtime):
    times = [
        decode_step(
            Scenario(gpu=gpu, model="llama-3.1-8b", runtime=runtime, drafter="eagle3", dtype=dtype).setting,
            np.asarray(64.0),
            np.asarray(1024.0),
        ).cost.time_us
        for dtype in ("fp16", "bf16")
    ]
    assert float(times[0]) == pytest.approx(float(times[1]), rel=1e-9)


@pytest.mark.parametrize(
    ("gpu", "runtime", "place"),
    [
        ("h200-sxm", "vllm-0.15", "h200-sxm:sglang:fp8"),
        ("b200", "vllm-0.15", "b200:sglang:bf16"),
        ("h200-sxm", "sglang-0.5", ""),
    ],
)
def test_who_runs_other_linear_layers_names_the_rows_that_price_them(gpu, runtime, place):
    lenders = Scenario(gpu=gpu, model="llama-3.3-70b", dtype="fp8", tp=2, runtime=runtime).kernel_fits.lenders
    assert [each for each in lenders if each.startswith(f"{gpu}:sglang:")] == [place][: bool(place)]
