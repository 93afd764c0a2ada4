"""Sparse attention modules: projections, an indexer that scores keys, a choice, attention to the chosen.

`dsa` (DeepSeek-V3.2, GLM-5; arXiv 2512.02556): latent attention to `topk` rows that a light indexer chooses.
`msa` (MiniMax-F3; arXiv 2606.13392): grouped queries, blocks of keys chosen for each group. `csa`, `hca`
(DeepSeek-V4): one key head over compressed tokens, some of them (ratio 4) or all (ratio 128), and a window.
`dsa_no_indexer`: a layer of `dsa` that takes the choice of one before it (GLM-5.2).
With s cached tokens, every query of every request scores and chooses for itself; the index keys are read once
for a request:

    index    2 n_I d_I s FLOPs a query,  s (d_I + 4) bytes a request                                    (H1)
    keys     min(s, topk);  csa min(s, window) + min(s / 4, topk);  hca min(s, window) + s / 128        (H2)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.operators.operator import CONTEXT, GENERATION, VERIFY, Numbers, Size, TextArray, Words
from medusa_sim.operators.row_schema import RowSchema
from medusa_sim.operators.stream import HOST_STEP, Stream, total_of
from medusa_sim.units import BYTES_PER_ELEMENT, Format, format_of

SparseKind = Literal["dsa", "msa", "csa", "hca", "dsa_no_indexer"]
NO_INDEXER = "_no_indexer"


class Choice(NamedTuple):
    """What a kind of module chooses from: keys kept, a window beside, tokens that a key stands for."""

    topk: int
    window: int = 0
    ratio: int = 1
    all_heads: int = 64


CHOICES: dict[str, Choice] = {
    "dsa": Choice(2048, all_heads=128),
    "msa": Choice(2048),
    "csa": Choice(512, 128, 4),
    "hca": Choice(0, 128, 128),
}
"""Of DeepSeek-V3.2 and GLM-5, MiniMax-F3, DeepSeek-V4 (their configs)."""


class Sizes(NamedTuple):
    """Width of the model, rank of the queries, heads of the indexer, a head's unrotated key and value."""

    hidden: int
    q_rank: int
    index_heads: int
    nope_dim: int = 128
    v_dim: int = 128


SIZES: dict[str, Sizes] = {
    "dsa": Sizes(7168, 1536, 64),
    "msa": Sizes(6144, 0, 4),
    "csa": Sizes(4096, 1024, 64),
    "hca": Sizes(4096, 1024, 0),
}
"""Of DeepSeek-V3.2, MiniMax-F3 and DeepSeek-V4-Flash."""
_SIZES_OF = {"GLM-5": Sizes(6144, 2048, 32, 192, 256), "DeepSeek-V4-Pro": Sizes(7168, 1536, 64)}
"""Of models whose name begins so, behind the publisher's."""
_LATENT, _ROPE = 512.0, 64.0
DSA_SIZES = (512, 64, 128, 2048)
"""Latent and rotated width, width of index heads and keys chosen of `dsa`."""
HEADS = {"msa": 128, "csa": 512, "hca": 512, "index": 128}
"""Width of a head, and of those of indexers."""
_INDEX_DIM = float(HEADS["index"])
OUT_RANK = 1024
"""Of the output projection of a group of heads, of `csa` and `hca`."""
_FIRST_MLA_ROW = {1.0: 656.0, 2.0: 1152.0}
_INDEX_ROW = 132.0
_COMPRESSED_ROW = 584.0
_GROUP_ROWS = 16.0
"""Query heads of a K/V head of `msa`, which are computed even where a GPU holds fewer of them."""
_TOGETHER = {"hopper": 2.0, "blackwell": 4.0}
_TILE_HEADS = 64.0
"""Heads of a tile of the others' kernels, computed even where a GPU holds fewer."""
_LEAST_HEADS = 8.0
"""Heads that a kernel which attends to all keys computes at least."""
_FEW_HEADS = 32.0
"""Heads from which fp8 caches are unpacked for a prompt (vLLM, `MIN_HEADS_FOR_BF16_PREFILL`)."""
_SHORT = 16384.0
"""Keys up to which one kernel chooses; another one takes more."""
_HARDEST = 3.0
"""Keys over those kept at which the choice takes longest."""
_LONG = 131072.0
"""Keys of a request from which rows of scores cost what they move."""
_CROWD = 1e6
"""Scores of index heads that are counted as one."""
_VERIFIED = ("True", "true", "1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sparse(Stream):
    """One sparse attention module of `batch` requests with `q_len` new tokens behind `prefix` cached ones.

    heads: on this GPU. hidden, q_rank, index_heads: of the whole layer; without index heads it takes the
    choice of another layer. nope_dim, v_dim: of a head of `dsa`. phase: `generation`, `context`
    (prefill) or `verify` (2 to 128 tokens behind a long prefix). kv_dtype: of the cache. gemm_dtype: format
    of the projections.
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
    hidden: Size = SIZES["dsa"].hidden
    q_rank: Size = SIZES["dsa"].q_rank
    index_heads: Size = SIZES["dsa"].index_heads
    nope_dim: Size = SIZES["dsa"].nope_dim
    v_dim: Size = SIZES["dsa"].v_dim
    kv_dtype: str | None = None
    gemm_dtype: str | None = None
    phase: str = GENERATION

    @classmethod
    def row_fields(cls, kind: str, form: Format, numbers: Numbers, words: Words) -> dict[str, Any]:
        """Sizes of the model that rows name, their formats, and whether they verify."""
        del form, numbers
        phase, cache, weights, verifies = (str(words[name][0]) for name in cls.ROWS.splits)
        sizes = dict(zip(Sizes._fields, sizes_of(kind, words["model_name"]), strict=True))
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
        """A plain step's indexer takes few queries of a request together; more are so many requests.

        Two on Hopper, four on Blackwell (vLLM PR 45322, TensorRT-LLM PR 10226); each reads the keys again.
        """
        several = as_float(self.q_len) > _TOGETHER.get(architecture, 2.0)
        if self.phase != GENERATION or self._family != "dsa" or not several.any():
            return self
        apart = self.one_by_one()
        pairs = ((getattr(apart, name), getattr(self, name)) for name in self.AXES)
        batch, q_len, prefix = (np.where(several, *pair) for pair in pairs)
        return replace(self, batch=batch, q_len=q_len, prefix=prefix)

    def one_by_one(self) -> Self:
        """Each new token as a request of its own, in a plain step."""
        prefix = as_float(self.prefix) + 0.5 * (as_float(self.q_len) - 1.0)
        return replace(self, batch=self.size, q_len=np.ones_like(self.size), prefix=prefix, phase=GENERATION)

    @property
    def weights(self) -> FloatArray:
        """Entries of the projections on this GPU, the indexer's with them."""
        heads, hidden, q_rank = (as_float(size) for size in (self.heads, self.hidden, self.q_rank))
        index_heads = as_float(self.index_heads)
        indexer = q_rank * index_heads * _INDEX_DIM + hidden * (_INDEX_DIM * (index_heads > 0) + index_heads)
        if self._family == "dsa":
            nope, value = as_float(self.nope_dim), as_float(self.v_dim)
            queries = hidden * (q_rank + _LATENT + _ROPE) + q_rank * heads * (nope + _ROPE)
            return queries + heads * _LATENT * (nope + value) + heads * value * hidden + indexer
        head = HEADS[self.kind]
        if self.kind == "msa":
            return hidden * (
                2.0 * heads * head + 2.0 * self._groups * head + (self._groups + 1.0) * _INDEX_DIM
            )
        out = heads * head * OUT_RANK + 8.0 * heads / self.choice.all_heads * OUT_RANK * hidden
        inner = hidden * q_rank + q_rank * heads * head + head * hidden + out
        if self.kind == "hca":
            return inner + 2.0 * hidden * head
        return inner + 4.0 * hidden * head + indexer + 3.0 * _INDEX_DIM * hidden

    @property
    def choice(self) -> Choice:
        """What is chosen from."""
        return CHOICES[self._family]

    @property
    def of_one_token(self) -> Self | None:
        """A plain step's, beside that of a verification step."""
        return replace(self, phase=GENERATION) if self.phase == VERIFY else None

    @property
    def loads(self) -> Mapping[str, FloatArray]:
        """Weights and activations, index keys (H1), and the chosen rows (H2)."""
        batch, element = as_float(self.batch), BYTES_PER_ELEMENT[self.dtype]
        weights = BYTES_PER_ELEMENT[format_of(self.gemm_dtype or self.dtype).weight_dtype] * self.weights
        passed = 2.0 * element * self.size * as_float(self.hidden)
        loads = {"weights": weights + passed, "keys": batch * self._most_keys * self._row_bytes}
        if self._indexes:
            loads["index"] = batch * self._scored * (256.0 if self.kind == "msa" else _INDEX_ROW)
        if self.kind == "msa":  # groups that a GPU holds in part have a kernel of their own
            loads["narrow"] = loads["index"] * (as_float(self.heads) < _GROUP_ROWS)
        if self._fills_scores:  # of every query for the keys of all requests, which are masked
            scores = 4.0 * self.size * batch * self._scored * self._chooses
            loads |= {"scores": scores, "long_scores": scores * self._scored / _LONG}
        return loads

    @property
    def work(self) -> Mapping[str, FloatArray]:
        """Projections, scores of the indexer, attention to the chosen keys."""
        heads, rows = as_float(self.heads), self._rows
        middle = as_float(self.prefix) + (as_float(self.q_len) + 1.0) / 2.0
        width = 2.0 * _LATENT + _ROPE if self._family == "dsa" else 2.0 * HEADS[self.kind]
        work = {
            "projections": 2.0 * self.size * self.weights,
            "attention": 2.0 * rows * width * self.size * self._keys(middle),
        }
        if self.kind in ("csa", "hca") and format_of(self.gemm_dtype or self.dtype).dtype == "fp8":
            # of heads that GPUs share: SGLang's on Blackwell are fast with all heads alone
            work["split"] = work["projections"] * (heads < self.choice.all_heads)
        if self.kind == "msa" and self.phase != GENERATION:  # without a kernel of its own, all keys
            work["every_key"] = 2.0 * np.maximum(heads, _LEAST_HEADS) * width * self.size * middle
        if self._family == "dsa" and self.phase == CONTEXT and self.stored_dtype == "fp8":
            few = heads < _FEW_HEADS  # these go on with the kernel of a plain step
            work |= {"attention": work["attention"] * ~few, "few_heads": work["attention"] * few}
        if self._indexes:
            index_heads = self._groups if self.kind == "msa" else as_float(self.index_heads)
            mean = (as_float(self.prefix) + as_float(self.q_len) / 2.0) / self.choice.ratio
            work["index"] = 2.0 * index_heads * _INDEX_DIM * self.size * mean
        if self._family == "dsa" and self.phase != GENERATION:  # where nothing is chosen: of all heads
            tokens = as_float(self.batch) * as_float(self.prefix) * (1.0 - self._chooses)
            expanded = as_float(self.nope_dim) + as_float(self.v_dim)
            work["expanded"] = 2.0 * tokens * heads * _LATENT * expanded
        return work

    @property
    def flops(self) -> FloatArray:
        """Floating-point operations, without those of heads that fill a tile."""
        work = {name: done for name, done in self.work.items() if name not in self.NEEDLESS}
        attention = work["attention"] + work.get("few_heads", 0.0)
        return total_of(work.values()) - attention * (1.0 - as_float(self.heads) / self._rows)

    def steps(self, sms: int) -> Mapping[str, FloatArray]:
        """The choice once there are keys to leave out, keys of a request in turn, waves of tokens."""
        total = self._total
        chooses, ones = self._chooses * float(self._indexes), np.ones_like(self.size + total)
        topk, keys = max(self.choice.topk, 1), total / self.choice.ratio
        choice = np.clip(keys / topk - 1.0, 0.0, 1.0) * (keys <= _SHORT + topk)
        steps = {
            "choice": chooses,
            "short_choice": chooses * choice,
            "request": total / 1e4 * ones * float(self._indexes or not self.choice.topk),
            "waves": np.ceil(self.size / sms) * ones,
            "chosen": self.size / sms * chooses,
        }
        if self.phase == CONTEXT:  # one token is taken as a plain step
            steps["prompt"] = (as_float(self.q_len) > 1.0) * ones
            steps["chosen"], steps["peak"] = self._prompt_choices(sms)
        if self._family == "dsa" and self.phase != GENERATION:  # a head that is not copied as it is
            steps[HOST_STEP] = (as_float(self.nope_dim) != as_float(self.v_dim)) * ones
        if self._family == "dsa":  # batched products of few rows
            steps["doublings"] = np.log2(np.minimum(self.size, sms)) * ones
        elif self.kind == "msa":  # without a kernel of its own, scores of all requests in one table
            steps["crowd"] = (as_float(self.batch) * total * self._groups / _CROWD) ** 2
        else:  # without a kernel of its own, one token after another
            steps["tokens"] = self.size * ones
        return steps

    @property
    def footprint(self) -> Mapping[str, FloatArray]:
        """What a benchmark that repeats itself leaves behind: the cache that is read, and the weights."""
        loads = self.loads
        return {"": loads["weights"] + loads["keys"] + loads.get("index", np.zeros(()))}

    @property
    def _indexes(self) -> bool:
        return self.choice.topk > 0 and bool(np.any(as_float(self.index_heads) > 0))

    @property
    def _fills_scores(self) -> bool:
        return self._family == "dsa" and self.phase != GENERATION and self._indexes

    @property
    def _total(self) -> FloatArray:
        """Tokens of a request, its new ones included."""
        return as_float(self.prefix) + as_float(self.q_len)

    @property
    def _chooses(self) -> FloatArray:
        """1 where there are keys to leave out."""
        total = self._total
        reach = self.choice.topk * self.choice.ratio
        return np.asarray((total > reach) * float(reach > 0))

    def _prompt_choices(self, sms: int) -> tuple[FloatArray, FloatArray]:
        """Tokens with keys to leave out, and these by how hard that is, at most 1; later passes leave few."""
        before, total = as_float(self.prefix), self._total
        reach = float(max(self.choice.topk * self.choice.ratio, 1))
        behind = np.clip(total - np.maximum(before, reach), 0.0, as_float(self.q_len))
        chosen: FloatArray = as_float(self.batch) * behind / sms * float(self._indexes)
        ratio = np.maximum(0.5 * (np.maximum(before, reach) + total) / reach, 1.0)
        return chosen, chosen * np.minimum(0.5 * (ratio - 1.0), 1.0) * np.minimum(_HARDEST / ratio, 1.0) ** 2

    @property
    def _groups(self) -> FloatArray:
        """K/V heads of `msa` on this GPU, one for 16 query heads."""
        return np.maximum(as_float(self.heads) / _GROUP_ROWS, 1.0)

    @property
    def _rows(self) -> FloatArray:
        """Heads that kernels compute: whole tiles."""
        tile = _GROUP_ROWS * self._groups if self.kind == "msa" else _TILE_HEADS
        rows: FloatArray = tile * np.ceil(as_float(self.heads) / tile)
        return rows

    @property
    def _row_bytes(self) -> FloatArray:
        element = BYTES_PER_ELEMENT[self.stored_dtype]
        if self._family == "dsa":
            return as_float(_FIRST_MLA_ROW.get(element, 1152.0))
        if self.kind == "msa":
            return 2.0 * element * self._groups * HEADS["msa"]
        return as_float(_COMPRESSED_ROW)

    @property
    def _scored(self) -> FloatArray:
        """Index keys of a request."""
        return self._total / self.choice.ratio

    def _keys(self, total: FloatArray) -> FloatArray:
        layer = self.choice
        compressed = total / layer.ratio
        chosen = np.minimum(compressed, layer.topk) if layer.topk else compressed
        keys: FloatArray = np.minimum(total, layer.window) + chosen if layer.window else chosen
        return keys

    @property
    def _most_keys(self) -> FloatArray:
        """Rows that the requests' queries read: of each its own choice, at most all that there are."""
        total = self._total
        every = total / self.choice.ratio + (
            np.minimum(total, self.choice.window) if self.choice.window else 0.0
        )
        keys: FloatArray = np.minimum(self._keys(total) * as_float(self.q_len), every)
        return keys


def sizes_of(kind: str, models: TextArray) -> tuple[FloatArray, ...]:
    """Sizes of named models' layers, an entry a name; the kind's first model's where it tells nothing."""
    of = kind.removesuffix(NO_INDEXER)
    names, inverse = np.unique(models, return_inverse=True)
    bare = [str(name).rpartition("/")[2] for name in names]
    listed = [
        next((sizes for start, sizes in _SIZES_OF.items() if name.startswith(start)), SIZES[of])
        for name in bare
    ]
    columns = np.asarray(listed, dtype=np.float64)[inverse].T
    return tuple(columns)
