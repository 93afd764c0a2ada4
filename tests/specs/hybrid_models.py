"""Named models whose layers differ, with the counts that follow from their sizes and the published ones."""

HYBRIDS: dict[str, tuple[float, float, str, str, str]] = {
    # (parameters, active per token; published parameters, active per token, source), 1e9
    "qwen3-next-80b-a3b": (79.674, 3.88, "80", "3", "model card"),
    "qwen3.5-27b": (26.9, 26.9, "27", "27", "model card"),
    "qwen3.5-35b-a3b": (34.66, 3.46, "35", "3", "model card"),
    "qwen3.5-397b-a17b": (396.35, 17.35, "397", "17", "model card"),
    "kimi-linear-48b-a3b": (49.12, 3.48, "48", "3", "model card, rounded down; sizes recalled"),
    "kimi-k3": (2779.0, 105.0, "2800", "", "blog of vLLM, 2026-07-27"),
    "nemotron-3-nano-30b-a3b": (31.58, 3.58, "31.6", "3.6", "arXiv 2512.20848; 3.2 without embeddings"),
    "nemotron-3-super-120b-a12b": (120.67, 12.77, "120.6", "12.7", "NVIDIA's report, March 2026"),
    "deepseek-v3.2": (671.88, 38.4, "671", "37", "arXiv 2412.19437, whose base it has, without indexers"),
    "deepseek-v4-flash": (284.33, 13.8, "284", "13", "sgl-project/sglang-jax 1678"),
    "glm-5": (743.91, 41.8, "744", "40", "model card; radixark/miles 1376"),
    "glm-5.2": (743.38, 41.25, "744", "40", "as GLM-5"),
    "glm-5.3": (743.38, 41.25, "744", "40", "as GLM-5"),
    "minimax-m3": (426.2, 25.96, "428", "23", "model card; with a vision tower of about 1.8"),
    "mimo-7b": (7.62, 7.62, "7", "7", "its name: rounded down"),
    "mimo-v2-flash": (308.78, 15.45, "309", "15", "model card"),
    "gemma-4-26b-a4b": (25.23, 3.82, "25.2", "3.8", "model card"),
    "gemma-4-31b": (30.7, 30.7, "30.7", "30.7", "model card"),
    "nemotron-super-49b": (49.87, 49.87, "49", "", "model card: rounded down"),
}
"""First two: sums of the formulas of each layer over the sizes of models.toml, without vision towers and MTP
modules; they tell when a formula or a size changes. Then what publishers say, mostly names rounded to whole
billions, with the digits of the source; empty: it says none."""
