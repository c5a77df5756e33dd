"""Reads GGUF metadata values: a bounds-checked cursor over the mapped header, and arrays that are decoded on use."""

import bisect
import mmap
import struct
from array import array
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Final, overload

from appliance.checkpoint.errors import CheckpointError

STRING: Final = 8
ARRAY: Final = 9

_SCALARS: Final[dict[int, struct.Struct]] = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_U32: Final = _SCALARS[4]
_U64: Final = _SCALARS[10]

Scalar = int | float | bool | str


class LazyArray(Sequence[Any]):
    """An array of numbers or strings in the mapped file, from `start` to `end`. Everything is decoded on use."""

    def __init__(self, data: mmap.mmap, kind: int, count: int, start: int, end: int) -> None:
        self._data = data
        self._kind = kind
        self._count = count
        self._start = start
        self._end = end

    @cached_property
    def _offsets(self) -> "array[int]":
        """The file position of each string's bytes, and one more entry after the last (plus its length word)."""
        offsets, position = array("q", bytes(8 * (self._count + 1))), self._start
        for index in range(self._count):
            offsets[index] = position + 8
            position += 8 + _U64.unpack_from(self._data, position)[0]
        offsets[self._count] = position + 8
        return offsets

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        if not -self._count <= index < self._count:
            raise IndexError(index)
        index %= self._count
        if self._kind == STRING:
            return self._bytes(index).decode("utf-8", "replace")
        scalar = _SCALARS[self._kind]
        return scalar.unpack_from(self._data, self._start + index * scalar.size)[0]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tolist())

    def tolist(self) -> list[Any]:
        """Returns all elements. Undecodable bytes in strings become U+FFFD."""
        if self._kind == STRING:
            return [self._bytes(i).decode("utf-8", "replace") for i in range(self._count)]
        scalar = _SCALARS[self._kind]
        return [value for (value,) in scalar.iter_unpack(self._data[self._start : self._end])]

    def find(self, text: str) -> int | None:
        """Returns the index of the first string equal to `text`, by a byte search; None if there is none."""
        if self._kind != STRING:
            raise TypeError("only an array of strings can be searched")
        wanted = text.encode()
        needle, begin = _U64.pack(len(wanted)) + wanted, self._start
        while (place := self._data.find(needle, begin, self._end)) >= 0:
            index = bisect.bisect_left(self._offsets, place + 8)
            if self._offsets[index] == place + 8:
                return index
            begin = place + 1
        return None

    def _bytes(self, index: int) -> bytes:
        return self._data[self._offsets[index] : self._offsets[index + 1] - 8]


MetadataValue = Scalar | LazyArray


class Cursor:
    """A read position that never leaves the file. Every method raises CheckpointError at the file's end."""

    def __init__(self, data: mmap.mmap, where: str) -> None:
        self._data = data
        self._where = where
        self.size = len(data)
        self.position = 0

    def error(self, problem: str, hint: str | None = None) -> CheckpointError:
        return CheckpointError(self._where, problem, hint)

    def take(self, count: int) -> bytes:
        return self._data[self._advance(count) : self.position]

    def u32(self) -> int:
        return int(_U32.unpack_from(self._data, self._advance(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack_from(self._data, self._advance(8))[0])

    def string(self, limit: int) -> str:
        """Reads a UTF-8 string of at most `limit` bytes."""
        length = self.u64()
        if length > limit:
            raise self.error(f"a name of {length} bytes at byte {self.position - 8}; at most {limit} are read")
        try:
            return self.take(length).decode()
        except UnicodeDecodeError as error:
            raise self.error(f"a name that is not UTF-8 at byte {self.position - length}") from error

    def value(self, kind: int) -> MetadataValue:
        if kind == ARRAY:
            return self._array()
        if kind == STRING:
            return self.take(self.u64()).decode("utf-8", "replace")
        scalar: Scalar = self._scalar(kind).unpack_from(self._data, self._advance(self._scalar(kind).size))[0]
        return scalar

    def _array(self) -> LazyArray:
        kind, count = self.u32(), self.u64()
        start = self.position
        if kind == STRING:
            self._skip_strings(count)
        else:
            self._advance(count * self._scalar(kind).size)
        return LazyArray(self._data, kind, count, start, self.position)

    def _skip_strings(self, count: int) -> None:
        """Skips `count` strings. This loop is nearly the whole cost of opening a file with a large vocabulary."""
        if count * 8 > self.size - self.position:
            raise self.error(f"an array of {count} strings at byte {self.position} cannot fit the file")
        data, length_at, position = self._data, _U64.unpack_from, self.position
        try:
            for _ in range(count):
                position += 8 + length_at(data, position)[0]
        except (struct.error, OverflowError):
            raise self._truncated(min(position, self.size), 8) from None
        if position > self.size:
            raise self._truncated(position, 0)
        self.position = position

    def _scalar(self, kind: int) -> struct.Struct:
        if kind not in _SCALARS:
            raise self.error(f"metadata type {kind} at byte {self.position} is not one of the format's")
        return _SCALARS[kind]

    def _advance(self, count: int) -> int:
        """Moves on by `count` bytes; returns the position before."""
        before = self.position
        if count > self.size - before:
            raise self._truncated(before, count)
        self.position = before + count
        return before

    def _truncated(self, position: int, count: int) -> CheckpointError:
        return self.error(
            f"the header ends early: {count} bytes are claimed at byte {position} of {self.size}",
            "the file is incomplete or not what its name says; pull it again",
        )
