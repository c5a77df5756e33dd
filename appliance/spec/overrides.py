"""Overrides: `APPLIANCE__SECTION__FIELD`, then `--set path=value`. The later one wins."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from appliance.base.diagnostics import Diagnostic
from appliance.base.environ import OVERRIDE_PREFIX
from appliance.spec.document import Document, Interpolate, build
from appliance.spec.nodes import YamlReadError, parse
from appliance.spec.paths import ABSENT, Path, child, format_path, parse_path, value_at


@dataclass(frozen=True, slots=True)
class Override:
    """One value from outside the file: `text` is YAML, `origin` names its source."""

    kind: Literal["env", "set"]
    origin: str  # "--set cache.block_size=32" without its value, or the variable's name
    path: Path
    text: str


def collect(assignments: Sequence[str], environ: Mapping[str, str]) -> tuple[list[Override], list[Diagnostic]]:
    """Returns the overrides in the order in which they apply, and diagnostics of those that cannot be read."""
    overrides: list[Override] = []
    diagnostics: list[Diagnostic] = []
    for name in sorted(environ):
        if name.startswith(OVERRIDE_PREFIX) and len(name) > len(OVERRIDE_PREFIX):
            path = tuple(part.lower() for part in name.removeprefix(OVERRIDE_PREFIX).split("__"))
            overrides.append(Override("env", name, path, environ[name]))
    for assignment in assignments:
        try:
            name, text = _split(assignment)
            overrides.append(Override("set", f"--set {name}", parse_path(name), text))
        except ValueError as error:
            hint = "write --set cache.block_size=32"
            diagnostics.append(Diagnostic(rule="override/form", message=str(error), file="--set", hint=hint))
    return overrides, diagnostics


def apply(override: Override, document: Document, interpolate: Interpolate) -> list[Diagnostic]:
    """Sets one value in the document, and creates the sections on its path. Returns the diagnostics."""
    try:
        node = parse(override.text)
    except YamlReadError as fault:
        return [_fault(override, fault.rule, str(fault), fault.hint)]
    inner = build(node, interpolate) if node is not None else Document()
    target = _target(document, override.path)
    if target is None:
        return [_fault(override, "override/path", f"{format_path(override.path)} is not in the file", _NO_TARGET)]
    last = override.path[-1]
    target[last] = inner.data
    text = format_path(override.path)
    _forget(document, text)
    document.values[text] = inner.values.get("", document.place(""))
    for path, position in inner.values.items():
        if path:
            document.values[_joined(text, path)] = position
    document.interpolated.update({_joined(text, path): written for path, written in inner.interpolated.items()})
    return [_fault(override, found.rule, found.message, found.hint) for found in inner.diagnostics]


_NO_TARGET = "an override may name any field, and items of lists that the file has"


def _split(assignment: str) -> tuple[str, str]:
    name, equals, text = assignment.partition("=")
    if not equals or not name.strip():
        raise ValueError(f"{assignment!r} is not path=value")
    return name.strip(), text


def _target(document: Document, path: Path) -> Any:
    """Returns the container of the last part of `path`: a dict, or a list that has the item; None if there is none."""
    if document.data is None:
        document.data = {}
    num_present = max((at + 1 for at, part in enumerate(path) if isinstance(part, int)), default=0)
    current = value_at(document.data, path[:num_present])
    if current is ABSENT:
        return None
    if num_present == len(path):
        return value_at(document.data, path[:-1])
    for part in path[num_present:-1]:
        if isinstance(current, dict) and not isinstance(current.get(part), dict):
            current[part] = {}
        current = child(current, part)
    return current if isinstance(current, dict) else None


def _forget(document: Document, text: str) -> None:
    """Removes the places, marks and diagnostics of a replaced value."""
    below = (text + ".", text + "[")
    for table in (document.values, document.keys):
        for path in [path for path in table if path == text or path.startswith(below)]:
            del table[path]
    kept = {path for path in document.interpolated if path != text and not path.startswith(below)}
    document.interpolated = {path: document.interpolated[path] for path in kept}
    document.diagnostics = [found for found in document.diagnostics if found.path != text]


def _joined(outer: str, inner: str) -> str:
    if not inner:
        return outer
    return outer + inner if inner.startswith("[") else f"{outer}.{inner}"


def _fault(override: Override, rule: str, message: str, hint: str) -> Diagnostic:
    return Diagnostic(rule=rule, message=message, path=format_path(override.path), file=override.origin, hint=hint)
