"""Names of GPUs, models, runtimes and profiles as options: lists, and completion in the shell."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property

import click
from click.shell_completion import CompletionItem

from medusa_sim.errors import MedusaSimError


def _gpus(data_dir: str | None) -> Iterable[str]:
    from medusa_sim.specs.gpu import gpu_names

    return gpu_names(data_dir)


def _models(data_dir: str | None) -> Iterable[str]:
    del data_dir
    from medusa_sim.specs.models import model_names

    return model_names()


def _runtimes(data_dir: str | None) -> Iterable[str]:
    from medusa_sim.specs.runtime import runtime_aliases, runtime_names

    return (*runtime_aliases(), *runtime_names(data_dir))


def _drafters(data_dir: str | None) -> Iterable[str]:
    del data_dir
    from medusa_sim.step.drafter.registry import drafter_names

    return drafter_names()


def _profiles(data_dir: str | None) -> Iterable[str]:
    from medusa_sim.acceptance.profile import acceptance_names

    return acceptance_names(data_dir)


class NameType(click.ParamType[str | tuple[str, ...]]):
    """One name, or with `many` a comma-separated list; whether it exists is the loader's to say."""

    def __init__(self, name: str, known: Callable[[str | None], Iterable[str]], *, many: bool) -> None:
        self.name = name
        self.known = known
        self.many = many

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | tuple[str, ...]:
        """The name, or the tuple of names without repeats; an empty one is a usage error."""
        if isinstance(value, tuple):
            return value
        names = [part.strip() for part in str(value).split(",")] if self.many else [str(value).strip()]
        if not all(names):
            self.fail(f"{value!r} holds an empty name", param, ctx)
        return tuple(dict.fromkeys(names)) if self.many else names[0]

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Known names that go on from what is typed; in a list, from its last comma."""
        del param
        typed, comma, last = incomplete.rpartition(",") if self.many else ("", "", incomplete)
        try:
            known = self.known(ctx.params.get("data_dir"))
            return [CompletionItem(f"{typed}{comma}{name}") for name in known if name.startswith(last)]
        except MedusaSimError:
            return []


class EngineType(click.ParamType[str]):
    """A choice among the engines that settings are written for, which are read when they are needed."""

    name = "engine"

    @cached_property
    def _choice(self) -> click.Choice[str]:
        from medusa_sim.export import ENGINES

        return click.Choice(ENGINES)

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The engine; another is a usage error."""
        return self._choice.convert(value, param, ctx)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        """The engines, between brackets."""
        return self._choice.get_metavar(param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Engines that go on from what is typed."""
        return self._choice.shell_complete(ctx, param, incomplete)


NAMES = {
    name: NameType(name, known, many=False)
    for name, known in (
        ("gpu", _gpus),
        ("model", _models),
        ("runtime", _runtimes),
        ("drafter", _drafters),
        ("profile", _profiles),
    )
}
"""Types of one name, by what it names (`plan.arguments.Argument.names`)."""
GPU, MODEL, RUNTIME, DRAFTER, ACCEPTANCE = NAMES.values()
GPUS = NameType("gpus", _gpus, many=True)
MODELS = NameType("models", _models, many=True)
DRAFTERS = NameType("drafters", _drafters, many=True)
ENGINE = EngineType()
