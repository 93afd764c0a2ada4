"""Names of GPUs, models, runtimes and profiles as options: lists, and completion in the shell."""

from __future__ import annotations

from collections.abc import Callable, Iterable

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


GPU = NameType("gpu", _gpus, many=False)
GPUS = NameType("gpus", _gpus, many=True)
MODEL = NameType("model", _models, many=False)
MODELS = NameType("models", _models, many=True)
RUNTIME = NameType("runtime", _runtimes, many=False)
DRAFTER = NameType("drafter", _drafters, many=False)
DRAFTERS = NameType("drafters", _drafters, many=True)
ACCEPTANCE = NameType("profile", _profiles, many=False)
