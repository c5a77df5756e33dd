"""A spec in the making: values with the words they came from, and what could not be placed."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from appliance.base.diagnostics import Diagnostic, Severity
from appliance.base.errors import ApplianceError, ExitCode, SpecError
from appliance.spec.loader import load_text

_HEAD: Final = {"api_version": "appliance/v1", "kind": "Deployment"}
_UNFILLED: Final = ("interpolation/env", "interpolation/file")  # what is not set here is no fault of the spec
_MAX_NAME: Final = 63


class CannotImportError(ApplianceError):
    """What was given is not what the importer reads."""

    exit_code = ExitCode.INVALID


@dataclass(frozen=True, slots=True)
class Unplaced:
    """Something of the original that the spec does not say."""

    origin: str  # as the user wrote it: "--swap-space 4"
    reason: str


@dataclass(frozen=True, slots=True)
class Imported:
    document: dict[str, Any]
    placed: dict[str, str]  # path -> the words its value came from
    unplaced: tuple[Unplaced, ...]
    notes: tuple[str, ...]  # where the spec says something else than the original, knowingly


@dataclass(frozen=True, slots=True)
class ImportedFile:
    """specs: name in the file -> spec; not empty. unplaced: what of the file is in none of them."""

    specs: dict[str, Imported]
    unplaced: tuple[Unplaced, ...] = ()


@dataclass(slots=True)
class Draft:
    """The values so far, each with the words it came from."""

    document: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)  # path -> the words it came from
    unplaced: list[Unplaced] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def put(self, path: str, value: Any, origin: str) -> None:
        """Sets a value at a dotted path without list indices; the last one wins, as on a command line."""
        *parents, last = path.split(".")
        section = self.document
        for name in parents:
            section = section.setdefault(name, {})
        section[last] = value
        self.origins[path] = origin

    def get(self, path: str) -> Any:
        """The value at a dotted path; None where there is none."""
        found: Any = self.document
        for name in path.split("."):
            found = found.get(name) if isinstance(found, dict) else None
        return found

    def put_member(self, path: str, key: str, value: Any, origin: str) -> None:
        """Sets one member of a free mapping. A key with a dot has no path of its own: that of the mapping is taken."""
        if "." not in key:
            self.put(f"{path}.{key}", value, origin)
            return
        *parents, last = path.split(".")
        section = self.document
        for name in parents:
            section = section.setdefault(name, {})
        section.setdefault(last, {})[key] = value
        self.origins[path] = origin

    def add(self, path: str, items: Iterable[Any], origin: str) -> None:
        """Appends to a list."""
        *parents, last = path.split(".")
        section = self.document
        for name in parents:
            section = section.setdefault(name, {})
        section.setdefault(last, []).extend(items)
        self.origins[path] = origin

    def leave(self, origin: str, reason: str) -> None:
        self.unplaced.append(Unplaced(origin, reason))

    def finished(self, name: str) -> Imported:
        """The spec, valid. Values that it does not take are moved to `unplaced` with the reason.

        Raises CannotImportError when what remains is no spec.
        """
        self.document = {**_HEAD, "name": name, **self.document}
        while found := next(iter(_errors(self.document)), None):
            self._give_up(found)
        return Imported(self.document, self.origins, tuple(self.unplaced), tuple(self.notes))

    def _give_up(self, found: Diagnostic) -> None:
        """Takes out the value that a finding is about. Raises CannotImportError when no import put it there."""
        plain = re.sub(r"\[\d+\]", "", found.path)
        path = max((each for each in self.origins if _touches(each, plain)), key=len, default=None)
        if path is None:
            raise CannotImportError(f"the spec would be invalid: {found.path}: {found.message}", hint=found.hint)
        self.leave(self.origins[path], found.message)
        self.remove(path)

    def remove(self, path: str) -> None:
        """Takes out a value that was put, and the sections that it leaves empty."""
        del self.origins[path]
        _remove(self.document, path.split("."))


def _touches(placed: str, found: str) -> bool:
    return placed == found or found.startswith(placed + ".") or placed.startswith(found + ".")


def _errors(document: dict[str, Any]) -> list[Diagnostic]:
    try:
        load_text(json.dumps(document), environ={})  # JSON is YAML
    except SpecError as error:
        found = [each for each in error.diagnostics if each.severity is Severity.ERROR]
        return [each for each in found if not each.rule.startswith(_UNFILLED)]
    return []


def _remove(section: dict[str, Any], parts: list[str]) -> None:
    """Takes a value out, and the sections that it leaves empty."""
    name, *rest = parts
    if rest:
        _remove(section[name], rest)
    if not rest or not section[name]:
        del section[name]


def deployment_name(source: str) -> str:
    """A deployment's name from the last part of a path or a hub id."""
    plain = re.sub(r"\$\{env:(\w+)[^}]*\}", r"\1", source)
    last = plain.rstrip("/").rsplit("/", 1)[-1].removesuffix(".gguf").lower()
    return re.sub(r"[^a-z0-9]+", "-", last).strip("-")[:_MAX_NAME].strip("-") or "model"


def with_variables(text: str) -> str:
    """Variables of a shell, `$NAME` and `${NAME}`, as references of a spec."""
    return re.sub(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))", lambda found: f"${{env:{found[1] or found[2]}}}", text)
