"""Objects that say their kind in `type`, of which a server takes some. What it does not take is refused by its kind,
never by a field that only that kind has."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, get_args, get_origin

import msgspec

from appliance.requests.errors import ApiError, invalid

_SHOWN_KIND = 60
_STEP = re.compile(r"[^.\[\]]+|(?<=\[)\.\.\.(?=\])")


@dataclass(frozen=True, slots=True)
class Kinds:
    """The kinds of one struct, which has them as its class variable `kinds`.

    noun: with its article. served: None in it is an object without `type`. reasons: why a kind is not served, by a
    pattern of its whole name; the first pattern that matches counts.
    """

    noun: str
    served: frozenset[str | None]
    reasons: Mapping[str, str] = field(default_factory=dict)

    def check(self, kind: str | None, where: str) -> None:
        """Raises ApiError 400 at `where`.type for a kind that is not served."""
        if kind not in self.served:
            raise self.refusal(kind, where)

    def refusal(self, kind: object, where: str) -> ApiError:
        name = str(kind)[:_SHOWN_KIND]
        reason = next((why for pattern, why in self.reasons.items() if re.fullmatch(pattern, name)), None)
        if reason is None:
            reason = f"is not in this version; served here: {', '.join(sorted(filter(None, self.served)))}"
        return invalid(f"{where}.type", f"{where}: {self.noun} of type {name!r} {reason}", "unsupported_parameter")


def steps_of(path: str) -> list[str]:
    """The names and numbers of a path as msgspec writes it; `...` stands for every value of a map."""
    return _STEP.findall(path)


def unserved_kind(value: Any, expected: Any, path: str) -> ApiError | None:
    """The refusal of the outermost object on `path` whose kind is not served; None where all are.

    value: decoded JSON that is not of the type `expected`, which is wrong at `path`.
    """
    for where, each, struct in _objects(value, expected, path):
        kinds: Kinds | None = getattr(struct, "kinds", None)
        if kinds is not None and isinstance(kind := each.get("type"), str) and kind not in kinds.served:
            return kinds.refusal(kind, where)
    return None


def _objects(value: Any, expected: Any, path: str) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """The objects on the path that are to become structs, outermost first: place, value, struct."""
    where = ""
    for step in steps_of(path):
        if isinstance(value, list) and step.isdigit():
            value, expected, where = value[int(step)], _item_type(expected), f"{where}[{step}]"
        elif isinstance(value, dict) and step in value:
            value, expected = value[step], _field_types(_struct_type(expected)).get(step)
            where = f"{where}.{step}" if where else step
        else:
            return
        if isinstance(value, dict) and (struct := _struct_type(expected)) is not None:
            yield where, value, struct


def _choices(expected: Any) -> tuple[Any, ...]:
    """The members of a union; a type alone is its own."""
    is_plain = expected is None or isinstance(expected, type) or get_origin(expected) is list
    return (expected,) if is_plain else get_args(expected)


def _struct_type(expected: Any) -> type[msgspec.Struct] | None:
    structs = (each for each in _choices(expected) if isinstance(each, type) and issubclass(each, msgspec.Struct))
    return next(structs, None)


def _item_type(expected: Any) -> Any:
    lists = (each for each in _choices(expected) if get_origin(each) is list)
    return next((get_args(each)[0] for each in lists), None)


@cache
def _field_types(struct: type[msgspec.Struct] | None) -> dict[str, Any]:
    if struct is None:
        return {}
    return {each.encode_name: each.type for each in msgspec.structs.fields(struct)}
