"""Which accelerators a process sees."""

from collections.abc import Mapping
from typing import Final

_VARIABLES: Final = {"cuda": "CUDA_VISIBLE_DEVICES", "rocm": "HIP_VISIBLE_DEVICES"}


def visible_devices(device: str, first: int, count: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variable that shows a child process `count` of the accelerators that this process sees, from number
    `first` on; nothing on a CPU. environ: of this process, whose own variable may be a list of numbers or of UUIDs.
    """
    variable = _VARIABLES.get(device)
    if variable is None:
        return {}
    seen = [word.strip() for word in environ.get(variable, "").split(",") if word.strip()]
    chosen = seen[first : first + count] if seen else [str(number) for number in range(first, first + count)]
    return {variable: ",".join(chosen)}
