"""Where a fit of layers of experts begins: tiles of a library, its rules for them, shapes that it tuned.

Most libraries choose among tiles by what was timed: the fit begins with the common ones and finds out. The
Triton kernels of SGLang and vLLM have a rule instead (`get_default_config`, Apache-2.0; SGLang 0.5.14,
sglang/srt/layers/moe/fused_moe_triton; vLLM 0.24, vllm/model_executor/layers/fused_moe), and files of tuned
tiles for some shapes and devices, whose names say for which. The rows say so as well: beyond one token an
expert SGLang's time steps up by half where no file is. FlashInfer's TensorRT-LLM kernels step at 8, 16 and 32
rows an expert (in the mean, however they are spread).
"""

from __future__ import annotations

from typing import NamedTuple

from medusa_sim.specs.fitted import ExpertTile, TunedShape
from medusa_sim.specs.gpu import Gpu

TILES = tuple(ExpertTile(rows=rows, columns=128) for rows in (16, 32, 64, 128))
"""What a library chooses from by time."""


class Rule(NamedTuple):
    """A library's rule for tiles in some formats, and by GPU the shapes (experts, width) that it tuned."""

    forms: tuple[str, ...]
    tiles: tuple[ExpertTile, ...]
    tuned: dict[str, tuple[tuple[int, int], ...]]


_HALVES = ("bf16", "fp16")
_MIXTRAL = ((8, 1792), (8, 3584), (8, 7168))
_VLLM_8 = ((8, 2048), (8, 4096), *_MIXTRAL)

RULES: tuple[Rule, ...] = (
    Rule(  # SGLang: small tiles up to one token an expert
        _HALVES,
        (ExpertTile(rows=16, columns=32, tokens_per_expert_max=1.0), ExpertTile(rows=64, columns=64)),
        {
            "a100-80gb-sxm": (*_VLLM_8, (64, 640), (64, 1280), (128, 768)),
            "h100-sxm": (*_VLLM_8, (64, 320), (64, 640), (64, 1280), (128, 192), (128, 352), (128, 384),
                         (128, 704), (128, 768), (128, 1344), (128, 1856), (256, 2688), (512, 128),
                         (512, 2688)),
            "h200-sxm": (*_VLLM_8, (8, 14336), (64, 320), (64, 640), (64, 1280), (64, 2560), (128, 96),
                         (128, 192), (128, 384), (128, 704), (128, 768), (256, 128), (512, 128), (512, 256)),
            "b200": ((128, 232), (128, 1856), (256, 512), (512, 128), (512, 256), (512, 336), (512, 1344)),
            "l40s": ((8, 3584), (128, 928), (128, 1856)),
            "rtx-pro-6000": ((256, 512),),
        },
    ),
    Rule(  # vLLM: by tokens
        _HALVES,
        (
            ExpertTile(rows=16, columns=64, tokens_max=32),
            ExpertTile(rows=32, columns=64, tokens_max=64),
            ExpertTile(rows=32, columns=128, tokens_max=96),
            ExpertTile(rows=64, columns=128, tokens_max=512),
            ExpertTile(rows=128, columns=128),
        ),
        {
            "h100-sxm": (*_VLLM_8, (62, 256), (62, 512), (64, 320), (64, 640), (64, 1280), (64, 1536),
                         (72, 384), (72, 768), (128, 192), (128, 384), (128, 512), (128, 928), (128, 1856),
                         (128, 2880), (256, 512), (512, 128), (512, 256), (512, 512)),
        },
    ),
    Rule(  # SGLang, block scales
        ("fp8_block",),
        (ExpertTile(rows=64, columns=128),),
        {
            "h100-sxm": ((128, 384), (128, 768), (256, 128)),
            "h200-sxm": ((64, 512), (128, 384), (128, 768), (160, 640), (256, 128), (256, 256), (256, 512)),
            "b200": ((128, 768), (384, 256)),
        },
    ),
    Rule(  # FlashInfer's TensorRT-LLM kernels on Blackwell: the power of two above the rows of an expert
        ("bf16", "fp16", "fp8_block", "fp8", "nvfp4", "mxfp4_fp8"),
        (
            ExpertTile(rows=8, columns=128, rows_per_expert_max=8.0),
            ExpertTile(rows=16, columns=128, rows_per_expert_max=16.0),
            ExpertTile(rows=32, columns=128, rows_per_expert_max=32.0),
            ExpertTile(rows=64, columns=128, rows_per_expert_max=64.0),
            ExpertTile(rows=128, columns=128),
        ),
        {},
    ),
    Rule(  # vLLM, block scales
        ("fp8_block",),
        (ExpertTile(rows=16, columns=128, tokens_max=64), ExpertTile(rows=64, columns=128)),
        {"h100-sxm": ((256, 128), (256, 384), (512, 128), (512, 256))},
    ),
)  # fmt: skip


class Choices(NamedTuple):
    """How a kernel may choose: tiles by rule (none: by time), and shapes that choose by time all the same."""

    default_tiles: tuple[ExpertTile, ...] = ()
    tuned: tuple[TunedShape, ...] = ()


def rules_of(form: str, gpu: Gpu) -> list[Choices]:
    """How kernels of that format choose their tiles, without a rule first."""
    found = [Choices()]
    for rule in RULES:
        if form in rule.forms:
            shapes = rule.tuned.get(gpu.name, ())
            tuned = tuple(TunedShape(experts=experts, inter=inter) for experts, inter in shapes)
            found.append(Choices(rule.tiles, tuned))
    return found
