"""Reads GGUF headers (versions 2 and 3), by the specification in ggml's docs/gguf.md.

Files are not trusted: every length is checked against the file before it is used, and counts are bounded, so that a
broken file gives a CheckpointError and never a crash or a huge allocation.
"""

import mmap
import struct
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import Storage
from appliance.checkpoint.gguf_values import Cursor, LazyArray, MetadataValue
from appliance.checkpoint.lfs import POINTER_BYTES, refuse_pointer
from appliance.checkpoint.storage import BLOCKS, GGML_TYPES, UNREAD_GGML_TYPES, stored_bytes

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
MAX_ENTRIES: Final = 1 << 17  # metadata keys, and tensors: a hundred times what real files hold
MAX_DIMENSIONS: Final = 4
MAX_ALIGNMENT: Final = 1 << 16
MAX_NAME_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor of the file. shape is row-major (ggml stores the innermost dimension first; here it is last)."""

    name: str
    shape: tuple[int, ...]
    storage: Storage
    offset_bytes: int  # from the start of the file
    size_bytes: int


class GgufFile:
    """An open GGUF header. Large arrays in `metadata` are LazyArray views that stay valid until `close`."""

    def __init__(self, path: Path) -> None:
        """Reads the header. Raises CheckpointError if this reader does not understand the file."""
        self.path = path
        self._map = _map_file(path)
        try:
            cursor = Cursor(self._map, path.name)
            refuse_pointer(path.name, self._map[:POINTER_BYTES])
            self.version, num_tensors, num_entries = _preamble(cursor)
            self.metadata: dict[str, MetadataValue] = _metadata(cursor, num_entries)
            self.alignment = _alignment(cursor, self.metadata)
            self.tensors, self.header_bytes = _tensors(cursor, num_tensors, self.alignment)
        except BaseException:
            self.close()
            raise

    @property
    def header(self) -> memoryview:
        """Returns all bytes that were read here. Release the view before `close`."""
        return memoryview(self._map)[: self.header_bytes]

    def read(self, tensor: GgufTensor) -> bytes:
        """Returns a copy of one tensor's bytes, for the few small tensors that are really metadata."""
        return self._map[tensor.offset_bytes : tensor.offset_bytes + tensor.size_bytes]

    def close(self) -> None:
        self._map.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _map_file(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError as error:
        raise CheckpointError(path.name, "the file is empty") from error
    except OSError as error:
        raise CheckpointError(path.name, f"cannot be opened: {error.strerror}") from error


def _preamble(cursor: Cursor) -> tuple[int, int, int]:
    """Reads the version, the number of tensors and the number of metadata entries."""
    if (magic := cursor.take(4)) != MAGIC:
        raise cursor.error(f"not a GGUF file: it starts with {magic!r}, not {MAGIC!r}")
    version = cursor.u32()
    if version not in VERSIONS:
        if struct.unpack(">I", struct.pack("<I", version))[0] in VERSIONS:
            raise cursor.error("a big-endian GGUF file", "convert it again on a little-endian machine")
        raise cursor.error(
            f"GGUF version {version} is not read here", f"versions {VERSIONS} are; convert the model again"
        )
    num_tensors, num_entries = cursor.u64(), cursor.u64()
    for count, noun in ((num_tensors, "tensors"), (num_entries, "metadata entries")):
        if count > MAX_ENTRIES:
            raise cursor.error(f"claims {count} {noun}; at most {MAX_ENTRIES} are read")
    return version, num_tensors, num_entries


def _metadata(cursor: Cursor, num_entries: int) -> dict[str, MetadataValue]:
    metadata: dict[str, MetadataValue] = {}
    for _ in range(num_entries):
        key = cursor.string(MAX_NAME_BYTES)
        if key in metadata:
            raise cursor.error(f"metadata key {key!r} appears twice")
        metadata[key] = cursor.value(cursor.u32())
    return metadata


def _alignment(cursor: Cursor, metadata: dict[str, MetadataValue]) -> int:
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise cursor.error(f"general.alignment is {alignment!r}; a power of two up to {MAX_ALIGNMENT} is expected")
    return alignment


def _tensors(cursor: Cursor, count: int, alignment: int) -> tuple[tuple[GgufTensor, ...], int]:
    """Reads the tensor directory with absolute offsets, and returns it and the header's length."""
    relative = [_tensor(cursor) for _ in range(count)]
    start = -(-cursor.position // alignment) * alignment
    tensors, names = [], set()
    for tensor in relative:
        if tensor.name in names:
            raise cursor.error(f"tensor {tensor.name!r} appears twice")
        names.add(tensor.name)
        if tensor.offset_bytes % alignment:
            raise cursor.error(f"tensor {tensor.name!r} starts at {tensor.offset_bytes}, not a multiple of {alignment}")
        begin = start + tensor.offset_bytes
        if begin + tensor.size_bytes > cursor.size:
            missing = begin + tensor.size_bytes - cursor.size
            raise cursor.error(
                f"tensor {tensor.name!r} ends {missing} bytes after the end of the file",
                "the download is incomplete; pull it again",
            )
        tensors.append(GgufTensor(tensor.name, tensor.shape, tensor.storage, begin, tensor.size_bytes))
    _check_overlap(cursor, tensors)
    return tuple(tensors), cursor.position


def _tensor(cursor: Cursor) -> GgufTensor:
    """Reads one directory entry; its offset is still relative to the data section."""
    name = cursor.string(MAX_NAME_BYTES)
    num_dimensions = cursor.u32()
    if not 0 < num_dimensions <= MAX_DIMENSIONS:
        raise cursor.error(f"tensor {name!r} has {num_dimensions} dimensions; 1 to {MAX_DIMENSIONS} are read")
    shape = tuple(reversed([cursor.u64() for _ in range(num_dimensions)]))
    storage = _storage(cursor, name, cursor.u32())
    offset = cursor.u64()
    if any(not 0 < size <= cursor.size * BLOCKS[storage][0] for size in shape):
        raise cursor.error(f"tensor {name!r} has the impossible shape {shape}")
    try:
        size = stored_bytes(storage, shape)
    except ValueError as error:
        raise cursor.error(f"tensor {name!r}: {error}") from error
    return GgufTensor(name, shape, storage, offset, size)


def _storage(cursor: Cursor, name: str, number: int) -> Storage:
    if number in GGML_TYPES:
        return GGML_TYPES[number]
    label = UNREAD_GGML_TYPES.get(number, f"number {number}")
    readable = ", ".join(sorted(GGML_TYPES.values()))
    raise cursor.error(f"tensor {name!r} has the type {label}, which is not in this version", f"readable: {readable}")


def _check_overlap(cursor: Cursor, tensors: list[GgufTensor]) -> None:
    ordered = sorted(tensors, key=lambda tensor: tensor.offset_bytes)
    for before, after in pairwise(ordered):
        if before.offset_bytes + before.size_bytes > after.offset_bytes:
            raise cursor.error(f"tensors {before.name!r} and {after.name!r} overlap")


def open_gguf(path: Path) -> GgufFile:
    """Read the header of one GGUF file; use it as a context manager."""
    return GgufFile(path)


def plain(value: MetadataValue) -> Any:
    """Returns the value, with a lazy array turned into a list."""
    return value.tolist() if isinstance(value, LazyArray) else value
