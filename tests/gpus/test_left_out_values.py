"""What a file leaves out: a parameter of a kernel or a law without a value changes nothing."""

import inspect
from collections.abc import Iterator

import msgspec

from medusa_sim.gpus import fitted_attention, fitted_experts, fitted_links, kernels, local

ONE = {
    "AttentionKernel": (), "CollectiveKernel": (), "CollectiveRegime": (), "DispatchKernel": (),
    "ElementwiseKernel": (), "ExpertKernel": ("l2_fill", "l2_ratio", "unaligned_ratio"),
    "ExpertTile": ("selection_penalty", "slower"), "GemmKernel": ("split_penalty", "wave_rounding"),
    "GemmTile": ("cluster", "m_min", "n_min", "pace", "pace_alone", "pace_half", "selection_penalty"),
    "LatentKernel": (), "LocalLaw": ("attention_step", "measured", "pair_share"), "MatrixLaw": (),
    "SerialAttention": ("cached_ratio",), "SerialLine": (), "StreamKernel": ("l2_fill", "l2_ratio"),
    "TypeLaw": ("separate", "tiles"),
}  # fmt: skip
"""Factors, and numbers that count from one; all others are added, or count from none."""
CHOSEN = {
    "GemmKernel.throttle_us": 1000.0, "StreamKernel.l2_sharpness": 6.0, "ExpertKernel.l2_sharpness": 6.0,
    "CollectiveKernel.most_ranks": 2.0,
}  # fmt: skip
"""How long, how sharply, up to what: sizes of something that another parameter switches on."""


def left_out() -> Iterator[tuple[str, str, float]]:
    """Record, field and what stands where none is given, of every kernel and law."""
    for module in (kernels, fitted_attention, fitted_experts, fitted_links, local):
        for name, record in inspect.getmembers(module, inspect.isclass):
            if issubclass(record, msgspec.Struct) and record.__module__ == module.__name__:
                for field in msgspec.structs.fields(record):
                    if isinstance(field.default, int | float):
                        yield name, field.name, field.default


def test_what_is_added_is_nothing_and_what_is_a_factor_is_one():
    for name, field, value in left_out():
        assert value == CHOSEN.get(f"{name}.{field}", field in ONE[name]), f"{name}.{field}"
