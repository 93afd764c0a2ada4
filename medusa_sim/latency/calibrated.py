"""The default latency model: fitted kernel parameters of one GPU and one kernel library."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np

from medusa_sim.arrays import as_float
from medusa_sim.engines.backends import Backend, backend_of, backend_of_row
from medusa_sim.engines.fp8_caches import Fp8Cache, fp8_cache_of
from medusa_sim.errors import SpecError
from medusa_sim.gpus.fitted_attention import AttentionKernel
from medusa_sim.gpus.gpu import WIDE, Gpu
from medusa_sim.gpus.kernels import SECTIONS, GemmKernel, KernelSet
from medusa_sim.latency.attention import attention_time, reading_fp8, writing_apart
from medusa_sim.latency.choice import Asked, Choice, choose, with_place
from medusa_sim.latency.composed import sparse_time, window_time
from medusa_sim.latency.elementwise import elementwise_time
from medusa_sim.latency.laws import in_another_library, law_of_kind
from medusa_sim.latency.operator_time import OperatorTime
from medusa_sim.latency.serial import serial_attention_time
from medusa_sim.latency.unfused import unfused_attention_time
from medusa_sim.latency.verify_attention import (
    called_attention_time,
    verify_attention_time,
    whole_attention_time,
)
from medusa_sim.operators.attention import Attention
from medusa_sim.operators.elementwise import Elementwise
from medusa_sim.operators.gemm import Gemm
from medusa_sim.operators.kinds import COLLECTIVE, KIND_OF
from medusa_sim.operators.operator import Operator
from medusa_sim.operators.sparse import Sparse
from medusa_sim.operators.window import WindowAttention
from medusa_sim.units import BYTES_PER_ELEMENT

KernelT = TypeVar("KernelT")


class CalibratedLatency:
    """Kernel times from the parameters in `hardware/<gpu>.toml`.

    kernels: name of the kernel set. cold: as in a step (`laws.Law`), else as rows were measured.

    A step has an engine. library: its own kernel set, whose layers of experts, latent attention and
    collectives go before others; serves: the engine whose attention verifies (`engines.backends`), empty for
    kernels alone. A row of a table may name what it was measured with. engine: a kernel set, in the place of
    `kernels` where the GPU has it; kernel: the library's name of a kernel (`choice.choose`).

    Raises SpecError where the GPU has no such kernel set.
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
        self.set_name = engine if engine in gpu.kernels else kernels
        self.cold = cold
        self.kernel_set: KernelSet = _over(gpu.kernels.get(kernels), gpu.kernel_set(self.set_name))
        in_step = cold and not engine
        self.asked = Asked(
            set_name=kernels, library=library, engine=engine, kernel_name=kernel, in_step=in_step
        )
        self._chosen: dict[Hashable, Choice] = {}

    def backend(self, operator: Attention) -> Backend:
        """The kernel that attends with several queries: the one that rows name, else the engine's."""
        named = backend_of_row(self.asked.kernel_name) if self.asked.kernel_name else None
        return named or backend_of(
            self.serves,
            self.gpu.architecture,
            attention="grouped",
            bytes_of_kv=BYTES_PER_ELEMENT[operator.stored_dtype],
            head_dim=float(np.max(operator.head_dim)),
        )

    def fp8_cache(self, operator: Attention) -> Fp8Cache | None:
        """What an fp8 cache adds to kernels that were measured with 16 bits; None: nothing that is known."""
        if not self.asked.in_step or operator.dtype == "fp8" or operator.stored_dtype != "fp8":
            return None
        return fp8_cache_of(self.serves, self.gpu.architecture, float(np.max(operator.head_dim)))

    def time(self, operator: Operator) -> OperatorTime:
        """Time of one launch, us. Raises SpecError where the set has no kernel for the operator."""
        match operator:
            case Attention():
                return self._fused(operator) if operator.is_fused else self._unfused(operator)
            case Elementwise():
                return self._elementwise(operator)
            case WindowAttention():
                return window_time(self, operator)
            case Sparse():
                return sparse_time(self, operator)
        return self.chosen_time(operator)

    def chosen_time(self, operator: Operator) -> OperatorTime:
        """Time by the one kernel that is chosen for the operator."""
        choice = self.choice(operator)
        law = law_of_kind(KIND_OF[operator.kind], choice.form)
        time = law(self.gpu, choice.kernel, operator, cold=self.cold)
        if isinstance(operator, Gemm) and isinstance(choice.kernel, GemmKernel) and self._lends(choice):
            time = in_another_library(self.gpu, choice.kernel, operator, time, form=choice.form)
        return with_place(choice, time)

    def whose(self, operator: Operator) -> Hashable:
        """Which kernels answer for an operator: models of one GPU that say the same give the same time."""
        if not KIND_OF[operator.kind].is_chosen:
            kernels = self.kernel_set
            of_engine: tuple[Hashable, ...] = ()
            if isinstance(operator, Attention) and operator.is_fused:
                of_engine = self.backend(operator), self.fp8_cache(operator)
            # sections are the GPU's own objects, which live as long as it does
            sections = (kernels.attention, kernels.serial_attention, kernels.elementwise, kernels.unfused)
            return self.set_name, self.cold, *map(id, sections), *of_engine
        if isinstance(operator, WindowAttention | Sparse):  # of several kernels
            return id(self)
        choice = self.choice(operator)
        tiles = choice.kernel.tiles if isinstance(choice.kernel, GemmKernel) else ()  # the engine's own
        return choice.place, choice.form, choice.is_asked, self._lends(choice), self.cold, tiles

    def _lends(self, choice: Choice) -> bool:
        """Whether a step of an engine takes a kernel of another one's rows."""
        return self.cold and self.asked.library not in ("", choice.set_name)

    def choice(self, operator: Operator) -> Choice:
        """The kernel that is chosen for an operator."""
        asked = self._asked_for(operator)
        key = operator.kind, operator.form, operator.forms, asked
        if key not in self._chosen:
            self._chosen[key] = choose(self.gpu, operator, asked)
        return self._chosen[key]

    def _asked_for(self, operator: Operator) -> Asked:
        """Collectives of more GPUs than the link joins go over what they share instead.

        Weights that are unpacked take the engine's own kernels (Marlin in vLLM), where the GPU has any.
        """
        library_set = self.gpu.kernels.get(self.asked.library)
        is_unpacked = isinstance(operator, Gemm) and operator.unpacks and not self.asked.engine
        if is_unpacked and library_set is not None and operator.form in library_set.linear:
            return replace(self.asked, set_name=self.asked.library)
        if KIND_OF[operator.kind] is not COLLECTIVE or WIDE not in self.gpu.kernels:
            return self.asked
        is_wide = self.gpu.exceeds_link(as_float(operator.peers)).all()
        return replace(self.asked, set_name=WIDE, library="") if is_wide else self.asked

    def _unfused(self, operator: Attention) -> OperatorTime:
        """QK^T or PV, of the one kernel that a set has for both."""
        unfused = self.kernel_set.unfused
        kernels = {} if unfused is None else {"qk": unfused, "pv": unfused}
        kernel = self._kernel("unfused", kernels, operator.kind)
        return unfused_attention_time(self.gpu, kernel, operator, cold=self.cold)

    def _fused(self, operator: Attention) -> OperatorTime:
        """Fused attention; verification that no rows tell of is put together from decoding and prefill."""
        gpu, kernels, cold = self.gpu, self.kernel_set, self.cold
        if operator.kind in kernels.serial_attention:
            return serial_attention_time(gpu, kernels.serial_attention[operator.kind], operator)
        backend = self.backend(operator)
        is_composed = operator.kind == "verify_attention" and operator.kind not in kernels.attention
        if not is_composed and backend.timed_as != "call":
            kernel = self._fused_kernel(operator.kind, operator)
            return attention_time(gpu, kernel, operator, cold=cold, plans=backend.plans)
        decode = self._fused_kernel("decode_attention", operator)
        if backend.timed_as == "call":
            time = called_attention_time(gpu, decode, operator, splits=backend.splits)
        elif backend.timed_as == "walk":
            time = whole_attention_time(gpu, decode, operator, splits=backend.splits, cold=cold)
        else:
            prefill = self._fused_kernel("prefill_attention", operator)
            time = verify_attention_time(gpu, decode, prefill, operator, cold=cold, plans=backend.plans)
        return replace(time, place=f"{self.set_name}: {backend.name}")

    def _fused_kernel(self, kind: str, operator: Attention) -> AttentionKernel:
        """The kernel of fused attention of that kind, in a step as an engine runs it.

        It writes K and V apart (`writing_apart`) and reads the engine's cache (`reading_fp8`).
        """
        kernel = self._kernel("attention", self.kernel_set.attention, kind)
        if not self.asked.in_step:
            return kernel
        kernel, cache = writing_apart(kernel), self.fp8_cache(operator)
        return kernel if cache is None or kind != "decode_attention" else reading_fp8(kernel, cache)

    def _elementwise(self, operator: Elementwise) -> OperatorTime:
        """Elementwise kernels; the choice of the next token as a norm where it has none of its own."""
        kind: str = operator.kind
        if kind == "next_token" and kind not in self.kernel_set.elementwise:
            kind = "rms_norm"  # a pass over rows as well; public rows have no other over the vocabulary
        kernel = self._kernel("elementwise", self.kernel_set.elementwise, kind)
        return elementwise_time(self.gpu, kernel, operator, cold=self.cold)

    def _kernel(self, section: str, kernels: Mapping[str, KernelT], key: str) -> KernelT:
        """The kernel of that key in a section of the set. Raises SpecError naming those that it has."""
        if key in kernels:
            return kernels[key]
        is_block = section == "elementwise" and not kernels  # such a set prices no whole step
        block = ", ask for one block (sweep --scope block)" if is_block else ""
        raise SpecError(
            f"gpu {self.gpu.name!r}, kernel set {self.set_name!r}: no {section} kernel for {key!r} "
            f"(it has: {', '.join(sorted(kernels)) or 'none'}); choose another --kernels or dtype{block}, "
            "or fit it: medusa-sim calibrate"
        )


def _over(base: KernelSet | None, of_engineet: KernelSet) -> KernelSet:
    """An engine's set, with the sections of the runtime's where it has none."""
    if base is None or base is of_engineet:
        return of_engineet
    return KernelSet(**{name: getattr(of_engineet, name) or getattr(base, name) for name in SECTIONS})
