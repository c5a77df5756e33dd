"""Compiles every kernel without a device, and holds what it takes against compiled.json: `make gpu-compile`.

python -m tests.kernels.triton.compiled [--write] [--arch NAME]... [CASE]...

Exit code 1: a kernel takes more than is recorded, or more shared memory than a GPU has. --write records instead.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from appliance.kernels.gpu.triton.ahead import CompiledKernel, KernelLaunch, compile_launch, launches_of
from appliance.kernels.gpu.triton.architectures import architecture
from tests.kernels.triton.cases import ARCHS, CASES

TABLE = Path(__file__).with_name("compiled.json")
MORE_REGISTERS = 1.25  # than recorded: another version of a compiler counts a little otherwise
Table = dict[str, dict[str, list[int]]]  # by architecture and "case: kernel"; registers, spilled and shared bytes


def compiled(case: str, arch: str) -> dict[str, CompiledKernel]:
    """Returns what the kernels of a case take, by "case: kernel", with a number where a kernel is launched again."""
    launches = launches_of(lambda: CASES[case](arch))
    return {name: compile_launch(launch, arch) for name, launch in zip(names(case, launches), launches, strict=True)}


def names(case: str, launches: Sequence[KernelLaunch]) -> list[str]:
    """Returns "case: kernel" for each launch of a case, with a number where a kernel is launched again."""
    counts: Counter[str] = Counter()
    found = []
    for launch in launches:
        counts[launch.name] += 1
        number = "" if counts[launch.name] == 1 else f" {counts[launch.name]}"
        found.append(f"{case}: {launch.name}{number}")
    return found


def excess(name: str, kernel: CompiledKernel, arch: str, table: Table) -> str | None:
    """Returns what a kernel takes too much, or None."""
    if kernel.shared_bytes > architecture(arch).shared_bytes:
        return f"{arch} {name}: {kernel.shared_bytes} bytes of shared memory, of {architecture(arch).shared_bytes}"
    if name not in table.get(arch, {}):
        return f"{arch} {name}: not recorded; run with --write"
    registers, spilled, _ = table[arch][name]
    if kernel.registers > registers * MORE_REGISTERS:
        return f"{arch} {name}: {kernel.registers} registers, where {registers} are recorded"
    if kernel.spilled_bytes > spilled:
        return f"{arch} {name}: {kernel.spilled_bytes} bytes spilled, where {spilled} are recorded"
    return None


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("cases", nargs="*", choices=[[], *CASES], metavar="CASE")
    parser.add_argument("--arch", action="append", choices=ARCHS)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args(arguments)
    table: Table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    wrong = []
    for arch in given.arch or ARCHS:
        for case in given.cases or CASES:
            for name, kernel in compiled(case, arch).items():
                if given.write:
                    numbers = [kernel.registers, kernel.spilled_bytes, kernel.shared_bytes]
                    table.setdefault(arch, {})[name] = numbers
                found = excess(name, kernel, arch, table)
                wrong += [found] if found else []
                print(f"{arch} {name}: {kernel}", flush=True)
    if given.write:
        TABLE.write_text(written(table))
    print(*wrong, sep="\n", file=sys.stderr)
    return 1 if wrong else 0


def written(table: Table) -> str:
    """Returns the table as JSON, with a line a kernel."""
    archs = []
    for arch, kernels in sorted(table.items()):
        lines = [f"    {json.dumps(name)}: {json.dumps(numbers)}" for name, numbers in sorted(kernels.items())]
        archs.append(f"  {json.dumps(arch)}: {{\n" + ",\n".join(lines) + "\n  }")
    return "{\n" + ",\n".join(archs) + "\n}\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
