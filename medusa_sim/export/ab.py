"""Commands with which a user checks the answer on the same engine: without speculation, and with it.

Acceptance is made synthetic, so that the engine accepts exactly what was assumed and what is compared is the
time of its steps: vLLM `rejection_sample_method` synthetic (unconditional rates by position), SGLang
`SGLANG_SIMULATE_ACC_LEN` (counts the bonus token), TensorRT-LLM `TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS`
(does not). The results are what `calibrate engine` reads.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import msgspec

from medusa_sim.errors import UsageError
from medusa_sim.export import sglang, tensorrt_llm, vllm
from medusa_sim.export.chains import ChainPlan
from medusa_sim.export.settings import EngineSettings
from medusa_sim.plan.recommendation import Recommendation

ENGINES = ("vllm", "sglang", "tensorrt-llm")
_PORT = {"vllm": 8000, "sglang": 30000, "tensorrt-llm": 8000}
_OUTPUT_TOKENS = 256
_PROMPTS_PER_REQUEST = 8
_DIGITS = 4


def ab_script(answer: Recommendation, settings: EngineSettings, draft_path: str | None) -> str:
    """A shell script with both runs, the predicted speedups beside them, and the comparison at the end.

    Raises UsageError for an engine without synthetic acceptance, and for trees, whose acceptance by position
    cannot be given to an engine.
    """
    engine, plan = settings.engine, settings.plan
    if engine not in ENGINES:
        raise UsageError(
            f"{engine} has no synthetic acceptance to check with; --ab knows {', '.join(ENGINES)}"
        )
    if engine == "tensorrt-llm" and answer.drafting.method in tensorrt_llm.SYNCHRONOUS:
        raise UsageError(
            "tensorrt-llm forces accepted tokens in one-model drafting only, not with "
            f"{answer.drafting.method}; --ab checks eagle and mtp there, or any chain with --export vllm"
        )
    if plan is None:
        raise UsageError(f"{engine}: synthetic acceptance is for chains; add --chain-only to check a chain")
    lines = [
        f"# {engine} {settings.version} without and with speculation, acceptance made synthetic",
        f"MODEL=...  # the checkpoint of {answer.setting.model.name}",
        *(f"# predicted at batch {batch}: {plan.grid.speedup(batch, plan.drafts_at(batch)):.2f}x, "
          f"{acceptance_length(plan, batch):.2f} tokens a step" for batch in batches(plan)),
        "",
        "# A: no speculation",
        _serve(engine, ""),
        *_bench(engine, answer, plan, "plain"),
        "",
        "# B: speculation (stop A first)",
        *_speculative(engine, answer, settings, draft_path),
        *_bench(engine, answer, plan, "spec"),
        "",
        "# the speedup is the ratio of output tokens per second; the same files calibrate a runtime",
        f"medusa-sim calibrate engine plain_*.json* spec_*.json* --gpu {answer.gpu.name} "
        f"--model {answer.setting.model.name} --name mine",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def batches(plan: ChainPlan) -> tuple[int, ...]:
    """Batches to run: the ends of what was searched, of every tier, and one in the middle."""
    grid = plan.grid.batch
    middle = int(grid[grid.searchsorted(round(float(grid[0] * grid[-1]) ** 0.5))])
    ends = [tier.batch_max for tier in plan.tiers]
    return tuple(sorted({int(grid[0]), middle, int(grid[-1]), *ends}))


def acceptance_length(plan: ChainPlan, batch: int) -> float:
    """Tokens per step that the plan's rates give at a batch, the bonus token included."""
    return 1.0 + sum(plan.rates[: plan.drafts_at(batch)])


def _lengths(answer: Recommendation) -> tuple[int, int]:
    """(prompt, output) tokens whose middle context is the length that was asked for."""
    if answer.question.request is not None:
        prompt, output = answer.question.request
        return prompt, output
    length = answer.question.seq_len[0]
    output = min(_OUTPUT_TOKENS, max(length // 2, 1))
    return max(length - output // 2, 1), output


def _serve(engine: str, words: str) -> str:
    command = {
        "vllm": 'vllm serve "$MODEL"',
        "sglang": 'python -m sglang.launch_server --model-path "$MODEL"',
        "tensorrt-llm": 'trtllm-serve "$MODEL"',
    }[engine]
    return f"{command} --port {_PORT[engine]}{f' {words}' if words else ''} &"


def _bench(engine: str, answer: Recommendation, plan: ChainPlan, label: str) -> Iterator[str]:
    prompt, output = _lengths(answer)
    for batch in batches(plan):
        common = (
            f"--dataset-name random --random-input-len {prompt} --random-output-len {output} "
            f"--max-concurrency {batch} --num-prompts {_PROMPTS_PER_REQUEST * batch}"
        )
        name = f"{label}_b{batch}"
        if engine == "sglang":
            yield (
                f"python -m sglang.bench_serving --backend sglang --port {_PORT[engine]} {common} "
                f"--random-range-ratio 1 --output-file {name}.jsonl"
            )
        else:
            tool = (
                "vllm bench serve"
                if engine == "vllm"
                else "python -m tensorrt_llm.serve.scripts.benchmark_serving"
            )
            yield (
                f'{tool} --model "$MODEL" --port {_PORT[engine]} {common} --ignore-eos --save-result '
                f"--result-filename {name}.json"
            )


def _speculative(
    engine: str, answer: Recommendation, settings: EngineSettings, draft_path: str | None
) -> Iterator[str]:
    plan = settings.plan
    assert plan is not None  # noqa: S101  # ab_script has refused trees
    whole = acceptance_length(plan, int(plan.grid.batch[0]))
    if engine == "vllm":
        config = vllm.speculative_config(answer, plan, settings.version, draft_path)
        rates = [round(rate, _DIGITS) for rate in plan.rates]
        synthetic = msgspec.structs.replace(
            config, rejection_sample_method="synthetic", synthetic_acceptance_rates=rates
        )
        yield _serve(engine, vllm.flag(synthetic))
    elif engine == "sglang":
        flags = sglang.flags_of(answer, plan, None, settings.version)
        if file := sglang.adaptive_file(flags):
            yield file.rstrip("\n")
        yield (
            f"SGLANG_SIMULATE_ACC_LEN={whole:.2f} SGLANG_SIMULATE_ACC_METHOD=match-expected \\\n"
            "SGLANG_SIMULATE_ACC_TOKEN_MODE=real-draft-token \\\n"
            + _serve(engine, shlex.join(sglang.words(flags, draft_path)))
        )
    else:
        yaml = tensorrt_llm.speculative_config(answer, plan, None, settings.version, draft_path)
        synchronous = answer.drafting.method in tensorrt_llm.SYNCHRONOUS
        yield "cat > speculative.yaml <<'EOF'"
        yield from tensorrt_llm.yaml_lines(yaml, synchronous=synchronous)
        yield "EOF"
        yield (
            f"TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS={whole - 1.0:.2f} \\\n"
            + _serve(engine, "--config speculative.yaml")
        )
