"""Every number of every body, in every dialect, with values that no honest client sends.

The fields are read from the structs that the bodies are decoded into, so a new one is covered by itself.
"""

import json
import types
from collections.abc import Iterator
from typing import Any, NamedTuple, Union, get_args, get_origin

import httpx
import msgspec
import pytest

from appliance.server.http.openapi import BODIES as STRUCTS
from appliance.server.http.routes import ROUTES
from tests.server.harness import Server
from tests.server.test_bad_requests import BODIES, OF_ADAPTERS, OF_EXTENSIONS, OF_WEIGHTS, SET_SCALES

VALUES: dict[str, str] = {
    "2**31": str(2**31), "2**32+1": str(2**32 + 1), "2**53+1": str(2**53 + 1), "2**63": str(2**63),
    "2**70": str(2**70), "-2**31-1": str(-(2**31) - 1), "-2**63": str(-(2**63)), "-2**70": str(-(2**70)),
    "1e308": "1e308", "-1e308": "-1e308", "1e-320": "1e-320", "1e400": "1e400", "NaN": "NaN", "Infinity": "Infinity",
    "text NaN": '"NaN"', "text 1": '"1"', "0": "0", "-1": "-1", "-0.0": "-0.0", "true": "true", "half": "0.5",
    "10**4000": "1" + "0" * 4000,
}  # fmt: skip
_NESTED = 3


class Field(NamedTuple):
    """A number in a body: its route, and its names from the outside in; `[]` is an item of a list, `{}` of a map."""

    path: str
    steps: tuple[str, ...]


def numbers(hint: Any, steps: tuple[str, ...], depth: int = _NESTED) -> Iterator[tuple[str, ...]]:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in (int, float):
        yield steps
    elif isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        for each in msgspec.structs.fields(hint) if depth else ():
            yield from numbers(each.type, (*steps, each.encode_name), depth - 1)
    elif origin in (Union, types.UnionType):
        for member in arguments:
            yield from numbers(member, steps, depth)
    elif origin is list:
        yield from numbers(arguments[0], (*steps, "[]"), depth)
    elif origin is dict:
        yield from numbers(arguments[1], (*steps, "{}"), depth)


POOLING = {route.path for route in ROUTES if route.does == "pool"}  # refused before their bodies are read
OFF = (*OF_ADAPTERS, *OF_EXTENSIONS, *OF_WEIGHTS, SET_SCALES)
SERVED = {path: struct for path, struct in STRUCTS.items() if path not in (*POOLING, *OFF)}
FIELDS = sorted({Field(path, steps) for path, struct in SERVED.items() for steps in numbers(struct, ())})
PLACEHOLDER = "the value"


def body_with(field: Field, text: str) -> bytes:
    """The route's body with the number's JSON text in its place."""
    value: Any = PLACEHOLDER
    for step in reversed(field.steps):
        value = [value] if step == "[]" else {"5": value} if step == "{}" else {step: value}
    whole = merged(BODIES[field.path], value)
    return json.dumps(whole).replace(json.dumps(PLACEHOLDER), text).encode()


def merged(body: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """`change` wins; objects that both have, and the first items of lists, are joined."""
    joined = dict(body)
    for name, value in change.items():
        old = body.get(name)
        if isinstance(value, dict) and isinstance(old, dict):
            value = merged(old, value)
        elif isinstance(value, list) and isinstance(old, list) and isinstance(value[0], dict):
            value = [merged(old[0], value[0])]
        joined[name] = value
    return joined


def test_there_are_numbers_of_every_route() -> None:
    assert {field.path for field in FIELDS} >= set(SERVED) - {"/tokenize"}
    assert len(FIELDS) > 140


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: f"{field.path} {'.'.join(field.steps)}")
def test_no_number_ends_more_than_its_request(server: Server, http: httpx.Client, field: Field) -> None:
    for name, text in VALUES.items():
        answer = http.post(field.path, content=body_with(field, text), headers={"content-type": "application/json"})
        assert answer.status_code < 500, (name, answer.text)
        if answer.status_code == 400:
            error = answer.json()["error"]
            said = f"{error.get('param')} {error['message']}"
            plain = next(step for step in reversed(field.steps) if step not in ("[]", "{}"))
            assert plain in said or "JSON" in said or field.steps[0] in said, (name, error)
    assert http.get("/readyz").json()["restarts"] == 0
