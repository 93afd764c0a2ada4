"""A sparse attention module: projections, an indexer that scores keys, and attention to the keys it chooses.

    dsa             latent attention to `topk` cached rows (DeepSeek-V3.2, GLM-5; arXiv 2512.02556)
    dsa_no_indexer  the same with the keys that an earlier layer chose (GLM-5.2)
    msa             grouped queries; blocks of keys are chosen for each group (MiniMax-F3; arXiv 2606.13392)
    csa             one key head; one key for 4 tokens, `topk` of them, and a window (DeepSeek-V4)
    hca             the same with one key for 128 tokens, all of them

Every query of every request scores the s cached tokens and chooses for itself. Index keys are read once a
request:

    index    2 n_I d_I s FLOPs a query,  s (d_I + 4) bytes a request                                    (H1)
    keys     min(s, topk);  csa min(s, window) + min(s / 4, topk);  hca min(s, window) + s / 128        (H2)

`loads`, `work` and `steps` sort bytes, FLOPs and waiting into classes; a kernel has one fitted coefficient
for each class (`gpus.kernels.StreamKernel`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.operators.operator import CONTEXT, GENERATION, VERIFY, Numbers, Size, Words
from medusa_sim.operators.row_schema import RowSchema
from medusa_sim.operators.sparse_sizes import (
    HEAD_DIMS,
    KEY_CHOICES,
    LATENT_DIM,
    MODULE_SIZES,
    NO_INDEXER,
    OUT_RANK,
    ROPE_DIM,
    KeyChoice,
    ModuleSizes,
    SparseKind,
    module_sizes,
)
from medusa_sim.operators.stream import HOST_STEP, Stream, total_of
from medusa_sim.units import BYTES_PER_ELEMENT, Format, format_of

_LATENT, _ROPE, _INDEX_DIM = float(LATENT_DIM), float(ROPE_DIM), float(HEAD_DIMS["index"])

# bytes of a cached token
_LATENT_ROW_BYTES = {1.0: 656.0, 2.0: 1152.0}
"""Of `dsa`, by bytes of an element: fp8 with scales and a rotated key in 16 bits, or all in 16 bits."""
_COMPRESSED_ROW_BYTES = 584.0
"""Of a key of `csa` and `hca`."""
_INDEX_ROW_BYTES = 132.0
"""Of an index key: 128 values in fp8 and a 32-bit scale (H1)."""
_MSA_INDEX_ROW_BYTES = 256.0
"""Of an index key of `msa`: 128 values in 16 bits."""

# heads that kernels compute
_GROUP_HEADS = 16.0
"""Query heads of a K/V head of `msa`, all computed even where a GPU holds fewer."""
_TILE_HEADS = 64.0
"""Heads in a tile of the other kinds, all computed even where a GPU holds fewer."""
_LEAST_HEADS = 8.0
"""Fewest heads that a kernel computes which attends to all keys."""
_UNPACKING_HEADS = 32.0
"""Heads from which fp8 caches are unpacked for a prompt (vLLM, `MIN_HEADS_FOR_BF16_PREFILL`)."""

# the choice of keys
_QUERIES_TOGETHER = {"hopper": 2.0, "blackwell": 4.0}
"""Queries of a request that an indexer scores together, by architecture."""
_ONE_KERNEL_KEYS = 16384.0
"""Keys up to which one kernel chooses; more take another kernel."""
_HARDEST_RATIO = 3.0
"""Keys over keys chosen at which the choice takes longest."""
_LONG_KEYS = 131072.0
"""Keys of a request beyond which the time of its scores follows their bytes."""
_SCORES_UNIT = 1e6
"""Scores of index heads that the class `crowd` counts as one."""
_VERIFIED = ("True", "true", "1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sparse(Stream):
    """One sparse attention module: `batch` requests with `q_len` new tokens each behind `prefix` cached ones.

    heads: query heads on this GPU. hidden, q_rank, index_heads, nope_dim, v_dim: those of `ModuleSizes`, for
    the whole layer; index_heads 0: the keys of an earlier layer's choice are used. kv_dtype: dtype of the
    cache. gemm_dtype: format of the projections. phase: `generation`, `context` (prefill) or `verify` (2 to
    128 tokens behind a long prefix).
    """

    FAMILY = "sparse"
    STORED = "kv_dtype"
    FITTED_BY_STORED = True
    COLUMNS = ("batch", "q_len", "prefix", "heads", "hidden", "q_rank", "index_heads", "nope_dim", "v_dim")
    AXES = ("batch", "q_len", "prefix")
    LABELS = ("phase", "gemm_dtype")
    ROWS = RowSchema(
        numbers=("batch", "q_len", "heads"),
        optional={"prefix": 0.0},
        words={
            "phase": GENERATION,
            "kv_cache_dtype": "",
            "gemm_type": "",
            "model_name": "",
            "verifies": "False",
        },
        splits=("phase", "kv_cache_dtype", "gemm_type", "verifies"),
        blank_dtype="bf16",
    )
    NEEDLESS = frozenset({"scores", "split", "long_scores", "narrow", "every_key"})
    ALTERNATIVE = frozenset({"split"})
    LAUNCHES = 60

    kind: SparseKind
    batch: Size
    q_len: Size
    prefix: Size
    heads: Size = field()
    hidden: Size = MODULE_SIZES["dsa"].hidden
    q_rank: Size = MODULE_SIZES["dsa"].q_rank
    index_heads: Size = MODULE_SIZES["dsa"].index_heads
    nope_dim: Size = MODULE_SIZES["dsa"].nope_dim
    v_dim: Size = MODULE_SIZES["dsa"].v_dim
    kv_dtype: str | None = None
    gemm_dtype: str | None = None
    phase: str = GENERATION

    @classmethod
    def row_fields(cls, kind: str, form: Format, numbers: Numbers, words: Words) -> dict[str, Any]:
        """Sizes of the model that the rows name, formats of cache and projections, and the phase."""
        del form, numbers
        phase, cache, weights, verifies = (str(words[name][0]) for name in cls.ROWS.splits)
        sizes = dict(zip(ModuleSizes._fields, module_sizes(kind, words["model_name"]), strict=True))
        if kind.endswith(NO_INDEXER):
            sizes["index_heads"] = np.zeros_like(sizes["index_heads"])
        return {
            "kv_dtype": format_of(cache.partition("_")[0]).dtype if cache else None,
            "gemm_dtype": format_of(weights).key if weights else None,
            "phase": VERIFY if verifies in _VERIFIED and phase == CONTEXT else phase,
            **sizes,
        }

    @property
    def _family(self) -> str:
        """The kind, whether or not it has its own indexer."""
        return self.kind.removesuffix(NO_INDEXER)

    @property
    def form(self) -> str:
        """Key of its kernels: kind, phase, cache, projections."""
        return f"{self._family}_{self.phase}_{self.stored_dtype}_{self.gemm_dtype or self.dtype}"

    @property
    def forms(self) -> tuple[str, ...]:
        """Keys of kernels that may serve, best first: other projections, other caches, prefill."""
        phases = dict.fromkeys((self.phase, *((CONTEXT, GENERATION) if self.phase == VERIFY else ())))
        caches = dict.fromkeys((self.stored_dtype, "fp8", "bf16"))
        weights = dict.fromkeys((self.gemm_dtype or self.dtype, "bf16", "fp8_block", "nvfp4"))
        every = (f"{self._family}_{p}_{c}_{w}" for p in phases for c in caches for w in weights)
        return tuple(dict.fromkeys(every))

    def as_run(self, architecture: str) -> Self:
        """The module as kernels run it: beyond a few queries a request, each query becomes a request.

        A plain step's indexer scores two queries of a request together on Hopper and four on Blackwell (vLLM
        PR 45322, TensorRT-LLM PR 10226). Of more queries each reads the keys again.
        """
        several = as_float(self.q_len) > _QUERIES_TOGETHER.get(architecture, 2.0)
        if self.phase != GENERATION or self._family != "dsa" or not several.any():
            return self
        apart = self.one_by_one()
        pairs = ((getattr(apart, name), getattr(self, name)) for name in self.AXES)
        batch, q_len, prefix = (np.where(several, *pair) for pair in pairs)
        return replace(self, batch=batch, q_len=q_len, prefix=prefix)

    def one_by_one(self) -> Self:
        """A plain step in which each new token is a request of one query, at the mean position."""
        prefix = as_float(self.prefix) + 0.5 * (as_float(self.q_len) - 1.0)
        return replace(self, batch=self.size, q_len=np.ones_like(self.size), prefix=prefix, phase=GENERATION)

    @property
    def weights(self) -> FloatArray:
        """Elements of the projections on this GPU, the indexer's included."""
        if self._family == "dsa":
            return self._latent_weights
        return self._grouped_weights if self.kind == "msa" else self._compressed_weights

    @property
    def _latent_weights(self) -> FloatArray:
        """dsa: projections down, up for queries, up for K and V, out, and the indexer."""
        heads, hidden, q_rank = (as_float(size) for size in (self.heads, self.hidden, self.q_rank))
        nope, value = as_float(self.nope_dim), as_float(self.v_dim)
        queries = hidden * (q_rank + _LATENT + _ROPE) + q_rank * heads * (nope + _ROPE)
        keys_and_values = heads * _LATENT * (nope + value)
        return queries + keys_and_values + heads * value * hidden + self._indexer_weights

    @property
    def _grouped_weights(self) -> FloatArray:
        """msa: queries and output, K and V, and an index query for each group with one index key."""
        heads, hidden, head = as_float(self.heads), as_float(self.hidden), HEAD_DIMS["msa"]
        index = (self._kv_heads + 1.0) * _INDEX_DIM
        return hidden * (2.0 * heads * head + 2.0 * self._kv_heads * head + index)

    @property
    def _compressed_weights(self) -> FloatArray:
        """csa, hca: queries, the key, the output in groups, the compressor, and the indexer of csa."""
        heads, hidden, q_rank = (as_float(size) for size in (self.heads, self.hidden, self.q_rank))
        head = HEAD_DIMS[self.kind]
        out = heads * head * OUT_RANK + 8.0 * heads / self.choice.all_heads * OUT_RANK * hidden
        inner = hidden * q_rank + q_rank * heads * head + head * hidden + out
        if self.kind == "hca":
            return inner + 2.0 * hidden * head
        return inner + 4.0 * hidden * head + self._indexer_weights + 3.0 * _INDEX_DIM * hidden

    @property
    def _indexer_weights(self) -> FloatArray:
        """Index queries, the index key, and a weight for each index head."""
        hidden, index_heads = as_float(self.hidden), as_float(self.index_heads)
        queries = as_float(self.q_rank) * index_heads * _INDEX_DIM
        return queries + hidden * (_INDEX_DIM * (index_heads > 0) + index_heads)

    @property
    def choice(self) -> KeyChoice:
        """Which cached tokens a query attends to."""
        return KEY_CHOICES[self._family]

    @property
    def of_one_token(self) -> Self | None:
        """The plain step's module, for a verification step of one token."""
        return replace(self, phase=GENERATION) if self.phase == VERIFY else None

    @property
    def loads(self) -> Mapping[str, FloatArray]:
        """Weights and activations, index keys (H1), and the chosen rows (H2)."""
        batch, element = as_float(self.batch), BYTES_PER_ELEMENT[self.dtype]
        weights = BYTES_PER_ELEMENT[format_of(self.gemm_dtype or self.dtype).weight_dtype] * self.weights
        passed = 2.0 * element * self.size * as_float(self.hidden)
        loads = {"weights": weights + passed, "keys": batch * self._rows_read * self._row_bytes}
        if self._has_indexer:
            index_row_bytes = _MSA_INDEX_ROW_BYTES if self.kind == "msa" else _INDEX_ROW_BYTES
            loads["index"] = batch * self._index_keys * index_row_bytes
        if self.kind == "msa":  # a GPU that holds only part of a group runs another kernel
            loads["narrow"] = loads["index"] * (as_float(self.heads) < _GROUP_HEADS)
        if self._stores_scores:  # every query scores the keys of all requests and masks the others'
            scores = 4.0 * self.size * batch * self._index_keys * self._leaves_out
            loads |= {"scores": scores, "long_scores": scores * self._index_keys / _LONG_KEYS}
        return loads

    @property
    def work(self) -> Mapping[str, FloatArray]:
        """Projections, scores of the indexer, attention to the chosen keys."""
        heads = as_float(self.heads)
        mean_position = as_float(self.prefix) + (as_float(self.q_len) + 1.0) / 2.0
        width = 2.0 * _LATENT + _ROPE if self._family == "dsa" else 2.0 * HEAD_DIMS[self.kind]
        work = {
            "projections": 2.0 * self.size * self.weights,
            "attention": 2.0 * self._computed_heads * width * self.size * self._keys_of_query(mean_position),
        }
        if self.kind in ("csa", "hca") and format_of(self.gemm_dtype or self.dtype).dtype == "fp8":
            # SGLang's kernels on Blackwell are fast only where one GPU has all heads
            work["split"] = work["projections"] * (heads < self.choice.all_heads)
        if self.kind == "msa" and self.phase != GENERATION:  # libraries without a sparse kernel: all keys
            work["every_key"] = 2.0 * np.maximum(heads, _LEAST_HEADS) * width * self.size * mean_position
        if self._family == "dsa" and self.phase == CONTEXT and self.stored_dtype == "fp8":
            few = heads < _UNPACKING_HEADS  # with few heads the kernel of a plain step serves prompts too
            work |= {"attention": work["attention"] * ~few, "few_heads": work["attention"] * few}
        if self._has_indexer:
            index_heads = self._kv_heads if self.kind == "msa" else as_float(self.index_heads)
            mean_keys = (as_float(self.prefix) + as_float(self.q_len) / 2.0) / self.choice.ratio
            work["index"] = 2.0 * index_heads * _INDEX_DIM * self.size * mean_keys
        if self._family == "dsa" and self.phase != GENERATION:  # no key left out: K and V of all heads
            tokens = as_float(self.batch) * as_float(self.prefix) * (1.0 - self._leaves_out)
            expanded = as_float(self.nope_dim) + as_float(self.v_dim)
            work["expanded"] = 2.0 * tokens * heads * _LATENT * expanded
        return work

    @property
    def flops(self) -> FloatArray:
        """Floating-point operations, heads that only fill up a tile left out."""
        work = {name: done for name, done in self.work.items() if name not in self.NEEDLESS}
        attention = work["attention"] + work.get("few_heads", 0.0)
        return total_of(work.values()) - attention * (1.0 - as_float(self.heads) / self._computed_heads)

    def steps(self, sms: int) -> Mapping[str, FloatArray]:
        """Counts of what runs one after another: choosing keys, keys of a request, waves of tokens."""
        total = self._tokens
        chooses, ones = self._leaves_out * float(self._has_indexer), np.ones_like(self.size + total)
        topk, keys = max(self.choice.topk, 1), self._index_keys
        is_short = np.clip(keys / topk - 1.0, 0.0, 1.0) * (keys <= _ONE_KERNEL_KEYS + topk)
        steps = {
            "choice": chooses,
            "short_choice": chooses * is_short,
            "request": total / 1e4 * ones * float(self._has_indexer or not self.choice.topk),
            "waves": np.ceil(self.size / sms) * ones,
            "chosen": self.size / sms * chooses,
        }
        if self.phase == CONTEXT:  # a prompt of one token runs as a plain step
            steps["prompt"] = (as_float(self.q_len) > 1.0) * ones
            steps["chosen"], steps["peak"] = self._prompt_choices(sms)
        if self._family == "dsa" and self.phase != GENERATION:  # heads whose keys and values differ in width
            steps[HOST_STEP] = (as_float(self.nope_dim) != as_float(self.v_dim)) * ones
        if self._family == "dsa":  # batched products with few rows
            steps["doublings"] = np.log2(np.minimum(self.size, sms)) * ones
        elif self.kind == "msa":  # libraries without a sparse kernel: one table of all requests' scores
            steps["crowd"] = (as_float(self.batch) * total * self._kv_heads / _SCORES_UNIT) ** 2
        else:  # libraries without a sparse kernel: one token after another
            steps["tokens"] = self.size * ones
        return steps

    @property
    def footprint(self) -> Mapping[str, FloatArray]:
        """Bytes that a repeated benchmark may find in L2: weights, rows read and index keys."""
        loads = self.loads
        return {"": loads["weights"] + loads["keys"] + loads.get("index", np.zeros(()))}

    @property
    def _has_indexer(self) -> bool:
        """Whether the module scores keys itself."""
        return self.choice.topk > 0 and bool(np.any(as_float(self.index_heads) > 0))

    @property
    def _stores_scores(self) -> bool:
        """Whether scores go through memory."""
        return self._family == "dsa" and self.phase != GENERATION and self._has_indexer

    @property
    def _tokens(self) -> FloatArray:
        """Tokens of a request, its new ones included."""
        return as_float(self.prefix) + as_float(self.q_len)

    @property
    def _leaves_out(self) -> FloatArray:
        """1 where a request has more tokens than a query may choose, else 0."""
        reach = self.choice.topk * self.choice.ratio
        return np.asarray((self._tokens > reach) * float(reach > 0))

    def _prompt_choices(self, sms: int) -> tuple[FloatArray, FloatArray]:
        """(tokens of a prompt that must choose, the same times how hard the choice is), for each SM.

        The hardness is 0 to 1: it rises until there are _HARDEST_RATIO times as many keys as are chosen, and
        falls beyond, where the first pass over the scores drops most.
        """
        before, total = as_float(self.prefix), self._tokens
        reach = float(max(self.choice.topk * self.choice.ratio, 1))
        behind = np.clip(total - np.maximum(before, reach), 0.0, as_float(self.q_len))
        chosen: FloatArray = as_float(self.batch) * behind / sms * float(self._has_indexer)
        ratio = np.maximum(0.5 * (np.maximum(before, reach) + total) / reach, 1.0)
        hardness = np.minimum(0.5 * (ratio - 1.0), 1.0) * np.minimum(_HARDEST_RATIO / ratio, 1.0) ** 2
        return chosen, chosen * hardness

    @property
    def _kv_heads(self) -> FloatArray:
        """K/V heads of `msa` on this GPU: one for 16 query heads."""
        return np.maximum(as_float(self.heads) / _GROUP_HEADS, 1.0)

    @property
    def _computed_heads(self) -> FloatArray:
        """Query heads that kernels compute, padded to whole tiles."""
        tile = _GROUP_HEADS * self._kv_heads if self.kind == "msa" else _TILE_HEADS
        padded: FloatArray = tile * np.ceil(as_float(self.heads) / tile)
        return padded

    @property
    def _row_bytes(self) -> FloatArray:
        """Bytes of a cached row that a query attends to."""
        element = BYTES_PER_ELEMENT[self.stored_dtype]
        if self._family == "dsa":
            return as_float(_LATENT_ROW_BYTES.get(element, _LATENT_ROW_BYTES[2.0]))
        if self.kind == "msa":
            return 2.0 * element * self._kv_heads * HEAD_DIMS["msa"]
        return as_float(_COMPRESSED_ROW_BYTES)

    @property
    def _index_keys(self) -> FloatArray:
        """Index keys of a request."""
        return self._tokens / self.choice.ratio

    def _keys_of_query(self, tokens: FloatArray) -> FloatArray:
        """Keys that a query behind so many tokens attends to (H2)."""
        topk, window = self.choice.topk, self.choice.window
        keys = tokens / self.choice.ratio
        chosen = np.minimum(keys, topk) if topk else keys
        attended: FloatArray = np.minimum(tokens, window) + chosen if window else chosen
        return attended

    @property
    def _rows_read(self) -> FloatArray:
        """Cached rows that the queries of a request read: each its own choice, together at most all rows."""
        tokens, window = self._tokens, self.choice.window
        every = tokens / self.choice.ratio + (np.minimum(tokens, window) if window else 0.0)
        rows: FloatArray = np.minimum(self._keys_of_query(tokens) * as_float(self.q_len), every)
        return rows
