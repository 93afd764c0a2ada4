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

PUBLISHED: dict[str, tuple[str, str, str]] = {
    # (parameters, active per token, source), 1e9, with the digits of the source; empty: it says none
    "qwen3-next-80b-a3b": ("80", "3", "model card"),
    "qwen3.5-27b": ("27", "27", "model card"),
    "qwen3.5-35b-a3b": ("35", "3", "model card"),
    "qwen3.5-397b-a17b": ("397", "17", "model card"),
    "kimi-k3": ("2800", "", "blog of vLLM, 2026-07-27"),
    "nemotron-3-nano-30b-a3b": ("31.6", "3.6", "arXiv 2512.20848: 3.2 active without embeddings"),
    "nemotron-3-super-120b-a12b": ("120.6", "12.7", "technical report, research.nvidia.com, March 2026"),
    "deepseek-v3.2": ("671", "37", "arXiv 2412.19437, whose base it has, without indexers"),
    "deepseek-v4-flash": ("284", "13", "sgl-project/sglang-jax 1678"),
    "glm-5": ("744", "40", "model card; radixark/miles 1376"),
    "glm-5.2": ("744", "40", "as GLM-5"),
    "glm-5.3": ("744", "40", "as GLM-5"),
    "minimax-m3": ("428", "23", "model card; with a vision tower of about 1.8"),
    "mimo-v2-flash": ("309", "15", "model card"),
    "gemma-4-26b-a4b": ("25.2", "3.8", "model card"),
    "gemma-4-31b": ("30.7", "30.7", "model card"),
    "nemotron-super-49b": ("49", "", "model card: rounded down"),
    "kimi-linear-48b-a3b": ("48", "3", "model card: rounded down, and its sizes here are recalled"),
    "mimo-7b": ("7", "7", "its name: rounded down"),
}
"""What publishers say, mostly names rounded to whole billions."""
