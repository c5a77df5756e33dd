"""Micro-benchmarks of the native kernels: share of the measured bandwidth and peak, a weight layout and batch size.

    python docs/benchmarks/kernels.py [--level avx2] [--threads 2] [--seconds 0.3] [--rows 1,4,16,256]

A GEMV's floor is the time to read the packed weights at the measured bandwidth; a GEMM's the time of its operations at
the measured peak of its arithmetic: f32, bf16 over weights of bf16, or int8 where activations are quantized. Figures
are the best of the repeats that fit into --seconds.
"""

import argparse
import dataclasses
import pathlib
import sys
import time

import numpy as np

from appliance.kernels.cpu.kernel_set import CpuExecutable, CpuKernelSet
from appliance.kernels.cpu.library import Library, load_level
from appliance.kernels.execution import Execution, ExecutionLimits, Numerics, Placement
from appliance.kernels.interface import StepInputs
from appliance.kernels.layout import PAIRED_LAYOUTS, CanonicalWeight, Layout
from appliance.kernels.measure import peak, read_bandwidth, thread_pool
from appliance.program.operators import Embed, GatherRows, Linear, StepProgram
from appliance.program.slots import Extent, Slot, Span

WIDTH = 2048
TOTAL_BYTES = 96 << 20  # of canonical weights, so that a step reads them from memory


@dataclasses.dataclass(frozen=True)
class SubGroups:
    """Groups of 256 columns, in sub-groups of `size`."""

    size: int
    is_symmetric: bool = False


CASES = {
    "f32": (Layout.F32, None, False),
    "f16": (Layout.F16, None, False),
    "bf16": (Layout.BF16, None, False),
    "int8": (Layout.INT8, WIDTH, True),
    "int8 g32": (Layout.INT8, 32, True),
    "int6 g16": (Layout.INT6, 16, True),
    "int5 g32": (Layout.INT5, 32, True),
    "int4 g32": (Layout.INT4, 32, True),
    "int4 g128": (Layout.INT4, 128, True),
    "int4 256/32": (Layout.INT4, SubGroups(32), True),  # GGUF's Q4_K, Q5_K and Q6_K
    "int5 256/32": (Layout.INT5, SubGroups(32), True),
    "int6 256/16": (Layout.INT6, SubGroups(16, is_symmetric=True), True),
    "e2m1 g32": (Layout.E2M1, 32, True),  # MXFP4; NVFP4 has groups of 16
    "e2m1 g16": (Layout.E2M1, 16, True),
    "iq4_nl g32": (Layout.IQ4_NL, 32, True),
    "nf4 g64": (Layout.NF4, 64, False),
    "f8 g128": (Layout.F8, 128, False),
    "int8 g32 x f32": (Layout.INT8, 32, False),
    "int4 g32 x f32": (Layout.INT4, 32, False),
}


def with_sub_groups(rng: np.random.Generator, weight: CanonicalWeight, sub_groups: SubGroups) -> CanonicalWeight:
    factors = rng.integers(0, 64, (2, WIDTH, WIDTH // sub_groups.size), np.int8)
    return dataclasses.replace(
        weight,
        offset=weight.offset if sub_groups.is_symmetric else weight.scale,
        sub_scale=factors[0],
        sub_offset=factors[0 if sub_groups.is_symmetric else 1],
        sub_group_size=sub_groups.size,
    )


def random_weight(rng: np.random.Generator, layout: Layout, group_size: int | SubGroups | None) -> CanonicalWeight:
    if isinstance(group_size, SubGroups):
        return with_sub_groups(rng, random_weight(rng, layout, 256), group_size)
    dtype = {Layout.F32: np.float32, Layout.F16: np.float16, Layout.BF16: np.uint16, Layout.INT8: np.int8}
    columns = WIDTH // 2 if layout in PAIRED_LAYOUTS else WIDTH
    largest = {Layout.INT5: 31, Layout.INT6: 63}.get(layout, 99)
    data = rng.integers(0, largest + 1, (WIDTH, columns)).astype(dtype.get(layout, np.uint8))
    if layout is Layout.BF16:
        data += 0x3F80  # 1 to 1.8: processors are slow at subnormal numbers
    if group_size is None:
        return CanonicalWeight(layout, WIDTH, WIDTH, data)
    scale = np.full((WIDTH, WIDTH // group_size), 0.01, np.float16)
    if layout is Layout.E2M1 and group_size == 32:
        scale = np.full(scale.shape, 120, np.uint8)  # e8m0: 2^-7
    middle = {Layout.INT4: 8, Layout.INT5: 16, Layout.INT6: 32}.get(layout)  # kernels need no offsets then
    offset = None if middle is None else scale * np.float16(-middle)
    return CanonicalWeight(layout, WIDTH, WIDTH, data, scale, offset, group_size)


def build(
    library: Library, case: tuple[Layout, int | SubGroups | None, bool], rows: int, threads: int
) -> tuple[CpuExecutable, int]:
    """A chain of Linears, and the number of them."""
    layout, group_size, quantize = case
    rng = np.random.default_rng(0)
    weight = random_weight(rng, layout, group_size)
    count = max(1, TOTAL_BYTES // weight.data.nbytes)
    slots = (Slot(0, Extent.TOKENS, WIDTH), Slot(1, Extent.TOKENS, WIDTH), Slot(2, Extent.SAMPLED, WIDTH))
    spans = [Span(slot, 0, WIDTH) for slot in slots]
    linears = [Linear(spans[i % 2], f"w{i}", spans[1 - i % 2]) for i in range(count)]
    program = StepProgram((Embed("x", slots[0]), *linears, GatherRows(slots[count % 2], slots[2])), slots, slots[2])
    table = CanonicalWeight(Layout.F32, 1, WIDTH, rng.standard_normal((1, WIDTH)).astype(np.float32))
    weights = {"x": table, **{f"w{i}": weight for i in range(count)}}
    execution = Execution(ExecutionLimits(rows, 1, 1, rows, 16, 1), Numerics("f32", quantize), Placement(threads))
    return CpuKernelSet("benchmark", library).bind(program, weights, execution), count


def best_seconds(executable: CpuExecutable, rows: int, seconds: float) -> float:
    zeros = np.zeros(rows, np.int32)
    inputs = StepInputs(
        zeros, zeros, zeros[None] - 1, np.array([0, rows], np.int32), np.array([rows], np.int32),
        np.zeros((1, 1, rows), np.int32), zeros[:1],
    )  # fmt: skip
    executable.run(inputs)
    best, start = float("inf"), time.perf_counter()
    while time.perf_counter() - start < seconds:
        begin = time.perf_counter()
        executable.run(inputs)
        best = min(best, time.perf_counter() - begin)
    return best


def unit(case: tuple[Layout, int | SubGroups | None, bool]) -> str:
    layout, _, quantize = case
    return "int8" if quantize else "bf16" if layout is Layout.BF16 else "f32"


def write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", default="avx2")
    parser.add_argument("--library", type=pathlib.Path, help="a library file instead of the installed one")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--rows", default="1,4,16,256")
    parser.add_argument("--cases", default=",".join(CASES))
    arguments = parser.parse_args()
    library = Library(arguments.library) if arguments.library else load_level(arguments.level)
    with thread_pool(library, arguments.threads) as pool:
        bandwidth = read_bandwidth(library, pool, 0.5)
        peaks = {name: peak(library, pool, name, 0.3) for name in ("f32", "bf16", "int8", "int4")}
    write(
        f"read bandwidth {bandwidth / 1e9:.1f} GB/s; peaks in Gop/s: { {k: round(v / 1e9) for k, v in peaks.items()} }"
    )
    write(f"{'weights':22}{'rows':>6}{'ms':>10}{'GB/s':>8}{'of read':>9}{'Gop/s':>8}{'of peak':>9}")
    for name in arguments.cases.split(","):
        for rows in map(int, arguments.rows.split(",")):
            executable, count = build(library, CASES[name], rows, arguments.threads)
            seconds = best_seconds(executable, rows, arguments.seconds)
            rate = executable.memory_bytes["weights"] / seconds
            operations = 2 * rows * WIDTH * WIDTH * count / seconds
            executable.close()
            write(
                f"{name:22}{rows:6}{seconds * 1e3:10.2f}{rate / 1e9:8.1f}{rate / bandwidth:9.0%}"
                f"{operations / 1e9:8.0f}{operations / peaks[unit(CASES[name])]:9.0%}"
            )


if __name__ == "__main__":
    main()
