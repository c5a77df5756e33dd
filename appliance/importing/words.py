"""A command line as words, flags and their values, before anyone knows what the flags mean."""

import enum
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from appliance.importing.draft import CannotImportError

_CONTINUED: Final = re.compile(r"[\\`^][ \t]*\r?\n")  # of sh, PowerShell and cmd
_PROMPT: Final = re.compile(r"^[ \t]*[$>][ \t]+", re.MULTILINE)
_REDIRECTION: Final = re.compile(r"^(?:\d?>>?|<|&>)(&?[^>]*)$")
_OPERATOR: Final = re.compile(r"^(\||\|\||&&?|;)$")
_NUMBER: Final = re.compile(r"^-\d+(\.\d+)?$")
_SECRET: Final = re.compile(r"(^|[_-])(api[_-]?key|key|token|secret|password|passwd)s?$", re.IGNORECASE)
MASK: Final = "***"


class Arity(enum.Enum):
    """How many words a flag takes."""

    NONE = enum.auto()
    ONE = enum.auto()
    MANY = enum.auto()  # all up to the next flag


@dataclass(frozen=True, slots=True)
class Option:
    flag: str  # as written: "--max-model-len"
    name: str  # "max_model_len"; "speculative_config.method" of a dotted flag
    words: tuple[str, ...]

    @property
    def origin(self) -> str:
        """The flag as the user wrote it, with a secret's value masked, because origins are printed into files."""
        words = (MASK,) if is_secret(self.name) and self.words else self.words
        return " ".join([self.flag, *words])


@dataclass(slots=True)
class Arguments:
    """What follows the program's name."""

    positional: list[str] = field(default_factory=list)
    options: list[Option] = field(default_factory=list)


def is_secret(name: str) -> bool:
    """Returns whether a flag or a variable of this name holds a secret."""
    return _SECRET.search(name) is not None


def is_reference(word: str) -> bool:
    """Returns whether the shell fills in a word, so that it can be shown."""
    return word.startswith("$")


def split_commands(text: str) -> list[list[str]]:
    """The words of each command, without redirections. A line that begins with a flag belongs to the line before.

    Raises CannotImportError for a quote that is not closed.
    """
    lines: list[list[str]] = []
    open_text = ""
    for line in _CONTINUED.sub(" ", _PROMPT.sub("", text)).splitlines():
        open_text += line + "\n"
        try:
            words = shlex.split(open_text, comments=True)
        except ValueError:
            continue  # a quote reaches into the next line
        open_text = ""
        if words and lines and is_flag(words[0]):
            lines[-1] += words
        else:
            lines.append(words)
    if open_text:
        raise CannotImportError("the command line cannot be read: a quote is not closed")
    return [command for words in lines for command in _commands_of(words)]


def _commands_of(words: list[str]) -> list[list[str]]:
    """Divided at the shell's operators; a word that ends in a semicolon ends its command."""
    found: list[list[str]] = [[]]
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if _OPERATOR.match(word):
            found.append([])
        elif redirection := _REDIRECTION.match(word):
            del rest[: not redirection[1]]  # a file that stands apart
        elif word.endswith(";"):
            found[-1].append(word[:-1])
            found.append([])
        else:
            found[-1].append(word)
    return [each for each in found if each]


def read_arguments(words: list[str], arity: Callable[[str], Arity], aliases: Mapping[str, str]) -> Arguments:
    """`arity` is asked by name ("max_model_len"); `aliases` are short flags by what they mean."""
    found, rest = Arguments(), list(words)
    while rest:
        word = rest.pop(0)
        if not is_flag(word):
            found.positional.append(word)
            continue
        flag, equals, given = _parted(word, aliases)
        name = aliases.get(flag, flag).lstrip("-").replace("-", "_")
        values = [given] if equals else _values(rest, arity(name))
        found.options.append(Option(flag, name, tuple(values)))
    return found


def _values(rest: list[str], arity: Arity) -> list[str]:
    """Takes the words of a flag off `rest`."""
    values: list[str] = []
    while rest and not is_flag(rest[0]) and (arity is Arity.MANY or (arity is Arity.ONE and not values)):
        values.append(rest.pop(0))
    return values


def _parted(word: str, aliases: Mapping[str, str]) -> tuple[str, str, str]:
    """Flag, sign and value of `--flag=value`, or of a short flag with its number, `-O3`."""
    if word[:2] in aliases and word[2:].isdigit():
        return word[:2], "=", word[2:]
    return word.partition("=")


def is_flag(word: str) -> bool:
    return len(word) > 1 and word.startswith("-") and not _NUMBER.match(word)
