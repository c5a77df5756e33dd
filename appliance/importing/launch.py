"""Which server a command line starts, through wrappers, shells and containers, and with which words."""

import re
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Final

from appliance.importing.container import Container
from appliance.importing.docker import is_runtime, read_run
from appliance.importing.draft import CannotImportError
from appliance.importing.variables import Variable, read_variable
from appliance.importing.words import is_flag, split_commands

_ASSIGNMENT: Final = re.compile(r"^[A-Za-z_]\w*=")
_MODULE: Final = re.compile(r"^vllm\.entrypoints\.(openai\.api_server|api_server)$")
_SHELL: Final = re.compile(r"^(ba|z|da)?sh$")
_SHELL_COMMAND: Final = re.compile(r"^-[a-z]*c$")
_OF_THE_SHELL: Final = ("exec", "export")  # they say nothing of their own


class Program(StrEnum):
    VLLM = "vllm"
    LLAMA_SERVER = "llama-server"


@dataclass(slots=True)
class Launch:
    """arguments: what follows the program's name. before, others: words and commands that say nothing of the model."""

    program: Program
    arguments: list[str]
    variables: list[Variable] = field(default_factory=list)
    container: Container | None = None
    before: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)


def read_launch(text: str) -> Launch:
    """The first command of `text` that starts a server we know. Raises CannotImportError when there is none."""
    commands = split_commands(text)
    for index, words in enumerate(commands):
        if (found := find_launch(words)) is not None:
            for other in commands[:index] + commands[index + 1 :]:
                _take_other(found, other)
            return found
    shown = " ".join(commands[0])[:60] if commands else "no words"
    raise CannotImportError(
        f"this is no vLLM command line, and none of llama-server: {shown}",
        hint="vllm serve MODEL, llama-server -m FILE, or docker run with an image of theirs",
    )


def find_launch(words: list[str]) -> Launch | None:
    """In one command; None when it starts no server that we know."""
    for index, word in enumerate(words):
        name, rest = PurePosixPath(word).name, words[index:]
        if is_runtime(name):
            found = _in_container(read_run(rest))
        elif _SHELL.match(name) and len(rest) > 2 and _SHELL_COMMAND.match(rest[1]):
            found = _in_shell(rest[2])
        else:
            found = _direct(name, rest)
        if found is not None:
            _take_front(found, words[:index])
            return found
    return None


def launch_of(container: Container) -> Launch | None:
    """By the command that a container is given, or by its image's entry point."""
    found = find_launch(container.command)
    if found is None and (program := _program_of(container)) is not None:
        found = Launch(program, list(container.command))
    if found is not None:
        found.container = container
        found.variables += container.variables
    return found


def _in_container(container: Container | None) -> Launch | None:
    return None if container is None else launch_of(container)


def _in_shell(text: str) -> Launch | None:
    """`bash -c "..."`."""
    try:
        return read_launch(text)
    except CannotImportError:
        return None


def _direct(name: str, rest: list[str]) -> Launch | None:
    if name == "vllm" and rest[1:2] == ["serve"]:
        return Launch(Program.VLLM, rest[2:])
    if name.startswith("python") and rest[1:2] == ["-m"] and len(rest) > 2 and _MODULE.match(rest[2]):
        return Launch(Program.VLLM, rest[3:])
    if "llama-server" in name:
        return Launch(Program.LLAMA_SERVER, rest[1:])
    return None


def _program_of(container: Container) -> Program | None:
    """The program of the image's entry point; None where the command names another program."""
    if container.has_entry_point:
        return None
    name, _, tag = container.image.partition("@")[0].rpartition("/")[2].partition(":")
    first = container.command[0] if container.command else ""
    if name == "llama.cpp":
        return Program.LLAMA_SERVER if "server" in tag or first == "--server" else None
    return Program.VLLM if "vllm" in name and (not first or is_flag(first) or _is_model(first)) else None


def _is_model(word: str) -> bool:
    """Returns whether a first word is a model, and not a program."""
    path = PurePosixPath(word)
    return len(path.parts) > 1 and path.parent.name not in ("bin", "sbin") and path.suffix != ".sh"


def _take_front(found: Launch, words: list[str]) -> None:
    """Assignments are variables; wrappers such as sudo are told."""
    for word in words:
        if _ASSIGNMENT.match(word):
            found.variables.append(read_variable(word))
        elif word not in _OF_THE_SHELL:
            found.before.append(word)


def _take_other(found: Launch, words: list[str]) -> None:
    """`export NAME=VALUE` sets a variable; of another command the name is told, for its words may hold secrets."""
    if words[0] == "export" and all(_ASSIGNMENT.match(word) for word in words[1:]):
        found.variables += [read_variable(word) for word in words[1:]]
    else:
        found.others.append(f"{words[0]} ..." if len(words) > 1 else words[0])
