r"""Speeds with speculation that engines' and vendors' own pages published: errors, signs, bands.

    python benchmarks/published.py            # errors by engine, drafter and quantity; half a minute
    python benchmarks/published.py --rows     # every row as well
    python benchmarks/published.py --write    # `published-rows` of docs/validation-engines.md
    python benchmarks/published.py --cookbook # servers of SGLang's cookbook (serving/sglang_cookbook)

No fit saw these rows: they say what a stranger's set-up gets. (Terms were set by hand with SET_BY in sight.)
What a source leaves open is assumed here, once for all rows: lengths in LENGTHS, the drafts and tokens of a
round in DRAFTS and the profile that ships, counts of trees as their code draws them. An assumed number of
tokens a round widens a speedup's interval by ASSUMED, one that is given by GIVEN.

A time counts in the means where its source states the GPU with its form, the format of weights, the lengths
of requests and, of a round, the tree (UNSTATED: words that tell that it does not). Most of that cancels in a
speedup: all of them count.

Servers of the cookbook had requests of one length (`--random-range-ratio 1.0`), which all begin at once and
stay in step: N prompts, then N outputs, as in `medusa-sim load --users N --length-cv 0`. What a row does not
tell follows from what stands beside: throughput x latency = requests x tokens gives the GPUs, and a first
token far below (1 + N) / 2 times a lone one tells that prompts lay in the cache.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from common.measured_pairs import PAIR_OF_STEP, format_of, pairs_of
from common.pages import filled, write_section
from common.script import command_line
from common.study import mean_bias_worst, measured, measured_rows, named_rows, table

import medusa_sim as ms
from medusa_sim.arrays import Halves
from medusa_sim.engines.runtime import Runtime, load_runtime
from medusa_sim.errors import MedusaSimError
from medusa_sim.step.compose import overhead_halves
from medusa_sim.step.drafter.layer import Eagle, Eagle3, Mtp
from medusa_sim.step.step import decode_step, speculative_step

Launch: TypeAlias = Callable[[str], Runtime]
Ends: TypeAlias = tuple[float, float]
GIVEN, ASSUMED = 0.04, 0.15
"""80 % half-width of tokens a round, as they were given or as they are assumed."""
ENGINES = {"gpt-fast": "cuda-graph", "hf-eager": "hf-eager"}
"""Engines without versions, by the runtime that runs what they run."""
VERSIONS = (
    (r"0\.4\.x era|\b0\.4\.\d", "sglang-0.4"),
    (r"main 2025-03", "sglang-0.4"),
    (r"\bV0\b", "vllm-v0"),
    (r"main 2026-0[23]", "sglang-0.5.9"),
)
"""Words of `version` that are no number, and what they mean; the first that fits."""
FORMATS: dict[str, dict[str, str | None]] = {
    "fp8": {"dtype": "fp8"},
    "fp16": {"dtype": "fp16"},
    "int4 weights": {"weight_dtype": "int4"},
    "int8 weights": {"weight_dtype": "int8"},
    "nvfp4": {"weight_dtype": "nvfp4"},
}
"""`precision` -> formats, where they are not the model's own."""
LENGTHS = (
    (r"1000/1000, 48 running", (502, 500)),
    (r"1000/1000", (610, 422)),
    (r"1024/1024", (197, 278)),
    (r"1052/258", (1052, 258)),
    (r"342/281", (342, 281)),
    (r"250/220", (250, 220)),
    (r"5/200", (5, 200)),
    (r"ShareGPT", (250, 220)),
    (r"", (150, 350)),
)
"""`context` -> tokens of a prompt and an output. Those of SGLang's cookbook are totals of its runs: of ten
random requests, and of ShareGPT where a command names lengths and no data set."""
DRAFTERS = {"sps": "draft-model", "pld": "ngram", "eagle2": "eagle"}
DRAFT_MODELS = {"vicuna-7b": "llama-68m", "llama-3.3-70b": "llama-3.2-1b", "llama-2-70b": "llama-2-7b"}
DRAFTS = {"best": 3, "10?": 10, "5?": 5, "6 tokens": 5, "11 tokens": 10}
TREES = {
    "2 steps topk4 4 tokens": (2, 4, 4),
    "tree, not given": (5, 8, 32),
    "tree 5-8-64": (5, 8, 64),
    "tree 8-?-?": (8, 8, 32),
    "tree 5-?-?": (5, 8, 32),
    "26 tokens": (5, 4, 26),
    "60 tokens": (6, 10, 60),
}
"""Levels, nodes that a pass reads, verified tokens."""
STATED: dict[str, dict[str, Any]] = {
    "cook-dsv3-mi300x-c1": {"dp_attention": True},
    "cook-kimik25-h200-c1-plain": {"runtime": "sglang-0.5.6"},
}
"""What the page of a row states beside its columns: `--dp 8 --enable-dp-attention`; version 0.5.6.post2."""
SET_BY = {
    "cook-qwen3next-b200-c1-plain": ("plain",),
    "sglang-pr19952-q35-27b-dflash-c1": ("plain",),
    "sglang-pr19952-q35-27b-dflash-c32": ("plain", "speedup"),
    "cook-dsv32-b200-c1": ("round",),
    "cook-glm5-h200-b48": ("round",),
}
"""Rows and what of them was in sight when terms of SGLang were set: launches of hybrids' layers and prompts,
and what the drafter's pass of sparse attention plans on the host (`plan_us_per_pass`)."""
UNSTATED = (
    ("note", r"GPU not|GPU \w+ or|form (of the A100 )?not given", "GPU", ("plain", "round")),
    ("precision", r"not stated", "format", ("plain", "round")),
    ("context", r"not given", "lengths", ("plain", "round")),
    ("drafts", r"\?|not given", "tree", ("round",)),
)
"""Column, words in it that tell what a source leaves open, what that is, and of which times."""
FAR = 0.15
"""Errors of times beyond it are told one by one."""
WHY = {
    "sglang-pr3582-dsv3-tree": "February 2025: latent attention and products of fp8 blocks are Triton's, "
    "before the kernels whose rows are priced (DeepGEMM, FlashMLA, FlashAttention-3). Its speedup is right",
    "cook-dsv3-mi300x-c1": "no kernel of AMD was measured, nor data-parallel attention there. Its page tells "
    "60 ms between chunks, a second to the first of 200 tokens: probably no graphs (what is missing is 32 us "
    "for each of 975 kernels of a verification). Answers about rounds on such GPUs name it",
    "vllm-minimaxm25-tp4-c1-al4": "acceptance is forced, the GPU is not named",
    "vllm-glm46-h200-c1": "a deployment's own chats. Its speedup is right",
    "pard-a100-l31-eagle3-mtbench": "16 GB in 12.8 ms are 81 % of the bandwidth of an A100 with 40 GB, 62 % "
    "of one with 80 GB, which is priced",
    "pard-a100-q3-eagle3-mtbench": "as with Llama",
    "nv-llama33-70b-h200-draft1b": "2024's compiled engine, priced as that of 2026",
    "gptfast-llama-2-70b-tp1-int4-plain": "unknown: 7B with such weights is within 1 %",
    "gptfast-70b-int4-draft7b-int4": "the same cell",
}
"""What is known of times that are far off."""
COOKBOOK_GPUS = {
    "B300": "b300", "B200": "b200", "H200": "h200-sxm", "DGX Spark GB10": "gb10", "MI350X": "mi355x"
}  # fmt: skip
"""GPUs of the cookbook; the MI350X is an MI355X with 8 % less arithmetic and as much bandwidth."""
COOKBOOK_MODELS: dict[tuple[str, str], dict[str, Any]] = {
    ("Kimi-K3", "mxfp4"): {"model": "kimi-k3"},
    ("Kimi-K3", "nvfp4"): {"model": "kimi-k3", "dtype": "nvfp4"},
    ("Ling-3.0-flash", "bf16"): {"model": "ling-3.0-flash"},
    ("Ling-3.0-flash", "int4"): {"model": "ling-3.0-flash", "weight_dtype": "int4"},
    ("Ling-3.0-flash", "mxfp4"): {"model": "ling-3.0-flash-mxfp4"},
    ("Ling-3.0-tiny", "bf16"): {"model": "ling-3.0-tiny"},
    ("Ling-3.0-tiny", "fp8"): {"model": "ling-3.0-tiny", "dtype": "fp8_block"},
    ("Ling-3.0-tiny", "int4"): {"model": "ling-3.0-tiny", "weight_dtype": "int4"},
}
"""Model and format of the cookbook -> arguments."""
CACHED = 0.5
"""Share of the wait of requests in step below which a first token says that prompts lay in the cache."""
NGRAM_MATCH = 0.75
"""Share of the steps in which prompt look-up finds drafts on Spec-Bench: assumed."""


@dataclass(frozen=True, kw_only=True)
class Scored:
    """A row priced: milliseconds of plain steps and rounds, the speedup; ends of 80 % intervals over each."""

    plain_ms: float
    round_ms: float
    speedup: float
    of_plain: Ends
    of_round: Ends
    of_speedup: Ends


def runtime_of(line: Any) -> str:
    """The runtime of a row by its engine's version."""
    if "runtime" in STATED.get(line.id, {}):
        return str(STATED[line.id]["runtime"])
    if line.engine in ENGINES:
        return ENGINES[line.engine]
    version = str(line.version)
    for words, runtime in VERSIONS:
        if runtime.startswith(line.engine) and re.search(words, version):
            return runtime
    found = re.search(r"\d+\.\d+(\.\d+)?", version)
    return f"{line.engine}-{found[0]}" if found else str(line.engine)


def lengths_of(line: Any) -> tuple[int, int]:
    """Tokens of a prompt and of an output."""
    return next(lengths for words, lengths in LENGTHS if re.search(words, str(line.context)))


def tokens_of(line: Any) -> tuple[float | None, float]:
    """(tokens of a round, None where a profile says them; their half-width)."""
    if not math.isnan(line.acceptance_length):
        return float(line.acceptance_length), GIVEN
    found = re.search(r"\d+\.\d+", str(line.al_source))
    return (float(found[0]) if found else None), ASSUMED


def unstated(line: Any, what: str) -> str:
    """What the source of a time leaves open that it depends on, in words."""
    found = [
        named
        for column, words, named, times in UNSTATED
        if what in times and re.search(words, str(getattr(line, column)))
    ]
    return ", ".join(found)


def scenario_of(line: Any, launch: Launch, **more: Any) -> ms.Scenario:
    """The set-up of a row."""
    drafter = DRAFTERS.get(line.drafter, line.drafter)
    given: dict[str, Any] = {
        "gpu": line.gpu, "model": line.model, "runtime": launch(runtime_of(line)),
        "tp": int(line.n_gpus),
        "drafter": "eagle3" if drafter == "none" else drafter,
        **FORMATS.get(line.precision, {}), **STATED.get(line.id, {}), **more,
    }  # fmt: skip
    if given["drafter"] == "draft-model":
        given["draft_model"] = DRAFT_MODELS[line.model]
        if line.engine == "hf-eager":
            given["draft_runtime"] = "hf-eager"
    if line.engine == "gpt-fast" and "weight_dtype" not in given:
        given["dtype"] = line.precision
    return ms.Scenario(**given)


def chain(line: Any, launch: Launch) -> Scored:
    """A row of chains or of plain decoding, through the server."""
    tokens, width = tokens_of(line)
    prompt, output = lengths_of(line)
    drafts = 0 if line.drafter == "none" else int(DRAFTS.get(line.drafts, line.drafts))
    more: dict[str, Any] = {"prompt_tokens": prompt, "output_tokens": output}
    if not drafts:
        more["acceptance"] = "0.7"
    elif tokens is not None:
        more["acceptance"] = f"{min(tokens, drafts + 0.999):g}@{drafts}"
    if line.drafter == "pld":
        more["match_rate"] = NGRAM_MATCH
    scenario = scenario_of(line, launch, **more)
    counts = [1, drafts + 1] if drafts else [1]
    found = scenario.sweep([int(line.batch)], prompt + output // 2, counts)
    plain, last = found.iloc[0], found.iloc[-1]
    tau = float(last.tokens_per_step)
    gain = Halves.within(last.speedup_low, last.speedup, last.speedup_high)
    of_plain, of_round = (
        Halves.within(cell.verify_low_us, cell.verify_step_us, cell.verify_high_us) for cell in (plain, last)
    )
    counts_prompts = re.search("incl. TTFT|includes prompts", f"{line.unit} {line.note}") is not None
    plain_us, last_us = (
        1e6 * float(line.batch) / float(cell.tokens_per_s) if counts_prompts else float(cell.tpot_us)
        for cell in (plain, last)
    )
    ratio = plain_us / last_us
    return Scored(
        plain_ms=plain_us / 1e3,
        round_ms=last_us * tau / 1e3,
        speedup=ratio,
        of_plain=ends(of_plain),
        of_round=ends(of_round, GIVEN),
        of_speedup=ends(gain, width),
    )


def tree(line: Any, launch: Launch) -> Scored:
    """A row of a tree, whose step is priced alone."""
    tokens, width = tokens_of(line)
    assert tokens is not None
    prompt, output = lengths_of(line)
    scenario = scenario_of(line, launch, acceptance="0.7", chain_only=False)
    depth, nodes, counts = TREES.get(line.drafts, (4, 1, 64))
    kinds: dict[str, Any] = {"eagle": Eagle, "eagle2": Eagle, "eagle3": Eagle3, "mtp": Mtp}
    if line.drafter == "medusa":
        drafter = scenario.options(counts)[-1].drafter
    else:
        drafter = kinds[line.drafter](depth=depth, width=nodes)
    setting = replace(
        scenario.setting, drafter=drafter, served_drafter=DRAFTERS.get(line.drafter, line.drafter)
    )
    batch, length = np.asarray(float(line.batch)), np.asarray(float(prompt + output // 2))
    plain = decode_step(setting, batch, length).cost
    step = speculative_step(setting, batch, length, np.asarray(counts)).cost
    return Scored(
        plain_ms=float(plain.time_us) / 1e3,
        round_ms=float(step.time_us) / 1e3,
        speedup=tokens * float(plain.time_us / step.time_us),
        of_plain=ends(plain.halves),
        of_round=ends(step.halves, GIVEN),
        of_speedup=ends(overhead_halves(step, plain).of_inverse, width),
    )


def ends(halves: Halves, width: float = 0.0) -> Ends:
    """Ends of an 80 % interval over its value. width: half-width of tokens of a round, which it holds too."""
    down, up = (math.hypot(float(half), width) for half in halves)
    return math.exp(-down), math.exp(up)


def milliseconds(line: Any, rate: float, tokens: float) -> float:
    """A step's milliseconds from a rate of all requests; of each where the unit says so."""
    return 1e3 * float(line.batch) * tokens / rate


def compared(launch: Launch = load_runtime) -> pd.DataFrame:
    """A line of every row and quantity: measured, predicted, error, whether it counts and its band holds.

    launch: a runtime by its name.
    """
    found: list[dict[str, Any]] = []
    for line in named_rows(measured_rows("published_2026")):
        try:
            is_tree = line.drafts in TREES or line.drafter == "medusa"
            scored = (tree if is_tree else chain)(line, launch)
        except MedusaSimError as error:
            print(f"{line.id}: refused: {error}")
            continue
        place = {
            "id": line.id, "url": line.url, "engine": line.engine, "runtime": runtime_of(line),
            "drafter": line.drafter,
            "gpu": line.gpu, "model": line.model, "precision": line.precision, "gpus": int(line.n_gpus),
            "requests": line.batch,
        }  # fmt: skip
        found += (place | quantity for quantity in quantities(line, scored))
    rows = pd.DataFrame(found)
    rows["set_by"] = [what in SET_BY.get(row, ()) for row, what in zip(rows.id, rows.what, strict=True)]
    rows["counts"] = (rows.unstated == "") & ~rows.set_by
    rows["error"] = rows.predicted / rows.measured - 1.0
    return rows


def quantities(line: Any, scored: Scored) -> Iterator[dict[str, Any]]:
    """The plain step, the round and the speedup of a row, each where its source tells it."""
    tokens, _ = tokens_of(line)
    tells_rate = "tok/s" in str(line.unit)

    def quantity(what: str, measured: float, predicted: float, band: Ends, **more: Any) -> dict[str, Any]:
        low, high = (predicted * end for end in band)
        held = low <= measured <= high
        place = {"what": what, "measured": measured, "predicted": predicted, "low": low, "high": high}
        return place | {"held": held, "unstated": "" if more else unstated(line, what), **more}

    if tells_rate and not math.isnan(line.plain) and "open loop" not in line.unit:
        yield quantity("plain", milliseconds(line, line.plain, 1.0), scored.plain_ms, scored.of_plain)
    round_ms = line.round_ms
    if math.isnan(round_ms) and tells_rate and not math.isnan(line.spec) and tokens is not None:
        round_ms = milliseconds(line, line.spec, tokens)
    if not math.isnan(round_ms) and not math.isnan(line.acceptance_length):
        yield quantity("round", round_ms, scored.round_ms, scored.of_round)
    if not math.isnan(line.speedup):
        sign = (line.speedup > 1.0) == (scored.speedup > 1.0)
        given = line.al_source == "given"
        yield quantity("speedup", line.speedup, scored.speedup, scored.of_speedup, sign=sign, given=given)


def cookbook(launch: Launch = load_runtime) -> pd.DataFrame:
    """A line of every row of the cookbook: milliseconds a token and to the first one, measured and predicted.

    skipped: why it is not compared. error, first_error: predicted / measured - 1. launch: as of `compared`.
    """
    rows = pd.read_csv(measured("serving/sglang_cookbook.csv"))
    place = ["model", "hardware", "precision", "spec_method"]
    alone = rows[rows.max_concurrency == 1].set_index(place).ttft_ms
    found = []
    for line in named_rows(rows):
        tokens = line.isl + line.osl
        request_s = (line.ttft_ms + (line.osl - 1.0) * line.tpot_ms) / 1e3
        gpus = round(line.max_concurrency * tokens / request_s / line.total_tok_s_per_gpu)
        name = line.model.partition(" (")[0]
        arguments = COOKBOOK_MODELS.get((name, line.precision))
        waits = (1.0 + line.max_concurrency) / 2.0
        own = alone.get(tuple(getattr(line, key) for key in place), math.nan)
        told = {
            "no configuration of the model": arguments is None,
            "acceptance not stated of these prompts": line.spec_method != "none"
            and not str(line.acceptance_note).startswith("forced"),
            "untuned kernels, by its note": "untuned Triton" in line.note
            or ("B200 int4 untuned" in line.note and (line.hardware, line.precision) == ("B200", "int4")),
            "throughput and latency disagree": line.n_gpus % gpus != 0,
            "prompts in the cache, by its first token": line.ttft_ms < CACHED * waits * own,
        }
        skipped = next((why for why, holds in told.items() if holds), "")
        found.append({
            "model": name, "gpu": line.hardware, "gpus": gpus, "weights": line.precision,
            "drafts": line.draft_tokens,
            "requests": line.max_concurrency, "measured": line.tpot_ms, "first": line.ttft_ms,
            "skipped": skipped, **({} if skipped else in_step(line, arguments or {}, gpus, launch)),
        })  # fmt: skip
    lines = pd.DataFrame(found)
    lines["error"] = lines.predicted / lines.measured - 1.0
    lines["first_error"] = lines.first_predicted / lines["first"] - 1.0
    return lines


def in_step(line: Any, arguments: dict[str, Any], gpus: int, launch: Launch) -> dict[str, float]:
    """Time per token with its 80 % band and first token of a row of the cookbook, in milliseconds.

    Prompts are read one after the other: a request waits for those before its own, its tokens for the others.
    """
    drafts, others = int(line.draft_tokens), (line.max_concurrency - 1.0) / 2.0
    more: dict[str, Any] = {"drafter": "ngram", "acceptance": "0.5"}
    if drafts:
        more = {"drafter": line.spec_method, "acceptance": f"{line.acceptance_length:g}@{drafts}"}
    scenario = ms.Scenario(
        gpu=COOKBOOK_GPUS[line.hardware], runtime=launch("sglang-0.5"), tp=gpus,
        prompt_tokens=float(line.isl), output_tokens=float(line.osl), **arguments, **more,
    )  # fmt: skip
    length = int(line.isl + line.osl / 2)
    cells = scenario.sweep(sorted({1, int(line.max_concurrency)}), length, [1, drafts + 1] if drafts else [1])
    alone, cell = cells[cells.batch == 1].iloc[-1], cells.iloc[-1]
    waiting_ms = others * float(alone.ttft_ms) / (line.osl - 1.0)
    ends = {"predicted": cell.verify_step_us, "low": cell.verify_low_us, "high": cell.verify_high_us}
    token_ms = {name: float(us) / float(cell.tokens_per_step) / 1e3 + waiting_ms for name, us in ends.items()}
    return {**token_ms, "first_predicted": (others + 1.0) * float(alone.ttft_ms)}


def cookbook_table(lines: pd.DataFrame) -> str:
    """Every row of the cookbook that is compared."""
    cells = [
        (
            line.model, line.gpu, line.gpus, line.weights, int(line.drafts), line.requests,
            f"{line.measured:.1f}", f"{line.predicted:.1f} ({line.low:.1f} to {line.high:.1f})",
            f"{100 * line.error:+.0f}", f"{line.first:.0f}", f"{100 * line.first_error:+.0f}",
        )
        for line in named_rows(lines[lines.skipped == ""])
    ]  # fmt: skip
    names = "model | GPU | GPUs | weights | drafts | requests | ms a token | predicted (80 %) | error %"
    return table(f"{names} | first token, ms | error %", 2, cells)


def skipped_text(lines: pd.DataFrame) -> str:
    """How many rows of the cookbook are not compared, by model and reason."""
    left = lines[lines.skipped != ""]
    counts = (left.model + " (" + left.skipped + ")").value_counts(sort=False)
    return "; ".join(f"{count} of {what}" for what, count in counts.items())


def pairs() -> pd.DataFrame:
    """Every line that counts as a pair (`common/measured_pairs.py`)."""
    rows = compared().query("counts")
    formats = [
        str(form.get("weight_dtype") or form.get("dtype") or format_of(model))
        for form, model in zip(
            rows.precision.map(lambda name: FORMATS.get(name, {})), rows.model, strict=True
        )
    ]
    return pairs_of(
        rows.assign(
            kind=[PAIR_OF_STEP[what][0] for what in rows.what],
            what=[PAIR_OF_STEP[what][1] for what in rows.what],
            engine=rows.engine, version=rows.runtime.str.rpartition("-")[2], weights=formats, cell=rows.id,
        ),
        fitted="no", data="engines/published_2026.csv",
    )  # fmt: skip


def summary(rows: pd.DataFrame) -> str:
    """Errors by quantity, engine and drafter, of lines that count."""
    rows = rows[rows.counts]
    parts: list[tuple[Any, pd.DataFrame]] = [
        ((what, "all", ""), part) for what, part in rows.groupby("what", sort=False)
    ]
    parts += rows.groupby(["what", "engine", "drafter"], sort=True)
    lines = []
    for place, part in parts:
        is_speedup = place[0] == "speedup"
        held = f"{100 * part.held.mean():.0f}"
        signs = f"{int(part.sign.sum())} of {len(part)}" if is_speedup else ""
        lines.append((*place, len(part), mean_bias_worst(part.error), held, signs))
    return table("what | engine | drafter | cells | mean % (bias; worst) | held % | sign", 3, lines)


def far_table(rows: pd.DataFrame) -> str:
    """Times that are far off or do not count: what their sources leave open, and why they miss."""
    times = rows[(rows.what != "speedup") & ((rows.error.abs() > FAR) | ~rows.counts)]
    lines = [
        (
            line.id, line.what, line.runtime, f"{line.measured:.1f}", f"{line.predicted:.1f}",
            f"{100 * line.error:+.0f}", "set a term" if line.set_by else line.unstated,
            WHY.get(line.id, ""),
        )
        for line in named_rows(times)
    ]  # fmt: skip
    return table("row | what | runtime | measured | predicted | error % | not stated | why", 3, lines)


def page(rows: pd.DataFrame, lines: pd.DataFrame) -> str:
    """The section of validation-engines.md. lines: of the cookbook."""
    times = rows[rows.what != "speedup"]
    return filled(
        "published", summary=summary(rows), rows=far_table(rows), far=f"{100 * FAR:.0f}",
        counted=int(times.counts.sum()), times=len(times), set_by=", ".join(SET_BY),
        cookbook=cookbook_table(lines), skipped=skipped_text(lines),
    )  # fmt: skip


def main() -> None:
    """Print the table, and where asked every row; write the section of the page where asked."""
    parser = command_line(__doc__, writes="`published-rows` of docs/validation-engines.md")
    parser.add_argument("--rows", action="store_true", help="print every row")
    parser.add_argument("--cookbook", action="store_true", help="print servers of SGLang's cookbook instead")
    asked = parser.parse_args()
    if asked.cookbook:
        lines = cookbook()
        print(cookbook_table(lines))
        print(f"not compared: {skipped_text(lines)}")
        return
    rows = compared()
    if asked.write:
        write_section("validation-engines.md", "published-rows", page(rows, cookbook()))
    print(summary(rows))
    if asked.rows:
        shown = rows.assign(error=(100 * rows.error).round(1)).round(3)
        print(
            shown.drop(
                columns=["url", "engine", "drafter", "given", "gpu", "model", "precision", "gpus", "requests"]
            ).to_string()
        )


if __name__ == "__main__":
    main()
