"""The scalar types of the spec. Each describes its values in JSON Schema and in words."""

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from annotated_types import Ge, Gt, Le, MinLen
from pydantic import BeforeValidator, StringConstraints, WithJsonSchema

from appliance.base import units

T = TypeVar("T")


class Words:
    """The values of a type in words, for `allowed:` lines and the reference."""

    def __init__(self, text: str) -> None:
        self.text = text


def _reader(parse: Callable[[str], Any], form: str, *, bare: bool) -> BeforeValidator:
    """Returns a validator that reads strings with `parse`, and bare numbers if `bare`. Refusals name `form`."""

    def read(value: Any) -> Any:
        if isinstance(value, str):
            return parse(value)
        if bare and isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            raise ValueError(f"{value} has no unit")
        raise ValueError(f"expected {form}")

    return BeforeValidator(read)


def _schema(kind: str, pattern: str) -> WithJsonSchema:
    text: dict[str, Any] = {"type": "string", "pattern": pattern}
    return WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, text]} if kind == "integer" else text)


def _check_dotted_path(value: Any) -> Any:
    if isinstance(value, str) and not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+([:][A-Za-z_]\w*)?", value):
        raise ValueError(f"{value!r} is no dotted path")
    return value


Auto: TypeAlias = T | Literal["auto"]

PositiveInt = Annotated[int, Ge(1), Words("an integer of at least 1")]
NonNegativeInt = Annotated[int, Ge(0), Words("an integer of at least 0")]
RankCount = Annotated[int, Ge(1), Le(4096), Words("an integer of 1 to 4096")]
Port = Annotated[int, Ge(1), Le(65535), Words("a port: 1 to 65535")]
Fraction = Annotated[float, Gt(0), Le(1), Words("a number above 0 and at most 1")]
PositiveFloat = Annotated[float, Gt(0), Words("a number above 0")]
NonNegativeFloat = Annotated[float, Ge(0), Words("a number of at least 0")]
Text = Annotated[str, MinLen(1), Words("a string that is not empty")]
DottedPath = Annotated[Text, BeforeValidator(_check_dotted_path), Words("a dotted path: package.module.Name")]

Name = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"),
    Words("small letters, digits and inner dashes, at most 63: a host name label"),
]
ModelName = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@+-]{0,127}$"),
    Words("letters, digits and . _ / : @ + - (at most 128), as sent in the `model` of a request"),
]
ServerLabel = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,63}$"),
    Words("letters, digits and . _ : - (at most 64), as sent in the `server_label` of a request"),
]
Sha256 = Annotated[
    str, StringConstraints(pattern=r"^[0-9a-f]{64}$"), Words("a SHA-256 digest: 64 small hexadecimal digits")
]
KeyHash = Annotated[
    str,
    StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$"),
    Words("sha256: and 64 small hexadecimal digits"),
]
HttpUrl = Annotated[str, StringConstraints(pattern=r"^https?://[^\s/]+"), Words("an http:// or https:// address")]

Count = Annotated[
    int,
    Ge(1),
    _reader(units.parse_count, units.COUNT_FORM, bare=True),
    _schema("integer", units.COUNT_PATTERN),
    Words(units.COUNT_FORM),
]
Size = Annotated[
    int,
    _reader(units.parse_size, units.SIZE_FORM, bare=False),
    _schema("string", units.SIZE_PATTERN),
    Words(units.SIZE_FORM),
]
Duration = Annotated[
    float,
    _reader(units.parse_duration, units.DURATION_FORM, bare=False),
    _schema("string", units.DURATION_PATTERN),
    Words(units.DURATION_FORM),
]
