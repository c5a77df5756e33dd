"""Request bodies: bounded, typed, and refused with the name of the field that is wrong."""

import re
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from appliance.server.errors import ApiError, invalid

T = TypeVar("T", bound=msgspec.Struct)

_PLACE = re.compile(r" - at `(?:key in )?\$\.?(?P<path>[^`]*)`$")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]*)`")
_SHOWN_NAME = 100


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Raises ApiError: 413 past the limit, 415 for another content type, 400 when it does not end."""
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
    pieces, size = [], 0
    try:
        async for piece in request.stream():
            size += len(piece)
            if size > max_bytes:
                raise too_large
            pieces.append(piece)
    except ClientDisconnect as error:
        raise ApiError(400, "the body did not end") from error
    return b"".join(pieces)


def decode_body(body: bytes, decoder: "msgspec.json.Decoder[T]") -> T:
    """Raises ApiError 400 with the field's path as `param`."""
    if not body:
        raise invalid(None, "the body is empty; a JSON object is expected", "invalid_json")
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid(None, f"the body is not JSON: {error}", "invalid_json") from error
    except RecursionError as error:
        raise invalid(None, "the body is nested too deeply", "invalid_json") from error


async def read_json(request: Request, max_bytes: int, decoder: "msgspec.json.Decoder[T]") -> T:
    return decode_body(await read_body(request, max_bytes), decoder)


def _wrong_field(message: str) -> ApiError:
    place = _PLACE.search(message)
    path = place["path"] if place else ""
    what = message[: place.start()] if place else message
    if found := _UNKNOWN.search(what):
        name = _joined(path, found["name"])
        return invalid(name, f"unknown field {name!r}", "unknown_parameter")
    if found := _MISSING.search(what):
        name = _joined(path, found["name"])
        return invalid(name, f"the field {name!r} is missing", "missing_required_parameter")
    return invalid(path or None, f"{path}: {what}" if path else what, "invalid_type")


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}"[:_SHOWN_NAME] if path else name[:_SHOWN_NAME]


def json_decoder(kind: type[T]) -> "msgspec.json.Decoder[T]":
    return msgspec.json.Decoder(kind, strict=True)
