"""Compose files: one spec for each service whose image or command is a server that we know."""

import shlex
from typing import Any, Final

from appliance.importing.command import place_launch, read_here
from appliance.importing.container import Container, MountedFolder, PublishedPort
from appliance.importing.docker import read_mount, read_port
from appliance.importing.draft import (
    CannotImportError,
    Draft,
    Imported,
    ImportedFile,
    Unplaced,
    deployment_name,
)
from appliance.importing.launch import launch_of
from appliance.importing.variables import Variable, read_variable, with_defaults
from appliance.importing.yaml_file import read_listing

_OTHER: Final = "it runs neither vLLM nor llama-server"
_READ: Final = ("image", "command", "entrypoint", "ports", "volumes", "environment")


def import_services(text: str) -> ImportedFile:
    """Raises CannotImportError when the file is no compose file, or no service of it can be imported."""
    text, notes = with_defaults(text)
    given = read_listing(text, "services", "a compose file has a mapping `services`")
    specs: dict[str, Imported] = {}
    unplaced = [
        Unplaced(f"{key}:", "of Compose") for key in given if key not in ("services", "version", "name", "volumes")
    ]
    for name, service in given["services"].items():
        try:
            specs[str(name)] = _imported(service, notes)
        except CannotImportError as error:
            unplaced.append(Unplaced(f"the service {name}", str(error)))
    if not specs:
        raise CannotImportError(f"no service of the file can be imported: {', '.join(map(str, given['services']))}")
    return ImportedFile(specs, tuple(unplaced))


def _imported(service: Any, notes: list[str]) -> Imported:
    if not isinstance(service, dict) or not isinstance(service.get("image"), str):
        raise CannotImportError(_OTHER)
    launch = launch_of(_container(service))
    if launch is None:
        raise CannotImportError(_OTHER)
    draft = Draft(notes=list(notes))
    place_launch(draft, launch, read_here)
    return draft.finished(deployment_name(draft.get("model.source")))


def _container(service: dict[str, Any]) -> Container:
    entry_point = _words(service.get("entrypoint"))
    container = Container(
        image=service["image"],
        command=[*entry_point, *_words(service.get("command"))],
        has_entry_point=bool(entry_point),
        variables=_variables(service.get("environment")),
    )
    for each in service.get("ports") or []:
        port = _port(each)
        container.ports += [port] if port is not None else []
        container.others += [] if port is not None else [("ports", f"ports: {each}")]
    for each in service.get("volumes") or []:
        mount = _mount(each)
        container.mounts += [mount] if mount is not None else []
        container.others += [] if mount is not None else [("volumes", f"volumes: {each}")]
    container.others += [(key, f"{key}: {_shown(value)}".strip()) for key, value in service.items() if key not in _READ]
    return container


def _shown(value: Any) -> str:
    """Texts and numbers; a section is told by its name."""
    return "" if isinstance(value, dict | list) else str(value)


def _words(given: Any) -> list[str]:
    """A list of words, or a text as in a shell; `$$` is Compose's plain `$`."""
    if isinstance(given, list):
        return [str(word).replace("$$", "$") for word in given]
    try:
        return shlex.split(str(given or "").replace("$$", "$"))
    except ValueError as error:
        raise CannotImportError(f"its command cannot be read: {error}") from error


def _variables(given: Any) -> list[Variable]:
    if isinstance(given, dict):
        return [
            Variable(str(name), None if value is None else str(value), "environment:") for name, value in given.items()
        ]
    return [read_variable(str(text), "environment:") for text in given or []]


def _port(given: Any) -> PublishedPort | None:
    if not isinstance(given, dict):
        return read_port(str(given), f"ports: {given}")
    published, address = given.get("published", ""), given.get("host_ip", "")
    return read_port(f"{address + ':' if address else ''}{published}:{given.get('target')}", f"ports: {published}")


def _mount(given: Any) -> MountedFolder | None:
    if not isinstance(given, dict):
        return read_mount(str(given), f"volumes: {given}")
    source, target = given.get("source"), given.get("target")
    return MountedFolder(f"volumes: {source}:{target}", str(source), str(target)) if source and target else None
