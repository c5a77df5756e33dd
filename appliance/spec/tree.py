"""The structure of the spec: its sections and fields, and lookup by path."""

import functools
import json
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from appliance.base import units
from appliance.spec.deployment import DeploymentSpec
from appliance.spec.fields import FieldDoc, Section, field_doc
from appliance.spec.paths import Path
from appliance.spec.scalars import Words


@dataclass(frozen=True, slots=True)
class Field:
    """One field of one section. In `path` a list item is `[]`: `lora.adapters[].source`."""

    path: str
    name: str
    section: type[Section]
    info: FieldInfo
    doc: FieldDoc

    @property
    def child(self) -> type[Section] | None:
        """The section class of this field's value or of its list items; None if it is not a section."""
        return child_section(self.info)

    @property
    def is_list(self) -> bool:
        return get_origin(_without_none(self.info.annotation)) is list

    @property
    def allowed(self) -> str:
        """The allowed values in words."""
        return self.doc.allowed or words_of(self.info.annotation, self.info.metadata)

    @property
    def takes_text(self) -> bool:
        """Any string may be a value, or an item of the list."""
        return _takes_text(self.info.annotation)

    @property
    def default_text(self) -> str:
        """The default as YAML; "required" when there is none, "" for a section."""
        default = self.doc.default
        if default is PydanticUndefined:
            return "required"
        if isinstance(default, dict | list):
            return "" if self.child else json.dumps(default)
        if isinstance(default, int | float) and not isinstance(default, bool):
            return str(self.written(default))
        return default if isinstance(default, str) and default else json.dumps(default)

    def written(self, value: Any) -> Any:
        """Returns a value of this field as written in a file: a size or a duration is a text with its unit."""
        form = _form(self.info.annotation, self.info.metadata)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return _NUMBER_TEXTS[form](value) if is_number and form in _NUMBER_TEXTS else value


def fields_of(section: type[Section], prefix: str = "") -> Iterator[Field]:
    """Yields the fields of one section, in order."""
    for name, info in section.model_fields.items():
        yield Field(f"{prefix}.{name}" if prefix else name, name, section, info, field_doc(info))


def walk(section: type[Section] = DeploymentSpec, prefix: str = "") -> Iterator[Field]:
    """Yields every field below a section, each section's field before its own fields."""
    for found in fields_of(section, prefix):
        yield found
        if found.child is not None:
            yield from walk(found.child, found.path + ("[]" if found.is_list else ""))


def find(path: Path) -> Field | None:
    """Returns the field at a document's path, with list indices; None if the path is free-form or unknown."""
    section: type[Section] | None = DeploymentSpec
    found: Field | None = None
    prefix = ""
    for part in path:
        if isinstance(part, int):
            if found is None or not found.is_list or prefix.endswith("[]"):
                return None
            prefix += "[]"
            continue
        if section is None or part not in section.model_fields:
            return None
        found = next(each for each in fields_of(section, prefix) if each.name == part)
        section, prefix = found.child, found.path
    return found


def section_at(path: Path) -> type[Section] | None:
    """Returns the section class of a mapping at `path`; None if there is none."""
    if not path:
        return DeploymentSpec
    found = find(path)
    if found is None or found.is_list != isinstance(path[-1], int):
        return None
    return found.child


@functools.cache
def _child_of(annotation: Any) -> type[Section] | None:
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return annotation if issubclass(annotation, Section) else None
    if get_origin(annotation) in (list, Union, types.UnionType):
        children = [_child_of(part) for part in get_args(annotation)]
        return next((child for child in children if child is not None), None)
    return None


def child_section(info: FieldInfo) -> type[Section] | None:
    annotation: Any = info.annotation
    return _child_of(annotation)


def words_of(annotation: Any, metadata: list[Any] | tuple[Any, ...] = ()) -> str:
    """Returns the allowed values of a type in words."""
    words = [item.text for item in metadata if isinstance(item, Words)]
    if words:
        return words[-1]  # the outermost
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return words_of(args[0], args[1:])
    if origin in (Union, types.UnionType):
        return ", or ".join(words_of(part) for part in sorted(args, key=_is_tail))
    if origin is Literal:
        return " or ".join([", ".join(map(str, args[:-1])), str(args[-1])] if len(args) > 1 else [str(args[0])])
    if origin is list:
        return f"a list of: {words_of(args[0])}"
    if origin is dict:
        return "a mapping" if args[1] is Any else f"a mapping to: {words_of(args[1])}"
    return _PLAIN_WORDS.get(annotation, "a mapping")


def _takes_text(annotation: Any) -> bool:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _takes_text(args[0])
    if origin in (list, Union, types.UnionType):
        return any(_takes_text(part) for part in args)
    return annotation in (str, SecretStr)


_NUMBER_TEXTS: dict[str, Callable[[Any], str]] = {
    units.SIZE_FORM: units.size_text,
    units.DURATION_FORM: units.duration_text,
}


def _form(annotation: Any, metadata: list[Any] | tuple[Any, ...]) -> str:
    """Returns the words of a size or a duration anywhere in a type, or an empty string."""
    words = [item.text for item in metadata if isinstance(item, Words)]
    if get_origin(annotation) is Annotated:
        return _form(get_args(annotation)[0], get_args(annotation)[1:])
    words += [_form(part, ()) for part in get_args(annotation)]
    return next((word for word in words if word in _NUMBER_TEXTS), "")


_PLAIN_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
    SecretStr: "a string",
    types.NoneType: "null",
}


def _is_tail(annotation: Any) -> int:
    """Returns a sort key that puts `auto` and null last."""
    if annotation is types.NoneType:
        return 2
    return 1 if get_origin(annotation) is Literal else 0


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, types.UnionType):
        rest = [part for part in get_args(annotation) if part is not types.NoneType]
        return rest[0] if len(rest) == 1 else annotation
    return annotation
