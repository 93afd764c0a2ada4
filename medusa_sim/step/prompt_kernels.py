"""Kernels that read prompts, of the target and of a drafter: times and joules both take them from here.

    linear(S)     everything that all S tokens of a step share, spread over its GPUs
    attention(P)  the causal square of one prompt by itself, on the GPU that attends to it

A step that reads n prompts of S tokens in all takes linear(S), and attention of n prompts. Each token of a
prompt is taken to choose its experts by itself; those of a request that decodes share some (X1), so that a
step of b requests with c tokens each has

    own(b, c, rows)  = linear(rows) - alike(rows),    rows as an engine pads them
    alike(t)         = experts of t tokens that choose by themselves - experts of the b requests with c each

and with S tokens of prompts linear(b c + S) - (1 - k / E)^S alike(b c): what prompts wake is shared no more.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.operators.experts import Experts
from medusa_sim.operators.operator import Size
from medusa_sim.specs.feed_forwards import MoE
from medusa_sim.step.drafter.base import Drafter
from medusa_sim.step.expert_union import INDEPENDENT
from medusa_sim.step.launch import Launch
from medusa_sim.step.network import LOGIT_OPERATORS, model_launches
from medusa_sim.step.pass_time import device_us, timed_pass
from medusa_sim.step.pass_times import PassTimes
from medusa_sim.step.pass_work import PassWork
from medusa_sim.step.setting import Setting
from medusa_sim.step.workload import Workload, decode, prefill, verify

_LEAST_PROMPTS = 1e-9
_FEW_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 28)
_ROWS = ((32, 1024), (64, 2048), (128, 8192), (512, 32_768), (4096, 1 << 62))
"""Rows at which the linear layers are timed, as (spacing, up to) beyond the first few; between them time is
taken as linear. Each stands with the row behind it, in which another tile may begin: at 513 rows SGLang's fp8
layers on an H100 take 1.6 times as long as at 512. Few rows wake experts, of which each takes its time."""


def drafter_works(setting: Setting, drafter: Drafter | None, prompts: Workload) -> tuple[PassWork, ...]:
    """Passes in which a drafter reads prompts; none where no drafter is loaded."""
    return () if drafter is None else drafter.prompt_work(setting.shard, prompts, setting.runtime)


def prompt_launches(setting: Setting, drafter: Drafter | None, prompts: Workload) -> tuple[Launch, ...]:
    """Everything that reads whole prompts, of the target and of a drafter."""
    target = model_launches(setting.shard, prompts, setting.runtime)
    return sum((work.launches for work in drafter_works(setting, drafter, prompts)), start=target)


def prompt_attention_us(setting: Setting, tokens: Size, kv_len: Size) -> FloatArray:
    """Device time of the target's attention of a prompt's `tokens` that end at `kv_len`, microseconds."""
    workload = _chunk(tokens, kv_len)
    launches = model_launches(setting.shard, workload, setting.runtime)
    return device_us(setting.latency, _attending(_of_prompts(setting, launches, workload)))


def drafter_attention_us(setting: Setting, drafter: Drafter | None, tokens: Size, kv_len: Size) -> FloatArray:
    """The same of a drafter that reads the prompt, too."""
    works = drafter_works(setting, drafter, _chunk(tokens, kv_len))
    times_us = (device_us(setting.latency, _attending(work)) for work in works)
    return sum(times_us, start=np.zeros(np.broadcast_shapes(np.shape(tokens), np.shape(kv_len))))


def linear_us(setting: Setting, tokens: FloatArray) -> FloatArray:
    """Device time of everything in a step that is shared by all its `tokens`, microseconds."""
    return device_us(setting.latency, linear_work(setting, tokens))


def linear_times(setting: Setting, tokens: FloatArray) -> PassTimes:
    """The same with its band."""
    return timed_pass(setting.latency, linear_work(setting, tokens))


def linear_work(setting: Setting, tokens: FloatArray) -> PassWork:
    """Kernels of `linear_us`."""
    workload = decode(tokens, 1)
    work = _of_prompts(setting, model_launches(setting.shard, workload, setting.runtime), workload)
    kept = (launch for launch in work.launches if launch.operator.name not in LOGIT_OPERATORS)
    return _not_attending(replace(work, launches=tuple(kept)))


def logits_us(setting: Setting) -> float:
    """Device time of choosing the token behind a prompt, of a pass that carries prompts alone, microseconds.

    Of one prompt: the LM head takes as long for several, whose weights it reads once.
    """
    prompt = prefill(1, 1)
    launches = model_launches(setting.shard, prompt, setting.runtime)
    chosen = tuple(launch for launch in launches if launch.operator.name in LOGIT_OPERATORS)
    return float(device_us(setting.latency, _of_prompts(setting, chosen, prompt)))


def decode_linear_us(
    setting: Setting, requests: FloatArray, verified_tokens: FloatArray, rows: FloatArray, rows_us: FloatArray
) -> FloatArray:
    """own(b, c, rows) of steps without prompts, microseconds; rows_us: linear(rows)."""
    return rows_us - expert_sharing_us(setting, requests, verified_tokens, rows, rows)


def expert_sharing_us(
    setting: Setting, requests: FloatArray, verified_tokens: FloatArray, rows: FloatArray, tokens: FloatArray
) -> FloatArray:
    """alike(t): what experts take less than if so many `tokens` chose by themselves, microseconds."""
    if setting.model.experts is None:
        return np.zeros(np.broadcast_shapes(*map(np.shape, (requests, verified_tokens, rows, tokens))))
    columns = np.broadcast_arrays(requests, verified_tokens, rows, tokens)
    (b, c, padded, alone), places = _different(*columns)
    saved_us = _experts_us(setting, alone, np.ones(()), padded) - _experts_us(setting, b, c, padded)
    return np.broadcast_to(saved_us, b.shape)[places].reshape(columns[0].shape)


def _experts_us(
    setting: Setting, requests: FloatArray, verified_tokens: FloatArray, rows: FloatArray
) -> FloatArray:
    """Device time of the experts that the tokens of so many requests wake."""
    workload = replace(verify(requests, 1, verified_tokens), padded_rows=rows, overlap=setting.overlap)
    launches = model_launches(setting.shard, workload, setting.runtime)
    experts = tuple(launch for launch in launches if isinstance(launch.operator, Experts))
    return device_us(setting.latency, _of_prompts(setting, experts, workload))


def inactive_share(setting: Setting, tokens: FloatArray) -> FloatArray:
    """(1 - k / E)^S: share of experts that none of so many tokens wakes, mean over layers; 0 without any."""
    layers = setting.model.blocks(MoE)
    asleep = (count * (1.0 - experts.topk / experts.experts) ** tokens for count, experts in layers)
    return sum(asleep, start=np.zeros(np.shape(tokens))) / max(sum(count for count, _ in layers), 1)


def _different(*columns: FloatArray) -> tuple[tuple[FloatArray, ...], IntArray]:
    """Rows of these columns that differ, and the place of each row among them."""
    places = np.zeros(columns[0].size, dtype=np.int64)
    for column in columns:
        values, each = np.unique(column, return_inverse=True)
        places = places * values.size + each.ravel()
    _, first, places = np.unique(places, return_index=True, return_inverse=True)
    return tuple(np.asarray(column.ravel()[first], dtype=np.float64) for column in columns), places


def drafter_linear_us(setting: Setting, drafter: Drafter | None, tokens: FloatArray) -> FloatArray:
    """Device time of everything but attention that a drafter adds for tokens of prompts, microseconds."""
    gpus = setting.parallel.schedulers
    prompts = replace(prefill(gpus, np.asarray(tokens) / gpus), overlap=INDEPENDENT)
    works = drafter_works(setting, drafter, prompts)
    times_us = (device_us(setting.latency, _not_attending(work)) for work in works)
    return sum(times_us, start=np.zeros(np.shape(tokens)))


def imbalance_us(setting: Setting, tokens: FloatArray) -> FloatArray:
    """What linear(S) takes longer where one GPU attends to all of the tokens, microseconds.

    0 unless GPUs attend to their own requests: then one has all rows of the linear layers around attention.
    """
    gpus, tokens = setting.parallel.schedulers, np.asarray(tokens, dtype=np.float64)
    if gpus == 1:
        return np.zeros(tokens.shape)
    alone_us, spread_us = (
        device_us(setting.latency, _not_attending(_of_prompts(setting, launches, prompts)))
        for prompts in (prefill(1, tokens), prefill(gpus, tokens / gpus))
        for launches in (model_launches(setting.shard, prompts, setting.runtime),)
    )
    return alone_us - spread_us


def busiest_share(gpus: int, prompts: Size) -> FloatArray:
    """Share of prompts on the GPU that attends to most of them: an even share, but of whole prompts.

    gpus: that attend to their own requests.
    """
    some = np.maximum(prompts, _LEAST_PROMPTS)
    return np.asarray(np.maximum(some / gpus, np.minimum(some, 1.0)) / some)


def imbalance_share(gpus: int, busiest: FloatArray) -> FloatArray:
    """Part of `imbalance_us` on several GPUs: 1 where one has all prompts, 0 where all have as many."""
    return np.asarray((gpus * busiest - 1.0) / (gpus - 1.0))


def timed_rows(most: float) -> FloatArray:
    """Rows at which `linear_us` is asked for a step of up to `most` rows; rising, the last holds them all.

    Above 28 they are 32, 33, 64, 65 and so on. Times between them are within 3 % of those that are asked.
    """
    rows, start = list(_FEW_ROWS), 0
    for spacing, end in _ROWS:
        last = min(end, spacing * int(np.ceil(most / spacing)))
        rows += [row for edge in range(start + spacing, last + spacing, spacing) for row in (edge, edge + 1)]
        start = end
        if last < end:
            break
    rising = np.asarray(rows, dtype=np.float64)
    return rising[: np.searchsorted(rising, most) + 1]


def _chunk(tokens: Size, kv_len: Size) -> Workload:
    """Tokens of one prompt that end at `kv_len`."""
    return Workload(phase="prefill", batch=1, seq_len=kv_len, query_tokens=tokens)


def _of_prompts(setting: Setting, launches: tuple[Launch, ...], workload: Workload) -> PassWork:
    return PassWork(launches=launches, runtime=setting.runtime, workload=workload, of="prompts")


def _attending(work: PassWork) -> PassWork:
    """The attention of a pass alone."""
    return replace(work, launches=tuple(launch for launch in work.launches if launch.attends))


def _not_attending(work: PassWork) -> PassWork:
    """A pass without its attention."""
    return replace(work, launches=tuple(launch for launch in work.launches if not launch.attends))
