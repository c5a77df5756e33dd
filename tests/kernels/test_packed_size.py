"""The planner's formula against the bytes that the native library takes."""

import itertools

import numpy as np
import pytest

from appliance.catalog.formats import WeightForm
from appliance.catalog.kernel_sets import KERNEL_SETS
from appliance.catalog.packing import packed_bytes
from appliance.kernels.cpu.kernel_set import CpuKernelSet
from appliance.kernels.layout import CODED_LAYOUTS, CanonicalWeight, Layout
from appliance.program.operators import Linear
from tests.kernels.harness import GROUP_UNITS, Graph, execution_of, random_coded, random_sub_groups, whole

pytestmark = pytest.mark.many_cases

ROWS = (1, 15, 16, 17, 33, 96)
DENSE_COLUMNS = (1, 2, 7, 64, 97)
ROW_COLUMNS = (8, 24, 36, 62, 97)  # one scale a row


def packed_here(native: CpuKernelSet, weight: CanonicalWeight) -> int:
    graph = Graph()
    x, out = graph.slot(weight.in_features), graph.slot(weight.out_features)
    graph.add(Linear(whole(x), graph.weight(weight), whole(out)))
    executable = native.bind(graph.program(out), graph.weights, execution_of())
    size = executable.memory_bytes["weights"]
    executable.close()
    return size


@pytest.mark.parametrize("layout", ["f32", "f16", "bf16"])
def test_dense_matrices(native: CpuKernelSet, layout: str) -> None:
    types = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}
    for rows, columns in itertools.product(ROWS, DENSE_COLUMNS):
        weight = CanonicalWeight(Layout(layout), rows, columns, np.zeros((rows, columns), types[layout]))
        assert packed_bytes(WeightForm(layout), rows, columns, 16) == packed_here(native, weight), (rows, columns)


@pytest.mark.parametrize("has_offset", [False, True])
@pytest.mark.parametrize("scale_type", [np.float16, np.float32])
@pytest.mark.parametrize("layout", ["int8", "int4", "int5", "int6"])
def test_quantized_matrices(native: CpuKernelSet, layout: str, scale_type: type, has_offset: bool) -> None:
    widths = [(group, groups * group) for group in (8, 16, 32, 64) for groups in (1, 3)]
    widths += [(columns, columns) for columns in ROW_COLUMNS if layout == "int8" or columns % 2 == 0]
    unit = GROUP_UNITS.get(Layout(layout), 1)
    widths = [(group, columns) for group, columns in widths if group % unit == 0]
    for rows, (group, columns) in itertools.product(ROWS, widths):
        form = WeightForm(layout, group, has_offset, np.dtype(scale_type).itemsize)
        per_byte = 2 if layout == "int4" else 1
        data = np.zeros((rows, columns // per_byte), np.int8 if layout == "int8" else np.uint8)
        scale = np.ones((rows, columns // group), scale_type)
        offset = np.full_like(scale, 3.0) if has_offset else None  # minus the middle of the codes would not be kept
        weight = CanonicalWeight(Layout(layout), rows, columns, data, scale, offset, group)
        planned = packed_bytes(form, rows, columns, 16)
        assert planned == packed_here(native, weight), (form, rows, columns)


@pytest.mark.parametrize("scale_type", [np.uint8, np.float16, np.float32])
@pytest.mark.parametrize("layout", CODED_LAYOUTS)
def test_codes_that_stand_for_floats(native: CpuKernelSet, layout: Layout, scale_type: type) -> None:
    if layout is Layout.F8 and scale_type is np.uint8:
        scale_type = np.float32  # it has no e8m0
    rng = np.random.default_rng(0)
    widths = [(group, groups * group) for group in (16, 32, 128) for groups in (1, 3)] + [(36, 36), (62, 62)]
    for rows, (group, columns) in itertools.product((1, 17, 96), widths):
        weight = random_coded(rng, layout, rows, columns, group, scale_type)
        form = WeightForm(layout.value, group, scale_bytes=np.dtype(scale_type).itemsize)
        assert packed_bytes(form, rows, columns, 16) == packed_here(native, weight), (rows, columns)


@pytest.mark.parametrize("offset", ["none", "symmetric", "free"])
@pytest.mark.parametrize(("layout", "size"), [("int4", 32), ("int4", 16), ("int5", 32), ("int6", 16)])
def test_sub_groups(native: CpuKernelSet, layout: str, size: int, offset: str) -> None:
    rng = np.random.default_rng(0)
    for rows, columns in itertools.product((1, 17, 96), (256, 768)):
        weight = random_sub_groups(rng, Layout(layout), rows, columns, size, offset)
        form = WeightForm(layout, 256, offset == "free", sub_group_size=size)
        assert packed_bytes(form, rows, columns, 16) == packed_here(native, weight), (rows, columns)


def test_one_scale_a_row_may_go_without_a_group_size() -> None:
    assert packed_bytes(WeightForm("int8"), 5, 97, 16) == packed_bytes(WeightForm("int8", 97), 5, 97, 16)


def test_every_native_set_packs_alike() -> None:
    native = [entry for entry in KERNEL_SETS.values() if entry.level is not None]
    assert {entry.panel for entry in native} == {16}
