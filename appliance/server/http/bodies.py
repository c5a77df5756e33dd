"""Request bodies: bounded, typed, and refused with the name of the field that is wrong."""

import asyncio
import re
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from appliance.base.log import fields as log_fields
from appliance.base.log import logger
from appliance.plan.serving_types import ServingPlan
from appliance.requests import degraded
from appliance.requests.errors import ApiError, invalid
from appliance.requests.kinds import steps_of, unserved_kind
from appliance.server.http.encodings import PIECE_BYTES, body_of

_log = logger("server")

T = TypeVar("T")

_PLACE = re.compile(r" - at `(?:key in )?\$\.?(?P<path>[^`]*)`$")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]*)`")
_SHOWN_NAME = 100
UNKNOWN_FIELD = "unknown_parameter"  # the code of the error
IGNORED_FIELDS = "appliance.ignored_fields"  # in a request's scope: names that were left out
MAX_IGNORED = 32
_BODY = "appliance.body"  # in a request's scope: a body that was given back


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The plain bytes of the body.

    Raises ApiError: 413 past the limit, 415 for another content type or an encoding that is not taken, 400 when it
    does not end.
    """
    given_back: bytes | None = request.scope.pop(_BODY, None)
    if given_back is not None:
        return given_back
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in ("application/json", "") and not kind.endswith("+json"):
        raise ApiError(
            415, f"the content type is {kind[:_SHOWN_NAME]!r}; it must be application/json", code="content_type"
        )
    too_large = ApiError(
        413, f"the body is larger than {max_bytes} bytes", code="body_too_large", headers={"Connection": "close"}
    )
    declared = request.headers.get("content-length", "0")
    if declared.isascii() and declared.isdigit() and len(declared) < 20 and int(declared) > max_bytes:
        raise too_large
    packed = body_of(request.headers.getlist("content-encoding"))
    pieces, size = [], 0
    try:
        async for received in request.stream():
            for piece in packed.feed(received):
                size += len(piece)
                if size > max_bytes:
                    raise too_large
                pieces.append(piece)
                if len(piece) >= PIECE_BYTES:
                    await asyncio.sleep(0)  # it was small and becomes large: others have their turn
    except ClientDisconnect as error:
        raise ApiError(400, "the body did not end") from error
    packed.end()
    return b"".join(pieces)


def give_back(request: Request, body: bytes) -> None:
    """The next read_body of this request answers `body`."""
    request.scope[_BODY] = body


def decode_body(body: bytes, decoder: "msgspec.json.Decoder[T]") -> T:
    """Raises ApiError 400 with the field's path as `param`."""
    if not body:
        raise invalid(None, "the body is empty; a JSON object is expected", "invalid_json")
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _wrong_body(error, body, decoder.type) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid(None, f"the body is not JSON: {error}", "invalid_json") from error
    except RecursionError as error:
        raise invalid(None, "the body is nested too deeply", "invalid_json") from error


async def read_fields(serving: ServingPlan, request: Request, decoder: "msgspec.json.Decoder[T]") -> T:
    """Reads the body as the decoder's type. The plan says what an unknown field does: see `_without_unknown`."""
    body = await read_body(request, serving.limits.max_body_bytes)
    try:
        return decode_body(body, decoder)
    except ApiError as error:
        if error.code != UNKNOWN_FIELD or serving.requests.unknown_fields == "error":
            raise
    fields, ignored = _without_unknown(body, decoder)
    request.scope[IGNORED_FIELDS] = ignored
    degraded.note("ignored_field", is_logged=False)
    if serving.requests.unknown_fields == "warn":
        _log.warning("unknown fields of a request are left out", extra=log_fields(names=ignored, path=request.url.path))
    return fields


def _without_unknown(body: bytes, decoder: "msgspec.json.Decoder[T]") -> tuple[T, list[str]]:
    """Takes unknown fields out, one after another. Raises ApiError for whatever else is wrong."""
    value, ignored = msgspec.json.decode(body), list[str]()
    while True:
        try:
            return msgspec.convert(value, decoder.type, strict=True), ignored
        except msgspec.ValidationError as error:
            wrong = wrong_value(error, value, decoder.type)
            found, place = _UNKNOWN.search(_PLACE.sub("", str(error))), _PLACE.search(str(error))
            if found is None or wrong.code != UNKNOWN_FIELD or len(ignored) >= MAX_IGNORED:
                raise wrong from error
            _remove(value, steps_of(place["path"]) if place else [], found["name"])
            ignored.append(wrong.param or "")


def _remove(value: Any, path: list[str], name: str) -> None:
    """Deletes `name` in the objects at `path`: names, numbers of items, and `...` for every value of a map."""
    for number, step in enumerate(path):
        if step == "...":
            for each in list(value.values() if isinstance(value, dict) else value):
                _remove(each, path[number + 1 :], name)
            return
        value = value[int(step)] if isinstance(value, list) else value[step]
    if isinstance(value, dict):
        value.pop(name, None)


def _wrong_body(error: msgspec.ValidationError, body: bytes, expected: Any) -> ApiError:
    """Returns the error of wrong_value. The text after the first error may be no JSON at all."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _wrong_field(str(error))
    return wrong_value(error, value, expected)


def wrong_value(error: msgspec.ValidationError, value: Any, expected: Any) -> ApiError:
    """400 that names what is wrong with `value`, which is not of the type `expected`: a kind that is not served, else
    the field."""
    place = _PLACE.search(str(error))
    return unserved_kind(value, expected, place["path"] if place else "") or _wrong_field(str(error))


def _wrong_field(message: str) -> ApiError:
    place = _PLACE.search(message)
    path = place["path"] if place else ""
    what = message[: place.start()] if place else message
    if found := _UNKNOWN.search(what):
        name = _joined(path, found["name"])
        return invalid(name, f"unknown field {name!r}", UNKNOWN_FIELD)
    if found := _MISSING.search(what):
        name = _joined(path, found["name"])
        return invalid(name, f"the field {name!r} is missing", "missing_required_parameter")
    return invalid(path or None, f"{path}: {what}" if path else what, "invalid_type")


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}"[:_SHOWN_NAME] if path else name[:_SHOWN_NAME]


def json_decoder(kind: type[T]) -> "msgspec.json.Decoder[T]":
    return msgspec.json.Decoder(kind, strict=True)
