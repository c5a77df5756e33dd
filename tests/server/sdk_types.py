"""What official client libraries may send, read from the types of the installed ones: samples of every kind."""

import types
import typing
from collections.abc import Iterator
from typing import Any, NamedTuple

import typing_extensions as te

_WRAPPERS = (te.Required, te.NotRequired, te.Annotated, te.ReadOnly)
_DEPTH = 6  # of a sample; deeper objects have only what they must have


class Sample(NamedTuple):
    """name: the TypedDict's. value: with every field that the type knows."""

    name: str
    value: dict[str, Any]


def fields_of(params: Any) -> dict[str, Any]:
    """Field -> type of a TypedDict."""
    return {name: _bare(hint) for name, hint in te.get_type_hints(params, include_extras=True).items()}


def kinds_of(hint: Any) -> Iterator[Sample]:
    """A sample of each TypedDict in a union, or in a list of a union."""
    for member in _members(hint):
        if te.is_typeddict(member):
            yield Sample(member.__name__, _sample(member, _DEPTH))
        elif te.get_origin(member) not in (None, dict, te.Literal):
            for inner in te.get_args(member):
                yield from kinds_of(inner)


def sample_of(hint: Any) -> Any:
    return _sample(hint, _DEPTH)


def _bare(hint: Any) -> Any:
    while te.get_origin(hint) in _WRAPPERS:
        hint = te.get_args(hint)[0]
    return hint


def _members(hint: Any) -> Iterator[Any]:
    hint = _bare(hint)
    if te.get_origin(hint) in (typing.Union, types.UnionType):
        for each in te.get_args(hint):
            yield from _members(each)
    else:
        yield hint


def _sample(hint: Any, depth: int) -> Any:
    """A value of the first member of a union, with all optional fields while `depth` lasts."""
    member = next(each for each in _members(hint) if each is not type(None))
    origin, arguments = te.get_origin(member), te.get_args(member)
    if te.is_typeddict(member):
        hints = fields_of(member)
        return {
            name: _sample(each, depth - 1)
            for name, each in hints.items()
            if depth > 0 or name in member.__required_keys__
        }
    if origin is te.Literal:
        return arguments[0]
    if origin is dict or member in (dict, object, Any):
        return {}
    if origin is not None:
        return [_sample(arguments[0], depth - 1)] if depth > 0 else []
    return {str: "x", int: 1, float: 1.0, bool: True}.get(member, "x")
