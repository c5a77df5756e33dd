"""Reads safetensors headers: one file, or shards named by an index. It enforces the format's rules:

tensors fill the data section without holes or overlaps, and every size agrees with its dtype and shape.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from appliance.base.texts import NotUtf8Error, without_mark
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import TensorFacts
from appliance.checkpoint.lfs import POINTER_BYTES, refuse_pointer
from appliance.checkpoint.storage import SAFETENSORS_TYPES, stored_bytes

MAX_HEADER_BYTES: Final = 100_000_000  # the limit of the reference implementation
INDEX_NAME: Final = "model.safetensors.index.json"
MAX_DIMENSIONS: Final = 8


@dataclass(frozen=True, slots=True)
class WeightFileHeader:
    """What the header of one weight file says."""

    tensors: tuple[TensorFacts, ...]  # in file order
    raw: bytes
    metadata: object = None  # what its writer has said beside the tensors


def read_header(root: Path, name: str) -> WeightFileHeader:
    """Reads the header of root/name. Raises CheckpointError if the file breaks the format's rules."""
    raw, data_start, file_size = _header_bytes(root / name, name)
    try:
        entries = json.loads(raw, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(name, f"the header is not valid JSON: {error}") from error
    if not isinstance(entries, dict):
        raise CheckpointError(name, "the header is not a JSON object")
    metadata = entries.pop("__metadata__", None)
    tensors = [_tensor(name, tensor, entry, data_start) for tensor, entry in entries.items()]
    tensors.sort(key=lambda tensor: (tensor.offset_bytes, tensor.size_bytes))
    _check_coverage(name, tensors, data_start, file_size)
    return WeightFileHeader(tuple(tensors), raw, metadata)


def read_folder(root: Path) -> tuple[tuple[TensorFacts, ...], list[bytes]]:
    """Reads the tensors of all safetensors files of a checkpoint folder, and the raw headers (index first).

    Raises CheckpointError if there is none, a shard is missing, or index and shards disagree.
    """
    if not (root / INDEX_NAME).is_file():
        header = read_header(root, _single_file(root))
        return header.tensors, [header.raw]
    return read_shards(root, INDEX_NAME, (".safetensors",), read_header)


def read_shards(
    root: Path, index_name: str, suffixes: tuple[str, ...], read: Callable[[Path, str], WeightFileHeader]
) -> tuple[tuple[TensorFacts, ...], list[bytes]]:
    """Reads the tensors of all files that an index names, and the raw headers (index first).

    Raises CheckpointError if index and shards disagree, or what `read` raises.
    """
    raw = (root / index_name).read_bytes()
    refuse_pointer(index_name, raw)
    weight_map = _weight_map(index_name, raw, suffixes)
    headers = [read(root, name) for name in sorted(set(weight_map.values()))]
    tensors = [tensor for header in headers for tensor in header.tensors]
    places: dict[str, str] = {}
    for tensor in tensors:
        if tensor.name in places:
            raise CheckpointError(tensor.file, f"tensor {tensor.name!r} is also in {places[tensor.name]}")
        places[tensor.name] = tensor.file
    for name, file in weight_map.items():
        if places.get(name) != file:
            raise CheckpointError(index_name, f"tensor {name!r} should be in {file} and is not")
    return tuple(tensors), [raw, *(header.raw for header in headers)]


def _header_bytes(path: Path, name: str) -> tuple[bytes, int, int]:
    """Returns the JSON bytes, the start of the data section, and the file's size."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            refuse_pointer(name, file.read(POINTER_BYTES))
            file.seek(0)
            prefix = file.read(8)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < 8 or length > size - 8:
                raise CheckpointError(name, f"claims a header of {length} bytes in a file of {size}", "pull it again")
            if length > MAX_HEADER_BYTES:
                raise CheckpointError(name, f"claims a header of {length} bytes; at most {MAX_HEADER_BYTES} are read")
            return file.read(length), 8 + length, size
    except OSError as error:
        raise CheckpointError(name, f"cannot be opened: {error.strerror}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a name appears twice in one object")
    return values


def _tensor(file: str, name: str, entry: Any, data_start: int) -> TensorFacts:
    try:
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (TypeError, KeyError, ValueError) as error:
        raise CheckpointError(file, f"tensor {name!r} must have dtype, shape and two data_offsets") from error
    storage = SAFETENSORS_TYPES.get(dtype) if isinstance(dtype, str) else None
    if storage is None:
        known = ", ".join(SAFETENSORS_TYPES)
        raise CheckpointError(
            file, f"tensor {name!r} has dtype {dtype!r}, which is not in this version", f"readable: {known}"
        )
    if len(shape) > MAX_DIMENSIONS or not all(is_size(value) for value in (*shape, begin, end)):
        raise CheckpointError(file, f"tensor {name!r} has impossible sizes: shape {shape}, offsets {begin}..{end}")
    expected = stored_bytes(storage, shape)
    if end - begin != expected:
        raise CheckpointError(
            file, f"tensor {name!r} of shape {shape} needs {expected} bytes, its offsets give {end - begin}"
        )
    return TensorFacts(
        name=name,
        stored_name=name,
        shape=shape,
        storage=storage,
        file=file,
        offset_bytes=data_start + begin,
        size_bytes=expected,
    )


def is_size(value: Any) -> bool:
    """Returns whether a value can be a number of elements or bytes."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 48


def _check_coverage(name: str, tensors: list[TensorFacts], data_start: int, file_size: int) -> None:
    """Checks that there are no holes and no overlaps, and that the last tensor ends with the file."""
    position = data_start
    for tensor in tensors:
        if tensor.offset_bytes != position:
            fault = "a hole" if tensor.offset_bytes > position else "an overlap"
            raise CheckpointError(name, f"{fault} before tensor {tensor.name!r}: {position} to {tensor.offset_bytes}")
        position += tensor.size_bytes
    if position != file_size:
        problem = f"tensors end at byte {position}, the file at {file_size}"
        raise CheckpointError(name, problem, "the download is incomplete; pull it again")


def _single_file(root: Path) -> str:
    """Returns the one weight file of a folder without an index. Raises CheckpointError."""
    names = sorted(path.name for path in root.glob("*.safetensors"))
    if "model.safetensors" in names:
        return "model.safetensors"
    if len(names) == 1:
        return names[0]
    if names:
        raise CheckpointError(
            root.name, f"{len(names)} safetensors files and no {INDEX_NAME}", f"found: {', '.join(names[:4])}"
        )
    hint = "write loading.load_format: tensorizer" if any(root.glob("*.tensors")) else None
    raise CheckpointError(root.name, "there is no safetensors file in this folder", hint)


def _weight_map(index_name: str, raw: bytes, suffixes: tuple[str, ...]) -> dict[str, str]:
    try:
        weight_map = json.loads(without_mark(raw, "it"), object_pairs_hook=_unique)["weight_map"]
    except (NotUtf8Error, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(index_name, f"is not a weight index: {error}") from error
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(index_name, "weight_map is not an object that names tensors")
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(suffixes):
            raise CheckpointError(index_name, f"tensor {name!r} is placed in {file!r}, not a file of this folder")
    return weight_map
