"""Records of a verb's arguments. They are declared like dataclasses, but no methods are generated, because each start
of the command creates all of these classes and uses only one."""

from collections.abc import Iterator
from inspect import Parameter, Signature
from typing import Annotated, Any, dataclass_transform, get_args, get_origin


@dataclass_transform(kw_only_default=True, frozen_default=True)
class VerbArguments:
    """The base of all records. A subclass's annotated fields are arguments and options; those without a default are
    required."""

    def __init__(self, **given: Any) -> None:
        """Sets the fields. Raises TypeError for an unknown or missing field."""
        fields = dict(fields_of(type(self)))
        missing = [name for name in fields if name not in given and not hasattr(type(self), name)]
        unknown = [name for name in given if name not in fields]
        if missing or unknown:
            raise TypeError(f"{type(self).__name__}: missing {missing}, unknown {unknown}")
        for name, value in given.items():
            object.__setattr__(self, name, tuple(value) if isinstance(value, list) else value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be set")


def fields_of(record: type[VerbArguments]) -> Iterator[tuple[str, Any]]:
    """Yields names and annotations, those of base classes first."""
    for each in reversed(record.__mro__):
        yield from vars(each).get("__annotations__", {}).items()


def signature_of(record: type[VerbArguments]) -> Signature:
    """Returns a signature for typer: each field is a keyword; a tuple is read as a list."""
    return Signature([
        Parameter(name, Parameter.KEYWORD_ONLY, default=_default(record, name), annotation=_parsed(annotation))
        for name, annotation in fields_of(record)
    ])  # fmt: skip


def _default(record: type[VerbArguments], name: str) -> Any:
    value = getattr(record, name, Parameter.empty)
    return None if value == () else value


def _parsed(annotation: Any) -> Any:
    if get_origin(annotation) is Annotated:
        kind, *details = get_args(annotation)
        if get_origin(kind) is tuple:
            return Annotated[list[get_args(kind)[0]] | None, *details]  # type: ignore[misc]  # the type is made at run time
    return annotation
