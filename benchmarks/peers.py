"""Plain decoding of one request beside other libraries that are installed: tokens/s over those of `decode`.

    python benchmarks/peers.py benchmarks/models/llama-50m --dtype bf16

The model has random weights, the same in all of them. All take turns on one thread, in CPU seconds; a ratio
is taken within each round and its median counts. Prints Markdown, and nothing where no other is installed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from common.script import command_line
from common.study import table
from decoder_speed import Rounds

from medusa_sim.lab.decoder.checkpoint import DTYPES
from medusa_sim.lab.decoder.config import read_config
from medusa_sim.lab.decoder.generate import generate
from medusa_sim.lab.decoder.generation import GenerationSettings
from medusa_sim.lab.decoder.model import Llama, random_llama
from medusa_sim.lab.decoder.packed import pack

PROMPT_TOKENS = 48
Turn = Callable[[], float]
"""Seconds that a token took."""


def ours(model: Llama, prompt: list[int], new_tokens: int) -> Turn:
    """`decode`, plainly; the first token is prefill's."""
    settings = GenerationSettings(max_new_tokens=new_tokens, stop_at_end_of_text=False)
    return lambda: generate(model, [prompt], settings).decode_s / (new_tokens - 1)


def transformers(model: Llama, prompt: list[int], new_tokens: int) -> Turn:
    """Its own greedy loop over the same weights; prefill, run alone, is taken off."""
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415  # it may not be installed

    values = model.config.to_hf()
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    made: Any = AutoModelForCausalLM
    theirs = made.from_config(config, dtype=model.dtype).eval()
    theirs.load_state_dict(model.state_dict())
    theirs.generation_config.eos_token_id = None
    theirs.generation_config.pad_token_id = 0
    given = {"inputs": torch.tensor([prompt]), "attention_mask": torch.ones(1, len(prompt), dtype=torch.long)}

    def seconds(tokens: int) -> float:
        started = time.perf_counter()
        theirs.generate(**given, max_new_tokens=tokens, do_sample=False)
        return time.perf_counter() - started

    return lambda: (seconds(new_tokens) - seconds(1)) / (new_tokens - 1)


PEERS: dict[str, Callable[[Llama, list[int], int], Turn]] = {"transformers": transformers}
"""By the name of the package."""


def main() -> None:
    """Run and print."""
    parser = command_line(__doc__)
    parser.add_argument("model", type=Path, help="folder of a config.json")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--new-tokens", type=int, default=9)
    asked = parser.parse_args()
    peers = {name: make for name, make in PEERS.items() if find_spec(name)}
    if not peers:
        return
    torch.set_num_threads(1)
    model = random_llama(read_config(asked.model), dtype=DTYPES[asked.dtype])
    prompt = torch.randint(0, model.config.vocab_size, (PROMPT_TOKENS,)).tolist()
    turns = {"decode": ours(model, prompt, asked.new_tokens)}
    turns |= {name: make(model, prompt, asked.new_tokens) for name, make in peers.items()}
    packed = random_llama(read_config(asked.model), dtype=model.dtype)
    pack(packed)
    turns["decode --packed"] = ours(packed, prompt, asked.new_tokens)
    with torch.inference_mode(), mock.patch("time.perf_counter", time.thread_time):
        rounds = Rounds(turns, asked.rounds)
    title = f"{asked.model.name}, {asked.dtype}, one request, one thread | tokens/s over those of decode"
    print(table(title, 1, [(name, f"{rounds.ratio('decode', name):.2f}") for name in turns]))


if __name__ == "__main__":
    main()
