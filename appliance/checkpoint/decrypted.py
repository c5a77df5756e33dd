"""The tensors of an encrypted file of tensorizer: each is opened, and proved to be unchanged, before it is used."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from appliance.checkpoint.errors import CheckpointError, SealedError
from appliance.checkpoint.facts import TensorFacts
from appliance.checkpoint.last_read import LastRead
from appliance.checkpoint.loader_choice import CheckpointKey
from appliance.checkpoint.reader import Bytes
from appliance.checkpoint.tensorizer_key import FIELD, MIXED, OPTIONS, SecretBoxes
from appliance.checkpoint.tensorizer_seal import Seal, read_seal

_THREADS: Final = 4  # that open one tensor


class DecryptedTensors:
    """Encrypted tensors as a source of tensors. The two that were read last are in memory."""

    def __init__(self, folder: Path, tensors: Iterable[TensorFacts], key: CheckpointKey | None) -> None:
        """Raises CheckpointError if there is no key, and MissingExtraError."""
        self._folder = folder
        self._tensors = {part.name: part for tensor in tensors for part in tensor.parts}
        if key is None:
            name = next(tensor.file for tensor in self._tensors.values() if tensor.sealed_at is not None)
            raise CheckpointError(name, "is encrypted, and no key is given", f"{FIELD}: {{{OPTIONS['key']}: path}}")
        self._boxes = SecretBoxes(key)
        self._last = LastRead()

    def read(self, name: str) -> Bytes:
        """Returns the plain bytes, uint8 [size_bytes]. Raises CheckpointError."""
        tensor = self._tensors.get(name)
        if tensor is None:
            raise CheckpointError(self._folder.name, f"there is no tensor {name!r}")
        return self._last.read(name, partial(self._opened, tensor))

    def will_need(self, name: str) -> None:
        """Does nothing: a tensor is opened when it is needed."""

    def release(self, name: str, start: int, stop: int) -> None:
        """Forgets a tensor with its last byte."""
        if stop >= self._tensors[name].size_bytes:
            self._last.forget(name)

    def _opened(self, tensor: TensorFacts) -> Bytes:
        plain = np.empty(tensor.size_bytes, np.uint8)
        if tensor.size_bytes:  # an empty one has nothing to be opened
            if tensor.sealed_at is None:
                raise CheckpointError(tensor.file, f"tensor {tensor.name!r} {MIXED}")
            seal = read_seal(self._folder, tensor)
            box = self._boxes.box(tensor.file, seal.derivation)
            try:
                with (self._folder / tensor.file).open("rb") as file:
                    open_piece = partial(self._open_piece, box, file.fileno(), tensor, seal, plain)
                    is_open = _all(open_piece, -(-tensor.size_bytes // seal.piece_bytes))
            except OSError as error:
                raise CheckpointError(tensor.file, f"cannot be read: {error.strerror}") from error
            if not is_open:
                raise _wrong(tensor)
        plain.flags.writeable = False
        return plain

    def _open_piece(self, box: Any, descriptor: int, tensor: TensorFacts, seal: Seal, plain: Bytes, piece: int) -> bool:
        """Writes the plain bytes of a piece to their place; returns False if it cannot be opened. Raises OSError."""
        start = piece * seal.piece_bytes
        stop = min(start + seal.piece_bytes, tensor.size_bytes)
        sealed = b"".join((seal.mac_of(piece), _read(descriptor, tensor.offset_bytes + start, stop - start)))
        found = self._boxes.opened(box, sealed, seal.nonce_of(piece))
        if found is None or len(found) != stop - start:
            return False
        plain[start:stop] = np.frombuffer(found, np.uint8)
        return True


def _all(is_open: Callable[[int], bool], count: int) -> bool:
    """Opens the pieces, several at once, as opening them lets go of the interpreter. Ends at the first that cannot."""
    if count == 1:
        return is_open(0)
    with ThreadPoolExecutor(min(_THREADS, count), thread_name_prefix="open") as threads:
        return all(threads.map(is_open, range(count)))


def _read(descriptor: int, start: int, size: int) -> bytes:
    """Returns bytes of a file, fewer where it ends."""
    parts = []
    while size and (part := os.pread(descriptor, size, start)):
        parts.append(part)
        start, size = start + len(part), size - len(part)
    return b"".join(parts)


def _wrong(tensor: TensorFacts) -> SealedError:
    problem = f"tensor {tensor.name!r} cannot be opened: the key is another one, or its bytes were changed"
    return SealedError(tensor.file, problem, "give the key that the file was written with, or pull it again")
