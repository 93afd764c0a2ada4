"""Kernels of engines: fits to measured rows, errors on groups that a refit left out and on other GPUs' rows.

    python benchmarks/kernels.py fit experts|serving|mixers|attention [GPU ...]     writes hardware/*.toml
    python benchmarks/kernels.py stored serving|mixers [GPU ...]          what `fit` wrote to hardware/*.toml
    python benchmarks/kernels.py left-out experts|linear|ranks|mixers [GPU ...]   refits without a group
    python benchmarks/kernels.py transfer linear|mixers|spread|formats [GPU ...]  rows that no fit has seen

Held out are models (experts), weight shapes (linear: quantised layers, five minutes), numbers of heads
(mixers, by bands that never saw them) and ranks (collectives of a GB200 by fits to a B200, the same chip and
link). transfer
gives parameters of one GPU to another's rows, with its datasheet (linear: fused attention too, and formats
with scales of blocks, which get kernels of other libraries; mixers: linear attention, windows, sparse
attention, hyper-connections), kernels of experts to rows of expert parallelism, which did not record how
tokens were spread over ranks (spread), and kernels of experts in one format to rows of another that they
stand in for, on the same GPU and on others (formats). It prints the half-width (of the logarithm) that,
added in quadrature to the kernels' own bands, holds 80 % of the rows: the widths of gpus/inheritance.py and
latency/moe.py.
`fit int4` fits the kernel that other libraries and GPUs borrow: an A100's rows of TensorRT-LLM with 32 MB
of weights or more, ramp and bandwidth of its bf16 kernel, since the plugin's launches take 11 to 18 us.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pandas as pd
from common.kernel_rows import (
    SOURCE,
    Measured,
    experts,
    is_sound,
    linear,
    mixers,
    plain_decoding,
    serving_kernels,
)
from common.mixer_rows import left_out_mixers, transfer_mixers
from common.script import ROOT, command_line
from common.study import GPU_OF_ROWS, Beside, left_out_us, measured, table, width_to_add
from operator_rows import GPU_OF_FILE

from medusa_sim.arrays import FloatArray
from medusa_sim.gpus.carried import carried
from medusa_sim.gpus.fitted_experts import ExpertKernel
from medusa_sim.gpus.gpu import Gpu, load_gpu
from medusa_sim.gpus.inheritance import (
    TRANSFER_ERROR,
    TRANSFER_ERROR_ALIKE,
    TRANSFER_ERROR_ATTENTION,
    TRANSFER_ERROR_LIBRARY,
    TRANSFER_ERROR_SCALED,
    TRANSFER_ERROR_SCALED_ALIKE,
)
from medusa_sim.gpus.inheritance import fitted_kernels as stored_kernels
from medusa_sim.gpus.kernels import GemmKernel, computing_as
from medusa_sim.lab.calibrate.collective import fit_collective
from medusa_sim.lab.calibrate.driver import FOLDS
from medusa_sim.lab.calibrate.errors import growth_mape, mape
from medusa_sim.lab.calibrate.fitted_kernels import fitted_kernels
from medusa_sim.lab.calibrate.gemm import fit_gemm, gemm_start, merged_repeats, unscored_gemm
from medusa_sim.lab.calibrate.hardware_file import FittedKernel, write_fits, write_kernels
from medusa_sim.lab.calibrate.moe import refitted_experts
from medusa_sim.lab.calibrate.rows import Rows
from medusa_sim.latency.bands import residual_band
from medusa_sim.latency.calibrated import CalibratedLatency
from medusa_sim.latency.collective import collective_time
from medusa_sim.latency.gemm import gemm_time
from medusa_sim.latency.moe import SPREAD_ERROR, experts_time
from medusa_sim.latency.roofline import RooflineLatency
from medusa_sim.operators.operator import Operator
from medusa_sim.operators.table import operators_of, read_rows
from medusa_sim.report.words.numbers import NOTHING, percent
from medusa_sim.units import HALVES, SCALED

HARDWARE = ROOT / "hardware"
SECTIONS = {
    "serving": ("mla", "collective", "dispatch"),
    "mixers": ("recurrent", "window", "sparse", "hyper"),
}
EXPERTS = (
    "fused MoE layers of published models, tensor parallel 1 to 8, routing balanced and power law, CUDA graph"
)
INT4_SOURCE = (
    "aiconfigurator-core 0.12 (Apache-2.0): A100 SXM, TensorRT-LLM 1.0 weight-only plugin, CUDA graph; "
    "layers of 32 MB of weights or more, with ramp and bandwidth of this set's bf16 kernel, for the plugin's "
    "launches take 11 to 18 us"
)
LARGE_BYTES = 32e6
DECIDING_M = 512
LARGEST_ERROR = 0.6
"""Held-out error beyond which rows are no kernel's: TensorRT-LLM's prompts of MiniMax-M3 on a B200 take 3 to
300 ms whatever their size."""


def _write(card: str, engine: str, found: Iterable[FittedKernel]) -> None:
    kernels = list(found)
    for each in kernels:
        own = each.kernel.fit
        errors = f"fit {own.fit_error:.1%}, held out {own.heldout_error:.1%}"
        print(f"{card} {engine} {each.section}.{each.key}: {own.rows} rows, {errors}", flush=True)
    kept = [each for each in kernels if each.kernel.fit.heldout_error < LARGEST_ERROR]
    write_kernels(HARDWARE, load_gpu(card), engine, kept)


def fit_experts(gpus: list[str]) -> None:
    """Layers of experts of every engine."""
    for gpu, engine, frame in experts(gpus):
        versions = ", ".join(sorted(frame["version"].astype(str).unique()))
        source = f"aiconfigurator-core 0.12 (Apache-2.0): {engine} {versions}, {EXPERTS}"
        _write(gpu.name, engine, fitted_kernels(frame, gpu, source, kernel_set=engine, leave_out=print))


def fit_serving(gpus: list[str]) -> None:
    """Latent attention, collectives and dispatch of every engine."""
    for gpu in gpus or GPU_OF_ROWS.values():
        sets: dict[str, list[FittedKernel]] = defaultdict(list)
        for engine, kernel in serving_kernels(gpu):
            sets[engine].append(kernel)
        for engine, kernels in sets.items():
            _write(gpu, engine, kernels)


def fit_mixers(gpus: list[str]) -> None:
    """Every kernel of `kernels_2026`; whole groups of shapes are held out."""
    for frame in mixers():
        for (gpu, engine), rows in frame.groupby(["gpu", "engine"]):
            if not gpus or gpu in gpus:
                versions = " and ".join(sorted(rows["version"].unique()))
                source = SOURCE.format(gpu=gpu, engine=engine, versions=versions, kernel="kernels of 2026")
                card, own, name = load_gpu(str(gpu)), rows.reset_index(drop=True), str(engine)
                _write(card.name, name, fitted_kernels(own, card, source, kernel_set=name, leave_out=print))


def fit_attention(_: list[str]) -> None:
    """Decoding on Blackwell, which every engine does with trtllm-gen: rows of windows that hold every key."""
    for gpu in ("b200", "gb200"):
        rows = plain_decoding(gpu)
        named = {"gpu": gpu, "engine": "sglang", "versions": ", ".join(sorted(rows["version"].unique()))}
        source = SOURCE.format(**named, kernel="trtllm_mha, windows that hold every key")
        _write(gpu, "sglang", fitted_kernels(rows, load_gpu(gpu), source, kernel_set="sglang"))


def fit_int4(_: list[str]) -> None:
    """The A100's int4 kernel in the set `sglang`, which every GPU borrows."""
    for gpu, _engine, rows in linear(["a100-80gb-sxm"]):
        if rows.operator.form == "int4":
            half = gpu.kernels["sglang"].gemm["bf16"]
            pinned = {name: getattr(half, name) for name in ("ramp_us", "bandwidth_fraction", "memory_norm")}
            start = msgspec.structs.replace(gemm_start("sglang", "int4", gpu), drain_k=0.0, **pinned)
            merged = merged_repeats(rows)
            large = merged.where(merged.operator.weight_bytes >= LARGE_BYTES)
            kernel = fit_gemm(large, gpu, source=INT4_SOURCE, start=start, pinned=tuple(pinned))
            write_fits(HARDWARE / f"{gpu.name}.toml", [(("kernels", "sglang", "gemm", "int4"), kernel)])
            print(f"off by {percent(kernel.fit.fit_error)}, held out {percent(kernel.fit.heldout_error)}")


def stored(study: str, gpus: list[str]) -> None:
    """Fit and held-out errors by GPU, set and group of kernels, weighted by rows; then by group alone."""
    print("as `fit` stored them in hardware/*.toml: nothing is measured or fitted here (`left-out` refits)\n")
    found = pd.DataFrame([
        {"gpu": gpu, "set": name, "group": _group(section, key, getattr(kernel, "name", "")),
         "rows": kernel.fit.rows, "fit": kernel.fit.fit_error, "held": kernel.fit.heldout_error}
        for gpu in gpus or GPU_OF_ROWS.values()
        for name, held in load_gpu(gpu).kernels.items()
        for section in SECTIONS[study]
        for key, kernel in held.table(section).items() if not kernel.fit.inherited_from
    ])  # fmt: skip
    print(table("GPU | set | operator | kernels | rows | fit | held out", 3, [
        (*place, len(own), own.rows.sum(),
         *(percent(float(np.average(own[each], weights=own.rows))) for each in ("fit", "held")))
        for place, own in found.groupby(["gpu", "set", "group"], sort=False)
    ]))  # fmt: skip
    for group, every in found.groupby("group").held:
        errors = f"median {every.median():.1%}, worst {every.max():.1%}"
        print(f"{group:40} {len(every):4} kernels, held out: {errors}")


def _group(section: str, key: str, name: str) -> str:
    words = key.partition("@")[0].split("_")
    if section == "mla":
        scope = "kernel" if "module" not in words else "wide module" if "wideep" in words else "module"
        cache = " fp8 cache" if words[2:3] == ["fp8"] or words[1] == "fp8" else ""
        return f"MLA {words[0]} {scope}{cache}"
    if section == "collective":
        action = "all-reduce" if key.startswith("all_reduce") else "other collectives"
        return f"{action}{' eager' if 'eager' in name else ''}"
    return f"dispatch, combine: {name}" if section == "dispatch" else "_".join([section, *words[:3]])


def rows_of_kernels(
    gpus: list[str], *, spread: bool = False
) -> Iterator[tuple[Gpu, str, ExpertKernel, pd.DataFrame, Rows[Any]]]:
    """GPU, set and format, kernel of the shipped files, and its rows that carry no word in `suspect`."""
    for gpu, engine, frame in experts(gpus, spread=spread):
        clean = frame[is_sound(frame)]
        for key, kernel in gpu.kernels[engine].moe.items():
            of_kernel = clean[clean["kernel"].astype(str) == kernel.name].reset_index(drop=True)
            if kernel.fit.inherited_from or of_kernel.empty:
                continue
            for index, operator in operators_of(of_kernel):
                if operator.form == key.partition("@")[0]:
                    own = of_kernel.iloc[index].reset_index(drop=True)
                    times = own["time_us"].to_numpy(dtype=np.float64)
                    yield gpu, f"{engine}:{operator.form}", kernel, own, Rows(operator, times)


def left_out_experts(gpus: list[str]) -> None:
    """Each model predicted by the shipped kernel, fitted again without that model; its rule stays."""
    lines = []
    for gpu, place, kernel, frame, rows in rows_of_kernels(gpus):
        found = experts_time(gpu, kernel, rows.operator, cold=False, form=place.partition(":")[2])
        models = frame["model"].astype(str)
        alone = len(set(models)) == 1  # then widths are left out where it is fitted
        held_us: FloatArray = experts_time(gpu, kernel, rows.operator, cold=False).time_us
        if not alone:
            refit = partial(refitted_experts, kernel, gpu=gpu)
            held_us = left_out_us(rows, models, refit, partial(experts_time, gpu, cold=False))
        errors = np.abs(held_us / rows.time_us - 1.0)
        by_model = pd.Series(errors).groupby(models).mean()
        layers = frame.groupby(["model", "tp", "distribution"], observed=True).ngroup()
        tokens, layer = (np.asarray(each, dtype=np.int64) for each in (frame["tokens"], layers))
        growth = growth_mape(held_us, rows.time_us, tokens, layer)
        inside = (rows.time_us >= found.low_us) & (rows.time_us <= found.high_us)
        lines.append((
            gpu.name, place, kernel.name, len(errors), len(by_model),
            percent(mape(found.time_us, rows.time_us)),
            percent(kernel.fit.heldout_error if alone else float(errors.mean())),
            NOTHING if alone else f"{percent(float(by_model.max()))} {by_model.idxmax()}",
            percent(growth), percent(float(inside.mean()), 0),
        ))  # fmt: skip
    headers = "GPU | kernels | kernel | rows | models | fit | held out | worst model | growth | in band"
    print(table(headers, 3, lines))


def left_out_linear(gpus: list[str], *, refits: bool = True) -> None:
    """Quantised layers: the fit, and refits without a fifth of the (n, k), from where `calibrate` begins."""
    lines = []
    for gpu, engine, every in linear(gpus):
        rows = merged_repeats(every)
        form = rows.operator.form
        found = gemm_time(gpu, gpu.kernels[engine].gemm[form], rows.operator, cold=False, form=form)
        small = np.asarray(rows.operator.m) <= DECIDING_M
        held = [NOTHING, NOTHING]
        if refits:
            refit = partial(unscored_gemm, gpu=gpu, start=gemm_start(engine, form, gpu))
            groups = rows.labels("n", "k") % FOLDS
            times = left_out_us(rows, groups, refit, partial(gemm_time, gpu, cold=False))
            held = [percent(mape(times[keep], rows.time_us[keep])) for keep in (small | True, small)]
        inside = (found.low_us <= rows.time_us) & (rows.time_us <= found.high_us)
        errors = np.abs(found.time_us / rows.time_us - 1.0)
        roofline = RooflineLatency(gpu).time(rows.operator).time_us
        lines.append((
            gpu.name, f"{engine}:{form}", f"{len(rows.time_us):,}", percent(mape(roofline, rows.time_us), 0),
            percent(float(errors.mean())), percent(float(errors[small].mean())), *held,
            percent(float(errors.max()), 0), percent(float(np.mean(inside)), 0),
        ))  # fmt: skip
    headers = "GPU | kernels | rows | roofline | fit | m <= 512 | held out | held out, m <= 512"
    print(table(f"{headers} | worst row | in band", 2, lines))


def left_out_ranks(_: list[str]) -> None:
    """Four ranks of a GB200 from two and eight of a B200 with the same library."""
    card, lines = load_gpu("b200"), []
    four = {(e.engine, e.kernel, e.version, e.form): e for e in Measured.read("collectives", "gb200")}
    for each in Measured.read("collectives", "b200"):
        other = four.get((each.engine, each.kernel, each.version, each.form))
        if other is None or each.is_few or each.is_other:
            continue
        kernel = fit_collective(each.rows, card, source="held out")
        ranks = np.asarray(other.rows.operator.sizes["ranks"])
        parts = [other.rows.where(ranks == count) for count in (2.0, 4.0)]
        errors = [mape(collective_time(card, kernel, own.operator).time_us, own.time_us) for own in parts]
        lines.append((each.engine, each.version, each.form, *map(percent, errors)))
    print(table("engine | version | collective | 2 ranks (the other machine) | 4 ranks (held out)", 3, lines))


STORED_WIDTHS = {
    (True, "gemm"): TRANSFER_ERROR_ALIKE,
    (False, "gemm"): TRANSFER_ERROR,
    (False, "attention"): TRANSFER_ERROR_ATTENTION,
    (True, "scaled"): TRANSFER_ERROR_SCALED_ALIKE,
    (False, "scaled"): TRANSFER_ERROR_SCALED,
    (False, "scaled, other library"): math.hypot(TRANSFER_ERROR_SCALED, TRANSFER_ERROR_LIBRARY),
}
"""Whether GPUs are of one architecture, family of kernels -> what their bands get (gpus/inheritance.py)."""


def transferred() -> dict[tuple[bool, str], list[Beside]]:
    """Rows by lent kernels, by the keys of STORED_WIDTHS; prints each pair of GPUs and its error."""
    found: dict[tuple[bool, str], list[Beside]] = defaultdict(list)
    for family, place, lender, taker, rows in (*_transfers(), *_scaled_transfers(), *_library_transfers()):
        found[lender.architecture == taker.architecture, family].append(rows)
        print(f"{place:27} {lender.name:>15} -> {taker.name:15} error {rows.error:6.1%}, "
              f"inside the kernel's own band {rows.coverage():4.0%}")  # fmt: skip
    return found


def transfer_linear(_: list[str]) -> None:
    """Pairs of GPUs and their error; then by family and architecture what bands lack and what they get."""
    for place, group in sorted(transferred().items(), key=lambda each: not each[0][0]):
        alike, family = place
        error, own = (np.mean([each.error for each in group]), np.mean([each.coverage() for each in group]))
        kin, stored = "the same" if alike else "another", STORED_WIDTHS.get(place)
        print(f"{family}, {kin} architecture: {len(group)} pairs, error {error:.1%}, inside the own band "
              f"{own:.0%}, for 80% add {width_to_add(group):.2f}"
              + ("" if stored is None else f" (stored: {stored:.2f})"))  # fmt: skip


Pair = tuple[str, str, Gpu, Gpu, Beside]


def _transfers() -> Iterator[Pair]:
    """Every pair of GPUs with rows and a kernel of one library, for linear layers and fused attention."""
    lenders = [load_gpu(name) for name in dict.fromkeys(GPU_OF_FILE.values())]
    for taker, kernel_set, rows in _rows_of_files("*.parquet"):
        operator = rows.operator
        place = f"{operator.FAMILY}.{operator.dtype if operator.kind == 'gemm' else operator.kind}"
        for lender in lenders if operator.FAMILY in ("gemm", "attention") else ():
            kernels = lender.kernels.get(kernel_set)
            kernel = stored_kernels(kernels).get(place) if kernels else None
            if lender.name != taker.name and kernel is not None and not kernel.fit.lender:
                beside = _lent(lender, taker, kernel_set, operator, rows.time_us)
                yield operator.FAMILY, place, lender, taker, beside


def _scaled_transfers() -> Iterator[Pair]:
    """Every pair of GPUs for linear layers in a format with scales of blocks; other libraries' too."""
    gpus = [load_gpu(name) for name in GPU_OF_ROWS.values()]
    for taker, engine, rows in linear([]):
        form = rows.operator.form
        lenders = [(gpu, name) for gpu in gpus if gpu.name != taker.name for name in gpu.kernels]
        for lender, kernel_set in lenders if form in SCALED else ():
            kernel = lender.kernels[kernel_set].gemm.get(form)
            if kernel is not None and not kernel.fit.inherited_from:
                family = "scaled" if kernel_set == engine else "scaled, other library"
                beside = _lent(lender, taker, kernel_set, rows.operator, rows.time_us)
                yield family, f"gemm.{form}", lender, taker, beside


def _library_transfers() -> Iterator[Pair]:
    """Rows of linear layers by the kernel that another library has for their arithmetic on the same GPU.

    Of 16 bits, of which an H100 has rows of two libraries; and CUTLASS's rows of fp8 by what cuBLAS takes for
    16 bits, computing as fp8 does.
    """
    for taker, engine, rows in (*_rows_of_files("*_gemm_*.parquet"), *linear([])):
        operator = rows.operator
        own = taker.kernels[engine].gemm.get(operator.form)
        for kernel_set, held in taker.kernels.items():
            for form, kernel in held.gemm.items():
                is_cublas = operator.form == "fp8" and form in HALVES and kernel_set == engine
                is_other = kernel_set not in (engine, "paper") and {operator.form, form} <= set(HALVES)
                if own is None or kernel.fit.inherited_from or not (is_cublas or is_other):
                    continue
                runs = computing_as(kernel, own) if is_cublas else kernel
                lender = _with_gemm(taker, kernel_set, {operator.form: runs})
                beside = _lent(lender, taker, kernel_set, operator, rows.time_us)
                yield "gemm, other library", f"gemm.{operator.form} {kernel_set}:{form}", taker, taker, beside


def _rows_of_files(pattern: str) -> Iterator[tuple[Gpu, str, Rows[Any]]]:
    """Rows of the files of `measured` by GPU, library and operator."""
    for path in sorted(measured("measured").glob(pattern)):
        card, *_, kernel_set = path.stem.split("_")
        frame = read_rows(path, need_time=True)
        times = frame["time_us"].to_numpy(dtype=np.float64)
        for index, operator in operators_of(frame):
            yield load_gpu(GPU_OF_FILE[card]), kernel_set, Rows(operator, times[index])


def _with_gemm(gpu: Gpu, kernel_set: str, kernels: dict[str, GemmKernel]) -> Gpu:
    held = gpu.kernels[kernel_set]
    own = msgspec.structs.replace(held, gemm={**held.gemm, **kernels})
    return dataclasses.replace(gpu, kernels=gpu.kernels | {kernel_set: own})


def _lent(lender: Gpu, taker: Gpu, kernel_set: str, operator: Operator, time_us: FloatArray) -> Beside:
    held = lender.kernels[kernel_set]
    section = operator.FAMILY
    lent = {key: carried(kernel, lender.chip, taker.chip, key) for key, kernel in held.table(section).items()}
    sets = lender.kernels | {kernel_set: msgspec.structs.replace(held, **{section: lent})}
    carrier = dataclasses.replace(taker, kernels=sets)
    found = CalibratedLatency(carrier, kernel_set, cold=False).time(operator)
    return Beside(time_us / found.time_us, found.low_us / found.time_us, found.high_us / found.time_us)


def transfer_spread(gpus: list[str]) -> None:
    """Rows of expert parallelism by kernel, and what their bands lack."""
    lines, found = [], []
    for gpu, place, kernel, _frame, rows in rows_of_kernels(gpus, spread=True):
        predicted = experts_time(gpu, kernel, rows.operator, cold=False).time_us
        each = Beside(rows.time_us / predicted, *residual_band(kernel.fit.residuals, rows.operator.size))
        found.append(each)
        shares = (percent(each.coverage(more), 0) for more in (0.0, SPREAD_ERROR))
        sizes = predicted.size, percent(each.error), percent(float(each.errors.mean()))
        lines.append((gpu.name, place, kernel.name, *sizes, *shares))
    headers = "GPU | kernels | kernel | rows | error | too long by | in its own band"
    print(table(f"{headers} | in the band of spread experts", 3, lines))
    print(f"\nFor 80 % of the rows of a kernel, on average over kernels, add {width_to_add(found):.2f}")


def transfer_formats(gpus: list[str]) -> None:
    """Rows of experts at decode widths by kernels of other formats and GPUs that may stand in for theirs."""
    lines = []
    lenders = [load_gpu(name) for name in GPU_OF_ROWS.values()]
    for gpu, place, kernel, _frame, every in rows_of_kernels(gpus):
        rows = every.where(np.asarray(every.operator.tokens) <= DECIDING_M)
        for lender in lenders:
            for name, held in lender.kernels.items():
                for form in rows.operator.forms:
                    other = held.moe.get(form)
                    if other is None or other is kernel or other.fit.inherited_from:
                        continue
                    other = carried(other, lender.chip, gpu.chip, form)
                    found = experts_time(gpu, other, rows.operator, cold=False, form=form).time_us
                    bias = float(np.expm1(np.mean(np.log(found / rows.time_us))))
                    lines.append((gpu.name, place, kernel.name, f"{lender.name}:{name}:{form}",
                                  percent(mape(found, rows.time_us)), percent(bias)))  # fmt: skip
    print(table("GPU | rows | their kernel | predicted by | error | bias", 4, lines))


ACTIONS: dict[str, dict[str, Callable[[list[str]], None]]] = {
    "fit": {"experts": fit_experts, "serving": fit_serving, "mixers": fit_mixers,
            "attention": fit_attention, "int4": fit_int4},
    "stored": {study: partial(stored, study) for study in SECTIONS},
    "left-out": {"experts": left_out_experts, "linear": left_out_linear,
                 "ranks": left_out_ranks, "mixers": left_out_mixers},
    "transfer": {"linear": transfer_linear, "mixers": transfer_mixers, "spread": transfer_spread,
                 "formats": transfer_formats},
}  # fmt: skip


def main() -> None:
    """Run a study on the GPUs that are named, by their hardware file; on all without a name."""
    known = sorted(GPU_OF_ROWS.values())
    parser = command_line(__doc__)
    actions = parser.add_subparsers(dest="action", required=True, metavar="|".join(ACTIONS))
    for action, studies in ACTIONS.items():
        told = actions.add_parser(action)
        told.add_argument("study", choices=studies)
        told.add_argument("gpus", nargs="*", metavar="GPU", help=", ".join(known))
    asked = parser.parse_args()
    if unknown := sorted(set(asked.gpus) - set(known)):
        parser.error(f"no rows of {', '.join(unknown)}; GPUs: {', '.join(known)}")
    ACTIONS[asked.action][asked.study](asked.gpus)


if __name__ == "__main__":
    main()
