"""A comparison in sentences: the choice, the best without speculation, the surer one, each under load."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from medusa_sim.grid.quantity import BY_NAME
from medusa_sim.report.words.numbers import duration, percent, significant
from medusa_sim.report.words.scenario import at_once, request_text
from medusa_sim.setups.comparison import Comparison
from medusa_sim.setups.question import SURER, Measure, SetupQuestion
from medusa_sim.setups.setup import NO_DRAFTER, SET_UP, name_of
from medusa_sim.units import US_PER_MS, US_PER_S

if TYPE_CHECKING:
    from medusa_sim.setups.loaded import Loaded

QUEUED = 3.0
"""A first token this many times slower than without a queue is reported as queueing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureWords:
    """Words for one measure."""

    best: str
    """What the chosen set-up is."""
    aim: str
    """What is looked for."""
    header: str
    """Header of its column in short tables."""
    against: str
    """What speed is traded for."""


WORDS: dict[Measure, MeasureWords] = {
    "cost": MeasureWords(best="Cheapest", aim="least cost", header="$ a million tokens", against="cost"),
    "throughput": MeasureWords(
        best="Most from a GPU", aim="most tokens a GPU", header="tokens/s a GPU", against="throughput per GPU"
    ),
    "energy": MeasureWords(
        best="Least energy", aim="least energy", header="J a token", against="energy per token"
    ),
}


def limits_text(asked: SetupQuestion) -> str:
    """`at least 50 tokens/s a user`: what a set-up must keep."""
    limits = {
        "at least {:g} tokens/s a user": asked.tokens_per_s_per_user,
        "at most {:g} ms a token": asked.tpot_ms,
        "at most {:g} ms to the first token": asked.ttft_ms,
        "at most {:g} ms in all": asked.e2e_ms,
    }
    kept = [text.format(limit) for text, limit in limits.items() if limit is not None]
    return ", ".join(kept) or "any speed"


def sentence(answer: Comparison) -> str:
    """Workload, set-up and what it costs, then the best without speculation, in one sentence."""
    if answer.chosen is None:
        return none_text(answer)
    text = f"{workload(answer.question)}: {chosen_text(answer)}"
    if without := without_text(answer):
        return f"{text}; {without}."
    return f"{text}."


def answer_text(answer: Comparison) -> str:
    """The chosen set-up by the measure, or that no set-up keeps the limits."""
    if answer.chosen is None:
        return none_text(answer)
    return f"{WORDS[answer.measure].best}: {chosen_text(answer)}."


def none_text(answer: Comparison) -> str:
    """Says that no set-up keeps the limits, and the best that any does in each."""
    asked, table = answer.question, answer.table
    best = [f"the fastest stream of any is {significant(table.tokens_per_s_per_user.max(), 3)} tokens/s"]
    if asked.ttft_ms is not None:
        best += [f"the earliest first token comes after {duration(US_PER_MS * table.ttft_ms.min())}"]
    if asked.e2e_ms is not None:
        best += [f"the shortest request takes {duration(US_PER_MS * table.e2e_ms.min())}"]
    if asked.slowest_tpot_us == math.inf and len(best) > 1:
        del best[0]
    return f"No set-up of {answer.model.name} keeps the limits for {workload(asked)}: {', '.join(best)}."


def chosen_text(answer: Comparison) -> str:
    """`2 x h200-sxm, TP 2, fp8, vllm, eagle3 with 2 drafts at 48 requests: $0.21 a million tokens, ...`."""
    chosen = answer.chosen
    assert chosen is not None  # noqa: S101  # asked where there is one
    text = line_text(answer, chosen)
    if answer.question.slowest_tpot_us < math.inf:
        least = US_PER_S / answer.question.slowest_tpot_us
        text += f" (at least {significant(least, 3)} with {percent(chosen['sure'], 0)} certainty)"
    return text


def without_text(answer: Comparison) -> str:
    """The best set-up without speculation, compared with the chosen one; empty where none was asked for."""
    chosen, plain = answer.chosen, answer.chosen_plain
    if chosen is None:
        return ""
    if chosen["drafter"] == NO_DRAFTER:
        return "no drafter does better"
    if plain is None:
        asked = (answer.table.drafter == NO_DRAFTER).any()
        return "without speculation no set-up keeps the limits" if asked else ""
    same = all(plain[name] == chosen[name] for name in SET_UP if name != "drafter")
    where = f"{plain['gpus']} x {plain['gpu']}" if same else name_of(plain)
    what = "the same" if same else "the best"
    return f"{what} without speculation: {where}, {measure_text(answer, plain)}"


def workload(asked: SetupQuestion) -> str:
    """`512 in, 256 out, 2 requests/s`: what every set-up serves."""
    text = request_text(asked.prompt_tokens, asked.output_tokens)
    if asked.rate is not None:
        return f"{text}, {significant(asked.rate, 3)} requests/s"
    return text if asked.users is None else f"{text}, {at_once(str(asked.users))}"


def surer_text(answer: Comparison) -> str:
    """The set-up that keeps the speed with SURER, where the chosen one is less sure; empty elsewhere."""
    if answer.chosen is None or answer.chosen["sure"] >= SURER:
        return ""
    surer = answer.surer.chosen
    return f"with {percent(SURER, 0)} certainty: {'no set-up' if surer is None else line_text(answer, surer)}"


def line_text(answer: Comparison, row: Mapping[Any, Any]) -> str:
    """`1 x b200, fp8, vllm, eagle3 with 3 drafts at 64 requests: $0.59 a million tokens, 51.2 ...`."""
    drafting, value = drafting_text(answer, row), measure_text(answer, row)
    speed = significant(float(row["tokens_per_s_per_user"]), 3)
    return f"{name_of(row)}, {drafting}: {value}, {speed} tokens/s a user"


def drafting_text(answer: Comparison, row: Mapping[str, Any]) -> str:
    """`eagle3 with 2 drafts at 160 requests (5 where few run)`; `no speculation, 64 requests`."""
    requests = f"{row['batch']} requests" + (" a copy" if row["replicas"] > 1 else "")
    if row["drafter"] == NO_DRAFTER:
        return f"no speculation, {requests}"
    table = answer.table
    curve = table[(table[list(SET_UP)] == [row[name] for name in SET_UP]).all(axis=1)]
    curve = curve[curve.batch <= row["batch"]].sort_values("batch")
    first, last = int(curve.drafts.iloc[0]), int(row["drafts"])
    few = f" ({first} where few run)" if first != last else ""
    return f"{row['drafter']} with {last} draft{'s' if last > 1 else ''} at {requests}{few}"


def speed_texts(row: Mapping[Any, Any]) -> tuple[str, str, str]:
    """Tokens/s of a user with the ends of the 80 % interval, as numbers."""
    speed, low, high = (
        significant(float(row[f"tokens_per_s_per_user{end}"]), 3) for end in ("", "_low", "_high")
    )
    return speed, low, high


def measure_text(answer: Comparison, row: Mapping[str, Any]) -> str:
    """`$0.0860 a million tokens`, or what else is saved."""
    return BY_NAME[answer.column].phrase.format(significant(float(row[answer.column]), 3))


def loaded_line(loaded: Loaded) -> str:
    """One set-up under load in a sentence."""
    mean = loaded.point.mean
    drafting = f", {loaded.row['drafts']} drafts" if loaded.row["drafts"] else ", no speculation"
    usd, copies = (
        loaded.usd_per_million_tokens,
        "1 copy" if loaded.replicas == 1 else f"{loaded.replicas} copies",
    )
    cost = "" if math.isnan(usd) else f", ${significant(usd, 3)} a million tokens"
    return (
        f"{loaded.gpus} x {loaded.row['gpu']} ({copies}{drafting}): {percent(loaded.share, 0)} of the "
        f"requests keep the limits, half of them have a first token after "
        f"{significant(1e3 * mean['ttft_p50_s'], 3)} ms, then {significant(1.0 / mean['tpot_p50_s'], 3)} "
        f"tokens/s{cost}{queue_text(loaded)}"
    )


def queue_text(loaded: Loaded) -> str:
    """How many times as long as without a queue a first token takes; empty below QUEUED."""
    alone_ms, half_ms = float(loaded.row["ttft_ms"]), 1e3 * loaded.point.mean["ttft_p50_s"]
    if half_ms < QUEUED * alone_ms:
        return ""
    return (
        f"; requests wait: a first token takes {significant(half_ms / alone_ms, 2)} times the "
        f"{significant(alone_ms, 3)} ms of a server without a queue, give a limit with --ttft-ms"
    )
