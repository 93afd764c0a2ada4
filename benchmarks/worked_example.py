"""The worked example of docs/method.md, its section `example`, and both pictures of that page.

    python benchmarks/worked_example.py            # the section; two seconds of one core
    python benchmarks/worked_example.py --write    # all three

Every figure of the section comes from one scenario; tests/test_method.py computes it again by hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
import pandas as pd
from common.pages import DOCS, filled, write_section
from common.script import command_line
from common.study import table

from medusa_sim.api import Scenario, time_rows
from medusa_sim.engines.engine import Engine
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.grid.single_step import SingleStep
from medusa_sim.models.feed_forwards import Mlp
from medusa_sim.models.mixers import Grouped
from medusa_sim.report.figures.draw import drawing
from medusa_sim.report.palette import BESIDE, INK, OTHER, PARTS, SMALLEST_SHARE
from medusa_sim.units import US_PER_MS, US_PER_S

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GPU, MODEL = "h100-sxm", "llama-3.1-8b"
BATCH, LENGTH, CANDIDATES = 8, 1024, 4
LAYER = ("gate_up_proj", 28672, 4096)
"""The layer that the text takes apart: its launch, n and k."""
WRITTEN_MS = 0.25
"""A part at least so wide carries its figure in the picture."""


def steps() -> tuple[SingleStep, SingleStep]:
    """The plain step and the one that drafts."""
    scenario = Scenario(gpu=GPU, model=MODEL, drafter="eagle3", acceptance=f"eagle3-{MODEL}")
    return scenario.step(BATCH, LENGTH, 1), scenario.step(BATCH, LENGTH, CANDIDATES)


def bytes_of(step: SingleStep) -> dict[str, float]:
    """Weights, K and V that the launches of a kernel read in a step, by (O1) and (O3)."""
    model = step.scenario.model
    group = model.groups[0]
    assert isinstance(group.mixers[0], Grouped)
    assert isinstance(group.feed_forward, Mlp)
    h, layers, width = model.hidden, model.layers, group.feed_forward.width
    w_q, w_kv = (
        group.mixers[0].heads * group.mixers[0].head_dim,
        group.mixers[0].kv_heads * group.mixers[0].head_dim,
    )
    elements = {
        "qkv_proj": layers * h * (w_q + 2 * w_kv),
        "attention": layers * 2 * BATCH * LENGTH * w_kv,
        "o_proj": layers * h * w_q,
        "gate_up_proj": layers * 2 * h * width,
        "down_proj": layers * h * width,
        "lm_head": model.vocab * h,
    }
    return {name: 2.0 * count for name, count in elements.items()}


def kernel_rows(plain: SingleStep, drafted: SingleStep) -> list[tuple[str, ...]]:
    """One line a kernel: bytes, floor, plain step, verification, all drafting passes."""
    read, bandwidth = bytes_of(plain), load_gpu(GPU).bandwidth_bytes_per_s
    times = [_by_kernel(plain, "target"), _by_kernel(drafted, "target"), _by_kernel(drafted, "draft")]

    def sizes(size: float) -> tuple[str, str]:
        return f"{size / 1e9:.3f} GB", f"{US_PER_S * size / bandwidth:,.0f}"

    rows = []
    for name in dict.fromkeys(name for part in times for name in part.index):
        floor = sizes(read[name]) if name in read else ("-", "-")
        rows.append((name, *floor, *(f"{part[name]:,.1f}" if name in part else "-" for part in times)))
    rows.append(("all", *sizes(sum(read.values())), *(f"{part.sum():,.1f}" for part in times)))
    return rows


def _by_kernel(step: SingleStep, owner: str) -> pd.Series[float]:
    frame = step.breakdown()
    frame = frame[frame["pass"].str.startswith(owner)]
    kernel = frame["op"].str.replace(r".*_attention", "attention", regex=True)
    return frame["time_us"].groupby(kernel, sort=False).sum()


def pass_kernels_us(step: SingleStep) -> list[float]:
    """Kernels of each drafting pass."""
    frame = step.breakdown()
    return frame[frame["pass"].str.startswith("draft")].groupby("pass")["time_us"].sum().tolist()


def section() -> str:
    """The text."""
    plain, drafted = steps()
    engine, gpu, model = plain.scenario.runtime.engine, load_gpu(GPU), plain.scenario.model
    heads, tau = plain.scenario.profile.heads, drafted.tokens_per_step
    assert isinstance(engine, Engine)
    assert heads is not None
    assert tau is not None
    fitted = gpu.kernels["sglang"].gemm["bf16"]
    name, n, k = LAYER
    bandwidth = gpu.bandwidth_bytes_per_s / 1e12
    kernels, verify_kernels = _by_kernel(plain, "target"), float(_by_kernel(drafted, "target").sum())
    per_step, per_request, hidden, per_pass, per_draft = (
        engine.terms[term].value
        for term in ("host_us_per_step", "host_us_per_request", "hidden_us_per_step", "draft_us_per_pass",
                     "draft_us_per_request")
    )  # fmt: skip
    host = per_step + BATCH * per_request - hidden
    verify = _norm(verify_kernels, hidden) + host
    rates = heads.accuracy[: CANDIDATES - 1, 0]
    chances = ["1", *(f"{chance:.4f}" for chance in np.cumprod(rates))]
    sweep = cast(Scenario, plain.scenario).sweep(batch=[BATCH], seq_len=[LENGTH], candidates=[CANDIDATES])
    own = pass_kernels_us(drafted)
    headers = f"kernel | weights, K and V | floor | plain, {BATCH} tokens | verification, {BATCH * CANDIDATES} tokens"
    return filled(
        "worked_example",
        gpu=GPU, model=MODEL, batch=BATCH, length=LENGTH, candidates=CANDIDATES, drafts=CANDIDATES - 1,
        tokens=BATCH * CANDIDATES, bandwidth=bandwidth,
        kernels=table(f"{headers} | drafting, {len(own)} passes", 1, kernel_rows(plain, drafted)),
        layer=f"`{name}`", n=n, k=k, fitted=fitted,
        memory=(n * k + BATCH * (n + k)) * 2 / (fitted.bandwidth_fraction * bandwidth) / 1e6,
        launch=kernels[name] / model.layers, all=kernels[name], layers=model.layers,
        per_step=per_step, per_request=per_request, hidden=hidden, host=host, per_pass=per_pass,
        per_draft=per_draft, plain_kernels=float(kernels.sum()), plain=plain, drafted=drafted,
        verify_kernels=verify_kernels, verify=verify,
        passes=" + ".join(f"|{time:.0f}, {per_pass:.0f}|_3" for time in own),
        drafting=drafted.time_us - verify, rates=", ".join(f"{rate:.4f}" for rate in rates),
        sum=" + ".join(chances), tau=tau, spent_ms=drafted.time_us / US_PER_MS,
        rate=BATCH * tau / drafted.time_us * US_PER_S, band=sweep.iloc[0],
    )  # fmt: skip


def _norm(x: float, y: float) -> float:
    return float((x**3 + y**3) ** (1 / 3))


def step_figure() -> Figure:
    """A plain step and one that drafts, stacked by part."""
    plain, drafted = steps()
    shares = [_by_part(step) for step in (drafted, plain)]
    with drawing(8.2, 2.6) as (figure, axes):
        axis = axes[0]
        left = np.zeros(2)
        for name, look in PARTS.items():
            ms = np.array([part.get(name, 0.0) for part in shares]) / US_PER_MS
            if ms.any():
                axis.barh([0, 1], ms, left=left, color=look.colour, edgecolor="white", label=look.title)
            for place, time in enumerate(ms.tolist()):
                if time > WRITTEN_MS:
                    middle = float(left[place]) + time / 2
                    axis.text(
                        middle, place, f"{time:.2f}", ha="center", va="center", fontsize=7, color="white"
                    )
            left += ms
        for place, step in enumerate((drafted, plain)):
            label = f" {left[place]:.2f} ms, {step.tokens_per_step:.2f} tokens a request"
            axis.text(float(left[place]), place, label, va="center", fontsize=8, color=INK)
        axis.legend(fontsize=7, ncols=5, loc="lower center", bbox_to_anchor=(0.5, 1.0))
        axis.set_yticks([0, 1], ["drafts and verifies", "plain"])
        axis.set_xlim(0, 1.35 * left.max())
        axis.set_xlabel("ms a step")
    return figure


def _by_part(step: SingleStep) -> dict[str, float]:
    """Microseconds of each part; those too small to be seen are `other`, what no kernel takes is `beside`."""
    times: dict[str, float] = {}
    for name, time in step.breakdown().groupby("part", dropna=False)["time_us"].sum().items():
        part = str(name) if name in PARTS else BESIDE
        part = part if time >= SMALLEST_SHARE * step.time_us else OTHER
        times[part] = times.get(part, 0.0) + float(time)
    return times


def staircase_figure() -> Figure:
    """One linear layer by tokens: whole waves of tiles on an A100, tiles that persist on an H100, their rooflines."""
    tokens = np.arange(8, 513, 2)
    with drawing(8.2, 3.2) as (figure, axes):
        axis = axes[0]
        for gpu, dtype, colour in (("a100-80gb-pcie", "fp16", "#c1291a"), ("h100-sxm", "bf16", "#4159d3")):
            rows = pd.DataFrame({"op": "linear", "m": tokens, "n": 11008, "k": 4096, "dtype": dtype})
            fitted, floor = (
                time_rows(rows, gpu, latency=latency)["predicted_us"]
                for latency in ("calibrated", "roofline")
            )
            axis.plot(tokens, fitted, color=colour)
            axis.plot(tokens, floor, ":", color=colour, linewidth=1.0)
            _label_end(axis, float(tokens[-1]), float(fitted.iloc[-1]), gpu, colour)
            _label_end(axis, float(tokens[-1]), float(floor.iloc[-1]), "its roofline", colour)
        axis.set_xlim(0, 590)
        axis.set_ylim(bottom=0)
        axis.set_xlabel("tokens of a step (batch x candidates)")
        axis.set_ylabel("us, layer of 4096 x 11008")
    return figure


def _label_end(axis: Axes, x: float, y: float, text: str, colour: str) -> None:
    """A label beside the end of a line, in place of a legend."""
    axis.annotate(
        text, (x, y), xytext=(9, 0), textcoords="offset points", color=colour, va="center", fontsize=8
    )


def main() -> None:
    """Print the section; write it and the pictures where asked."""
    given = command_line(__doc__, writes="`example` of docs/method.md, and its pictures").parse_args()
    text = section()
    print(text)
    if not given.write:
        return
    write_section("method.md", "example", text)
    for name, figure in (("step", step_figure()), ("staircase", staircase_figure())):
        figure.savefig(DOCS / "images" / f"{name}.png", dpi=110)


if __name__ == "__main__":
    main()
