"""`docker run` and its kin: the options before the image, and the command after it."""

import re
from typing import Final

from appliance.importing.container import Container, MountedFolder, PublishedPort
from appliance.importing.variables import read_variable
from appliance.importing.words import is_flag

_RUNTIMES: Final = ("docker", "podman", "nerdctl")
_SHORT: Final = {
    "p": "publish", "v": "volume", "e": "env", "d": "detach", "i": "interactive", "t": "tty", "P": "publish_all",
    "q": "quiet", "m": "memory", "u": "user", "w": "workdir", "h": "hostname", "l": "label", "a": "attach",
    "c": "cpu_shares",
}  # fmt: skip
_SWITCHES: Final = frozenset({
    "rm", "detach", "interactive", "tty", "publish_all", "quiet", "init", "privileged", "read_only", "no_healthcheck",
    "oom_kill_disable", "sig_proxy", "disable_content_trust", "use_api_socket", "help", "replace", "rmi", "env_host",
    "no_hosts", "no_hostname", "http_proxy", "tls_verify", "passwd", "rootfs",
})  # fmt: skip
_RENAMED: Final = {"net": "network"}
_PORT: Final = re.compile(r"^(?:(?:\[([^\]]*)\]|([^:]*)):)??(?:(\d*|\$\{?\w+\}?):)?(\d+)(?:/tcp)?$")


def is_runtime(program: str) -> bool:
    """Returns whether a program has Docker's options; vendors' wrappers have a prefix before the name."""
    return program in _RUNTIMES or program.endswith("-docker")


def read_run(words: list[str]) -> Container | None:
    """From the words of `docker [container] run ...`; None for its other commands."""
    start = next((index for index, word in enumerate(words) if word == "run"), None)
    if start is None or any(not is_flag(word) and word != "container" for word in words[1:start]):
        return None
    container, rest = Container(), words[start + 1 :]
    while rest and is_flag(rest[0]):
        for name, value, origin in _options(rest):
            _keep(container, name, value, origin)
    if rest:
        container.image = rest.pop(0)
    container.command += rest
    return container


def _options(rest: list[str]) -> list[tuple[str, str | None, str]]:
    """Takes one word of flags off `rest`, with its value: `--name x`, `--name=x`, `-it`, `-p8000:8000`, `-dp 80:80`."""
    word = rest.pop(0)
    if word.startswith("--"):
        flag, equals, given = word.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        name = _RENAMED.get(name, name)
        return [(name, given, word)] if equals else [_valued(name, flag, None, rest)]
    found: list[tuple[str, str | None, str]] = []
    letters = word[1:]
    while letters:
        letter, letters = letters[0], letters[1:]
        name = _SHORT.get(letter, letter)
        if name in _SWITCHES:
            found.append((name, None, f"-{letter}"))
        else:
            found.append(_valued(name, f"-{letter}", letters.removeprefix("=") or None, rest))
            break
    return found


def _valued(name: str, flag: str, given: str | None, rest: list[str]) -> tuple[str, str | None, str]:
    if given is None and name not in _SWITCHES and rest:
        given = rest.pop(0)
    return name, given, flag if given is None else f"{flag} {given}"


def _keep(container: Container, name: str, value: str | None, origin: str) -> None:
    flag = re.split(r"[ =]", origin)[0]
    if name == "entrypoint" and value:
        container.command.insert(0, value)
        container.has_entry_point = True
    elif name == "publish" and value and (port := read_port(value, origin)) is not None:
        container.ports.append(port)
    elif name in ("volume", "mount") and value and (mount := read_mount(value, origin)) is not None:
        container.mounts.append(mount)
    elif name == "env" and value:
        container.variables.append(read_variable(value, flag))
    else:
        container.others.append((name, origin))


def read_port(text: str, origin: str) -> PublishedPort | None:
    """`[ip:][host:]port[/tcp]`, whose host may be a variable; None for ranges and other protocols."""
    found = _PORT.match(text)
    if found is None:
        return None
    host_port = int(found[3]) if found[3] and found[3].isdigit() else None
    return PublishedPort(origin, int(found[4]), host_port, found[1] or found[2] or "")


def read_mount(text: str, origin: str) -> MountedFolder | None:
    """`source:target[:options]`, or `type=bind,source=...,target=...`; None where the machine has no such folder."""
    if "=" in text.partition(",")[0]:
        pairs = dict(part.partition("=")[::2] for part in text.split(","))
        source = pairs.get("source") or pairs.get("src") or ""
        target = pairs.get("target") or pairs.get("dst") or pairs.get("destination") or ""
    else:
        source, _, rest = text.partition(":")
        target = rest.partition(":")[0]
    return MountedFolder(origin, source, target) if source and target else None
