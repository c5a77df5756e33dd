"""A file of packed weights: a checked header, then the bytes of each weight as they lie in memory.

0    magic, version of this format, bytes of the header, its sha256, bytes of the file
64   the header: JSON, see Header
...  weights, each aligned to 4096 bytes if it has at least as many, else to 64
"""

import ctypes
import hashlib
import mmap
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from appliance.base.errors import ApplianceError
from appliance.kernels.cpu import abi
from appliance.kernels.cpu.library import Library
from appliance.kernels.cpu.memory import MADV_POPULATE_READ, advise

FORMAT_VERSION = 1
_MAGIC = b"APPLPACK"
_PREAMBLE = struct.Struct("<8sII32sQ8x")
_PAGE, _LINE = mmap.PAGESIZE, 64
_MAX_HEADER_BYTES = 64 << 20
_PIECE = 4 << 20  # bytes written at a time
_UNSYNCED = 64 << 20  # most bytes written but not synced: an engine that ends waits for no more


class PackedFileError(ApplianceError):
    """A file does not hold the wanted weights. It can be written again."""


class Entry(msgspec.Struct, frozen=True):
    """One weight of the file. form: the fields of abi.PackedForm in order; None for f32 numbers in `shape`."""

    name: str
    offset: int
    size: int
    checksum: int
    form: tuple[int, ...] | None = None
    shape: tuple[int, ...] | None = None


class Header(msgspec.Struct, frozen=True):
    key: str  # see PackedCache.key
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class PackedBytes:
    """A weight in memory: the address of its bytes, and their form."""

    name: str
    address: int
    size: int
    form: tuple[int, ...] | None = None
    shape: tuple[int, ...] | None = None


class PackedFile:
    """A mapped file whose every byte was checked. Its pages are shared by all processes that map it."""

    def __init__(self, path: Path, key: str, library: Library, pool: ctypes.c_void_p) -> None:
        """Maps and checks the file. Raises PackedFileError, or OSError if the file cannot be read."""
        with path.open("rb") as file:
            self.size_bytes = os.fstat(file.fileno()).st_size
            header = _read_header(file.read(_PREAMBLE.size), file.read, self.size_bytes)
            if header.key != key:
                raise PackedFileError("it holds other weights")
            self._map = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
        self._map.madvise(mmap.MADV_WILLNEED)
        self._bytes = np.frombuffer(self._map, np.uint8)
        self.entries = {entry.name: entry for entry in header.entries}
        for entry in header.entries:
            self._check(entry, library, pool)

    def address(self, entry: Entry) -> int:
        return int(self._bytes.ctypes.data) + entry.offset

    def floats(self, entry: Entry) -> np.ndarray:
        """Returns an f32 view that keeps the mapping alive."""
        count = entry.size // 4
        return np.frombuffer(self._map, np.float32, count, entry.offset).reshape(entry.shape or (count,))

    def make_private(self) -> None:
        """Lets the mapping be written. A page that is written becomes this process's own; the file stays as it is.
        Raises OSError."""
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mprotect(ctypes.c_void_p(self._bytes.ctypes.data), len(self._map), mmap.PROT_READ | mmap.PROT_WRITE):
            raise OSError(ctypes.get_errno(), "the mapped weights cannot be made writable")

    def forget(self) -> None:
        """Takes no memory for the mapping until it is read again. What was written to it is lost."""
        advise(int(self._bytes.ctypes.data), len(self._map), mmap.MADV_DONTNEED)

    def populate(self) -> None:
        """Reads what is not in memory of the mapping, and waits for it; an older system only begins to."""
        try:
            advise(int(self._bytes.ctypes.data), len(self._map), MADV_POPULATE_READ)
        except OSError:
            self._map.madvise(mmap.MADV_WILLNEED)

    def close(self) -> None:
        """Unmaps the file. Nothing of it may be in use any more."""
        del self._bytes
        self._map.close()

    def _check(self, entry: Entry, library: Library, pool: ctypes.c_void_p) -> None:
        if entry.offset < 0 or entry.size <= 0 or entry.offset + entry.size > self.size_bytes:
            raise PackedFileError(f"{entry.name} lies outside of the file")
        if checksum(library, pool, self.address(entry), entry.size) != entry.checksum:
            raise PackedFileError(f"the bytes of {entry.name} are damaged")


def write_packed(
    descriptor: int, key: str, weights: Sequence[PackedBytes], library: Library, proceed: Callable[[], bool]
) -> None:
    """Fills a file of `packed_size` bytes. Raises InterruptedError when `proceed`, called for every piece, is False."""
    data, places = _layout(key, weights)
    unsynced = 0
    for weight, offset in zip(weights, places, strict=True):
        for start, piece in _pieces(weight):
            if not proceed():
                raise InterruptedError("the engine ends")
            _write(descriptor, piece, offset + start)
            unsynced += len(piece)
            if unsynced >= _UNSYNCED:
                os.fdatasync(descriptor)
                unsynced = 0
    entries = tuple(
        Entry(w.name, offset, w.size, checksum(library, None, w.address, w.size), w.form, w.shape)
        for w, offset in zip(weights, places, strict=True)
    )
    header = _encoded(Header(key, entries), len(data))
    preamble = _PREAMBLE.pack(
        _MAGIC, FORMAT_VERSION, len(header), hashlib.sha256(header).digest(), _end(weights, places)
    )
    os.pwrite(descriptor, preamble + header, 0)


def packed_size(key: str, weights: Sequence[PackedBytes]) -> int:
    """Returns the bytes of the file."""
    return _end(weights, _layout(key, weights)[1])


def checksum(library: Library, pool: ctypes.c_void_p | None, address: int, size: int) -> int:
    """Computes a checksum on the pool's threads, or, with `pool` None, on this thread."""
    result = ctypes.c_uint64()
    library.check(library.functions.appl_checksum(pool, address, size, ctypes.byref(result)), "a checksum")
    return result.value


def _read_header(preamble: bytes, read: Callable[[int], bytes], size_bytes: int) -> Header:
    if len(preamble) < _PREAMBLE.size:
        raise PackedFileError("it is cut off")
    magic, version, length, digest, expected = _PREAMBLE.unpack(preamble)
    if magic != _MAGIC:
        raise PackedFileError("it is no file of packed weights")
    if version != FORMAT_VERSION:
        raise PackedFileError(f"it has format version {version}, not {FORMAT_VERSION}")
    if expected != size_bytes or length > min(size_bytes, _MAX_HEADER_BYTES):
        raise PackedFileError(f"it has {size_bytes} bytes, not {expected}")
    data = read(length)
    if hashlib.sha256(data).digest() != digest:
        raise PackedFileError("its header is damaged")
    return msgspec.json.decode(data, type=Header)


def _layout(key: str, weights: Sequence[PackedBytes]) -> tuple[bytes, list[int]]:
    """Returns the header at its greatest length, and the offset of each weight after it."""
    widest = 2**64 - 1
    draft = Header(key, tuple(Entry(w.name, widest, widest, widest, w.form, w.shape) for w in weights))
    data = msgspec.json.encode(draft)
    end, places = _PREAMBLE.size + len(data), []
    for weight in weights:
        unit = _PAGE if weight.size >= _PAGE else _LINE
        places.append(-(-end // unit) * unit)
        end = places[-1] + weight.size
    return data, places


def _end(weights: Sequence[PackedBytes], places: Sequence[int]) -> int:
    return places[-1] + weights[-1].size


def _encoded(header: Header, size: int) -> bytes:
    return msgspec.json.encode(header).ljust(size)  # JSON may end with spaces


def _pieces(weight: PackedBytes) -> Iterator[tuple[int, memoryview]]:
    view = memoryview((ctypes.c_char * weight.size).from_address(weight.address)).cast("B")
    for start in range(0, weight.size, _PIECE):
        yield start, view[start : start + _PIECE]


def _write(descriptor: int, piece: memoryview, offset: int) -> None:
    written = 0
    while written < len(piece):
        written += os.pwrite(descriptor, piece[written:], offset + written)


def form_fields(form: abi.PackedForm) -> tuple[int, ...]:
    return tuple(int(getattr(form, field[0])) for field in abi.PackedForm._fields_)
