"""A model (`model`) as groups of layers (`layer_group`): `mixers` of tokens and `feed_forwards`.

By name (`models`), from a checkpoint's config (`hf_config` and its families) or from a GGUF file (`gguf`), in
the formats of its weights (`quantisation`), shared among GPUs (`parallel`).
"""
