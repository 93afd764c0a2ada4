"""A training loop that can be killed at any moment and goes on as if it had not been.

Batches and dropout depend on (seed, step) alone; parameters, optimiser moments and the loss history
are saved together, atomically.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypedDict, Unpack

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from medusa_sim.errors import DataError, SpecError
from medusa_sim.lab.decoder.checkpoint_folder import write_safetensors


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """Length and pace of a run. `learning_rate` is the peak; warm-up is linear, then a cosine falls to 0."""

    steps: int
    learning_rate: float
    warmup_steps: int
    weight_decay: float = 0.0
    max_gradient_norm: float = 1.0
    seed: int = 0
    save_every: int = 50


def learning_rate_factor(step: int, steps: int, warmup_steps: int) -> float:
    """Share of the peak learning rate at a step (from 0)."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    return 0.5 * (1.0 + math.cos(math.pi * (step - warmup_steps) / max(steps - warmup_steps, 1)))


_MOMENTS = ("exp_avg", "exp_avg_sq")
"""Of a parameter, as the optimiser names them."""
LossOfStep: TypeAlias = Callable[[int], tuple[Tensor, dict[str, float]]]


Parameters: TypeAlias = dict[str, nn.Parameter]
"""Under names that stay."""
Report: TypeAlias = Callable[[int, dict[str, float]], None]
"""Told the losses of a step."""


class Run(TypedDict, total=False):
    """Where a run's state is kept and what belongs to it, and who is told of it (`Trainer`)."""

    state_path: Path | None
    origin: Mapping[str, Any] | None
    report: Report | None


def trainable(module: nn.Module, prefix: str = "") -> Parameters:
    """Every parameter of `module` that requires a gradient."""
    return {prefix + name: p for name, p in module.named_parameters() if p.requires_grad}


class Trainer:
    """Runs `loss_of_step(step) -> (loss, parts)`; `parts` are named numbers for the history.

    groups: parameters, and their learning rate relative to the peak. `origin` is whatever else decides the
    result (data, checkpoint, weights of losses): a saved state is taken up only where it and the settings are
    the same.
    """

    def __init__(
        self,
        groups: Sequence[tuple[Parameters, float]],
        loss_of_step: LossOfStep,
        settings: TrainSettings,
        **run: Unpack[Run],
    ) -> None:
        self.loss_of_step, self.settings = loss_of_step, settings
        self.state_path, self.report = run.get("state_path"), run.get("report")
        self.identity: dict[str, Any] = asdict(settings) | dict(run.get("origin") or {})
        self.identity.pop("save_every")
        self.parameters: Parameters = {name: p for group, _ in groups for name, p in group.items()}
        self.optimizer = torch.optim.AdamW(
            [{"params": list(group.values()), "rate": rate} for group, rate in groups],
            lr=settings.learning_rate,
            betas=(0.9, 0.95),
            weight_decay=settings.weight_decay,
        )
        self.step = 0
        self.history: list[dict[str, float]] = []

    def run(self) -> list[dict[str, float]]:
        """Trains from the saved state, if any, to the last step; the losses of every step."""
        self.resume()
        settings = self.settings
        while self.step < settings.steps:
            factor = learning_rate_factor(self.step, settings.steps, settings.warmup_steps)
            for group in self.optimizer.param_groups:
                group["lr"] = settings.learning_rate * group["rate"] * factor
            torch.manual_seed(settings.seed * 1_000_003 + self.step)  # dropout
            self.optimizer.zero_grad(set_to_none=True)
            loss, parts = self.loss_of_step(self.step)
            if not bool(torch.isfinite(loss)):
                raise DataError(f"training loss is {float(loss)} at step {self.step}; lower --learning-rate")
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            torch.nn.utils.clip_grad_norm_(self.parameters.values(), settings.max_gradient_norm)
            self.optimizer.step()
            self.step += 1
            record = {"step": float(self.step), "loss": float(loss.detach())} | parts
            self.history.append(record)
            if self.step % settings.save_every == 0 or self.step == settings.steps:
                self.save()
            if self.report is not None:
                self.report(self.step, record)
        return self.history

    def save(self) -> None:
        """Writes the whole state in one file, atomically."""
        if self.state_path is None:
            return
        tensors: dict[str, Tensor] = {}
        for name, parameter in self.parameters.items():
            moments = self.optimizer.state[parameter]
            tensors[f"parameter/{name}"] = parameter.data
            tensors |= {f"{moment}/{name}": moments[moment] for moment in _MOMENTS}
        self.state_path.parent.mkdir(parents=True, exist_ok=True)
        facts = {"step": self.step, "settings": self.identity, "history": self.history}
        write_safetensors(self.state_path, tensors, {"training": json.dumps(facts)})

    def resume(self) -> None:
        """Takes up a saved state. Raises SpecError if it belongs to other settings or another model."""
        if self.state_path is None or not self.state_path.exists():
            return
        path = self.state_path
        try:
            with safe_open(path, framework="pt") as file:
                facts = json.loads((file.metadata() or {})["training"])
                saved = set(file.keys())
                if differing := _difference(facts["settings"], self.identity):
                    raise SpecError(
                        f"{path}: belongs to a run with other settings ({differing}); "
                        "give that run's command again, or another --save"
                    )
                for name, parameter in self.parameters.items():
                    if f"parameter/{name}" not in saved:
                        raise SpecError(f"{path}: has no parameter {name!r}; it belongs to another model")
                    parameter.data.copy_(file.get_tensor(f"parameter/{name}"))
                    moments = {moment: file.get_tensor(f"{moment}/{name}") for moment in _MOMENTS}
                    self.optimizer.state[parameter] = {"step": torch.tensor(float(facts["step"])), **moments}
        except (SafetensorError, OSError, KeyError, TypeError, json.JSONDecodeError) as error:
            raise SpecError(
                f"{path}: not a readable training state ({error}); delete it to start afresh"
            ) from None
        self.step, self.history = int(facts["step"]), list(facts["history"])


def _difference(saved: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """The settings that differ, both values each; empty where none does."""
    names = sorted(name for name in {*saved, *given} if saved.get(name) != given.get(name))
    return ", ".join(f"{name} {saved.get(name)!s:.40}, now {given.get(name)!s:.40}" for name in names[:4])
