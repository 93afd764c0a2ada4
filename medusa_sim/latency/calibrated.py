"""The default latency model: fitted kernel parameters of one GPU and one kernel library.

Which fitted kernel times an operator: that of the engine and kernel that were asked for, else the nearest.

A kernel lies at `[kernels.<set>.<section>.<format>]`, or `<format>@<name>` where it is not what the library
takes by itself; its `name` is the library's own, which a row's may go on from ("FLASH_ATTN_MLA (FA3)"). The
nearest, in this order: the kernel of that name in the
sets that were asked for, what those sets take by themselves, then the same in every other set of the GPU; for
each with the operator's format first, then with formats of the same arithmetic.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from medusa_sim.arrays import as_float
from medusa_sim.errors import SpecError
from medusa_sim.latency.attention import (
    attention_time,
    called_attention_time,
    verify_attention_time,
    whole_attention_time,
)
from medusa_sim.latency.base import OperatorTime, Source, filled, less_certain
from medusa_sim.latency.gemm import gemm_time, unfused_attention_time
from medusa_sim.latency.waves import elementwise_time
from medusa_sim.operators.kinds import KIND_OF, Kind, is_in_window, is_sparse
from medusa_sim.operators.operator import GENERATION, VERIFY, Attention, Elementwise, Gemm, Operator
from medusa_sim.specs.engine_facts import Backend, backend_of, backend_of_row
from medusa_sim.specs.fitted import LatentKernel
from medusa_sim.specs.gpu import WIDE, Gpu
from medusa_sim.specs.inheritance import TRANSFER_ERROR
from medusa_sim.specs.kernels import (
    SECTIONS,
    GemmKernel,
    Kernel,
    KernelSet,
    SerialGemm,
    StreamKernel,
    without_clusters,
)
from medusa_sim.units import BYTES_PER_ELEMENT

if TYPE_CHECKING:
    from medusa_sim.operators.window import WindowAttention

NAME_MARK = "@"
REPLAYED = ("dsa", "dsa_no_indexer")
"""Modules of which rows of some libraries hold the host's launches and those of others a graph."""
_GRAPH_SHARE = 0.6
"""Of the shortest rows of such a module, what published steps leave: 48 of 76 to 79 us a layer (vLLM)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Whose kernels are wanted.

    kernels: name of the set where nothing else is said. library: the set of an engine's own kernels; what it
    borrows stands back where others were measured on this GPU. engine, kernel: the set that a row names and
    the library's name of a kernel there; empty where it does not. in_step: whether a step asks, which runs no
    library's fallback.
    """

    kernels: str
    library: str = ""
    engine: str = ""
    kernel: str = ""
    in_step: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A kernel and where it lies: `place` is `set:key`, `form` the format of the key.

    is_asked: whether it is what was asked for and not merely the nearest.
    """

    place: str
    form: str
    kernel: Kernel
    is_asked: bool

    @property
    def kernels(self) -> str:
        """The set that has it."""
        return self.place.partition(":")[0]


def choose(gpu: Gpu, kind: Kind, operator: Operator, asked: Asked) -> Choice:
    """The kernel of a kind for an operator, in one of its `forms`.

    Linear layers of sets that were not asked for serve only rows that name an engine. Where `own_first`, the
    sets that were asked for serve in any of the forms before other sets do, and there the kernel that was
    named before others. Raises SpecError in one line where there is none of them.
    """
    anywhere = kind.operator is not Gemm or bool(asked.engine)
    others = (asked.library, asked.kernels, *gpu.kernels) if anywhere else (asked.kernels,)
    sets = dict.fromkeys([name for name in (asked.engine, *others) if name])
    held = {name: kind.table(gpu.kernels[name]) for name in sets if name in gpu.kernels}
    candidates = [
        (set_name, form, key, kernel, _is_named(key, kernel, asked.kernel))
        for form in operator.forms
        for set_name, kernels in held.items()
        for key, kernel in _in_order(kernels, form, asked.kernel)
        if not (asked.in_step and isinstance(kernel, StreamKernel | LatentKernel) and kernel.fallback)
    ]
    own_forms = {form for _, form, _, kernel, _ in candidates if not _is_lent(kernel)}
    lends = asked.library not in (asked.engine, asked.kernels)

    def rank(entry: tuple[str, str, str, Kernel, bool]) -> tuple[bool, ...]:
        """False before True, what stands first first."""
        set_name, form, key, kernel, is_named = entry
        nameless = bool(asked.kernel) and asked.engine not in held  # then of the operator's own format
        return (
            nameless and (form != operator.forms[0] or not _says(kernel, asked.kernel)),
            lends and set_name == asked.library and _is_lent(kernel) and form in own_forms,
            kind.own_first and set_name not in (asked.engine, asked.library, asked.kernels),
            kind.own_first and not is_named,
            not asked.kernel and NAME_MARK in key,  # what no library takes by itself
        )

    if candidates:
        set_name, form, key, kernel, is_named = min(candidates, key=rank)
        is_asked = is_named and asked.engine in ("", set_name)
        is_asked = is_asked and (not kind.is_exact or form == operator.form)
        return Choice(place=f"{set_name}:{key}", form=form, kernel=kernel, is_asked=is_asked)
    has = sorted({key for kernels in held.values() for key in kernels})
    of_set = "" if anywhere else f", kernel set {asked.kernels!r}"
    elsewhere = [name for name, kernels in gpu.kernels.items() if name not in held and kind.table(kernels)]
    listed = f" ({', '.join(elsewhere)})" if elsewhere else ""
    raise SpecError(
        f"gpu {gpu.name!r}{of_set}: no {kind.section} kernel for {operator.forms[0]!r} "
        f"(it has: {', '.join(has) or 'none'}); choose another GPU, dtype or --kernels{listed}, "
        "or fit it: medusa-sim calibrate"
    )


def _is_lent(kernel: Kernel) -> bool:
    return bool(kernel.fit.inherited_from)


def with_place(choice: Choice, time: OperatorTime) -> OperatorTime:
    """The time with its kernel's place; one that was not asked for is borrowed and less certain."""
    if choice.is_asked:
        return replace(time, kernels=choice.place)
    return replace(less_certain(time, TRANSFER_ERROR, Source.BORROWED), kernels=choice.place)


def _in_order(kernels: Mapping[str, Kernel], form: str, name: str) -> Iterator[tuple[str, Kernel]]:
    """Kernels of a format: the one of that name first, then the library's own choice, then any."""
    of_form = {key: kernel for key, kernel in kernels.items() if key.partition(NAME_MARK)[0] == form}
    order = {key: (not _is_named(key, of_form[key], name), key != form, key) for key in of_form}
    yield from ((key, of_form[key]) for key in sorted(of_form, key=order.__getitem__))


def _is_named(key: str, kernel: object, name: str) -> bool:
    own = getattr(kernel, "name", "") or key.partition(NAME_MARK)[2]
    return not name or not own or _says(kernel, name) or name == own


def _says(kernel: object, name: str) -> bool:
    """Whether a row's name is the kernel's own, or goes on from it."""
    return name.partition(" ")[0] == getattr(kernel, "name", "")


KernelT = TypeVar("KernelT")


class CalibratedLatency:
    """Kernel times from the parameters in `hardware/<gpu>.toml`.

    kernels: name of the kernel set. cold: whether weights and KV come from HBM, as in every step of
    a model; `False` predicts rows that were measured with operands left in L2. library: set of an engine's
    own layers of experts, latent attention and collectives. engine, kernel: the set and the library's name of
    the kernel that rows were measured with (`choose`); if the GPU has no kernel set for the engine, `kernels`
    is used. serves: the engine whose attention verifies (`specs.engine_facts.backend_of`); empty: kernels
    alone. Raises SpecError where the GPU has no such kernel set.
    """

    name = "calibrated"

    def __init__(
        self,
        gpu: Gpu,
        kernels: str,
        *,
        cold: bool = True,
        library: str = "",
        engine: str = "",
        kernel: str = "",
        serves: str = "",
    ) -> None:
        self.gpu = gpu
        self.serves = serves or engine
        self.kernels = engine if engine in gpu.kernels else kernels
        self.cold = cold
        self.held: KernelSet = _over(gpu.kernels.get(kernels), gpu.kernel_set(self.kernels))
        in_step = cold and not engine
        self.asked = Asked(kernels=kernels, library=library, engine=engine, kernel=kernel, in_step=in_step)
        self._chosen: dict[Hashable, Choice] = {}

    def backend(self, operator: Attention) -> Backend:
        """The kernel that attends with several queries: the one that rows name, else the engine's."""
        named = backend_of_row(self.asked.kernel) if self.asked.kernel else None
        return named or backend_of(
            self.serves,
            self.gpu.architecture,
            latent=False,
            bytes_of_kv=BYTES_PER_ELEMENT[operator.stored_dtype],
            head_dim=float(np.max(operator.head_dim)),
        )

    def time(self, operator: Operator) -> OperatorTime:
        """Time of one launch, us. Raises SpecError where the set has no kernel for the operator."""
        kind = KIND_OF[operator.kind]
        if not kind.is_chosen:
            time: OperatorTime = kind.timer(self, operator)
            return time
        if is_in_window(operator) and operator.phase == VERIFY:
            return verify_in_window(self, operator)
        choice = self._choice(kind, operator)
        time = kind.timer(self.gpu, choice.kernel, operator, cold=self.cold, form=choice.form)
        if isinstance(operator, Gemm) and isinstance(choice.kernel, GemmKernel) and self._lends(choice):
            time = in_another_library(self.gpu, choice.kernel, operator, time, form=choice.form)
        time = with_place(choice, time)
        if self.cold and is_sparse(operator) and operator.phase != VERIFY and operator.kind in REPLAYED:
            time = self._replayed(kind, operator, choice, time)
        if self.cold and is_sparse(operator) and operator.phase == VERIFY:
            apart = self.time(operator.one_by_one())  # which an engine may choose where it is shorter
            time = filled(time, apart, apart.time_us < time.time_us)
            plain = self.time(replace(operator, phase=GENERATION, q_len=1))
            return filled(time, plain, plain.time_us > time.time_us)
        return time

    def _replayed(self, kind: Kind, operator: Operator, own: Choice, time: OperatorTime) -> OperatorTime:
        """A module as a graph replays it: never slower than another library's rows on this card.

        Rows of DeepSeek's sparse attention hold gaps between some 60 launches: at one request vLLM's are 1.9
        (B200) to 2.5 times (H100) SGLang's, whose kernels are alike, and so many microseconds more at all
        others. Published steps through vLLM leave less than either: the band reaches down to that, and half
        of the way up to the library's own rows.
        """
        shortest = time
        for name in self.gpu.kernels:
            asked = Asked(kernels=name, library=name, in_step=True)
            if name == own.kernels or operator.form not in kind.table(self.gpu.kernels[name]):
                continue
            other = choose(self.gpu, kind, operator, asked)
            if other.kernels == name:
                found = kind.timer(self.gpu, other.kernel, operator, cold=True, form=other.form)
                shortest = filled(shortest, found, found.time_us < shortest.time_us)
        if shortest is time:
            return time
        is_other = shortest.time_us < time.time_us
        bounded = replace(
            shortest,
            low_us=np.minimum(shortest.low_us, _GRAPH_SHARE * shortest.time_us),
            high_us=np.maximum(shortest.high_us, np.sqrt(shortest.time_us * time.time_us)),
            source=np.maximum(shortest.source, np.int8(Source.BORROWED)),
        )
        return filled(time, bounded, is_other)

    def whose(self, operator: Operator) -> Hashable:
        """Which kernels answer for an operator: models of one GPU that say the same give the same time."""
        kind = KIND_OF[operator.kind]
        if not kind.is_chosen:
            held = self.held
            backend = (
                self.backend(operator) if isinstance(operator, Attention) and operator.is_fused else None
            )
            # tables of kernels are the GPU's own objects, which live as long as it does
            tables = id(held.attention), id(held.serial_attention), id(held.elementwise), id(held.unfused)
            return self.kernels, self.cold, *tables, backend
        if is_sparse(operator) or is_in_window(operator):  # of several kernels
            return id(self)
        choice = self._choice(kind, operator)
        return choice.place, choice.form, choice.is_asked, self._lends(choice), self.cold

    def _lends(self, choice: Choice) -> bool:
        """Whether a step of an engine takes a kernel of another one's rows."""
        return self.cold and self.asked.library not in ("", choice.kernels)

    def _choice(self, kind: Kind, operator: Operator) -> Choice:
        asked = self._asked_for(operator)
        key = operator.kind, operator.form, operator.forms, asked
        if key not in self._chosen:
            self._chosen[key] = choose(self.gpu, kind, operator, asked)
        return self._chosen[key]

    def _asked_for(self, operator: Operator) -> Asked:
        """Collectives of more GPUs than the link joins go over what they share instead.

        Weights that are unpacked take the engine's own kernels (Marlin in vLLM), where the GPU has any.
        """
        own = self.gpu.kernels.get(self.asked.library)
        is_unpacked = isinstance(operator, Gemm) and operator.unpacks and not self.asked.engine
        if is_unpacked and own is not None and operator.form in own.linear:
            return replace(self.asked, kernels=self.asked.library)
        if operator.FAMILY != "collective" or WIDE not in self.gpu.kernels:
            return self.asked
        is_wide = self.gpu.exceeds_link(as_float(operator.peers)).all()
        return replace(self.asked, kernels=WIDE, library="") if is_wide else self.asked

    def kernel(self, section: str, kernels: Mapping[str, KernelT], key: str) -> KernelT:
        """The kernel of that key in a section of the set. Raises SpecError naming those that it has."""
        if key in kernels:
            return kernels[key]
        raise SpecError(
            f"gpu {self.gpu.name!r}, kernel set {self.kernels!r}: no {section} kernel for {key!r} "
            f"(it has: {', '.join(sorted(kernels)) or 'none'}); choose another --kernels or dtype, "
            "or fit it: medusa-sim calibrate"
        )


def linear_time(
    gpu: Gpu, kernel: GemmKernel | SerialGemm, operator: Gemm, *, cold: bool, form: str
) -> OperatorTime:
    """Time of one linear layer, on a device of either kind."""
    if isinstance(kernel, GemmKernel):
        return gemm_time(gpu, kernel, operator, cold=cold, form=form)
    from medusa_sim.latency.serial import serial_gemm_time

    return serial_gemm_time(gpu, kernel, operator)


def in_another_library(
    gpu: Gpu, kernel: GemmKernel, operator: Gemm, time: OperatorTime, *, form: str
) -> OperatorTime:
    """A library's clusters may not be another's: the band reaches to what blocks launched alone take.

    SGLang's fp8 layers on Hopper compute 512 rows for 257. vLLM's source has the same clusters, others choose
    by shape, and nobody measured either.
    """
    alone = without_clusters(kernel)
    if alone is kernel:
        return time
    alone_us = gemm_time(gpu, alone, operator, form=form).time_us
    less = np.log(time.time_us / time.low_us), np.log(np.maximum(time.time_us / alone_us, 1.0))
    return replace(time, low_us=time.time_us * np.exp(-np.hypot(*less)))


def unfused_time(model: CalibratedLatency, operator: Attention) -> OperatorTime:
    """QK^T or PV, of the one kernel that a set has for both."""
    unfused = model.held.unfused
    known = {} if unfused is None else {"qk": unfused, "pv": unfused}
    kernel = model.kernel("unfused", known, operator.kind)
    return unfused_attention_time(model.gpu, kernel, operator, cold=model.cold)


def fused_time(model: CalibratedLatency, operator: Attention) -> OperatorTime:
    """Fused attention; verification that no rows tell of is put together from decoding and prefill."""
    serial, fused = model.held.serial_attention, model.held.attention
    if operator.kind in serial:
        from medusa_sim.latency.serial import serial_attention_time

        return serial_attention_time(model.gpu, serial[operator.kind], operator)
    backend = model.backend(operator)
    if backend.timed_as == "call":
        decode = model.kernel("attention", fused, "decode_attention")
        time = called_attention_time(model.gpu, decode, operator, splits=backend.splits)
        return replace(time, kernels=f"{model.kernels}: {backend.name}")
    if operator.kind == "verify_attention" and operator.kind not in fused:
        decode, prefill = (
            model.kernel("attention", fused, kind) for kind in ("decode_attention", "prefill_attention")
        )
        if backend.timed_as == "walk":
            time = whole_attention_time(model.gpu, decode, operator, splits=backend.splits, cold=model.cold)
        else:
            time = verify_attention_time(model.gpu, decode, prefill, operator, cold=model.cold)
        return replace(time, kernels=f"{model.kernels}: {backend.name}")
    kernel = model.kernel("attention", fused, operator.kind)
    return attention_time(model.gpu, kernel, operator, cold=model.cold)


def verify_in_window(model: CalibratedLatency, operator: WindowAttention) -> OperatorTime:
    """Several queries in a window, of which there are no rows: one's time, growing as attention does."""
    keys = np.minimum(as_float(operator.prefix) + 1.0, as_float(operator.window))
    one = replace(operator, phase=GENERATION, q_len=1, prefix=as_float(operator.prefix))
    plain = Attention(
        name=operator.name,
        kind="decode_attention",
        batch=operator.batch,
        q_len=1,
        kv_len=keys,
        heads=operator.heads,
        kv_heads=operator.kv_heads,
        head_dim=operator.head_dim,
        dtype=operator.dtype,
        kv_dtype=operator.kv_dtype,
    )
    several = replace(plain, kind="verify_attention", q_len=operator.q_len, kv_len=operator.kv_len)
    base, grown = model.time(one), model.time(several)
    growth = np.maximum(grown.time_us / model.time(plain).time_us, 1.0)
    below = np.hypot(*(np.log(each.time_us / each.low_us) for each in (base, grown)))
    above = np.hypot(*(np.log(each.high_us / each.time_us) for each in (base, grown)))
    time_us = base.time_us * growth
    return OperatorTime(
        time_us=time_us,
        low_us=time_us * np.exp(-below),
        high_us=time_us * np.exp(above),
        bound=np.broadcast_to(grown.bound, time_us.shape),
        source=np.maximum(base.source, grown.source) + np.zeros(time_us.shape, dtype=np.int8),
        kernels=base.kernels,
    )


def pass_time(model: CalibratedLatency, operator: Elementwise) -> OperatorTime:
    """Elementwise kernels; the choice of the next token as a norm where it has none of its own."""
    kind: str = operator.kind
    if kind == "next_token" and kind not in model.held.elementwise:
        kind = "rms_norm"  # a pass over rows as well; public rows have no other over the vocabulary
    kernel = model.kernel("elementwise", model.held.elementwise, kind)
    return elementwise_time(model.gpu, kernel, operator, cold=model.cold)


def _over(base: KernelSet | None, own: KernelSet) -> KernelSet:
    """An engine's set, with the sections of the runtime's where it has none."""
    if base is None or base is own:
        return own
    return KernelSet(**{name: getattr(own, name) or getattr(base, name) for name in SECTIONS})
