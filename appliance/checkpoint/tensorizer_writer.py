"""Writes a file of tensorizer, plain or encrypted, piece by piece, which the library reads as well as we do.

A plain tensor has its SHA-256, as the library writes it. An encrypted one has none, as anybody who guesses its bytes
could check the guess by it.
"""

import hashlib
import secrets
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, Final, NamedTuple

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import Storage, TensorFacts
from appliance.checkpoint.reader import TensorSource
from appliance.checkpoint.tensorizer import MAGIC
from appliance.checkpoint.tensorizer_key import Sealer
from appliance.checkpoint.tensorizer_seal import (
    ARGON2ID,
    DERIVES,
    LONG_SIZE,
    MAC_BYTES,
    NONCE_BYTES,
    PIECES,
    nth_nonce,
)

PIECE_BYTES: Final = 2 << 20  # the library's
DTYPES: Final[dict[Storage, str]] = {
    "f64": "<f8", "f32": "<f4", "f16": "<f2", "i8": "|i1", "i16": "<i2", "i32": "<i4", "i64": "<i8", "u8": "|u1",
    "bool": "|b1", "bf16": "<V2\0torch.bfloat16", "f8_e4m3": "|V1\0torch.float8_e4m3fn",
    "f8_e5m2": "|V1\0torch.float8_e5m2",
}  # fmt: skip
_PLAIN, _OPAQUE, _ENCRYPTED = 1, 2, 3  # versions: the least that has what the file needs
_STATE: Final = 2  # the kind of a tensor that is of no module
_SHA256: Final = 1
_SHA256_BYTES: Final = 32
_MOST_NAME_BYTES: Final = 0xFFFF

Advance = Callable[[int], object]


class _Place(NamedTuple):
    tensor: TensorFacts
    header: int
    start: int


def write_tensors(
    file: BinaryIO, tensors: Sequence[TensorFacts], source: TensorSource, sealer: Sealer | None, advance: Advance
) -> None:
    """Writes the whole file. sealer: encrypts it. advance: gets the bytes of each tensor that is written.

    Raises CheckpointError for a tensor that has no place in one, what `source` raises, and OSError.
    """
    for tensor in tensors:
        _check(tensor)
    index_bytes = sum(len(_entry(_Place(tensor, 0, 0))) for tensor in tensors)
    at, places = len(MAGIC) + 4 + 32 + 24 + 8 + index_bytes, []
    for tensor in tensors:
        start = at + len(_header(tensor, _blank(tensor, sealer), sealer))
        places.append(_Place(tensor, at, start))
        at = start + tensor.size_bytes
    is_opaque = any("\0" in DTYPES[tensor.storage] for tensor in tensors)
    version = _ENCRYPTED if sealer is not None else _OPAQUE if is_opaque else _PLAIN
    total = sum(tensor.size_bytes for tensor in tensors)
    file.write(MAGIC + struct.pack("<I32xQ8xQQ", version, total, len(tensors), index_bytes))
    for place in places:
        file.write(_entry(place))
    for place in places:
        _write(file, place, _pieces(place.tensor, source), sealer)
        advance(place.tensor.size_bytes)
    file.write(bytes(8))  # the size of a header that is none: the end


def _pieces(tensor: TensorFacts, source: TensorSource) -> Iterator[bytes]:
    """Yields a tensor in pieces of PIECE_BYTES, and lets each go before the next."""
    for start in range(0, tensor.size_bytes, PIECE_BYTES):
        stop = min(start + PIECE_BYTES, tensor.size_bytes)
        yield source.read(tensor.name)[start:stop].tobytes()
        source.release(tensor.name, start, stop)


def _check(tensor: TensorFacts) -> None:
    if tensor.storage not in DTYPES:
        problem = f"tensor {tensor.name!r} is stored as {tensor.storage}, which tensorizer has no type for"
        raise CheckpointError(tensor.file, problem, f"written: {', '.join(DTYPES)}")
    if any(size >= LONG_SIZE for size in tensor.shape) or len(tensor.stored_name.encode()) > _MOST_NAME_BYTES:
        raise CheckpointError(tensor.file, f"tensor {tensor.name[:60]!r} has a size or a name that is not written")


def _write(file: BinaryIO, place: _Place, pieces: Iterator[bytes], sealer: Sealer | None) -> None:
    """Writes the bytes of a tensor, and then its header before them, which has what was found out meanwhile."""
    tensor, proof = place.tensor, _blank(place.tensor, sealer)
    file.seek(place.start)
    if sealer is None:
        digest = hashlib.sha256(_header(tensor, proof, sealer))
        for piece in pieces:
            digest.update(piece)
            file.write(piece)
        proof = digest.digest()
    elif tensor.size_bytes:
        first, macs = secrets.token_bytes(NONCE_BYTES), bytearray()
        for number, piece in enumerate(pieces):
            mac, sealed = sealer.sealed(piece, nth_nonce(first, number))
            macs += mac
            file.write(sealed)
        proof = first + macs
    file.seek(place.header)
    file.write(_header(tensor, proof, sealer))
    file.seek(place.start + tensor.size_bytes)


def _blank(tensor: TensorFacts, sealer: Sealer | None) -> bytes:
    """Returns what stands for a digest, or for a nonce and the MACs, before they are known."""
    return bytes(_SHA256_BYTES if sealer is None else NONCE_BYTES + -(-tensor.size_bytes // PIECE_BYTES) * MAC_BYTES)


def _described(tensor: TensorFacts) -> bytes:
    dtype, shape = DTYPES[tensor.storage].encode(), tensor.shape
    return struct.pack(f"<B{len(dtype)}sB{len(shape)}I", len(dtype), dtype, len(shape), *shape)


def _entry(place: _Place) -> bytes:
    name = place.tensor.stored_name.encode()
    ends = struct.pack("<QQQ", place.header, place.start, place.tensor.size_bytes)
    return struct.pack("<H", len(name)) + name + bytes([_STATE]) + _described(place.tensor) + ends


def _header(tensor: TensorFacts, proof: bytes, sealer: Sealer | None) -> bytes:
    """proof: the digest, or the first nonce and the MACs."""
    name = tensor.stored_name.encode()
    hashes = b"\0" if sealer is not None else struct.pack("<BBB", 1, _SHA256, len(proof)) + proof
    body = struct.pack("<HBH", 0, _STATE, len(name)) + name + _described(tensor)
    body += struct.pack("<H", len(hashes)) + hashes
    if sealer is not None:
        body += _part(_records(tensor, proof, sealer))
    body += struct.pack("<q", tensor.size_bytes)
    return struct.pack("<Q", len(body) + 8) + body


def _records(tensor: TensorFacts, proof: bytes, sealer: Sealer) -> bytes:
    if not tensor.size_bytes:  # there is nothing to be opened
        return struct.pack("<H", 0)
    nonce, macs = proof[:NONCE_BYTES], proof[NONCE_BYTES:]
    records = [struct.pack("<HQ", PIECES, PIECE_BYTES) + nonce + struct.pack("<Q", len(macs) // MAC_BYTES) + macs]
    if (made := sealer.derivation) is not None:
        numbers = struct.pack("<HHQQi", DERIVES, 1, made.passes, made.memory_bytes, ARGON2ID)
        records.insert(0, numbers + struct.pack("<H", len(made.salt)) + made.salt)
    return struct.pack("<H", len(records)) + b"".join(map(_part, records))


def _part(raw: bytes) -> bytes:
    return struct.pack("<Q", len(raw)) + raw
