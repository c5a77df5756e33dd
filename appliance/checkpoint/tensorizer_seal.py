"""Reads how an encrypted tensor of a file of tensorizer is opened: from its header, which lies before its bytes.

Layout: size, number of the module, kind, name, dtype, shape, hashes, a list of records, number of bytes. A record is
how the key comes from a password (argon2id), or the cipher: XSalsa20 with Poly1305, libsodium's secretbox, by pieces.
"""

import struct
from pathlib import Path
from typing import Final, NamedTuple

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import TensorFacts
from appliance.checkpoint.safetensors import MAX_HEADER_BYTES

NONCE_BYTES: Final = 24
MAC_BYTES: Final = 16
SALT_BYTES: Final = 16
ARGON2ID: Final = 2  # libsodium's number of version 1.3
DERIVES, PIECES, WHOLE = 1, 2, 3  # kinds of records
MIN_PIECE_BYTES: Final = 1024
PIECE_QUANTUM: Final = 64
LONG_SIZE: Final = 1 << 32  # a dimension from which on all are written in 8 bytes
MAX_MEMORY_BYTES: Final = 1 << 31
MAX_WORK_BYTES: Final = 1 << 34  # passes times memory: about 20 s. The library's strongest choice is a quarter of it


class Derivation(NamedTuple):
    """How argon2id makes the key of a password."""

    passes: int
    memory_bytes: int
    salt: bytes


class Seal(NamedTuple):
    """How a tensor is opened: each piece with its MAC, and the nonce that follows the one before. derivation: None
    where the key is no password's."""

    piece_bytes: int
    nonce: bytes
    macs: bytes
    derivation: Derivation | None

    def nonce_of(self, piece: int) -> bytes:
        return nth_nonce(self.nonce, piece)

    def mac_of(self, piece: int) -> bytes:
        return self.macs[piece * MAC_BYTES : (piece + 1) * MAC_BYTES]


def nth_nonce(first: bytes, number: int) -> bytes:
    """Returns the nonce that comes so many after the first: they are counted, as little-endian numbers."""
    return ((int.from_bytes(first, "little") + number) % (1 << 8 * NONCE_BYTES)).to_bytes(NONCE_BYTES, "little")


def read_seal(folder: Path, tensor: TensorFacts) -> Seal:
    """Returns how an encrypted tensor is opened. Raises CheckpointError."""
    assert tensor.sealed_at is not None, "it is encrypted"
    size = tensor.offset_bytes - tensor.sealed_at
    if size > MAX_HEADER_BYTES:
        raise _broken(tensor, f"claims {size} bytes")
    try:
        with (folder / tensor.file).open("rb") as file:
            file.seek(tensor.sealed_at)
            raw = file.read(size)
    except OSError as error:
        raise CheckpointError(tensor.file, f"cannot be read: {error.strerror}") from error
    try:
        return _sealed(tensor, _Reader(raw))
    except struct.error as error:
        raise _broken(tensor, "ends too early") from error


class _Reader:
    """Takes values off the front of bytes. Raises struct.error beyond their end."""

    def __init__(self, raw: bytes) -> None:
        self._raw, self._at = raw, 0

    @property
    def num_left(self) -> int:
        return len(self._raw) - self._at

    def number(self, form: str) -> int:
        size = struct.calcsize(f"<{form}")
        (value,) = struct.unpack(f"<{form}", self.bytes(size))
        return int(value)

    def bytes(self, size: int) -> bytes:
        if size > self.num_left:
            raise struct.error("bytes after the end")
        self._at += size
        return self._raw[self._at - size : self._at]

    def part(self, length_form: str) -> "_Reader":
        """Returns what has its length before it."""
        return _Reader(self.bytes(self.number(length_form)))


def _sealed(tensor: TensorFacts, header: _Reader) -> Seal:
    whole = header.num_left
    if header.number("Q") != whole:
        raise _broken(tensor, "has another size than the index says")
    header.bytes(3)  # the module's number, and the kind
    if header.bytes(header.number("H")) != tensor.stored_name.encode():
        raise _broken(tensor, "is that of another tensor")
    header.part("B")  # dtype
    is_long = any(size >= LONG_SIZE for size in tensor.shape)
    header.bytes(header.number("B") * (8 if is_long else 4))
    header.part("H")  # hashes
    records = header.part("Q")
    header.bytes(8)  # number of the tensor's bytes, which the index has too
    found = [records.part("Q") for _ in range(records.number("H"))]
    by_kind = {record.number("H"): record for record in found}
    ciphers = by_kind.keys() & {PIECES, WHOLE}
    if len(by_kind) != len(found) or len(ciphers) != 1 or by_kind.keys() - {DERIVES, PIECES, WHOLE}:
        raise _broken(tensor, f"has records of the kinds {sorted(by_kind)}, which are not in this version")
    derivation = _derivation(tensor, by_kind[DERIVES]) if DERIVES in by_kind else None
    if WHOLE in ciphers:
        return Seal(tensor.size_bytes, by_kind[WHOLE].bytes(NONCE_BYTES), by_kind[WHOLE].bytes(MAC_BYTES), derivation)
    return _in_pieces(tensor, by_kind[PIECES], derivation)


def _in_pieces(tensor: TensorFacts, record: _Reader, derivation: Derivation | None) -> Seal:
    size, nonce, count = record.number("Q"), record.bytes(NONCE_BYTES), record.number("Q")
    if size < MIN_PIECE_BYTES or size % PIECE_QUANTUM or count != -(-tensor.size_bytes // size):
        raise _broken(tensor, f"has {count} pieces of {size} bytes, and the tensor has {tensor.size_bytes} bytes")
    return Seal(min(size, tensor.size_bytes), nonce, record.bytes(count * MAC_BYTES), derivation)


def _derivation(tensor: TensorFacts, record: _Reader) -> Derivation:
    method, passes, memory, algorithm = (record.number(form) for form in "HQQi")
    salt = record.bytes(record.number("H"))
    if (method, algorithm, len(salt)) != (1, ARGON2ID, SALT_BYTES):
        raise _broken(tensor, "makes its key of a password in a way that is not in this version (read: argon2id)")
    if memory > MAX_MEMORY_BYTES or passes * memory > MAX_WORK_BYTES:
        most = f"at most {MAX_MEMORY_BYTES} bytes, and {MAX_WORK_BYTES} in all passes"
        raise _broken(tensor, f"asks for {passes} passes over {memory} bytes to make the key of a password; {most}")
    return Derivation(passes, memory, salt)


def _broken(tensor: TensorFacts, problem: str) -> CheckpointError:
    return CheckpointError(tensor.file, f"the header of tensor {tensor.name!r} {problem}")
