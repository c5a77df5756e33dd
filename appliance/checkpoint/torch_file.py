"""Reads the tensors of PyTorch's .bin and .pt files without torch, and without running anything that they say.

Such a file is a zip archive: `data.pkl` describes the tensors, and `data/<key>` has the bytes of each storage, which
are not compressed and so can be mapped where they lie. The pickle is read by an unpickler that knows the few names
which describe tensors and refuses every other; none of them does anything here but to keep its arguments.
"""

import io
import pickle
import struct
import zipfile
import zlib
from collections import OrderedDict
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import Storage, TensorFacts
from appliance.checkpoint.safetensors import WeightFileHeader, read_shards
from appliance.checkpoint.storage import stored_bytes

MAX_PICKLE_BYTES: Final = 64_000_000
FILE_NAME: Final = "pytorch_model.bin"
INDEX_NAME: Final = "pytorch_model.bin.index.json"
SUFFIXES: Final = (".bin", ".pt", ".pth")

_OTHERS: Final = ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth")  # what a Trainer leaves

STORAGES: Final[dict[str, Storage]] = {
    "DoubleStorage": "f64", "FloatStorage": "f32", "HalfStorage": "f16", "BFloat16Storage": "bf16",
    "LongStorage": "i64", "IntStorage": "i32", "ShortStorage": "i16", "CharStorage": "i8", "ByteStorage": "u8",
    "BoolStorage": "bool",
}  # fmt: skip
LITTLE: Final = b"little"  # what the entry `byteorder` says
BROKEN_ARCHIVE: Final = (  # what zipfile raises for bytes that are no archive, or a false one
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, NotImplementedError, RuntimeError, OverflowError,
    ValueError,
)  # fmt: skip
_LOCAL_HEADER: Final = struct.Struct("<4s22xHH")  # its signature, and the bytes of name and extra field


class _Stored(NamedTuple):
    """A storage of the archive."""

    key: str
    storage: Storage
    num_elements: int


class _Tensor(NamedTuple):
    """A tensor over a storage, in elements."""

    stored: _Stored
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Unpickler(pickle.Unpickler):
    """Reads what describes tensors. Every other name is refused before anything is made of it."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        known = _KNOWN.get((module, name))
        if known is None:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which describes no tensor and is not run")
        return known

    def persistent_load(self, pid: Any) -> _Stored:
        kind, storage, key, _, num_elements = pid
        if kind != "storage" or storage not in STORAGES.values() or not isinstance(key, str):
            raise pickle.UnpicklingError("it has a storage of another form")
        return _Stored(key, storage, int(num_elements))


def _tensor(stored: _Stored, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: Any) -> _Tensor:
    return _Tensor(stored, offset, tuple(shape), tuple(strides))


def _parameter(tensor: _Tensor, *_: Any) -> _Tensor:
    return tensor


_KNOWN: Final = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
}


def has_torch_files(root: Path) -> bool:
    """Returns whether a folder without safetensors has weights of PyTorch."""
    return not any(root.glob("*.safetensors")) and ((root / INDEX_NAME).is_file() or bool(_names(root)))


def read_torch_folder(root: Path) -> tuple[tuple[TensorFacts, ...], list[bytes]]:
    """Reads the tensors of all .bin or .pt files of a checkpoint folder, and what describes them (index first).

    Raises CheckpointError if a shard is missing, index and shards disagree, or a file is not read.
    """
    if (root / INDEX_NAME).is_file():
        return read_shards(root, INDEX_NAME, SUFFIXES, read_torch_file)
    names = _names(root)
    if len(names) > 1 and FILE_NAME not in names:
        raise CheckpointError(root.name, f"{len(names)} files of PyTorch and no {INDEX_NAME}", ", ".join(names[:4]))
    header = read_torch_file(root, FILE_NAME if FILE_NAME in names else names[0])
    return header.tensors, [header.raw]


def _names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.suffix in SUFFIXES and path.name not in _OTHERS)


def read_torch_file(root: Path, name: str) -> WeightFileHeader:
    """Returns the tensors of root/name in file order, and the bytes that describe them.

    Raises CheckpointError if the file is no such archive, or describes anything but plain tensors.
    """
    try:
        with (root / name).open("rb") as file, zipfile.ZipFile(file) as archive:
            entries = {entry.filename: entry for entry in archive.infolist()}
            described = _description(name, archive, entries)
            found = _unpickled(name, described)
            places = _places(name, file, entries)
    except BROKEN_ARCHIVE as error:
        hint = "files of PyTorch before 1.6 are no archives: save them again"
        raise CheckpointError(name, f"is not an archive of PyTorch: {error}", hint) from error
    tensors = [_facts(name, key, each, places) for key, each in found.items()]
    return WeightFileHeader(tuple(sorted(tensors, key=lambda tensor: tensor.offset_bytes)), described)


def _description(name: str, archive: zipfile.ZipFile, entries: dict[str, zipfile.ZipInfo]) -> bytes:
    pickles = [entry for entry in entries.values() if entry.filename.rpartition("/")[2] == "data.pkl"]
    if len(pickles) != 1 or pickles[0].file_size > MAX_PICKLE_BYTES:
        raise CheckpointError(name, "has not one data.pkl of a sane size")
    order = next((entry for entry in entries if entry.rpartition("/")[2] == "byteorder"), None)
    if order is not None and (entries[order].file_size != len(LITTLE) or archive.read(order) != LITTLE):
        raise CheckpointError(name, "has numbers in another byte order than little")
    return archive.read(pickles[0])


def _unpickled(name: str, described: bytes) -> dict[str, _Tensor]:
    try:
        found = _Unpickler(io.BytesIO(described)).load()
    except (pickle.UnpicklingError, TypeError, ValueError, AttributeError, EOFError, LookupError) as error:
        raise CheckpointError(name, f"is not read: {error}", "save a plain state_dict, or safetensors") from error
    if isinstance(found, dict) and isinstance(found.get("state_dict"), dict):
        found = found["state_dict"]
    if not isinstance(found, dict) or not found:
        raise CheckpointError(name, "does not hold a dictionary of tensors")
    for key, each in found.items():
        if not isinstance(key, str) or not isinstance(each, _Tensor):
            raise CheckpointError(name, f"{str(key)[:60]!r} is not a tensor", "save a plain state_dict")
    return found


def _places(name: str, file: Any, entries: dict[str, zipfile.ZipInfo]) -> dict[str, tuple[int, int]]:
    """Returns where the bytes of each storage begin in the file, and how many there are, by key."""
    places = {}
    for entry in entries.values():
        folder, _, key = entry.filename.rpartition("/")
        if folder.rpartition("/")[2] != "data":
            continue
        if entry.compress_type != zipfile.ZIP_STORED:
            raise CheckpointError(name, f"{entry.filename!r} is compressed, and cannot be mapped")
        file.seek(entry.header_offset)
        _, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
        places[key] = entry.header_offset + _LOCAL_HEADER.size + name_bytes + extra_bytes, entry.file_size
    return places


def _facts(file: str, name: str, tensor: _Tensor, places: dict[str, tuple[int, int]]) -> TensorFacts:
    stored, shape = tensor.stored, tensor.shape
    sizes = (*shape, *tensor.strides, tensor.offset)
    if not all(type(size) is int and size >= 0 for size in sizes) or len(tensor.strides) != len(shape):
        raise CheckpointError(file, f"tensor {name!r} has impossible sizes: {shape} from {tensor.offset}")
    if any(stride != prod(shape[axis + 1 :]) for axis, stride in enumerate(tensor.strides) if shape[axis] > 1):
        raise CheckpointError(file, f"tensor {name!r} does not lie row by row", "save it contiguous")
    size = stored_bytes(stored.storage, shape)
    begin = stored_bytes(stored.storage, (tensor.offset,))
    start, limit = places.get(stored.key, (0, -1))
    if begin + size > limit:
        raise CheckpointError(file, f"tensor {name!r} needs {begin + size} bytes of storage {stored.key!r}",
                              f"there are {max(limit, 0)}")  # fmt: skip
    return TensorFacts(
        name=name,
        stored_name=name,
        shape=shape,
        storage=stored.storage,
        file=file,
        offset_bytes=start + begin,
        size_bytes=size,
    )
