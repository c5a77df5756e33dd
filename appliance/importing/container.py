"""A container that runs a server: what of it is in a spec, and what a container alone needs."""

from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final

from appliance.importing.draft import Draft, with_variables
from appliance.importing.variables import Variable

# Options by name, for which there is nothing to do where the appliance runs without a container.
_OF_CONTAINERS: Final = {
    "rm": "a server that ended leaves nothing to remove",
    "detach": "`appliance apply` returns when the server is ready",
    "interactive": "a server reads no terminal",
    "tty": "a server reads no terminal",
    "init": "the appliance reaps its own processes",
    "ipc": "the appliance shares memory with its own processes alone",
    "shm_size": "the appliance shares memory with its own processes alone",
    "runtime": "devices are found on the machine",
    "gpus": "devices are found on the machine; CUDA_VISIBLE_DEVICES chooses among them",
    "network": "the server listens on the machine itself",
    "name": "the deployment is named after its model",
    "container_name": "the deployment is named after its model",
    "pull": "there is no image",
}
_HUB_CACHE: Final = ("huggingface", "llama.cpp")  # the last part of the folders where they keep downloads


@dataclass(frozen=True, slots=True)
class PublishedPort:
    """host_port None: any free one, or one that only a variable tells; host_ip "": every address."""

    origin: str
    port: int
    host_port: int | None
    host_ip: str = ""


@dataclass(frozen=True, slots=True)
class MountedFolder:
    origin: str
    source: str
    target: str


@dataclass(slots=True)
class Container:
    """others: (name, origin) of every other option."""

    image: str = ""
    command: list[str] = field(default_factory=list)
    has_entry_point: bool = False
    ports: list[PublishedPort] = field(default_factory=list)
    mounts: list[MountedFolder] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
    others: list[tuple[str, str]] = field(default_factory=list)


def place_container(draft: Draft, container: Container, default_port: int) -> None:
    """After the program's own words: ports and folders are those of the machine, not of the container."""
    draft.notes.append(f"{container.image}: the image is not used; the appliance runs the model itself")
    _place_ports(draft, container, default_port)
    _place_mounts(draft, container)
    for name, origin in container.others:
        if name in _OF_CONTAINERS:
            draft.notes.append(f"{origin}: {_OF_CONTAINERS[name]}")
        else:
            draft.leave(origin, "of the container; `appliance render --to compose` makes one")


def _place_ports(draft: Draft, container: Container, default_port: int) -> None:
    inside = draft.get("endpoints.http.port") or default_port
    is_found = False
    for each in container.ports:
        if each.port != inside or is_found:
            draft.leave(each.origin, f"the server in the container listens on {inside}")
            continue
        is_found = True
        draft.put("endpoints.http.port", each.host_port or default_port, each.origin)
        if each.host_port is None:
            draft.notes.append(f"{each.origin}: the port is chosen at the start; this spec has {default_port}")
        if each.host_ip:
            draft.put("endpoints.http.host", each.host_ip, each.origin)


def _place_mounts(draft: Draft, container: Container) -> None:
    for each in container.mounts:
        if _move_paths(draft.document, each):
            draft.notes.append(f"{each.origin}: paths below {each.target} are those of this machine in the spec")
        elif PurePosixPath(each.target).name in _HUB_CACHE:
            draft.notes.append(f"{each.origin}: the appliance keeps downloads in the hub's own cache on the machine")
        else:
            draft.leave(each.origin, "a folder of the container; name paths of this machine in the spec")


def _move_paths(value: Any, mount: MountedFolder) -> bool:
    """Replaces paths of the container within `value` by those of the machine; whether there were any."""
    moved = False
    for key, each in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(each, dict | list):
            moved |= _move_paths(each, mount)
        elif isinstance(each, str) and each.startswith("/") and PurePosixPath(each).is_relative_to(mount.target):
            inside = PurePosixPath(each).relative_to(mount.target)
            value[key] = with_variables(f"{mount.source.rstrip('/')}/{inside}")  # a leading ./ is kept
            moved = True
    return moved
