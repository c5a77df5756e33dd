"""The formulas of a device's memory where they bound what tables choose."""

import itertools

import numpy as np
import pytest
import torch

from appliance.catalog.gpu_operators import FEW_ROWS
from appliance.kernels.gpu.device import Device
from appliance.kernels.gpu.triton.attention_decode import choose_decode, decode_workspace
from appliance.kernels.gpu.triton.linear_tiles import choose_linear
from appliance.kernels.gpu.triton.packing import PackedQuantized, pack
from appliance.kernels.gpu.triton.quantized import choose_quantized
from appliance.kernels.gpu.triton_draws import DrawMemory
from appliance.kernels.layout import Layout
from appliance.program.caches import KvShape
from appliance.program.device_memory import draw_bytes, product_numbers, share_numbers
from appliance.program.operators import Linear, PagedAttention, StepProgram
from tests.kernels.harness import Graph, random_quantized, whole

GROUPS = ((1, 64), (4, 128), (8, 64), (16, 192))  # query heads of a KV head, and columns


def attending(num_kv_heads: int, group: int, head_dim: int) -> tuple[StepProgram, PagedAttention]:
    graph = Graph()
    q, out = (graph.slot(num_kv_heads * group * head_dim) for _ in range(2))
    op = PagedAttention(whole(q), out, 0, num_kv_heads * group, num_kv_heads, head_dim, head_dim**-0.5)
    graph.add(op)
    return graph.program(out, [KvShape(num_kv_heads, head_dim, head_dim)]), op


@pytest.mark.parametrize("arch", ["sm80", "sm90", "gfx942"])
@pytest.mark.parametrize("batch_invariant", [False, True])
def test_shares_of_attention_have_room_for_any_number_of_sequences(arch: str, batch_invariant: bool) -> None:
    most = 300
    for (group, head_dim), heads, processors in itertools.product(GROUPS, (1, 2, 8), (4, 108, 304)):
        program, op = attending(heads, group, head_dim)
        room = share_numbers([program], most, processors, batch_invariant=batch_invariant)
        for count in range(1, most + 1):
            sizes = (count, heads, 1 << 17, processors, batch_invariant)
            tile = choose_decode(group, head_dim, head_dim, torch.bfloat16, arch, *sizes)
            assert decode_workspace(count, op.num_heads, head_dim, tile.splits) <= room, (group, heads, count)


def random_matrix(features: int, columns: int) -> PackedQuantized:
    return pack(random_quantized(np.random.default_rng(1), Layout.INT8, features, columns, 32))


@pytest.mark.parametrize("arch", ["sm80", "sm90", "gfx942"])
def test_shares_of_products_have_room_for_any_width(arch: str) -> None:
    for features, processors in itertools.product((16, 64, 100, 896, 4096, 28672), (4, 108, 304)):
        graph = Graph()
        x, out = graph.slot(32), graph.slot(features)
        graph.add(Linear(whole(x), graph.vector(np.zeros(32, np.float32)), whole(out)))
        room = product_numbers([graph.program(out)], FEW_ROWS, processors)
        for columns in (256, 14336):
            chosen = choose_linear(features, columns, FEW_ROWS, torch.bfloat16, arch, processors)[1]
            assert chosen.splits == 1 or chosen.splits * features * FEW_ROWS <= room, (features, columns)
    for features, processors in itertools.product((16, 100, 896), (4, 108, 304)):
        matrix = random_matrix(features, 2048)
        chosen = choose_quantized(matrix, 32, arch, processors)[1]
        wide = min(8 * features, -(-512 * processors // 3))
        assert chosen.splits == 1 or chosen.splits * features <= wide, (features, processors)


def test_draws_are_counted_to_the_byte() -> None:
    assert DrawMemory(5, Device(torch.device("cpu"))).size_bytes == draw_bytes(5)
