"""What the README says of shell completion: the script is printed, and commands and options are offered."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "README.md"


def told(**more: str) -> str:
    code = "from medusa_sim.cli import main; main()"
    own = {**os.environ, **more}
    done = subprocess.run([sys.executable, "-c", code], env=own, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_printed(shell):
    assert f"{shell}_source" in README.read_text(encoding="utf-8")
    assert f"_MEDUSA_SIM_COMPLETE={shell}_complete" in told(_MEDUSA_SIM_COMPLETE=f"{shell}_source")


@pytest.mark.parametrize(("words", "offered"), [("rec", "recommend"), ("recommend --gp", "--gpu")])
def test_commands_and_options_are_offered(words, offered):
    asked = {"COMP_WORDS": f"medusa-sim {words}", "COMP_CWORD": str(len(words.split()))}
    assert offered in told(_MEDUSA_SIM_COMPLETE="bash_complete", **asked)
