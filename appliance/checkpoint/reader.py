"""Reads tensor bytes from mapped files: nothing is copied, and pages are read when they are touched."""

import mmap
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import ModelFacts, TensorFacts
from appliance.checkpoint.storage import NUMPY_TYPES, is_plain_type

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class TensorSource(Protocol):
    """Where the bytes of tensors come from, by name."""

    def read(self, name: str) -> Bytes: ...

    def will_need(self, name: str) -> None: ...

    def release(self, name: str, start: int, stop: int) -> None: ...


class TensorReader:
    """Reads the tensors of one checkpoint by name. Views are read-only and keep their mapping alive after `close`."""

    def __init__(self, root: Path, tensors: Iterable[TensorFacts]) -> None:
        """`root`: the checkpoint's folder, or its file."""
        self._folder = root if root.is_dir() else root.parent
        self._tensors = {part.name: part for tensor in tensors for part in tensor.parts}
        self._maps: dict[str, mmap.mmap] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def facts(self, name: str) -> TensorFacts:
        """Returns a tensor's facts. Raises CheckpointError if the checkpoint has no such tensor."""
        tensor = self._tensors.get(name)
        if tensor is None:
            raise CheckpointError(self._folder.name, f"there is no tensor {name!r}")
        return tensor

    def read(self, name: str) -> Bytes:
        """Returns the stored bytes, uint8 [size_bytes]. Raises CheckpointError."""
        tensor = self.facts(name)
        if tensor.sealed_at is not None:
            raise CheckpointError(tensor.file, f"tensor {name!r} is encrypted, and cannot be mapped")
        mapping = self._mapping(tensor.file)
        if tensor.offset_bytes + tensor.size_bytes > len(mapping):
            raise CheckpointError(tensor.file, f"tensor {name!r} lies after the end of the file", "pull it again")
        return np.frombuffer(mapping, dtype=np.uint8, count=tensor.size_bytes, offset=tensor.offset_bytes)

    def array(self, name: str) -> np.ndarray[Any, Any]:
        """Returns a typed view in the tensor's shape; bf16 as uint16 and float8 as uint8, bit for bit.

        Raises CheckpointError for blocks and codes, which have no element type: use `read` for those.
        """
        tensor = self.facts(name)
        if not is_plain_type(tensor.storage):
            raise CheckpointError(tensor.file, f"tensor {name!r} is stored as {tensor.storage} and has no plain view")
        return self.read(name).view(NUMPY_TYPES[tensor.storage]).reshape(tensor.shape)

    def will_need(self, name: str) -> None:
        """Asks the system to read this tensor ahead."""
        tensor = self.facts(name)
        begin = tensor.offset_bytes // mmap.PAGESIZE * mmap.PAGESIZE
        length = tensor.offset_bytes + tensor.size_bytes - begin
        if length:
            self._mapping(tensor.file).madvise(mmap.MADV_WILLNEED, begin, length)

    def release(self, name: str, start: int, stop: int) -> None:
        """Drops the whole pages of bytes [start, stop) of a tensor from the process; an access reads them again."""
        tensor = self.facts(name)
        begin = -(-(tensor.offset_bytes + start) // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (tensor.offset_bytes + stop) // mmap.PAGESIZE * mmap.PAGESIZE - begin
        if length > 0:
            self._mapping(tensor.file).madvise(mmap.MADV_DONTNEED, begin, length)

    def close(self) -> None:
        """Releases the mappings; one that still has views is unmapped with the last of them."""
        maps, self._maps = self._maps, {}
        for name, mapping in maps.items():
            try:
                mapping.close()
            except BufferError:
                del name, mapping  # it still has views and is unmapped with the last one

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _mapping(self, file: str) -> mmap.mmap:
        if file not in self._maps:
            try:
                with (self._folder / file).open("rb") as handle:
                    self._maps[file] = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:
                raise CheckpointError(file, f"cannot be mapped: {error}") from error
        return self._maps[file]


def open_tensors(facts: ModelFacts) -> TensorReader:
    """Returns a reader of the checkpoint's tensors; use it as a context manager."""
    return TensorReader(Path(facts.root), facts.tensors)
