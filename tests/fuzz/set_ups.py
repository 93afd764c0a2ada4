"""Commands about set-ups that are mostly valid: any GPU, model and runtime, one of its drafters, any lengths.

Bases with a changed option show how wrong input is refused; these show what right input meets.
"""

from random import Random
from typing import TypeAlias

from medusa_sim.engines.runtime import load_runtime, runtime_names
from medusa_sim.gpus.gpu_names import gpu_names
from medusa_sim.models.named import model_names
from medusa_sim.step.drafter import drafter_names

Option: TypeAlias = tuple[float, str, tuple[str, ...]]
"""How often an option is given, and which of its values (none: a flag)."""

ACCEPTANCES = ("0.6", "0.78,0.6,0.42", "2.4@3", "55%@3", "conditional:0.8,0.7")
DRAFT_MODELS = ("llama-68m", "qwen3-0.6b", "llama-3.2-1b")
PROMPTS, OUTPUTS = ("0", "1", "20", "500", "4000", "30000"), ("1", "2", "3", "50", "1000")
ALL: tuple[Option, ...] = (
    (0.4, "--tp", ("2", "4", "8")), (0.1, "--ep", ("2", "8")), (0.1, "--dp-attention", ()),
    (0.1, "--dtype", ("bf16", "fp16", "fp8", "nvfp4")), (0.1, "--weight-dtype", ("fp8", "int4", "mxfp4")),
    (0.2, "--kv-dtype", ("fp8", "bf16")), (0.1, "--max-drafts", ("1", "5", "12")), (0.2, "--trees", ()),
)  # fmt: skip
OWN: dict[str, tuple[Option, ...]] = {
    "sweep": ((0.5, "--batch", ("1,7,64", "1..9", "512")), (0.5, "--candidates", ("1,4", "1..9", "1,64"))),
    "recommend": (
        (0.8, "--batch", ("1..4", "60..66", "1..256", "300")), (0.2, "--seq", ("100", "2048..8192")),
        (0.2, "--max-latency-ms", ("20",)), (0.3, "--length-cv", ("0", "0.5", "1.5")), (0.3, "--verbose", ()),
        (0.2, "--export", ("vllm", "sglang", "tensorrt-llm", "llama-cpp")), (0.1, "--by-count", ()),
    ),
    "load": (
        (1.0, "--requests", ("40",)), (1.0, "--seeds", ("1",)), (0.3, "--rate", ("0.1", "5", "50")),
        (0.5, "--policy", ("none,3", "none,schedule", "budget", "adaptive", "throughput_aware")),
        (0.3, "--max-num-seqs", ("1", "8")), (0.2, "--max-num-batched-tokens", ("512", "8192")),
        (0.3, "--length-cv", ("0", "0.5", "1.5")),
    ),
}  # fmt: skip
"""Options of one command."""


def set_up(pick: Random) -> list[str]:
    """One command."""
    command, runtime = pick.choice(tuple(OWN)), pick.choice(runtime_names())
    engine = load_runtime(runtime).engine
    drafter = pick.choice(sorted(engine.drafters) if engine and engine.drafters else drafter_names())
    args = [command, "--gpu", pick.choice(gpu_names()), "--model", pick.choice(model_names())]
    args += ["--runtime", runtime, "--drafter", drafter]
    usual: list[Option] = [(0.5, "--acceptance", ACCEPTANCES), *ALL, *OWN[command]]
    if command == "load" or pick.random() < 0.7:
        usual += [(1.0, "--prompt-tokens", PROMPTS), (1.0, "--output-tokens", OUTPUTS)]
    if drafter in ("draft-model", "pard"):
        usual += [(1.0, "--draft-model", DRAFT_MODELS)]
    for share, option, values in usual:
        if pick.random() < share:
            args += [option, pick.choice(values)] if values else [option]
    return args
