"""llama-swap configuration files: one spec a model whose command starts a server that we know."""

import re
from typing import Any, Final

from appliance.importing.command import place_launch, read_here
from appliance.importing.draft import (
    CannotImportError,
    Draft,
    Imported,
    ImportedFile,
    Unplaced,
    deployment_name,
)
from appliance.importing.keys import place_keys
from appliance.importing.launch import read_launch
from appliance.importing.variables import place_variable, read_variable, with_defaults
from appliance.importing.yaml_file import read_listing

_ENVIRONMENT: Final = re.compile(r"\$\{env\.([A-Za-z_]\w*)\}")
_MACRO: Final = re.compile(r"\$\{([A-Za-z0-9_-]+)\}")
_MAX_ROUNDS: Final = 10  # macros may name macros that stand before them
_READ: Final = ("models", "macros", "apiKeys")
_SWAPPING: Final = "swapping of models is not in the spec; each model is a deployment of its own"


def import_models(text: str) -> ImportedFile:
    """A spec for each model that can be one; the others are listed with the reason.

    Raises CannotImportError when the file is not llama-swap's, or none of its models can be imported.
    """
    given = read_listing(text, "models", "llama-swap's configuration has a mapping `models`")
    macros = _macros(given.get("macros"))
    specs: dict[str, Imported] = {}
    unplaced = [Unplaced(f"{key}: {_shown(given[key])}", _SWAPPING) for key in given if key not in _READ]
    for name, model in given["models"].items():
        try:
            specs[str(name)] = _imported(str(name), model, macros, given.get("apiKeys"))
        except CannotImportError as error:
            unplaced.append(Unplaced(f"the model {name}", str(error)))
    if not specs:
        told = "; ".join(f"{each.origin}: {each.reason}" for each in unplaced if each.origin.startswith("the model "))
        raise CannotImportError(f"no model of the file can be imported: {told}")
    return ImportedFile(specs, tuple(unplaced))


def _imported(name: str, model: Any, macros: dict[str, str], api_keys: Any) -> Imported:
    if not isinstance(model, dict) or not isinstance(model.get("cmd"), str):
        raise CannotImportError("it has no cmd")
    own = {**macros, **_macros(model.get("macros")), "MODEL_ID": name}
    command = _without_comments(_filled(_without_comments(model["cmd"]), own))
    command, notes = with_defaults(command.replace("\n", " "))
    draft = Draft(notes=notes)
    place_launch(draft, read_launch(command), read_here)
    _leave_port_to_the_spec(draft)
    names = [name, *(_alias(each) for each in model.get("aliases") or [])]
    draft.put("model.served_names", names, "the model's name and aliases")
    for text in model.get("env") or []:
        place_variable(draft, read_variable(_filled(str(text), own), "env:"))
    if isinstance(api_keys, list):
        place_keys(draft, [_filled(str(key), own) for key in api_keys], "apiKeys:")
    for key in sorted(set(model) - {"cmd", "aliases", "env", "macros"}):
        draft.leave(f"{key}: {_shown(model[key])}", _SWAPPING)
    return draft.finished(deployment_name(name))


def _leave_port_to_the_spec(draft: Draft) -> None:
    """`${PORT}` is llama-swap's own macro, and no variable of the environment."""
    path = "endpoints.http.port"
    if draft.get(path) == "${env:PORT}":
        draft.notes.append(f"{draft.origins[path]}: llama-swap chooses the port; this spec has the default")
        draft.remove(path)


def _without_comments(command: str) -> str:
    """Before macros are filled in, which may have lines of their own."""
    return "\n".join(line for line in command.splitlines() if not line.lstrip().startswith("#"))


def _macros(given: Any) -> dict[str, str]:
    return {str(name): str(value) for name, value in given.items()} if isinstance(given, dict) else {}


def _filled(text: str, macros: dict[str, str]) -> str:
    """With macros filled in; `${env.NAME}` becomes the shell's `${NAME}`, and what is no macro stays."""
    for _ in range(_MAX_ROUNDS):
        filled = _MACRO.sub(lambda found: macros.get(found[1], found[0]), text)
        if filled == text:
            break
        text = filled
    return _ENVIRONMENT.sub(r"${\1}", text)


def _alias(given: Any) -> str:
    """A name, or an object with an id."""
    return str(given.get("id")) if isinstance(given, dict) else str(given)


def _shown(value: Any) -> str:
    """One line of a value; sections are told by their names alone."""
    if isinstance(value, dict):
        return ", ".join(map(str, value))
    return str(value).strip().partition("\n")[0]
