"""Fits of the kernels that a step calls: their errors, the GPU of the fit, and stand-ins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from medusa_sim.engines.fp8_caches import Fp8Cache, fp8_cache_of
from medusa_sim.gpus.fitted import Fit
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.latency.operator_time import Source
from medusa_sim.models.mixers import Latent
from medusa_sim.models.parallel import ONE
from medusa_sim.operators.kinds import KIND_OF, KINDS, LINEAR
from medusa_sim.step.kernels import decomposed
from medusa_sim.step.launch import Launch
from medusa_sim.step.network import model_launches
from medusa_sim.step.setting import Setting
from medusa_sim.step.workload import decode, verify
from medusa_sim.units import Format

_DENSE = ("gemm", "attention", "elementwise")
"""Sections of the kernels of a dense model on one GPU."""


@dataclass(frozen=True, kw_only=True, eq=False)
class KernelFits:
    """Fits of the kernels of one scenario's steps. kernels: name of the kernel set."""

    setting: Setting
    kernels: str

    @property
    def gpu(self) -> Gpu:
        """The GPU whose kernels they are."""
        return self.setting.latency.gpu

    @property
    def is_calibrated(self) -> bool:
        """Whether fitted kernels give the times."""
        return self.setting.latency.name == "calibrated"

    @cached_property
    def plain_launches(self) -> tuple[Launch, ...]:
        """Kernels of a plain step, and those that only a step of several tokens a request has."""
        setting = self.setting
        verified = model_launches(setting.shard, verify(1, 1, 2), setting.runtime)
        return (
            *model_launches(setting.shard, decode(1, 1), setting.runtime),
            *(launch for launch in verified if launch.composed),
        )

    @cached_property
    def by_key(self) -> dict[str, Fit]:
        """`gemm.fp16` -> how well it was fitted, for the kernels that a step of this model calls."""
        if not self.is_calibrated:
            return {}
        fits, setting = self._dense_fits, self.setting
        if setting.scope == "block" or (setting.parallel == ONE and not setting.model.has_more_kinds):
            return fits
        # of experts, latent attention and exchange any set of the GPU: the one that the latency model takes
        for launch in decomposed(setting.latency, self.plain_launches):
            kind = KIND_OF[launch.operator.kind]
            if kind.is_chosen and kind.section != "gemm":
                time = setting.latency.time(launch.operator)
                fits[f"{kind.section}.{time.place}"] = kind.table(self.gpu.kernels[time.set_name])[
                    time.key
                ].fit
        return fits

    @property
    def _dense_fits(self) -> dict[str, Fit]:
        """`gemm.fp16`, `attention.decode_attention`, ... -> fit, in the model's format."""
        held, model = self.gpu.kernel_set(self.kernels), self.setting.model
        form = self._form if self._form in held.linear else model.dtype
        forms = {form, model.activation_dtype}
        return {
            f"{kind.section}.{key}": kernel.fit
            for kind in KINDS
            if kind.section in _DENSE
            for key, kernel in kind.table(held).items()
            if kind.section != "gemm" or key in forms
        }

    @property
    def _form(self) -> str:
        """The format of the linear layers, fp16 and bf16 apart, as `Model.form` has them not."""
        return Format(self.setting.model.dtype, self.setting.model.weight_dtype).key

    @property
    def linear(self) -> Fit | None:
        """Fit of the linear layers in this model's format; None where there is none."""
        return self.by_key.get(f"gemm.{self._form}", self.by_key.get(f"gemm.{self.setting.model.dtype}"))

    @property
    def lenders(self) -> tuple[str, ...]:
        """Other devices and libraries whose measured kernels stand in for this GPU's own, each once."""
        lenders = (fit for fit in self.by_key.values() if fit.is_borrowed(self.gpu.name))
        return tuple(dict.fromkeys((*(fit.inherited_from for fit in lenders), *self._other_libraries)))

    @property
    def _other_libraries(self) -> Iterator[str]:
        """Kernels of this GPU by which linear layers are priced that the engine runs by others."""
        for launch in self.plain_launches if self.is_calibrated else ():
            if KIND_OF[launch.operator.kind] is LINEAR:
                time = self.setting.latency.time(launch.operator)
                held = self.gpu.kernels.get(time.set_name)
                kernel = None if held is None else held.gemm.get(time.key)
                if time.source.max() == Source.BORROWED and kernel is not None and not kernel.fit.lender:
                    yield f"{self.gpu.name}:{time.place}"

    @property
    def unpacks(self) -> tuple[str, ...]:
        """Data stored narrower than its kernel was measured with: `int4 weights`, `a KV cache in fp8`."""
        if not self.is_calibrated:
            return ()
        model = self.setting.model
        weights = self._form != model.dtype and self._form not in self.gpu.kernel_set(self.kernels).linear
        cache = self._has_narrow_cache and self.fp8_cache is None
        return (
            *([f"{model.weight_dtype} weights"] if weights else []),
            *([f"a KV cache in {model.kv_dtype}"] if cache else []),
        )

    @property
    def fp8_cache(self) -> Fp8Cache | None:
        """What an fp8 cache adds to kernels measured with 16 bits; None: there is none, or it is unknown."""
        setting = self.setting
        if not (self.is_calibrated and self._has_narrow_cache and setting.model.kv_dtype == "fp8"):
            return None
        width = setting.model.attention.head_dim
        return fp8_cache_of(setting.runtime.library, self.gpu.architecture, width)

    @property
    def _has_narrow_cache(self) -> bool:
        model = self.setting.model
        return not model.blocks(Latent) and model.kv_dtype != model.activation_dtype
