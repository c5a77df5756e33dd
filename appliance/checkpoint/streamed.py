"""Reads tensors past the page cache with several threads, while those before them are translated."""

import mmap
import os
import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import numpy as np

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import TensorFacts
from appliance.checkpoint.reader import Bytes

PIECE_BYTES: Final = 4 << 20  # that one thread reads at a time
_BLOCK: Final = 4096  # at whose multiples direct I/O begins and ends


@dataclass(slots=True)
class _Buffer:
    """A tensor that is in memory, or on its way there. skipped: bytes before it, which its first block has as well."""

    memory: mmap.mmap
    skipped: int
    size: int
    pieces: list[Future[None]]
    num_readers: int = 0  # that wait for it now
    was_read: bool = False  # and nothing has said since that it is needed again

    def drop(self) -> None:
        """Ends what has not begun, which would keep the memory until its turn."""
        for piece in self.pieces:
            piece.cancel()

    def view(self) -> Bytes:
        """Waits until the tensor is there. Raises what reading it raised."""
        for piece in self.pieces:
            piece.result()
        found = np.frombuffer(self.memory, np.uint8, self.size, self.skipped)
        found.flags.writeable = False
        return found


class StreamedReader:
    """Reads the tensors of one checkpoint by name, each as a whole, with direct I/O where the file system has that.

    At most `memory_bytes` are kept, and never less than the tensors that are read. Views keep their memory alive. What
    is read ahead takes the room that is free, or has been read: nothing that came first is thrown away for it.
    """

    def __init__(self, root: Path, tensors: Iterable[TensorFacts], num_threads: int, memory_bytes: int) -> None:
        """root: the checkpoint's folder."""
        self._folder = root if root.is_dir() else root.parent
        self._tensors = {part.name: part for tensor in tensors for part in tensor.parts}
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="read")
        self._memory_bytes = memory_bytes
        self._files: dict[str, int] = {}
        self._buffers: dict[str, _Buffer] = {}  # that used last is the last
        self._lock = threading.Lock()  # several threads read weights

    def read(self, name: str) -> Bytes:
        """Returns the stored bytes, uint8 [size_bytes]. Raises CheckpointError."""
        with self._lock:
            buffer = self._buffers.pop(name, None)
            if buffer is None:
                self._make_room(self._size(name), is_ahead=False)
                buffer = self._begin(name)
            self._buffers[name] = buffer
            buffer.num_readers += 1
        try:
            return buffer.view()
        except OSError as error:
            raise CheckpointError(self._tensors[name].file, f"cannot be read: {error.strerror}") from error
        finally:
            with self._lock:
                buffer.num_readers -= 1
                buffer.was_read = True

    def will_need(self, name: str) -> None:
        """Begins to read a tensor if there is room. Raises CheckpointError if there is none."""
        with self._lock:
            if (buffer := self._buffers.get(name)) is not None:
                buffer.was_read = False
            elif self._make_room(self._size(name), is_ahead=True):
                self._buffers[name] = self._begin(name)

    def release(self, name: str, start: int, stop: int) -> None:
        """Forgets a tensor with its last byte."""
        if stop >= self._tensors[name].size_bytes:
            with self._lock:
                self._buffers.pop(name, None)

    def close(self) -> None:
        """Ends what is being read. Views stay."""
        self._threads.shutdown(cancel_futures=True)
        self._buffers.clear()
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _make_room(self, size: int, *, is_ahead: bool) -> bool:
        """Forgets what was read, the oldest first, and for a tensor that is not read ahead also what would be read
        last. Returns whether there is room; for one that is read ahead nothing is forgotten in vain. The lock is
        held."""
        idle = [name for name, each in self._buffers.items() if not each.num_readers]
        gone = [name for name in idle if self._buffers[name].was_read]
        if not is_ahead:
            gone += [name for name in reversed(idle) if not self._buffers[name].was_read]
        room = self._memory_bytes - size - sum(len(each.memory) for each in self._buffers.values())
        if is_ahead and room + sum(len(self._buffers[name].memory) for name in gone) < 0:
            return False
        for name in gone:
            if room >= 0:
                break
            buffer = self._buffers.pop(name)
            buffer.drop()
            room += len(buffer.memory)
        return room >= 0

    def _tensor(self, name: str) -> TensorFacts:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise CheckpointError(self._folder.name, f"there is no tensor {name!r}")
        return tensor

    def _size(self, name: str) -> int:
        """Returns the bytes of the blocks in which a tensor lies."""
        tensor = self._tensor(name)
        skipped = tensor.offset_bytes % _BLOCK
        return max(-(-(skipped + tensor.size_bytes) // _BLOCK) * _BLOCK, _BLOCK)

    def _begin(self, name: str) -> _Buffer:
        tensor = self._tensor(name)
        descriptor = self._descriptor(tensor.file)
        if tensor.offset_bytes + tensor.size_bytes > os.fstat(descriptor).st_size:
            raise CheckpointError(tensor.file, f"tensor {name!r} lies after the end of the file", "pull it again")
        first = tensor.offset_bytes // _BLOCK * _BLOCK
        skipped = tensor.offset_bytes - first
        size = self._size(name)
        memory = mmap.mmap(-1, size)
        starts = range(0, size if tensor.size_bytes else 0, PIECE_BYTES)
        pieces = [self._threads.submit(_fill, descriptor, memory, first, start) for start in starts]
        return _Buffer(memory, skipped, tensor.size_bytes, pieces)

    def _descriptor(self, file: str) -> int:
        if file not in self._files:
            try:
                self._files[file] = _open(self._folder / file)
            except OSError as error:
                raise CheckpointError(file, f"cannot be opened: {error.strerror}") from error
        return self._files[file]


def _open(path: Path) -> int:
    """Opens a file past the page cache, or through it where the file system has no other way."""
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        return os.open(path, os.O_RDONLY)


def _fill(descriptor: int, memory: mmap.mmap, first: int, start: int) -> None:
    """Reads one piece of a file from `first` on, up to the file's end. Raises OSError."""
    stop = min(start + PIECE_BYTES, len(memory))
    with memoryview(memory) as view:
        while start < stop:
            count = os.preadv(descriptor, [view[start:stop]], first + start)
            if count == 0:
                return
            start += count
