"""Joins the tensors of one quantized matrix, which methods store under a module's name with suffixes of their own."""

from collections.abc import Callable, Collection, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, Final

import msgspec

from appliance.catalog.formats import CODE_GROUPS
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import TensorFacts

CONFIG: Final = "config.json"
SECTION: Final = "quantization_config"

Parts = Mapping[str, TensorFacts]  # the tensors of one module by suffix
Join = Callable[[str, Parts], TensorFacts]  # (module, its tensors) -> the matrix


def join_modules(tensors: Sequence[TensorFacts], suffixes: Collection[str], main: str, join: Join) -> list[TensorFacts]:
    """Returns the tensors in file order, those of each module that has a tensor `main` joined by `join`.

    Raises CheckpointError if a module has other `suffixes` but no `main`, or what `join` raises.
    """
    modules: dict[str, dict[str, TensorFacts]] = {}
    found: list[TensorFacts] = []
    for tensor in tensors:
        module, _, suffix = tensor.name.rpartition(".")
        if suffix in suffixes:
            modules.setdefault(module, {})[suffix] = tensor
        else:
            found.append(tensor)
    for module, parts in modules.items():
        if main not in parts:
            first = next(iter(parts.values()))
            raise CheckpointError(first.file, f"tensor {first.name!r} has no {main} beside it")
        found.append(join(module, parts))
    return sorted(found, key=lambda tensor: (tensor.file, tensor.offset_bytes))


def part_of(module: str, parts: Parts, suffix: str, storages: Collection[str]) -> TensorFacts:
    """Returns a part that must be there. Raises CheckpointError, also if it has another type than `storages`."""
    found = parts.get(suffix)
    if found is None:
        raise CheckpointError(next(iter(parts.values())).file, f"{module} has no {suffix}")
    return of_type(found, storages)


def of_type(tensor: TensorFacts, storages: Collection[str]) -> TensorFacts:
    """Returns the tensor. Raises CheckpointError if it has another type than `storages`."""
    if tensor.storage not in storages:
        read = ", ".join(sorted(storages))
        raise CheckpointError(tensor.file, f"tensor {tensor.name!r} is {tensor.storage}", f"read: {read}")
    return tensor


def has_shape(tensor: TensorFacts, shape: tuple[int, ...], matrix: str) -> None:
    """Raises CheckpointError if the tensor has another shape than its matrix calls for."""
    if tensor.shape != shape:
        problem = f"tensor {tensor.name!r} has the shape {tensor.shape}; {matrix} calls for {shape}"
        raise CheckpointError(tensor.file, problem)


def own_shape(part: TensorFacts, stack: Sequence[int], matrix: str) -> tuple[int, ...]:
    """Returns the shape of the part of one matrix of a stack.

    stack: the number of matrices; empty for a single matrix, whose part has its own shape. Raises CheckpointError if
    the part is stacked otherwise.
    """
    size = len(stack)
    if part.shape[:size] != tuple(stack):
        problem = f"tensor {part.name!r} has the shape {part.shape}; {matrix} calls for {stack[0]} of them"
        raise CheckpointError(part.file, problem)
    return part.shape[size:]


def bytes_of(root: Path, tensor: TensorFacts) -> bytes:
    """Returns the data of a small tensor without which headers do not say what a matrix is. Raises CheckpointError."""
    if tensor.sealed_at is not None:
        problem = f"tensor {tensor.name!r} tells how a matrix is quantized, and is encrypted: no plan reads keys"
        raise CheckpointError(tensor.file, problem, "write this checkpoint without encryption")
    try:
        with (root / tensor.file).open("rb") as file:
            file.seek(tensor.offset_bytes)
            return file.read(tensor.size_bytes)
    except OSError as error:
        raise CheckpointError(tensor.file, f"cannot be read: {error.strerror}") from error


def integers_of(root: Path, tensor: TensorFacts, count: int) -> tuple[int, ...]:
    """Returns the data of a tensor of so many integers. Raises CheckpointError if it has more or fewer."""
    if prod(tensor.shape) != count:
        raise CheckpointError(tensor.file, f"tensor {tensor.name!r} of shape {tensor.shape} has not {count} numbers")
    raw = bytes_of(root, tensor)
    size = len(raw) // count
    return tuple(int.from_bytes(raw[at : at + size], "little", signed=True) for at in range(0, len(raw), size))


def group_name(tensor: TensorFacts, num_columns: int, num_groups: int) -> str:
    """Returns how many columns share a scale, as in names of storages. `tensor`: the scales, for the error.

    Groups of several times 256 columns count as groups of 256. Raises CheckpointError for sizes that are not read.
    """
    size, rest = divmod(num_columns, num_groups) if num_groups else (0, 1)
    if not rest and num_groups == 1:
        return "channel"
    kept = 256 if size % 256 == 0 else size
    if rest or not size or f"g{kept}" not in CODE_GROUPS:
        sizes = ", ".join(str(each) for each in CODE_GROUPS.values() if each)
        problem = f"tensor {tensor.name!r} of shape {tensor.shape} has {num_groups} groups of {num_columns} columns"
        raise CheckpointError(tensor.file, problem, f"read: one group, or groups of {sizes}, or of several times 256")
    return f"g{kept}"


def expect(value: Any, where: str, allowed: Sequence[Any]) -> None:
    """Raises CheckpointError if a value of the config is none of `allowed`; 1 is not true. `where`: its path."""
    if not any(value is each or (type(value) is type(each) and value == each) for each in allowed):
        shown = ", ".join(each if isinstance(each, str) else msgspec.json.encode(each).decode() for each in allowed)
        raise CheckpointError(CONFIG, f"{where} is {_shown(value)}, which is not in this version", f"read: {shown}")


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else f"{text[:60]}..."
