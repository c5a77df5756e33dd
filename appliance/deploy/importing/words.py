"""A command line as flags and their words, before anyone knows what the flags mean."""

import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from appliance.deploy.importing.draft import CannotImportError

_ASSIGNMENT: Final = re.compile(r"^[A-Za-z_]\w*=")
_SHELL: Final = re.compile(r"^(\||\|\||&&?|;|\d?>+.*|<)$")  # where the command ends and the shell's own words begin
_NUMBER: Final = re.compile(r"^-\d+(\.\d+)?$")


@dataclass(frozen=True, slots=True)
class Option:
    flag: str  # as written: "--max-model-len"
    name: str  # "max_model_len"; "speculative_config.method" of a dotted flag
    words: tuple[str, ...]

    @property
    def origin(self) -> str:
        return " ".join([self.flag, *self.words])


@dataclass(slots=True)
class CommandLine:
    environment: dict[str, str] = field(default_factory=dict)
    program: list[str] = field(default_factory=list)
    positional: list[str] = field(default_factory=list)
    options: list[Option] = field(default_factory=list)


def split_words(text: str) -> list[str]:
    """The words of the first command. Raises CannotImportError for open quotes."""
    joined = re.sub(r"\\\s*\n", " ", text)
    try:
        words = shlex.split(joined, comments=True)
    except ValueError as error:
        raise CannotImportError(f"the command line cannot be read: {error}") from error
    end = next((index for index, word in enumerate(words) if _SHELL.match(word)), len(words))
    return words[:end]


def read_command(
    words: list[str], num_program: int, switches: Collection[str], aliases: Mapping[str, str]
) -> CommandLine:
    """`num_program` words name the program; `switches` take no word; `aliases` are short flags by what they mean."""
    found = CommandLine()
    rest = list(words)
    while rest and _ASSIGNMENT.match(rest[0]):
        name, _, value = rest.pop(0).partition("=")
        found.environment[name] = value
    found.program, rest = rest[:num_program], rest[num_program:]
    while rest:
        word = rest.pop(0)
        if not _is_flag(word):
            found.positional.append(word)
            continue
        flag, equals, given = _parted(word, aliases)
        name = aliases.get(flag, flag).lstrip("-").replace("-", "_")
        values = [given] if equals else []
        while not equals and name not in switches and rest and not _is_flag(rest[0]):
            values.append(rest.pop(0))
        found.options.append(Option(flag, name, tuple(values)))
    return found


def _parted(word: str, aliases: Mapping[str, str]) -> tuple[str, str, str]:
    """Flag, sign and value of `--flag=value`, or of a short flag with its number, `-O3`."""
    if word[:2] in aliases and word[2:].isdigit():
        return word[:2], "=", word[2:]
    return word.partition("=")


def _is_flag(word: str) -> bool:
    return len(word) > 1 and word.startswith("-") and not _NUMBER.match(word)
