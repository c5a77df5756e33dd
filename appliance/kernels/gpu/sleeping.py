"""Memory of a device that is given back for a while.

Tensors and their views stay what they are: the storage below them loses its memory, and gets some again, which may lie
elsewhere. So graphs, which hold addresses, have to be captured anew.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from appliance.kernels.gpu.device import Device


class PutAway:
    """Storages without memory. Their content is kept on the host, or lost."""

    def __init__(self, tensors: Iterable[torch.Tensor], *, keep: bool) -> None:
        storages = storages_of(tensors)
        self._sizes = [(storage, storage.nbytes()) for storage in storages]
        self._kept = [_bytes_of(storage).to("cpu", copy=True) for storage in storages] if keep else None
        for storage in storages:
            storage.resize_(0)

    @property
    def is_kept(self) -> bool:
        return self._kept is not None

    def bring_back(self) -> None:
        """Gives the storages memory again, with their content, or zeros where that was lost. Raises RuntimeError if the
        device has no memory left; what came back by then stays."""
        for number, (storage, size) in enumerate(self._sizes):
            if storage.nbytes() == size:
                continue  # it came back before the device had no memory left
            storage.resize_(size)
            if self._kept is None:
                _bytes_of(storage).zero_()
            else:
                _bytes_of(storage).copy_(self._kept[number])


def refill(old: Iterable[torch.Tensor], new: Iterable[torch.Tensor]) -> None:
    """Copies tensors that were made anew into those that they are to replace, storage by storage."""
    for target, source in zip(storages_of(old), storages_of(new), strict=True):
        _bytes_of(target).copy_(_bytes_of(source))


def storages_of(tensors: Iterable[torch.Tensor]) -> list[torch.UntypedStorage]:
    """Returns the different storages of tensors that have memory, in the order of the first of each."""
    found = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in tensors}
    return [storage for storage in found.values() if storage.nbytes()]


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors of a record: of its fields, and of records in them."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from tensors_of(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_of(each)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from tensors_of(getattr(value, field.name))


def release(device: Device) -> None:
    """Gives what nothing refers to back to the driver."""
    if device.is_gpu:
        torch.cuda.empty_cache()


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
