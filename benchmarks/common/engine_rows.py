"""Published engine measurements as rows that the step model predicts: what engine_fit.py fits and scores.

The measurements are not part of this project (CONTRIBUTING.md). What a source leaves open was assumed, with
its residuals in sight where the remark says so: contexts, prompt lengths, acceptance lengths.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from common.study import measured, measured_rows, named_rows
from medusa_sim.arrays import FloatArray
from medusa_sim.engines.case import Case, form_of, weight_formats
from medusa_sim.engines.engine import Engine
from medusa_sim.engines.nearness import kernels_half_share, widenings
from medusa_sim.engines.place import Place, sizes_of
from medusa_sim.engines.runtime import Runtime, load_runtime
from medusa_sim.engines.widening import least_half_width
from medusa_sim.gpus.gpu import Gpu, load_gpu
from medusa_sim.latency.cached import cached
from medusa_sim.latency.calibrated import CalibratedLatency
from medusa_sim.models.model import Model
from medusa_sim.models.named import load_model
from medusa_sim.models.parallel import Parallel
from medusa_sim.models.variants import with_dtypes
from medusa_sim.scenario.defaults import LENGTH_CV
from medusa_sim.serving.server import ServedCells, in_server
from medusa_sim.serving.traffic import Traffic, served_length
from medusa_sim.step.compose import overhead_halves, step_us
from medusa_sim.step.drafter import lookups
from medusa_sim.step.drafter.base import Drafter
from medusa_sim.step.drafter.layer import Eagle, Eagle3
from medusa_sim.step.drafting import drafting_times
from medusa_sim.step.host import drafting_pass_us, drafting_us, pieces_us, split_host
from medusa_sim.step.pass_cost import has_whole_graph
from medusa_sim.step.pass_times import PassTimes
from medusa_sim.step.sampling import filter_us, sampled
from medusa_sim.step.setting import Setting
from medusa_sim.step.step import decode_step, speculative_step, verification_step
from medusa_sim.step.verified import Verified

ACCEPTANCE_ERROR = 0.04
"""80 % half-width of a mean of tokens per step that was published of another run than the speedup."""
EAGLE3_VOCAB = 32_000
MATCH_RATE = {"gsm8k": 0.2, "cnn": 0.4}
"""Share of the steps in which an n-gram is found, as a public simulator states it."""
SERVED_MODELS = {
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "Qwen/Qwen3-14B": "qwen3-14b",
    "google/gemma-3-27b-it": "gemma-3-27b",
}
LARGER = {
    "meta-llama/Llama-3.1-70B-Instruct": "llama-3.1-70b",
    "meta-llama/Llama-3.3-70B-Instruct": "llama-3.3-70b",
}
MIXTURES = {
    "Qwen/Qwen3-30B-A3B-Instruct-2507": "qwen3-30b-a3b",
    "Qwen/Qwen3-235B-A22B-Instruct-2507": "qwen3-235b-a22b",
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "openai/gpt-oss-20b": "gpt-oss-20b",
}
MODELS = SERVED_MODELS | LARGER | MIXTURES
"""Models of the ML.ENERGY benchmark: dense ones on one GPU, to whose rows terms are fitted, and others."""
PROMPTS = {"lm-arena-chat": 240.0, "gpqa": 250.0}
"""Mean prompt tokens, which the file has not.

lm-arena-chat makes a request of every turn of a conversation, with the turns and answers before it
(github.com/ml-energy/benchmark, mlenergy/llm/datasets.py). With 94.9 tokens a prompt and 1.3 turns in the
mean (Chatbot Arena, arXiv 2403.04132, table 1), turns falling geometrically, a request has 0.3 earlier turns;
an answer has 375 tokens, as Llama-3.1's to the same prompts: 94.9 + 0.3 (94.9 + 375). gpqa is assumed.
"""
PROMPT_CV = {"lm-arena-chat": 2.0, "gpqa": 0.8}
"""Assumed: three of four conversations have one turn, so that what stands before a turn is 0 or long."""
TYPICAL_PROMPTS = {task: mean / float(np.hypot(1.0, PROMPT_CV[task])) for task, mean in PROMPTS.items()}
"""Median prompt tokens (log-normal), which a median gap sees of a step that carries one."""
DRAFTERS = {"EAGLE": "eagle", "EAGLE-3": "eagle3"}
MT_BENCH_TOKENS = {("eagle", 2): 2.10, ("eagle", 3): 2.29, ("eagle3", 2): 2.33, ("eagle3", 3): 2.93}
"""Tokens of a round on MT-bench by drafts, with the heads of EAGLE's authors: vLLM issue 20780.

Of EAGLE-3 with 2 drafts the mean of that (2.36) and of pull request 17504 (by position: 2.30); with 3, which
SGLang ran, what SGLang counts with that head in both turns of the text (SpecBundle; vLLM 2.79 and 2.72 in
the first 256 tokens of a turn). The shipped profile of EAGLE-3 is of another head, which accepts fewer (2.25,
2.60).
"""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One published cell. formats: of arithmetic, weights, and K and V (None: as the arithmetic).

    kind: `step` (microseconds), `itl` (microseconds, median), `ratio` (throughput over plain decoding, with
    tokens_per_step; counted: in the same run). group: what is left out together, else its source.
    """

    kind: str
    source: str
    cell: str
    runtime: str
    gpu: str = "h100-sxm"
    model: str = "llama-3.1-8b"
    batch: float
    seq_len: float
    measured: float
    drafter: str = "none"
    drafts: int = 0
    tokens_per_step: float = 1.0
    counted: bool = False
    width: int = 1
    match_rate: float = 1.0
    formats: tuple[str, str | None, str | None] = ("bf16", None, None)
    tp: int = 1
    traffic: Traffic | None = None
    weight: float = 1.0
    group: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "group", self.group or self.source)


class Kernels:
    """Device times of a row, and what prompts add to its median gap: no fitted term changes them."""

    def __init__(self, row: Row) -> None:
        self.row, self.setting = row, setting_of(row)
        batch, length = np.asarray(row.batch), np.asarray(row.seq_len)
        self.plain = self.verify = decode_step(self.setting, batch, length)
        self.plain_us = float(self.plain.device_us)
        self.riding_us = 0.0
        self.passes: list[PassTimes] = []
        if row.drafts:
            counts = np.asarray(row.drafts + 1)
            parts = drafting_times(self.setting, batch, length, counts)
            self.verify = verification_step(self.setting, batch, length, counts)
            self.passes = [part for part in parts if [each.work.name for each in part.passes] == ["draft"]]
        if row.traffic is not None:
            self.plain = decode_step(
                self.setting, batch, np.asarray(served_length(self.setting, length, row.traffic))
            )
            self.plain_us = float(self.plain.device_us)
            one = np.ones(())
            cells = ServedCells(
                setting=self.setting,
                requests=batch,
                candidates=1,
                tokens_per_step=one,
                step_us=self.plain.time_us,
                attention_us=self.plain.parts_us["attention"],
            )
            seen = in_server(cells, row.traffic)
            added = sampled(self.setting, batch, 1, one).time_us
            self.riding_us = float(seen.itl_us - self.plain.time_us - added)

    def predicted(self, engine: Engine) -> float:
        """What the row should have measured on an engine with these terms."""
        row = self.row
        host = float(split_host(engine, row.batch).exposed.time_us)
        hidden = engine.hidden_us_per_step.value
        if row.kind == "itl":
            assert row.traffic is not None
            model = self.setting.model
            filtered = filter_us(
                engine, self.setting.latency.gpu, row.batch, model.vocab, top_k=model.samples_top_k
            )
            return _step_us(self.plain_us, hidden, host) + float(filtered) + self.riding_us
        plain = _step_us(self.plain_us, hidden, host + self._pieces_us(engine, self.plain))
        if not row.drafts:
            return plain
        drafting = engine.drafting(row.drafter)
        exposed = float(split_host(drafting, row.batch).exposed.time_us)
        looks_up = row.drafter in lookups()
        exposed += float(drafting_us(engine, row.batch, looks_up=looks_up, width=row.width).time_us)
        exposed += self._pieces_us(engine, self.verify)
        for each in self.passes:
            exposed += float(drafting_pass_us(engine, each.passes[0].work.layers, each.device_us).time_us)
            exposed += self._pieces_us(engine, each)
        device = float(self.verify.device_us + sum(each.device_us for each in self.passes))
        verify = _step_us(device, drafting.hidden_us_per_step.value, exposed)
        return verify if row.kind == "step" else row.tokens_per_step * plain / verify

    def _pieces_us(self, engine: Engine, step: PassTimes) -> float:
        kernels = step.passes[0]
        work = kernels.work
        if has_whole_graph(self.setting.latency, work):
            return 0.0
        pieces = pieces_us(engine, work.layers, work.workload.query_tokens)
        return float(kernels.alone(pieces.time_us))


def _step_us(device: float, hidden: float, exposed: float) -> float:
    return float(step_us(np.asarray(device), np.asarray(hidden), exposed))


def banded(rows: Sequence[Kernels], shipped: FloatArray, left_out: FloatArray) -> pd.DataFrame:
    """Every step of the rows and every published speedup, those that follow from two steps included.

    shipped, left_out: relative errors of the rows by the stored terms and by a fit without their group. A
    mean of tokens per step of another run is good to 4 %; where two steps were measured it cancels.

    Columns: source, cell, group, runtime, drafter, weight, row_kind, kind (`plain`, `round` or
    `speedup`), gpu, model, weights (their format), tp, batch, measured, predicted by the stored terms, low
    and high: half-widths (of the logarithm) of its interval, short and short_out: the logarithms of measured
    over predicted, by the stored terms and by the fit, held and held_out: whether the interval holds the
    measurement around either.
    """
    ratios = np.column_stack([shipped, left_out]) + 1.0
    plain = {
        (kernels.row.source, kernels.row.model, kernels.row.batch): (kernels.row.measured, ratio)
        for kernels, ratio in zip(rows, ratios, strict=True)
        if kernels.row.kind == "step" and not kernels.row.drafts
    }
    found = []

    def add(row: Row, kind: str, measured: float, gain: FloatArray, low: Any, high: Any) -> None:
        short = -np.log(gain)
        inside = (-low <= short) & (short <= high)
        set_up = row.gpu, row.model, row.formats[1] or row.formats[0], row.tp, row.batch
        place = row.source, row.cell, row.group, row.runtime, row.drafter, row.weight, row.kind, kind
        ends = float(low), float(high)
        found.append((*place, *set_up, measured, measured * gain[0], *ends, *short, *inside.tolist()))

    for kernels, ratio in zip(rows, ratios, strict=True):
        row, batch, length = kernels.row, np.asarray(kernels.row.batch), np.asarray(kernels.row.seq_len)
        step = decode = decode_step(kernels.setting, batch, length).cost
        if row.drafts:
            step = speculative_step(kernels.setting, batch, length, np.asarray(row.drafts + 1)).cost
        if row.kind != "ratio":
            low, high = (np.hypot(half, between_of(kernels.setting)) for half in step.halves)
            add(row, "round" if row.drafts else "plain", row.measured, ratio, low, high)
        if row.drafts:
            low, high = overhead_halves(step, decode).of_inverse
            measured, gain = row.measured, ratio
            if row.kind == "ratio" and not row.counted:
                low, high = np.hypot(low, ACCEPTANCE_ERROR), np.hypot(high, ACCEPTANCE_ERROR)
            if row.kind != "ratio":
                of_plain, its_ratio = plain[row.source, row.model, row.batch]
                measured, gain = of_plain / row.measured, its_ratio / ratio
            add(row, "speedup", measured, gain, low, high)
    columns = (
        "source cell group runtime drafter weight row_kind kind gpu model weights tp batch measured "
        "predicted low high short short_out held held_out"
    )
    return pd.DataFrame(found, columns=columns.split())


def between_of(setting: Setting) -> float:
    """What a step of a dense model has for how near its set-up lies to what was measured."""
    runtime, gpu, model = setting.runtime, setting.latency.gpu, setting.model
    assert runtime.engine is not None
    beside = least_half_width(widenings(place_of(runtime, gpu, model)), 1.0, 0.0)
    return math.hypot(beside, runtime.engine.between_share.value)


def place_of(runtime: Runtime, gpu: Gpu, model: Model) -> Place:
    """Where steps of a model that is not split are measured."""
    card = gpu.name, gpu.architecture
    shape = sizes_of(model), form_of(model)
    return Place(runtime.library, runtime.name, *card, weight_formats(model), *shape)


def setting_of(row: Row) -> Setting:
    """GPU, model, engine and drafter of a row."""
    drafter: Drafter | None = None
    if row.drafter == "eagle":
        drafter = Eagle(depth=row.drafts)
    elif row.drafter == "eagle3":
        drafter = Eagle3(depth=row.drafts, width=row.width, draft_vocab=EAGLE3_VOCAB)
    base = plain_setting(row.gpu, row.model, row.runtime, row.formats, row.tp)
    verified = Verified(match_rate=row.match_rate)
    return replace(base, drafter=drafter, compacted_drafts=max(row.drafts, 1), verified=verified)


@lru_cache(maxsize=64)
def plain_setting(
    gpu: str, model: str, runtime: str, formats: tuple[str, str | None, str | None], tp: int = 1
) -> Setting:
    """The same without a drafter."""
    launched, device = load_runtime(runtime), load_gpu(gpu)
    assert launched.engine is not None
    kernels, library = launched.step_kernels(device, formats[0]), launched.library
    priced = with_dtypes(load_model(model), *formats)
    told = kernels_half_share(place_of(launched, device, priced))
    case = Case(form=form_of(priced), gpus=tp, generation=device.architecture)
    gains = {"far_gain_share": launched.engine.far_gain_share.at(case)}
    return Setting(
        latency=cached(CalibratedLatency(device, kernels, library=library, serves=library)),
        model=priced, parallel=Parallel(tp=tp),
        runtime=replace(launched, engine=launched.engine.with_terms(gains), kernels_half_share=told),
        scope="model",
    )  # fmt: skip


def published_rows() -> list[Row]:
    """Every row of the given files that the model describes: dense, one GPU."""
    eagle3 = pd.read_csv(measured("acceptance/batch_speedups_eagle.csv"))
    return [
        *_served(measured_rows("plain_decode_mlenergy")),
        *_reported(measured_rows("issues_and_blogs")),
        *_bench_plain(measured_rows("specdecode_bench_tokens_per_s")),
        *_bench_ratios(measured_rows("specdecode_bench_speedups")),
        *_eagle3_paper(eagle3),
        *_a100(measured_rows("vllm024_a100_eagle3")),
        *_specbundle(measured_rows("specbundle_eagle3")),
        Row(kind="step", source="nightly V0", cell="A100 8B b8", runtime="vllm-v0", gpu="a100-80gb-sxm",
            batch=8.0, seq_len=96.0, measured=12_338.0),
    ]  # fmt: skip


def _served(table: pd.DataFrame) -> Iterator[Row]:
    dense = table[(table.n_gpus == 1) & table.architecture.str.startswith("Dense") & (table.avg_batch < 260)]
    for line in named_rows(dense):
        prompt, output = PROMPTS[line.task], float(line.avg_output_len)
        yield Row(
            kind="itl", source="ML.ENERGY", group=SERVED_MODELS[line.model],
            cell=f"{SERVED_MODELS[line.model]} {line.task} b{line.avg_batch:.0f}", runtime="vllm-0.11",
            model=SERVED_MODELS[line.model], batch=float(line.avg_batch),
            seq_len=prompt + output / 2, measured=1e3 * line.median_itl_ms,
            traffic=Traffic(
                prompt_tokens=prompt,
                output_tokens=output,
                prompt_cv=PROMPT_CV[line.task],
                output_cv=LENGTH_CV,
            ),
        )  # fmt: skip


ONE_REQUEST = (
    ("PR 16937", "llama-3.1-8b", 133.0, (("eagle", 2, 201.69, 2.1), ("eagle", 4, 198.0, 2.39),
                                         ("eagle", 7, 169.92, 2.47), ("eagle3", 2, 220.21, 2.36))),
    ("PR 16035", "llama-3-8b", 128.64, (("eagle", 2, 175.49, 1.89), ("eagle", 4, 165.65, 2.08))),
)  # fmt: skip
"""Tokens/s of one request in vLLM 0.8: plain; drafter, drafts, rate, tokens of a round."""


def _reported(table: pd.DataFrame) -> Iterator[Row]:
    def step(source: str, runtime: str, cell: str, **other: Any) -> Row:
        return Row(kind="step", source=source, runtime=runtime, cell=cell, **other)

    profiled = table[table.source.str.endswith("32374")]
    for batch in sorted(set(profiled.batch_or_concurrency.astype(float))):
        lines = profiled[profiled.batch_or_concurrency.astype(float) == batch]
        place: dict[str, Any] = {
            "batch": batch,
            "seq_len": 250.0,
        }  # no context is stated: chosen with residuals in sight
        yield step(
            "PR 32374", "vllm-0.14", f"b{batch:.0f} K0", measured=1e3 * lines.baseline_value.iloc[0], **place
        )
        for line in named_rows(lines):
            drafts = int(line.k_or_tree[-1])
            yield step("PR 32374", "vllm-0.14", f"b{batch:.0f} K{drafts}", measured=1e3 * line.spec_value,
                       drafter="eagle", drafts=drafts, **place)  # fmt: skip
    place = {"batch": 1.0, "seq_len": 400.0}
    yield step("issue 20780", "vllm-0.10", "K0", measured=7_070.0, **place)
    for line in named_rows(table[table.source.str.endswith("20780")]):
        drafts, drafter = int(line.k_or_tree[-1]), DRAFTERS[line.method]
        # its EAGLE-3 pass takes 1.0 ms, that of specdecode-bench 0.69
        weight = 0.1 if drafter == "eagle3" else 1.0
        round_us = 1e3 * line.spec_value * line.acceptance_length
        yield step("issue 20780", "vllm-0.10", f"{drafter} K{drafts}", drafter=drafter, drafts=drafts,
                   measured=round_us, weight=weight, **place)  # fmt: skip
    for source, model, plain, rounds in ONE_REQUEST:
        place = {"batch": 1.0, "seq_len": 300.0, "model": model}
        yield step(source, "vllm-0.8", "K0", measured=1e6 / plain, **place)
        for drafter, drafts, rate, tokens in rounds:
            yield step(source, "vllm-0.8", f"{drafter} K{drafts}", drafter=drafter, drafts=drafts,
                       measured=1e6 * tokens / rate, **place)  # fmt: skip


def _bench_plain(table: pd.DataFrame) -> Iterator[Row]:
    first = table.groupby("batch_or_concurrency").baseline_value.first()
    for batch, rate in zip(first.index.tolist(), first.tolist(), strict=True):
        # 700 tokens would follow from the data set; 1000 leaves no trend over batches
        yield Row(kind="step", source="specdecode-bench plain",
                  cell=f"qwen3-8b b{batch}", runtime="vllm-0.10", model="qwen3-8b", batch=float(batch),
                  seq_len=1000.0, measured=1e6 * batch / rate)  # fmt: skip


def _bench_ratios(table: pd.DataFrame) -> Iterator[Row]:
    tokens = {("gsm8k", "EAGLE-3"): 2.377, ("cnn", "EAGLE-3"): 2.318, ("gsm8k", "ngram"): 1.165,
              ("cnn", "ngram"): 1.333}  # fmt: skip
    lengths = {"gsm8k": 177.6, "cnn": 999.0}
    for line in named_rows(table):
        data = "gsm8k" if "GSM8K" in line.note else "cnn"
        drafter = "ngram" if line.method == "ngram" else "eagle3"
        yield Row(
            kind="ratio", source=f"specdecode-bench {drafter}",
            cell=f"{data} b{line.batch_or_concurrency}", runtime="vllm-0.10",
            batch=float(line.batch_or_concurrency), seq_len=lengths[data], measured=float(line.speedup),
            drafter=drafter, drafts=3, tokens_per_step=tokens[data, line.method],
            match_rate=MATCH_RATE[data] if drafter == "ngram" else 1.0,
        )  # fmt: skip


def _a100(table: pd.DataFrame) -> Iterator[Row]:
    """Median gaps. Prompts of 550 tokens, which times to the first token ask for at three formats' speeds."""
    for line in named_rows(table[table.n_runs == 3]):
        weights = "int4" if "awq" in line.dtype else None
        cache = "fp8" if line.kv_dtype == "fp8" else None
        name = "AWQ" if weights else "fp8 cache" if cache else "fp16"
        drafts = int(line.K)
        yield Row(
            kind="step", source=f"A100 {name}", group=f"A100 {name} b{line.concurrency}",
            cell=f"b{line.concurrency} K{drafts}", runtime="vllm-0.24", gpu="a100-80gb-sxm",
            formats=("fp16", weights, cache), batch=float(line.concurrency), seq_len=680.0,
            measured=1e3 * line.itl_p50_ms, drafter="eagle3" if drafts else "none", drafts=drafts,
        )  # fmt: skip


SPECBUNDLE_MODELS = {
    "Llama-3.1-8B-Instruct": ("llama-3.1-8b", 1, 1.0),
    "Qwen3-30B-A3B-Instruct-2507": ("qwen3-30b-a3b", 4, 0.12),
}
"""Models of SpecBundle, the GPUs that their plain rate asks for (it states none), and what a row counts.

Rounds of mixtures err by 14 % in other sources (`moe_speculation.py`), alike in all cells of a source, where
a ratio is known to 5: nine such cells count as one that errs so, 5 / 14 / 3 each.
"""


def _specbundle(table: pd.DataFrame) -> Iterator[Row]:
    for name, own in table.groupby("model", sort=False):
        model, tp, weight = SPECBUNDLE_MODELS[str(name)]
        for line, gain in zip(named_rows(own), gains_of_decoding(own), strict=True):
            shape = "chains" if line.topk == 1 else "trees"
            yield Row(
                kind="ratio", source=f"SpecBundle {model} {shape}", group=f"SpecBundle {model}",
                cell=f"{line.benchmark} b{line.batch} K{line.steps}", runtime="sglang-0.5", gpu="h200-sxm",
                model=model, tp=tp, batch=float(line.batch), seq_len=600.0, measured=gain,
                drafter="eagle3", drafts=int(line.steps), width=int(line.topk), weight=weight,
                tokens_per_step=float(line.accept_length), counted=True,
            )  # fmt: skip


def gains_of_decoding(runs: pd.DataFrame) -> list[float]:
    """Speedups of decoding alone, of rates over whole requests that one model was run with.

    A request also takes its prompt and its way, with drafts or without: c for each token of its output, which
    is the same in every run of a benchmark. A round of a tokens seems to take round + a c then. Drafters that
    are accepted more and less tell c from the round: least squares of relative errors, with one round for
    each shape of drafts (none: the plain step, a = 1) and one c for each benchmark.
    """
    plain = runs.drop_duplicates("benchmark")
    plain = plain.assign(steps=0, topk=0, accept_length=1.0, spec_tok_s=plain.baseline_tok_s)
    every = pd.concat([runs, plain])
    seconds = (every.batch * every.accept_length / every.spec_tok_s).to_numpy()
    shapes = pd.get_dummies(every.steps.astype(str) + " by " + every.topk.astype(str))
    beside = pd.get_dummies(every.benchmark).mul(every.accept_length, axis=0)
    parts = np.hstack([shapes, beside]).astype(float)
    found, _ = nnls(parts / seconds[:, None], np.ones(seconds.size))
    decoding = seconds - parts[:, shapes.shape[1] :] @ found[shapes.shape[1] :]
    step = dict(zip(plain.benchmark, decoding[len(runs) :], strict=True))
    return (runs.accept_length * runs.benchmark.map(step) / decoding[: len(runs)]).tolist()


def _eagle3_paper(table: pd.DataFrame) -> Iterator[Row]:
    for line in named_rows(table):
        is_sglang = "SGLang" in line.setup
        drafter, drafts = DRAFTERS[line.method], 3 if is_sglang else 2
        source = f"{'SGLang' if is_sglang else 'vLLM A100'} {drafter}"
        # that the EAGLE rows of table 5 ran in V0 and the EAGLE-3 rows in 0.8 is an inference
        vllm = "vllm-v0" if drafter == "eagle" else "vllm-0.8"
        yield Row(
            kind="ratio", source=source, cell=f"b{line.batch_or_concurrency}",
            runtime="sglang-0.4" if is_sglang else vllm, gpu="h100-sxm" if is_sglang else "a100-80gb-sxm",
            batch=float(line.batch_or_concurrency), seq_len=400.0,
            measured=float(line.throughput_ratio_vs_no_spec), drafter=drafter, drafts=drafts,
            tokens_per_step=MT_BENCH_TOKENS[drafter, drafts], weight=0.5,
        )  # fmt: skip
