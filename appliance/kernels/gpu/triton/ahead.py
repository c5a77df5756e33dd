"""Compiles kernels without a device, for any GPU generation, from launches that were recorded instead of started.

Needs triton's compiler, so TRITON_INTERPRET must not be set.
"""

import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from appliance.kernels.gpu.triton.architectures import architecture
from appliance.kernels.gpu.triton.launch import recorded

_TYPES: Final = {
    torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float8_e4m3fn: "*fp8e4nv",
    torch.int8: "*i8", torch.uint8: "*u8", torch.int16: "*i16", torch.int32: "*i32", torch.uint32: "*u32",
    torch.int64: "*i64", torch.uint64: "*u64", torch.float64: "*fp64",
}  # fmt: skip
_ALIGNED = [["tt.divisibility", 16]]


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """A kernel with the arguments of one launch of it."""

    kernel: Any
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.kernel.__name__)

    @property
    def variant(self) -> tuple[object, ...]:
        """Returns what decides the machine code: launches of one variant need it once."""
        return self.name, *map(_described, self.arguments), *sorted(self.options.items())


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """What a program of a kernel takes: registers of a thread, bytes of a thread's that no register holds, and bytes of
    shared memory."""

    registers: int
    spilled_bytes: int
    shared_bytes: int


def launches_of(call: Callable[[], None]) -> list[KernelLaunch]:
    """Returns the launches that `call` asks for, one of each variant.

    None is started, so tensors may be on torch's meta device.
    """
    found: list[KernelLaunch] = []
    with recorded(lambda kernel, grid, arguments, options: found.append(KernelLaunch(kernel, arguments, options))):
        call()
    return list({launch.variant: launch for launch in found}.values())


def compile_launch(launch: KernelLaunch, arch: str) -> CompiledKernel:
    """Compiles a kernel as its launch would on a GPU of an architecture, with 16-byte alignment of all tensors."""
    source, options = _source(launch)
    compiled = triton.compile(source, target=_target(arch), options=options)
    if arch.startswith("gfx"):
        return _amd_resources(compiled.asm["amdgcn"], compiled.metadata.shared)
    return _nvidia_resources(compiled.asm["cubin"], compiled.metadata.shared)


def _target(arch: str) -> GPUTarget:
    if arch.startswith("gfx"):
        return GPUTarget("hip", arch, architecture(arch).warp_size)
    return GPUTarget("cuda", int(arch.removeprefix("sm")), architecture(arch).warp_size)


def _source(launch: KernelLaunch) -> tuple[ASTSource, dict[str, Any]]:
    """Returns what triton's own launcher would compile: ones are constants, and multiples of 16 are known as such."""
    constants: dict[str, Any] = {}
    signature: dict[str, str] = {}
    attributes: dict[tuple[int, ...], Any] = {}
    options = dict(launch.options)
    for index, parameter in enumerate(launch.kernel.params):
        name = parameter.name
        if parameter.is_constexpr:
            constants[name], signature[name] = options.pop(name), "constexpr"
            continue
        value = launch.arguments[index]
        specialized = isinstance(value, int) and not parameter.do_not_specialize
        if specialized and value == 1:
            constants[name], signature[name] = 1, "constexpr"
        else:
            signature[name] = _type_of(value)
        if isinstance(value, torch.Tensor) or (specialized and value % 16 == 0):
            attributes[(index,)] = _ALIGNED
    return ASTSource(launch.kernel, signature, constants, attributes), options


def _described(value: object) -> tuple[object, ...]:
    return _type_of(value), isinstance(value, int) and (value == 1, value % 16 == 0)


def _type_of(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return _TYPES[value.dtype]
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    return "fp32"


def _nvidia_resources(binary: bytes, shared: int) -> CompiledKernel:
    tool = triton.knobs.nvidia.cuobjdump.path
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(binary)
        text = subprocess.run([tool, "-res-usage", str(path)], capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"\b(REG|STACK|LOCAL):(\d+)", text))
    return CompiledKernel(int(found["REG"]), int(found["STACK"]) + int(found["LOCAL"]), shared)


def _amd_resources(assembly: str, shared: int) -> CompiledKernel:
    found = {name: int(number) for name, number in re.findall(r"\.(\w+):\s+(\d+)", assembly)}
    return CompiledKernel(found["vgpr_count"], found["private_segment_fixed_size"], shared)
