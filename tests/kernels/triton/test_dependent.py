"""Kernels of a decode begin while those before them end, on GPUs that can do that; those of other steps do not."""

from typing import Any

import numpy as np

from appliance.kernels.gpu.kernel_set import GpuExecutable, GpuKernelSet
from appliance.kernels.gpu.triton.launch import recorded
from appliance.kernels.gpu.triton_kit import TritonKit
from appliance.kernels.layout import Layout
from tests.kernels.harness import Graph, batch_step, execution_of
from tests.kernels.test_program import decoder


def launched(executable: GpuExecutable, counts: list[int]) -> list[bool]:
    """Returns of each kernel of a step whether it depends on the one before; none is started."""
    found: list[bool] = []

    def record(kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        found.append(options["PDL"])
        assert options.get("launch_pdl", False) is options["PDL"]

    tokens = [np.arange(count).tolist() for count in counts]
    with recorded(record):
        executable.run(batch_step(tokens, [0] * len(counts), [[3], [5]], 16))
    return found


def test_kernels_of_a_decode_depend_on_each_other() -> None:
    graph = Graph()
    program = decoder(graph, Layout.INT8)
    executable = GpuKernelSet("torch", with_triton=True).bind(program, graph.weights, execution_of(64))
    assert isinstance(executable._kit, TritonKit)
    assert not any(launched(executable, [1, 1])), "the interpreter runs one after the other"
    executable._kit.has_dependent_launch = True
    decode, chunk = launched(executable, [1, 1]), launched(executable, [1, 3])
    assert len(decode) > 5
    assert all(decode)
    assert len(chunk) > 5
    assert not any(chunk)
