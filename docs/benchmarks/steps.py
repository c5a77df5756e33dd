"""Steps of a whole model with two or more builds of the native library in turn, in one process.

    python docs/benchmarks/steps.py FOLDER_OR_GGUF old.so,new.so [--decodes 1,4,16] [--prompts 512] [--context 400]

Neighbours move what a machine gives within seconds, so runs of one library and then of the other say little. Here
they alternate step by step; the ratio is the median of the pairs' ratios, above 1 where a library is faster than the
first one. The libraries must be of one ABI version and of the level that the plan chooses, or that --level names.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from appliance.base.environ import cache_dir
from appliance.checkpoint.read import read_model_facts
from appliance.engine.backend import PACKED_FOLDER, execution_of
from appliance.engine.core.config import SchedulerConfig
from appliance.kernels.cpu.kernel_set import CpuKernelSet
from appliance.kernels.cpu.library import Library
from appliance.kernels.interface import Executable, StepInputs
from appliance.loading.model import load_model
from appliance.plan.prepare import prepare

SPEC = Path(__file__).parent / "contests" / "spec.yaml"


def bind(model: str, libraries: list[str], level: str | None, num_blocks: int) -> tuple[list[Executable], int]:
    """An executable a library, and the tokens of a block."""
    plan = prepare(SPEC, [f"model.source={model}", f"cache.num_blocks={num_blocks}"]).plan
    config = SchedulerConfig.from_plan(plan)
    facts = read_model_facts(Path(plan.model.path), cache_dir())
    level = level or plan.kernels.kernel_set.removeprefix("cpu-")
    sets = [CpuKernelSet(level, Library(Path(path))) for path in libraries]
    execution, folder = execution_of(plan, config), cache_dir() / PACKED_FOLDER
    loaded = [load_model(plan, facts, kernels, execution, lambda done, total: None, folder) for kernels in sets]
    return [each.executable for each in loaded], config.block_size


def prompt(length: int, block_size: int, first_block: int = 0) -> StepInputs:
    """A prompt whose blocks lie together from first_block on."""
    positions = np.arange(length, dtype=np.int32)
    table = np.arange(first_block, first_block + -(-length // block_size), dtype=np.int32)[None]
    return StepInputs(
        positions % 1000 + 5, positions, positions[None] + np.int32(first_block * block_size),
        np.array([0, length], np.int32), np.array([length], np.int32), table[None], np.array([length - 1], np.int32),
    )  # fmt: skip


def decodes(count: int, context: int, block_size: int) -> StepInputs:
    """One token of each of `count` sequences, the last of `context`."""
    blocks = -(-context // block_size)
    table = np.arange(count * blocks, dtype=np.int32).reshape(count, blocks)
    rows, ends = np.arange(count, dtype=np.int32), np.full(count, context, np.int32)
    slots = table[:, -1] * np.int32(block_size) + np.int32((context - 1) % block_size)
    return StepInputs(rows + 7, ends - 1, slots[None], np.arange(count + 1, dtype=np.int32), ends, table[None], rows)


def times_in_turn(executables: list[Executable], inputs: StepInputs, seconds: float) -> Iterator[list[float]]:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        times = []
        for executable in executables:
            begin = time.perf_counter()
            executable.run(inputs)
            times.append(time.perf_counter() - begin)
        yield times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("libraries")
    parser.add_argument("--decodes", default="1,4,16")
    parser.add_argument("--prompts", default="512")
    parser.add_argument("--context", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each line")
    parser.add_argument("--level")
    arguments = parser.parse_args()
    counts, lengths = ([int(x) for x in text.split(",") if x] for text in (arguments.decodes, arguments.prompts))
    num_blocks = max(256, (max(counts, default=0) + 1) * (arguments.context // 8 + 1))
    executables, size = bind(arguments.model, arguments.libraries.split(","), arguments.level, num_blocks)
    for executable in executables:
        for index in range(max(counts, default=0)):
            executable.run(prompt(arguments.context, size, index * -(-arguments.context // size)))
    work = [(f"{count} decodes", decodes(count, arguments.context, size)) for count in counts]
    work += [(f"prompt of {length}", prompt(length, size)) for length in lengths]
    for name, inputs in work:
        columns = list(zip(*times_in_turn(executables, inputs, arguments.seconds), strict=True))
        parts = [f"{statistics.median(columns[0]) * 1e3:9.2f} ms"]
        for column in columns[1:]:
            ratio = statistics.median(first / own for first, own in zip(columns[0], column, strict=True))
            parts.append(f"{statistics.median(column) * 1e3:9.2f} ms {ratio:6.3f}x")
        sys.stdout.write(f"{name:16}" + " |".join(parts) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
