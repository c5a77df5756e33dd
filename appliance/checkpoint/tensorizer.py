"""Reads the index of a file of CoreWeave's tensorizer: where each tensor lies, which is then mapped like any other.

The library reads tensors into torch, which a server on a CPU does not import; the index tells the same places.
Layout: magic, version, flags, sizes, then of each tensor its name, kind, dtype, shape, and the places of its header and
of its bytes. The index of an encrypted file is plain: its tensors are known without the key.
"""

import os
import struct
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import Storage, TensorFacts
from appliance.checkpoint.safetensors import MAX_DIMENSIONS, MAX_HEADER_BYTES, is_size
from appliance.checkpoint.storage import stored_bytes

FORM: Final = "tensorizer"
PATTERN: Final = "*.tensors"
MAGIC: Final = b"|TZR|"
_HEAD: Final = struct.Struct("<I32sQ8xQ")  # version, flags, size, number of tensors
_LENGTH: Final = struct.Struct("<Q")
_PLACE: Final = struct.Struct("<QQQ")  # of the tensor's own header, of its bytes, their number
_NEWEST, _ENCRYPTS, _HAS_FLAGS, _LONG_SHAPES = 5, 3, 4, 5  # versions
_ENCRYPTED, _VERSIONED = 1, 2  # flags
_BUFFER: Final = 1  # the kind of a module's buffer
_COMPUTED: Final = "inv_freq"  # how rotary buffers end, which are written with a module and computed by its decoder
_PATH_MARK: Final = 0x1E  # a name that is a path through a structure
_STORAGES: Final[dict[str, Storage]] = {
    "<f8": "f64", "<f4": "f32", "<f2": "f16", "|i1": "i8", "<i2": "i16", "<i4": "i32", "<i8": "i64", "|u1": "u8",
    "|b1": "bool", "torch.bfloat16": "bf16", "torch.float8_e4m3fn": "f8_e4m3", "torch.float8_e5m2": "f8_e5m2",
}  # fmt: skip


class _Index(NamedTuple):
    file: str
    raw: bytes
    num_tensors: int
    is_versioned: bool  # each entry begins with the version that it is written in
    is_encrypted: bool
    file_size: int


class _Entry(NamedTuple):
    name: str
    kind: int
    dtype: str
    shape: tuple[int, ...]
    header: int
    offset: int
    size: int


def read_tensors(root: Path) -> tuple[tuple[TensorFacts, ...], list[bytes]]:
    """Reads the tensors of a folder's one file, and its index. Raises CheckpointError."""
    names = sorted(path.name for path in root.glob(PATTERN))
    if len(names) != 1:
        found = f"{len(names)} files {PATTERN}" if names else f"there is no file {PATTERN}"
        raise CheckpointError(root.name, found, "a folder has config.json and one file of tensorizer")
    try:
        with (root / names[0]).open("rb") as file:
            index = _read_index(names[0], file)
    except OSError as error:
        raise CheckpointError(names[0], f"cannot be read: {error.strerror}") from error
    try:
        entries = _entries(index)
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise CheckpointError(index.file, f"the index is broken: {error}") from error
    kept = [each for each in entries if not (each.kind == _BUFFER and each.name.endswith(_COMPUTED))]
    if len({each.name for each in kept}) != len(kept):
        raise CheckpointError(index.file, "two tensors have one name")
    return tuple(_tensor(index, each) for each in kept), [index.raw]


def _read_index(name: str, file: BinaryIO) -> _Index:
    if file.read(len(MAGIC)) != MAGIC:
        raise CheckpointError(name, "is no file of tensorizer")
    head = file.read(_HEAD.size + _LENGTH.size)
    if len(head) < _HEAD.size + _LENGTH.size:
        raise CheckpointError(name, "ends in its header", "pull it again")
    version, flag_bytes, _, num_tensors = _HEAD.unpack_from(head)
    flags = int.from_bytes(flag_bytes, "little") if version >= _HAS_FLAGS else 0
    if not 1 <= version <= _NEWEST or flags & ~(_ENCRYPTED | _VERSIONED):
        raise CheckpointError(name, f"is of version {version}, flags {flags:#x}, which are not in this version")
    length, size = _LENGTH.unpack_from(head, _HEAD.size)[0], os.fstat(file.fileno()).st_size
    if not 0 < length <= min(size, MAX_HEADER_BYTES):
        raise CheckpointError(name, f"claims an index of {length} bytes in a file of {size}", "pull it again")
    is_encrypted = version == _ENCRYPTS or bool(flags & _ENCRYPTED)
    return _Index(name, file.read(length), num_tensors, bool(flags & _VERSIONED), is_encrypted, size)


def _entries(index: _Index) -> list[_Entry]:
    """Reads the entries. Raises CheckpointError, or what reading beyond the index raises."""
    found, at = [], 0
    for _ in range(index.num_tensors):
        is_long = False
        if index.is_versioned:
            is_long, at = struct.unpack_from("<I", index.raw, at)[0] >= _LONG_SHAPES, at + 4
        name, at = _text(index.raw, at, "<H")
        kind = index.raw[at]
        dtype, at = _text(index.raw, at + 1, "<B")
        num_sizes, form = index.raw[at], "Q" if is_long else "I"
        shape = struct.unpack_from(f"<{num_sizes}{form}", index.raw, at + 1)
        at += 1 + struct.calcsize(f"<{num_sizes}{form}")
        header, offset, size = _PLACE.unpack_from(index.raw, at)
        at += _PLACE.size
        if name and ord(name[0]) == _PATH_MARK:
            raise CheckpointError(index.file, f"{name[1:60]} is a path, and not the name of a model's tensor")
        found.append(_Entry(name, kind, dtype, shape, header, offset, size))
    return found


def _text(raw: bytes, at: int, length_form: str) -> tuple[str, int]:
    start = at + struct.calcsize(length_form)
    stop = start + struct.unpack_from(length_form, raw, at)[0]
    if stop > len(raw):
        raise IndexError("a text ends after it")
    return raw[start:stop].decode(), stop


def _tensor(index: _Index, entry: _Entry) -> TensorFacts:
    stored_as = entry.dtype.partition("\0")[2] or entry.dtype  # what NumPy has no type for has torch's name behind
    storage = _STORAGES.get(stored_as)
    if storage is None:
        problem = f"tensor {entry.name!r} has dtype {stored_as!r}, which is not in this version"
        raise CheckpointError(index.file, problem, f"readable: {', '.join(_STORAGES)}")
    if len(entry.shape) > MAX_DIMENSIONS or not all(map(is_size, (*entry.shape, entry.offset))):
        raise CheckpointError(index.file, f"tensor {entry.name!r} has impossible sizes: shape {entry.shape}")
    expected = stored_bytes(storage, entry.shape)
    if entry.size != expected:
        problem = f"tensor {entry.name!r} of shape {entry.shape} needs {expected} bytes, the index says {entry.size}"
        raise CheckpointError(index.file, problem)
    if entry.offset + entry.size > index.file_size:
        problem = f"tensor {entry.name!r} lies after the end of the file"
        raise CheckpointError(index.file, problem, "the download is incomplete; pull it again")
    is_sealed = index.is_encrypted and entry.size > 0
    if is_sealed and not entry.header < entry.offset:
        raise CheckpointError(index.file, f"tensor {entry.name!r} is encrypted and has no header before it")
    return TensorFacts(
        name=entry.name,
        stored_name=entry.name,
        shape=entry.shape,
        storage=storage,
        file=index.file,
        offset_bytes=entry.offset,
        size_bytes=entry.size,
        sealed_at=entry.header if is_sealed else None,
    )
