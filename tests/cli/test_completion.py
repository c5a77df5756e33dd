"""Completion as a shell asks for it."""

import os
import shutil
import subprocess
import sys

import pytest

from appliance.cli.app import main


def completed(shell: str, words: str) -> str:
    variables = {"_APPLIANCE_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": words}
    if shell == "bash":
        variables |= {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    if shell == "fish":
        variables["_TYPER_COMPLETE_FISH_ACTION"] = "get-args"
    command = [sys.executable, "-m", "appliance.cli.app"]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_verbs_options_and_choices(shell: str) -> None:
    assert "render" in completed(shell, "appliance ren")
    assert "--resolved" in completed(shell, "appliance render a.yaml --reso")
    assert "zsh" in completed(shell, "appliance completion z")
    assert "validate" not in completed(shell, "appliance ren")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_asks_the_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert f"_APPLIANCE_COMPLETE=complete_{shell}" in capsys.readouterr().out


def test_bash_takes_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not here")
    main(["completion", "bash"])
    script = capsys.readouterr().out + "\ncomplete -p appliance\n"
    done = subprocess.run([bash, "--norc"], input=script, capture_output=True, text=True, check=True)
    assert "_appliance_completion appliance" in done.stdout


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert "bash" in capsys.readouterr().err
