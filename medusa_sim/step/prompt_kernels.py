"""Device time of the kernels that read prompts: of the target, of a drafter, and on one GPU that has all.

The kernels of a step are of two kinds:

    linear(T)     what all T tokens of a step share: linear layers, experts, norms, what GPUs send each other
    attention(P)  one prompt of P tokens that attends to itself, on the GPU that holds it

The tokens of a prompt choose their experts independently. The c tokens that a step verifies of one request
share some (X1), so fewer experts are activated. A step of b requests that only decodes takes, but for its
attention and logits,

    decode(b)  = linear(rows) - sharing(rows)       rows: b c tokens, padded as an engine pads them; a mean
                                                    over how many of these are verified (N5)
    sharing(T) = experts of T independent tokens - experts of b requests with c tokens each

and one that carries S prefill tokens too (a mixed step, `serving.mixed_steps`):

    linear(b c + S) - inactive(S) sharing(b c)

Experts that a prompt activates anyway save nothing: inactive(S) is the share that none of its tokens does
(X1).
All of these, decode(b) too, are times of the kernels that read prompts (`Setting.prompt_runtime`): their
difference is what prompts add.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray, as_float
from medusa_sim.models.feed_forwards import MoE
from medusa_sim.operators.experts import Experts
from medusa_sim.operators.operator import Size
from medusa_sim.step.drafter.base import Drafter
from medusa_sim.step.expert_union import INDEPENDENT, left_out_share
from medusa_sim.step.graphs import step_rows
from medusa_sim.step.launch import Launch
from medusa_sim.step.network import LOGIT_OPERATORS, model_launches
from medusa_sim.step.pass_cost import device_us, timed_pass
from medusa_sim.step.pass_times import PassTimes
from medusa_sim.step.pass_work import PassWork
from medusa_sim.step.setting import Setting
from medusa_sim.step.workload import Workload, decode, prefill, verify

_FEW_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 28)
_SPACED_ROWS = ((32, 1024), (64, 2048), (128, 8192), (512, 32_768), (4096, 1 << 62))
"""Rows at which linear(T) is priced, as (spacing, up to) beyond the first few; between them time is taken as
linear. Each stands with the next row, in which another tile may begin: at 513 rows SGLang's fp8 layers
on an H100 take 1.6 times as long as at 512. The first are close together: few rows activate few experts, and
each further one takes its time."""

# linear(T) and attention(P) of the target.


def linear_us(setting: Setting, tokens: FloatArray) -> FloatArray:
    """linear(T): device time of what all `tokens` of a step share, microseconds."""
    return device_us(setting.latency, linear_work(setting, tokens))


def linear_times(setting: Setting, tokens: FloatArray) -> PassTimes:
    """The same with its band."""
    return timed_pass(setting.latency, linear_work(setting, tokens))


def linear_work(setting: Setting, tokens: FloatArray) -> PassWork:
    """Kernels of linear(T): as many requests of one token, without attention and logits."""
    workload = decode(tokens, 1)
    launches = model_launches(setting.shard, workload, setting.runtime)
    kept = tuple(launch for launch in launches if launch.operator.name not in LOGIT_OPERATORS)
    return _without_attention(_prompt_pass(setting, kept, workload))


def prompt_attention_us(setting: Setting, tokens: Size, kv_len: Size) -> FloatArray:
    """attention: device time of a chunk of a prompt's `tokens` that ends at `kv_len`, microseconds."""
    chunk = _chunk(tokens, kv_len)
    launches = model_launches(setting.shard, chunk, setting.runtime)
    return device_us(setting.latency, _attention_alone(_prompt_pass(setting, launches, chunk)))


def logits_us(setting: Setting) -> float:
    """Device time of sampling the first token, in a pass that carries prompts alone, microseconds.

    Of one prompt: the LM head takes as long for several, whose weights it reads once.
    """
    prompt = prefill(1, 1)
    launches = model_launches(setting.shard, prompt, setting.runtime)
    logits = tuple(launch for launch in launches if launch.operator.name in LOGIT_OPERATORS)
    return float(device_us(setting.latency, _prompt_pass(setting, logits, prompt)))


def imbalance_us(setting: Setting, tokens: FloatArray) -> FloatArray:
    """What linear(S) takes longer where one GPU attends to all S `tokens`, microseconds.

    That GPU has all rows of the linear layers around attention, while the others wait. 0 where every GPU
    attends to all requests.
    """
    gpus, tokens = setting.parallel.schedulers, np.asarray(tokens, dtype=np.float64)
    if gpus == 1:
        return np.zeros(tokens.shape)

    def without_attention_us(prompts: Workload) -> FloatArray:
        launches = model_launches(setting.shard, prompts, setting.runtime)
        return device_us(setting.latency, _without_attention(_prompt_pass(setting, launches, prompts)))

    return without_attention_us(prefill(1, tokens)) - without_attention_us(prefill(gpus, tokens / gpus))


# Experts: what tokens of one request save by sharing them, and how much of it a prompt leaves.


class DecodeKernels(NamedTuple):
    """decode(b) and sharing(b c) of steps that carry no prompt, microseconds: means over what is verified."""

    linear_us: FloatArray
    sharing_us: FloatArray


def decode_kernels(
    setting: Setting, requests: FloatArray, candidates: Size, linear_at: Callable[[FloatArray], FloatArray]
) -> DecodeKernels:
    """Of steps of so many requests, averaged over how many of their candidates are verified (N5).

    linear_at: linear(T) at (rows,) that differ.
    """
    tokens, chances = setting.verified.cases(requests, candidates)
    batches, graph_tokens = as_float(requests)[..., None], as_float(candidates)[..., None]
    rows = step_rows(setting.runtime, batches, tokens, graph_tokens)
    different, place = np.unique(rows, return_inverse=True)
    independent_us = linear_at(different)[place].reshape(rows.shape)
    linear_us = independent_us - expert_sharing_us(setting, batches, tokens, rows, rows)
    sharing_us = expert_sharing_us(setting, batches, tokens, rows, batches * tokens)
    return DecodeKernels((chances * linear_us).sum(axis=-1), (chances * sharing_us).sum(axis=-1))


def expert_sharing_us(
    setting: Setting, requests: FloatArray, verified_tokens: FloatArray, rows: FloatArray, tokens: FloatArray
) -> FloatArray:
    """sharing(T): what experts take less than if T `tokens` chose independently, microseconds.

    rows: of the step's linear layers, as an engine pads them. All broadcast; equal steps are priced once.
    """
    if setting.model.experts is None:
        return np.zeros(np.broadcast_shapes(*map(np.shape, (requests, verified_tokens, rows, tokens))))
    columns = np.broadcast_arrays(requests, verified_tokens, rows, tokens)
    (each_requests, each_verified, each_rows, each_tokens), places = _distinct(*columns)
    independent_us = _experts_us(setting, each_tokens, np.ones(()), each_rows)
    sharing_us = independent_us - _experts_us(setting, each_requests, each_verified, each_rows)
    return np.broadcast_to(sharing_us, each_requests.shape)[places].reshape(columns[0].shape)


def inactive_share(setting: Setting, tokens: FloatArray) -> FloatArray:
    """inactive(S): share of experts that none of S `tokens` activates, mean over layers; 0 without any."""
    layers = setting.model.blocks(MoE)
    inactive = (count * left_out_share(experts.experts, experts.topk, tokens) for count, experts in layers)
    return sum(inactive, start=np.zeros(np.shape(tokens))) / max(sum(count for count, _ in layers), 1)


def _experts_us(
    setting: Setting, requests: FloatArray, verified_tokens: FloatArray, rows: FloatArray
) -> FloatArray:
    """Device time of the experts that the tokens of so many requests activate."""
    workload = replace(verify(requests, 1, verified_tokens), padded_rows=rows, overlap=setting.overlap)
    launches = model_launches(setting.shard, workload, setting.runtime)
    experts = tuple(launch for launch in launches if isinstance(launch.operator, Experts))
    return device_us(setting.latency, _prompt_pass(setting, experts, workload))


def _distinct(*columns: FloatArray) -> tuple[tuple[FloatArray, ...], IntArray]:
    """Rows of a table of these columns that differ, and the place of each row among them."""
    places = np.zeros(columns[0].size, dtype=np.int64)
    for column in columns:
        values, index = np.unique(column, return_inverse=True)
        places = places * values.size + index.ravel()
    _, first, places = np.unique(places, return_index=True, return_inverse=True)
    return tuple(np.asarray(column.ravel()[first], dtype=np.float64) for column in columns), places


# A drafter that reads prompts too.


def prompt_launches(setting: Setting, drafter: Drafter | None, prompts: Workload) -> tuple[Launch, ...]:
    """Everything that reads whole prompts, of the target and of a drafter."""
    target = model_launches(setting.shard, prompts, setting.runtime)
    return sum((work.launches for work in drafter_works(setting, drafter, prompts)), start=target)


def drafter_works(setting: Setting, drafter: Drafter | None, prompts: Workload) -> tuple[PassWork, ...]:
    """Passes in which a drafter reads prompts; none where no drafter is loaded."""
    return () if drafter is None else drafter.prompt_work(setting.shard, prompts, setting.prompt_runtime)


def drafter_linear_us(setting: Setting, drafter: Drafter | None, tokens: FloatArray) -> FloatArray:
    """Device time of all but attention that a drafter adds for prefill `tokens`, microseconds.

    GPUs that attend to their own requests are taken to have as many of them each.
    """
    gpus = setting.parallel.schedulers
    prompts = replace(prefill(gpus, np.asarray(tokens) / gpus), overlap=INDEPENDENT)
    works = drafter_works(setting, drafter, prompts)
    times_us = (device_us(setting.latency, _without_attention(work)) for work in works)
    return sum(times_us, start=np.zeros(np.shape(tokens)))


def drafter_attention_us(setting: Setting, drafter: Drafter | None, tokens: Size, kv_len: Size) -> FloatArray:
    """The drafter's attention over a chunk of a prompt's `tokens` that ends at `kv_len`, microseconds."""
    works = drafter_works(setting, drafter, _chunk(tokens, kv_len))
    times_us = (device_us(setting.latency, _attention_alone(work)) for work in works)
    return sum(times_us, start=np.zeros(np.broadcast_shapes(np.shape(tokens), np.shape(kv_len))))


# The rows at which linear(T) is priced.


def timed_rows(most: float) -> FloatArray:
    """Rows at which `linear_us` is asked for a step of up to `most` rows; rising, the last holds them all.

    Above 28 they are 32, 33, 64, 65 and so on. Interpolated times are within 3 % of priced ones.
    """
    rows, start = list(_FEW_ROWS), 0
    for spacing, end in _SPACED_ROWS:
        last = min(end, spacing * int(np.ceil(most / spacing)))
        rows += [row for edge in range(start + spacing, last + spacing, spacing) for row in (edge, edge + 1)]
        start = end
        if last < end:
            break
    rising = np.asarray(rows, dtype=np.float64)
    return rising[: np.searchsorted(rising, most) + 1]


# Parts of a pass.


def _chunk(tokens: Size, kv_len: Size) -> Workload:
    """Tokens of one prompt that end at `kv_len`."""
    return Workload(phase="prefill", batch=1, seq_len=kv_len, query_tokens=tokens)


def _prompt_pass(setting: Setting, launches: tuple[Launch, ...], workload: Workload) -> PassWork:
    """What prompts add to a step: its host and set-up count with the step's."""
    return PassWork(launches=launches, runtime=setting.prompt_runtime, workload=workload, name="prompts")


def _attention_alone(work: PassWork) -> PassWork:
    return replace(work, launches=tuple(launch for launch in work.launches if launch.attends))


def _without_attention(work: PassWork) -> PassWork:
    return replace(work, launches=tuple(launch for launch in work.launches if not launch.attends))
