"""Every command that needs torch says so in one line where it is not installed, whatever it imports first."""

import json
import subprocess
import sys

from asking import commands

from medusa_sim.errors import install

WITH_TORCH = {
    ("decode",): ["--prompt", "x"],
    ("train",): ["--method", "backbone", "--save", "x"],
    ("measure", "operators"): ["--device", "cpu", "--models", "llama-160m"],
    ("measure", "steps"): ["out", "--device", "cpu", "--models", "llama-160m"],
    ("measure", "runs"): ["out", "--checkpoint", "x"],
}
ASKED = """
import json, sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "safetensors", "tokenizers", "peft"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
import importlib.util
found = importlib.util.find_spec
hidden = ("torch", "safetensors", "tokenizers", "peft")
importlib.util.find_spec = lambda name, package=None: None if name in hidden else found(name, package)
from click.testing import CliRunner
from medusa_sim.cli import cli
told = []
for words in json.loads(sys.argv[1]):
    done = CliRunner().invoke(cli, words, prog_name="medusa-sim")
    told.append([words, done.exit_code, done.stderr, repr(done.exception)])
print(json.dumps(told))
"""


def test_what_needs_torch_says_so_in_one_line(tmp_path):
    asked = json.dumps([[*words, *more] for words, more in WITH_TORCH.items()])
    done = subprocess.run(
        [sys.executable, "-c", ASKED, asked], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    for words, code, told, exception in json.loads(done.stdout):
        assert code == 2, (words, exception)
        assert told.startswith("Error: this command needs torch"), words
        assert install("decoder") in told
        assert told.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_list_of_commands_that_need_torch_is_complete():
    """A command whose page speaks of torch is on the list, so that a new one is tried."""
    named = {words for words, command in commands() if "Needs torch" in (command.help or "")}
    assert named <= set(WITH_TORCH)
    assert set(WITH_TORCH) >= {words for words, _ in commands() if words[0] in ("measure", "train", "decode")}
