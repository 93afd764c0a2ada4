"""Colours, markers and names of drawn things, in reports and in the app.

Readable in greyscale: every series differs in marker or hatch, not in colour alone.
"""

from __future__ import annotations

from dataclasses import dataclass

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
LINES = ("-", "--", "-.", ":")
HATCHES = ("", "//", "..", "\\\\", "xx", "--", "++", "oo", "||", "**")
SHADES = (
    "#2f6fde", "#d77804", "#007264", "#a4359f", "#00a64c", "#c1291a", "#0098e0", "#985302", "#7e46c6",
    "#839a0f", "#f05a93", "#5d6d7e",
)  # fmt: skip
"""Of lines and points: each at least 3:1 on a white and on a black page."""
INK = "#1b1b1b"
FAINT = "#8a8a8a"
BESIDE, OTHER = "beside", "other"
"""Time of a step outside its kernels; parts too small to be told apart."""
SMALLEST_SHARE = 0.015
"""Parts below this share of every step drawn are `other`."""


@dataclass(frozen=True, slots=True)
class Look:
    """Name of a part of a step, and its colour wherever it is drawn."""

    title: str
    colour: str


PARTS = {
    "qkv": Look("QKV projections", "#4159d3"),
    "attention": Look("attention", "#d77804"),
    "o_proj": Look("output projection", "#007264"),
    "mlp": Look("MLP", "#aa74f8"),
    "experts": Look("experts", "#c1291a"),
    "exchange": Look("between GPUs", "#0098e0"),
    "norm_rope": Look("norms, rope, residuals", "#985302"),
    "embedding": Look("embedding", "#f05a93"),
    "lm_head": Look("LM head", "#a4359f"),
    "drafter": Look("drafting", "#00a64c"),
    "accept": Look("acceptance", "#5b6c00"),
    BESIDE: Look("launches, host", "#b18b00"),
    OTHER: Look("other", "#757984"),
}
"""In the order in which they stack; neighbours differ in brightness, all stand out on white and on black."""


def luminance(colour: str) -> float:
    """Relative luminance of `#rrggbb`, 0 to 1 (WCAG 2, from sRGB)."""
    shares = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = (share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares)
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    """Ratio of two colours, 1 to 21 (WCAG 2); text wants 4.5."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def ink_on(colour: str) -> str:
    """Black or white, whichever reads better on a colour: never below 4.5."""
    return max(("#000000", "#ffffff"), key=lambda ink: contrast(ink, colour))
