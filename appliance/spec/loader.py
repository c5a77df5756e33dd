"""Loads a file into a LoadedSpec, or raises SpecError with everything that is wrong."""

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from appliance.base import environ as process_environ
from appliance.base import hashing
from appliance.base.diagnostics import Diagnostic, Severity, has_errors, in_order
from appliance.base.errors import SpecError
from appliance.spec import overrides as override_values
from appliance.spec.check import check
from appliance.spec.compose import KEY as INCLUDE
from appliance.spec.compose import compose
from appliance.spec.data import as_data
from appliance.spec.deployment import DeploymentSpec
from appliance.spec.document import Document, Interpolate, SourceFile
from appliance.spec.fields import FieldDoc, Section
from appliance.spec.interpolate import interpolator
from appliance.spec.nodes import Position
from appliance.spec.overrides import Override
from appliance.spec.paths import ABSENT, Path, child, format_path, parse_path, value_at
from appliance.spec.reading import read_text
from appliance.spec.translate import MASK, MAX_DIAGNOSTICS, too_many
from appliance.spec.tree import fields_of


@dataclass(frozen=True, slots=True)
class Source:
    """The origin of a value that is not from the file. Its text is not kept, because it may be a secret."""

    path: str
    kind: Literal["env", "set"]
    origin: str


@dataclass(frozen=True, slots=True)
class SetField:
    """One field that the user wrote. A section that this version cannot run counts as one field."""

    path: str
    value: Any
    doc: FieldDoc
    position: Position

    @property
    def can_run(self) -> bool:
        return self.doc.can_run(self.value)


@dataclass(frozen=True, kw_only=True)
class LoadedSpec:
    """A valid spec and the places of its values."""

    spec: DeploymentSpec
    file: str
    text: str  # the file's text; if it includes others, all of them merged, with `${...}` not filled in
    files: tuple[SourceFile, ...]  # in the order in which they were merged; the spec itself is the last
    positions: Mapping[str, Position]  # of values, by path
    keys: Mapping[str, Position]
    sources: tuple[Source, ...]  # overrides, in the order they were applied
    secrets: frozenset[str]  # paths whose values came from ${...}
    warnings: tuple[Diagnostic, ...] = ()
    _document: Document = field(repr=False)

    def is_set(self, path: str) -> bool:
        """Returns whether the user wrote this field, or anything below it."""
        below = (path + ".", path + "[")
        return any(each == path or each.startswith(below) for each in self.positions)

    def diagnostic(
        self,
        path: str,
        rule: str,
        message: str,
        *,
        allowed: str = "",
        hint: str = "",
        severity: Severity = Severity.ERROR,
    ) -> Diagnostic:
        """Makes a finding about the value at `path`, or about its nearest written parent if it was not written."""
        value = self.value(path)
        bare = Diagnostic(
            rule=rule, message=message, path=path, severity=severity, value=value, allowed=allowed, hint=hint
        )
        return _Placed(self.files[-1], self._document, self.sources).place(bare)

    def origin(self, path: str) -> str:
        """Returns the origin of the value at `path`: `file:line:column`, an override, or `default`."""
        if not self.is_set(path):
            return "default"
        bare = Diagnostic(rule="", message="", path=path)
        found = _Placed(self.files[-1], self._document, self.sources).place(bare)
        is_override = any(found.file == each.origin for each in self.sources)
        return found.file if is_override else f"{found.file}:{found.line}:{found.column}"

    def value(self, path: str) -> Any:
        """Returns the value at `path` as plain data, masked if it is secret; None if there is none."""
        found = value_at(self.resolved(), parse_path(path))
        return None if found is ABSENT else found

    def unfilled(self, path: str, value: str) -> str:
        """Returns the text at `path` with its `${...}` as they were written; `value` where it has none."""
        return self._document.interpolated.get(path, value)

    def resolved(self) -> dict[str, Any]:
        """Returns the spec as JSON data with every default and masked secrets."""
        data = self._data()
        for path in self.secrets:
            _mask(data, parse_path(path))
        return data

    @property
    def sha256(self) -> str:
        """The digest of the spec with every default. Values from ${...} count, those of secret fields do not."""
        return hashing.sha256_json(self._data())

    def _data(self) -> dict[str, Any]:
        """Returns the spec as data without `include`, as included values are in the other fields."""
        data: dict[str, Any] = as_data(self.spec)
        del data[INCLUDE]
        return data


def load_spec(
    path: str | pathlib.Path, overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> LoadedSpec:
    """Reads, overrides, interpolates and checks one file.

    `overrides` are `path=value` texts of --set; `environ` is by default the process environment. Raises SpecError with
    every error found.
    """
    file = pathlib.Path(path)
    return load_text(read_text(file, str(path)), str(path), overrides, environ, folder=file.parent)


def load_text(
    text: str,
    file: str = "<spec>",
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    *,
    folder: pathlib.Path = pathlib.Path(),
) -> LoadedSpec:
    """Loads like `load_spec`, but from a text that was already read."""
    known = process_environ.snapshot() if environ is None else environ
    interpolate = interpolator(known, folder)
    composed = compose(text, file, folder, interpolate)
    document = composed.document
    values, faults = override_values.collect(overrides, known)
    faults += _override(document, values, interpolate)
    sources = tuple(Source(format_path(each.path), each.kind, each.origin) for each in values)
    placed_at = _Placed(SourceFile(file, text), document, sources)
    spec, found_later = check(document)
    num_read = len(document.diagnostics)
    found_early = document.diagnostics[:MAX_DIAGNOSTICS] + too_many(num_read - MAX_DIAGNOSTICS)
    found_all = [*faults, *map(placed_at.place, [*found_early, *found_later])]
    if spec is None or has_errors(found_all):
        raise SpecError(in_order(found_all))
    return LoadedSpec(
        spec=spec,
        file=file,
        text=composed.text,
        files=composed.files,
        positions=document.values,
        keys=document.keys,
        sources=sources,
        secrets=frozenset(document.interpolated),
        warnings=tuple(in_order(found_all)),
        _document=document,
    )


def iter_set_fields(loaded: LoadedSpec) -> Iterator[SetField]:
    """Yields every field that the user set, in order; a section that this version lacks is one field."""
    yield from _set_fields(loaded, loaded.spec, "")


def _set_fields(loaded: LoadedSpec, section: Section, prefix: str) -> Iterator[SetField]:
    for found in fields_of(type(section), prefix):
        if found.name not in section.model_fields_set:
            continue
        value = getattr(section, found.name)
        if isinstance(value, Section) and found.doc.built:
            yield from _set_fields(loaded, value, found.path)
        elif isinstance(value, list) and found.child is not None and found.doc.built:
            for index, item in enumerate(value):
                yield from _set_fields(loaded, item, f"{found.path}[{index}]")
        else:
            yield SetField(found.path, value, found.doc, loaded._document.place(found.path))


def _override(document: Document, values: Sequence[Override], interpolate: Interpolate) -> list[Diagnostic]:
    """Applies overrides, or refuses them all if the file says `overrides: none`."""
    if isinstance(document.data, dict) and document.data.get("overrides") == "none":
        hint = "change the file, or write overrides: allowed"
        return [
            Diagnostic(
                rule="override/refused",
                message=f"the file says overrides: none, so {each.origin} cannot change {format_path(each.path)}",
                path=format_path(each.path),
                file=each.origin,
                hint=hint,
            )
            for each in values
        ]
    if document.data is not None and not isinstance(document.data, dict):
        return []
    late = [each for each in values if each.path[0] == INCLUDE]
    refused = [_too_late(each) for each in late]
    rest = [each for each in values if each not in late]
    return refused + [found for each in rest for found in override_values.apply(each, document, interpolate)]


def _too_late(override: Override) -> Diagnostic:
    message = f"{INCLUDE} is read before overrides"
    hint = "write a file that includes what you want, and give that one"
    path = format_path(override.path)
    return Diagnostic(rule="override/refused", message=message, path=path, file=override.origin, hint=hint)


@dataclass(frozen=True, slots=True)
class _Placed:
    """Gives findings their file, line, column and source line."""

    own: SourceFile
    document: Document
    sources: tuple[Source, ...]

    def place(self, found: Diagnostic) -> Diagnostic:
        """Gives a finding without a place the place of its path."""
        source = next((each for each in reversed(self.sources) if self._is_from(each, found.path)), None)
        if found.path in self.document.interpolated and found.value is not None:
            message = found.message.replace(str(found.value), MASK)
            found = dataclasses.replace(found, value=MASK, message=message)
        if source is not None:
            return dataclasses.replace(found, file=source.origin, line=1, column=1)
        if found.file:  # the finding is in an included file
            return found
        file, position = self.document.source(found.path) or self.own, Position(found.line, found.column)
        if position == (1, 1):
            position = self.document.place(found.path)
        is_literal_secret = found.value == MASK and found.path not in self.document.interpolated
        return file.placed(found, position, show_line=not is_literal_secret)

    def _is_from(self, source: Source, path: str) -> bool:
        """Returns whether an override set the value at `path`, or created the section at `path`."""
        made = path not in self.document.keys and path not in self.document.values
        return _within(path, source.path) or bool(path and made and _within(source.path, path))


def _within(path: str, outer: str) -> bool:
    return path == outer or path.startswith((outer + ".", outer + "["))


def _mask(data: Any, path: Path) -> None:
    """Masks the value at `path`, if there is one."""
    holder = value_at(data, path[:-1])
    if child(holder, path[-1]) is not ABSENT:
        holder[path[-1]] = MASK
