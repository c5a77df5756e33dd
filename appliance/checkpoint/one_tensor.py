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
from typing import Any, Final, NamedTuple

import numpy as np

MOST_DESCRIPTION_BYTES: Final = 16 << 10
_ZIP: Final = b"PK\x03\x04"
_MOST_AXES: Final = 3
_ELEMENTS: Final = {
    "torch FloatStorage": "f32", "torch HalfStorage": "f16", "torch BFloat16Storage": "bf16",
    "torch DoubleStorage": "f64", "torch LongStorage": "i64", "torch IntStorage": "i32", "torch ShortStorage": "i16",
    "torch CharStorage": "i8", "torch ByteStorage": "u8", "torch BoolStorage": "bool",
}  # fmt: skip
_NUMPY: Final = {"f32": "<f4", "f16": "<f2", "bf16": "<u2"}
_TENSOR, _PARAMETER = "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_parameter"
_ORDERED_DICT: Final = "collections OrderedDict"
_NAMES: Final = frozenset({*_ELEMENTS, _TENSOR, _PARAMETER, _ORDERED_DICT})
_CONSTANTS: Final = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_NUMBERS: Final = frozenset({"BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "SHORT_BINUNICODE"})
_TUPLES: Final = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_SAFETENSORS: Final = {"F32": "f32", "F16": "f16", "BF16": "bf16"}


class OneTensorError(ValueError):
    """The bytes are no tensor that is read here."""


class OneTensor(NamedTuple):
    """dtype: "f32", or another of the names of storages. data: those of its whole storage, of which the tensor is the
    elements `offset` + i * strides."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    data: bytes

    def rows(self) -> bytes:
        """Returns its elements row by row, little-endian. Its shape says how many, and is to be looked at before: a
        stride of 0 makes much of little. Raises OneTensorError if they are not f32, f16 or bf16."""
        if self.dtype not in _NUMPY:
            raise OneTensorError(f"its numbers are {self.dtype}; f32, f16 and bf16 are read")
        stored = np.frombuffer(self.data, _NUMPY[self.dtype], len(self.data) // _size(self.dtype))
        strides = tuple(stride * stored.itemsize for stride in self.strides)
        return np.lib.stride_tricks.as_strided(stored[self.offset :], self.shape, strides, writeable=False).tobytes()


def read_tensor(data: bytes) -> OneTensor:
    """Returns the tensor. Raises OneTensorError."""
    return _of_archive(data) if data.startswith(_ZIP) else _of_safetensors(data)


class _Name(str):
    """A global that the description names."""


class _Storage(NamedTuple):
    dtype: str
    key: str


class _Described(NamedTuple):
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _of_archive(data: bytes) -> OneTensor:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = {entry.filename.partition("/")[2]: entry for entry in archive.infolist()}
            described = _described(_entry(archive, entries, "data.pkl", MOST_DESCRIPTION_BYTES))
            if "byteorder" in entries and _entry(archive, entries, "byteorder", 6) != b"little":
                raise OneTensorError("its numbers are in another byte order than little")
            stored = _entry(archive, entries, f"data/{described.storage.key}", len(data))
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        raise OneTensorError(f"it is no archive of torch.save: {error}") from error
    return _checked(OneTensor(described.storage.dtype, described.shape, described.strides, described.offset, stored))


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
    except OneTensorError:
        raise
    except (ValueError, TypeError, LookupError, OverflowError) as error:
        raise OneTensorError(f"its description is not that of a tensor: {error}") from error
    if not isinstance(found, _Described):
        raise OneTensorError(f"it holds a {type(found).__name__}, not one tensor")
    return found


class _Machine:
    """Follows the description of a tensor. Each instruction pushes a plain value, or is refused."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._calls: dict[str, Callable[..., Any]] = {
            _TENSOR: _rebuilt, _PARAMETER: lambda tensor, *_: tensor, _ORDERED_DICT: dict,
        }  # fmt: skip

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
            stack.append(self._calls[called if isinstance(called, _Name) else ""](*arguments))
        else:
            raise OneTensorError(f"its description has the instruction {name}, which describes no tensor")

    def _join(self, start: int) -> None:
        self._stack[start:] = [tuple(self._stack[start:])]


def _known(name: str) -> _Name:
    if name not in _NAMES:
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


def _of_safetensors(data: bytes) -> OneTensor:
    length = int.from_bytes(data[:8], "little")
    if not 2 <= length <= min(MOST_DESCRIPTION_BYTES, len(data) - 8):
        raise OneTensorError("it is neither an archive of torch.save nor a file of safetensors")
    try:
        header = json.loads(data[8 : 8 + length])
        ((_, tensor),) = ((name, value) for name, value in header.items() if name != "__metadata__")
        shape, (start, stop) = tuple(tensor["shape"]), tensor["data_offsets"]
        dtype = _SAFETENSORS.get(tensor["dtype"], str(tensor["dtype"])[:20])
        if not all(type(each) is int and each >= 0 for each in (*shape, start, stop)):
            raise OneTensorError("its header has other sizes than whole numbers")
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise OneTensorError(f"its header is not that of one tensor: {error}") from error
    strides = tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
    return _checked(OneTensor(dtype, shape, strides, 0, data[8 + length + start : 8 + length + stop]))


def _checked(tensor: OneTensor) -> OneTensor:
    """Raises OneTensorError if an element lies beyond the storage."""
    sizes = (*tensor.shape, *tensor.strides, tensor.offset)
    is_sane = all(type(size) is int and 0 <= size < 1 << 40 for size in sizes) and len(tensor.shape) <= _MOST_AXES
    if not is_sane or len(tensor.strides) != len(tensor.shape):
        raise OneTensorError("its sizes are not those of a tensor of up to 3 axes")
    last = tensor.offset + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.strides, strict=True))
    if 0 not in tensor.shape and (last + 1) * _size(tensor.dtype) > len(tensor.data):
        raise OneTensorError(f"its shape {list(tensor.shape)} needs more numbers than it brings")
    return tensor


def _size(dtype: str) -> int:
    return np.dtype(_NUMPY.get(dtype, "u1")).itemsize
