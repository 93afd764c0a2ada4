"""Writes the files beside it: made-up numbers in the exact formats of engines and load generators.

Formats: vLLM 0.32 (`/metrics`, `bench serve`, `bench latency`, `bench throughput`, responses), SGLang 0.5.23
(`bench_serving`, `sglext`), TensorRT-LLM (responses, pull request 19311), AIPerf 0.13
(`profile_export.jsonl`, `profile_export_aiperf.json`), GuideLLM 0.7 (`benchmarks.json`), llama.cpp
b10532 (log). Run it to write them again: `python tests/data/engine/make_files.py`.
"""

import json
from pathlib import Path

HERE = Path(__file__).parent
MODEL = "meta-llama/Llama-3.1-8B-Instruct"
PROMPT, OUTPUT = 128, 512
ACCEPTED = (700, 420, 210)
"""Of 1,000 steps with three drafts: conditional rates 0.7, 0.6, 0.5."""
HISTOGRAM = (300, 280, 210, 210)
"""Steps that accepted 0, 1, 2 and 3 drafts."""


def itl_us(batch: int) -> float:
    """A step of plain decoding: kernels, 1 ms of the engine and some work for every request."""
    return 5600.0 + 1000.0 + 62.0 * batch + 0.02 * batch**1.5


def step_us(batch: int) -> float:
    """A step with three drafts."""
    return 1.12 * itl_us(batch) + 2600.0 + 38.0 * batch


def write(name: str, text: str) -> None:
    (HERE / name).write_text(text, encoding="utf-8")


def metrics_page(steps: int, share: float = 1.0) -> str:
    label = f'engine="0",model_name="{MODEL}"'
    accepted = [round(count * steps / 1000) for count in ACCEPTED]
    lines = [
        "# HELP vllm:num_requests_running Number of requests in model execution batches.",
        "# TYPE vllm:num_requests_running gauge",
        f"vllm:num_requests_running{{{label}}} 8.0",
        "# TYPE vllm:generation_tokens_total counter",
        f"vllm:generation_tokens_total{{{label}}} {float(2 * steps + sum(accepted) + steps // 100)}",
        "# TYPE vllm:request_success_total counter",
        f'vllm:request_success_total{{{label},finished_reason="length"}} {float(steps // 100)}',
        "# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.",
        "# TYPE vllm:spec_decode_num_drafts_total counter",
        f"vllm:spec_decode_num_drafts_total{{{label}}} {float(steps)}",
        f"vllm:spec_decode_num_drafts_created{{{label}}} 1.7636e+09",
        "# HELP vllm:spec_decode_num_draft_tokens_total Number of draft tokens.",
        "# TYPE vllm:spec_decode_num_draft_tokens_total counter",
        f"vllm:spec_decode_num_draft_tokens_total{{{label}}} {float(round(3 * steps * share))}",
        "# HELP vllm:spec_decode_num_accepted_tokens_total Number of accepted tokens.",
        "# TYPE vllm:spec_decode_num_accepted_tokens_total counter",
        f"vllm:spec_decode_num_accepted_tokens_total{{{label}}} {float(sum(accepted))}",
        "# HELP vllm:spec_decode_num_accepted_tokens_per_pos_total Accepted tokens per draft position.",
        "# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter",
        *(
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{label},position="{k}"}} {float(count)}'
            for k, count in enumerate(accepted)
        ),
    ]
    return "\n".join(lines) + "\n"


def _times(name: str, *values: float) -> dict[str, object]:
    kinds = ("mean", "median", "std", "p99")
    return {f"{kind}_{name}_ms": value for kind, value in zip(kinds, values, strict=True)}


def serve_result(batch: int, *, drafts: int = 0) -> dict[str, object]:
    """What `vllm bench serve --save-result` writes."""
    per_step = 1.0 + sum(ACCEPTED) / 1000 if drafts else 1.0
    step = step_us(batch) if drafts else itl_us(batch)
    tpot_ms = step / per_step / 1e3
    prompts = 8 * batch
    duration = prompts / batch * (OUTPUT * tpot_ms + 90.0) / 1e3
    result: dict[str, object] = {
        "date": "20261121-120000",
        "endpoint_type": "openai",
        "backend": "openai",
        "label": None,
        "model_id": MODEL,
        "tokenizer_id": MODEL,
        "num_prompts": prompts,
        "request_rate": "inf",
        "burstiness": 1.0,
        "max_concurrency": batch,
        "duration": duration,
        "completed": prompts,
        "failed": 0,
        "total_input_tokens": PROMPT * prompts,
        "total_output_tokens": OUTPUT * prompts,
        "request_throughput": prompts / duration,
        "request_goodput": None,
        "output_throughput": OUTPUT * prompts / duration,
        "total_token_throughput": (PROMPT + OUTPUT) * prompts / duration,
        **_times("ttft", 90.0, 88.0, 9.0, 120.0),
        **_times("tpot", tpot_ms * 1.004, tpot_ms, 0.1, tpot_ms * 1.05),
        **_times("itl", step / 1e3 * 1.004, step / 1e3, 0.5, step / 1e3 * 1.4),
    }
    if drafts:
        steps = 1000 * batch
        result |= {
            "spec_decode_acceptance_rate": 100.0 * sum(ACCEPTED) / 3000,
            "spec_decode_acceptance_length": per_step,
            "spec_decode_num_drafts": steps,
            "spec_decode_draft_tokens": drafts * steps,
            "spec_decode_accepted_tokens": sum(ACCEPTED) * batch,
            "spec_decode_per_position_acceptance_rates": [count / 1000 for count in ACCEPTED],
        }
    return result


def sglang_result(batch: int) -> dict[str, object]:
    """A line of SGLang's bench_serving."""
    counts = "max_concurrency duration completed total_input_tokens total_output_tokens request_throughput"
    whole = serve_result(batch)
    kept = [name for name in whole if name in (*counts.split(), "output_throughput") or name.endswith("_ms")]
    return {
        "backend": "sglang", "dataset_name": "random", "request_rate": "inf", "sharegpt_output_len": None,
        "random_input_len": PROMPT, "random_output_len": OUTPUT, "random_range_ratio": 1.0,
        **{name: whole[name] for name in kept},
        "total_output_tokens_retokenized": whole["total_output_tokens"], "mean_e2e_latency_ms": 2400.0,
        "median_e2e_latency_ms": 2390.0, "concurrency": 0.97 * batch, "accept_length": None,
    }  # fmt: skip


def guidellm_report(batches: tuple[int, ...]) -> dict[str, object]:
    def successful(value: float) -> dict[str, object]:
        return {
            "successful": {
                "mean": value * 1.003,
                "median": value,
                "std_dev": 0.02 * value,
                "percentiles": {"p50": value, "p95": 1.1 * value},
            }
        }

    return {
        "metadata": {"version": 1, "guidellm_version": "0.7.4"},
        "args": {"target": "http://localhost:8000", "model": MODEL},
        "benchmarks": [
            {
                "config": {"strategy": {"type_": "concurrent", "streams": batch}},
                "metrics": {
                    "request_totals": {"successful": 8 * batch, "errored": 0, "incomplete": 0},
                    "request_concurrency": successful(float(batch)),
                    "prompt_token_count": successful(float(PROMPT)),
                    "output_token_count": successful(float(OUTPUT)),
                    "time_to_first_token_ms": successful(88.0),
                    "inter_token_latency_ms": successful(itl_us(batch) / 1e3),
                    "time_per_output_token_ms": successful(itl_us(batch) / 1e3 + 0.35),
                    "output_tokens_per_second": successful(batch * 1e6 / itl_us(batch)),
                },
            }
            for batch in batches
        ],
    }


def aiperf_report(batch: int) -> dict[str, object]:
    def metric(unit: str, value: float) -> dict[str, object]:
        return {"unit": unit, "avg": value, "p50": value, "p99": 1.2 * value, "count": 8 * batch}

    return {
        "schema_version": "1.3",
        "aiperf_version": "0.13.0",
        "input_config": {"endpoint": {"model_names": [MODEL]}, "loadgen": {"concurrency": batch}},
        "request_count": {"unit": "requests", "avg": float(8 * batch)},
        "inter_token_latency": metric("ms", itl_us(batch) / 1e3),
        "time_to_first_token": metric("ms", 88.0),
        "output_token_throughput": {"unit": "tokens/sec", "avg": batch * 1e6 / itl_us(batch)},
        "input_sequence_length": metric("tokens", float(PROMPT)),
        "output_sequence_length": metric("tokens", float(OUTPUT)),
        "was_cancelled": False,
        "error_summary": [],
    }


def aiperf_record(number: int, lengths: tuple[tuple[int, int], ...]) -> dict[str, object]:
    """A line of AIPerf's `profile_export.jsonl`; lengths: (drafted, accepted) of every step."""
    accepted = [j for _, j in lengths]
    return {
        "metadata": {"session_num": number, "benchmark_phase": "profiling", "worker_id": "worker_1"},
        "metrics": {"output_sequence_length": {"value": OUTPUT, "unit": "tokens"}},
        "spec_decode_acceptance": {
            "engine": "vllm",
            "mean_acceptance_length": 1.0 + sum(accepted) / len(lengths),
            "draft_acceptance_rate": sum(accepted) / sum(k for k, _ in lengths),
            "acceptance_histogram": {str(j): accepted.count(j) for j in sorted(set(accepted))},
            "num_accepted_draft_tokens": sum(accepted),
            "num_draft_tokens": sum(k for k, _ in lengths),
            "num_spec_steps": len(lengths),
            "num_spec_tokens": 3,
            "per_step_accepted": accepted,
            "per_step_drafted": [k for k, _ in lengths],
        },
    }


def lines(*documents: object) -> str:
    return "".join(json.dumps(document) + "\n" for document in documents)


def main() -> None:
    write("vllm_metrics_before.txt", metrics_page(1000))
    write("vllm_metrics_after.txt", metrics_page(21000))
    for batch in (1, 8, 64):
        write(f"vllm_serve_plain_b{batch}.json", json.dumps(serve_result(batch)))
        write(f"vllm_serve_spec_b{batch}.json", json.dumps(serve_result(batch, drafts=3)))
    latency = {"model_id": MODEL, "avg_latency": OUTPUT * itl_us(8) / 1e6 + 0.09}
    latency |= {"latencies": [2.3, 2.31], "percentiles": {"50": 2.3}}
    write("vllm_latency_b8.json", json.dumps(latency, indent=4))
    tokens = PROMPT + OUTPUT
    counts = {"elapsed_time": 20.0, "num_requests": 64, "total_num_tokens": 64 * tokens}
    rates = {"requests_per_second": 3.2, "tokens_per_second": 3.2 * tokens}
    write("vllm_throughput.json", json.dumps({"model_id": MODEL, **counts, **rates}, indent=4))
    write("sglang_bench.jsonl", lines(*(sglang_result(batch) for batch in (1, 8, 64))))
    write("guidellm_benchmarks.json", json.dumps(guidellm_report((1, 8, 64))))
    for batch in (1, 64):
        write(f"profile_export_aiperf_b{batch}.json", json.dumps(aiperf_report(batch)))
    rows = "".join(f"{b},{itl_us(b) / 1e3:.3f},{PROMPT},{OUTPUT}\n" for b in (1, 8, 64))
    write("bench.csv", f"concurrency,itl_ms,prompt,output\n{rows}")
    steps = tuple((3, j) for j, count in enumerate(HISTOGRAM) for _ in range(count // 10))
    short = ((1, 1), (1, 1), (1, 0), (2, 1))
    write("aiperf_records.jsonl", lines(aiperf_record(0, steps), aiperf_record(1, short)))
    spec = {
        "acceptance_rate": 0.443, "total_accepted_draft_tokens": sum(ACCEPTED), "total_draft_tokens": 3000,
        "num_spec_steps": 1000, "acceptance_histogram": list(HISTOGRAM), "num_spec_tokens": 3,
    }  # fmt: skip
    answer = {"id": "cmpl-1", "model": MODEL, "choices": [{"index": 0, "speculative_decoding": spec}]}
    write("tensorrt_llm_response.json", json.dumps(answer))
    details = {
        "spec_accept_rate": 0.443,
        "spec_accept_length": 2.33,
        "spec_num_correct_drafts": sum(ACCEPTED),
        "spec_num_proposed_drafts": 3000,
        "spec_verify_ct": 1000,
        "spec_correct_drafts_histogram": list(HISTOGRAM),
    }
    answer = {"id": "1", "model": MODEL, "choices": [], "sglext": {"spec_tokens_details": details}}
    write("sglang_response.json", json.dumps(answer))
    write(
        "sglang_metrics.txt",
        'sglang:spec_accept_length{engine_type="unified",model_name="m"} 2.33\n'
        'sglang:spec_num_steps{engine_type="unified",model_name="m"} 3.0\n',
    )
    write(
        "llama_cpp.log",
        "0.06.896.009 I slot print_timing: id  1 | task 0 |    graphs reused =         85\n"
        "0.06.896.015 I slot print_timing: id  1 | task 0 | draft acceptance = 0.44333 ( 1330 accepted /  "
        "3000 generated), mean acceptance length =  2.33, acceptance rate per position = (0.700, 0.420, "
        "0.210)\n"
        "0.06.896.057 I statistics     draft-eagle3: #calls(b,g,a) =  1   1000   1000, #gen drafts = 1000\n",
    )


if __name__ == "__main__":
    main()
