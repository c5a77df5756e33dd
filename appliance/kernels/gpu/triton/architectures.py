"""What kernels must know of a GPU generation to choose their tiles."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class GpuArchitecture:
    """A GPU generation: the shared memory (LDS) of one program in bytes, the threads of a warp, and what it has."""

    name: str
    shared_bytes: int
    warp_size: int = 32
    has_dependent_launch: bool = False
    has_fp8: bool = True


_KB = 1024
ARCHITECTURES: Final = {
    each.name: each
    for each in (
        GpuArchitecture("sm80", 163 * _KB, has_fp8=False),
        GpuArchitecture("sm86", 99 * _KB, has_fp8=False),
        GpuArchitecture("sm89", 99 * _KB),
        GpuArchitecture("sm90", 227 * _KB, has_dependent_launch=True),
        GpuArchitecture("sm100", 227 * _KB, has_dependent_launch=True),
        GpuArchitecture("sm103", 227 * _KB, has_dependent_launch=True),
        GpuArchitecture("sm120", 99 * _KB, has_dependent_launch=True),
        GpuArchitecture("gfx1100", 64 * _KB, has_fp8=False),
        GpuArchitecture("gfx90a", 64 * _KB, warp_size=64, has_fp8=False),
        GpuArchitecture("gfx942", 64 * _KB, warp_size=64),
        GpuArchitecture("gfx950", 160 * _KB, warp_size=64),
    )
}


def architecture(name: str) -> GpuArchitecture:
    """Returns the architecture of that name, such as "sm90" or "gfx942".

    Raises ValueError, with those that are known, for another.
    """
    if name not in ARCHITECTURES:
        raise ValueError(f"no tiles are known for a GPU of {name}; known are {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]
