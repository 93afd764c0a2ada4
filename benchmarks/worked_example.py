"""Writes the worked example of docs/method.md, its section `example`, and both pictures of that page.

    python benchmarks/worked_example.py

Every figure of the section comes from one scenario; tests/test_method.py computes it again by hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
import pandas as pd
from pages import DOCS, write_section

from medusa_sim.api import Scenario, time_rows
from medusa_sim.report.figures.style import BESIDE, INK, OTHER, PARTS, SMALLEST_SHARE, drawing, label_end
from medusa_sim.report.frames import SingleStep
from medusa_sim.report.text import TextTable, markdown
from medusa_sim.specs.engine import Engine
from medusa_sim.specs.feed_forwards import Mlp
from medusa_sim.specs.gpu import load_gpu
from medusa_sim.specs.mixers import Grouped
from medusa_sim.units import US_PER_MS, US_PER_S

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GPU, MODEL = "h100-sxm", "llama-3.1-8b"
BATCH, LENGTH, CANDIDATES = 8, 1024, 4
LAYER = ("gate_up_proj", 28672, 4096)
"""The layer that the text takes apart: its launch, n and k."""
WRITTEN_MS = 0.25
"""A part at least so wide carries its figure in the picture."""
PAGE = """# A worked example

Llama-3.1-8B in bf16 on an H100 serves {batch} requests of {length:,} tokens in vLLM. EAGLE-3 proposes {drafts} drafts, so that a
verification step holds {candidates} candidates a request and {tokens} tokens in all. Does it pay?

**Kernels.** The bytes are (O1) and (O3), the next column what they take at the datasheet's {bandwidth:.2f} TB/s: the floor. The
fitted kernels follow, in microseconds, all launches of a pass together.

{kernels}
{layer} is the layer to check by hand (G7, G9): ({n:,} x {k:,} weights + {batch} x ({n:,} + {k:,}) activations) x 2 bytes / ({fraction:.3f} x
{bandwidth:.2f} TB/s) = {memory:.1f} us, and {ramp:.1f} us to start and end: {launch:.1f} us a layer, {all:,.0f} in {layers} layers. {tokens} tokens take nearly as long
as {batch}: the weights are read once. That is all that speculation lives on.

**Host** (N1, N2). What vLLM does for a step of {batch} requests and cannot hide behind the device: {per_step:.0f} + {batch} x {per_request:.0f} - {hidden:.0f} = {host:.0f} us.
A drafting pass takes |its kernels, {per_pass:.0f}|_3, and each request {per_draft:.1f} us more a step.

    plain T         = |{plain_kernels:,.0f}, {hidden:.0f}|_3 + {host:.0f} = {plain:,.0f} us
    verification V  = |{verify_kernels:,.0f}, {hidden:.0f}|_3 + {host:.0f} = {verify:,.0f} us
    drafting D      = {passes} + {batch} x {per_draft:.1f} = {drafting:,.0f} us
    overhead        = (V + D) / T = {spent:,.0f} / {plain:,.0f} = {overhead:.3f}    (Q3)

**Tokens** (T3). The profile says how often each draft is accepted once those before it were: {rates}.

    tokens per step = {sum} = {tau:.3f}
    speedup         = {tau:.3f} / {overhead:.3f} = {speedup:.2f}    (Q4)
    tokens/s        = {batch} x {tau:.3f} / {spent_ms:.3f} ms = {rate:,.0f}    (Q5)

With its 80 % band the speedup is {low:.2f} to {high:.2f}. `medusa-sim sweep --gpu {gpu} --model {model} --drafter eagle3 --batch {batch}
--seq {length} --candidates {candidates}` prints it.

![a plain step and a step that drafts, stacked by part](images/step.png)
"""


def steps() -> tuple[SingleStep, SingleStep]:
    """The plain step and the one that drafts."""
    scenario = Scenario(gpu=GPU, model=MODEL, drafter="eagle3", acceptance=f"eagle3-{MODEL}")
    plain, drafted = (
        scenario.step(batch=BATCH, seq_len=LENGTH, candidates=count) for count in (1, CANDIDATES)
    )
    return plain, drafted


def bytes_of(step: SingleStep) -> dict[str, float]:
    """Weights, K and V that the launches of a kernel read in a step, by (O1) and (O3)."""
    model = step.scenario.model
    group = model.groups[0]
    assert isinstance(group.mixer, Grouped)
    assert isinstance(group.feed_forward, Mlp)
    h, layers, width = model.hidden, model.layers, group.feed_forward.width
    w_q, w_kv = group.mixer.heads * group.mixer.head_dim, group.mixer.kv_heads * group.mixer.head_dim
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
    times = [
        _by_kernel(plain, "target"),
        _by_kernel(drafted, "target"),
        _by_kernel(drafted, "draft"),
    ]
    rows = []
    for name in dict.fromkeys(name for part in times for name in part.index):
        size = read.get(name)
        floor = (
            ("-", "-") if size is None else (f"{size / 1e9:.3f} GB", f"{US_PER_S * size / bandwidth:,.0f}")
        )
        rows.append((name, *floor, *(f"{part[name]:,.1f}" if name in part else "-" for part in times)))
    total = sum(read.values())
    sums = (f"{part.sum():,.1f}" for part in times)
    rows.append(("all", f"{total / 1e9:.3f} GB", f"{US_PER_S * total / bandwidth:,.0f}", *sums))
    return rows


def _by_kernel(step: SingleStep, owner: str) -> pd.Series[float]:
    frame = step.breakdown()
    frame = frame[frame["pass"].str.startswith(owner)]
    return (
        frame["time_us"]
        .groupby(frame["op"].str.replace(r".*_attention", "attention", regex=True), sort=False)
        .sum()
    )


def pass_kernels_us(step: SingleStep) -> list[float]:
    """Kernels of each drafting pass."""
    frame = step.breakdown()
    return [
        float(part) for part in frame[frame["pass"].str.startswith("draft")].groupby("pass")["time_us"].sum()
    ]


def section() -> str:
    """The text."""
    plain, drafted = steps()
    engine = plain.scenario.runtime.engine
    assert isinstance(engine, Engine)
    gpu = load_gpu(GPU)
    fitted = gpu.kernels["sglang"].gemm["bf16"]
    name, n, k = LAYER
    bandwidth = gpu.bandwidth_bytes_per_s / 1e12
    memory = (n * k + BATCH * (n + k)) * 2 / (fitted.bandwidth_fraction * bandwidth) / 1e6
    kernels, verify_kernels = _by_kernel(plain, "target"), float(_by_kernel(drafted, "target").sum())
    host = (
        engine.host_us_per_step.value
        + BATCH * engine.host_us_per_request.value
        - engine.hidden_us_per_step.value
    )
    verify = _norm(verify_kernels, engine.hidden_us_per_step.value) + host
    heads, tau = plain.scenario.profile.heads, drafted.tokens_per_step
    assert heads is not None
    assert tau is not None
    rates = heads.accuracy[: CANDIDATES - 1, 0]
    chances = np.cumprod(rates)
    row = (
        cast(Scenario, plain.scenario).sweep(batch=[BATCH], seq_len=[LENGTH], candidates=[CANDIDATES]).iloc[0]
    )
    own = pass_kernels_us(drafted)
    per_pass = engine.draft_us_per_pass.value
    return PAGE.format(
        gpu=GPU,
        model=MODEL,
        batch=BATCH,
        length=LENGTH,
        candidates=CANDIDATES,
        drafts=CANDIDATES - 1,
        tokens=BATCH * CANDIDATES,
        bandwidth=bandwidth,
        kernels=markdown(
            TextTable(
                headers=("kernel", "weights, K and V", "floor", f"plain, {BATCH} tokens", f"verification, {BATCH * CANDIDATES} tokens",
                         f"drafting, {len(own)} passes"),
                rows=tuple(kernel_rows(plain, drafted)),
                right=(False, True, True, True, True, True),
            )
        ),
        layer=f"`{name}`",
        n=n,
        k=k,
        fraction=fitted.bandwidth_fraction,
        memory=memory,
        ramp=fitted.ramp_us,
        launch=kernels[name] / plain.scenario.model.layers,
        all=kernels[name],
        layers=plain.scenario.model.layers,
        per_step=engine.host_us_per_step.value,
        per_request=engine.host_us_per_request.value,
        hidden=engine.hidden_us_per_step.value,
        host=host,
        per_pass=per_pass,
        per_draft=engine.draft_us_per_request.value,
        plain_kernels=float(kernels.sum()),
        plain=plain.time_us,
        verify_kernels=verify_kernels,
        verify=verify,
        passes=" + ".join(f"|{time:.0f}, {per_pass:.0f}|_3" for time in own),
        drafting=drafted.time_us - verify,
        spent=drafted.time_us,
        overhead=drafted.overhead,
        rates=", ".join(f"{rate:.4f}" for rate in rates),
        sum=" + ".join(["1", *(f"{chance:.4f}" for chance in chances)]),
        tau=tau,
        speedup=drafted.speedup,
        spent_ms=drafted.time_us / US_PER_MS,
        rate=BATCH * tau / drafted.time_us * US_PER_S,
        low=row["speedup_low"],
        high=row["speedup_high"],
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
            label_end(axis, float(tokens[-1]), float(fitted.iloc[-1]), gpu, colour)
            label_end(axis, float(tokens[-1]), float(floor.iloc[-1]), "its roofline", colour)
        axis.set_xlim(0, 590)
        axis.set_ylim(bottom=0)
        axis.set_xlabel("tokens of a step (batch x candidates)")
        axis.set_ylabel("us, layer of 4096 x 11008")
    return figure


def main() -> None:
    """Write the section and the pictures."""
    write_section("method.md", "example", section())
    for name, figure in (("step", step_figure()), ("staircase", staircase_figure())):
        figure.savefig(DOCS / "images" / f"{name}.png", dpi=110)


if __name__ == "__main__":
    main()
