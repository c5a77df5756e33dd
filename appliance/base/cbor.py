"""Canonical CBOR (RFC 8949, section 4.2) of the few types of which hashes are made."""

from typing import assert_never

CborValue = int | bytes | str | tuple["CborValue", ...] | None

_UNSIGNED, _BYTES, _TEXT, _ARRAY = 0, 2, 3, 4  # major types
_NULL = b"\xf6"


def cbor(value: CborValue) -> bytes:
    """Encodes a value in the one shortest form, as cbor2 does with `canonical=True`. Integers are 0 to 2^64 - 1; raises
    OverflowError for others."""
    match value:
        case None:
            return _NULL
        case int():
            return _head(_UNSIGNED, value)
        case bytes():
            return _head(_BYTES, len(value)) + value
        case str():
            encoded = value.encode()
            return _head(_TEXT, len(encoded)) + encoded
        case tuple():
            return _head(_ARRAY, len(value)) + b"".join(map(cbor, value))
        case _:
            assert_never(value)


def _head(major: int, number: int) -> bytes:
    """Encodes a major type and its number in as few bytes as can be."""
    if 0 <= number < 24:
        return bytes((major << 5 | number,))
    for size_class, size in enumerate((1, 2, 4, 8)):
        if 0 <= number < 1 << 8 * size:
            return bytes((major << 5 | 24 + size_class,)) + number.to_bytes(size, "big")
    raise OverflowError(f"{number} is not an unsigned number of 64 bits")
