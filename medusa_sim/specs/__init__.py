"""Everything known before anything runs, each number with its source.

A GPU (`gpu`) with its fitted kernels (`kernels`, `fitted`); a model (`model`) as groups of layers (`mixers`,
`feed_forwards`), by name or from a checkpoint's config; a runtime (`runtime`) and what an engine adds
(`engine`, `term`, `ranges`).
"""
