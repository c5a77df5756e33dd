"""The printable alphabet in which byte-level vocabularies spell bytes (GPT-2's encoder.py, bytes_to_unicode)."""

_PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in set(_PRINTABLE)]

CHARACTER_OF_BYTE: dict[int, str] = {
    **{byte: chr(byte) for byte in _PRINTABLE},
    **{byte: chr(256 + place) for place, byte in enumerate(_OTHERS)},
}
BYTE_OF_CHARACTER: dict[str, int] = {character: byte for byte, character in CHARACTER_OF_BYTE.items()}


def spelled_bytes(token: str) -> bytes | None:
    """Returns the bytes that a token spells; None if it has a character outside the alphabet."""
    try:
        return bytes([BYTE_OF_CHARACTER[character] for character in token])
    except KeyError:
        return None


def spelled(data: bytes) -> str:
    """Returns the token that spells these bytes."""
    return "".join(CHARACTER_OF_BYTE[byte] for byte in data)
