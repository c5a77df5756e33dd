"""Memory of a bound program that is given back for a while: its addresses stay, and its pages go to the system."""

import contextlib
import ctypes
import mmap
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec

from appliance.base.free_memory import free_bytes
from appliance.base.units import format_size
from appliance.kernels.cpu.library import Library
from appliance.kernels.cpu.memory import MappedMemory, advise
from appliance.kernels.cpu.packed_file import PackedBytes, PackedFile, PackedFileError
from appliance.kernels.errors import BindError, ExecutableError
from appliance.kernels.packed_cache import PackedCache

_ALIGNMENT = 64  # of packed weights in the memory of a pool, and in a file
_MOVE = 8 << 20  # bytes that one thread copies at a time

Move = tuple[int, int, int]  # to an address, from another one, so many bytes


@dataclass(frozen=True, slots=True)
class AwayWeights:
    """Weights without memory. kept: those that `file` holds; lost: those that have to be read from the checkpoint.
    is_mapped: they lie in the file's mapping, and come back from there by themselves."""

    kept: tuple[PackedBytes, ...]
    lost: tuple[PackedBytes, ...]
    file: PackedFile | None
    is_mapped: bool

    @property
    def copied_bytes(self) -> int:
        """The bytes of memory that have to be filled before they are there again."""
        return sum(each.size for each in (*(() if self.is_mapped else self.kept), *self.lost))

    def check_room(self) -> None:
        """Raises ExecutableError if the machine has not so much memory left."""
        needed, free = self.copied_bytes, free_bytes()
        if needed > free:
            told = f"the weights take {format_size(needed)}"
            raise ExecutableError(f"{told}, and {format_size(free)} of memory can be had; they sleep on")

    def moves(self) -> list[Move]:
        """Returns what has to be copied out of the file."""
        if self.file is None or self.is_mapped:
            return []
        places = [(each, self.file.address(self.file.entries[each.name])) for each in self.kept]
        return [move for each, at in places for move in pieces(each.address, at, each.size)]


@dataclass(frozen=True, slots=True)
class KeptWeights:
    """Where the packed weights of a program are kept, or may be by now."""

    cache: PackedCache
    key: str

    def open(self, weights: Sequence[PackedBytes], library: Library, pool: ctypes.c_void_p) -> PackedFile | None:
        """Opens the file if it is whole, and holds weights of these forms; it cannot go away before it is closed."""
        try:
            file = PackedFile(self.cache.path(self.key), self.key, library, pool)
        except (PackedFileError, OSError, msgspec.DecodeError):
            return None
        for each in weights:
            entry = file.entries.get(each.name)
            if entry is None or (entry.size, entry.form, entry.shape) != (each.size, each.form, each.shape):
                file.close()
                return None
        file.forget()  # all of it was read to check it
        return file


def give_back(weights: Iterable[PackedBytes]) -> None:
    """Gives the whole pages of weights back to the system. Those of a file's mapping come from there again, and others
    are zeros, when they are touched."""
    for address, end in _runs(weights):
        first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
        size = end // mmap.PAGESIZE * mmap.PAGESIZE - first
        if size > 0:
            advise(first, size, mmap.MADV_DONTNEED)


def _runs(weights: Iterable[PackedBytes]) -> Iterator[tuple[int, int]]:
    """Yields where weights begin and end. Packed matrices lie side by side, with nothing but their alignment between;
    beside a vector there may be anything."""
    begin = end = 0
    is_matrix = False
    for each in sorted(weights, key=lambda weight: weight.address):
        if is_matrix and each.form is not None and 0 <= each.address - end < _ALIGNMENT:
            end = each.address + each.size
            continue
        if end:
            yield begin, end
        begin, end, is_matrix = each.address, each.address + each.size, each.form is not None
    if end:
        yield begin, end


def release_all(memories: Iterable[MappedMemory]) -> None:
    """Gives whole memories back to the system: they are zeros when they are touched again."""
    for each in memories:
        each.release(0, each.size_bytes)


def pieces(to: int, start: int, size_bytes: int) -> list[Move]:
    """Cuts a copy into parts for several threads."""
    return [(to + at, start + at, min(_MOVE, size_bytes - at)) for at in range(0, size_bytes, _MOVE)]


def move_all(moves: Sequence[Move], num_threads: int) -> None:
    """Copies on several threads."""
    with ThreadPoolExecutor(num_threads, thread_name_prefix="copy") as movers:
        list(movers.map(lambda move: ctypes.memmove(*move), moves))


@contextlib.contextmanager
def as_executable_error() -> Iterator[None]:
    """Says of memory that cannot be had again what says that an executable sleeps on."""
    try:
        yield
    except BindError as error:
        raise ExecutableError(str(error), hint=error.hint) from error
