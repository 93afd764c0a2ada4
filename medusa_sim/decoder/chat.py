"""Prompts as a chat model was trained to see them: the template in a checkpoint's tokenizer_config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

from medusa_sim.errors import SpecError
from medusa_sim.reading import SPEC_BYTES, TABLE_BYTES, read_json, read_text


def chat_prompt(directory: Path, text: str) -> str:
    """`text` as the user's one message, with the opening of the answer; special tokens are in the string.

    Reads `chat_template.jinja`, or `chat_template` of tokenizer_config.json (the one named `default`
    where there are several). Raises SpecError (one line) where there is none or it cannot be rendered.
    """
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    path = directory / "tokenizer_config.json"
    config = _object(path)
    template = config.get("chat_template")
    alone = directory / "chat_template.jinja"
    if alone.is_file():
        template = read_text(alone, SPEC_BYTES, "a template")
    if isinstance(template, list):
        template = next((t.get("template") for t in template if t.get("name") == "default"), None)
    if not isinstance(template, str):
        raise SpecError(f"{path}: no chat_template; leave --chat out, or give a checkpoint with one")

    def refuse(message: str) -> NoReturn:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = refuse
    special = {
        name: _token(config.get(name)) for name in ("bos_token", "eos_token", "unk_token", "pad_token")
    }
    messages = [{"role": "user", "content": text}]
    try:
        rendered: str = environment.from_string(template).render(
            messages=messages, add_generation_prompt=True, **special
        )
    except (TemplateError, TypeError, ValueError) as error:
        raise SpecError(f"{path}: chat_template cannot be rendered ({error})") from None
    return rendered


def _token(value: object) -> str:
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else ""


def _object(path: Path) -> dict[str, Any]:
    found = read_json(path, TABLE_BYTES, "a JSON file") if path.exists() else {}
    return found if isinstance(found, dict) else {}
