"""Kernels that read prompts, of the target and of a drafter: times and joules both take them from here.

    linear(S)     everything that all S tokens of a step share, spread over its GPUs
    attention(P)  the causal square of one prompt by itself, on the GPU that attends to it

A step that reads n prompts of S tokens in all takes linear(S), and attention of n prompts. Each token of a
prompt is taken to choose its experts by itself.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.operators.operator import Size
from medusa_sim.step.drafter.base import Drafter
from medusa_sim.step.expert_union import INDEPENDENT
from medusa_sim.step.launch import Launch
from medusa_sim.step.network import LOGIT_OPERATORS, model_launches
from medusa_sim.step.pass_time import device_us, work_time
from medusa_sim.step.pass_work import PassWork
from medusa_sim.step.setting import Setting
from medusa_sim.step.step_time import StepTime
from medusa_sim.step.workload import Workload, decode, prefill

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


def linear_step(setting: Setting, tokens: FloatArray) -> StepTime:
    """The same with its band."""
    return work_time(setting.latency, linear_work(setting, tokens))


def linear_work(setting: Setting, tokens: FloatArray) -> PassWork:
    """Kernels of `linear_us`."""
    workload = decode(tokens, 1)
    work = _of_prompts(setting, model_launches(setting.shard, workload, setting.runtime), workload)
    kept = (launch for launch in work.launches if launch.operator.name not in LOGIT_OPERATORS)
    return _not_attending(replace(work, launches=tuple(kept)))


def drafter_linear_us(setting: Setting, drafter: Drafter | None, tokens: FloatArray) -> FloatArray:
    """Device time of everything but attention that a drafter adds for tokens of prompts, microseconds."""
    gpus = setting.parallel.schedulers
    prompts = replace(prefill(gpus, np.asarray(tokens) / gpus), overlap=INDEPENDENT)
    works = drafter_works(setting, drafter, prompts)
    times_us = (device_us(setting.latency, _not_attending(work)) for work in works)
    return sum(times_us, start=np.zeros(np.shape(tokens)))


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
