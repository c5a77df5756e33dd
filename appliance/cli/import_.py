"""`appliance import`: makes specs from other systems' files and command lines."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from appliance.base.errors import ApplianceError, ExitCode
from appliance.base.texts import utf8_text
from appliance.cli.arguments.exchange import ImportArguments
from appliance.deploy.render.documents import dump
from appliance.importing.command import import_command, import_config
from appliance.importing.compose import import_services
from appliance.importing.draft import CannotImportError, Imported, ImportedFile, Unplaced
from appliance.importing.llama_swap import import_models
from appliance.importing.modelfile import import_modelfile

STDIN: Final = "-"


def _single(read: Callable[[str], Imported]) -> Callable[[str], ImportedFile]:
    def one(text: str) -> ImportedFile:
        found = read(text)
        return ImportedFile({found.document["name"]: found})

    return one


READERS: Final[dict[str, Callable[[str], ImportedFile]]] = {
    "vllm": _single(import_command),
    "llama-server": _single(import_command),
    "vllm-config": _single(import_config),
    "compose": import_services,
    "llama-swap": import_models,
    "modelfile": _single(import_modelfile),
}
OF_COMMAND_LINES: Final = ("vllm", "llama-server")


def run(arguments: ImportArguments) -> int:
    """Prints the specs, or writes each to a folder. Returns 2 with --strict if something has no equivalent."""
    reader = READERS.get(arguments.kind)
    if reader is None:
        raise CannotImportError(f"nothing is imported from {arguments.kind!r}", hint=f"known: {', '.join(READERS)}")
    found = reader(_text(arguments.kind, arguments.words))
    if arguments.as_json:
        specs = {name: msgspec.to_builtins(each) for name, each in found.specs.items()}
        print(json.dumps({"specs": specs, "unplaced": msgspec.to_builtins(found.unplaced)}))
    elif arguments.folder is None:
        print("---\n".join(texts_of(found)), end="")
    else:
        _write(found, arguments.folder)
    has_unplaced = bool(found.unplaced) or any(each.unplaced for each in found.specs.values())
    return int(ExitCode.INVALID if arguments.strict and has_unplaced else ExitCode.OK)


def texts_of(found: ImportedFile) -> list[str]:
    """Returns one text per spec; settings that are in no spec are comments above the first."""
    head = "".join(f"# {line}\n" for line in "\n".join(_lines(found.unplaced)).splitlines())
    first, *others = (text_of(each) for each in found.specs.values())
    return [head + first, *others]


def text_of(imported: Imported) -> str:
    """Returns the spec as YAML, below comments that list what it does not contain."""
    lines = [f"note: {note}" for note in imported.notes]
    lines += _lines(imported.unplaced)
    document: dict[str, Any] = imported.document
    return dump([document], "\n".join(lines))


def _lines(unplaced: Sequence[Unplaced]) -> list[str]:
    return [f"no equivalent: {each.origin}\n  {each.reason}" for each in unplaced]


def _text(kind: str, words: Sequence[str]) -> str:
    """Returns a command line, or the contents of a file; `-` is standard input."""
    if tuple(words) == (STDIN,):
        return _lines_of(sys.stdin.buffer.read(), "standard input")
    if kind in OF_COMMAND_LINES:
        return words[0] if len(words) == 1 else " ".join(_quoted(word) for word in words)
    if len(words) != 1:
        raise CannotImportError(f"import {kind} takes one file")
    try:
        return _lines_of(Path(words[0]).read_bytes(), words[0])
    except OSError as error:
        raise ApplianceError(f"{words[0]} cannot be read: {error}") from error


def _lines_of(data: bytes, where: str) -> str:
    return utf8_text(data, where).replace("\r\n", "\n")


def _quoted(word: str) -> str:
    """Quotes a word of the shell's, so that it is split the same way again; variables in it stay variables."""
    return "'" + word.replace("'", "'\\''") + "'"


def _write(found: ImportedFile, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for each, text in zip(found.specs.values(), texts_of(found), strict=True):
        path = folder / f"{each.document['name']}.yaml"
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            raise ApplianceError(f"{path} is there already", hint="name another folder") from None
        print(path)
