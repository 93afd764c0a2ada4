"""Units and numeric formats. Everything inside the package is SI (bytes, seconds, flops).

Numeric formats of weights and arithmetic: how tables name them, and the key of their kernels.

A format is a pair: dtype of the arithmetic (and of the activations that enter it) and dtype of the stored
weights. `fp8_block` computes in fp8 on weights with a scale for each 128 x 128 block; `int4`, `int8_wo`,
`fp8_wo`, `mxfp4` and `nvfp4_wo` are weight-only, unpacked to 16 bits inside the kernel; `mxfp4_fp8` takes
mxfp4 weights and fp8 activations; `nvfp4` computes in 4 bits.
"""

from __future__ import annotations

from typing import NamedTuple

from medusa_sim.errors import unknown_name
from medusa_sim.file_types import FILES, Mix, mean_bytes

KILO = 1e3
MEGA = 1e6
GIGA = 1e9
TERA = 1e12
US_PER_S = 1e6
NS_PER_S = 1e9
US_PER_MS = 1e3
MIB = 2**20

SCALE_BLOCK = 128
"""Rows and columns of weights that share a scale in `fp8_block`."""

BYTES_PER_ELEMENT: dict[str, float] = {
    "fp64": 8.0,
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "fp8_block": 1.0 + 4.0 / SCALE_BLOCK**2,
    "int8": 1.0,
    "int4": 0.5,
    "nvfp4": 0.5 + 1.0 / 16,
    "mxfp4": 0.5 + 1.0 / 32,
    **{name: mean_bytes(name) for name in FILES},
}
"""Bytes of one element of each dtype that a specification may name.

With the scales of block formats: fp8_block, fp32 for 128 x 128 weights (DeepSeek-V3, arXiv 2412.19437);
nvfp4, one byte for 16 values; mxfp4, one byte for 32 (OCP Microscaling Formats v1.0). Scales and zero points
of integers, whose groups vary, are counted where weights are stored (`Model.scale_bytes`); the kernels that
were fitted to int4 rows hold what reading them takes. A file of a local engine (`file_types`) mixes types:
its number is the mean over a model's weights.
"""

SAME_TENSOR_CORES: dict[str, str] = {"fp8_block": "fp8", "mxfp4": "nvfp4"}
"""A dtype whose arithmetic is another's, at that one's peak: only the scales differ."""

HALVES = ("fp16", "bf16")
"""16-bit dtypes. Tensor cores run both at one rate (same datasheet row on every GPU here)."""
SIXTEEN = "bf16"
"""What is not quantised has the dtype of the activations."""
SCALED = ("fp8_block", "nvfp4", "mxfp4_fp8")
"""Formats whose arithmetic applies scales of blocks: each library and architecture has kernels of its own."""
FP8_ALONE = "fp8_wo"
UNPACKED: dict[str, str] = {
    "fp8": FP8_ALONE,
    "fp8_block": FP8_ALONE,
    "nvfp4": "nvfp4_wo",
    "mxfp4_fp8": "mxfp4",
}
"""As what engines run a format on a GPU without its arithmetic: weights unpacked to 16 bits (Marlin)."""


class Format(NamedTuple):
    """Dtypes of the arithmetic and of the stored weights."""

    dtype: str
    weight_dtype: str

    @property
    def key(self) -> str:
        """Name of the format, by which hardware files key kernels; both 16-bit arithmetics have one name."""
        if self.dtype == self.weight_dtype or {self.dtype, self.weight_dtype} <= set(HALVES):
            return self.dtype
        if self in _NAMES:
            return _NAMES[self]
        if self.dtype in HALVES:
            return _NAMES.get(Format("bf16", self.weight_dtype), f"{self.weight_dtype}_wo")
        return f"{self.weight_dtype}_{self.dtype}"


FORMATS: dict[str, Format] = {
    **{dtype: Format(dtype, dtype) for dtype in BYTES_PER_ELEMENT if dtype not in ("int4", "mxfp4", *FILES)},
    **{name: Format("bf16", name) for name in FILES},
    "fp8_block": Format("fp8", "fp8_block"),
    "int4": Format("bf16", "int4"),
    "int8_wo": Format("bf16", "int8"),
    "mxfp4": Format("bf16", "mxfp4"),
    "nvfp4_wo": Format("bf16", "nvfp4"),
    "fp8_wo": Format("bf16", "fp8"),
    "mxfp4_fp8": Format("fp8", "mxfp4"),
}
"""Formats by name."""
_NAMES = {pair: name for name, pair in FORMATS.items()}

ALIASES: dict[str, str] = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float8": "fp8",
    "fp8_e4m3": "fp8",
    "int4_wo": "int4",
    "w4a16": "int4",
    "w8a16": "int8_wo",
    "w8a8": "int8",
    "fp4": "nvfp4",
    "w4a16_mxfp4": "mxfp4",
    "w4a8_mxfp4_mxfp8": "mxfp4_fp8",
    **{name: name for name in FORMATS},
}
"""Names under which tables record a format."""


def format_text(name: str) -> str:
    """A format as people call it: `fp8 in blocks`, `int8 weights in 16-bit arithmetic`, `nvfp4`.

    Names that are one word, those of files and whatever is no format stand as they are.
    """
    form = FORMATS.get(name)
    if form is None or name in FILES or "_" not in name:
        return name
    if form.weight_dtype == name:
        return f"{form.dtype} in blocks"
    arithmetic = "16-bit" if form.dtype in HALVES else form.dtype
    return f"{form.weight_dtype} weights in {arithmetic} arithmetic"


def learn_file(name: str, mix: Mix, mean: float) -> None:
    """Know the types of a file that no name describes: `mean` bytes for a weight of its layers."""
    FILES[name] = mix
    BYTES_PER_ELEMENT[name] = mean
    FORMATS[name] = Format("bf16", name)
    _NAMES[FORMATS[name]] = name


def format_of(given: str) -> Format:
    """The format of a name or alias. Raises ValueError with one line for a name that is none."""
    try:
        return FORMATS[ALIASES[given]]
    except KeyError:
        raise ValueError(unknown_name("dtype", given, FORMATS)) from None
