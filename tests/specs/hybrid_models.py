"""Named models whose layers differ, with the counts that follow from their sizes."""

HYBRIDS: dict[str, tuple[float, float]] = {
    # (parameters, active per token), 1e9; without vision towers and MTP modules
    "qwen3-next-80b-a3b": (79.674, 3.88),
    "qwen3.5-27b": (26.9, 26.9),
    "qwen3.5-35b-a3b": (34.66, 3.46),
    "qwen3.5-397b-a17b": (396.35, 17.35),
    "kimi-linear-48b-a3b": (49.12, 3.48),
    "kimi-k3": (2779.0, 105.0),
    "nemotron-3-nano-30b-a3b": (31.58, 3.58),
    "nemotron-3-super-120b-a12b": (120.67, 12.77),
    "deepseek-v3.2": (671.88, 38.4),
    "deepseek-v4-flash": (284.33, 13.8),
    "glm-5": (743.91, 41.8),
    "glm-5.2": (743.38, 41.25),
    "glm-5.3": (743.38, 41.25),
    "minimax-m3": (426.2, 25.96),
    "mimo-7b": (7.62, 7.62),
    "mimo-v2-flash": (308.78, 15.45),
    "gemma-4-26b-a4b": (25.23, 3.82),
    "gemma-4-31b": (30.70, 30.70),
    "nemotron-super-49b": (49.87, 49.87),
}
"""Sums of the formulas of each layer over the sizes of models.toml, no publisher's counts: they tell when a
formula or a size changes."""
