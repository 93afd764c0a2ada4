"""Limits of input from outside: one for each kind, used by every reader.

A file, an upload, a page of an engine or a link may be a slip or meant to harm. Each reader refuses more than
stands here in one line, and takes time and memory in proportion to what it reads.
"""

from __future__ import annotations

from typing import Final

CONFIG_BYTES: Final = 8_000_000
"""A model's config.json: the longest published ones list every expert that is quantised, 5 MB."""
SPEC_BYTES: Final = 1_000_000
"""Any other specification or tree: hardware files with their kernels have some 300 kB."""
TABLE_BYTES: Final = 64_000_000
"""A table, log or benchmark's result that is held in memory as a whole."""
PAGE_BYTES: Final = 20_000_000
"""A page that is fetched from a server."""
INDEX_BYTES: Final = 16_000_000
"""A list of the shards of a checkpoint: a line a tensor."""
HEADER_BYTES: Final = 64_000_000
"""The part of a file of weights that names its tensors."""
SENT_HEADER_BYTES: Final = 16_000_000
"""The start of a file of weights that is handed to the app: names and types stand there, vocabularies of
250,000 tokens take 10 MB of it. `app/.streamlit/config.toml` lets as much in."""
UPLOAD_BYTES: Final = 1_000_000
"""A file that is handed to the app, a config.json and a table of rows apart."""

DEEPEST: Final = 40
"""Tables within tables of a TOML or JSON file; specifications have six levels."""
TABLE_ROWS: Final = 200_000
TABLE_COLUMNS: Final = 1_000
LINE_CHARACTERS: Final = 10_000
"""A line of a log or page; longer ones hold no counter and are passed over."""
NAME_CHARACTERS: Final = 200
"""A name that a file or its folder gives to a model."""

TEXT_CHARACTERS: Final = 4_000
"""A title, source or remark of a specification."""
POSITIONS: Final = 64
"""Drafts in a row that a record, log or page may tell of; engines draft some 3, look-ups some 32."""
TREE_NODES: Final = 16_384
"""Candidates of a tree in a file; engines verify some hundred."""
COUNT: Final = 10**15
"""Steps, tokens or requests that were counted."""
LAYERS: Final = 1_000
"""Layers of a model."""
SIZE: Final = 1_000_000
"""Rows or columns of a weight of a model, the vocabulary apart."""
VOCABULARY: Final = 10_000_000
LENGTH: Final = 100_000_000
"""Tokens of the longest sequence of a model."""

MODULE_CHARACTERS: Final = 1_000
"""A name, wildcard or regular expression of modules of a model."""
PATTERN_BYTES: Final = 1 << 21
"""Memory of all regular expressions and wildcards of a file, as RE2 holds them."""
PATTERN_S: Final = 0.5
"""Seconds of a processor in which these are matched to all names together."""
