"""A tensor of a stranger: what torch and safetensors write is read, and nothing that it says is run."""

import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save

from appliance.checkpoint.one_tensor import OneTensorError, read_tensor


def saved(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


TENSORS = {
    "f32": torch.randn(5, 8),
    "f16": torch.randn(5, 8).half(),
    "bf16": torch.randn(5, 8).bfloat16(),
    "some rows": torch.randn(9, 8)[2:5],
    "turned": torch.randn(8, 5).T,
    "of a batch": torch.randn(2, 5, 8)[1],
    "three axes": torch.randn(1, 5, 8),
    "repeated": torch.randn(1, 8).expand(6, 8),
    "a parameter": torch.nn.Parameter(torch.randn(3, 8)),
}


def numbers(tensor: torch.Tensor) -> bytes:
    whole = tensor.detach().contiguous()
    return whole.view(torch.int32 if whole.element_size() == 4 else torch.int16).numpy().tobytes()


@pytest.mark.parametrize("name", TENSORS)
def test_what_torch_saves(name: str) -> None:
    tensor = TENSORS[name]
    read = read_tensor(saved(tensor))
    assert read.shape == tuple(tensor.shape)
    assert read.rows() == numbers(tensor)


@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
def test_what_safetensors_saves(name: str) -> None:
    read = read_tensor(save({"anything": TENSORS[name]}))
    assert (read.dtype, read.shape, read.rows()) == (name, (5, 8), numbers(TENSORS[name]))


class Runs:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("exit 1",)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (Runs(), "names 'posix system'"),
        ([torch.ones(2, 2)], "EMPTY_LIST"),
        ({"a": torch.ones(2, 2)}, "EMPTY_DICT"),
        (torch.ones(2, 2).to_sparse(), "_rebuild_sparse_tensor"),
        ("a text", "holds a str"),
        (torch.ones(2, 2, 2, 2), "3 axes"),
    ],
)
def test_anything_else_is_refused(value: object, problem: str) -> None:
    with pytest.raises(OneTensorError, match=problem):
        read_tensor(saved(value))


@pytest.mark.parametrize("tensor", [torch.ones(2, 2, dtype=torch.int64), torch.ones(2, 2).double()])
def test_other_numbers_are_refused(tensor: torch.Tensor) -> None:
    with pytest.raises(OneTensorError, match="f32, f16, bf16 are read"):
        read_tensor(saved(tensor))


@pytest.mark.parametrize(
    "data", [b"", b"abc", b"PK\x03\x04", b"\x00" * 40, saved(torch.ones(4, 4))[:-90], struct.pack("<Q", 2) + b"[]"]
)
def test_bytes_of_another_form_are_refused(data: bytes) -> None:
    with pytest.raises(OneTensorError):
        read_tensor(data)


def archive(description: bytes, data: bytes = b"\x00" * 16, compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as written:
        written.writestr("archive/data.pkl", description)
        written.writestr("archive/data/0", data)
    return buffer.getvalue()


def described(shape: tuple[object, ...], strides: tuple[object, ...], offset: object = 0, kind: str = "Float") -> bytes:
    """The description of a tensor of any sizes over a storage of 4 numbers."""
    storage = (
        b"(X\x07\x00\x00\x00storagectorch\n" + kind.encode() + b"Storage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x04tQ"
    )

    def plain(value: object) -> bytes:
        return pickle.dumps(value, 2)[2:-1]

    sizes = plain(offset) + plain(shape) + plain(strides)
    return b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(" + storage + sizes + b"\x89ccollections\nOrderedDict\n)RtR."


# A dictionary whose one name is a tuple of two tuples, and so on, 60 deep: to hash it takes 2**60 steps.
DOUBLED = (
    b"\x80\x02ccollections\nOrderedDict\n)"
    + b"".join(b"q%ch%c\x86" % (depth, depth) for depth in range(60))
    + b"K\x01\x86\x85\x85R."
)


def test_the_description_above_is_one() -> None:
    data = np.arange(4, dtype=np.float32).tobytes()
    assert read_tensor(archive(described((2, 2), (2, 1)), data)).rows() == data


@pytest.mark.parametrize(
    "description",
    [
        described((3, 2), (2, 1)),
        described((2, 2), (2, 1), offset=1),
        described((2, 2), (2, 1), offset=-1),
        described((2, -2), (2, 1)),
        described((2, 2), (2,)),
        described((2, "2"), (2, 1)),
        described((1 << 50, 1), (0, 0)),
        described((2, 2), (2, 1), kind="Object"),
        b"\x80\x02" + b"(" * 100 + b".",
        b"\x80\x02r\xff\xff\xff\x7f.",
        b"K\x01" * 9000 + b".",
        b"",
        DOUBLED,
    ],
)
def test_a_false_description_is_refused(description: bytes) -> None:
    with pytest.raises(OneTensorError):
        read_tensor(archive(description))


def test_an_archive_that_zipfile_does_not_read_is_refused() -> None:
    """Whatever zipfile raises of it, and these are not its own errors alone."""
    good = archive(described((2, 2), (2, 1)))
    name = good.rindex(b"archive/data.pkl")  # in the directory, 38 bytes after the flags, of which one is UTF-8
    begin = len(good) - 6  # where the end of the archive tells how long the directory is from its beginning
    for false in (
        good[: name - 38] + b"\x00\x08" + good[name - 36 : name] + b"\xff" + good[name + 1 :],
        good[:begin] + b"\xff\xff\xff\x00" + good[begin + 4 :],
        good[:4] + good[5:],
    ):
        with pytest.raises(OneTensorError, match=r"no archive of torch\.save"):
            read_tensor(false)
    buffer = io.BytesIO(good)
    with zipfile.ZipFile(buffer, "a") as written:
        for number in range(64):
            written.writestr(f"archive/{number}", b"")
    with pytest.raises(OneTensorError, match="more than 64 entries"):
        read_tensor(buffer.getvalue())


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"dtype": "F32", "shape": [9] * 5000, "data_offsets": [0, 4]}, "3 axes"),
        ({"dtype": "F32", "shape": [-1, 4], "data_offsets": [0, 4]}, "3 axes"),
        ({"dtype": "F32", "shape": [2, 4], "data_offsets": [0, 4]}, "more numbers than it brings"),
        ({"dtype": "I32", "shape": [1, 1], "data_offsets": [0, 4]}, "f32, f16, bf16 are read"),
        ({"dtype": "F7", "shape": [1, 1], "data_offsets": [0, 4]}, "'F7'; f32, f16, bf16 are read"),
        ({"dtype": ["F32"], "shape": [1, 1], "data_offsets": [0, 4]}, "header is not that of one tensor"),
    ],
)
def test_a_false_header_is_refused(entry: dict[str, object], problem: str) -> None:
    header = json.dumps({"a": entry}).encode()
    with pytest.raises(OneTensorError, match=problem):
        read_tensor(struct.pack("<Q", len(header)) + header + b"\x00" * 4)


def test_what_is_compressed_or_in_another_byte_order_is_refused() -> None:
    good = described((2, 2), (2, 1))
    with pytest.raises(OneTensorError, match="not compressed"):
        read_tensor(archive(good, compression=zipfile.ZIP_DEFLATED))
    buffer = io.BytesIO(archive(good))
    with zipfile.ZipFile(buffer, "a") as written:
        written.writestr("archive/byteorder", b"big")
    with pytest.raises(OneTensorError, match="byte order"):
        read_tensor(buffer.getvalue())
