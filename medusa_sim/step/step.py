"""The steps of an engine: plain decoding, a prompt, verification with drafting and without.

speculative_step    = verification_step + drafting_times (`step.drafting`)
verification_step   one pass of the target over all candidates, and acceptance
decode_step         the same over one token of each sequence, without acceptance
prefill_step        the same over a whole prompt
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from medusa_sim.engines.runtime import Runtime
from medusa_sim.operators.operator import Size
from medusa_sim.step.accepting import acceptance_launches
from medusa_sim.step.drafter.base import Drafter
from medusa_sim.step.drafting import drafting_times
from medusa_sim.step.graphs import padded_tokens
from medusa_sim.step.host import host_share, overlapped_us
from medusa_sim.step.launch import Launch
from medusa_sim.step.network import step_launches
from medusa_sim.step.pass_cost import timed_pass
from medusa_sim.step.pass_times import PassTimes
from medusa_sim.step.pass_work import PassWork
from medusa_sim.step.prompt_kernels import drafter_works
from medusa_sim.step.prompts import prompt_host, prompt_terms
from medusa_sim.step.setting import Setting
from medusa_sim.step.verified import Verified
from medusa_sim.step.workload import Workload, decode, prefill, verify


def speculative_step(setting: Setting, batch: Size, seq_len: Size, candidates: Size) -> PassTimes:
    """One speculative step: drafting, verification of `candidates` tokens, acceptance.

    At one candidate this still drafts: use `decode_step` for plain decoding.
    """
    step = verification_step(setting, batch, seq_len, candidates)
    for drafting_pass in drafting_times(setting, batch, seq_len, candidates):
        step = step + drafting_pass
    return step


def decode_step(setting: Setting, batch: Size, seq_len: Size) -> PassTimes:
    """One plain decoding step: no drafter, no tree. Arrays of batch and seq_len broadcast."""
    return timed_pass(setting.latency, decode_work(setting, batch, seq_len))


def prefill_step(
    setting: Setting,
    batch: Size,
    tokens: Size,
    drafter: Drafter | None = None,
    *,
    candidates: float = 1.0,
    cached: Size = 0,
) -> PassTimes:
    """The whole prompt of so many tokens at once, with an engine's terms of prompts: (N8) of it alone.

    drafter: what reads the prompt too; None: none is loaded. candidates: tokens that the server's other steps
    verify of each request, for which it captured its graphs; 1 without a drafter. cached: tokens of a prefix
    before the prompt, which it attends to.
    """
    prompt = prefill(batch, tokens, cached)
    step = timed_pass(setting.latency, replace(_target_work(setting, prompt), runtime=setting.prompt_runtime))
    for work in drafter_works(setting, drafter, prompt):
        step = step + timed_pass(setting.latency, work)
    terms = prompt_terms(setting)
    read = step.with_kernels_share(terms.share)
    host = prompt_host(setting, candidates)
    launches_us = host.launches_us(0.0, np.asarray(prompt.tokens))
    host_us = read.host_us + launches_us
    half_us = host_share(host_us, overlapped_us(read.device_us, host_us)) * host.band * launches_us
    cost = replace(
        read.cost,
        host_us=host_us,
        exposed_us=read.cost.exposed_us + terms.extra_us,
        draft_square=read.cost.draft_square + half_us**2,
    )
    return replace(read, cost=cost)


def verification_step(setting: Setting, batch: Size, seq_len: Size, candidates: Size) -> PassTimes:
    """Verification of `candidates` tokens and acceptance, without drafting.

    Scope `block` has the paper's operators alone, as its simulation does. Where drafts are looked up the time
    is the mean over how many requests find any (N5), where they end early the mean over how long they are.
    """
    if setting.verified.is_all:
        return timed_pass(setting.latency, verification_work(setting, batch, seq_len, candidates))
    return _mean_verification_step(setting, batch, seq_len, candidates)


def _mean_verification_step(setting: Setting, batch: Size, seq_len: Size, candidates: Size) -> PassTimes:
    """The mean over how many tokens of a request a step verifies: these are cases along a last axis."""
    tokens, chances = setting.verified.cases(batch, candidates)
    batches, lengths, graph_tokens = (np.asarray(size)[..., None] for size in (batch, seq_len, candidates))
    exact = replace(setting, verified=Verified())
    work = verification_work(exact, batches, lengths, tokens, graph_tokens=graph_tokens)
    step = timed_pass(setting.latency, work).mean_over(chances)
    # what counts FLOPs and bytes takes those of the mean number of tokens
    (kernels,), mean = step.passes, verification_work(setting, batch, seq_len, candidates)
    return replace(step, passes=(replace(kernels, work=mean),))


def decode_work(setting: Setting, batch: Size, seq_len: Size) -> PassWork:
    """Kernels of `decode_step`."""
    return _target_work(setting, decode(batch, seq_len))


def verification_work(
    setting: Setting, batch: Size, seq_len: Size, candidates: Size, *, graph_tokens: Size | None = None
) -> PassWork:
    """Kernels of `verification_step`. graph_tokens: candidates of a request that drafts; None: these."""
    tokens = setting.verified.mean_tokens(candidates)
    graph_tokens = candidates if graph_tokens is None else graph_tokens
    workload = replace(verify(batch, seq_len, tokens), overlap=setting.overlap, graph_tokens=graph_tokens)
    setting = replace(setting, runtime=setting.runtime.drafting(setting.drafter_name))
    accepting: tuple[Launch, ...] = ()
    if setting.scope == "model" and not setting.runtime.chain_only:
        longest = _longest_path(setting, candidates)
        accepting = acceptance_launches(setting.shard, workload, setting.compacted_drafts, longest)
    return _target_work(setting, workload, accepting)


def _longest_path(setting: Setting, candidates: Size) -> Size:
    """Drafts of the longest path of so many candidates, for which caches are compacted."""
    if setting.longest_drafts <= setting.compacted_drafts:
        return setting.compacted_drafts
    return np.asarray(np.clip(np.asarray(candidates) - 1, setting.compacted_drafts, setting.longest_drafts))


def _target_work(setting: Setting, workload: Workload, accepting: tuple[Launch, ...] = ()) -> PassWork:
    """A pass of the target, and what accepts after it."""
    workload = _padded(workload, setting.runtime)
    launches = (*step_launches(setting.shard, workload, setting.runtime, setting.scope), *accepting)
    return PassWork(
        launches=launches,
        runtime=setting.runtime,
        workload=workload,
        name="target",
        layers=setting.model.layers,
        schedulers=setting.parallel.schedulers,
    )


def _padded(workload: Workload, runtime: Runtime) -> Workload:
    """The workload as an engine runs it: filled up to a captured size (N3). Prompts are not captured."""
    if runtime.engine is None or workload.phase == "prefill":
        return workload
    rows = padded_tokens(runtime.engine, workload.batch, workload.query_tokens, workload.graph_tokens)
    return replace(workload, padded_rows=rows)
