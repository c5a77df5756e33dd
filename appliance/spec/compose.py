"""Implements `include`: a spec is merged over other files below its folder.

Files are merged in order, each over those before it: first the files that a file includes, in the order of its list,
then the file itself. A file that is reached twice is merged once, at its first place. Mappings are merged key by key.
Everything else, lists too, is replaced whole. `null` is a value if the field accepts null; over any other value it
removes that value, so that the field has its default again.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import yaml

from appliance import __version__
from appliance.base.diagnostics import Diagnostic
from appliance.base.errors import SpecError
from appliance.spec.deployment import API_VERSION
from appliance.spec.document import Document, Interpolate, SourceFile, build, parent
from appliance.spec.nodes import (
    MappingNode,
    Node,
    Position,
    ScalarNode,
    SequenceNode,
    YamlReadError,
    parse,
    scalar_value,
)
from appliance.spec.paths import Path as SpecPath
from appliance.spec.paths import format_path
from appliance.spec.reading import read_text
from appliance.spec.tree import find

KEY = "include"
MAX_FILES = 32

_VERSION = re.compile(r"appliance/v(\d+)(?:(?:alpha|beta)\d+)?")


@dataclass(frozen=True, slots=True)
class Composition:
    """The merged document, whose `sources` give the file of each value, and its text.

    `text` is the file's text if it includes nothing; else the merged document as YAML, with `${...}` not filled in.
    """

    document: Document
    text: str
    files: tuple[SourceFile, ...]  # in the order in which they were merged; the spec itself is the last


@dataclass(frozen=True, slots=True)
class _Part:
    source: SourceFile
    node: Node | None


def compose(text: str, name: str, folder: Path, interpolate: Interpolate) -> Composition:
    """Merges the spec `name` and its includes. Raises SpecError if a file cannot be read, is not YAML, or is outside.

    folder: the folder of the spec. Files outside it are not read, not even through links.
    """
    root = _parsed(SourceFile(name, text))
    parts = list(_Includes(folder.resolve()).parts(root, folder / Path(name).name, ()))
    document = _laid(parts, interpolate)
    if len(parts) == 1:
        return Composition(document, text, (root.source,))
    as_written = _laid(parts, _as_written)
    return Composition(document, dump_yaml(as_written.data), tuple(part.source for part in parts))


def written_text(path: Path) -> str:
    """Returns the `text` of a spec's composition, without checking its values. Raises SpecError."""
    return compose(read_text(path, str(path)), str(path), path.parent, _as_written).text


def included_files(path: Path) -> tuple[Path, ...]:
    """Returns the files that the file itself includes, resolved; none if it cannot be read (reported elsewhere)."""
    try:
        part = _parsed(SourceFile(str(path), read_text(path, str(path))))
        return tuple((path.parent / item.text).resolve() for item in _include_list(part))
    except SpecError:
        return ()


def reachable_files(path: Path) -> tuple[Path, ...]:
    """Returns the spec and all files reached by includes, resolved, even if invalid: at most MAX_FILES, all below its
    folder."""
    root = path.resolve()
    found = [root]
    for file in found:
        news = [each for each in included_files(file) if each not in found and each.is_relative_to(root.parent)]
        found += list(dict.fromkeys(news))[: MAX_FILES - len(found)]
    return tuple(found)


def _as_written(reference: str) -> str:
    return reference


class _Includes:
    """Follows `include` lists, and refuses circles and files outside the folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seen: set[Path] = set()

    def parts(self, part: _Part, path: Path, above: tuple[Path, ...]) -> Iterator[_Part]:
        """Yields included files first, then the file. `above`: the files whose lists lead here, resolved."""
        here = path.resolve()
        self._seen.add(here)
        for item in _include_list(part):
            inner = self._inside(part, item, path)
            if inner.resolve() in (*above, here):
                chain = " -> ".join(each.name for each in (*above, here, inner.resolve()))
                _refuse(part, item.position, "include/cycle", f"a file includes itself: {chain}", "remove one include")
            if inner.resolve() in self._seen:
                continue
            if len(self._seen) == MAX_FILES:
                hint = "merge some of them"
                _refuse(part, item.position, "include/too-many", f"more than {MAX_FILES} files are included", hint)
            yield from self.parts(self._read(part, item, inner), inner, (*above, here))
        yield part

    def _inside(self, part: _Part, item: ScalarNode, path: Path) -> Path:
        inner = path.parent / item.text
        if Path(item.text).is_absolute() or not inner.resolve().is_relative_to(self._root):
            message = f"{item.text} is not below the folder of the spec"
            hint = "an include is a relative path to a file beside the spec or below; links count by where they lead"
            _refuse(part, item.position, "include/outside", message, hint)
        return inner

    def _read(self, part: _Part, item: ScalarNode, inner: Path) -> _Part:
        """Reads and parses a file. Raises SpecError if it is not a mapping of this format's version."""
        name = os.path.normpath(Path(part.source.name).parent / item.text)
        try:
            text = read_text(inner, name)
        except SpecError as error:
            [found] = error.diagnostics
            if found.rule == "file/read":
                hint = "the path starts at the folder of the file that includes it"
                _refuse(part, item.position, "include/read", f"{item.text}: {found.message}", hint)
            raise
        found_part = _parsed(SourceFile(name, text))
        if found_part.node is not None and not isinstance(found_part.node, MappingNode):
            hint = "an included file holds sections of a deployment"
            _refuse(found_part, found_part.node.position, "spec/not-a-mapping", "the file holds no mapping", hint)
        return found_part


def _parsed(source: SourceFile) -> _Part:
    try:
        part = _Part(source, parse(source.text))
    except YamlReadError as fault:
        found = Diagnostic(rule=fault.rule, message=str(fault), hint=fault.hint)
        raise SpecError([source.placed(found, fault.position)]) from None
    _refuse_other_versions(part)
    return part


def _refuse_other_versions(part: _Part) -> None:
    """Raises SpecError for another version, as the only finding: others would mislead."""
    for key, value in part.node.entries if isinstance(part.node, MappingNode) else []:
        if key.text != "api_version" or not isinstance(value, ScalarNode) or value.text == API_VERSION:
            continue
        if matched := _VERSION.fullmatch(value.text):
            is_newer = int(matched[1]) > 1
            hint = f"this is appliance {__version__}; a newer one may read it" if is_newer else f"write {API_VERSION}"
            message = f"{value.text} is not read by this version, only {API_VERSION}"
            _refuse(part, value.position, "spec/version", message, hint)


def _include_list(part: _Part) -> Iterator[ScalarNode]:
    """Yields the items of the file's own list; references in it are not filled in."""
    entries = part.node.entries if isinstance(part.node, MappingNode) else []
    for key, value in entries:
        if key.text != KEY:
            continue
        items = value.items if isinstance(value, SequenceNode) else [value]
        for item in items:
            good = isinstance(item, ScalarNode) and isinstance(scalar_value(item.text), str) and "${" not in item.text
            if not isinstance(value, SequenceNode) or not good:
                hint = f"write {KEY}: [base.yaml]"
                _refuse(part, item.position, "include/form", f"{KEY} takes a list of paths, as they stand", hint)
            assert isinstance(item, ScalarNode)
            yield item


def _refuse(part: _Part, position: Position, rule: str, message: str, hint: str) -> NoReturn:
    found = Diagnostic(rule=rule, message=message, path=KEY if rule.startswith(KEY) else "", hint=hint)
    raise SpecError([part.source.placed(found, position)])


def _laid(parts: list[_Part], interpolate: Interpolate) -> Document:
    """Merges all parts into one document. Findings in the spec itself have no file yet, as without includes."""
    *below, own = parts
    document = Document()
    for part in [*below, own]:
        layer = build(part.node, interpolate) if part.node is not None else Document()
        if isinstance(layer.data, dict) and below:
            layer.data.pop(KEY, None)
        if part is not own:
            layer.diagnostics = [_placed(found, part.source) for found in layer.diagnostics]
        document = lay_over(document, layer, None if part is own else part.source)
    return document


def _placed(found: Diagnostic, source: SourceFile) -> Diagnostic:
    return source.placed(found, Position(found.line, found.column))


def lay_over(below: Document, above: Document, source: SourceFile | None) -> Document:
    """Merges `above` over `below`. source: the file of `above`; None is the spec itself."""
    if not isinstance(above.data, dict) or not isinstance(below.data, dict):
        if above.data is None and below.data is not None:
            return below
        above.sources = {} if source is None else dict.fromkeys([*above.values, *above.keys], source)
        return above
    replaced: set[str] = set()
    removed: set[str] = set()
    data = _merged(below.data, above.data, (), replaced, removed)
    gone, dropped = _Under(replaced | removed), _Under(removed)
    merged = Document(data=data)
    merged.values = {path: at for path, at in below.values.items() if not gone.has(path)}
    merged.keys = {path: at for path, at in below.keys.items() if not gone.has(path)}
    merged.interpolated = {path: text for path, text in below.interpolated.items() if not gone.has(path)}
    merged.diagnostics = [found for found in below.diagnostics if not found.path or not gone.has(found.path)]
    written = [path for path in {**above.values, **above.keys} if not dropped.has(path)]
    merged.sources = {path: at for path, at in below.sources.items() if path in merged.values or path in merged.keys}
    for path in written:
        if source is None:
            merged.sources.pop(path, None)
        else:
            merged.sources[path] = source
    merged.values |= {path: at for path, at in above.values.items() if not dropped.has(path)}
    merged.keys |= {path: at for path, at in above.keys.items() if not dropped.has(path)}
    merged.interpolated |= above.interpolated
    merged.diagnostics += above.diagnostics
    return merged


class _Under:
    """Tells whether a path is one of the given ones, or below one."""

    def __init__(self, paths: set[str]) -> None:
        self._paths = paths

    def has(self, path: str) -> bool:
        while path:
            if path in self._paths:
                return True
            path = parent(path)
        return False


def _merged(below: dict[str, Any], above: dict[str, Any], path: SpecPath, replaced: set[str], removed: set[str]) -> Any:
    """Merges data, and adds the paths whose value in `below` was replaced or removed to these sets."""
    result = dict(below)
    for name, value in above.items():
        inner = (*path, name)
        if isinstance(value, dict) and isinstance(below.get(name), dict):
            result[name] = _merged(below[name], value, inner, replaced, removed)
        elif value is None and name in below and not _takes_null(inner):
            del result[name]
            removed.add(format_path(inner))
        else:
            result[name] = value
            replaced.add(format_path(inner))
    return result


def _takes_null(path: SpecPath) -> bool:
    found = find(path)
    return found is not None and "null" in found.allowed.replace(",", " ").split()


class _Dumper(yaml.SafeDumper):
    """Quotes texts that our parser would read as another type, even if YAML 1.1 reads them as texts."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    try:
        is_open = not isinstance(scalar_value(value), str)
    except ValueError:
        is_open = True
    if "\n" in value:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|")
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style='"' if is_open else None)


_Dumper.add_representer(str, _text)


def dump_yaml(data: Any) -> str:
    """Writes plain data as YAML that reads back as the same data."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
