"""What a file leaves out: a parameter of a kernel or a law without a value changes nothing."""

from left_out import numbers_left_out

ONE = {
    "ExpertKernel": ("l2_fill", "l2_ratio", "unaligned_ratio"),
    "ExpertTile": ("selection_penalty", "slower"), "Fit": ("slower",),
    "GemmKernel": ("split_penalty", "wave_rounding"),
    "GemmTile": ("cluster", "m_min", "n_min", "pace", "pace_alone", "pace_half", "selection_penalty"),
    "InheritFile": ("slower", "widen"), "LocalLaw": ("attention_step", "pair_share"),
    "SerialAttention": ("cached_ratio",), "StreamKernel": ("l2_fill", "l2_ratio"),
    "TypeLaw": ("separate", "tiles"),
}  # fmt: skip
"""Factors, and numbers that count from one; all others are added, or count from none."""
CHOSEN = {
    "GemmKernel.throttle_us": 1000.0, "StreamKernel.l2_sharpness": 6.0, "ExpertKernel.l2_sharpness": 6.0,
    "CollectiveKernel.most_ranks": 2.0, "Fit.together": 0.5,
}  # fmt: skip
"""How long, how sharply, up to what: sizes of something that another parameter switches on."""


def test_what_is_added_is_nothing_and_what_is_a_factor_is_one():
    ones = {f"{record}.{field}": 1.0 for record, fields in ONE.items() for field in fields}
    assert numbers_left_out("gpus") == ones | CHOSEN
