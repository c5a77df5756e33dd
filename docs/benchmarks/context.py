"""Attention over long contexts: share of the measured bandwidth, a context length and a number of streams.

    python docs/benchmarks/context.py [--level avx2] [--threads 2] [--heads 14] [--kv-heads 2] [--head-dim 64]
        [--kv-dtype bf16]

A decode's floor is the time to read its keys and values at the measured bandwidth, which is measured in turn with
the attention. Figures are the best of the repeats that fit into --seconds. The heads are those of Qwen2.5 0.5B.
"""

import argparse
import pathlib
import sys
import time

import numpy as np

from appliance.kernels.cpu.kernel_set import CpuExecutable, CpuKernelSet
from appliance.kernels.cpu.library import Library, load_level
from appliance.kernels.execution import Execution, ExecutionLimits, Numerics, Placement
from appliance.kernels.interface import StepInputs
from appliance.kernels.layout import CanonicalWeight, Layout
from appliance.kernels.measure import read_bandwidth, thread_pool
from appliance.program import operators as ops
from appliance.program.caches import KV_BYTES, KvShape, kv_scale_bytes
from appliance.program.operators import StepProgram
from appliance.program.slots import Extent, Slot, Span

BLOCK, NUM_LAYERS = 16, 4
CONTEXTS, STREAMS = (1024, 4096, 16384), (1, 8)


def build(library: Library, threads: int, heads: int, kv_heads: int, head_dim: int, kv_dtype: str) -> CpuExecutable:
    """Layers of attention alone."""
    width, kv_width = heads * head_dim, kv_heads * head_dim
    qkv, mixed = Slot(0, Extent.TOKENS, width + 2 * kv_width), Slot(1, Extent.TOKENS, width)
    wanted = Slot(2, Extent.SAMPLED, width)
    operators: list[ops.Operator] = [ops.Embed("x", qkv)]
    for layer in range(NUM_LAYERS):
        keys, values = Span(qkv, width, kv_width), Span(qkv, width + kv_width, kv_width)
        operators.append(ops.KvWrite(keys, values, layer, kv_heads, head_dim))
        operators.append(
            ops.PagedAttention(
                q=Span(qkv, 0, width),
                out=mixed,
                cache=layer,
                num_heads=heads,
                num_kv_heads=kv_heads,
                head_dim=head_dim,
                scale=head_dim**-0.5,
            )
        )
    shapes = (KvShape(kv_heads, head_dim, head_dim),) * NUM_LAYERS
    program = StepProgram((*operators, ops.GatherRows(mixed, wanted)), (qkv, mixed, wanted), wanted, shapes)
    table = np.random.default_rng(0).standard_normal((1, qkv.width)).astype(np.float32)
    most = max(CONTEXTS) * max(STREAMS)
    limits = ExecutionLimits(512, max(STREAMS), max(STREAMS), max(CONTEXTS), BLOCK, most // BLOCK)
    execution = Execution(limits, Numerics(kv_dtype, False), Placement(threads))
    weights = {"x": CanonicalWeight(Layout.F32, 1, qkv.width, table)}
    return CpuKernelSet("benchmark", library).bind(program, weights, execution)


def decode(streams: int, context: int) -> StepInputs:
    """The blocks of the streams are shuffled among each other, as after a while of serving."""
    blocks = np.random.default_rng(1).permutation(streams * context // BLOCK).astype(np.int32).reshape(streams, -1)
    rows = np.arange(streams, dtype=np.int32)
    ends = np.full(streams, context, np.int32)
    slots = blocks[:, -1] * np.int32(BLOCK) + np.int32(BLOCK - 1)
    return StepInputs(rows * 0, ends - 1, slots[None], np.arange(streams + 1, dtype=np.int32), ends, blocks[None], rows)


def touch(executable: CpuExecutable, num_blocks: int) -> None:
    """Writes every block once, so that a read is one of memory."""
    for first in range(0, num_blocks * BLOCK, 512):
        slots = np.arange(first, first + 512, dtype=np.int32)
        starts, ends = np.array([0, 512], np.int32), np.array([512], np.int32)
        table = np.arange(first // BLOCK, first // BLOCK + 512 // BLOCK, dtype=np.int32)[None]
        executable.run(StepInputs(slots * 0, slots - first, slots[None], starts, ends, table[None], slots[:1] * 0))


def seconds_of(executable: CpuExecutable, inputs: StepInputs) -> float:
    begin = time.perf_counter()
    executable.run(inputs)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", default="avx2")
    parser.add_argument("--library", type=pathlib.Path, help="a library file instead of the installed one")
    parser.add_argument("--seconds", type=float, default=1.0)
    for name, default in (("threads", 2), ("heads", 14), ("kv-heads", 2), ("head-dim", 64)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--kv-dtype", default="bf16", choices=sorted(KV_BYTES))
    options = parser.parse_args()
    library = Library(options.library) if options.library else load_level(options.level)
    executable = build(library, options.threads, options.heads, options.kv_heads, options.head_dim, options.kv_dtype)
    touch(executable, max(CONTEXTS) * max(STREAMS) // BLOCK)
    head_bytes = options.head_dim * KV_BYTES[options.kv_dtype] + kv_scale_bytes(options.kv_dtype)
    token_bytes = NUM_LAYERS * 2 * options.kv_heads * head_bytes
    with thread_pool(library, options.threads) as pool:
        for streams in STREAMS:
            for context in CONTEXTS:
                inputs, best, bandwidth = decode(streams, context), float("inf"), 0.0
                until = time.perf_counter() + options.seconds
                while time.perf_counter() < until:
                    best = min(best, *(seconds_of(executable, inputs) for _ in range(5)))
                    bandwidth = max(bandwidth, read_bandwidth(library, pool, 0.05, 256 << 20))
                rate = streams * context * token_bytes / best
                sys.stdout.write(
                    f"{streams} streams of {context:6,} tokens  {best * 1e3:7.3f} ms  {rate / 1e9:5.1f} GB/s"
                    f"  {rate / bandwidth:4.0%} of {bandwidth / 1e9:.1f} GB/s\n"
                )


if __name__ == "__main__":
    main()
