"""The default latency model: fitted kernel parameters of one GPU and one kernel library."""

from __future__ import annotations

from typing import TypeVar

from medusa_sim.errors import SpecError
from medusa_sim.latency.attention import attention_time, verify_attention_time
from medusa_sim.latency.base import OperatorTime
from medusa_sim.latency.elementwise import elementwise_time
from medusa_sim.latency.gemm import gemm_time
from medusa_sim.latency.serial import serial_attention_time, serial_gemm_time
from medusa_sim.latency.unfused import unfused_attention_time
from medusa_sim.operators.operator import Attention, Gemm, Operator
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.kernels import AttentionKernel, GemmKernel, KernelSet, SerialGemm

Kernel = TypeVar("Kernel")

_SAME_SPEED = {"fp16": "bf16", "bf16": "fp16"}
"""Tensor cores run both 16-bit formats at one rate (same datasheet row on every GPU here)."""


class CalibratedLatency:
    """Kernel times from the parameters in `hardware/<gpu>.toml`.

    kernels: name of the kernel set. cold: whether weights and KV come from HBM, as in every step of
    a model; `False` predicts rows that were measured with operands left in L2.
    Raises SpecError where the GPU has no such kernel set.
    """

    name = "calibrated"

    def __init__(self, gpu: Gpu, kernels: str, *, cold: bool = True) -> None:
        self.gpu = gpu
        self.kernels = kernels
        self.cold = cold
        self._set: KernelSet = gpu.kernel_set(kernels)

    def time(self, operator: Operator) -> OperatorTime:
        """Time of one launch, us. Raises SpecError where the set has no kernel for the operator."""
        if isinstance(operator, Gemm):
            linear = self._linear(operator.dtype)
            if isinstance(linear, SerialGemm):
                return serial_gemm_time(self.gpu, linear, operator)
            return gemm_time(self.gpu, linear, operator, cold=self.cold)
        if isinstance(operator, Attention):
            return self._attention_time(operator)
        kind: str = operator.kind
        if kind == "next_token" and kind not in self._set.elementwise:
            kind = "rms_norm"  # a pass over rows as well; public rows have no other over the vocabulary
        kernel = self._found(self._set.elementwise, kind, "elementwise")
        return elementwise_time(self.gpu, kernel, operator, cold=self.cold)

    def _linear(self, dtype: str) -> GemmKernel | SerialGemm:
        known = self._set.linear
        twin = _SAME_SPEED.get(dtype, dtype)
        if dtype not in known and twin in known:
            return known[twin]
        return self._found(known, dtype, "gemm")

    def _attention_time(self, operator: Attention) -> OperatorTime:
        if not operator.is_fused:
            if self._set.unfused is None:
                raise self._missing("unfused", operator.kind, ())
            return unfused_attention_time(self.gpu, self._set.unfused, operator, cold=self.cold)
        serial = self._set.serial_attention.get(operator.kind)
        if serial is not None:
            return serial_attention_time(self.gpu, serial, operator)
        if operator.kind != "verify_attention" or operator.kind in self._set.attention:
            return attention_time(self.gpu, self._attention(operator.kind), operator, cold=self.cold)
        decode, prefill = self._attention("decode_attention"), self._attention("prefill_attention")
        return verify_attention_time(self.gpu, decode, prefill, operator, cold=self.cold)

    def _attention(self, kind: str) -> AttentionKernel:
        return self._found(self._set.attention, kind, "attention")

    def _found(self, table: dict[str, Kernel], key: str, section: str) -> Kernel:
        if key not in table:
            raise self._missing(section, key, tuple(table))
        return table[key]

    def _missing(self, section: str, key: str, known: tuple[str, ...]) -> SpecError:
        return SpecError(
            f"gpu {self.gpu.name!r}, kernel set {self.kernels!r}: no {section} kernel for {key!r} "
            f"(it has: {', '.join(sorted(known)) or 'none'}); choose another --kernels or dtype, "
            "or fit it: medusa-sim calibrate"
        )
