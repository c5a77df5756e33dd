"""`appliance import`: specs from other systems' files and command lines."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from appliance.base.errors import ApplianceError, ExitCode
from appliance.deploy.importing import llama_swap, modelfile, vllm
from appliance.deploy.importing.draft import CannotImportError, Imported
from appliance.deploy.render.documents import dump

STDIN: Final = "-"


def _single(read: Callable[[str], Imported]) -> Callable[[str], dict[str, Imported]]:
    def many(text: str) -> dict[str, Imported]:
        found = read(text)
        return {found.document["name"]: found}

    return many


READERS: Final[dict[str, Callable[[str], dict[str, Imported]]]] = {
    "vllm": _single(vllm.import_command),
    "vllm-config": _single(vllm.import_config),
    "llama-swap": llama_swap.import_models,
    "modelfile": _single(modelfile.import_modelfile),
}


def run(kind: str, words: list[str], folder: str | None, strict: bool, as_json: bool) -> int:
    """Prints the specs, or writes each to `folder`. 2 with `strict` when something has no equivalent."""
    reader = READERS.get(kind)
    if reader is None:
        raise CannotImportError(f"nothing is imported from {kind!r}", hint=f"known: {', '.join(READERS)}")
    found = reader(_text(kind, words))
    if as_json:
        print(json.dumps({name: msgspec.to_builtins(each) for name, each in found.items()}))
    elif folder is None:
        print("---\n".join(text_of(each) for each in found.values()), end="")
    else:
        _write(found, Path(folder))
    has_unplaced = any(each.unplaced for each in found.values())
    return int(ExitCode.INVALID if strict and has_unplaced else ExitCode.OK)


def text_of(imported: Imported) -> str:
    """The spec as YAML, under comments that say what it does not hold."""
    lines = [f"note: {note}" for note in imported.notes]
    lines += [f"no equivalent: {each.origin}\n  {each.reason}" for each in imported.unplaced]
    document: dict[str, Any] = imported.document
    return dump([document], "\n".join(lines))


def _text(kind: str, words: list[str]) -> str:
    """A command line as it stands, or the contents of a file; `-` is standard input."""
    if words == [STDIN]:
        return sys.stdin.read()
    if kind == "vllm":
        return words[0] if len(words) == 1 else " ".join(_quoted(word) for word in words)
    if len(words) != 1:
        raise CannotImportError(f"import {kind} takes one file")
    try:
        return Path(words[0]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ApplianceError(f"{words[0]} cannot be read: {error}") from error


def _quoted(word: str) -> str:
    """A word that the shell has split off, so that it is split the same way again; its variables stay variables."""
    return "'" + word.replace("'", "'\\''") + "'"


def _write(found: dict[str, Imported], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for each in found.values():
        path = folder / f"{each.document['name']}.yaml"
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text_of(each))
        except FileExistsError:
            raise ApplianceError(f"{path} is there already", hint="name another folder") from None
        print(path)
