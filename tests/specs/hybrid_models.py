"""Named models whose layers differ, with the counts that their publishers give."""

HYBRIDS: dict[str, tuple[float, float]] = {
    # (parameters, active per token), 1e9: names and cards; without vision towers and MTP modules
    "qwen3-next-80b-a3b": (79.674, 3.88),  # name: 80, A3
    "qwen3.5-27b": (26.9, 26.9),  # 27
    "qwen3.5-35b-a3b": (34.66, 3.46),  # 35, A3
    "qwen3.5-397b-a17b": (396.35, 17.35),  # 397, A17
    "kimi-linear-48b-a3b": (49.12, 3.48),  # 48, A3: 2 % over its name
    "kimi-k3": (2779.0, 105.0),  # 2.8e12
    "nemotron-3-nano-30b-a3b": (31.58, 3.58),  # card: 31.6, A3.6 with embeddings
    "nemotron-3-super-120b-a12b": (120.67, 12.77),  # 120, A12
    "deepseek-v3.2": (671.88, 38.4),  # 671 and the indexers
    "deepseek-v4-flash": (284.33, 13.8),  # 284, A13
    "glm-5": (743.91, 41.8),  # 744, A40
    "glm-5.2": (743.38, 41.25),
    "glm-5.3": (743.38, 41.25),
    "minimax-m3": (426.2, 25.96),  # 428 with the vision tower
    "mimo-7b": (7.62, 7.62),  # 7
    "mimo-v2-flash": (308.78, 15.45),  # 309, A15
    "gemma-4-26b-a4b": (25.23, 3.82),  # 25.2, A3.8
    "gemma-4-31b": (30.70, 30.70),  # 30.7
    "nemotron-super-49b": (49.87, 49.87),  # 49.9
}
"""Counts that follow from the published sizes by the published formulas of each layer; they lie within the
rounding of the names unless the comment says otherwise."""
