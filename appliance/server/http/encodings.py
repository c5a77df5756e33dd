"""Bodies that come compressed: gzip and deflate, never more than a limit of plain bytes, however small the rest is."""

import zlib
from collections.abc import Iterator, Sequence
from typing import Final

from appliance.requests.errors import ApiError, invalid

ACCEPTED: Final = "gzip, deflate"
_WINDOWS: Final = {
    "gzip": 31,
    "x-gzip": 31,
    "deflate": 15,
}  # zlib's wbits: deflate is zlib's own format (RFC 9110, 8.4.1)
PIECE_BYTES: Final = 1 << 20  # plain bytes at once, at most
_SHOWN_NAME: Final = 40


class PlainBody:
    """Passes a body through that is not compressed."""

    def feed(self, piece: bytes) -> Iterator[bytes]:
        yield piece

    def end(self) -> None:
        """The body is whole."""


class CompressedBody:
    """Unpacks a body piece by piece. `name`: of its encoding, for errors."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._unpacker = zlib.decompressobj(_WINDOWS[name])

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Plain bytes, at most PIECE_BYTES at once. Raises ApiError 400 for what is not of this encoding."""
        while piece:
            if self._unpacker.eof:
                raise invalid(None, f"there is more after the end of the {self._name} body", "invalid_encoding")
            try:
                plain = self._unpacker.decompress(piece, PIECE_BYTES)
            except zlib.error as error:
                raise invalid(None, f"the body is not {self._name}: {error}", "invalid_encoding") from error
            piece = self._unpacker.unconsumed_tail or self._unpacker.unused_data
            yield plain

    def end(self) -> None:
        """Raises ApiError 400 for a body that is not whole."""
        if not self._unpacker.eof:
            raise invalid(None, f"the {self._name} body is cut off", "invalid_encoding")


def body_of(encodings: Sequence[str]) -> PlainBody | CompressedBody:
    """`encodings`: the values of Content-Encoding. Raises ApiError 415 for what is not taken."""
    names = [name for value in encodings for part in value.split(",") if (name := part.strip().lower()) != "identity"]
    if not any(names):
        return PlainBody()
    if len(names) > 1 or names[0] not in _WINDOWS:
        named = ", ".join(names)[:_SHOWN_NAME]
        message = f"the content encoding is {named!r}; it must be one of {ACCEPTED}, or absent"
        raise ApiError(415, message, code="content_encoding", headers={"Accept-Encoding": ACCEPTED})
    return CompressedBody(names[0])
