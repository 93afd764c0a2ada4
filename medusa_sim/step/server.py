"""A step seen through a server: the time between two chunks of a request, and per token of it.

    (N6)  filter   = filter_us + (filter_bytes / B + filter_us_per_million) V (1 + 0.2 z)
                     (min(r, 128) + 0.7 max(r - 128, 0))
    (N7)  f        = 1 - exp(-b tau / N),  prompts = (b tau / N) / f    steps that carry prompts; how many
    (N8)  carried  = linear(m + prompts P) - linear(m) + prompts attention(P)     prompts ride on steps
                   = linear(prompts P) + prompts attention(P)                 they have passes of their own
                     and where a server that drafts has no graph for these |that, launches u|_3
                 = |step + that, launches u|_3 - step       steps with prompts are launched kernel by kernel
    (N9)  itl      = step + filter + g carried,  g = f^2 / (f^2 + (1 - f)^2)
    (N10) tpot     = (step + filter + f carried (b - 1) / b) / tau     from a request's first token on
    (N11) tokens/s = b tau / (step + filter + f carried)
    (N17) ttft     = server + 3/2 step + carried

P and N are the mean tokens of a prompt and of an output: in a server that stays full every finished request
brings a prompt, which a decode step carries. (N9) is the median gap: it sees carried prompts where most steps
carry one. r rows of logits, m tokens of the step, z = 1 where top-k is asked beside top-p. Without P and N
nothing is carried.

Watts of a step and what they cost a token (docs/method-engines.md, watts).

    (W2)  load  = idle + (J_byte bytes + J_flop flops + sampling t_filter) / t
    (W3)  watts = load (1 + (load / limit)^4)^(-1/4)

of one GPU: bytes and flops of its kernels in a step of t seconds. (W3) is a smooth minimum: cards lower their
clocks before they reach the limit. The parameters are a card's (`specs/costs.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray, as_float
from medusa_sim.latency.waves import norm_max
from medusa_sim.operators.operator import Attention, Size
from medusa_sim.specs.costs import Power
from medusa_sim.specs.engine import Engine
from medusa_sim.specs.gpu import Gpu
from medusa_sim.step.compose import HOST_OVERLAP, PassWork
from medusa_sim.step.drafter import LOOKUPS
from medusa_sim.step.network import model_launches
from medusa_sim.step.step import Setting, device_us, processed_tokens
from medusa_sim.step.workload import Launch, Workload, decode, prefill
from medusa_sim.units import US_PER_S

_ONCE_A_PROMPT = ("lm_head", "next_token")
"""Operators that a carried prompt adds only once for all its tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Mean tokens of a prompt and of an output of the requests that a server works on."""

    prompt_tokens: float
    output_tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """itl_us: median time between two chunks of a request; tpot_us: mean time per token of it.

    tpot_us counts from the first token on, as load generators do: prompts of others ride, its own is read.
    token_us: the same with its own prompt, what the rate of all requests tells. carried_us: what prompts add
    to a step that carries any; 0 without traffic.
    """

    itl_us: FloatArray
    tpot_us: FloatArray
    token_us: FloatArray
    carried_us: FloatArray


def served_length(setting: Setting, seq_len: Size, traffic: Traffic | None) -> Size:
    """Mean committed tokens of the requests in flight around a length of `seq_len`.

    Long outputs stay in flight longer: a request met in flight is longer than the average one.
    """
    engine = setting.runtime.engine
    if traffic is None or engine is None:
        return seq_len
    return np.asarray(seq_len) + engine.length_spread_share.value * traffic.output_tokens


def served(
    setting: Setting,
    step_us: FloatArray,
    batch: Size,
    candidates: Size,
    tokens_per_step: FloatArray,
    traffic: Traffic | None,
) -> Served:
    """(N6) to (N10) on a step of `batch` requests. step_us: at `served_length`; all broadcast."""
    requests = np.asarray(batch, dtype=np.float64)
    width = processed_tokens(setting, candidates)
    rows = requests * width
    own = np.ceil(requests / setting.parallel.schedulers)
    waiting = np.asarray(step_us)
    engine = setting.runtime.engine
    if engine is not None and setting.scope == "model":
        model = setting.model
        gpu, logits = setting.latency.gpu, own * width
        waiting = waiting + filter_us(engine, gpu, logits, model.filtered_vocab, top_k=model.samples_top_k)
        waiting = waiting + engine.host_us_per_token.value * own * tokens_per_step
    if traffic is None or setting.scope == "block":
        per_token_us = waiting / tokens_per_step
        return Served(itl_us=waiting, tpot_us=per_token_us, token_us=per_token_us, carried_us=np.zeros(()))
    drafted = np.asarray(candidates) > 1
    share, carried_us = carried_prompts(
        setting, requests, rows, tokens_per_step, traffic, step_us=np.asarray(step_us), drafted=drafted
    )
    others = 1.0 - 1.0 / requests
    return Served(
        itl_us=waiting + typical_share(share) * carried_us,
        tpot_us=(waiting + others * share * carried_us) / tokens_per_step,
        token_us=(waiting + share * carried_us) / tokens_per_step,
        carried_us=carried_us,
    )


def filter_us(engine: Engine, gpu: Gpu, rows: Size, vocab: int, *, top_k: bool) -> FloatArray:
    """Top-p (and top-k) of the requests of a server over `rows` rows of logits (N6), microseconds.

    vocab: 0 where the model's generation_config asks for neither.
    """
    asked = np.asarray(rows, dtype=np.float64)
    full = engine.filter_full_rows.value
    counted = np.minimum(asked, full) + engine.filter_share_beyond.value * np.maximum(asked - full, 0.0)
    if not vocab:
        return np.zeros(asked.shape)
    logits = vocab * (1.0 + engine.filter_top_k_share.value * top_k) * counted
    each_us = engine.filter_us_per_million.value / 1e6
    each_us += engine.filter_bytes_per_logit.value / gpu.bandwidth_bytes_per_s * US_PER_S
    return np.asarray(engine.filter_us.value + each_us * logits)


def typical_share(share: FloatArray) -> FloatArray:
    """Weight of carried prompts in the median gap (N9), where `share` of the steps carry any."""
    return np.asarray(share**2 / (share**2 + (1.0 - share) ** 2))


def carried_prompts(
    setting: Setting,
    batch: FloatArray,
    tokens: FloatArray,
    tokens_per_step: FloatArray,
    traffic: Traffic,
    *,
    step_us: FloatArray | float = 0.0,
    drafted: BoolArray | bool = False,
) -> tuple[FloatArray, FloatArray]:
    """(share of the steps of step_us that carry prompts, microseconds that these take longer): (N7), (N8)."""
    share, prompts = carrying(setting, batch, tokens_per_step, traffic)
    linear = linear_us(setting, rows_with_prompts(setting, tokens, prompts, traffic))
    if not prompts_apart(setting):
        linear = np.maximum(linear[0] - linear[1], 0.0)
    # each GPU attends to its own prompts
    attention_us = prompt_attention_us(setting, traffic.prompt_tokens, traffic.prompt_tokens)
    carried_us = np.asarray(linear + prompts * attention_us / setting.parallel.schedulers)
    host_us = prompt_host_us(setting)
    if not host_us:
        return share, carried_us
    apart = prompts_apart(setting)
    own_us = 0.0 if apart else step_us
    launched_us = prompt_pass_us(own_us + carried_us, host_us) - own_us
    return share, np.where(np.logical_or(drafted, not apart), launched_us, carried_us)


def carrying(
    setting: Setting, batch: FloatArray, tokens_per_step: FloatArray, traffic: Traffic
) -> tuple[FloatArray, FloatArray]:
    """(share of the steps that carry prompts, how many these carry): (N7).

    Where a step with a prompt is launched kernel by kernel on every GPU, prompts of a server with
    data-parallel attention wait for each other, one for each GPU.
    """
    waits = not prompts_apart(setting) and prompt_host_us(setting)
    together = setting.parallel.schedulers if waits else 1
    finished = batch * tokens_per_step / traffic.output_tokens
    share = -np.expm1(-finished / together)
    return share, finished / share


def rows_with_prompts(
    setting: Setting, tokens: FloatArray, prompts: FloatArray, traffic: Traffic
) -> FloatArray:
    """Rows that (N8) times: of the prompts where they have passes of their own, else (with them, without)."""
    read = prompts * traffic.prompt_tokens
    return read if prompts_apart(setting) else np.stack(np.broadcast_arrays(tokens + read, tokens))


def prompts_apart(setting: Setting) -> bool:
    """Whether prompts have passes of their own."""
    engine = setting.runtime.engine
    return engine is not None and engine.prompts_apart


def prompt_host_us(setting: Setting) -> float:
    """Microseconds of the host in prompts that no graph holds.

    In a pass of their own that is so where a server drafts by passes; where they ride on a step, the whole
    step is launched so.
    """
    engine = setting.runtime.engine
    if engine is None or not engine.prompt_us_per_launch.value:
        return 0.0
    if engine.prompts_apart and (setting.method or setting.drafter.name) in LOOKUPS:
        return 0.0
    launches = model_launches(setting.shard, prefill(1, 1), setting.runtime)
    return engine.prompt_us_per_launch.value * sum(launch.kernels for launch in launches)


def prompt_pass_us(device_us: FloatArray, launching_us: FloatArray | float) -> FloatArray:
    """(N8): a pass of prompts whose kernels the host launches one by one, ahead of the device."""
    return norm_max(device_us, np.asarray(launching_us), HOST_OVERLAP)


def first_token_us(setting: Setting, step_us: FloatArray, seen: Served) -> FloatArray:
    """(N17) mean time to the first token in a server that is full but keeps no queue, microseconds.

    A request waits for half the running step, then its whole prompt rides on the next one, with those of
    others that came meanwhile.
    """
    engine = setting.runtime.engine
    server_us = 0.0 if engine is None else engine.server_us.value
    return np.asarray(server_us + 1.5 * step_us + seen.carried_us)


def prompt_attention_us(setting: Setting, tokens: Size, kv_len: Size) -> FloatArray:
    """Device time of the attention of a prompt's `tokens` that end at `kv_len`, microseconds."""
    workload = Workload(phase="prefill", batch=1, seq_len=kv_len, query_tokens=tokens)
    launches = tuple(
        launch
        for launch in model_launches(setting.shard, workload, setting.runtime)
        if launch.part == "attention"
    )
    work = PassWork(launches=launches, runtime=setting.runtime, workload=workload, of="continued")
    return device_us(setting.latency, work)


def linear_us(setting: Setting, tokens: FloatArray) -> FloatArray:
    """Device time of everything in a step that is shared by all its `tokens`, microseconds."""
    return device_us(setting.latency, linear_work(setting, tokens))


def linear_work(setting: Setting, tokens: FloatArray) -> PassWork:
    """Kernels of `linear_us`."""
    workload = decode(tokens, 1)
    launches = tuple(
        launch
        for launch in model_launches(setting.shard, workload, setting.runtime)
        if launch.part != "attention" and launch.operator.name not in _ONCE_A_PROMPT
    )
    return PassWork(launches=launches, runtime=setting.runtime, workload=workload, of="continued")


def launch_joules(
    gpu: Gpu, power: Power, launches: Iterable[Launch], *, with_bytes: bool = True
) -> FloatArray:
    """Joules above idle of some kernels on one GPU; with_bytes: what they move counts too."""
    by_shape: dict[tuple[int, ...], FloatArray] = {}
    for launch in launches:
        operator, times = launch.operator, launch.count * launch.share
        one = operator.with_columns(batch=1.0) if isinstance(operator, Attention) else operator
        joules = times * joule_per_flop(gpu, power, operator.dtype) * one.flops
        if with_bytes:
            joules = joules + times * power.fit.joule_per_byte * one.bytes
        if isinstance(operator, Attention):  # of each sequence: small arrays as long as can be
            joules = as_float(operator.batch) * joules
        held = by_shape.get(joules.shape)
        by_shape[joules.shape] = joules if held is None else held + joules
    total = np.zeros(())
    for joules in sorted(by_shape.values(), key=lambda array: array.size):
        total = total + joules
    return total


def joule_per_flop(gpu: Gpu, power: Power, dtype: str) -> float:
    """Of arithmetic in a dtype: the same watts at the same share of its peak; as fitted where it has none."""
    peaks = gpu.peak_flops_per_s
    return power.fit.joule_per_flop * peaks[power.fit.dtype] / peaks.get(dtype, peaks[power.fit.dtype])


def served_joules(
    gpu: Gpu, power: Power, setting: Setting, batch: Size, rows: Size, tokens_per_step: Size, traffic: Traffic
) -> FloatArray:
    """Joules above idle that a server adds to a step: filtered logits, and prompts that ride on it.

    rows: of logits.
    """
    finished = np.asarray(batch, dtype=np.float64) * np.asarray(tokens_per_step) / traffic.output_tokens
    prompt = prompt_joules(gpu, power, setting, traffic.prompt_tokens)
    return np.asarray(finished * prompt + sampling_joules(gpu, power, setting, rows))


def prompt_joules(gpu: Gpu, power: Power, setting: Setting, prompt_tokens: float) -> FloatArray:
    """Joules above idle of a prompt on one GPU: its FLOPs alone, since it shares the weights of a step."""
    launches = model_launches(setting.shard, prefill(1, prompt_tokens), setting.runtime)
    return launch_joules(gpu, power, launches, with_bytes=False)


def sampling_joules(gpu: Gpu, power: Power, setting: Setting, rows: Size) -> FloatArray:
    """Joules above idle of filtering so many rows of logits (N6), of which one of the GPUs has them all."""
    engine, model = setting.runtime.engine, setting.model
    if engine is None:
        return np.zeros(())
    filtered_us = filter_us(engine, gpu, rows, model.filtered_vocab, top_k=model.samples_top_k)
    return np.asarray(power.fit.sampling_watts * filtered_us / US_PER_S / setting.parallel.tp)


def watts(power: Power, joules: FloatArray, time_us: FloatArray) -> FloatArray:
    """Mean watts of one GPU over steps that take so long and so many joules above idle."""
    load = load_watts(power.fit.idle_watts, joules / time_us * US_PER_S)
    return under_limit(load, power.limit_watts)


def load_watts(idle_watts: float, above_watts: FloatArray) -> FloatArray:
    """(W2): what the work would draw without a limit."""
    return np.asarray(idle_watts + above_watts)


def under_limit(load: FloatArray, limit_watts: float) -> FloatArray:
    """(W3): never above the limit, and below it the lower the closer the load comes."""
    share = np.asarray(load / limit_watts)  # and then in place: a power of 4, and its root
    share *= share
    share *= share
    share += 1.0
    return np.asarray(load / np.sqrt(np.sqrt(share, out=share), out=share))
