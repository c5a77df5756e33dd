"""Kept weights outlive the code that packed them: when packed bytes change, APPL_PACKED_VERSION must be raised.

A failure here that was meant: raise the version in appliance_abi.h, and write the new digests down.
"""

import ctypes
import hashlib
from dataclasses import replace

import numpy as np
import pytest

from appliance.kernels.cpu import abi
from appliance.kernels.cpu.kernel_set import CpuKernelSet
from appliance.kernels.cpu.library import Library
from appliance.kernels.layout import CanonicalWeight, Layout
from appliance.program.operators import Linear
from tests.kernels.harness import Graph, execution_of, whole

SUB_GROUP_DIGESTS = {  # by layout, size of a sub-group, and whether there are offsets
    ("int4", 32, True): "7d018fe53163dd0d",
    ("int4", 16, False): "02407a381fd63c8e",
    ("int5", 32, True): "55bba6fa7c7dc7c7",
    ("int6", 16, False): "3ff9e95064d0db79",
}

VERSION = 2
DIGESTS = {  # by layout, and whether there are offsets
    ("f32", False): "c79a5498fa77f440",
    ("f16", False): "20902deed8a430ca",
    ("bf16", False): "674d777b8d3a980b",
    ("int8", False): "49a365aaac205f2e",
    ("int8", True): "478a445e2776243a",
    ("int4", False): "11858901fc0a69db",
    ("int4", True): "10a332350566b1a9",
    ("int5", False): "eabc8f84db504cd3",
    ("int5", True): "4a5083d7775ba920",
    ("int6", False): "bd396fbba456561f",
    ("int6", True): "1acd050777ddf61c",
    ("f8", False): "4d85aec471c74317",
    ("e2m1", False): "66fd5376f4195122",
    ("nf4", False): "eeab85da218716dc",
    ("fp4", False): "dab75218af633a16",
    ("iq4_nl", False): "f682b1d0e5bd0b89",
}


def integers(shape: tuple[int, ...], modulus: int) -> np.ndarray:
    """The same numbers everywhere and always, of whatever numpy."""
    return (np.arange(np.prod(shape)).reshape(shape) * 7919 + 13) % modulus


def sample_of_sub_groups(layout: Layout, size: int, has_offset: bool) -> CanonicalWeight:
    n, k = 35, 512
    plain = sample(layout, has_offset, k, 256)
    factors = (integers((2, n, k // size), 127) - 63).astype(np.int8)
    offsets = factors[1] if has_offset else None
    return replace(plain, sub_scale=factors[0], sub_offset=offsets, sub_group_size=size)


def sample(layout: Layout, has_offset: bool, k: int = 96, group: int = 32) -> CanonicalWeight:
    n = 35
    match layout:
        case Layout.F32 | Layout.F16:
            kind = np.float32 if layout is Layout.F32 else np.float16
            return CanonicalWeight(layout, n, k, integers((n, k), 251).astype(kind))
        case Layout.BF16:
            return CanonicalWeight(layout, n, k, integers((n, k), 65521).astype(np.uint16))
        case Layout.INT8:
            data = (integers((n, k), 251) - 125).astype(np.int8)
        case Layout.INT4 | Layout.E2M1 | Layout.NF4 | Layout.FP4 | Layout.IQ4_NL:
            data = integers((n, k // 2), 251).astype(np.uint8)
        case Layout.INT5 | Layout.INT6 | Layout.F8:
            most = {Layout.INT5: 32, Layout.INT6: 64, Layout.F8: 127}[layout]
            data = integers((n, k), most).astype(np.uint8)
    scale = (integers((n, k // group), 61) + 1).astype(np.float16)
    offset = integers((n, k // group), 59).astype(np.float16) if has_offset else None
    return CanonicalWeight(layout, n, k, data, scale, offset, group)


def digest(library: Library, weight: CanonicalWeight) -> str:
    graph = Graph()
    x, out = graph.slot(weight.in_features), graph.slot(weight.out_features)
    name = graph.weight(weight)
    graph.add(Linear(whole(x), name, whole(out)))
    executable = CpuKernelSet("under-test", library).bind(graph.program(out), graph.weights, execution_of())
    handle = executable._weights.matrix(name)
    form = abi.PackedForm()
    library.functions.appl_weight_form(handle, ctypes.byref(form))
    panels = ctypes.string_at(library.functions.appl_weight_panels(handle), form.bytes)
    executable.close()
    fields = [int(getattr(form, field[0])) for field in abi.PackedForm._fields_]
    return hashlib.sha256(str(fields).encode() + panels).hexdigest()[:16]


@pytest.mark.parametrize(("layout", "has_offset"), DIGESTS)
def test_packed_bytes_are_those_of_this_version(library: Library, layout: str, has_offset: bool) -> None:
    assert library.functions.appl_packed_version() == VERSION
    assert digest(library, sample(Layout(layout), has_offset)) == DIGESTS[layout, has_offset]


@pytest.mark.parametrize(("layout", "size", "has_offset"), SUB_GROUP_DIGESTS)
def test_sub_groups_are_those_of_this_version(library: Library, layout: str, size: int, has_offset: bool) -> None:
    weight = sample_of_sub_groups(Layout(layout), size, has_offset)
    assert digest(library, weight) == SUB_GROUP_DIGESTS[layout, size, has_offset]


def test_every_layout_is_watched() -> None:
    assert {layout for layout, _ in DIGESTS} == {layout.value for layout in Layout}
