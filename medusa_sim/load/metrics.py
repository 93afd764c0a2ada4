"""Metrics of a run: latencies, throughput, goodput, shares of time.

Goodput counts requests that complete and keep their limits, as `vllm bench serve --goodput` does. One that
its client cancels loads the server and emits tokens, but says nothing of latency: the share within the limits
is of those that complete.
"""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray
from medusa_sim.load.limits import SchedulerLimits
from medusa_sim.load.run_result import RunResult
from medusa_sim.load.slos import Slos
from medusa_sim.load.step_table import StepTable

QUANTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
_LEAST_TO_DRIFT = 100
_MOST_QUEUE_SHARE = 0.9
"""Of rho': beyond, an error of the step is ten times as large in the latency, and nothing can be said."""
Metrics = dict[str, float]
"""Values by name, each with its unit; nan where nothing can be said."""


def metrics_of(result: RunResult, table: StepTable, limits: SchedulerLimits, slos: Slos) -> Metrics:
    """Every metric of a run, over its window; preemptions and the most blocks in use of all of it.

    requests: that come; requests_per_s: that are served (`Sums.served`), cancelled or not.
    """
    start, end = result.window_s
    inside = (result.arrival_s >= start) & (result.arrival_s <= end)
    complete = inside & result.requests.completes
    ttft, tpot, e2e = (times_s[complete] for times_s in _latencies_s(result))
    met = slos.are_met(ttft, tpot, e2e)
    requests, requests_per_s = float(inside.sum()), result.inside.served / max(result.inside.span_s, 1e-12)
    metrics: Metrics = {
        "requests": requests,
        "requests_per_s": requests_per_s,
        "goodput_per_s": float(met.sum() / max(requests, 1.0)) * requests_per_s,
        "goodput_share": float(met.mean()) if met.size else np.nan,
    }
    for name, times_s in (("ttft", ttft), ("tpot", tpot[np.isfinite(tpot)]), ("e2e", e2e)):
        metrics[f"{name}_mean_s"] = float(times_s.mean()) if times_s.size else np.nan
        for quantile, share in (*QUANTILES, ("at_share", slos.share)):
            metrics[f"{name}_{quantile}_s"] = float(np.quantile(times_s, share)) if times_s.size else np.nan
    metrics["itl_mean_s"] = result.inside.gap_mean_s
    metrics |= {f"itl_{quantile}_s": result.inside.gap_quantile_s(share) for quantile, share in QUANTILES}
    metrics |= _growth(result, inside, met)
    metrics |= _over_time(result, limits, (start, end)) | _shares(result, table)
    return metrics | _sensitivity(result, table, metrics)


def _latencies_s(result: RunResult) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(requests,) times to the first token, per further token (not finite where there is none), of all."""
    arrival_s, first_s, finish_s = result.arrival_s, result.first_token_s, result.finish_s
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = (finish_s - first_s) / (result.requests.output_tokens - 1)
    return first_s - arrival_s, tpot, finish_s - arrival_s


def _growth(result: RunResult, inside: BoolArray, met: BoolArray) -> Metrics:
    """Drift of a drawn open loop: in the requests in the system, and in the share that keeps the limits.

    queue_growth_per_s: slope of a line through the requests in the system that arrivals find; nan for traces,
    ramps, closed loops and runs that have no warm-up, which have a course of their own.
    """
    nothing = dict.fromkeys(("queue_growth_per_s", "goodput_share_first", "goodput_share_last"), np.nan)
    if result.requests.users is not None or not result.requests.warm or inside.sum() < _LEAST_TO_DRIFT:
        return nothing
    arrival = result.arrival_s[inside]
    gone = np.searchsorted(np.sort(result.finish_s), arrival, side="right")
    in_system = np.arange(result.arrival_s.size)[inside] - gone
    third = max(met.size // 3, 1)
    since = arrival - arrival.mean()
    return {
        "queue_growth_per_s": float((since * in_system).sum() / (since**2).sum()),
        "goodput_share_first": float(met[:third].mean()) if met.size else np.nan,
        "goodput_share_last": float(met[-third:].mean()) if met.size else np.nan,
    }


def _sensitivity(result: RunResult, table: StepTable, metrics: Metrics) -> Metrics:
    """How an error of the step shows in the time per token.

    step_faster, step_slower: half-widths of the 80 % band of the step that most of the time went to, on the
    logarithm. queue_share: rho', by how many per cent a step grows with one per cent more requests and their
    prompts: where requests come at a rate of their own, a step that is longer by e makes them more, and the
    time per token is longer by e / (1 - rho'). server_share: of the time to the first token.
    """
    drafts = int(result.inside.steps_s.sum(axis=1).argmax())
    b = min(max(metrics["requests_decoding"], 1.0), float(table.requests_max))
    low, high = max(round(0.8 * b), 1), min(max(round(1.2 * b), round(b) + 1), table.requests_max)
    middle = table.lengths.size // 2
    times = table.step_s[drafts, :, middle]
    place = round(b)
    slope = (times[high] - times[low]) / (high - low) if high > low else 0.0
    share = 0.0
    if result.requests.users is None:
        busy = max(1.0 - metrics["share_idle"], 1e-9)
        prompts = min(metrics["share_prompts"] / busy, 1.0)
        share = (1.0 - prompts) * float(np.clip(slope * b / times[place], 0.0, 1.0)) + prompts
    server_s = table.host.client_s + table.host.sending_s * b
    return {
        "queue_share": min(share, _MOST_QUEUE_SHARE),
        "step_faster": float(table.halves.down[drafts, place]),
        "step_slower": float(table.halves.up[drafts, place]),
        "server_share": min(server_s / metrics["ttft_mean_s"], 1.0) if metrics["ttft_mean_s"] > 0.0 else 0.0,
        "server_band": table.host.client_band,
    }


def _over_time(result: RunResult, limits: SchedulerLimits, window: tuple[float, float]) -> Metrics:
    """Tokens a second, and means from the timeline."""
    line, (start, end) = result.timeline, window
    inside = (line.time_s >= start) & (line.time_s <= end)
    if not inside.any():
        inside[:] = True

    def mean(values: FloatArray) -> float:
        return float(values[inside].mean())

    inside_s = max(result.inside.span_s, 1e-12)
    return {
        "tokens_per_s": result.inside.emitted / inside_s,
        "prompt_tokens_per_s": result.inside.prompt_tokens / inside_s,
        "requests_decoding": mean(line.requests),
        "requests_waiting": mean(line.not_decoding),
        "requests_in_system": mean(line.requests) + mean(line.not_decoding),
        "kv_share": mean(line.kv_tokens) / limits.kv_tokens,
        "kv_share_most": result.kv_blocks_most / limits.kv_blocks,
        "preemptions": float(result.preemptions),
    }


def _shares(result: RunResult, table: StepTable) -> Metrics:
    """Shares of the time, and the gain of speculation."""
    inside = result.inside
    whole_s, alone_s = max(inside.span_s, 1e-12), float(inside.steps_s[:, 0].sum())  # of prompts alone
    prompts_s = float(inside.prompts_s.sum()) + alone_s
    drafting_s = float((inside.steps_s * table.drafting_share).sum())
    by_drafts_s = inside.steps_s.sum(axis=1)
    decoding_s = max(float(by_drafts_s.sum()) - alone_s, 1e-12)
    return {
        "drafts": float((by_drafts_s * np.arange(by_drafts_s.size)).sum()) / decoding_s,
        "accepted_drafts": inside.accepted / inside.speculated if inside.speculated else 0.0,
        "share_decoding": (inside.busy_s - drafting_s - prompts_s) / whole_s,
        "share_drafting": drafting_s / whole_s,
        "share_prompts": prompts_s / whole_s,
        "share_idle": max(1.0 - inside.busy_s / whole_s, 0.0),
    }
