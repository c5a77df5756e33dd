"""One tensor in bytes that a stranger sent, as `torch.save` or safetensors wrote it. Nothing that they say is run.

A file of `torch.save` is a zip archive whose `data.pkl` describes the tensor. That is a program for a stack machine,
which can name any function. The few instructions by which a tensor is described are followed here by our own hands, and
every other is refused: pickle's machine never sees them.
"""

import io
import json
import pickletools
import zipfile
from collections.abc import Callable
from math import prod
from typing import Any, Final, Literal, NamedTuple, get_args

import numpy as np

from appliance.base.errors import ApplianceError
from appliance.checkpoint.facts import Storage
from appliance.checkpoint.safetensors import is_size
from appliance.checkpoint.storage import NUMPY_TYPES, SAFETENSORS_TYPES, stored_bytes
from appliance.checkpoint.torch_file import BROKEN_ARCHIVE, LITTLE, STORAGES

Floats = Literal["f32", "f16", "bf16"]

MOST_DESCRIPTION_BYTES: Final = 16 << 10
_ZIP: Final = b"PK\x03\x04"
_LISTED: Final = b"PK\x01\x02"  # how each entry of an archive's directory begins
_MOST_LISTED: Final = 64  # torch writes less than 10
_MOST_AXES: Final = 3
_FLOATS: Final[dict[Storage, Floats]] = {each: each for each in get_args(Floats)}
_ELEMENTS: Final = {f"torch {name}": storage for name, storage in STORAGES.items()}
_CONSTANTS: Final = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_NUMBERS: Final = frozenset({"BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "SHORT_BINUNICODE"})
_TUPLES: Final = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class OneTensorError(ApplianceError):
    """The bytes are no tensor that is read here."""


class OneTensor(NamedTuple):
    """data: the numbers of its whole storage, of which the tensor is the elements `offset` + i * strides."""

    dtype: Floats
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    data: bytes

    def rows(self) -> bytes:
        """Returns its elements row by row, little-endian. Its shape says how many, and is to be looked at before: a
        stride of 0 makes much of little."""
        kind = np.dtype(NUMPY_TYPES[self.dtype])
        stored = np.frombuffer(self.data, kind, len(self.data) // kind.itemsize)
        strides = tuple(stride * kind.itemsize for stride in self.strides)
        return np.lib.stride_tricks.as_strided(stored[self.offset :], self.shape, strides, writeable=False).tobytes()


def read_tensor(data: bytes) -> OneTensor:
    """Returns the tensor. Raises OneTensorError."""
    return _of_archive(data) if data.startswith(_ZIP) else _of_safetensors(data)


class _Name(str):
    """A global that the description names."""


class _Storage(NamedTuple):
    dtype: Storage
    key: str


class _Described(NamedTuple):
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _of_archive(data: bytes) -> OneTensor:
    if data.count(_LISTED) > _MOST_LISTED:
        raise OneTensorError(f"its archive has more than {_MOST_LISTED} entries")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = {entry.filename.partition("/")[2]: entry for entry in archive.infolist()}
            described = _described(_entry(archive, entries, "data.pkl", MOST_DESCRIPTION_BYTES))
            if "byteorder" in entries and _entry(archive, entries, "byteorder", len(LITTLE)) != LITTLE:
                raise OneTensorError("its numbers are in another byte order than little")
            stored = _entry(archive, entries, f"data/{described.storage.key}", len(data))
    except BROKEN_ARCHIVE as error:
        raise OneTensorError(f"it is no archive of torch.save: {error}") from error
    return _checked(described.storage.dtype, described.shape, described.strides, described.offset, stored)


def _entry(archive: zipfile.ZipFile, entries: dict[str, zipfile.ZipInfo], name: str, most: int) -> bytes:
    """Returns the bytes of an entry that is not compressed, so that it has no more than the archive."""
    entry = entries.get(name)
    if entry is None or entry.compress_type != zipfile.ZIP_STORED or entry.file_size > most:
        raise OneTensorError(f"its archive has no {name[:40]!r} of a sane size that is not compressed")
    return archive.read(entry)


def _described(description: bytes) -> _Described:
    machine = _Machine()
    try:
        for operation, argument, _ in pickletools.genops(description):
            machine.step(operation.name, argument)
        found = machine.result
    except (ValueError, TypeError, LookupError, OverflowError) as error:
        raise OneTensorError("its description is not that of a tensor") from error
    if not isinstance(found, _Described):
        raise OneTensorError(f"it holds a {type(found).__name__}, not one tensor")
    return found


class _Machine:
    """Follows the description of a tensor. Each instruction pushes a plain value, or is refused."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    @property
    def result(self) -> object:
        """What the whole description is of."""
        (found,) = self._stack
        return found

    def step(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in ("PROTO", "FRAME", "STOP"):
            return
        if name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _NUMBERS:
            stack.append(argument)
        elif name == "GLOBAL":
            stack.append(_known(argument))
        elif name == "MARK":
            self._marks.append(len(stack))
        elif name == "TUPLE" or name in _TUPLES:
            self._join(self._marks.pop() if name == "TUPLE" else len(stack) - _TUPLES[name])
        elif name in ("BINPUT", "LONG_BINPUT"):
            self._memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self._memo[argument])
        elif name == "BINPERSID":
            stack.append(_stored(*stack.pop()))
        elif name == "REDUCE":
            arguments, called = stack.pop(), stack.pop()
            stack.append(_CALLS[called if isinstance(called, _Name) else ""](*arguments))
        else:
            raise OneTensorError(f"its description has the instruction {name}, which describes no tensor")

    def _join(self, start: int) -> None:
        self._stack[start:] = [tuple(self._stack[start:])]


def _known(name: str) -> _Name:
    if name not in _CALLS and name not in _ELEMENTS:
        raise OneTensorError(f"it names {name[:80]!r}, which describes no tensor and is not run")
    return _Name(name)


def _stored(kind: Any, storage: Any, key: Any, _: Any, __: Any) -> _Storage:
    if kind != "storage" or not isinstance(storage, _Name) or not isinstance(key, str):
        raise OneTensorError("it has a storage of another form")
    return _Storage(_ELEMENTS[storage], key)


def _rebuilt(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> _Described:
    if not isinstance(storage, _Storage):
        raise OneTensorError("it has a tensor without a storage")
    return _Described(storage, offset, tuple(shape), tuple(strides))


def _no_hooks() -> None:
    """Stands for the tensor's hooks: an OrderedDict, of which nothing is made, as names of a stranger's may be tuples
    of tuples that take for ever to hash."""


_CALLS: Final[dict[str, Callable[..., Any]]] = {
    "torch._utils _rebuild_tensor_v2": _rebuilt,
    "torch._utils _rebuild_parameter": lambda tensor, *_: tensor,
    "collections OrderedDict": _no_hooks,
}


def _of_safetensors(data: bytes) -> OneTensor:
    length = int.from_bytes(data[:8], "little")
    if not 2 <= length <= min(MOST_DESCRIPTION_BYTES, len(data) - 8):
        raise OneTensorError("it is neither an archive of torch.save nor a file of safetensors")
    try:
        header = json.loads(data[8 : 8 + length])
        ((_, tensor),) = ((name, value) for name, value in header.items() if name != "__metadata__")
        shape, (start, stop) = tuple(tensor["shape"]), tensor["data_offsets"]
        dtype, said = SAFETENSORS_TYPES.get(tensor["dtype"]), tensor["dtype"]
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise OneTensorError(f"its header is not that of one tensor: {error}") from error
    if dtype is None:
        raise OneTensorError(f"its numbers are {str(said)[:20]!r}; {', '.join(_FLOATS)} are read")
    if len(shape) > _MOST_AXES or not all(map(is_size, (*shape, start, stop))):
        raise OneTensorError(f"its sizes are not those of a tensor of up to {_MOST_AXES} axes")
    strides = tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
    return _checked(dtype, shape, strides, 0, data[8 + length + start : 8 + length + stop])


def _checked(storage: Storage, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, data: bytes) -> OneTensor:
    """Raises OneTensorError if the numbers are of another type, or an element lies beyond the storage."""
    dtype = _FLOATS.get(storage)
    if dtype is None:
        raise OneTensorError(f"its numbers are {storage}; {', '.join(_FLOATS)} are read")
    is_sane = len(shape) <= _MOST_AXES and len(strides) == len(shape) and all(map(is_size, (*shape, *strides, offset)))
    if not is_sane:
        raise OneTensorError(f"its sizes are not those of a tensor of up to {_MOST_AXES} axes")
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if 0 not in shape and stored_bytes(storage, (last + 1,)) > len(data):
        raise OneTensorError(f"its shape {list(shape)} needs more numbers than it brings")
    return OneTensor(dtype, shape, strides, offset, data)
